"""The discrete Gaussian law."""

from pymc_dp.distributions.integer_noise import IntegerNoiseLaw, IntegerNoiseRV
from pymc_dp.mechanisms import DiscreteGaussianMechanism

__all__ = ["DiscreteGaussian"]


class DiscreteGaussianRV(IntegerNoiseRV):
    """Random variable of the discrete Gaussian law (mu, sigma)."""

    name = "discrete_gaussian"
    _print_name = ("DiscreteGaussian", "\\operatorname{DiscreteGaussian}")
    noise = DiscreteGaussianMechanism(1.0)


class DiscreteGaussian(IntegerNoiseLaw):
    r"""Discrete Gaussian distribution [1]_: a Gaussian density on the whole numbers, normalised.

    .. math::

        P(X = k) = \frac{e^{-(k - \mu)^2 / (2 \sigma^2)}}
            {\sum_{j \in \mathbb{Z}} e^{-j^2 / (2 \sigma^2)}} .

    It is no rounded Normal variable. It is the law of the releases of `DiscreteGaussianMechanism`
    around `mu`, which does the computing. Here `sigma` may be random.

    ========  ==========================================================================
    Support   :math:`k \in \mathbb{Z}`
    Mean      :math:`\mu`
    Variance  below :math:`\sigma^2`, by less than :math:`3 \cdot 10^{-7}` of it for
              :math:`\sigma \ge 1`
    ========  ==========================================================================

    Parameters
    ----------
    mu : tensor_like of int
        Location, a whole number of at most 2**53.
    sigma : tensor_like of float
        The :math:`\sigma > 0` of the mass above, in the units of k.

    Raises
    ------
    ValueError
        A location that is no whole number. `pm.logp` raises a ParameterValueError for a sigma that
        is not finite and positive.

    References
    ----------
    .. [1] Canonne, C., Kamath, G., Steinke, T. (2020). The discrete Gaussian for differential
       privacy. NeurIPS.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_dp as dp
    >>> pm.logp(dp.DiscreteGaussian.dist(mu=3, sigma=2.0), [3, 5]).eval().round(4)
    array([-1.6121, -2.1121])
    """

    rv_type = DiscreteGaussianRV
    rv_op = DiscreteGaussianRV.rv_op
    _on_the_real_line = "pm.Normal"

    @classmethod
    def dist(cls, mu, sigma, **kwargs):
        """Create an unregistered variable with this law."""
        return cls._around(mu, sigma, **kwargs)
