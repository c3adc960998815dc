"""Noise that OpenDP adds, by the names that its measurements and Polars summaries give it."""

from __future__ import annotations

from typing import Any

import numpy as np

from pymc_dp import mechanisms
from pymc_dp.mechanisms import Mechanism

# Mechanisms by the names that Polars summaries give the noise.
NOISE: dict[str, Any] = {
    "Float Laplace": mechanisms.LaplaceMechanism,
    "Integer Laplace": mechanisms.GeometricMechanism,
    "Float Gaussian": mechanisms.GaussianMechanism,
    "Integer Gaussian": mechanisms.DiscreteGaussianMechanism,
}
# Selections, by their name in Polars and by the measure.
_PURE, SELECTIONS = ("ExponentialMin", "MaxDivergence"), ("ExponentialMin", "GumbelMin")
INSTEAD = "write dp.Release(value, mechanism) with the mechanism that was used"


def selection(subject: str, kind: str, scale: float) -> Mechanism:
    """Return the selection: OpenDP adds exponential noise, or Gumbel noise under zCDP."""
    check_noisy(subject, scale, 0.0)
    if kind in _PURE:
        return mechanisms.NoisyMax("exponential", scale)
    return mechanisms.ExponentialMechanism(1 / scale)


def check_noisy(subject: str, scale: float, value: Any) -> None:
    """Refuse an exact number.

    OpenDP adds about 1e-14 of the largest possible sum to floats, for their rounding, which is no
    noise. A private sum over n records has noise of at least 1 / (n epsilon) of that size.
    """
    size = np.abs(np.asarray(value, "float64")).max(initial=0.0)
    rounding = 1e-11 if np.asarray(value).dtype.kind == "f" else 0.0
    if scale <= rounding * size:
        raise ValueError(
            f"{subject} is exact: noise of scale {scale:.3g} is none beside {size:.6g}. An exact "
            f"number is no release: state it in the model as it is, such as shape=n for a number "
            f"of records. Where the number of records is public, one record is replaced, which is "
            f"unit_of(contributions=2) of OpenDP"
        )
