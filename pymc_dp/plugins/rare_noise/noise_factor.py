"""Values that are multiplied by a random factor near one, as in workforce indicators."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.dist_math import check_parameters
from pymc.distributions.distribution import _support_point
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor.random.op import RandomVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.values import known_value
from pymc_dp.laws.parts import law_of_record
from pymc_dp.laws.real_line import support
from pymc_dp.mechanisms.arguments import as_float, as_parameter, nan_outside_unit
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.mechanisms.registry import MechanismExample, register_mechanism
from pymc_dp.mechanisms.scales import unless_nearly_all

if TYPE_CHECKING:
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable


class Factor(Mechanism):
    """The value times a random factor; a subclass says what is known of the factor."""

    @property
    @abstractmethod
    def _typical(self) -> TensorVariable:
        """A factor with a density that is not zero."""

    @property
    @abstractmethod
    def _bends(self) -> Sequence[TensorVariable]:
        """Factors at which the density bends or jumps, positive ones."""

    @abstractmethod
    def _log_density(self, factor: TensorVariable) -> TensorVariable:
        """Log density of a factor, positive and finite."""

    @abstractmethod
    def _log_mass(self, low: TensorVariable, high: TensorVariable) -> TensorVariable:
        """Log probability that the factor is between two numbers, low < high."""

    def logp(self, value: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Log density of a release, log mass where the statistic is zero."""
        z, s = as_float(value), as_float(statistic)
        zero = pt.eq(s, 0)
        size = pt.switch(zero, 1.0, s)
        factor = z / size
        possible = ~zero & (factor > 0) & (factor < np.inf)
        density = self._log_density(pt.switch(possible, factor, self._typical))
        density = pt.switch(possible, density - pt.log(pt.abs(size)), -np.inf)
        return self._checked(pt.switch(zero & pt.eq(z, 0), 0.0, density))

    def log_interval(
        self, lower: TensorLike, upper: TensorLike, statistic: TensorLike = 0.0
    ) -> TensorVariable:
        """Log probability of an interval; see `Mechanism.log_interval`."""
        lower, upper, s = as_float(lower), as_float(upper), as_float(statistic)
        zero = pt.eq(s, 0)
        size = pt.switch(zero, 1.0, s)
        ends = lower / size, upper / size
        some = lower < upper
        low = pt.switch(some, pt.minimum(*ends), 0.0)
        high = pt.switch(some, pt.maximum(*ends), np.inf)
        mass = pt.switch(some, self._log_mass(low, high), -np.inf)
        return self._checked(
            pt.switch(zero, pt.switch((lower <= 0) & (upper >= 0), 0.0, -np.inf), mass)
        )

    def kinks(self, value: TensorLike) -> Sequence[TensorVariable]:
        """See `Mechanism.kinks`."""
        return [as_float(value) / bend for bend in self._bends]

    def typical_statistic(self, value: TensorLike) -> TensorVariable:
        """See `Mechanism.typical_statistic`."""
        return as_float(value) / self._typical

    def support_point(self, statistic: TensorLike) -> TensorVariable:
        """See `ReleaseLaw.support_point`."""
        return as_float(statistic) * self._typical

    def why_unattainable(self, value: float) -> str:
        """See `Mechanism.why_unattainable`."""
        return "it publishes a number"


@dataclass(frozen=True, eq=False, repr=False)
class NoiseFactor(Factor):
    r"""Release a value times a random factor, which is near one and not too near.

    The factor :math:`\delta` differs from one by at least l, and by less than u:

    .. math::

        f(\delta) = \frac{u - |\delta - 1|}{(u - l)^2}, \quad l \le |\delta - 1| \le u,
        \qquad \eta(z \mid s) = \frac{f(z / s)}{|s|}.

    So the U.S. Census Bureau protects establishments [1]_, in its workforce indicators, too [2]_. A
    zero stays a zero. The factor is of one value: a published total of establishments is a sum of
    such releases. It is not differentially private.

    ========  ==========================================
    Support   :math:`l |s| \le |z - s| \le u |s|`
    Mean      :math:`s`
    Variance  :math:`s^2 (u^2 + 2 u l + 3 l^2) / 6`
    ========  ==========================================

    Parameters
    ----------
    lower : tensor_like of float, or a law
        Least distance l of the factor from one, >= 0. In its place, with no `upper`, a law of the
        factor, the `.dist` of a distribution of positive numbers: ``pm.LogNormal.dist(0, 0.1)``.
    upper : tensor_like of float
        Largest distance u, above l and below 1.

    Raises
    ------
    ValueError
        Distances that are not in order, or a law with factors that are not positive.
    TypeError
        A parameter that depends on a random variable, or is not numeric; a law that is none of a
        single number, or has other parameters than numbers.

    References
    ----------
    .. [1] T. Evans, L. Zayatz, J. Slanta (1998). Using noise for disclosure limitation of
       establishment tabular data. Journal of Official Statistics 14(4), 537-551.
    .. [2] J. Abowd, B. Stephens, L. Vilhuber, F. Andersson, K. McKinney, M. Roemer, S. Woodcock
       (2009). The LEHD infrastructure files and the creation of the Quarterly Workforce Indicators.
       Producer Dynamics, 149-230.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_dp as dp
    >>> noise = dp.NoiseFactor(0.05, 0.25)
    >>> noise.logp([90.0, 104.0, 110.0], 100.0).eval().round(4)  # 4 per cent are too few
    array([-3.2834,    -inf, -3.2834])
    >>> dp.NoiseFactor(pm.LogNormal.dist(0.0, 0.1)).logp(90.0, 100.0).eval().round(4)
    np.float64(-3.6712)
    """

    lower: TensorLike
    upper: TensorLike

    parameter_names = ("lower", "upper")

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Build a mechanism of another class for a law."""
        match (*args, *kwargs.values()):
            case [Variable() as law] if not isinstance(law, Constant):
                return LawFactor(law)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        """Validate the parameters and make them tensors."""
        self._keep("lower", as_parameter)
        self._keep("upper", as_parameter)
        wrong = self.wrong_parameter()
        if wrong is not None:
            raise ValueError(
                f"NoiseFactor: {wrong}. Write the least and the largest distance of the factor "
                f"from 1, as in NoiseFactor(0.05, 0.25)."
            )

    def wrong_parameter(self) -> str | None:
        """See `Mechanism.wrong_parameter`."""
        lower, upper = known_value(self.lower), known_value(self.upper)
        if lower is not None and not np.all((lower >= 0) & (lower < 1)):
            return f"lower={lower} is not >= 0 and < 1"
        if upper is not None and not np.all((upper > 0) & (upper < 1)):
            return f"upper={upper} is not > 0 and < 1"
        if lower is not None and upper is not None and not np.all(lower < upper):
            return f"lower={lower} is not below upper={upper}"
        return None

    def _checked(self, expression: TensorVariable) -> TensorVariable:
        if isinstance(self.lower, Constant) and isinstance(self.upper, Constant):
            return expression
        order = pt.lt(self.lower, self.upper), pt.lt(self.upper, 1)
        checked = check_parameters(expression, *order, msg="lower < upper < 1")
        return pt.switch(pt.ge(self.lower, 0), checked, np.nan)

    @property
    def _typical(self) -> TensorVariable:
        return 1.0 + (2.0 * self.lower + self.upper) / 3.0

    @property
    def _bends(self) -> Sequence[TensorVariable]:
        low, high = self.lower, self.upper
        return [1.0 - high, 1.0 - low, 1.0 + low, 1.0 + high]

    def _log_density(self, factor: TensorVariable) -> TensorVariable:
        distance = pt.abs(factor - 1.0)
        inside = (distance >= self.lower) & (distance < self.upper)
        height = pt.switch(inside, self.upper - distance, 1.0)
        return pt.switch(inside, pt.log(height) - 2.0 * pt.log(self.upper - self.lower), -np.inf)

    def _log_mass(self, low: TensorVariable, high: TensorVariable) -> TensorVariable:
        out = self._mass(-np.inf, low) + self._mass(high, np.inf)
        mass = self._mass(low, high)
        some = mass > 0
        log_mass = pt.switch(some, pt.log(pt.switch(some, mass, 1.0)), -np.inf)
        return unless_nearly_all(out, log_mass)

    def _mass(self, low: TensorLike, high: TensorLike) -> TensorVariable:
        """Probability of the factors between two numbers, low <= high."""

        def side(near: TensorVariable, far: TensorVariable) -> TensorVariable:
            near, far = (pt.clip(x, self.lower, self.upper) for x in (near, far))
            return (far - near) * ((self.upper - near) + (self.upper - far))

        low, high = as_float(low) - 1.0, as_float(high) - 1.0
        whole = (self.upper - self.lower) ** 2
        return 0.5 * (side(low, high) + side(-high, -low)) / whole

    def icdf(self, p: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Quantile function; see `Mechanism.icdf`. The law of the factor is symmetric about 1."""
        p, s = as_float(p), as_float(statistic)
        tail = 2.0 * pt.minimum(p, 1.0 - p)
        distance = self.upper - (self.upper - self.lower) * pt.sqrt(pt.clip(tail, 0.0, 1.0))
        quantile = s + pt.abs(s) * pt.switch(p <= 0.5, -distance, distance)
        return self._checked(nan_outside_unit(quantile, p))


@dataclass(frozen=True, eq=False, repr=False)
class LawFactor(Factor):
    """`NoiseFactor(law)`: a factor of any law of positive numbers, with known parameters."""

    law: TensorVariable

    def __post_init__(self) -> None:
        """Validate the law."""
        name, law = "NoiseFactor: the law of the factor", self.law
        try:
            op, parameters = law_of_record(law)
            lower, upper = support(law)
        except (Declined, AttributeError) as error:
            raise TypeError(
                f"{name} is no distribution that is known: write pm.LogNormal.dist(0, 0.1), or two "
                f" numbers, NoiseFactor(0.05, 0.25)"
            ) from error
        if law.type.ndim or not law.dtype.startswith("float"):
            raise TypeError(f"{name} must be of one continuous number, got {law.type}")
        numbers = [known_value(p, fixed=True) for p in parameters]
        if any(number is None for number in numbers):
            raise TypeError(
                f"{name} has parameters that are no numbers. The noise of a release is public and "
                f"known, never estimated: write numbers, as in pm.LogNormal.dist(0, 0.1)"
            )
        least = None if lower is None else known_value(lower)
        if least is None or least < 0:
            raise ValueError(
                f"{name} is not known to be of positive numbers: write one that is, such as "
                f"pm.LogNormal.dist(0, 0.1) or pm.TruncatedNormal.dist(1, 0.1, lower=0)"
            )
        ends = [float(known_value(e)) for e in (lower, upper) if e is not None]  # type: ignore[arg-type]
        if isinstance(op, RandomVariable):  # PyMC keeps numbers such as 0.5 in single precision
            wide = [pt.constant(n, dtype="float64") for n in numbers]
            law = op(*wide, rng=pt.random.shared_rng(seed=None), return_next_rng=True)[1]
            object.__setattr__(self, "law", law)
        vars(self)["_ends"] = [e for e in ends if 0 < e < np.inf]

    @property
    def _typical(self) -> TensorVariable:
        return as_float(_support_point(self.law.owner.op, self.law, *self.law.owner.inputs))

    @property
    def _bends(self) -> Sequence[TensorVariable]:
        return [self._typical, *map(pt.constant, vars(self)["_ends"])]

    def noise_sample(self, rng: Variable, statistic: TensorLike) -> tuple[Variable, TensorVariable]:
        """Draw one release; see `Mechanism.noise_sample`."""
        s = as_float(statistic)
        law, parameters = law_of_record(self.law)
        rng, factor = law(*parameters, rng=rng, size=s.shape, return_next_rng=True)
        return rng, s * factor

    def _log_density(self, factor: TensorVariable) -> TensorVariable:
        return pm.logp(self.law, factor)

    def _log_mass(self, low: TensorVariable, high: TensorVariable) -> TensorVariable:
        infinite = pt.isinf(high)
        above = pt.switch(infinite, 0.0, self._logcdf(pt.switch(infinite, self._typical, high)))
        below = self._logcdf(low)
        some = (below > -np.inf) & (below < above)
        gap = pt.switch(some, below - above, -1.0)
        return pt.switch(below < above, above + pt.switch(some, pt.log1mexp(gap), 0.0), -np.inf)

    def _logcdf(self, factor: TensorVariable) -> TensorVariable:
        some = factor > 0
        return pt.switch(some, pm.logcdf(self.law, pt.switch(some, factor, self._typical)), -np.inf)

    def icdf(self, p: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Quantile function, where that of the law is known; see `Mechanism.icdf`."""
        p, s = as_float(p), as_float(statistic)
        inside = (p >= 0) & (p <= 1)
        level = pt.switch(inside, pt.switch(s < 0, 1.0 - p, p), 0.5)
        return pt.switch(inside, s * pm.icdf(self.law, level), np.nan)

    @property
    def label(self) -> str:
        """Name of the law where a model is printed."""
        return "NoiseFactor"

    def __repr__(self) -> str:
        """Return the law and its numbers as a printed model has them."""
        law = getattr(self.law.owner.op, "_print_name", ("a law",))[0]
        numbers = ", ".join(f"{known_value(p):g}" for p in law_of_record(self.law)[1])
        return f"NoiseFactor({law}({numbers}))"


def _examples() -> Sequence[MechanismExample]:
    def example(upper: float, s: float) -> MechanismExample:
        pieces = np.sort(s * (1.0 + upper * np.array([-1, 0, 1])))
        noise = NoiseFactor(0.0, upper)
        return MechanismExample(noise, s, pieces, smooth_in_statistic=False)

    # Of others no factor is in the middle, and pieces have mass.
    return [example(0.25, 20.0), example(0.5, -3.0)]


register_mechanism(NoiseFactor, examples=_examples)
