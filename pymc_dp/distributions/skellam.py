"""The Skellam law, of the difference of two Poisson counts."""

import pytensor.tensor as pt
from pymc.distributions.discrete import Discrete
from pymc.distributions.dist_math import check_parameters
from pymc.distributions.shape_utils import maybe_resize

from pymc_dp.distributions.kernel_law import KernelRV, at_whole_numbers
from pymc_dp.graphs.ops import KernelOp
from pymc_dp.kernels import njit
from pymc_dp.kernels.functions.bessel import skellam_logcdf, skellam_parts
from pymc_dp.mechanisms.arguments import as_float

__all__ = ["Skellam"]


@njit(cache=True, nogil=True)
def _draw(rng, mu1, mu2):
    if not (mu1 >= 0 and mu2 >= 0):
        raise ValueError("Skellam draws need mu1 >= 0 and mu2 >= 0: make the rates positive")
    return rng.poisson(mu1) - rng.poisson(mu2)


class SkellamRV(KernelRV):
    """Random variable of the Skellam law (both rates)."""

    name = "skellam"
    signature = "(),()->()"
    dtype = "int64"
    _print_name = ("Skellam", "\\operatorname{Skellam}")
    draw = staticmethod(_draw)


skellam = SkellamRV()


class LogSkellam(KernelOp):
    """Log mass at an integer, given both rates."""

    nin, fixed = 3, 1
    kernel = staticmethod(skellam_parts)


class LogCdfSkellam(KernelOp):
    """Log distribution function, without derivatives."""

    nin = fixed = 3
    kernel = staticmethod(skellam_logcdf)


class Skellam(Discrete):
    r"""Skellam distribution: the difference of two independent Poisson counts.

    .. math::

        P(X = k) = e^{-(\mu_1 + \mu_2)} (\mu_1 / \mu_2)^{k / 2} I_{|k|}(2 \sqrt{\mu_1 \mu_2}) .

    A count seen through two-sided geometric noise is one, given the noise's two rates [1]_.

    ========  =================================
    Support   :math:`k \in \mathbb{Z}`
    Mean      :math:`\mu_1 - \mu_2`
    Variance  :math:`\mu_1 + \mu_2`
    ========  =================================

    The log mass and its gradients keep their digits at rates of 1e8 and more; the distribution
    function is a sum over the nearer tail, of the order of its standard deviation long.

    Parameters
    ----------
    mu1, mu2 : tensor_like of float
        Rates (>= 0) of the count that is added and of the one that is taken away.

    References
    ----------
    .. [1] Schein, A., Wu, Z. S., Schofield, A., Zhou, M., Wallach, H. (2019). Locally private
       Bayesian inference for count models. ICML.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_dp as dp
    >>> pm.logp(dp.Skellam.dist(mu1=3.0, mu2=1.5), [-2, 0]).eval().round(4)
    array([-3.0872, -1.8644])
    """

    rv_op = skellam

    @classmethod
    def dist(cls, mu1, mu2, **kwargs):
        """Create an unregistered variable with this law."""
        return super().dist([as_float(mu1), as_float(mu2)], **kwargs)

    def support_point(rv, size, mu1, mu2):
        """Return the mean, rounded."""
        return maybe_resize(pt.round(mu1 - mu2), size)

    @staticmethod
    def mean(mu1, mu2):
        """Return the mean as a tensor."""
        return as_float(mu1) - as_float(mu2)

    @staticmethod
    def variance(mu1, mu2):
        """Return the variance as a tensor."""
        return as_float(mu1) + as_float(mu2)

    def logp(value, mu1, mu2):
        """Return the log mass."""
        return _checked(at_whole_numbers(LogSkellam, value, mu1, mu2), mu1, mu2)

    def logcdf(value, mu1, mu2):
        """Return the log of the distribution function."""
        return _checked(LogCdfSkellam.apply(value, mu1, mu2), mu1, mu2)


def _checked(expression, mu1, mu2):
    return check_parameters(expression, mu1 >= 0, mu2 >= 0, msg="mu1 >= 0, mu2 >= 0")
