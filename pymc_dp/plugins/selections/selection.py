"""Selections: which of several candidates was published, by their utilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NoReturn, Self

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_grad

from pymc_dp.mechanisms.arguments import as_float, positive_parameter
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.mechanisms.registry import register_mechanism

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from pytensor.graph.basic import Variable
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable


class Selection(Mechanism):
    """A release made of all entries along the last axis of its statistic, not of each.

    A release of a matrix is one of each row, and parameters have an entry for each row.
    """

    statistic_ndim: ClassVar[int] = 1

    def log_interval(
        self, lower: TensorLike, upper: TensorLike, statistic: TensorLike = 0.0
    ) -> NoReturn:
        """Candidates have no order; see `ReleaseLaw.log_interval`."""
        raise NotImplementedError(f"{type(self).__name__} has no probabilities of intervals")


class IndexSelection(Selection):
    """Selection of a candidate, whose position is released."""

    @property
    def spacing(self) -> float | None:
        """Distance between neighbouring positions."""
        return 1.0

    @property
    def log_concave(self) -> bool:
        """See `Mechanism.log_concave`: the candidate with the largest noisy utility is released.

        The noise is log-concave, and the condition that one is the largest is convex.
        """
        return True

    def attainable(self, value: TensorLike) -> TensorVariable:
        """See `Mechanism.attainable`; `logp` rules out positions beyond the last candidate."""
        z = as_float(value)
        return (z >= 0) & pt.eq(z, pt.floor(z))

    def why_unattainable(self, value: float) -> str:
        """See `Mechanism.why_unattainable`."""
        return "it publishes the position of a candidate, counted from 0"

    def check_released(self, name: str, value: np.ndarray, length: int | None) -> None:
        """See `Mechanism.check_released`."""
        if length is not None and np.any(value >= length):
            raise ValueError(
                f"{name!r}: {self!r} cannot publish {np.max(value):g}: there are {length} "
                f"candidates, whose positions are 0, ..., {length - 1}"
            )

    def support_point(self, statistic: TensorLike) -> TensorVariable:
        """Return the position of the largest utility."""
        return pt.argmax(statistic, axis=-1).astype("float64")


def is_at(index: TensorVariable, utilities: TensorVariable) -> TensorVariable:
    """Return, for each index, which candidate is at it; none if it is no position."""
    return pt.eq(index[..., None], pt.arange(utilities.shape[-1]))


@dataclass(frozen=True, eq=False, repr=False)
class ExponentialMechanism(IndexSelection):
    r"""Release which candidate was chosen, large utilities more often: the exponential mechanism.

    The statistic is a vector of the utilities :math:`u_0, \ldots, u_{k-1}` of public candidates,
    the release the position i of one of them, counted from 0:

    .. math::

        P(i \mid u) = \frac{\exp(r u_i)}{\sum_j \exp(r u_j)}.

    It is the largest of :math:`u_j` with Gumbel noise of scale 1/r, too. The rate is
    :math:`r = \varepsilon / (2 \Delta)` for an :math:`\varepsilon`-differentially private choice
    by utilities that one record changes by at most :math:`\Delta` [1]_, and
    :math:`r = \varepsilon / \Delta` where adding a record lowers none of them (monotone
    utilities, such as counts).

    Parameters
    ----------
    rate : tensor_like of float
        Rate r, positive. Of a matrix of utilities, one for each row or one for all.

    Raises
    ------
    ValueError
        A rate that is not finite and positive.
    TypeError
        A rate that depends on a random variable, or is not numeric.

    References
    ----------
    .. [1] F. McSherry, K. Talwar (2007). Mechanism design via differential privacy. FOCS, 94-103.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> mechanism = dp.ExponentialMechanism.from_epsilon(1.0, sensitivity=1)
    >>> mechanism.logp(1, [3.0, 5.0]).eval().round(4)
    np.float64(-0.3133)
    """

    rate: TensorVariable
    parameter_names: ClassVar[tuple[str, ...]] = ("rate",)

    def __post_init__(self) -> None:
        """Validate the rate and keep it as a tensor."""
        self._keep("rate", positive_parameter)

    @classmethod
    def from_epsilon(
        cls, epsilon: ArrayLike, sensitivity: ArrayLike, monotone: bool = False
    ) -> Self:
        """Build the mechanism from its privacy loss.

        Parameters
        ----------
        epsilon : array_like
            Privacy loss of a choice, > 0.
        sensitivity : array_like
            Largest change of a utility by one record, > 0.
        monotone : bool, default False
            Whether adding a record lowers no utility.

        Raises
        ------
        ValueError
            An argument that is not finite and positive.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> dp.ExponentialMechanism.from_epsilon(1.0, sensitivity=2.0)
        ExponentialMechanism(rate=0.25)
        >>> dp.ExponentialMechanism.from_epsilon(1.0, sensitivity=2.0, monotone=True)
        ExponentialMechanism(rate=0.5)
        """
        loss, change = cls._arguments(epsilon=epsilon, sensitivity=sensitivity)
        return cls(loss / (change if monotone else 2.0 * change))

    def epsilon(self, sensitivity: ArrayLike, monotone: bool = False) -> np.ndarray:
        """Privacy loss of a choice; see `from_epsilon`.

        Parameters
        ----------
        sensitivity : array_like
            Largest change of a utility by one record, > 0.
        monotone : bool, default False
            Whether adding a record lowers no utility.

        Raises
        ------
        ValueError
            A sensitivity that is not finite and positive, or a symbolic rate.
        """
        change, rate = self._argument("sensitivity", sensitivity), self._value("rate")
        return rate * (change if monotone else 2.0 * change)

    def noise_sample(self, rng: Variable, statistic: TensorLike) -> tuple[Variable, TensorVariable]:
        """Draw one position; see `Mechanism.noise_sample`."""
        score = self._scores(statistic)
        rng, noise = pt.random.gumbel(
            0.0, 1.0, size=tuple(score.shape), rng=rng, return_next_rng=True
        )
        return rng, pt.argmax(score + noise, axis=-1).astype("float64")

    def logp(self, value: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Log probability of a position; see `Mechanism.logp`."""
        score = self._scores(statistic)
        chosen = is_at(as_float(value), score)
        chosen_score = pt.sum(pt.switch(chosen, score, 0.0), axis=-1)
        log_p = chosen_score - pt.log(pt.sum(pt.exp(score), axis=-1))
        return self._checked(pt.switch(pt.any(chosen, axis=-1), log_p, -np.inf))

    def _scores(self, statistic: TensorLike) -> TensorVariable:
        """Return the utilities times the rate, less the largest one, without loss of digits."""
        u = as_float(statistic)
        return self.rate[..., None] * (u - disconnected_grad(pt.max(u, axis=-1, keepdims=True)))


# The conformance tests take noise for each entry; selections have their own tests.
register_mechanism(ExponentialMechanism, examples=tuple)
