"""Gamma and Exponential statistics under Laplace noise: the truncated gamma mixture."""

from pytensor.tensor.random.basic import ExponentialRV, GammaRV

from pymc_dp.kernels import njit
from pymc_dp.kernels.draws.log_concave import draw_tilted_gamma
from pymc_dp.laws.tilting import register_laplace


@njit(cache=True, nogil=True, error_model="numpy")
def _draw_laplace(rng, z, noise, lo, hi, alpha, scale):
    return draw_tilted_gamma(rng, alpha, 1.0 / scale, 1.0 / noise, z, lo, hi)


@njit(cache=True, nogil=True, error_model="numpy")
def _draw_laplace_exponential(rng, z, noise, lo, hi, scale):
    return draw_tilted_gamma(rng, 1.0, 1.0 / scale, 1.0 / noise, z, lo, hi)


register_laplace(GammaRV, _draw_laplace, ((21.0, 0.012), (0.5, 2.0), (1.0, 0.4), (4.0, 30.0)))
register_laplace(ExponentialRV, _draw_laplace_exponential, ((0.3,), (20.0,)))
