"""The number of ones among randomised binary reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt
from pytensor.raise_op import Assert

from pymc_dp.mechanisms.arguments import (
    as_float,
    checked_parameter,
    show,
)
from pymc_dp.mechanisms.lattice import not_whole
from pymc_dp.mechanisms.postprocessed import PostProcessed
from pymc_dp.mechanisms.response_count import CountInterval, CountQuantile

if TYPE_CHECKING:
    from pytensor.graph.basic import Variable
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable


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

    inner: Any
    population: TensorLike

    parameter_names = ("population",)

    def __post_init__(self) -> None:
        """Validate the arguments and make the population a tensor."""
        name = "RandomizedResponseCount"
        if not hasattr(self.inner, "log_ratio"):
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
        self._keep(
            "population",
            checked_parameter,
            good=lambda n: np.isfinite(n) & (n >= 0) & (n == np.floor(n)),
            rule="a whole number >= 0",
            instead="Write the number of records that reported.",
        )

    def wrong_parameter(self) -> str | None:
        """See `Mechanism.wrong_parameter`."""
        return not_whole("population", self.parameters[0], 0) or self.inner.wrong_parameter()

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
        log_mass = CountInterval.apply(lower, upper, statistic, self.population, log_odds)
        return self.inner._checked(log_mass)

    def icdf(self, p: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Quantile function; see `Mechanism.icdf`."""
        log_odds = self.inner.log_ratio
        return self.inner._checked(CountQuantile.apply(p, statistic, self.population, log_odds))

    def typical_statistic(self, value: TensorLike) -> TensorVariable:
        """Return the nearest count; see `Mechanism.typical_statistic`."""
        return pt.clip(pt.round(as_float(value)), 0.0, self.population)

    def __repr__(self) -> str:
        """Return the expression that builds it."""
        return f"{self.inner!r}.counted({show(self.parameters[0])})"
