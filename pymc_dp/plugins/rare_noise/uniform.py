"""The uniform mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import pytensor.tensor as pt

from pymc_dp.graphs.held import labelled_like
from pymc_dp.mechanisms.registry import MechanismExample, register_mechanism
from pymc_dp.mechanisms.scales import (
    ScaleNoise,
    SymmetricNoise,
    standard_interval,
    unless_nearly_all,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable


@dataclass(frozen=True, eq=False, repr=False)
class UniformMechanism(SymmetricNoise, ScaleNoise):
    r"""Release a statistic with uniform noise added.

    Given the statistic :math:`s`, the release is uniform on :math:`[s - w, s + w]`.

    ========  ============================
    Support   :math:`z \in [s - w, s + w]`
    Mean      :math:`s`
    Variance  :math:`w^2 / 3`
    ========  ============================

    With sensitivity :math:`\Delta` of the statistic the release is
    :math:`(0, \delta)`-differentially private for :math:`\delta = \Delta / (2 w)` exactly, the
    share of the noise by which neighbours differ; it is the least such noise [1]_.
    diffprivlib's `Uniform(delta=, sensitivity=)` draws it.

    Parameters
    ----------
    half_width : tensor_like of float
        Largest absolute noise :math:`w > 0`, in the units of the statistic.

    Raises
    ------
    ValueError
        A half-width that is not finite and positive.
    TypeError
        A half-width that depends on a random variable, or is not numeric.

    References
    ----------
    .. [1] Q. Geng, W. Ding, R. Guo, S. Kumar (2019). Optimal noise-adding mechanism in additive
       differential privacy. AISTATS, 11-20.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> mechanism = dp.UniformMechanism.from_delta(0.1, sensitivity=1.0)
    >>> mechanism
    UniformMechanism(half_width=5.0)
    >>> mechanism.logp([34.0, 35.5], 30.0).eval().round(4)
    array([-2.3026,    -inf])
    """

    half_width: TensorLike

    parameter_names = ("half_width",)
    _instead = "Write the half-width, or {}.from_delta(delta, sensitivity)."

    @classmethod
    def from_delta(cls, delta: ArrayLike, sensitivity: ArrayLike) -> Self:
        r"""Build the mechanism from its failure probability: :math:`w = \Delta / (2 \delta)`.

        Parameters
        ----------
        delta : array_like
            Failure probability, 0 < delta < 1.
        sensitivity : array_like
            Sensitivity, > 0, in the units of the statistic.

        Raises
        ------
        ValueError
            An argument out of its range.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> dp.UniformMechanism.from_delta(0.05, sensitivity=1.0)
        UniformMechanism(half_width=10.0)
        """
        failure = cls._argument("delta", delta, below=1.0)
        size = cls._argument("sensitivity", sensitivity)
        return cls(labelled_like(0.5 * size / failure, delta, sensitivity))

    def delta(self, sensitivity: ArrayLike) -> np.ndarray:
        r"""Smallest :math:`\delta` for which the release is (0, δ)-private.

        Parameters
        ----------
        sensitivity : array_like
            Sensitivity, > 0, in the units of the statistic.

        Raises
        ------
        ValueError
            A sensitivity that is not finite and positive, or a symbolic half-width.
        """
        return np.minimum(0.5 * self._ratio(sensitivity), 1.0)

    @classmethod
    def _scale_of_sd(cls, sd: np.ndarray) -> np.ndarray:
        return sd * np.sqrt(3.0)

    @classmethod
    def _scale_of_accuracy(cls, accuracy: np.ndarray, alpha: np.ndarray) -> np.ndarray:
        return accuracy / (1.0 - alpha)

    def _log_density(self, x: TensorVariable) -> TensorVariable:
        return pt.switch(x <= 1.0, -np.log(2.0), -np.inf)

    def _distance(self, tail: TensorVariable) -> TensorVariable:
        return 1.0 - 2.0 * tail

    def kinks(self, value: TensorLike) -> Sequence[TensorVariable]:
        """See `Mechanism.kinks`."""
        return [value - self.half_width, value + self.half_width]

    def log_interval(
        self, lower: TensorLike, upper: TensorLike, statistic: TensorLike = 0.0
    ) -> TensorVariable:
        """Log probability of an interval; see `Mechanism.log_interval`."""
        interval = standard_interval(lower, upper, statistic, self._unit, most=1.0)
        out = 0.5 * ((1.0 - interval.upper) + (interval.lower + 1.0))
        log_mass = unless_nearly_all(out, pt.log(0.5 * interval.width))
        return self._checked(pt.switch(interval.possible, log_mass, -np.inf))


def _examples() -> Sequence[MechanismExample]:
    def example(w: float, s: float) -> MechanismExample:
        mechanism = UniformMechanism.from_delta(0.1, sensitivity=w / 5.0)
        return MechanismExample(mechanism, s, (s - w, s, s + w), smooth_in_statistic=False)

    return [example(2.5, 1.5), example(0.125, -30.0)]


register_mechanism(UniformMechanism, examples=_examples)
