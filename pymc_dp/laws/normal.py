"""A Normal statistic under Laplace noise (two-sided tilting) and Gaussian noise (conjugate)."""

import math

import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.random.basic import NormalRV

from pymc_dp.kernels import njit
from pymc_dp.kernels.draws.log_concave import draw_tilted_normal
from pymc_dp.laws import Pair, register_pair
from pymc_dp.laws.tilting import register_laplace
from pymc_dp.mechanisms import GaussianMechanism
from pymc_dp.mechanisms.arguments import as_float


@njit(cache=True, nogil=True, error_model="numpy")
def _draw_laplace(rng, z, scale, lo, hi, mu, sigma):
    return draw_tilted_normal(rng, mu, sigma * sigma, 1.0 / scale, z, lo, hi)


def _log_marginal_gaussian(mechanism, value, mu, sigma):
    sigma, noise = as_float(sigma), as_float(mechanism.sigma)
    return pm.logp(pm.Normal.dist(as_float(mu), pt.sqrt(sigma**2 + noise**2)), value)


@njit(cache=True, nogil=True, error_model="numpy")
def _draw_gaussian(rng, z, noise, lo, hi, mu, sigma):
    gain = 1.0 / (1.0 + (noise / sigma) ** 2)
    mean, sd = mu + gain * (z - mu), noise * math.sqrt(gain)
    if lo == -math.inf and hi == math.inf:
        return mean + sd * rng.standard_normal()
    return draw_tilted_normal(rng, mean, sd * sd, 0.0, 0.0, lo, hi)


_EXAMPLES = ((0.3, 1.2), (-5.0, 0.01))

register_laplace(NormalRV, _draw_laplace, _EXAMPLES)
register_pair(Pair(NormalRV, GaussianMechanism, _log_marginal_gaussian, _draw_gaussian, _EXAMPLES))
