"""The staircase mechanism, and the truncated one of Awan and Slavkovic, which is canonical."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.dist_math import check_parameters
from pytensor.graph.basic import Constant

from pymc_dp.graphs.values import known_value
from pymc_dp.mechanisms.arguments import as_float, checked_parameter, in_unit
from pymc_dp.mechanisms.registry import MechanismExample, register_mechanism
from pymc_dp.mechanisms.scales import (
    PositiveNoise,
    SymmetricNoise,
    standard_interval,
    unless_nearly_all,
)

if TYPE_CHECKING:
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable

_FAR = np.array(1e150)  # an infinite distance, in steps
_STEPS = 3  # on either side, whose ends quadrature is told


class StepNoise(SymmetricNoise):
    """Noise of height a e^(-j eps) at j - 1 + gamma <= x < j + gamma, x in units of sensitivity.

    It may be cut at a quantile.
    """

    epsilon: TensorLike
    sensitivity: TensorLike

    _instead = "Write the privacy loss, and the sensitivity: the width of a step."

    def __post_init__(self) -> None:
        """Validate the parameters and make them tensors."""
        super().__post_init__()
        [name] = self._not_positive
        self._keep(name, checked_parameter, good=in_unit, rule="in [0, 1]")

    def wrong_parameter(self) -> str | None:
        """See `Mechanism.wrong_parameter`."""
        [name] = self._not_positive
        share = known_value(getattr(self, name))
        if share is not None and not np.all(in_unit(share)):
            return f"{name}={share} is not in [0, 1]"
        return super().wrong_parameter()

    def _checked(self, expression: TensorVariable) -> TensorVariable:
        [name], expression = self._not_positive, super()._checked(expression)
        share = getattr(self, name)
        if isinstance(share, Constant):
            return expression
        return check_parameters(expression, in_unit(share), msg=f"0 <= {name} <= 1")

    @property
    @abstractmethod
    def _gamma(self) -> TensorVariable:
        """Width of the first step, as a share of a whole one."""

    @property
    def _cut(self) -> TensorVariable:
        """Probability of the steps that is cut off, half of it on either side."""
        return pt.constant(0.0)

    has_more_kinks = True

    def kinks(self, value: TensorLike) -> Sequence[TensorVariable]:
        """Return where the first steps end, and the noise; see `Mechanism.kinks`."""
        end, z = self._distance(pt.constant(0.0)), as_float(value)
        ends = [pt.minimum(j + self._gamma, end) for j in range(_STEPS)]
        if not isinstance(self._cut, Constant):
            ends.append(end)
        return [z + side * self._unit * x for x in ends for side in (-1.0, 1.0)]

    @property
    def _unit(self) -> TensorVariable:
        return as_float(self.sensitivity)

    @property
    def _beyond(self) -> TensorVariable:
        """Mass beyond the lower end of step j, on one side, over exp(-j eps)."""
        return 0.5 / (self._gamma + pt.exp(-as_float(self.epsilon)) * (1.0 - self._gamma))

    def _log_height(self, j: TensorVariable) -> TensorVariable:
        eps = as_float(self.epsilon)
        return pt.log(-pt.expm1(-eps)) + pt.log(self._beyond) - j * eps

    def _log_density(self, x: TensorVariable) -> TensorVariable:
        inside = (x <= self._distance(pt.constant(0.0))) & (x < np.inf)
        height = self._log_height(pt.floor(pt.switch(inside, x, 0.0) + (1.0 - self._gamma)))
        return pt.switch(inside, height - pt.log1p(-self._cut), -np.inf)

    def _log_beside(
        self, near: TensorVariable, far: TensorVariable, width: TensorVariable
    ) -> TensorVariable:
        """Log mass on one side, of 0 <= near < far; a sum of positive parts of steps."""
        eps, gamma = as_float(self.epsilon), self._gamma
        first, last = pt.floor(near + (1.0 - gamma)), pt.floor(far + (1.0 - gamma))
        steps = last - first
        whole = pt.exp(-eps) * pt.expm1(-(pt.maximum(steps, 1.0) - 1.0) * eps) / pt.expm1(-eps)
        parts = first + gamma - near + pt.exp(-steps * eps) * (far - (last - 1.0 + gamma))
        return self._log_height(first) + pt.log(pt.switch(steps > 0, parts + whole, width))

    def log_interval(
        self, lower: TensorLike, upper: TensorLike, statistic: TensorLike = 0.0
    ) -> TensorVariable:
        """Log probability of an interval; see `Mechanism.log_interval`."""
        end = pt.minimum(self._distance(pt.constant(0.0)), _FAR)
        interval = standard_interval(lower, upper, statistic, self._unit, most=end)
        a, b = interval.lower, interval.upper
        around = (a < 0) & (b > 0)
        near = pt.switch(around, 0.0, pt.maximum(a, -b))
        beside = self._log_beside(near, pt.switch(around, 1.0, pt.maximum(b, -a)), interval.width)
        # Around the statistic: one less the tails outside, or else the sum of the two sides.
        ends = [pt.switch(around, x, 1.0) for x in (-a, b)]
        sides = sum(pt.exp(self._log_beside(pt.zeros_like(x), x, x)) for x in ends)
        tails = sum(pt.exp(self._log_beside(x, pt.constant(_FAR), x)) for x in ends)
        out = pt.maximum(tails - self._cut, 0.0) / (1.0 - self._cut)
        across = unless_nearly_all(out, pt.log(sides) - pt.log1p(-self._cut))
        result = pt.switch(around, across, beside - pt.log1p(-self._cut))
        return self._checked(pt.switch(interval.possible, result, -np.inf))

    def _distance(self, tail: TensorVariable) -> TensorVariable:
        eps, tail = as_float(self.epsilon), tail * (1.0 - self._cut) + 0.5 * self._cut
        some = pt.switch(tail > 0, tail, 0.5)
        j = pt.maximum(pt.ceil(pt.log(self._beyond / some) / eps) - 1.0, 0.0)
        rest = (some * pt.exp(j * eps) / self._beyond - pt.exp(-eps)) / -pt.expm1(-eps)
        return pt.switch(tail > 0, j + self._gamma - rest, np.inf)


@dataclass(frozen=True, eq=False, repr=False)
class StaircaseMechanism(StepNoise):
    r"""Release a statistic with staircase noise added.

    With sensitivity :math:`\Delta` and :math:`x = |z - s| / \Delta`, the release has the density

    .. math::

        \eta(z \mid s) = \frac{1 - e^{-\varepsilon}}
            {2 \Delta (\gamma + e^{-\varepsilon} (1 - \gamma))} e^{-j \varepsilon},
        \qquad j = \lfloor x + 1 - \gamma \rfloor,

    which falls by the factor :math:`e^{-\varepsilon}` at :math:`x = \gamma, \gamma + 1, \ldots`.
    The release is :math:`\varepsilon`-differentially private for a statistic of this sensitivity,
    and of all such noise, the one with the best :math:`\gamma` has the least variance, or the
    least mean size, which is diffprivlib's default [1]_.

    Parameters
    ----------
    epsilon : tensor_like of float
        Privacy loss, > 0.
    sensitivity : tensor_like of float
        L1 sensitivity, > 0, in the units of the statistic: the width of a step.
    gamma : tensor_like of float, optional
        Width of the first step as a share of a whole one, in [0, 1]; by default
        :math:`1 / (1 + e^{\varepsilon / 2})`, the least mean size of the noise.

    Raises
    ------
    ValueError
        A parameter out of its range.
    TypeError
        A parameter that depends on a random variable, or is not numeric.

    References
    ----------
    .. [1] Q. Geng, P. Viswanath (2014). The optimal mechanism in differential privacy. ISIT,
       2371-2375.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> mechanism = dp.StaircaseMechanism(epsilon=1.0, sensitivity=2.0, gamma=0.25)
    >>> mechanism.logp([10.4, 10.6, 12.6], 10.0).eval().round(4)
    array([-1.2023, -2.2023, -3.2023])
    """

    epsilon: TensorLike
    sensitivity: TensorLike
    gamma: TensorLike | None = None

    parameter_names = ("epsilon", "sensitivity", "gamma")
    _not_positive = ("gamma",)

    def __post_init__(self) -> None:
        """Fill in gamma; validate the parameters and make them tensors."""
        if self.gamma is None:
            PositiveNoise.__post_init__(self)
            known, least = isinstance(self.epsilon, Constant), pt.sigmoid(-0.5 * self.epsilon)
            object.__setattr__(self, "gamma", known_value(least) if known else least)
        super().__post_init__()

    @property
    def _gamma(self) -> TensorVariable:
        return as_float(self.gamma)


@dataclass(frozen=True, eq=False, repr=False)
class TulapMechanism(StepNoise):
    r"""Release a statistic with truncated uniform and discrete Laplace noise added.

    With sensitivity :math:`\Delta`, :math:`b = e^{-\varepsilon}`, K two-sided geometric with masses
    in proportion to :math:`b^{|k|}`, and U uniform on [-1/2, 1/2], the noise is
    :math:`\Delta (K + U)` given that it lies between its quantiles of :math:`q / 2` and
    :math:`1 - q / 2`,

    .. math::

        q = \frac{2 \delta b}{1 - b + 2 \delta b}.

    It is the canonical noise of :math:`(\varepsilon, \delta)`-differential privacy for a statistic
    of this sensitivity: nothing of the budget is wasted [1]_, and tests and intervals are the best
    there are. OpenDP's `make_canonical_noise(d_in=sensitivity, d_out=(epsilon, delta))` draws it.

    Parameters
    ----------
    epsilon : tensor_like of float
        Privacy loss, > 0.
    delta : tensor_like of float, default 0
        Failure probability, in [0, 1]. Without one the noise has no bounds.
    sensitivity : tensor_like of float, default 1
        Sensitivity, > 0, in the units of the statistic.

    Raises
    ------
    ValueError
        A parameter out of its range.
    TypeError
        A parameter that depends on a random variable, or is not numeric.

    References
    ----------
    .. [1] J. Awan, S. Vadhan (2023). Canonical noise distributions and private hypothesis tests.
       Annals of Statistics 51(2), 547-572; J. Awan, A. Slavkovic (2018). Differentially private
       uniformly most powerful tests for binomial data. NeurIPS.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> mechanism = dp.TulapMechanism(epsilon=1.0, delta=0.01)
    >>> mechanism.logp([10.4, 10.6, 20.0], 10.0).eval().round(4)
    array([-0.7604, -1.7604,    -inf])
    """

    epsilon: TensorLike
    delta: TensorLike = 0.0
    sensitivity: TensorLike = 1.0

    parameter_names = ("epsilon", "delta", "sensitivity")
    _not_positive = ("delta",)

    @property
    def _gamma(self) -> TensorVariable:
        return pt.constant(0.5)

    @property
    def _cut(self) -> TensorVariable:
        # The class's q, without cancellation in 1 - exp(-epsilon).
        epsilon, delta = as_float(self.epsilon), as_float(self.delta)
        return 2.0 * delta / (2.0 * delta + pt.expm1(epsilon))


def _example(mechanism: StepNoise, s: float, last: float, smooth: bool = True) -> MechanismExample:
    ends = np.append(np.arange(float(mechanism._gamma.eval()), last), last)
    pieces = s + float(mechanism._unit.eval()) * np.concatenate([-ends[::-1], ends])
    return MechanismExample(mechanism, s, pieces, smooth_in_statistic=smooth)


def _staircases() -> Sequence[MechanismExample]:
    wide, narrow = StaircaseMechanism(4.0, 2.0), StaircaseMechanism(5.0, 0.01, 0.75)
    return [_example(wide, 3.0, 8), _example(narrow, -7.0, 7)]


def _tulaps() -> Sequence[MechanismExample]:
    cases = (TulapMechanism(0.7, 0.05, 3.0), 5.0), (TulapMechanism(3.0, 0.01), -2.0)
    return [_example(m, s, float(m._distance(0.0).eval()), smooth=False) for m, s in cases]


register_mechanism(StaircaseMechanism, examples=_staircases)
register_mechanism(TulapMechanism, examples=_tulaps)
