"""The Bessel law, of the smaller of two Poisson counts given their difference."""

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.discrete import Discrete
from pymc.distributions.dist_math import check_parameters
from pymc.distributions.shape_utils import rv_size_is_none
from pytensor.link.numba.dispatch import basic as numba_basic
from pytensor.link.numba.dispatch.random import numba_core_rv_funcify
from pytensor.tensor.random.op import RandomVariable

from pymc_dp.graphs.ops import KernelOp
from pymc_dp.kernels import njit, version_of
from pymc_dp.kernels.functions.bessel import bessel_logcdf, bessel_mean, bessel_parts, draw_bessel
from pymc_dp.mechanisms.arguments import as_float

__all__ = ["Bessel"]


@njit(cache=True, nogil=True)
def _draw_array(rng, nu, a, out):
    for i in range(out.size):
        out[i] = draw_bessel(rng, nu[i], a[i])


class BesselRV(RandomVariable):
    """Random variable of the Bessel law (order, argument)."""

    name = "bessel"
    signature = "(),()->()"
    dtype = "int64"
    _print_name = ("Bessel", "\\operatorname{Bessel}")

    @classmethod
    def rng_fn(cls, rng, nu, a, size=None):
        """Draw by rejection."""
        shape = np.broadcast_shapes(np.shape(nu), np.shape(a)) if size is None else tuple(size)
        inputs = [
            np.ascontiguousarray(np.broadcast_to(x, shape), dtype="float64").ravel()
            for x in (nu, a)
        ]
        out = np.empty(inputs[0].size, dtype="int64")
        _draw_array(rng, *inputs, out)
        return out.reshape(shape)


bessel = BesselRV()


@numba_core_rv_funcify.register(BesselRV)
def _numba_bessel(op, node):
    @numba_basic.numba_njit
    def random(rng, nu, a):
        return np.int64(draw_bessel(rng, float(nu), float(a)))

    return random, version_of(__file__)


class LogBessel(KernelOp):
    """Log mass at an integer, given the order, and the argument."""

    nin, fixed = 3, 2
    kernel = staticmethod(bessel_parts)


class LogCdfBessel(KernelOp):
    """Log distribution function, without derivatives."""

    nin = fixed = 3
    kernel = staticmethod(bessel_logcdf)


class BesselMean(KernelOp):
    """Mean, without derivatives."""

    nin = fixed = 2
    kernel = staticmethod(bessel_mean)


class Bessel(Discrete):
    r"""Bessel distribution [1]_: the smaller of two Poisson counts given their difference.

    .. math::

        P(X = k) = \frac{(a / 2)^{2 k + \nu}}{k!\, \Gamma(k + \nu + 1)\, I_\nu(a)} .

    If :math:`X_1 \sim \mathrm{Poisson}(\mu_1)` and :math:`X_2 \sim \mathrm{Poisson}(\mu_2)` are
    independent, :math:`\min(X_1, X_2)` given :math:`X_1 - X_2 = z` is
    :math:`\mathrm{Bessel}(|z|, 2 \sqrt{\mu_1 \mu_2})`.

    ========  =====================================================
    Support   :math:`k \in \{0, 1, 2, \ldots\}`
    Mean      :math:`m_\nu = \dfrac{a I_{\nu + 1}(a)}{2 I_\nu(a)}`
    Variance  :math:`m_\nu (1 + m_{\nu + 1} - m_\nu)`
    ========  =====================================================

    The log mass keeps its digits at orders and arguments of 1e6 and more. Draws are exact, by
    rejection from a log-concave law's envelope [2]_; their cost does not grow with `nu` and `a`.

    Parameters
    ----------
    nu : tensor_like of int or float
        Order (>= 0).
    a : tensor_like of float
        Argument (> 0).

    References
    ----------
    .. [1] Yuan, L., Kalbfleisch, J. D. (2000). On the Bessel distribution and related problems.
       Annals of the Institute of Statistical Mathematics 52, 438-447.
    .. [2] Devroye, L. (1987). A simple generator for discrete log-concave distributions.
       Computing 39, 87-91.

    Examples
    --------
    >>> import pymc as pm
    >>> from pymc_dp.distributions import Bessel
    >>> draws = pm.draw(Bessel.dist(nu=3, a=10.0), draws=1000, random_seed=1)
    """

    rv_op = bessel

    @classmethod
    def dist(cls, nu, a, **kwargs):
        """Create an unregistered variable with this law."""
        return super().dist([as_float(nu), as_float(a)], **kwargs)

    def support_point(rv, size, nu, a):
        """Return the mode."""
        point = pt.floor(0.5 * a * (a / (pt.sqrt(nu**2 + a**2) + nu)))
        return point if rv_size_is_none(size) else pt.full(size, point)

    @staticmethod
    def mean(nu, a):
        """Return the mean as a tensor."""
        return BesselMean.apply(nu, a)

    @classmethod
    def variance(cls, nu, a):
        """Return the variance as a tensor; it loses digits where a is large."""
        mean = cls.mean(nu, a)
        return mean * (1.0 + cls.mean(as_float(nu) + 1.0, a) - mean)

    def logp(value, nu, a):
        """Return the log mass."""
        whole = pt.eq(value, pt.floor(value)) & ~pt.isinf(value)
        logp = LogBessel.apply(pt.switch(whole, value, -1), nu, a)
        return _checked(pt.switch(whole, logp, -np.inf), nu, a)

    def logcdf(value, nu, a):
        """Return the log of the distribution function."""
        return _checked(LogCdfBessel.apply(value, nu, a), nu, a)


def _checked(expression, nu, a):
    return check_parameters(expression, nu >= 0, a > 0, msg="nu >= 0, a > 0")
