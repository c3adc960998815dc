"""Gamma and Exponential statistics under Laplace noise (the truncated gamma mixture) and Gaussian.

Under Gaussian noise the marginal has no elementary form: it is that of the general rule. Given a
release a statistic is drawn exactly for a shape of at least one, where its law is log-concave.
"""

from functools import partial

import numpy as np
from pytensor.tensor.random.basic import ExponentialRV, GammaRV

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.values import known_value
from pymc_dp.kernels import njit
from pymc_dp.kernels.draws.log_concave import draw_log_concave, draw_tilted_gamma
from pymc_dp.laws import Pair, find_pair, register_pair
from pymc_dp.laws.tilting import register_laplace
from pymc_dp.mechanisms import GaussianMechanism


def _by_quadrature(law, mechanism, value, *parameters):
    return find_pair(law, mechanism).log_marginal(mechanism, value, *parameters)


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
        partial(_by_quadrature, GammaRV()),
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
        partial(_by_quadrature, ExponentialRV()),
        _draw_gaussian_exponential,
        ((0.3,), (20.0,)),
        slow=True,
    )
)
