"""The Laplace mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import pytensor.tensor as pt

from pymc_dp.mechanisms.arguments import as_float
from pymc_dp.mechanisms.registry import MechanismExample, register_mechanism
from pymc_dp.mechanisms.scales import (
    LaplaceNoise,
    SymmetricNoise,
    standard_interval,
    unless_nearly_all,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from pytensor.graph.basic import Variable
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable


@dataclass(frozen=True, eq=False, repr=False)
class LaplaceMechanism(SymmetricNoise, LaplaceNoise):
    r"""Release a statistic with Laplace noise added.

    Given the statistic :math:`s`, the release :math:`Z = s + b\,(E_1 - E_2)`, with independent
    standard exponential :math:`E_1, E_2`, has the density

    .. math::

        \eta(z \mid s) = \frac{1}{2 b} \exp\left(-\frac{|z - s|}{b}\right).

    ========  ==========================
    Support   :math:`z \in \mathbb{R}`
    Mean      :math:`s`
    Variance  :math:`2 b^2`
    ========  ==========================

    With L1 sensitivity :math:`\Delta_1` of the statistic the release is
    :math:`\varepsilon`-differentially private for :math:`\varepsilon = \Delta_1 / b` [1]_.

    Parameters
    ----------
    scale : tensor_like of float
        Noise scale :math:`b > 0`, in the units of the statistic. It broadcasts against the
        statistic: a scalar serves every component, an array has one scale for each. `pm.Data`
        and other tensors are allowed as long as they hold no random variable.

    Raises
    ------
    ValueError
        A scale that is not finite and positive.
    TypeError
        A scale that depends on a random variable, or is not numeric.

    References
    ----------
    .. [1] C. Dwork, F. McSherry, K. Nissim, A. Smith (2006). Calibrating noise to sensitivity in
       private data analysis. Theory of Cryptography, 265-284.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> mechanism = dp.LaplaceMechanism.from_epsilon([0.25, 0.5], sensitivity=[2.0, 1.0])
    >>> mechanism
    LaplaceMechanism(scale=[8., 2.])
    >>> mechanism.logp([34.3, 11.0], [30.0, 11.0]).eval().round(4)
    array([-3.3101, -1.3863])
    """

    scale: TensorLike

    _instead = (
        "Write the noise scale b in the units of the statistic, or "
        "LaplaceMechanism.from_epsilon(epsilon, sensitivity)."
    )

    @classmethod
    def from_epsilon(cls, epsilon: ArrayLike, sensitivity: ArrayLike) -> Self:
        r"""Build the mechanism from its privacy loss: :math:`b = \Delta_1 / \varepsilon`.

        Parameters
        ----------
        epsilon : array_like
            Privacy loss spent on each component, > 0.
        sensitivity : array_like
            L1 sensitivity of each component, > 0, in the units of the statistic, under the
            neighbouring relation for which epsilon is quoted. If one loss `epsilon` is quoted
            for a whole vector, give the L1 sensitivity of the vector.

        Raises
        ------
        ValueError
            An argument that is not finite and positive.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> dp.LaplaceMechanism.from_epsilon(0.5, sensitivity=[1.0, 3.0])
        LaplaceMechanism(scale=[2., 6.])
        """
        return cls._from_epsilon(epsilon, sensitivity)

    def epsilon(self, sensitivity: ArrayLike) -> np.ndarray:
        r"""Privacy loss of each component, :math:`\varepsilon = \Delta_1 / b`.

        Components computed from the same records compose: their losses add up, and the total is
        the sum of the returned array. Components of disjoint groups of records do not.

        Parameters
        ----------
        sensitivity : array_like
            L1 sensitivity of each component, > 0, in the units of the statistic.

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
        return sd / np.sqrt(2.0)

    @classmethod
    def _scale_of_accuracy(cls, accuracy: np.ndarray, alpha: np.ndarray) -> np.ndarray:
        return -accuracy / np.log(alpha)

    def noise_sample(self, rng: Variable, statistic: TensorLike) -> tuple[Variable, TensorVariable]:
        """Draw one release; see `Mechanism.noise_sample`."""
        return pt.random.laplace(as_float(statistic), self._scale, rng=rng, return_next_rng=True)

    def _log_density(self, x: TensorVariable) -> TensorVariable:
        return -np.log(2.0) - x

    def log_interval(
        self, lower: TensorLike, upper: TensorLike, statistic: TensorLike = 0.0
    ) -> TensorVariable:
        """Log probability of an interval; see `Mechanism.log_interval`."""
        interval = standard_interval(lower, upper, statistic, self._scale)
        a, b = interval.lower, interval.upper
        # On one side of the statistic: the tail beyond the nearer end, less the one beyond the
        # farther end.
        nearer = pt.maximum(pt.maximum(a, -b), 0.0)
        beside = -np.log(2.0) - nearer + pt.log1mexp(-interval.width)
        # Around the statistic: one less both tails where those are small, else the sum of the
        # two parts, which are positive.
        around = (a < 0) & (b > 0)
        a, b = pt.switch(around, a, -1.0), pt.switch(around, b, 1.0)
        parts = -0.5 * (pt.expm1(a) + pt.expm1(-b))
        across = unless_nearly_all(0.5 * (pt.exp(a) + pt.exp(-b)), pt.log(parts))
        result = pt.switch(interval.possible, pt.switch(around, across, beside), -np.inf)
        return self._checked(result)

    def _distance(self, tail: TensorVariable) -> TensorVariable:
        return -pt.log(2.0 * tail)


def _examples() -> Sequence[MechanismExample]:
    return [
        MechanismExample(LaplaceMechanism(2.5), 1.5, pieces=(1.5 - 80, 1.5, 1.5 + 80)),
        MechanismExample(
            LaplaceMechanism.from_epsilon(4.0, sensitivity=0.1),
            -30.0,
            pieces=(-30.0 - 0.8, -30.0, -30.0 + 0.8),
        ),
    ]


register_mechanism(LaplaceMechanism, examples=_examples)
