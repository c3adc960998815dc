"""Whole-number noise added to a whole number: what such mechanisms share."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_grad
from pytensor.raise_op import Assert

from pymc_dp.graphs.values import known_value
from pymc_dp.mechanisms.arguments import as_float, checked_parameter, nan_outside_unit
from pymc_dp.mechanisms.base import Mechanism

if TYPE_CHECKING:
    from pytensor.graph.basic import Variable
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable

LARGEST = 2.0**53
"""Up to here a double holds every whole number."""
_ROUNDING = 2.0**-44  # relative rounding error of a statistic


class IntegerNoise(Mechanism):
    """Releases a whole number with independent whole-number noise added.

    A subclass says what the noise is, by `noise_variance`, `_sample_noise`, `_log_mass`,
    `_log_between` and `_noise_quantile`. The release lies on the lattice of the whole numbers
    counted from the statistic; elsewhere its log mass is -inf.
    """

    continuous_alternative = "dp.LaplaceMechanism"
    """What to use for a release of the same kind with continuous noise."""

    @property
    def spacing(self) -> float:
        """Distance between neighbouring releases."""
        return 1.0

    @property
    def takes_whole(self) -> bool:
        """See `Mechanism.takes_whole`."""
        return True

    @property
    @abstractmethod
    def noise_variance(self) -> TensorVariable:
        """Variance of the noise."""

    @abstractmethod
    def _sample_noise(self, rng: Variable, like: TensorVariable) -> tuple[Variable, TensorVariable]:
        """Draw noise of the shape to which `like` and the parameters broadcast."""

    @abstractmethod
    def _log_mass(self, k: TensorVariable) -> TensorVariable:
        """Log mass of the noise at finite whole numbers."""

    @abstractmethod
    def _log_between(self, first: TensorVariable, last: TensorVariable) -> TensorVariable:
        """Log probability of noise from `first` to `last`, whole or infinite, first < last."""

    @abstractmethod
    def _noise_quantile(self, p: TensorVariable) -> TensorVariable:
        """Quantile of the noise, for p in [0, 1]."""

    def noise_sample(self, rng: Variable, statistic: TensorLike) -> tuple[Variable, TensorVariable]:
        """Draw one release; see `Mechanism.noise_sample`. The statistic must be a whole number."""
        s = _snapped(statistic)
        message = (
            f"{type(self).__name__}: the statistic must be a whole number of at most 2**53; use "
            f"{self.continuous_alternative} for a statistic that varies continuously"
        )
        s = Assert(message)(s, pt.all(pt.eq(s, pt.round(s)) & (pt.abs(s) <= LARGEST)))
        next_rng, noise = self._sample_noise(rng, s)
        return next_rng, s.astype("int64") + noise

    def logp(self, value: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Log mass of a release; see `Mechanism.logp`."""
        k = as_float(value) - _snapped(statistic)
        possible = pt.eq(k, pt.round(k)) & (pt.abs(k) < np.inf)
        log_mass = self._log_mass(pt.switch(possible, k, 0.0))
        return self._checked(pt.switch(possible, log_mass, -np.inf))

    def log_interval(
        self, lower: TensorLike, upper: TensorLike, statistic: TensorLike = 0.0
    ) -> TensorVariable:
        """Log probability of the releases in an interval; see `Mechanism.log_interval`."""
        s = _snapped(statistic)
        first = _first_offset(as_float(lower), s)
        last = -_first_offset(-as_float(upper), -s)
        # Comparisons with NaN are false.
        possible = (first <= last) & (first < np.inf) & (last > -np.inf)
        single = possible & pt.eq(first, last)
        several = possible & ~single
        between = self._log_between(pt.switch(several, first, -1.0), pt.switch(several, last, 1.0))
        alone = self._log_mass(pt.switch(single, first, 0.0))
        result = pt.switch(single, alone, pt.switch(several, between, -np.inf))
        return self._checked(result)

    def icdf(self, p: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Quantile function; see `Mechanism.icdf`."""
        p = as_float(p)
        inside = nan_outside_unit(p, p)
        return self._checked(as_float(statistic) + self._noise_quantile(inside))

    def typical_statistic(self, value: TensorLike) -> TensorVariable:
        """Return the nearest whole number; NaN where doubles do not hold every whole number."""
        value = as_float(value)
        return pt.switch(pt.abs(value) <= LARGEST, pt.round(value), np.nan)

    def why_unattainable(self, value: float) -> str:
        """Explain why a value cannot be published; see `Mechanism.why_unattainable`."""
        name = type(self).__name__
        if value == np.round(value):
            return f"{name} releases whole numbers of at most 2**53, so that doubles hold them all"
        return (
            f"{name} releases whole numbers: use {self.continuous_alternative} for a release "
            f"with continuous noise"
        )


def _snapped(statistic: TensorLike) -> TensorVariable:
    """Return the statistic, at the whole number that it misses by rounding: 49 * (1 / 49) is 1.

    Otherwise the order of the arithmetic would decide whether a release is possible.
    """
    s = as_float(statistic)
    off = pt.round(s) - s
    small = pt.abs(off) <= pt.minimum(_ROUNDING * pt.maximum(1.0, pt.abs(s)), 1e-3)
    return s + disconnected_grad(pt.switch(small, off, 0.0))


def whole_parameter(value: Any, *, least: int, **texts: str) -> TensorVariable:
    """Convert a parameter that must be whole and at least `least`; see `checked_parameter`."""
    rule = f"a whole number >= {least} and <= 2**53"
    return checked_parameter(value, lambda x: _is_whole(x, least) & (x <= LARGEST), rule, **texts)


def not_whole(name: str, parameter: TensorVariable, least: int) -> str | None:
    """Say that a parameter is not whole, or below `least`, as far as its value is known."""
    value = known_value(parameter)
    if value is None or np.all(_is_whole(value, least)):
        return None
    return f"{name}={value} is no whole number >= {least}"


def _is_whole(x: np.ndarray, least: int) -> np.ndarray:
    return (x >= least) & (x == np.round(x))


def _first_offset(lower: TensorVariable, s: TensorVariable) -> TensorVariable:
    """Return the least whole number k with s + k >= lower, where their difference is rounded."""
    k = pt.ceil(lower - s)
    k = pt.switch(s + k < lower, k + 1.0, k)
    return pt.switch(s + (k - 1.0) >= lower, k - 1.0, k)
