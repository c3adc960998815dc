"""The two-sided geometric mechanism, also known as the discrete Laplace mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import pytensor.tensor as pt

from pymc_dp.mechanisms.arguments import just_met
from pymc_dp.mechanisms.lattice import IntegerNoise
from pymc_dp.mechanisms.registry import MechanismExample, register_mechanism
from pymc_dp.mechanisms.scales import LaplaceNoise, decreasing_root

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from pytensor.graph.basic import Variable
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable

_ENDLESS = np.float64(1e150)
"""Stands for an infinite end, in units of the scale: its square is finite."""
_MOST_NOISE = 2.0**62  # the difference of two draws fits int64


@dataclass(frozen=True, eq=False, repr=False)
class GeometricMechanism(LaplaceNoise, IntegerNoise):
    r"""Release a whole number with two-sided geometric noise added.

    The statistic :math:`s` is a whole number, such as a count. The release :math:`Z = s + G_1 -
    G_2`, with independent geometric :math:`G_i` of mass :math:`(1 - \alpha) \alpha^g` on
    :math:`g = 0, 1, \ldots`, has the mass

    .. math::

        \eta(z \mid s) = \frac{1 - \alpha}{1 + \alpha}\, \alpha^{|z - s|}, \qquad
        \alpha = e^{-1/b}, \qquad z - s \in \mathbb{Z}.

    It is the discrete analogue of Laplace noise of scale b, and is also called discrete Laplace.

    ========  ==========================================================
    Support   :math:`z \in s + \mathbb{Z}`
    Mean      :math:`s`
    Variance  :math:`\dfrac{2 \alpha}{(1 - \alpha)^2}`
    ========  ==========================================================

    With L1 sensitivity :math:`\Delta_1` of the statistic the release is
    :math:`\varepsilon`-differentially private for :math:`\varepsilon = \Delta_1 / b` [1]_.

    Parameters
    ----------
    scale : tensor_like of float
        Noise scale :math:`b = -1 / \log \alpha > 0`. It broadcasts against the statistic: a scalar
        serves every component, an array has one scale for each. `pm.Data` and other tensors are
        allowed as long as they hold no random variable. A curator who quotes :math:`\alpha`
        means :math:`b = -1 / \log \alpha`.

    Raises
    ------
    ValueError
        A scale that is not finite and positive.
    TypeError
        A scale that depends on a random variable, or is not numeric.

    Notes
    -----
    All is computed from :math:`\log \alpha = -1/b`, since :math:`\alpha` underflows at a large
    :math:`\varepsilon` and :math:`1 - \alpha` cancels at a small one.

    References
    ----------
    .. [1] A. Ghosh, T. Roughgarden, M. Sundararajan (2012). Universally utility-maximizing privacy
       mechanisms. SIAM Journal on Computing 41(6), 1673-1693.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> mechanism = dp.GeometricMechanism.from_epsilon(0.5)
    >>> mechanism
    GeometricMechanism(scale=2.0)
    >>> mechanism.logp([12, 15, 12.5], 12).eval().round(4)
    array([-1.4068, -2.9068,    -inf])
    """

    scale: TensorLike

    _instead = (
        "Write the noise scale b = -1 / log(alpha), or "
        "GeometricMechanism.from_epsilon(epsilon, sensitivity)."
    )

    @classmethod
    def from_epsilon(cls, epsilon: ArrayLike, sensitivity: ArrayLike = 1.0) -> Self:
        r"""Build the mechanism from its privacy loss: :math:`b = \Delta_1 / \varepsilon`.

        Parameters
        ----------
        epsilon : array_like
            Privacy loss spent on each component, > 0.
        sensitivity : array_like, default 1
            L1 sensitivity of each component, > 0, under the neighbouring relation for which
            epsilon is quoted; 1 for a count of records. If one loss `epsilon` is quoted for a
            whole vector, give the L1 sensitivity of the vector: 2 for a histogram in which one
            record may move from one cell to another.

        Raises
        ------
        ValueError
            An argument that is not finite and positive.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> dp.GeometricMechanism.from_epsilon([0.5, 0.25], sensitivity=1)
        GeometricMechanism(scale=[2., 4.])
        """
        return cls._from_epsilon(epsilon, sensitivity)

    def epsilon(self, sensitivity: ArrayLike = 1.0) -> np.ndarray:
        r"""Privacy loss of each component, :math:`\varepsilon = \Delta_1 / b`.

        Components computed from the same records compose: their losses add up, and the total is
        the sum of the returned array. Components of disjoint groups of records do not.

        Parameters
        ----------
        sensitivity : array_like, default 1
            L1 sensitivity of each component, > 0.

        Returns
        -------
        ndarray
            Loss, of the shape to which sensitivity and scale broadcast.

        Raises
        ------
        ValueError
            A sensitivity that is not finite and positive, or a symbolic scale.
        """
        return self._ratio(sensitivity)

    @classmethod
    def _scale_of_sd(cls, sd: np.ndarray) -> np.ndarray:
        # The variance is 1 / (2 sinh(1 / (2 b))^2).
        return 0.5 / np.arcsinh(1.0 / (np.sqrt(2.0) * sd))

    @classmethod
    def _scale_of_accuracy(cls, accuracy: np.ndarray, alpha: np.ndarray) -> np.ndarray:
        # P(|K| >= a) = 2 exp(-a r) / (1 + exp(-r)), r = 1 / b, at any a, as OpenDP has it.
        log_alpha = np.log(alpha)

        def excess(rate: np.ndarray) -> np.ndarray:
            return -np.log1p(0.5 * np.expm1(-rate)) - accuracy * rate - log_alpha

        steepest = (np.log(2.0) - log_alpha) / accuracy
        return 1.0 / decreasing_root(excess, -log_alpha / accuracy, steepest)

    @property
    def noise_variance(self) -> TensorVariable:
        """Variance of the noise."""
        scale = self._scale
        return 2.0 * pt.exp(-1.0 / scale) / pt.sqr(pt.expm1(-1.0 / scale))

    def _sample_noise(self, rng: Variable, like: TensorVariable) -> tuple[Variable, TensorVariable]:
        mean = self._scale + pt.zeros_like(like)
        noise = []
        for _ in range(2):
            # The whole part of an exponential variable of mean b is geometric.
            rng, exponential = pt.random.exponential(mean, rng=rng, return_next_rng=True)
            noise.append(pt.floor(pt.minimum(exponential, _MOST_NOISE)).astype("int64"))
        return rng, noise[0] - noise[1]

    def _log_mass(self, k: TensorVariable) -> TensorVariable:
        scale = self._scale
        rate = 1.0 / scale
        # log((1 - alpha) / (1 + alpha))
        log_peak = pt.log1mexp(-rate) - pt.log1p(pt.exp(-rate))
        return log_peak - pt.abs(k) / scale

    def _log_between(self, first: TensorVariable, last: TensorVariable) -> TensorVariable:
        scale = self._scale
        rate = 1.0 / scale
        open_first, open_last = pt.isinf(first), pt.isinf(last)
        first, last = pt.switch(open_first, 0.0, first), pt.switch(open_last, 0.0, last)
        a = pt.switch(open_first, -_ENDLESS, first / scale)
        b = pt.switch(open_last, _ENDLESS, last / scale)
        length = pt.switch(open_first | open_last, _ENDLESS, (last - first + 1.0) / scale)
        log_one_plus = pt.log1p(pt.exp(-rate))
        # On one side of 0, or from it: the tail from the nearer end on, less what is beyond the
        # farther end.
        around = (a < 0) & (b > 0)
        nearer = pt.switch(around, 0.0, pt.maximum(a, -b))
        beside = -nearer - log_one_plus + pt.log1mexp(-length)
        # Around 0: one less both tails where those are small, else the sum of the three parts.
        a, b = pt.switch(around, a, -1.0), pt.switch(around, b, 1.0)
        tails = (pt.exp(a - rate) + pt.exp(-b - rate)) / (1.0 + pt.exp(-rate))
        small = tails < 0.5
        sides = -pt.exp(-rate) * (pt.expm1(a) + pt.expm1(-b))
        parts = -pt.expm1(-rate) + sides
        across = pt.switch(
            small,
            pt.log1p(-pt.switch(small, tails, 0.25)),
            pt.log(pt.switch(small, 0.5, parts)) - log_one_plus,
        )
        return pt.switch(around, across, beside)

    def _noise_quantile(self, p: TensorVariable) -> TensorVariable:
        scale = self._scale
        rate = 1.0 / scale
        log_one_plus = pt.log1p(pt.exp(-rate))
        below = p <= pt.sigmoid(-rate)  # P(K <= -1)
        tail = pt.log(pt.switch(below, p, 1.0 - p)) + log_one_plus
        k = pt.switch(below, pt.ceil(scale * tail), pt.ceil(-scale * tail) - 1.0)
        # The rounding of the logarithm may cost a step. A probability that is met but for rounding
        # counts as met.
        target = just_met(p)
        k = pt.switch(self.logcdf(k) < target, k + 1.0, k)
        return pt.switch(self.logcdf(k - 1.0) >= target, k - 1.0, k)


def _examples() -> Sequence[MechanismExample]:
    return [
        MechanismExample(GeometricMechanism(2.5), 3, atoms=np.arange(3 - 80, 3 + 81)),
        MechanismExample(
            GeometricMechanism.from_epsilon(4.0), -30, atoms=np.arange(-30 - 12, -30 + 13)
        ),
    ]


register_mechanism(GeometricMechanism, examples=_examples)
