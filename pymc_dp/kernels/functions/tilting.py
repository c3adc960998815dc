r"""Anchored tilted masses of the Normal and the Gamma law, as scalar numba functions.

Laplace noise with rate :math:`\lambda` is exponential on either side of the released value
:math:`z`, so everything that is asked about a confidential statistic :math:`s` with density
:math:`f` follows from one primitive,

.. math::

    L(t, z, l, h) = \log \int_l^h f(s) \, e^{t (s - z)} \, ds ,

with :math:`t = +\lambda` to the left of :math:`z` and :math:`t = -\lambda` to its right:

.. math::

    \log p(z) = \log\tfrac{\lambda}{2}
        + \operatorname{logaddexp}\{L(\lambda, z, l, \min(z, u)), L(-\lambda, z, \max(z, l), u)\} .

Both families below are closed under the tilt, so :math:`L` is "moment generating function times
interval probability". That product is never formed when it would cancel: a mass in a tail of the
tilted law is written as the integrand at the endpoint nearest to the mode, times a ratio of the
Mills kind, which is of order one. All such ratios are integrals of positive functions, and the
first moments that the gradients need are sums of the same positive terms.

The functions named ``*_tilted_parts`` return the mass and its exact partial derivatives together,
because they share all the work. In them the mass is *anchored* at the end of the interval where
the tilt is largest, :math:`z = h` for :math:`t > 0` and :math:`z = l` for :math:`t < 0`: the
derivative with respect to that end is a difference of two numbers of size :math:`|t|`, which
only a joint treatment gets right when the noise is small.
"""

import math

from pymc_dp.kernels import njit
from pymc_dp.kernels.functions.gamma_mass import (
    gamma_log_tilted_mass,
    gamma_tilted_mean_log,
    gamma_tilted_parts,
)
from pymc_dp.kernels.functions.normal_mass import normal_log_tilted_mass, normal_tilted_parts

__all__ = [
    "gamma_log_tilted_mass",
    "gamma_tilted_mean_log",
    "gamma_tilted_parts",
    "laplace_log_marginal_gamma",
    "laplace_log_marginal_normal",
    "normal_log_tilted_mass",
    "normal_tilted_parts",
]

# No fastmath: infinite endpoints and compensated products both need IEEE arithmetic.
_jit = njit(cache=True, nogil=True, error_model="numpy")


@_jit
def combine_sides(lam, left, right):
    """Return log(lam / 2) + logaddexp(left, right), -inf if both sides are empty."""
    big = max(left, right)
    if big == -math.inf:
        return -math.inf
    return math.log(0.5 * lam) + big + math.log1p(math.exp(-abs(left - right)))


@_jit
def laplace_log_marginal_normal(z, lam, m, v, lo, hi):
    """Return log p(z) for z = s + Laplace(rate lam), s ~ Normal(m, v) cut to [lo, hi].

    The cut law is not normalised again.
    """
    left = normal_log_tilted_mass(lam, z, lo, min(z, hi), m, v)
    right = normal_log_tilted_mass(-lam, z, max(z, lo), hi, m, v)
    return combine_sides(lam, left, right)


@_jit
def laplace_log_marginal_gamma(z, lam, a, beta, lo, hi):
    """Return log p(z) for z = s + Laplace(rate lam), s ~ Gamma(a, beta) cut to [lo, hi].

    The cut law is not normalised again.
    """
    left = gamma_log_tilted_mass(lam, z, lo, min(z, hi), a, beta)
    right = gamma_log_tilted_mass(-lam, z, max(z, lo), hi, a, beta)
    return combine_sides(lam, left, right)
