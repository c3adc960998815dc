"""The snapping mechanism: Laplace noise that is safe in floating point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import pytensor.tensor as pt

from pymc_dp.graphs.values import known_value
from pymc_dp.mechanisms.arguments import as_float, refuse_unless
from pymc_dp.mechanisms.registry import MechanismExample, register_mechanism
from pymc_dp.plugins.rare_noise.bounded_laplace import BoundedNoise

if TYPE_CHECKING:
    from pytensor.graph.basic import Variable
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable

    from pymc_dp.mechanisms.base import Mechanism
_UNIT = np.finfo(float).epsneg


@dataclass(frozen=True, eq=False, repr=False)
class SnappingMechanism(BoundedNoise):
    r"""Release a statistic, clamped, with Laplace noise, rounded to a grid and clamped again.

    With the middle m = (l + u) / 2 of the bounds and a step :math:`\Lambda`, the release is

    .. math::

        Z = [m + \Lambda \operatorname{round}(([s]_l^u + b L - m) / \Lambda)]_l^u,

    L standard Laplace and :math:`[x]_l^u` x clamped to the bounds [1]_. So the mass of a point of
    the grid is that of its cell, and each bound has the mass of all that is beyond. diffprivlib's
    `Snapping` draws it. It is :math:`\varepsilon`-differentially private for a slightly larger loss
    than :math:`\Delta / b`,

    .. math::

        \varepsilon = (1 + 12 B \eta) \frac{\Delta}{b} + 2 \eta, \qquad
        B = \frac{u - l}{2 \Delta}, \quad \eta = 2^{-53}.

    Parameters
    ----------
    scale : tensor_like of float
        Noise scale :math:`b > 0`, in the units of the statistic.
    lower, upper : tensor_like of float
        Public bounds, finite.
    step : float, optional
        Step :math:`\Lambda > 0` of the grid; by default the least power of two that is not less
        than the scale, which fits a sensitivity of 1. See `from_epsilon` for others.

    Raises
    ------
    ValueError
        A scale or step that is not finite and positive, or bounds that are not in order.
    TypeError
        A parameter that depends on a random variable, or is not numeric.

    References
    ----------
    .. [1] I. Mironov (2012). On significance of the least significant bits for differential
       privacy. CCS, 650-661.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> mechanism = dp.SnappingMechanism.from_epsilon(0.5, 1.0, lower=0.0, upper=100.0)
    >>> mechanism.step
    4.0
    >>> mechanism.logp([50.0, 54.0, 55.0], 50.0).eval().round(4)
    array([-0.4587, -1.8386,    -inf])
    """

    step: float | None = None

    def __post_init__(self) -> None:
        """Validate the parameters; find the step."""
        super().__post_init__()
        step, scale, name = self.step, known_value(self.scale), type(self).__name__
        if step is None:
            steps = np.unique(_power_of_two(np.array([]) if scale is None else scale))
            instead = "Scales that differ, or are symbolic, need the step= that was used."
            refuse_unless(np.array(steps.size == 1), np.array(None), name, "step", "given", instead)
            step = steps[0]
        object.__setattr__(self, "step", float(self._argument("step", step)))

    @classmethod
    def from_epsilon(
        cls, epsilon: float, sensitivity: float, lower: TensorLike, upper: TensorLike
    ) -> Self:
        """Build the mechanism from its privacy loss, as diffprivlib does.

        Parameters
        ----------
        epsilon, sensitivity : float
            Privacy loss and sensitivity, > 0.
        lower, upper : float
            Public bounds, finite.

        Raises
        ------
        ValueError
            An epsilon of 2**-52 or less, a sensitivity that is not finite and positive, or bounds
            that are not in order.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> mechanism = dp.SnappingMechanism.from_epsilon(0.5, 10.0, lower=0.0, upper=100.0)
        >>> mechanism.scale.eval().round(4), mechanism.step
        (np.float64(20.0), 40.0)
        """
        loss, size = cls._arguments(epsilon=epsilon, sensitivity=sensitivity)
        refuse_unless(loss > 2 * _UNIT, loss, cls.__name__, "epsilon", "more than 2**-52", "")
        length = np.asarray(upper, dtype=float) - np.asarray(lower, dtype=float)
        noise = (1.0 + 6.0 * length / size * _UNIT) / (loss - 2.0 * _UNIT)
        return cls(size * noise, lower, upper, float(size) * float(_power_of_two(noise)))

    @staticmethod
    def _loss(size: np.ndarray, scale: np.ndarray, length: np.ndarray) -> np.ndarray:
        return (1.0 + 6.0 * length / size * _UNIT) * size / scale + 2.0 * _UNIT

    @property
    def spacing(self) -> float:
        """Step of the grid; the bounds need not lie on it."""
        assert self.step is not None
        return self.step

    @property
    def _middle(self) -> TensorVariable:
        return 0.5 * (as_float(self.lower) + as_float(self.upper))

    @property
    def _rounded(self) -> Mechanism:
        return self._laplace.rounded(base=self.spacing)

    def noise_sample(self, rng: Variable, statistic: TensorLike) -> tuple[Variable, TensorVariable]:
        """Draw one release; see `Mechanism.noise_sample`."""
        next_rng, draw = self._rounded.noise_sample(rng, self._clamped(statistic) - self._middle)
        return next_rng, self._clamped(self._middle + draw)

    def log_interval(
        self, lower: TensorLike, upper: TensorLike, statistic: TensorLike = 0.0
    ) -> TensorVariable:
        """Log probability of the releases in an interval; see `Mechanism.log_interval`."""
        low, high, slack = as_float(lower), as_float(upper), 1e-9 * self.spacing
        # With room for rounding. A bound stands for everything beyond it.
        below, above = low <= self.lower + slack, high >= self.upper - slack
        empty = (low > high) | (low > self.upper + slack) | (high < self.lower - slack)
        first = pt.switch(below, -np.inf, self._clamped(low) - self._middle)
        last = pt.switch(above, np.inf, self._clamped(high) - self._middle)
        mass = self._rounded.log_interval(first, last, self._clamped(statistic) - self._middle)
        return self._checked(pt.switch(empty, -np.inf, mass))

    def why_unattainable(self, value: float) -> str:
        """Explain why a value cannot be published; see `Mechanism.why_unattainable`."""
        return (
            f"SnappingMechanism releases its bounds, and between them multiples of {self.step} "
            "from the middle: check lower, upper and step, which `from_epsilon` finds"
        )


def _power_of_two(x: np.ndarray) -> np.ndarray:
    """Return the least power of two that is not less."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(1.0, exponent - (mantissa == 0.5))


def _examples() -> Sequence[MechanismExample]:
    on, off = SnappingMechanism(1.3, 0.0, 20.0), SnappingMechanism(0.4, -3.0, 2.5, 1.5)
    return [
        MechanismExample(on, 6.0, atoms=np.arange(0.0, 20.5, 2.0)),
        MechanismExample(off, 1.0, atoms=np.array([-3.0, *(1.5 * np.arange(-1, 2) - 0.25), 2.5])),
    ]


register_mechanism(SnappingMechanism, examples=_examples)
