r"""Anchored tilted masses of the Normal and the Gamma law, as scalar numba functions.

Laplace noise with rate :math:`\lambda` is exponential on either side of the released value
:math:`z`, so that the density, the moments and the gradients of a confidential statistic :math:`s`
with density :math:`f` follow from one primitive,

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

from pymc_dp.kernels.functions.gamma_mass import gamma_log_tilted_mass, gamma_tilted_parts
from pymc_dp.kernels.functions.normal_mass import normal_log_tilted_mass, normal_tilted_parts

__all__ = [
    "gamma_log_tilted_mass",
    "gamma_tilted_parts",
    "normal_log_tilted_mass",
    "normal_tilted_parts",
]
