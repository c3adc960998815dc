"""The Bessel law, of the smaller of two Poisson counts given their difference."""

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.discrete import Discrete
from pymc.distributions.dist_math import check_parameters
from pymc.distributions.shape_utils import maybe_resize

from pymc_dp.distributions.kernel_law import KernelRV, at_whole_numbers
from pymc_dp.graphs.ops import KernelOp
from pymc_dp.kernels import njit
from pymc_dp.kernels.functions.bessel import bessel_logcdf, bessel_mean, bessel_parts, draw_bessel
from pymc_dp.mechanisms.arguments import as_float

__all__ = ["Bessel"]


@njit(cache=True, nogil=True)
def _draw(rng, nu, a):
    return np.int64(draw_bessel(rng, float(nu), float(a)))


class BesselRV(KernelRV):
    """Random variable of the Bessel law (order, argument); draws by rejection."""

    name = "bessel"
    signature = "(),()->()"
    dtype = "int64"
    _print_name = ("Bessel", "\\operatorname{Bessel}")
    draw = staticmethod(_draw)


bessel = BesselRV()


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

    Raises
    ------
    ParameterValueError
        `pm.logp` at an order below 0, or an argument that is not positive.

    References
    ----------
    .. [1] Yuan, L., Kalbfleisch, J. D. (2000). On the Bessel distribution and related problems.
       Annals of the Institute of Statistical Mathematics 52, 438-447.
    .. [2] Devroye, L. (1987). A simple generator for discrete log-concave distributions.
       Computing 39, 87-91.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_dp as dp
    >>> law = dp.Bessel.dist(nu=3, a=10.0)
    >>> pm.logp(law, [2, 3]).eval().round(4)
    array([-1.6867, -1.3582])
    >>> pm.draw(law, draws=1000, random_seed=1).mean().round()
    np.float64(3.0)
    """

    rv_op = bessel

    @classmethod
    def dist(cls, nu, a, **kwargs):
        """Create an unregistered variable with this law."""
        return super().dist([as_float(nu), as_float(a)], **kwargs)

    def support_point(rv, size, nu, a):
        """Return the mode."""
        point = pt.floor(0.5 * a * (a / (pt.sqrt(nu**2 + a**2) + nu)))
        return maybe_resize(point, size)

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
        return _checked(at_whole_numbers(LogBessel, value, nu, a), nu, a)

    def logcdf(value, nu, a):
        """Return the log of the distribution function."""
        return _checked(LogCdfBessel.apply(value, nu, a), nu, a)


def _checked(expression, nu, a):
    return check_parameters(expression, nu >= 0, a > 0, msg="nu >= 0, a > 0")
