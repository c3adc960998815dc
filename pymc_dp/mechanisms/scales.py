"""Noise of one scale that is added to the statistic: what such mechanisms share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import pytensor
import pytensor.tensor as pt

from pymc_dp.graphs.held import labelled_like
from pymc_dp.mechanisms.arguments import (
    as_float,
    check_positive,
    nan_outside_unit,
    positive_parameter,
    refuse_unless,
)
from pymc_dp.mechanisms.base import Mechanism, wrong_scales
from pymc_dp.mechanisms.lattice import IntegerNoise

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable


class PositiveNoise(Mechanism):
    """Noise with parameters that are finite and positive, and perhaps others."""

    _instead: ClassVar[str]
    """What to write instead of an invalid parameter, as a sentence; {} is the class."""

    _not_positive: ClassVar[tuple[str, ...]] = ()
    """Parameters that need not be finite and positive."""

    @property
    def _positive(self) -> list[str]:
        return [name for name in self.parameter_names if name not in self._not_positive]

    def __post_init__(self) -> None:
        """Validate the parameters and make them tensors."""
        instead = self._instead.format(type(self).__name__)
        for name in self._positive:
            self._keep(name, positive_parameter, instead=instead)

    def wrong_parameter(self) -> str | None:
        """See `Mechanism.wrong_parameter`."""
        return wrong_scales(self, self._positive)

    def _checked(self, expression: TensorVariable) -> TensorVariable:
        for name in self._positive:
            expression = check_positive(expression, getattr(self, name), name)
        return expression


class SymmetricNoise(PositiveNoise):
    """Adds independent noise with a symmetric density, whatever the statistic is."""

    @property
    def _unit(self) -> TensorVariable:
        """Unit of distances in `_log_density` and `_distance`."""
        return as_float(self.parameters[0])

    @abstractmethod
    def _log_density(self, x: TensorVariable) -> TensorVariable:
        """Log density at a distance x >= 0, which may be infinite."""

    @abstractmethod
    def _distance(self, tail: TensorVariable) -> TensorVariable:
        """Distance beyond which, on one side, there is a probability of `tail` <= 1/2."""

    def logp(self, value: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Log density of a release; see `Mechanism.logp`."""
        x = pt.abs(as_float(value) - as_float(statistic)) / self._unit
        return self._checked(self._log_density(x) - pt.log(self._unit))

    def icdf(self, p: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Quantile function; see `Mechanism.icdf`."""
        p = as_float(p)
        distance = self._unit * self._distance(pt.minimum(p, 1.0 - p))
        quantile = as_float(statistic) + pt.switch(p < 0.5, -distance, distance)
        return self._checked(nan_outside_unit(quantile, p))


class ScaleNoise(PositiveNoise):
    """Adds independent noise of one scale, its only parameter, with a log-concave law."""

    @classmethod
    def from_sd(cls, sd: ArrayLike, **fields: Any) -> Self:
        """Build the mechanism from the standard deviation of its noise.

        Parameters
        ----------
        sd : array_like
            Standard deviation of each component's noise, > 0, in the units of the statistic. For
            whole-number noise it is that of the noise itself, not of a density of its shape.
        **fields
            Other fields of the mechanism: `df` of Student's t.

        Raises
        ------
        ValueError
            An argument that is not finite and positive, or noise that has no variance.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> dp.LaplaceMechanism.from_sd(np.sqrt(2.0))
        LaplaceMechanism(scale=1.0)
        >>> dp.StudentTMechanism.from_sd(3.0, df=6.0).scale.eval().round(4)
        np.float64(2.4495)
        """
        return cls._of_scale(cls._scale_of_sd(cls._argument("sd", sd), **fields), fields, sd)

    @classmethod
    def from_variance(cls, variance: ArrayLike, **fields: Any) -> Self:
        """Build the mechanism from the variance of its noise; see `from_sd`.

        Parameters
        ----------
        variance : array_like
            Variance of each component's noise, > 0.
        **fields
            As for `from_sd`.

        Raises
        ------
        ValueError
            An argument that is not finite and positive, or noise that has no variance.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> dp.GaussianMechanism.from_variance([4.0, 9.0])
        GaussianMechanism(sigma=[2., 3.])
        """
        sd = np.sqrt(cls._argument("variance", variance))
        return cls._of_scale(cls._scale_of_sd(sd, **fields), fields, variance)

    @classmethod
    def from_accuracy(cls, accuracy: ArrayLike, alpha: ArrayLike, **fields: Any) -> Self:
        r"""Build the mechanism from a bound on its noise: :math:`P(|Z - s| \ge a) = \alpha`.

        Whole-number noise is defined as OpenDP does; see there for accuracies between whole
        numbers.

        Parameters
        ----------
        accuracy : array_like
            The bound a, > 0, in the units of the statistic; at least 1 for whole-number noise. Half
            the width of a central interval that holds the statistic with probability 1 - alpha.
        alpha : array_like
            Probability of noise that reaches the bound, 0 < alpha < 1.
        **fields
            As for `from_sd`.

        Raises
        ------
        ValueError
            An argument out of its range.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> dp.GaussianMechanism.from_accuracy(1.96, alpha=0.05).sigma.eval().round(4)
        np.float64(1.0)
        """
        bound = cls._argument("accuracy", accuracy)
        if issubclass(cls, IntegerNoise):
            instead = "Noise of whole numbers that is not 0 is at least 1: write that accuracy."
            refuse_unless(bound >= 1, bound, cls.__name__, "accuracy", "finite and >= 1", instead)
        pair = np.broadcast_arrays(bound, cls._argument("alpha", alpha, below=1.0))
        return cls._of_scale(cls._scale_of_accuracy(*pair, **fields), fields, accuracy, alpha)

    @classmethod
    def _of_scale(cls, scale: np.ndarray, fields: dict[str, Any], *written: ArrayLike) -> Self:
        """Build the mechanism from a computed scale, with the labels of the arguments `written`."""
        return cls(**fields, **{cls.parameter_names[0]: labelled_like(scale, *written)})

    @classmethod
    @abstractmethod
    def _scale_of_sd(cls, *args: Any, **fields: Any) -> np.ndarray:
        """Return the scale of noise of standard deviations `sd`, and its other fields."""

    @classmethod
    @abstractmethod
    def _scale_of_accuracy(cls, *args: Any, **fields: Any) -> np.ndarray:
        """Return the scale from `accuracy` and `alpha`, of one shape, and the other fields."""

    @property
    def log_concave(self) -> bool:
        """The density or mass of the noise is log-concave."""
        return True

    @property
    def _scale(self) -> TensorVariable:
        [scale] = self.parameters
        return scale

    def _ratio(self, sensitivity: ArrayLike) -> np.ndarray:
        """Sensitivity over scale, on which every privacy loss depends."""
        return self._argument("sensitivity", sensitivity) / self._value(self.parameter_names[0])


class LaplaceNoise(ScaleNoise):
    """Noise of a log density, or log mass, -|z - s| / b but for a constant; b is the scale."""

    parameter_names = ("scale",)

    @classmethod
    def _from_epsilon(cls, epsilon: ArrayLike, sensitivity: ArrayLike) -> Self:
        loss, size = cls._arguments(epsilon=epsilon, sensitivity=sensitivity)
        mechanism = cls(labelled_like(size / loss, epsilon, sensitivity))
        object.__setattr__(mechanism, "stated_loss", loss)
        return mechanism

    def stated_epsilon(self, shape: tuple[int | None, ...]) -> float | None:
        """Total stated loss of a release; see `Mechanism.stated_epsilon`."""
        stated = getattr(self, "stated_loss", None)
        known = tuple(length for length in shape if length is not None)
        if stated is None or len(known) < len(shape):
            return None
        return float(np.broadcast_to(stated, known).sum())

    @property
    def rates(self) -> tuple[TensorVariable, TensorVariable]:
        """See `Mechanism.rates`."""
        return 1.0 / as_float(self._scale), pt.constant(0.0)


class GaussianNoise(ScaleNoise):
    """Noise of a log density, or log mass, -(z - s)^2 / (2 sigma^2) but for a constant."""

    parameter_names = ("sigma",)

    @classmethod
    def _from_rho(cls, rho: ArrayLike, sensitivity: ArrayLike) -> Self:
        loss, size = cls._arguments(rho=rho, sensitivity=sensitivity)
        return cls(labelled_like(size / np.sqrt(2.0 * loss), rho, sensitivity))

    @property
    def rates(self) -> tuple[TensorVariable, TensorVariable]:
        """See `Mechanism.rates`."""
        return pt.constant(0.0), as_float(self._scale) ** -2.0


@dataclass(frozen=True, eq=False)
class StandardInterval:
    """An interval in units of the noise scale, every field of it finite.

    Parameters
    ----------
    lower, upper : TensorVariable
        Standardised ends; an infinite end is a number of which the square is still finite.
    width : TensorVariable
        Their distance, positive, computed before standardising so that it does not cancel.
    possible : TensorVariable
        Whether the interval has any mass; where not, the other fields are a harmless (-1, 1).
    """

    lower: TensorVariable
    upper: TensorVariable
    width: TensorVariable
    possible: TensorVariable


def standard_interval(
    lower: TensorLike,
    upper: TensorLike,
    location: TensorLike,
    scale: TensorVariable,
    most: TensorLike | None = None,
) -> StandardInterval:
    """Standardise an interval under a location-scale law, of noise of at most `most` scales.

    Whatever is not finite is replaced before it meets any arithmetic, because the gradient of
    `switch` multiplies the unused branch by zero and 0 * inf is NaN.
    """
    lower, upper, location = as_float(lower), as_float(upper), as_float(location)
    possible = lower < upper
    open_lower, open_upper = pt.isinf(lower), pt.isinf(upper)
    floatx = np.dtype(pytensor.config.floatX)
    big = pt.constant(np.asarray(1e-4 * np.sqrt(np.finfo(floatx).max), dtype=floatx))
    low = pt.switch(open_lower, location, lower)
    high = pt.switch(open_upper, location, upper)
    # An end at the wrong infinity makes the interval impossible, so the signs can be taken as read.
    a = pt.switch(open_lower, -big, (low - location) / scale)
    b = pt.switch(open_upper, big, (high - location) / scale)
    width = pt.switch(open_lower | open_upper, big, (high - low) / scale)
    if most is not None:
        inside, a, b = (a >= -most) & (b <= most), pt.maximum(a, -most), pt.minimum(b, most)
        width = pt.switch(inside, width, b - a)
    # Ends may differ by less than the scale can show.
    possible = possible & (width > 0)
    return StandardInterval(
        pt.switch(possible, a, -1.0),
        pt.switch(possible, b, 1.0),
        pt.switch(possible, width, 2.0),
        possible,
    )


def unless_nearly_all(out: TensorVariable, log_mass: TensorVariable) -> TensorVariable:
    """Return `log_mass`; for a probability above 1/2, log(1 - out) from its complement `out`."""
    small = out < 0.5
    return pt.switch(small, pt.log1p(-pt.switch(small, out, 0.0)), log_mass)


def decreasing_root(
    function: Callable[[np.ndarray], np.ndarray], lower: np.ndarray, upper: np.ndarray
) -> np.ndarray:
    """Bisect a decreasing function, elementwise, until the bracket cannot shrink."""
    for _ in range(200):
        middle = 0.5 * (lower + upper)
        positive = function(middle) > 0
        lower, upper = np.where(positive, middle, lower), np.where(positive, upper, middle)
        if np.all(upper - lower <= 1e-16 * np.abs(upper)):
            break
    return 0.5 * (lower + upper)
