"""Releases of diffprivlib: its mechanism objects, read by their classes, and its `tools` by name.

The library itself is never imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import brentq

from pymc_dp import mechanisms as own
from pymc_dp.mechanisms import (
    DiscreteGaussianMechanism,
    GaussianMechanism,
    GeometricMechanism,
    LaplaceMechanism,
    Mechanism,
    RandomizedResponse,
)
from pymc_dp.published.privacy import Privacy

# What has no reader, and what to write.
_NOT_READ = {
    "LaplaceBoundedNoise": "its noise is Laplace, drawn again until it is within the object's "
    "_noise_bound: write dp.CustomMechanism with that density",
    "GeometricFolded": "its whole numbers are reflected at the bounds: write dp.CustomMechanism "
    "with that mass, or release with GeometricTruncated",
    "Bingham": "it releases a direction drawn around an eigenvector, no noisy number",
    "Vector": "it adds a random linear term to an objective function: the parameters that were "
    "fitted are no noisy number",
}


def read(mechanism: Any, value: Any, **fields: Any) -> dict[str, Any]:
    """Read the noise of a released value; see `Release.from_diffprivlib`."""
    if isinstance(mechanism, str):
        return _read_tool(mechanism, value, **fields)
    name = type(mechanism).__name__
    if name not in _READERS:
        why = _NOT_READ.get(
            name, "where this package has the mechanism, write dp.Release(value, mechanism)"
        )
        raise ValueError(
            f"from_diffprivlib: {name} is not read: {why}. What is read: {', '.join(_READERS)}"
        )
    epsilon, delta = float(mechanism.epsilon), float(getattr(mechanism, "delta", 0.0))
    labels = _labels(name, mechanism)
    if labels is not None:
        value = _codes(name, labels, value)
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


def _folded(mechanism: Any, epsilon: float, delta: float) -> Mechanism:
    scale = _laplace(mechanism, epsilon, delta).parameters[0]
    return own.FoldedLaplaceMechanism(scale, mechanism.lower, mechanism.upper)


def _bounded_domain(mechanism: Any, epsilon: float, delta: float) -> Mechanism:
    lower, upper = float(mechanism.lower), float(mechanism.upper)
    scale = bounded_scale(epsilon, delta, float(mechanism.sensitivity), upper - lower)
    return own.BoundedLaplaceMechanism(_positive(mechanism, scale), lower, upper)


def bounded_scale(epsilon: float, delta: float, sensitivity: float, width: float) -> float:
    """Return the scale of Laplace noise that is drawn again until the result is in an interval.

    The normaliser depends on the statistic, so that it is larger than sensitivity / epsilon:
    N. Holohan, S. Antonatos, S. Braghin, P. Mac Aonghusa (2020). The bounded Laplace mechanism in
    differential privacy. Journal of Privacy and Confidentiality 10(1).
    """

    def short(scale: float) -> float:
        at_ends = -np.expm1(-sensitivity / scale) - np.expm1((sensitivity - width) / scale)
        change = np.log(at_ends / -np.expm1(-width / scale))
        return sensitivity - scale * (epsilon - change - np.log1p(-delta))

    least = sensitivity / (epsilon - np.log1p(-delta))
    if not 0 < least < np.inf or short(least) <= 0:
        return least
    most = 2 * least
    while short(most) > 0:
        most *= 2
    return float(brentq(short, least, most, xtol=1e-300, rtol=1e-14))


def _uniform(mechanism: Any, epsilon: float, delta: float) -> Mechanism:
    return own.UniformMechanism(_positive(mechanism, float(mechanism.sensitivity) / delta / 2))


def _among_labels(mechanism: Any, epsilon: float, delta: float) -> Mechanism:
    labels = mechanism._domain_values
    chance = np.array([[mechanism._get_prob(k, z) for z in labels] for k in labels])
    return RandomizedResponse(matrix=chance / chance.sum(axis=1, keepdims=True))


def _exponential(mechanism: Any, epsilon: float, delta: float) -> Mechanism:
    rate = _rate(mechanism, epsilon)
    if mechanism.measure is not None:
        raise ValueError(
            f"from_diffprivlib: the candidates of this Exponential have a measure. Release "
            f"utilities + log(measure) / {rate:.17g} in the model, and write dp.Release(index, "
            f"dp.ExponentialMechanism({rate:.17g}))"
        )
    return own.ExponentialMechanism(rate)


def _permute_and_flip(mechanism: Any, epsilon: float, delta: float) -> Mechanism:
    return own.NoisyMax("exponential", 1 / _rate(mechanism, epsilon))


def _rate(mechanism: Any, epsilon: float) -> float:
    return (
        epsilon
        / _positive(mechanism, float(mechanism.sensitivity))
        / (1 if mechanism.monotonic else 2)
    )


def _staircase(mechanism: Any, epsilon: float, delta: float) -> Mechanism:
    sensitivity = _positive(mechanism, float(mechanism.sensitivity))
    return own.StaircaseMechanism(epsilon, sensitivity, float(mechanism.gamma))


def _snapping(mechanism: Any, epsilon: float, delta: float) -> Mechanism:
    sensitivity = _positive(mechanism, float(mechanism.sensitivity))
    bounds = float(mechanism.lower), float(mechanism.upper)
    return own.SnappingMechanism.from_epsilon(epsilon, sensitivity, *bounds)


def _labels(name: str, mechanism: Any) -> Any:
    """Return the labels of what is released, where it is one of these."""
    if name == "Binary":
        return mechanism.value0, mechanism.value1
    return getattr(mechanism, "candidates", None) or getattr(mechanism, "_domain_values", None)


def _codes(name: str, labels: Any, value: Any) -> np.ndarray:
    found = np.asarray(value)[..., None] == np.array(labels)
    if not np.all(found.any(axis=-1)):
        raise ValueError(
            f"from_diffprivlib: {name} releases {' and '.join(map(repr, labels))}, got {value!r}"
        )
    return found.argmax(axis=-1)


_READERS: dict[str, Callable[..., Mechanism]] = {
    "Laplace": _laplace,
    "LaplaceTruncated": _truncated(_laplace),
    "Geometric": _geometric,
    "GeometricTruncated": _truncated(_geometric),
    "Gaussian": _gaussian,
    "GaussianAnalytic": _gaussian,
    "GaussianDiscrete": _discrete_gaussian,
    "Binary": _binary,
    "LaplaceFolded": _folded,
    "LaplaceBoundedDomain": _bounded_domain,
    "Uniform": _uniform,
    "Staircase": _staircase,
    "Snapping": _snapping,
    "Exponential": _exponential,
    "PermuteAndFlip": _permute_and_flip,
    "ExponentialCategorical": _among_labels,
    "ExponentialHierarchical": _among_labels,
}


# --- Functions of diffprivlib.tools -------------------------------------------------------------

_TOOLS_NOT_READ = {
    "std": 'it is the root of a noisy variance: read dp.Release.from_diffprivlib("var", value**2, '
    "...), and release the variance in the model",
}
_HISTOGRAMS = ("histogram", "histogramdd", "histogram2d")
_QUANTILES = {"median": None, "quantile": "quant", "percentile": "percent"}


def _read_tool(
    name: str,
    value: Any,
    *,
    epsilon: float,
    bounds: Any = None,
    n: int | None = None,
    dtype: Any = None,
    density: bool | None = None,
    **fields: Any,
) -> dict[str, Any]:
    tool = name.removeprefix("nan")
    if tool not in (*_HISTOGRAMS, *_QUANTILES, "count_nonzero", "mean", "sum", "var"):
        why = _TOOLS_NOT_READ.get(tool, "it is no function of diffprivlib.tools that is known")
        raise ValueError(f"from_diffprivlib: {name!r} is not read: {why}")
    value = np.asarray(value)
    if tool in _HISTOGRAMS:
        if density:
            raise ValueError(
                "from_diffprivlib: with density=True the noisy counts were divided by their sum; "
                "release the counts"
            )
        noise: Mechanism = GeometricMechanism(1 / epsilon).clipped(lower=0)
    elif tool in _QUANTILES:
        quantile: Any = 0.5
        if (argument := _QUANTILES[tool]) is not None:
            if argument not in fields:
                raise ValueError(f"from_diffprivlib: {name} needs {argument}=, as it was called")
            quantile = np.asarray(fields.pop(argument)) / (100 if tool == "percentile" else 1)
            if quantile.size > 1:  # those of one axis come first
                quantile = quantile.reshape(-1, *[1] * (value.ndim - 1))
        noise = own.PrivateQuantile.from_epsilon(
            np.squeeze(quantile) if np.size(quantile) == 1 else quantile,
            epsilon / value.size,
            *_bounds(name, bounds),
        )
    else:
        lower, upper = _bounds(name, (0, 1) if tool == "count_nonzero" else bounds)
        if n is None or n < 1:
            raise ValueError(
                f"from_diffprivlib: {name} needs n=, the number of records, which is public there"
            )
        # With an axis, every entry has its share.
        noise = _of_records(tool, epsilon / value.size, lower, upper, n, dtype)
    own_fields = {
        "value": value,
        "mechanism": noise,
        "privacy": Privacy(measure="pure", epsilon=epsilon),
        "source": f"diffprivlib tools.{name}",
    }
    return own_fields | fields


def _bounds(name: str, bounds: Any) -> tuple[Any, Any]:
    if bounds is None:
        raise ValueError(
            f"from_diffprivlib: {name} needs bounds=. Without them it takes the least and the "
            f"largest record, and is not private"
        )
    lower, upper = (np.asarray(bound, dtype="float64") for bound in bounds)
    if not np.all(lower < upper):
        raise ValueError(f"from_diffprivlib: bounds={bounds!r} must be (lower, upper)")
    return lower[()], upper[()]


def _of_records(tool: str, epsilon: float, lower: Any, upper: Any, n: int, dtype: Any) -> Mechanism:
    width = upper - lower
    if tool == "mean":
        return LaplaceMechanism(width / n / epsilon).clipped(lower, upper)
    if tool == "var":
        most, sensitivity = width**2 / 4, (width / n) ** 2 * (n - 1)
        scales = np.vectorize(bounded_scale)(epsilon, 0.0, sensitivity, most)[()]
        return own.BoundedLaplaceMechanism(scales, 0.0, most)
    whole = tool == "count_nonzero" or (dtype is not None and np.issubdtype(dtype, np.integer))
    law = GeometricMechanism if whole else LaplaceMechanism
    return law(width / epsilon).clipped(lower * n, upper * n)
