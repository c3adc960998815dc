"""Laplace noise that is kept within public bounds: conditioned on them, or reflected at them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.dist_math import check_parameters
from pytensor.graph.basic import Constant

from pymc_dp.graphs.held import labelled_like
from pymc_dp.graphs.values import known_value
from pymc_dp.mechanisms.arguments import as_float, as_parameter, nan_outside_unit
from pymc_dp.mechanisms.laplace import LaplaceMechanism
from pymc_dp.mechanisms.registry import MechanismExample, register_mechanism
from pymc_dp.mechanisms.scales import PositiveNoise, decreasing_root, unless_nearly_all

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from pytensor.graph.basic import Variable
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable


@dataclass(frozen=True, eq=False, repr=False)
class BoundedNoise(PositiveNoise):
    """Laplace noise of one scale, of which no release is outside [lower, upper]."""

    scale: TensorLike
    lower: TensorLike
    upper: TensorLike

    parameter_names = ("scale", "lower", "upper")
    _instead = "Write the noise scale b, or {}.from_epsilon(...)."
    _not_positive = ("lower", "upper")

    def __post_init__(self) -> None:
        """Validate the parameters and make them tensors."""
        super().__post_init__()
        self._keep("lower", as_parameter)
        self._keep("upper", as_parameter)
        wrong = self.wrong_parameter()
        if wrong is not None:
            raise ValueError(f"{type(self).__name__}: {wrong}. Write both public bounds.")

    def wrong_parameter(self) -> str | None:
        """See `Mechanism.wrong_parameter`."""
        lower, upper = known_value(self.lower), known_value(self.upper)
        for name, bound in (("lower", lower), ("upper", upper)):
            if bound is not None and not np.all(np.isfinite(bound)):
                return f"{name}={bound} is not finite"
        if lower is not None and upper is not None and not np.all(lower < upper):
            return f"lower={lower} is not below upper={upper}"
        return super().wrong_parameter()

    def _checked(self, expression: TensorVariable) -> TensorVariable:
        expression = super()._checked(expression)
        if isinstance(self.lower, Constant) and isinstance(self.upper, Constant):
            return expression
        return check_parameters(expression, self.lower < self.upper, msg="lower < upper")

    @property
    def _laplace(self) -> LaplaceMechanism:
        return LaplaceMechanism(1.0).with_parameters(self.scale)

    def _clamped(self, x: TensorLike) -> TensorVariable:
        return pt.minimum(pt.maximum(as_float(x), self.lower), self.upper)

    def typical_statistic(self, value: TensorLike) -> TensorVariable:
        """Return the release; any statistic leads to every one of them."""
        return self._clamped(value)

    def epsilon(self, sensitivity: ArrayLike) -> np.ndarray:
        """Privacy loss of each component; see the class.

        Parameters
        ----------
        sensitivity : array_like
            L1 sensitivity, > 0, in the units of the statistic.
        """
        scale, lower, upper = map(self._value, self.parameter_names)
        return self._loss(self._argument("sensitivity", sensitivity), scale, upper - lower)

    @staticmethod
    @abstractmethod
    def _loss(size: np.ndarray, scale: np.ndarray, length: np.ndarray) -> np.ndarray:
        """Privacy loss for a sensitivity, a scale and the length of the interval."""


@dataclass(frozen=True, eq=False, repr=False)
class ConfinedNoise(BoundedNoise):
    """Bounded noise with a density; a subclass gives it, and the mass between points."""

    @abstractmethod
    def _inward(self, s: TensorVariable) -> TensorVariable:
        """Return the statistic within the bounds that has the same law."""

    @abstractmethod
    def _log_density(self, z: TensorVariable, s: TensorVariable) -> TensorVariable:
        """Log density within the bounds, of a statistic within the bounds."""

    @abstractmethod
    def _log_mass(self, a: TensorVariable, b: TensorVariable, s: TensorVariable) -> TensorVariable:
        """Log probability from a to b, lower <= a < b <= upper."""

    def logp(self, value: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Log density of a release; see `Mechanism.logp`."""
        z = as_float(value)
        inside = (z >= self.lower) & (z <= self.upper)
        density = self._log_density(self._clamped(z), self._inward(as_float(statistic)))
        return self._checked(pt.switch(inside, density, -np.inf))

    def log_interval(
        self, lower: TensorLike, upper: TensorLike, statistic: TensorLike = 0.0
    ) -> TensorVariable:
        """Log probability of an interval; see `Mechanism.log_interval`."""
        low, high = as_float(self.lower), as_float(self.upper)
        s, a, b = self._inward(as_float(statistic)), self._clamped(lower), self._clamped(upper)

        def log_mass(a: TensorVariable, b: TensorVariable) -> TensorVariable:
            some = a < b
            mass = self._log_mass(pt.switch(some, a, low), pt.switch(some, b, high), s)
            return pt.switch(some, mass, -np.inf)

        out = pt.exp(log_mass(low, a)) + pt.exp(log_mass(b, high))
        result = unless_nearly_all(out, log_mass(a, b))
        possible = (as_float(lower) < as_float(upper)) & (a < b)
        return self._checked(pt.switch(possible, result, -np.inf))


@dataclass(frozen=True, eq=False, repr=False)
class BoundedLaplaceMechanism(ConfinedNoise):
    r"""Release a statistic with Laplace noise, drawn again until it is within bounds.

    The release has the Laplace law of scale b around the statistic, which is clamped to [l, u]
    first, given that it lies there:

    .. math::

        \eta(z \mid s) = \frac{e^{-|z - s| / b}}
            {b\, (2 - e^{-(s - l) / b} - e^{-(u - s) / b})}, \qquad l \le z \le u.

    As its normaliser depends on the statistic, it costs more than Laplace noise of this scale:
    with sensitivity :math:`\Delta` and d = u - l it is :math:`\varepsilon`-differentially private
    for [1]_

    .. math::

        \varepsilon = \frac{\Delta}{b}
            + \log \frac{2 - e^{-\Delta / b} - e^{-(d - \Delta) / b}}{1 - e^{-d / b}}.

    diffprivlib's `LaplaceBoundedDomain` draws it, and so do its tools `var` and `std`.

    Parameters
    ----------
    scale : tensor_like of float
        Noise scale :math:`b > 0`, in the units of the statistic.
    lower, upper : tensor_like of float
        Public bounds, finite.

    Raises
    ------
    ValueError
        A scale that is not finite and positive, or bounds that are not in order.
    TypeError
        A parameter that depends on a random variable, or is not numeric.

    References
    ----------
    .. [1] N. Holohan, S. Antonatos, S. Braghin, P. Mac Aonghusa (2020). The bounded Laplace
       mechanism in differential privacy. Journal of Privacy and Confidentiality 10(1).

    Examples
    --------
    >>> import pymc_dp as dp
    >>> mechanism = dp.BoundedLaplaceMechanism(2.0, lower=0.0, upper=10.0)
    >>> mechanism.logp([1.0, 3.0, -1.0], 1.0).eval().round(4)
    array([-1.0169, -2.0169,    -inf])
    """

    @classmethod
    def from_epsilon(
        cls,
        epsilon: ArrayLike,
        sensitivity: ArrayLike,
        lower: ArrayLike,
        upper: ArrayLike,
        delta: ArrayLike = 0.0,
    ) -> Self:
        """Build the mechanism from its privacy loss, as diffprivlib does.

        Parameters
        ----------
        epsilon, sensitivity : array_like
            Privacy loss and L1 sensitivity, > 0.
        lower, upper : array_like
            Public bounds, finite.
        delta : array_like, default 0
            Failure probability, >= 0 and < 1.

        Raises
        ------
        ValueError
            An argument out of its range.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> mechanism = dp.BoundedLaplaceMechanism.from_epsilon(1.0, 1.0, lower=0.0, upper=10.0)
        >>> mechanism.scale.eval().round(4)  # not 1: the normaliser depends on the statistic
        np.float64(1.6116)
        """
        loss, size = cls._arguments(epsilon=epsilon, sensitivity=sensitivity)
        failure = cls._argument("delta", delta, below=1.0, zero_ok=True)
        low, high = map(cls(1.0, lower, upper)._value, ("lower", "upper"))
        size, loss, length = np.broadcast_arrays(size, loss - np.log1p(-failure), high - low)
        scale = decreasing_root(
            lambda b: cls._loss(size, b, length) - loss, size / loss, 2 * size / loss
        )
        return cls(labelled_like(scale, epsilon, sensitivity), lower, upper)

    @staticmethod
    def _loss(size: np.ndarray, scale: np.ndarray, length: np.ndarray) -> np.ndarray:
        t, d = np.minimum(size, length) / scale, length / scale
        return t + np.log((np.expm1(-t) + np.expm1(t - d)) / np.expm1(-d))

    def _inward(self, s: TensorVariable) -> TensorVariable:
        return self._clamped(s)

    def _log_density(self, z: TensorVariable, s: TensorVariable) -> TensorVariable:
        return self._laplace.logp(z, s) - self._laplace.log_interval(self.lower, self.upper, s)

    def _log_mass(self, a: TensorVariable, b: TensorVariable, s: TensorVariable) -> TensorVariable:
        whole = self._laplace.log_interval(self.lower, self.upper, s)
        return self._laplace.log_interval(a, b, s) - whole

    def icdf(self, p: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Quantile function; see `Mechanism.icdf`."""
        p, s = as_float(p), self._clamped(statistic)
        whole = pt.exp(self._laplace.log_interval(self.lower, self.upper, s))
        below = 0.5 * pt.exp((self.lower - s) / self.scale) + p * whole
        above = 0.5 * pt.exp((s - self.upper) / self.scale) + (1.0 - p) * whole
        distance = self.scale * pt.log(2.0 * pt.minimum(below, above))
        quantile = self._clamped(s + pt.switch(below < above, distance, -distance))
        return self._checked(nan_outside_unit(quantile, p))


@dataclass(frozen=True, eq=False, repr=False)
class FoldedLaplaceMechanism(ConfinedNoise):
    r"""Release a statistic with Laplace noise, reflected at bounds until it is within them.

    The release is Laplace noise around the statistic after :math:`z \mapsto 2 l - z` below l and
    :math:`z \mapsto 2 u - z` above u, again and again. With d = u - l its density is

    .. math::

        \eta(z \mid s) = \sum_{k \in \mathbb{Z}} \eta_0(z + 2 k d \mid s)
            + \eta_0(2 l - z + 2 k d \mid s), \qquad l \le z \le u,

    with :math:`\eta_0` the Laplace density, in closed form a sum of four exponentials. The
    reflection costs no privacy: :math:`\varepsilon = \Delta / b`. diffprivlib's `LaplaceFolded`
    draws it [1]_.

    Parameters
    ----------
    scale : tensor_like of float
        Noise scale :math:`b > 0`, in the units of the statistic.
    lower, upper : tensor_like of float
        Public bounds, finite.

    Raises
    ------
    ValueError
        A scale that is not finite and positive, or bounds that are not in order.
    TypeError
        A parameter that depends on a random variable, or is not numeric.

    References
    ----------
    .. [1] N. Holohan, S. Braghin, P. Mac Aonghusa, K. Levacher (2019). Diffprivlib: the IBM
       differential privacy library.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> mechanism = dp.FoldedLaplaceMechanism(2.0, lower=0.0, upper=10.0)
    >>> mechanism.logp([1.0, 3.0, -1.0], 1.0).eval().round(4)
    array([-1.0729, -2.0721,    -inf])
    """

    @classmethod
    def from_epsilon(
        cls, epsilon: ArrayLike, sensitivity: ArrayLike, lower: TensorLike, upper: TensorLike
    ) -> Self:
        """Build the mechanism from its privacy loss, b = sensitivity / epsilon.

        Parameters
        ----------
        epsilon, sensitivity : array_like
            Privacy loss and L1 sensitivity, > 0.
        lower, upper : tensor_like
            Public bounds, finite.

        Raises
        ------
        ValueError
            An argument out of its range.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> dp.FoldedLaplaceMechanism.from_epsilon(0.5, 1.0, lower=0.0, upper=10.0)
        FoldedLaplaceMechanism(scale=2.0, lower=0.0, upper=10.0)
        """
        loss, size = cls._arguments(epsilon=epsilon, sensitivity=sensitivity)
        return cls(labelled_like(size / loss, epsilon, sensitivity), lower, upper)

    @staticmethod
    def _loss(size: np.ndarray, scale: np.ndarray, length: np.ndarray) -> np.ndarray:
        return size / scale + 0.0 * length

    def noise_sample(self, rng: Variable, statistic: TensorLike) -> tuple[Variable, TensorVariable]:
        """Draw one release; see `Mechanism.noise_sample`."""
        s = as_float(statistic) + 0.0 * self.lower + 0.0 * self.upper
        next_rng, draw = self._laplace.noise_sample(rng, s)
        return next_rng, self._inward(draw)

    @property
    def _turn(self) -> TensorVariable:
        return 2.0 * (self.upper - self.lower)

    def _inward(self, s: TensorVariable) -> TensorVariable:
        beyond = pt.mod(s - self.lower, self._turn)
        return self._clamped(self.lower + pt.minimum(beyond, self._turn - beyond))

    def _log_density(self, z: TensorVariable, s: TensorVariable) -> TensorVariable:
        b, near, mirrored = self.scale, pt.abs(z - s), (z - self.lower) + (s - self.lower)
        reflections = [self._turn - near, mirrored, self._turn - mirrored]
        images = 1.0 + sum(pt.exp((near - reflection) / b) for reflection in reflections)
        return pt.log(images) - near / b - pt.log(2.0 * b) - pt.log1mexp(-self._turn / b)

    def _log_mass(self, a: TensorVariable, b: TensorVariable, s: TensorVariable) -> TensorVariable:
        nearest = pt.maximum(pt.maximum(a - s, s - b), 0.0)
        # Distance and width of the parts right and left of the statistic, and of the mirrored
        # interval. Reflected noise reaches each part from both directions.
        right, left = (pt.maximum(a, s), pt.maximum(b, s)), (pt.minimum(a, s), pt.minimum(b, s))
        parts = [(right[0] - s, right[1] - right[0]), (s - left[1], left[1] - left[0])]
        parts.append(((a - self.lower) + (s - self.lower), b - a))
        mass = pt.constant(0.0)
        for off, width in parts:
            near, far = nearest - pt.maximum(off, nearest), nearest - (self._turn - off - width)
            ways = pt.exp(near / self.scale) + pt.exp(far / self.scale)
            mass = mass - pt.expm1(-width / self.scale) * ways
        whole = np.log(2.0) + pt.log1mexp(-self._turn / self.scale)
        return pt.log(mass) - nearest / self.scale - whole


def _examples_of(cls: type[ConfinedNoise]) -> Sequence[MechanismExample]:
    cases = ((2.0, 0.0, 10.0, 3.0), (0.7, -3.0, -1.0, -1.5), (5.0, 2.0, 3.0, 2.25))
    return [
        MechanismExample(cls(b, low, high), s, pieces=np.unique([low, s, high]))
        for b, low, high, s in cases
    ]


for _cls in (BoundedLaplaceMechanism, FoldedLaplaceMechanism):
    register_mechanism(_cls, examples=partial(_examples_of, _cls))
