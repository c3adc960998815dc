"""Private quantiles: a point of an interval between the sorted records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import disconnected_grad

from pymc_dp.graphs.values import known_value
from pymc_dp.mechanisms.arguments import as_float, checked_parameter, in_unit, positive_parameter
from pymc_dp.mechanisms.base import wrong_scales
from pymc_dp.mechanisms.registry import register_mechanism
from pymc_dp.plugins.selections.selection import Selection

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from pytensor.graph.basic import Variable
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable


@dataclass(frozen=True, eq=False, repr=False)
class PrivateQuantile(Selection):
    r"""Release a quantile of records by the exponential mechanism on the intervals between them.

    The statistic is the vector of the n records themselves. With these clipped to [l, u] and
    sorted, and :math:`x_{(0)} = l`, :math:`x_{(n + 1)} = u`, the interval from :math:`x_{(i)}` to
    :math:`x_{(i + 1)}` is chosen with the weight :math:`(x_{(i + 1)} - x_{(i)})\,
    e^{-r |i - q n|}`, and a uniform point of it is published [1]_. So the density is

    .. math::

        \eta(z \mid x) = \frac{e^{-r |i(z) - q n|}}
            {\sum_j (x_{(j + 1)} - x_{(j)})\, e^{-r |j - q n|}}, \qquad l \le z \le u,

    where i(z) records are at most z.

    Parameters
    ----------
    quantile : tensor_like of float
        The quantile q, from 0 to 1; 0.5 for the median.
    rate : tensor_like of float
        Rate r, positive; see `from_epsilon`.
    lower, upper : tensor_like of float
        Public ends l < u.

    Raises
    ------
    ValueError
        A quantile outside [0, 1], a rate that is not finite and positive, ends that are not in
        order.
    TypeError
        A parameter that depends on a random variable, or is not numeric.

    Notes
    -----
    With the number of records public, it is :math:`\varepsilon`-differentially private for
    :math:`\varepsilon = 2 r` where one record is replaced: :math:`|i - q n|` then moves by at most
    1.

    The functions ``quantile``, ``percentile`` and ``median`` of diffprivlib have the rate
    :math:`\varepsilon / 2`, quantiles of Tumult :math:`\varepsilon / (2 \max(q, 1 - q))`.

    References
    ----------
    .. [1] A. Smith (2011). Privacy-preserving statistical estimation with optimal convergence
       rates. STOC, 813-822.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> median = dp.PrivateQuantile.from_epsilon(0.5, 1.0, 0.0, 100.0)
    >>> median.logp(41.0, [30.0, 40.0, 60.0]).eval().round(4)
    np.float64(-4.283)
    """

    quantile: TensorVariable
    rate: TensorVariable
    lower: TensorVariable
    upper: TensorVariable
    parameter_names: ClassVar[tuple[str, ...]] = ("quantile", "rate", "lower", "upper")

    def __post_init__(self) -> None:
        """Validate the parameters and keep them as tensors."""
        self._keep("rate", positive_parameter)
        self._keep("quantile", checked_parameter, good=in_unit, rule="from 0 to 1")
        for name in ("lower", "upper"):
            self._keep(name, checked_parameter, good=np.isfinite, rule="finite")
        if (wrong := self.wrong_parameter()) is not None:
            raise ValueError(f"PrivateQuantile: {wrong}. Write both public ends.")

    @classmethod
    def from_epsilon(
        cls, quantile: ArrayLike, epsilon: ArrayLike, lower: TensorLike, upper: TensorLike
    ) -> Self:
        """Build the mechanism from the privacy loss of one quantile, as diffprivlib does.

        Parameters
        ----------
        quantile, lower, upper : array_like
            As of the class.
        epsilon : array_like
            Privacy loss of one quantile, > 0. The rate is half of it.

        Raises
        ------
        ValueError
            An argument out of its range.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> dp.PrivateQuantile.from_epsilon(0.25, 1.0, lower=0.0, upper=100.0)
        PrivateQuantile(quantile=0.25, rate=0.5, lower=0.0, upper=100.0)
        """
        return cls(quantile, cls._argument("epsilon", epsilon) / 2.0, lower, upper)

    def wrong_parameter(self) -> str | None:
        """See `Mechanism.wrong_parameter`."""
        q, _, lower, upper = map(known_value, self.parameters)
        if q is not None and not np.all(in_unit(q)):
            return f"quantile={q} is not from 0 to 1"
        if lower is not None and upper is not None and not np.all(lower < upper):
            return f"lower={lower} is not below upper={upper}"
        return wrong_scales(self, ("rate",))

    def attainable(self, value: TensorLike) -> TensorVariable:
        """See `Mechanism.attainable`."""
        z = as_float(value)
        return (z >= self.lower) & (z <= self.upper)

    def why_unattainable(self, value: float) -> str:
        """See `Mechanism.why_unattainable`."""
        return "it publishes a number from lower to upper"

    def support_point(self, statistic: TensorLike) -> TensorVariable:
        """Return the middle, which is possible whatever the records are."""
        return (self.lower + self.upper) / 2.0 + pt.zeros_like(as_float(statistic)[..., 0])

    def noise_sample(self, rng: Variable, statistic: TensorLike) -> tuple[Variable, TensorVariable]:
        """Draw one quantile; see `Mechanism.noise_sample`."""
        points, lengths, distance, _ = self._intervals(statistic)
        shape = tuple(lengths.shape)
        rng, noise = pt.random.gumbel(0.0, 1.0, size=shape, rng=rng, return_next_rng=True)
        rng, share = pt.random.uniform(0.0, 1.0, size=shape, rng=rng, return_next_rng=True)
        score = pt.log(lengths) - self.rate[..., None] * distance + noise
        chosen = pt.eq(pt.argmax(score, axis=-1, keepdims=True), pt.arange(shape[-1]))
        return rng, pt.sum(pt.switch(chosen, points[..., :-1] + share * lengths, 0.0), axis=-1)

    def logp(self, value: TensorLike, statistic: TensorLike = 0.0) -> TensorVariable:
        """Log density of a quantile; see `Mechanism.logp`."""
        z, rate = as_float(value), self.rate[..., None]
        points, lengths, distance, target = self._intervals(statistic)
        inside, end = points[..., 1:-1], pt.eq(z, self.upper)  # where clipped records may lie
        below = pt.le(inside, z[..., None]) & ~(pt.eq(inside, z[..., None]) & end[..., None])
        distance_here = pt.abs(pt.sum(below, axis=-1) - target)
        # Less the smallest distance of a nonempty interval, against underflow of all terms.
        smallest = pt.min(pt.switch(lengths > 0, distance, np.inf), axis=-1, keepdims=True)
        smallest = disconnected_grad(smallest)
        total = pt.sum(lengths * pt.exp(-rate * pt.maximum(distance - smallest, 0.0)), axis=-1)
        log_p = -self.rate * (distance_here - smallest[..., 0]) - pt.log(total)
        return self._checked(pt.switch(self.attainable(z), log_p, -np.inf))

    def _intervals(self, statistic: TensorLike) -> tuple[TensorVariable, ...]:
        """Return ends and lengths of the intervals, their distances from a rank, and that rank."""
        x, lower, upper = as_float(statistic), self.lower[..., None], self.upper[..., None]
        records = pt.sort(pt.clip(x, lower, upper), axis=-1)
        like = pt.zeros_like(records[..., :1])
        points = pt.concatenate([lower + like, records, upper + like], axis=-1)
        target = self.quantile * x.shape[-1]
        distance = pt.abs(pt.arange(x.shape[-1] + 1) - target[..., None])
        return points, pt.diff(points, axis=-1), distance, target


register_mechanism(PrivateQuantile, examples=tuple)
