"""The binomial mechanism for curves of prevalence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.dist_math import check_parameters
from pytensor.graph.basic import Constant
from pytensor.raise_op import Assert

from pymc_dp.mechanisms.arguments import (
    as_float,
    positive_parameter,
)
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.mechanisms.lattice import not_whole, whole_parameter
from pymc_dp.mechanisms.registry import MechanismExample, register_mechanism
from pymc_dp.mechanisms.response_count import CountInterval, CountQuantile

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from pytensor.graph.basic import Variable
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable

_NAME = "BinomialMechanism"


@dataclass(frozen=True, eq=False, repr=False)
class BinomialMechanism(Mechanism):
    r"""Release how many of n draws from a population, with pseudo-members, were affected.

    The statistic :math:`s` is how many of a population of K are affected, infected say. To both the
    affected and the others m pseudo-members are added, and n members are drawn with replacement.
    The number Z of affected ones among them is released:

    .. math::

        Z \sim \mathrm{Binomial}(n, \pi), \qquad \pi = \frac{s + m}{K + 2 m}, \qquad
        0 \le s \le K.

    ========  ==================================
    Support   :math:`z \in \{0, \ldots, n\}`
    Mean      :math:`n \pi`
    Variance  :math:`n \pi (1 - \pi)`
    ========  ==================================

    One member who changes state changes :math:`\pi` by a factor of at most :math:`1 + 1/m`, so that
    each release is :math:`\varepsilon`-differentially private for :math:`\varepsilon = n
    \log(1 + 1/m)` exactly, which is at most n / m [1]_. The releases at the L times of a curve
    compose, to L times as much.

    Parameters
    ----------
    draws : tensor_like of int
        Number n of draws for each release, >= 1.
    pseudo_count : tensor_like of float
        Number m > 0 of pseudo-members on either side; not necessarily whole.
    population : tensor_like of int
        Size K of the population, >= 1, public.

    Raises
    ------
    ValueError
        Draws or a population that are not whole numbers >= 1, a pseudo-count that is not finite
        and positive.
    TypeError
        A parameter that depends on a random variable, or is not numeric.

    Notes
    -----
    The log mass is defined, and smooth, for any :math:`s` in [0, K], so that the statistic may be
    the solution of a differential equation as well as a count; outside it is -inf. The release is
    on a scale of its own: multiply z / n by K + 2m and take off m to compare it with s.

    All three parameters broadcast against the statistic. The probability of an interval costs a sum
    over about :math:`\sqrt{n}` values.

    References
    ----------
    .. [1] Y. Xiong, N. P. Ju, S. Zhang (2024). Conditional density estimations from
       privacy-protected data.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> mechanism = dp.BinomialMechanism(draws=1000, pseudo_count=1000, population=100_000)
    >>> mechanism
    BinomialMechanism(draws=1000.0, pseudo_count=1000.0, population=100000.0)
    >>> mechanism.epsilon().round(4)
    np.float64(0.9995)
    >>> mechanism.logp([20, 30], 1500.7).eval().round(4)
    array([-2.8656, -3.1945])
    """

    draws: TensorLike
    pseudo_count: TensorLike
    population: TensorLike

    parameter_names: ClassVar[tuple[str, ...]] = ("draws", "pseudo_count", "population")

    def __post_init__(self) -> None:
        """Validate the parameters and make them tensors."""
        drawn = "Write how many members were drawn for each release."
        self._keep("draws", whole_parameter, least=1, instead=drawn)
        pseudo = "Without pseudo-members no finite privacy loss is guaranteed."
        self._keep("pseudo_count", positive_parameter, instead=pseudo)
        size = "Write the size of the population, without the pseudo-members."
        self._keep("population", whole_parameter, least=1, instead=size)

    @property
    def spacing(self) -> float:
        """Distance between neighbouring counts."""
        return 1.0

    def epsilon(self, sensitivity: ArrayLike = 1.0) -> np.ndarray:
        r"""Privacy loss of each release, :math:`\varepsilon = n \log(1 + \Delta / m)`.

        Releases computed from the same population compose: the total is L times as much for a
        curve of L of them, and the sum of the returned array where it has an entry for each.

        Parameters
        ----------
        sensitivity : array_like, default 1
            The most by which one member changes the statistic, > 0; 1 for a count of members.

        Raises
        ------
        ValueError
            A sensitivity that is not finite and positive, or a symbolic parameter.
        """
        ratio = self._argument("sensitivity", sensitivity) / self._value("pseudo_count")
        return self._value("draws") * np.log1p(ratio)

    def wrong_parameter(self) -> str | None:
        """See `Mechanism.wrong_parameter`."""
        draws, _, population = self.parameters
        wrong = not_whole("draws", draws, 1) or not_whole("population", population, 1)
        return wrong or super().wrong_parameter()

    @property
    def log_concave(self) -> bool:
        """Sums of neighbouring binomial probabilities are log-concave in the chance."""
        return True

    def noise_sample(self, rng: Variable, statistic: TensorLike) -> tuple[Variable, TensorVariable]:
        """Draw one release; see `Mechanism.noise_sample`. The statistic must be in [0, K]."""
        draws, pseudo_count, population = self.parameters
        s = as_float(statistic)
        message = f"{_NAME}: the statistic must be between 0 and the population"
        s = Assert(message)(s, pt.all((s >= 0) & (s <= population)))
        probability = (s + pseudo_count) / (population + 2.0 * pseudo_count)
        return pt.random.binomial(draws.astype("int64"), probability, rng=rng, return_next_rng=True)

    def log_interval(
        self, lower: TensorLike, upper: TensorLike, statistic: TensorLike = 0.0
    ) -> TensorVariable:
        """Log probability of the counts in an interval; see `Mechanism.log_interval`."""
        (draws, *_), s = self.parameters, as_float(statistic)
        possible, log_odds = self._log_odds(s)
        log_mass = CountInterval.apply(lower, upper, draws, draws, log_odds)
        return self._checked(pt.switch(possible, log_mass, -np.inf))

    def icdf(self, p: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Quantile function; see `Mechanism.icdf`."""
        (draws, *_), s = self.parameters, as_float(statistic)
        possible, log_odds = self._log_odds(s)
        quantile = CountQuantile.apply(p, draws, draws, log_odds)
        return self._checked(pt.switch(possible, quantile, np.nan))

    def typical_statistic(self, value: TensorLike) -> TensorVariable:
        """Return any statistic: each of them can lead to every release."""
        return pt.zeros_like(as_float(value))

    def why_unattainable(self, value: float) -> str:
        """Explain why a value cannot be published; see `Mechanism.why_unattainable`."""
        if value != np.round(value):
            return (
                f"{_NAME} releases the whole number of affected members among the draws; multiply "
                "a published share by the number of draws"
            )
        return f"{_NAME} releases a number of the draws, from 0 to `draws` (not of the population)"

    def _log_odds(self, s: TensorVariable) -> tuple[TensorVariable, TensorVariable]:
        """Whether the statistic is possible, and the log odds of drawing an affected member."""
        _, m, population = self.parameters
        possible = (s >= 0) & (s <= population)
        s = pt.switch(possible, s, 0.5 * population)
        return possible, pt.log(s + m) - pt.log((population - s) + m)

    def _checked(self, expression: TensorVariable) -> TensorVariable:
        draws, m, population = self.parameters
        if all(isinstance(parameter, Constant) for parameter in self.parameters):
            return expression
        conditions = [pt.lt(0, m), pt.lt(m, np.inf)]
        for whole in (draws, population):
            conditions += [pt.ge(whole, 1), pt.lt(whole, np.inf)]
        return check_parameters(
            expression,
            *conditions,
            msg="1 <= draws < inf, 0 < pseudo_count < inf, 1 <= population < inf",
        )


def _examples() -> Sequence[MechanismExample]:
    def example(draws: int, m: float, population: int, statistic: float) -> MechanismExample:
        mechanism = BinomialMechanism(draws, m, population)
        atoms = np.arange(draws + 1)
        return MechanismExample(mechanism, statistic, atoms=atoms, smooth_in_statistic=False)

    return [example(200, 20.0, 1000, 330), example(12, 0.7, 50, 0), example(400, 3.5, 90, 77)]


register_mechanism(BinomialMechanism, examples=_examples)
