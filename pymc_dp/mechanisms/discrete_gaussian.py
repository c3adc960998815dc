"""The discrete Gaussian mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import pytensor.tensor as pt
from pytensor.link.numba.dispatch import basic as numba_basic
from pytensor.link.numba.dispatch.random import numba_core_rv_funcify
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.op import RandomVariable

from pymc_dp.graphs.ops import KernelOp
from pymc_dp.kernels import njit, version_of
from pymc_dp.kernels.draws import discrete_gaussian as kernels
from pymc_dp.mechanisms.lattice import IntegerNoise
from pymc_dp.mechanisms.registry import MechanismExample, register_mechanism
from pymc_dp.mechanisms.scales import GaussianNoise, decreasing_root

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from pytensor.graph.basic import Variable
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable


@dataclass(frozen=True, eq=False, repr=False)
class DiscreteGaussianMechanism(GaussianNoise, IntegerNoise):
    r"""Release a whole number with discrete Gaussian noise added.

    The statistic :math:`s` is a whole number, such as a count. Given it, the release :math:`Z` has
    the mass

    .. math::

        \eta(z \mid s) = \frac{e^{-(z - s)^2 / (2 \sigma^2)}}
            {\sum_{k \in \mathbb{Z}} e^{-k^2 / (2 \sigma^2)}}, \qquad z - s \in \mathbb{Z}.

    It is no rounded Gaussian: its mass at k is proportional to the Gaussian density there.

    ========  ==========================================================================
    Support   :math:`z \in s + \mathbb{Z}`
    Mean      :math:`s`
    Variance  below :math:`\sigma^2`, by less than :math:`3 \cdot 10^{-7}` of it for
              :math:`\sigma \ge 1`
    ========  ==========================================================================

    With L2 sensitivity :math:`\Delta_2` of the statistic the release is :math:`\rho`-zero-
    concentrated differentially private for :math:`\rho = \Delta_2^2 / (2 \sigma^2)` [1]_.

    Parameters
    ----------
    sigma : tensor_like of float
        The :math:`\sigma > 0` of the mass above (not its square, which some curators quote as the
        variance). It broadcasts against the statistic. `pm.Data` and other tensors are allowed as
        long as they hold no random variable.

    Raises
    ------
    ValueError
        A sigma that is not finite and positive.
    TypeError
        A sigma that depends on a random variable, or is not numeric.

    References
    ----------
    .. [1] C. Canonne, G. Kamath, T. Steinke (2020). The discrete Gaussian for differential
       privacy. NeurIPS.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> mechanism = dp.DiscreteGaussianMechanism.from_rho(0.125)
    >>> mechanism
    DiscreteGaussianMechanism(sigma=2.0)
    >>> mechanism.logp([12, 15, 12.5], 12).eval().round(4)
    array([-1.6121, -2.7371,    -inf])
    """

    sigma: TensorLike

    continuous_alternative = "dp.GaussianMechanism"
    _instead = (
        "Write the sigma of the noise, the root of its variance parameter, or "
        "DiscreteGaussianMechanism.from_rho(rho, sensitivity)."
    )

    @classmethod
    def from_rho(cls, rho: ArrayLike, sensitivity: ArrayLike = 1.0) -> Self:
        r"""Build the mechanism from its zCDP loss: :math:`\sigma = \Delta_2 / \sqrt{2 \rho}`.

        Parameters
        ----------
        rho : array_like
            Zero-concentrated privacy loss, > 0.
        sensitivity : array_like, default 1
            L2 sensitivity, > 0; 1 for a count of records.

        Raises
        ------
        ValueError
            An argument that is not finite and positive.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> dp.DiscreteGaussianMechanism.from_rho(0.5, sensitivity=2)
        DiscreteGaussianMechanism(sigma=2.0)
        """
        return cls._from_rho(rho, sensitivity)

    def rho(self, sensitivity: ArrayLike = 1.0) -> np.ndarray:
        r"""Zero-concentrated loss of each component, :math:`\rho = \Delta_2^2 / (2 \sigma^2)`.

        Components computed from the same records compose: the total is the sum of the array.

        Parameters
        ----------
        sensitivity : array_like, default 1
            L2 sensitivity, > 0.

        Raises
        ------
        ValueError
            A sensitivity that is not finite and positive, or a symbolic sigma.
        """
        return 0.5 * self._ratio(sensitivity) ** 2

    @classmethod
    def _scale_of_sd(cls, sd: np.ndarray) -> np.ndarray:
        def excess(sigma: np.ndarray) -> np.ndarray:
            return sd - sigma * np.sqrt(np.vectorize(kernels.log_normaliser)(sigma)[1])

        return decreasing_root(excess, sd, sd + 1.0)

    @classmethod
    def _scale_of_accuracy(cls, accuracy: np.ndarray, alpha: np.ndarray) -> np.ndarray:
        # The greatest noise below the accuracy. The root is bracketed: the law is sub-Gaussian, and
        # its mass at 0 is at most the Gaussian density there.
        most = np.floor(accuracy) - 1.0

        def excess(sigma: np.ndarray) -> np.ndarray:
            return np.vectorize(kernels.log_between)(-most, most, sigma)[0] - np.log1p(-alpha)

        widest = (2.0 * most + 1.0) / (np.sqrt(2.0 * np.pi) * (1.0 - alpha))
        return decreasing_root(excess, np.sqrt(-0.5 / np.log(alpha / 2.0)) * (most + 1.0), widest)

    @property
    def noise_variance(self) -> TensorVariable:
        """Variance of the noise."""
        sigma = self._scale
        # The log of the normaliser has the derivative variance / sigma^3.
        return sigma**3 * _log_normaliser(_double(sigma))[1]

    def _sample_noise(self, rng: Variable, like: TensorVariable) -> tuple[Variable, TensorVariable]:
        sigma = _double(self._scale) + pt.zeros_like(_double(like))
        return _discrete_gaussian(sigma, rng=rng, return_next_rng=True)

    def _log_mass(self, k: TensorVariable) -> TensorVariable:
        sigma = self._scale
        return -0.5 * pt.sqr(k / sigma) - _log_normaliser(_double(sigma))[0]

    def _log_between(self, first: TensorVariable, last: TensorVariable) -> TensorVariable:
        return _LogBetween.apply(first, last, self._scale)

    def _noise_quantile(self, p: TensorVariable) -> TensorVariable:
        return _Quantile.apply(p, self._scale)


# --- Ops ----------------------------------------------------------------------------------------


class _LogNormaliser(KernelOp):
    """Log of the sum of exp(-k^2 / (2 sigma^2)) over the integers; input sigma."""

    nin = 1
    kernel = staticmethod(kernels.normaliser_parts)


class _LogBetween(KernelOp):
    """Log probability of the integers in an interval; inputs as `kernels.log_between`.

    It is piecewise constant in the ends.
    """

    nin, fixed = 3, 2
    kernel = staticmethod(kernels.log_between)


class _Quantile(KernelOp):
    """Quantile of the law; inputs are those of `kernels.quantile`."""

    nin = fixed = 2
    kernel = staticmethod(kernels.quantile)


_log_normaliser = Elemwise(_LogNormaliser(name="discrete_gaussian_log_normaliser"))


def _double(x: TensorLike) -> TensorVariable:
    return pt.cast(pt.as_tensor_variable(x), "float64")


@njit(cache=True, nogil=True)
def _draw_array(rng, sigma, out):
    for i in range(out.size):
        out[i] = kernels.draw(rng, sigma[i])


class DiscreteGaussianRV(RandomVariable):
    """Random variable of the discrete Gaussian noise (sigma)."""

    name = "discrete_gaussian"
    signature = "()->()"
    dtype = "int64"
    _print_name = ("DiscreteGaussian", "\\operatorname{DiscreteGaussian}")

    @classmethod
    def rng_fn(cls, rng, sigma, size=None):
        """Draw an array."""
        shape = np.shape(sigma) if size is None else tuple(size)
        sigma = np.ascontiguousarray(np.broadcast_to(sigma, shape), dtype="float64").ravel()
        out = np.empty(sigma.size, dtype="int64")
        _draw_array(rng, sigma, out)
        return out.reshape(shape)


@numba_core_rv_funcify.register(DiscreteGaussianRV)
def _numba_discrete_gaussian(op, node):
    @numba_basic.numba_njit
    def random(rng, sigma):
        return np.int64(kernels.draw(rng, sigma))

    return random, version_of(random)


_discrete_gaussian = DiscreteGaussianRV()


# --- Examples -----------------------------------------------------------------------------------


def _examples() -> Sequence[MechanismExample]:
    return [
        MechanismExample(DiscreteGaussianMechanism(0.6), -4, atoms=np.arange(-4 - 6, -4 + 7)),
        MechanismExample(
            DiscreteGaussianMechanism.from_rho(0.005), 1000, atoms=np.arange(900, 1101)
        ),
    ]


register_mechanism(DiscreteGaussianMechanism, examples=_examples)
