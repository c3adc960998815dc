"""Releases of diffprivlib: its mechanism objects, read by the names of their classes.

The library itself is never imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pymc_dp.mechanisms import (
    DiscreteGaussianMechanism,
    GaussianMechanism,
    GeometricMechanism,
    LaplaceMechanism,
    Mechanism,
    RandomizedResponse,
)
from pymc_dp.published.privacy import Privacy


def read(mechanism: Any, value: Any, **fields: Any) -> dict[str, Any]:
    """Read the noise of a released value; see `Release.from_diffprivlib`."""
    name = type(mechanism).__name__
    if name not in _READERS:
        raise ValueError(
            f"from_diffprivlib: {name} is not read; it reads {', '.join(_READERS)}. Where this "
            f"package has the mechanism, write dp.Release(value, mechanism)"
        )
    epsilon, delta = float(mechanism.epsilon), float(getattr(mechanism, "delta", 0.0))
    if name == "Binary":
        value = _codes(mechanism, value)
    try:
        noise = _READERS[name](mechanism, epsilon, delta)
    except AttributeError as error:
        raise ValueError(
            f"from_diffprivlib: this {name} is not that of diffprivlib 0.6 ({error}); write "
            f"dp.Release(value, mechanism)"
        ) from None
    privacy = None
    if 0 < epsilon < np.inf:  # else all of the loss is in delta
        measure = "approximate" if delta else "pure"
        privacy = Privacy(measure=measure, epsilon=epsilon, delta=delta or None)
    source = f"diffprivlib {name}"
    own = {"value": value, "mechanism": noise, "privacy": privacy, "source": source}
    return own | fields


def _positive(mechanism: Any, scale: float) -> float:
    if not 0 < scale < np.inf:
        raise ValueError(
            f"from_diffprivlib: {type(mechanism).__name__} has noise of scale {scale}: without "
            f"noise, or with nothing but noise, there is no release to model"
        )
    return scale


def _laplace(mechanism: Any, epsilon: float, delta: float) -> Mechanism:
    with np.errstate(divide="ignore"):  # delta = 1 stands for no noise
        return LaplaceMechanism(
            _positive(mechanism, float(mechanism.sensitivity) / (epsilon - np.log1p(-delta)))
        )


def _geometric(mechanism: Any, epsilon: float, delta: float) -> Mechanism:
    return GeometricMechanism(_positive(mechanism, float(mechanism.sensitivity) / epsilon))


# How the standard deviation follows from the losses differs between the three classes and is
# solved for numerically in two, so that the number they draw with is the one to take.
def _gaussian(mechanism: Any, epsilon: float, delta: float) -> Mechanism:
    return GaussianMechanism(_positive(mechanism, float(mechanism._scale)))


def _discrete_gaussian(mechanism: Any, epsilon: float, delta: float) -> Mechanism:
    return DiscreteGaussianMechanism(_positive(mechanism, float(mechanism._scale)))


def _binary(mechanism: Any, epsilon: float, delta: float) -> Mechanism:
    if delta == 0:
        return RandomizedResponse.from_epsilon(epsilon)
    return RandomizedResponse((np.exp(epsilon) + delta) / (np.exp(epsilon) + 1))


def _truncated(reader: Callable[..., Mechanism]) -> Callable[..., Mechanism]:
    def read_truncated(mechanism: Any, epsilon: float, delta: float) -> Mechanism:
        return reader(mechanism, epsilon, delta).clipped(mechanism.lower, mechanism.upper)

    return read_truncated


def _codes(mechanism: Any, value: Any) -> np.ndarray:
    labels = mechanism.value0, mechanism.value1
    found = np.asarray(value)[..., None] == np.array(labels)
    if not np.all(found.any(axis=-1)):
        raise ValueError(
            f"from_diffprivlib: Binary releases {labels[0]!r} and {labels[1]!r}, got {value!r}"
        )
    return found[..., 1].astype("int64")


_READERS: dict[str, Callable[..., Mechanism]] = {
    "Laplace": _laplace,
    "LaplaceTruncated": _truncated(_laplace),
    "Geometric": _geometric,
    "GeometricTruncated": _truncated(_geometric),
    "Gaussian": _gaussian,
    "GaussianAnalytic": _gaussian,
    "GaussianDiscrete": _discrete_gaussian,
    "Binary": _binary,
}
