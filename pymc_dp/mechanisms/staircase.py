"""The staircase mechanism, and the truncated one of Awan and Slavkovic, which is canonical."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.dist_math import check_parameters
from pytensor.graph.basic import Constant
from scipy import special

from pymc_dp.graphs.questions import known_value
from pymc_dp.mechanisms.arguments import (
    as_float,
    check_positive,
    checked_parameter,
    nan_outside_unit,
    positive_parameter,
)
from pymc_dp.mechanisms.base import Mechanism, MechanismExample, register_mechanism, wrong_scales
from pymc_dp.mechanisms.scales import standard_interval

if TYPE_CHECKING:
    from pytensor.graph.basic import Variable
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable

_FAR = np.array(1e150)  # steps


class _Steps(NamedTuple):
    """Noise in units of its steps: of height a e^(-j eps) at j - 1 + gamma <= |x| < j + gamma."""

    epsilon: TensorVariable
    gamma: TensorVariable

    @property
    def log_height(self) -> TensorVariable:
        """Log of a."""
        return pt.log(-pt.expm1(-self.epsilon)) + pt.log(self.beyond)

    @property
    def beyond(self) -> TensorVariable:
        """What a e^(-j eps) is multiplied by for the mass from the step's lower end on."""
        return 0.5 / (self.gamma + pt.exp(-self.epsilon) * (1.0 - self.gamma))

    def log_density(self, distance: TensorVariable) -> TensorVariable:
        return self.log_height - pt.floor(distance + (1.0 - self.gamma)) * self.epsilon

    def log_beside(
        self, near: TensorVariable, far: TensorVariable, width: TensorVariable
    ) -> TensorVariable:
        """Log mass on one side, of 0 <= near < far; a sum of positive parts of steps."""
        eps, gamma = self
        first, last = pt.floor(near + (1.0 - gamma)), pt.floor(far + (1.0 - gamma))
        steps = last - first
        whole = pt.exp(-eps) * pt.expm1(-(pt.maximum(steps, 1.0) - 1.0) * eps) / pt.expm1(-eps)
        parts = first + gamma - near + pt.exp(-steps * eps) * (far - (last - 1.0 + gamma))
        return self.log_height - first * eps + pt.log(pt.switch(steps > 0, parts + whole, width))

    def distance(self, tail: TensorVariable) -> TensorVariable:
        """Return x with P(X > x) = tail <= 1/2."""
        eps, gamma = self
        some = pt.switch(tail > 0, tail, 0.5)
        j = pt.maximum(pt.ceil(pt.log(self.beyond / some) / eps) - 1.0, 0.0)
        rest = (some * pt.exp(j * eps) / self.beyond - pt.exp(-eps)) / -pt.expm1(-eps)
        return pt.switch(tail > 0, j + gamma - rest, np.inf)


class StepNoise(Mechanism):
    """Adds independent noise with a density that falls in steps."""

    _share: ClassVar[str]
    """Parameter beside the privacy loss and the sensitivity; it is in [0, 1]."""

    epsilon: TensorLike
    sensitivity: TensorLike

    def __post_init__(self) -> None:
        """Validate the parameters and make them tensors."""
        width = "Write the sensitivity of the statistic: the width of a step."
        self._keep("epsilon", positive_parameter, instead="Write the privacy loss.")
        self._keep("sensitivity", positive_parameter, instead=width)
        self._keep(self._share, checked_parameter, good=_is_share, rule="in [0, 1]")

    def wrong_parameter(self) -> str | None:
        """See `Mechanism.wrong_parameter`."""
        share = known_value(getattr(self, self._share))
        if share is not None and not np.all(_is_share(share)):
            return f"{self._share}={share} is not in [0, 1]"
        return wrong_scales(self, ("epsilon", "sensitivity"))

    def _checked(self, expression: TensorVariable) -> TensorVariable:
        for name in ("epsilon", "sensitivity"):
            expression = check_positive(expression, getattr(self, name), name)
        share = getattr(self, self._share)
        if isinstance(share, Constant):
            return expression
        return check_parameters(expression, share >= 0, share <= 1, msg=f"0 <= {self._share} <= 1")

    @property
    @abstractmethod
    def _steps(self) -> _Steps:
        """The noise in units of the sensitivity, before it is cut."""

    @property
    def _cut(self) -> TensorVariable:
        """Probability of the steps that is cut off, half of it on either side."""
        return pt.constant(0.0)

    def noise_sample(self, rng: Variable, statistic: TensorLike) -> tuple[Variable, TensorVariable]:
        """Draw one release; see `Mechanism.noise_sample`."""
        shape = sum((pt.zeros_like(p) for p in self.parameters), pt.zeros_like(as_float(statistic)))
        next_rng, p = pt.random.uniform(shape, 1.0, rng=rng, return_next_rng=True)
        return next_rng, self.icdf(p, statistic)

    def logp(self, value: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Log density of a release; see `Mechanism.logp`."""
        x = pt.abs(as_float(value) - as_float(statistic)) / self.sensitivity
        inside = (x <= self._steps.distance(0.5 * self._cut)) & (x < np.inf)
        density = self._steps.log_density(pt.switch(inside, x, 0.0))
        density = density - pt.log(self.sensitivity) - pt.log1p(-self._cut)
        return self._checked(pt.switch(inside, density, -np.inf))

    def log_interval(
        self, lower: TensorLike, upper: TensorLike, statistic: TensorLike = 0.0
    ) -> TensorVariable:
        """Log probability of an interval; see `Mechanism.log_interval`."""
        interval, steps = standard_interval(lower, upper, statistic, self.sensitivity), self._steps
        end = pt.minimum(steps.distance(0.5 * self._cut), _FAR)
        a, b = pt.maximum(interval.lower, -end), pt.minimum(interval.upper, end)
        whole = (interval.lower >= -end) & (interval.upper <= end)
        width = pt.switch(whole, interval.width, b - a)
        possible = interval.possible & (width > 0)
        a, b, width = (pt.switch(possible, x, y) for x, y in ((a, -1.0), (b, 1.0), (width, 2.0)))
        around = (a < 0) & (b > 0)
        near = pt.switch(around, 0.0, pt.maximum(a, -b))
        beside = steps.log_beside(near, pt.switch(around, 1.0, pt.maximum(b, -a)), width)
        # Around the statistic: one less both tails where those are small, else the two sides.
        ends = [pt.switch(around, x, 1.0) for x in (-a, b)]
        tails = sum(pt.exp(steps.log_beside(x, pt.constant(_FAR), x)) for x in ends)
        sides = sum(pt.exp(steps.log_beside(pt.zeros_like(x), x, x)) for x in ends)
        small = tails < 0.5
        across = pt.switch(small, pt.log1p(-pt.switch(small, tails, 0.25)), pt.log(sides))
        result = pt.switch(around, across, beside) - pt.log1p(-self._cut)
        result = pt.switch(around & pt.ge(b, end) & pt.le(a, -end), 0.0, result)
        return self._checked(pt.switch(possible, result, -np.inf))

    def icdf(self, p: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Quantile function; see `Mechanism.icdf`."""
        p, cut = as_float(p), self._cut
        tail = pt.minimum(p, 1.0 - p) * (1.0 - cut) + 0.5 * cut
        distance = self.sensitivity * self._steps.distance(tail)
        quantile = as_float(statistic) + pt.switch(p < 0.5, -distance, distance)
        return self._checked(nan_outside_unit(quantile, p))


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
    and of all noise that is, the one with the best :math:`\gamma` has the least variance, or the
    least mean size, which is diffprivlib's default [1]_.

    Parameters
    ----------
    epsilon : tensor_like of float
        Privacy loss, > 0.
    sensitivity : tensor_like of float
        L1 sensitivity, > 0, in the units of the statistic: the width of a step.
    gamma : tensor_like of float, optional
        Share of a step that is the first, in [0, 1]; by default
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

    _share = "gamma"

    def __post_init__(self) -> None:
        """Fill in gamma; validate the parameters and make them tensors."""
        if self.gamma is None:
            self._keep("epsilon", positive_parameter, instead="Write the privacy loss.")
            epsilon = self.epsilon
            value = known_value(epsilon) if isinstance(epsilon, Constant) else None
            least = pt.sigmoid(-0.5 * epsilon) if value is None else special.expit(-0.5 * value)
            object.__setattr__(self, "gamma", least)
        super().__post_init__()

    @property
    def _steps(self) -> _Steps:
        return _Steps(as_float(self.epsilon), as_float(self.gamma))


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
    _share = "delta"

    @property
    def _steps(self) -> _Steps:
        return _Steps(as_float(self.epsilon), pt.constant(0.5))

    @property
    def _cut(self) -> TensorVariable:
        # One less b = exp(-epsilon), and q, without cancellation.
        epsilon, delta = as_float(self.epsilon), as_float(self.delta)
        return 2.0 * delta / (2.0 * delta + pt.expm1(epsilon))


def _is_share(x: np.ndarray) -> np.ndarray:
    return (x >= 0) & (x <= 1)


def _pieces(mechanism: StepNoise, statistic: float, gamma: float, last: float) -> np.ndarray:
    ends = np.append(np.arange(gamma, last), last)
    return statistic + float(mechanism.sensitivity) * np.concatenate([-ends[::-1], ends])


def _staircases() -> Sequence[MechanismExample]:
    wide, narrow = StaircaseMechanism(4.0, 2.0), StaircaseMechanism(5.0, 0.01, 0.75)
    return [
        MechanismExample(wide, 3.0, pieces=_pieces(wide, 3.0, special.expit(-2.0), 8)),
        MechanismExample(narrow, -7.0, pieces=_pieces(narrow, -7.0, 0.75, 7)),
    ]


def _tulaps() -> Sequence[MechanismExample]:
    examples = []
    for mechanism, s in ((TulapMechanism(0.7, 0.05, 3.0), 5.0), (TulapMechanism(3.0, 1e-4), -2.0)):
        end = float(mechanism._steps.distance(0.5 * mechanism._cut).eval())
        pieces = _pieces(mechanism, s, 0.5, end)
        examples.append(MechanismExample(mechanism, s, pieces=pieces, smooth_in_statistic=False))
    return examples


register_mechanism(StaircaseMechanism, examples=_staircases)
register_mechanism(TulapMechanism, examples=_tulaps)
