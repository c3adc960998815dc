"""The discrete Laplace law."""

import pytensor.tensor as pt
from pymc.distributions.discrete import Discrete

from pymc_dp.distributions.integer_noise import IntegerNoiseRV, as_location, checked, location_point
from pymc_dp.mechanisms import GeometricMechanism
from pymc_dp.mechanisms.arguments import as_float

__all__ = ["DiscreteLaplace"]


class DiscreteLaplaceRV(IntegerNoiseRV):
    """Random variable of the discrete Laplace law (mu, scale)."""

    name = "discrete_laplace"
    _print_name = ("DiscreteLaplace", "\\operatorname{DiscreteLaplace}")
    noise = GeometricMechanism(1.0)


class DiscreteLaplace(Discrete):
    r"""Discrete Laplace distribution, also called two-sided geometric [1]_.

    .. math::

        P(X = k) = \frac{1 - \alpha}{1 + \alpha}\, \alpha^{|k - \mu|}, \qquad
        \alpha = e^{-1/b} .

    It is the law of the difference of two geometric counts, and of the releases of
    `GeometricMechanism` around `mu`, which does the computing. Here the scale `b` may be random.

    ========  ============================================
    Support   :math:`k \in \mathbb{Z}`
    Mean      :math:`\mu`
    Variance  :math:`\dfrac{2 \alpha}{(1 - \alpha)^2}`
    ========  ============================================

    Parameters
    ----------
    mu : tensor_like of int
        Location, a whole number of at most 2**53.
    scale : tensor_like of float
        Scale b > 0, in the units of k. A law quoted by :math:`\alpha` has
        :math:`b = -1 / \log \alpha`.

    Raises
    ------
    ValueError
        A location that is no whole number. `pm.logp` raises a ParameterValueError for a scale that
        is not finite and positive.

    References
    ----------
    .. [1] Inusah, S., Kozubowski, T. J. (2006). A discrete analogue of the Laplace distribution.
       Journal of Statistical Planning and Inference 136, 1090-1102.

    Examples
    --------
    >>> import pymc as pm
    >>> from pymc_dp.distributions import DiscreteLaplace
    >>> float(pm.logp(DiscreteLaplace.dist(mu=3, scale=2.0), 5).eval().round(6))
    -2.406829
    """

    rv_type = DiscreteLaplaceRV
    rv_op = DiscreteLaplaceRV.rv_op

    @classmethod
    def dist(cls, mu, scale, **kwargs):
        """Create an unregistered variable with this law."""
        mu = as_location(mu, law="DiscreteLaplace", instead="pm.Laplace")
        return super().dist([mu, as_float(scale)], **kwargs)

    def support_point(rv, size, mu, scale):
        """Return the location."""
        return location_point(mu, scale, size)

    @staticmethod
    def mean(mu, scale):
        """Return the mean as a tensor."""
        return as_float(mu) + pt.zeros_like(as_float(scale))

    @staticmethod
    def variance(mu, scale):
        """Return the variance as a tensor."""
        return _noise(scale).noise_variance + pt.zeros_like(as_float(mu))

    def logp(value, mu, scale):
        """Return the log mass."""
        return checked(_noise(scale).logp(value, mu), mu, scale, "scale")

    def logcdf(value, mu, scale):
        """Return the log of the distribution function."""
        return checked(_noise(scale).logcdf(value, mu), mu, scale, "scale")

    def icdf(value, mu, scale):
        """Return the quantile."""
        return checked(_noise(scale).icdf(value, mu), mu, scale, "scale")


def _noise(scale):
    return DiscreteLaplaceRV.noise.with_parameters(as_float(scale))
