r"""Gamma and Exponential statistics under Laplace noise (the truncated gamma mixture) and Gaussian.

Under Gaussian noise the marginal has no elementary form:

.. math::

    p(z) = \int_0^\infty \mathrm{Gamma}(s \mid a, \beta)\, N(z \mid s, \sigma^2)\, ds

is log-concave in s for a >= 1, with its mode in closed form, and falls from there like
:math:`p(\log(1+x) - x) - d^2/(2\sigma^2)` (d the distance, x = d/mode, p = a - 1): two
Gauss-Legendre rules of 40 nodes on the window where it falls by less than e^-40 are exact to
1e-13.
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.dist_math import check_parameters
from pytensor.gradient import disconnected_grad
from pytensor.tensor.random.basic import ExponentialRV, GammaRV

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.values import known_value
from pymc_dp.kernels import njit
from pymc_dp.kernels.draws.log_concave import draw_log_concave, draw_tilted_gamma
from pymc_dp.laws import Pair, register_pair
from pymc_dp.laws.tilting import register_laplace
from pymc_dp.mechanisms import GaussianMechanism
from pymc_dp.mechanisms.arguments import as_float

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(40)
_FALL = 40.0


def _log_marginal_gaussian(mechanism, value, alpha, scale):
    alpha, scale, sigma, value = (as_float(x) for x in (alpha, scale, mechanism.sigma, value))
    p = alpha - 1
    slope = 1 / scale - value / sigma**2
    root = pt.sqrt(slope**2 + 4 * p / sigma**2)
    mode = pt.switch(
        slope > 0,
        2 * p / (pt.switch(slope > 0, slope, 0.0) + root),
        (root - slope) * sigma**2 / 2,
    )
    safe_p, r = pt.maximum(p, 1e-10), _FALL / pt.maximum(p, 1e-10)
    # With the mode at zero (a = 1) the log density falls linearly there.
    up = pt.minimum(
        pt.switch(mode > 0, np.inf, _FALL / pt.maximum(slope, 1e-300)), sigma * (2 * _FALL) ** 0.5
    )
    up = pt.minimum(up, pt.switch(mode > 0, mode * (r + pt.sqrt(2 * r)), np.inf))
    down = pt.minimum(
        pt.minimum(sigma * (2 * _FALL) ** 0.5, mode * pt.sqrt(2 * _FALL / safe_p)), mode
    )
    # Near zero the density behaves like s^p: nodes at powers of u make it smooth.
    k_down = pt.switch(pt.ge(down, mode), 4.0, 1.0)
    k_up = pt.switch(mode < up / 10, 4.0, 1.0)
    mode, up, down, k_up, k_down = (
        disconnected_grad(x)[..., None] for x in (mode, up, down, k_up, k_down)
    )
    u = (1 + _NODES) / 2
    nodes = pt.concatenate([mode + up * u**k_up, mode - down * (1 - u**k_down)], axis=-1)
    widths = pt.concatenate(
        [
            up * _WEIGHTS / 2 * k_up * u ** (k_up - 1),
            down * _WEIGHTS / 2 * k_down * u ** (k_down - 1),
        ],
        axis=-1,
    )
    a, b, s, z = (x[..., None] for x in (alpha, 1 / scale, sigma, value))
    terms = (
        pm.logp(pm.Gamma.dist(a, b), pt.maximum(nodes, 1e-300))
        + pm.logp(pm.Normal.dist(nodes, s), z)
        + pt.log(pt.maximum(widths, 1e-300))
    )
    # For alpha below 1 the density has a pole at zero, which these nodes do not resolve.
    return check_parameters(
        pt.logsumexp(terms, axis=-1), alpha >= 1, msg="alpha >= 1 under Gaussian noise"
    )


def _require_shape_one(alpha, scale):
    """Refuse alpha below one, where the density has a pole and is not log-concave."""
    value = known_value(alpha)
    if value is None or np.any(value < 1):
        description = "random" if value is None else f"{np.min(value):g}"
        raise Declined(
            f"a Gamma statistic under GaussianMechanism needs a number alpha >= 1; it is "
            f"{description}"
        )


@njit(cache=True, nogil=True, error_model="numpy")
def _draw_laplace(rng, z, noise, lo, hi, alpha, scale):
    return draw_tilted_gamma(rng, alpha, 1.0 / scale, 1.0 / noise, z, lo, hi)


@njit(cache=True, nogil=True, error_model="numpy")
def _draw_laplace_exponential(rng, z, noise, lo, hi, scale):
    return draw_tilted_gamma(rng, 1.0, 1.0 / scale, 1.0 / noise, z, lo, hi)


@njit(cache=True, nogil=True, error_model="numpy")
def _draw_gaussian(rng, z, noise, lo, hi, alpha, scale):
    return draw_log_concave(
        rng, alpha - 1.0, 1.0 / scale, 1.0 / (noise * noise), z, 0.0, 0.0, max(lo, 0.0), hi
    )


@njit(cache=True, nogil=True, error_model="numpy")
def _draw_gaussian_exponential(rng, z, noise, lo, hi, scale):
    return draw_log_concave(
        rng, 0.0, 1.0 / scale, 1.0 / (noise * noise), z, 0.0, 0.0, max(lo, 0.0), hi
    )


register_laplace(GammaRV, _draw_laplace, ((21.0, 0.012), (0.5, 2.0), (1.0, 0.4), (4.0, 30.0)))
register_laplace(ExponentialRV, _draw_laplace_exponential, ((0.3,), (20.0,)))
register_pair(
    Pair(
        GammaRV,
        GaussianMechanism,
        _log_marginal_gaussian,
        _draw_gaussian,
        ((21.0, 0.012), (1.001, 0.4), (4.0, 30.0), (1.5, 1e-3)),
        _require_shape_one,
        slow=True,
    )
)
register_pair(
    Pair(
        ExponentialRV,
        GaussianMechanism,
        lambda mechanism, value, scale: _log_marginal_gaussian(mechanism, value, 1.0, scale),
        _draw_gaussian_exponential,
        ((0.3,), (20.0,)),
    )
)
