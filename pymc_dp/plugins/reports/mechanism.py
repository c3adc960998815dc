"""Randomised response: every record reports its own category, or another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.dist_math import check_parameters
from pytensor.graph.basic import Constant
from pytensor.raise_op import Assert

from pymc_dp.graphs.held import labelled_like
from pymc_dp.graphs.values import known_value
from pymc_dp.mechanisms.arguments import (
    as_float,
    as_integer,
    as_number,
    checked_parameter,
    just_met,
    nan_outside_unit,
    positive_argument,
    required_value,
    show,
)
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.mechanisms.registry import MechanismExample, register_mechanism

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from pytensor.graph.basic import Variable
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable
from pymc_dp.plugins.reports.count import RandomizedResponseCount
from pymc_dp.plugins.reports.matrix import NAME, ReportMatrix, is_category


@dataclass(frozen=True, eq=False, repr=False, init=False)
class RandomizedResponse(Mechanism):
    r"""Release the category of every record, replaced by another one at random.

    The statistic :math:`s` is the category of a record, one of the codes 0, ..., K-1. Its report
    :math:`Z` is the truth with probability :math:`t`, and else one of the K-1 other categories,
    each with the same probability:

    .. math::

        \eta(z \mid s) = \begin{cases}
            t & z = s \\
            \frac{1 - t}{K - 1} & z \ne s
        \end{cases}
        \qquad z, s \in \{0, \ldots, K - 1\},

    and 0 where z or s is no category. A vector of records is reported elementwise, each record
    with randomness of its own.

    ========  ==========================================================================
    Support   :math:`z \in \{0, \ldots, K - 1\}`
    Mean      for K = 2, :math:`t s + (1 - t)(1 - s)`
    Variance  for K = 2, :math:`t (1 - t)`
    ========  ==========================================================================

    Each report is :math:`\varepsilon`-differentially private, locally, for
    :math:`\varepsilon = |\lambda|` with :math:`\lambda = \log\frac{t (K - 1)}{1 - t}` [2]_. Two
    categories are Warner's design [1]_.

    Parameters
    ----------
    truth_probability : tensor_like of float
        Probability :math:`t` that a report is the truth, strictly between 0 and 1. It broadcasts
        against the statistic. `pm.Data` and other tensors are allowed as long as they hold no
        random variable. If the design is instead "the truth with probability p, and else a
        category drawn uniformly from all K", which may hit the truth as well, write
        :math:`t = p + (1 - p) / K`.
    categories : int, default 2
        Number of categories :math:`K \ge 2`.

    matrix : array_like, keyword only
        In place of the other arguments: any channel. Entry [k, z] is the probability of the report
        z where the truth is k. The matrix need not be square; rows add up to one. Bits of
        a one-hot code, 1 kept with probability p and 0 turned into 1 with q, are
        ``pt.eye(K)[x]`` released under ``matrix=[[1 - q, q], [1 - p, p]]``.

    Attributes
    ----------
    log_ratio : TensorVariable
        :math:`\lambda`, the parameter of the computations. It keeps its digits where t rounds to 1
        or to 1/K, so that any finite :math:`\varepsilon` is represented.

    Raises
    ------
    ValueError
        A probability that is not strictly between 0 and 1, or fewer than two categories.
    TypeError
        A probability that depends on a random variable, or arguments that are not numeric.

    Notes
    -----
    At t = 1/K the reports say nothing about the records. Below, :math:`\lambda < 0`: a report is
    less likely the truth than any other given category, which is informative again. Such designs
    are allowed; for K = 2 they merely exchange the labels of the reports.

    References
    ----------
    .. [1] S. L. Warner (1965). Randomized response: a survey technique for eliminating evasive
       answer bias. Journal of the American Statistical Association 60(309), 63-69.
    .. [2] P. Kairouz, S. Oh, P. Viswanath (2016). Extremal mechanisms for local differential
       privacy. Journal of Machine Learning Research 17(17), 1-51.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> mechanism = dp.RandomizedResponse(0.75)
    >>> mechanism.logp([0, 1, 2], [0, 0, 0]).eval().round(4)
    array([-0.2877, -1.3863,    -inf])
    >>> mechanism.epsilon().round(4)
    np.float64(1.0986)
    """

    is_channel: ClassVar[bool] = True

    log_ratio: TensorVariable
    categories: int

    parameter_names: ClassVar[tuple[str, ...]] = ("log_ratio",)

    def __new__(cls, *args: Any, matrix: ArrayLike | None = None, **kwargs: Any) -> Any:
        """Build a mechanism of another class for a matrix."""
        if matrix is not None and (args or kwargs):
            raise TypeError(f"{NAME}: matrix= says all: leave the other arguments out")
        return object.__new__(cls) if matrix is None else ReportMatrix(np.asarray(matrix))

    def __init__(self, truth_probability: TensorLike, categories: int = 2) -> None:
        """Validate the arguments and keep the log ratio."""
        categories, t = _as_categories(categories), _as_probability(truth_probability)
        log_ratio = pt.log(t) + np.log(categories - 1.0) - pt.log1p(-t)
        if isinstance(t, Constant):
            known = np.asarray(known_value(log_ratio))
            log_ratio = as_number(labelled_like(known, truth_probability))
        object.__setattr__(self, "log_ratio", log_ratio)
        object.__setattr__(self, "categories", categories)

    @classmethod
    def from_epsilon(cls, epsilon: ArrayLike, categories: int = 2) -> Self:
        r"""Build the mechanism from its privacy loss.

        The truth is told with probability :math:`t = e^\varepsilon / (e^\varepsilon + K - 1)`.

        Parameters
        ----------
        epsilon : array_like
            Privacy loss of each report, >= 0. Any finite value is kept exactly, also where t
            itself rounds to 1.
        categories : int, default 2
            Number of categories K.

        Raises
        ------
        ValueError
            An epsilon that is not finite or negative, or fewer than two categories.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> dp.RandomizedResponse.from_epsilon(np.log(3.0)).truth_probability.eval().round(4)
        np.float64(0.75)
        >>> dp.RandomizedResponse.from_epsilon(1.0, categories=5).epsilon().round(4)
        np.float64(1.0)
        """
        loss = positive_argument(epsilon, mechanism=NAME, name="epsilon", zero_ok=True)
        return cls.from_fields(log_ratio=labelled_like(loss, epsilon), categories=categories)

    @classmethod
    def from_fields(cls, **fields: Any) -> Self:
        """Build the mechanism from `log_ratio` and `categories`; see `Mechanism.from_fields`."""
        log_ratio = checked_parameter(
            fields["log_ratio"], np.isfinite, "finite", mechanism=NAME, name="log_ratio"
        )
        return cls(0.5, fields["categories"])._rebuilt(log_ratio=log_ratio)

    @property
    def outcomes(self) -> np.ndarray:
        """See `Mechanism.outcomes`."""
        return np.arange(self.categories)

    def epsilon(self) -> np.ndarray:
        r"""Privacy loss of each report, :math:`\varepsilon = |\log\frac{t (K - 1)}{1 - t}|`.

        It holds for one record that changes to any other category. Several reports about the same
        record compose: their losses add up.

        Returns
        -------
        ndarray
            Loss, of the shape of `truth_probability`.

        Raises
        ------
        ValueError
            A symbolic `truth_probability`.
        """
        return np.abs(required_value(self.log_ratio, mechanism=NAME, name="truth_probability"))

    @property
    def truth_probability(self) -> TensorVariable:
        """Probability that a report is the truth; it can round to 1."""
        return pt.sigmoid(self.log_ratio - np.log(self.categories - 1.0))

    def wrong_parameter(self) -> str | None:
        """See `Mechanism.wrong_parameter`; a log ratio may be zero or negative."""
        value = known_value(self.log_ratio)
        if value is not None and not np.all(np.isfinite(value)):
            return f"truth_probability={known_value(self.truth_probability)} is not in (0, 1)"
        return None

    @property
    def spacing(self) -> float:
        """Distance between neighbouring codes."""
        return 1.0

    def counted(self, population: TensorLike) -> RandomizedResponseCount:
        """Return the mechanism that releases the number of reported ones only.

        Its statistic is the true number of ones. It needs two categories: with more of them, the
        reported counts of the categories are not independent given the true counts.

        Parameters
        ----------
        population : tensor_like of int
            Number of records, public.

        Raises
        ------
        NotImplementedError
            More than two categories.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> reported = dp.RandomizedResponse(0.75).counted(population=100)
        >>> reported.logp([40, 30], 20).eval().round(4)
        array([-3.0716, -3.0268])
        """
        return RandomizedResponseCount(self, population)

    def noise_sample(self, rng: Variable, statistic: TensorLike) -> tuple[Variable, TensorVariable]:
        """Draw one report; see `Mechanism.noise_sample`. A statistic must be a category."""
        s = as_float(statistic)
        message = f"{NAME}: the statistic must be one of 0, ..., {self.categories - 1}"
        s = Assert(message)(s, pt.all(is_category(s, self.categories))).astype("int64")
        lie = pt.exp(_log_lie(self)) + pt.zeros_like(s)
        rng, lies = pt.random.bernoulli(lie, rng=rng, return_next_rng=True)
        rng, shift = pt.random.integers(
            1, self.categories, size=lies.shape, rng=rng, return_next_rng=True
        )
        return rng, pt.mod(s + lies * shift, self.categories)

    def logp(self, value: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Log mass of a report; see `Mechanism.logp`."""
        z, s = as_float(value), as_float(statistic)
        log_mass = pt.switch(pt.eq(z, s), _log_truth(self), _log_other(self))
        possible = is_category(z, self.categories) & is_category(s, self.categories)
        return self._checked(pt.switch(possible, log_mass, -np.inf))

    def log_interval(
        self, lower: TensorLike, upper: TensorLike, statistic: TensorLike = 0.0
    ) -> TensorVariable:
        """Log probability of the categories in an interval; see `Mechanism.log_interval`."""
        s = as_float(statistic)
        first = pt.maximum(pt.ceil(as_float(lower)), 0.0)
        last = pt.minimum(pt.floor(as_float(upper)), self.categories - 1.0)
        possible = is_category(s, self.categories) & (first <= last)
        count = pt.switch(possible, last - first + 1.0, 1.0)
        # With the truth among several categories, one less the mass of those left out.
        left_out = pt.switch(count > 1.0, self.categories - count, 0.0)
        with_truth = pt.log1p(-left_out * pt.exp(_log_other(self)))
        with_truth = pt.switch(count > 1.0, with_truth, _log_truth(self))
        without = pt.log(count) + _log_other(self)
        log_mass = pt.switch((first <= s) & (s <= last), with_truth, without)
        return self._checked(pt.switch(possible, log_mass, -np.inf))

    def why_unattainable(self, value: float) -> str:
        """Explain why a report cannot be published; see `Mechanism.why_unattainable`."""
        return (
            "it releases the category of every record, one of the codes 0, ..., categories - 1. "
            "For a number of ones among n records write dp.RandomizedResponse(...).counted(n)"
        )

    def icdf(self, p: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Quantile function; see `Mechanism.icdf`."""
        p, s = as_float(p), as_float(statistic)
        wide = self.with_parameters(pt.shape_padright(self.log_ratio))
        below = wide.logcdf(np.arange(self.categories - 1.0), pt.shape_padright(s))
        # A probability that is met but for rounding counts as met.
        quantile = pt.sum(below < pt.shape_padright(just_met(p)), axis=-1).astype(p.dtype)
        quantile = pt.switch(is_category(s, self.categories), quantile, np.nan)
        return self._checked(nan_outside_unit(quantile, p))

    def _checked(self, expression: TensorVariable) -> TensorVariable:
        if isinstance(self.log_ratio, Constant):
            return expression
        finite = pt.abs(self.log_ratio) < np.inf
        return check_parameters(expression, finite, msg="0 < truth_probability < 1")

    def __repr__(self) -> str:
        """Return the expression that builds it."""
        t = known_value(self.truth_probability)
        shown = "<symbolic>"
        if t is not None:
            # The last digit or two come from the way there and back.
            t = np.vectorize(lambda x: float(f"{x:.14g}"), otypes=[float])(t)
            if np.any(t == 1.0):
                return f"{NAME}.from_epsilon({show(self.log_ratio)}, categories={self.categories})"
            shown = show(pt.constant(t))
        return f"{NAME}(truth_probability={shown}, categories={self.categories})"


def _log_truth(reports: RandomizedResponse) -> TensorVariable:
    return -pt.softplus(np.log(reports.categories - 1.0) - reports.log_ratio)


def _log_lie(reports: RandomizedResponse) -> TensorVariable:
    return -pt.softplus(reports.log_ratio - np.log(reports.categories - 1.0))


def _log_other(reports: RandomizedResponse) -> TensorVariable:
    return _log_lie(reports) - np.log(reports.categories - 1.0)


def _as_categories(value: Any) -> int:
    """Convert the user's number of categories."""
    categories = as_integer(value, mechanism=NAME, name="categories")
    if categories < 2:
        raise ValueError(
            f"{NAME}: categories must be >= 2, got {categories}. Write the number of values "
            f"that a record can take."
        )
    return categories


def _as_probability(value: TensorLike) -> TensorVariable:
    """Convert the user's probability of a truthful report."""
    return checked_parameter(
        value,
        lambda t: (t > 0) & (t < 1),
        "> 0 and < 1",
        mechanism=NAME,
        name="truth_probability",
        instead="Write the probability that a report is the truth, or "
        "RandomizedResponse.from_epsilon(epsilon, categories); a record that is always "
        "reported truthfully is data, and needs no mechanism.",
    )


# --- Examples -----------------------------------------------------------------------------------


def _example(mechanism: Mechanism, statistic: int, most: int) -> MechanismExample:
    atoms = np.arange(most + 1)
    return MechanismExample(mechanism, statistic, atoms=atoms, smooth_in_statistic=False)


def _examples() -> Sequence[MechanismExample]:
    return [
        _example(RandomizedResponse(0.75), 1, 1),
        _example(RandomizedResponse(0.1, categories=5), 3, 4),
        _example(RandomizedResponse.from_epsilon(2.5, categories=4), 0, 3),
    ]


def _count_examples() -> Sequence[MechanismExample]:
    return [
        _example(RandomizedResponse(0.75).counted(100), 58, 100),
        _example(RandomizedResponse(0.4).counted(9), 0, 9),
        _example(RandomizedResponse(0.9).counted(400), 397, 400),
    ]


def _matrix_examples():
    return (
        _example(RandomizedResponse(matrix=[[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]]), 1, 2),
        _example(RandomizedResponse(matrix=[[0.75, 0.25], [0.25, 0.75], [0.0, 1.0]]), 1, 1),
    )


register_mechanism(RandomizedResponse, examples=_examples)
register_mechanism(ReportMatrix, examples=_matrix_examples)
register_mechanism(RandomizedResponseCount, examples=_count_examples)
