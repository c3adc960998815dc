"""The discrete Laplace law."""

from pymc_dp.distributions.integer_noise import IntegerNoiseLaw, IntegerNoiseRV
from pymc_dp.mechanisms import GeometricMechanism

__all__ = ["DiscreteLaplace"]


class DiscreteLaplaceRV(IntegerNoiseRV):
    """Random variable of the discrete Laplace law (mu, scale)."""

    name = "discrete_laplace"
    _print_name = ("DiscreteLaplace", "\\operatorname{DiscreteLaplace}")
    noise = GeometricMechanism(1.0)


class DiscreteLaplace(IntegerNoiseLaw):
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
    >>> import pymc_dp as dp
    >>> pm.logp(dp.DiscreteLaplace.dist(mu=3, scale=2.0), [3, 5]).eval().round(4)
    array([-1.4068, -2.4068])
    """

    rv_type = DiscreteLaplaceRV
    rv_op = DiscreteLaplaceRV.rv_op
    _on_the_real_line = "pm.Laplace"

    @classmethod
    def dist(cls, mu, scale, **kwargs):
        """Create an unregistered variable with this law."""
        return cls._around(mu, scale, **kwargs)
