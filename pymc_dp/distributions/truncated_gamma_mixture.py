"""The truncated gamma mixture: a Gamma law tilted on both sides of a point."""

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.continuous import PositiveContinuous
from pymc.distributions.dist_math import check_parameters
from pymc.distributions.shape_utils import maybe_resize
from pytensor import config
from pytensor.tensor.random.basic import _gamma

from pymc_dp.distributions.kernel_law import KernelRV
from pymc_dp.kernels import njit
from pymc_dp.kernels.draws.log_concave import draw_tilted_gamma
from pymc_dp.laws.tilting import gamma_logpdf, laplace_log_marginal, log_tilted_mass, logaddexp

__all__ = ["TruncatedGammaMixture"]


@njit(cache=True, nogil=True)
def _draw(rng, alpha, beta, lam, tau):
    return draw_tilted_gamma(rng, float(alpha), float(beta), float(lam), float(tau), 0.0, np.inf)


class TruncatedGammaMixtureRV(KernelRV):
    """Random variable of the truncated gamma mixture (shape, rate, tilt, centre)."""

    name = "truncated_gamma_mixture"
    signature = "(),(),(),()->()"
    dtype = "floatX"
    _print_name = ("TruncatedGammaMixture", "\\operatorname{TruncatedGammaMixture}")
    draw = staticmethod(_draw)


truncated_gamma_mixture = TruncatedGammaMixtureRV()


class TruncatedGammaMixture(PositiveContinuous):
    r"""Truncated gamma mixture.

    The law of a Gamma statistic given its release with Laplace noise: if
    :math:`s \sim \mathrm{Gamma}(\alpha, \beta)` and
    :math:`\tau = s + \mathrm{Laplace}(1 / \lambda)`, then :math:`s \mid \tau` has density

    .. math::

        f(s \mid \alpha, \beta, \lambda, \tau) =
            \mathrm{Gamma}(s \mid \alpha, \beta) \,
            \frac{\tfrac{\lambda}{2} e^{-\lambda |\tau - s|}}{p_\alpha(\tau)} , \qquad s > 0 ,

    where :math:`p_\alpha(\tau)` is the marginal density of the release. It is a mixture of
    :math:`\mathrm{Gamma}(\alpha, \beta - \lambda)` cut to :math:`(0, \tau]` and
    :math:`\mathrm{Gamma}(\alpha, \beta + \lambda)` cut to :math:`(\tau, \infty)`.
    Kazan and Reiter [1]_ define it for :math:`\beta > \lambda`; the left component is proper
    for every :math:`\lambda`, because it is cut, so that no such restriction is made here.
    For :math:`\tau \le 0` the law is :math:`\mathrm{Gamma}(\alpha, \beta + \lambda)`.

    ========  ==============================================================================
    Support   :math:`s \in (0, \infty)`
    Mean      :math:`m_\alpha = \dfrac{\alpha}{\beta} \dfrac{p_{\alpha+1}(\tau)}{p_\alpha(\tau)}`
    Variance  :math:`m_\alpha (m_{\alpha+1} - m_\alpha)`
    ========  ==============================================================================

    Parameters
    ----------
    alpha : tensor_like of float
        Shape of the Gamma law (alpha > 0).
    beta : tensor_like of float
        Rate of the Gamma law (beta > 0).
    lam : tensor_like of float
        Rate of the Laplace noise, the inverse of its scale (lam > 0).
    tau : tensor_like of float
        The released value, of any sign.

    References
    ----------
    .. [1] Kazan, Z. and Reiter, J. P. (2024). Bayesian inference under differential privacy with
       bounded data. arXiv:2405.13801.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_dp as dp
    >>> law = dp.TruncatedGammaMixture.dist(alpha=21.0, beta=0.01, lam=0.02, tau=2224.8)
    >>> pm.logp(law, [2000.0, 2224.8, -1.0]).eval().round(4)
    array([-8.976 , -4.5976,    -inf])
    """

    rv_op = truncated_gamma_mixture

    @classmethod
    def dist(cls, alpha, beta, lam, tau, **kwargs):
        """Create an unregistered variable with this law."""
        # Small integers would make PyTensor compute in single precision.
        params = [pt.cast(pt.as_tensor(x), config.floatX) for x in (alpha, beta, lam, tau)]
        return super().dist(params, **kwargs)

    def support_point(rv, size, alpha, beta, lam, tau):
        """Return the mean."""
        return maybe_resize(TruncatedGammaMixture.mean(alpha, beta, lam, tau), size)

    @classmethod
    def mean(cls, alpha, beta, lam, tau):
        """Return the mean as a tensor.

        Raising the shape by one multiplies the density by s, so the mean is a ratio of two
        marginal densities.
        """
        alpha, beta = (pt.cast(pt.as_tensor(x), "float64") for x in (alpha, beta))
        scale = pt.reciprocal(beta)
        above = laplace_log_marginal(_gamma, tau, lam, alpha + 1, scale)
        here = laplace_log_marginal(_gamma, tau, lam, alpha, scale)
        return alpha * scale * pt.exp(above - here)

    @classmethod
    def variance(cls, alpha, beta, lam, tau):
        """Return the variance as a tensor.

        A difference of two means: it loses about log10(alpha) digits.
        """
        mean = cls.mean(alpha, beta, lam, tau)
        return mean * (cls.mean(alpha + 1, beta, lam, tau) - mean)

    def logp(value, alpha, beta, lam, tau):
        """Return the log density."""
        inside = pt.gt(value, 0.0)
        s = pt.switch(inside, value, 1.0)
        logp = (
            gamma_logpdf(s, alpha, beta)
            - lam * pt.abs(tau - s)
            + pt.log(0.5 * lam)
            - laplace_log_marginal(_gamma, tau, lam, alpha, pt.reciprocal(beta))
        )
        return _checked(pt.switch(inside, logp, -np.inf), alpha, beta, lam)

    def logcdf(value, alpha, beta, lam, tau):
        """Return the log of the distribution function."""
        scale = pt.reciprocal(beta)

        def mass(t, lo, hi):
            return log_tilted_mass(_gamma, t, tau, lo, hi, alpha, scale)

        inside = pt.gt(value, 0.0)
        s = pt.switch(inside, value, 1.0)
        before = pt.minimum(s, tau)
        after = pt.maximum(s, tau)
        lower = logaddexp(mass(lam, 0.0, before), mass(-lam, tau, after))
        upper = logaddexp(mass(lam, before, tau), mass(-lam, after, np.inf))
        # Both are sums of positive terms, so the ratio is right in either tail.
        logcdf = pt.switch(pt.isinf(s), 0.0, -pt.softplus(upper - lower))
        return _checked(pt.switch(inside, logcdf, -np.inf), alpha, beta, lam)


def _checked(expression, alpha, beta, lam):
    positive = alpha > 0, beta > 0, lam > 0
    return check_parameters(expression, *positive, msg="alpha > 0, beta > 0, lam > 0")
