"""The number of randomized responses, and its law."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytensor.tensor as pt
from pytensor.raise_op import Assert

from pymc_dp.graphs.ops import KernelOp
from pymc_dp.graphs.questions import known_value
from pymc_dp.kernels.functions import reported_counts as kernels
from pymc_dp.mechanisms.arguments import (
    as_float,
    as_parameter,
    refuse_unless,
    show,
)
from pymc_dp.mechanisms.base import POSTPROCESSED, MechanismExample, register_mechanism
from pymc_dp.mechanisms.postprocessed import PostProcessed

if TYPE_CHECKING:
    from pytensor.graph.basic import Variable
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable
from pymc_dp.mechanisms.randomized_response import RandomizedResponse


@dataclass(frozen=True, eq=False, repr=False)
class RandomizedResponseCount(PostProcessed):
    r"""Release the number of ones among randomised binary reports.

    The statistic is the true number of ones :math:`c` among n records. Reported ones are kept ones
    and replaced zeros, so that with t the probability of a truthful report

    .. math::

        Z = \mathrm{Binomial}(c, t) + \mathrm{Binomial}(n - c, 1 - t),

    two independent draws. The mass is the convolution of the two.

    ========  ==================================
    Support   :math:`z \in \{0, \ldots, n\}`
    Mean      :math:`t c + (1 - t)(n - c)`
    Variance  :math:`n t (1 - t)`
    ========  ==================================

    Counting loses no more privacy than the reports themselves; ask ``mechanism.inner`` for it.

    Parameters
    ----------
    inner : RandomizedResponse
        How each record was reported; two categories.
    population : tensor_like of int
        Number of records n, public. It broadcasts against the statistic, one for each group.

    Raises
    ------
    ValueError
        A population that is no whole number >= 0.
    TypeError
        A population that depends on a random variable, or an `inner` of another kind.
    NotImplementedError
        More than two categories.

    Notes
    -----
    A log mass costs a sum of about :math:`\sqrt{\min(c, n - c, z, n - z)}` terms, up to a constant,
    and never more than that minimum; what is left out is bounded by 1e-17 of the sum. The
    probability of an interval costs such a sum for about :math:`\sqrt{n}` values.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> mechanism = dp.RandomizedResponse(0.75).counted(100)
    >>> mechanism
    RandomizedResponse(truth_probability=0.75, categories=2).counted(100.0)
    >>> mechanism.logp(62, [60, 74]).eval().round(4)
    array([-3.6871, -2.386 ])
    """

    inner: RandomizedResponse
    population: TensorLike

    parameter_names = ("population",)

    def __post_init__(self) -> None:
        """Validate the arguments and make the population a tensor."""
        name = "RandomizedResponseCount"
        if not isinstance(self.inner, RandomizedResponse):
            raise TypeError(
                f"{name}: the first argument must be a RandomizedResponse, got {self.inner!r}"
            )
        if self.inner.categories != 2:
            raise NotImplementedError(
                f"{name}: counts are released for 2 categories only, got "
                f"{self.inner.categories}. Pass the reports themselves, record by record (their "
                f"order does not matter): PrivateObservation(name, records, {self.inner!r}, "
                f"observed=reports)."
            )
        population = as_parameter(self.population, mechanism=name, name="population")
        known = known_value(population)
        if known is not None:
            refuse_unless(
                np.isfinite(known) & (known >= 0) & (known == np.floor(known)),
                known,
                name,
                "population",
                "a whole number >= 0",
                "Write the number of records that reported.",
            )
        object.__setattr__(self, "population", population)

    def wrong_parameter(self) -> str | None:
        """See `Mechanism.wrong_parameter`."""
        value = known_value(self.population)
        if value is not None and not np.all((value >= 0) & (value == np.round(value))):
            return f"population={value} is no whole number >= 0"
        return self.inner.wrong_parameter()

    @property
    def spacing(self) -> float:
        """Distance between neighbouring counts."""
        return 1.0

    @property
    def log_concave(self) -> bool:
        r"""True for any t.

        With P the generating function of the other reports, windowed for an interval, and A, B
        those of a one and a zero, :math:`[PAB]_z^2 - [PA^2]_z [PB^2]_z` is the squared determinant
        of A and B times :math:`p_{z-1}^2 - p_z p_{z-2} \ge 0`.
        """
        return True

    def noise_sample(self, rng: Variable, statistic: TensorLike) -> tuple[Variable, TensorVariable]:
        """Draw one reported count; see `Mechanism.noise_sample`."""
        ones = as_float(statistic)
        good = pt.eq(ones, pt.floor(ones)) & (ones >= 0) & (ones <= self.population)
        message = "RandomizedResponseCount: the statistic must be a whole number in 0, ..., n"
        ones = Assert(message)(ones, pt.all(good)).astype("int64")
        zeros = pt.as_tensor_variable(self.population).astype("int64") - ones
        log_odds = self.inner.log_ratio
        rng, kept = pt.random.binomial(ones, pt.sigmoid(log_odds), rng=rng, return_next_rng=True)
        rng, replaced = pt.random.binomial(
            zeros, pt.sigmoid(-log_odds), rng=rng, return_next_rng=True
        )
        return rng, kept + replaced

    def logp(self, value: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Log mass of a reported count; see `Mechanism.logp`."""
        return self.log_interval(value, value, statistic)

    def log_interval(
        self, lower: TensorLike, upper: TensorLike, statistic: TensorLike = 0.0
    ) -> TensorVariable:
        """Log probability of the counts in an interval; see `Mechanism.log_interval`."""
        log_odds = self.inner.log_ratio
        log_mass = count_interval(lower, upper, statistic, self.population, log_odds)
        return self.inner._checked(log_mass)

    def icdf(self, p: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Quantile function; see `Mechanism.icdf`."""
        log_odds = self.inner.log_ratio
        return self.inner._checked(count_quantile(p, statistic, self.population, log_odds))

    def typical_statistic(self, value: TensorLike) -> TensorVariable:
        """Return the nearest count; see `Mechanism.typical_statistic`."""
        return pt.clip(pt.round(as_float(value)), 0.0, self.population)

    def __repr__(self) -> str:
        """Return the expression that builds it."""
        return f"{self.inner!r}.counted({show(pt.as_tensor_variable(self.population))})"


class _CountInterval(KernelOp):
    """Log probability of an interval of reported counts, and its derivative in the log odds.

    Inputs are those of `kernels.log_count_interval`. All but the log odds are integers or ends of
    intervals, in which the probability is piecewise constant.
    """

    nin, fixed = 5, 4
    kernel = staticmethod(kernels.log_count_interval)


class _CountQuantile(KernelOp):
    """Quantile of the reported count; inputs are those of `kernels.count_quantile`."""

    nin = fixed = 4
    kernel = staticmethod(kernels.count_quantile)


def count_interval(lower, upper, ones, population, log_odds) -> TensorVariable:
    """Log probability of an interval of reported counts; see `kernels.log_count_interval`.

    With every record a one, the reported count is Binomial(population, p) with these log odds of p.
    """
    return _CountInterval.apply(lower, upper, ones, population, log_odds)


def count_quantile(p, ones, population, log_odds) -> TensorVariable:
    """Return the quantile of the reported count; see `kernels.count_quantile`."""
    return _CountQuantile.apply(p, ones, population, log_odds)


def _count_examples() -> Sequence[MechanismExample]:
    def example(t: float, population: int, ones: int) -> MechanismExample:
        mechanism = RandomizedResponse(t).counted(population)
        atoms = np.arange(population + 1)
        return MechanismExample(mechanism, ones, atoms=atoms, smooth_in_statistic=False)

    return [example(0.75, 100, 58), example(0.4, 9, 0), example(0.9, 400, 397)]


POSTPROCESSED.add(RandomizedResponseCount, "counted")
register_mechanism(RandomizedResponseCount, examples=_count_examples)
