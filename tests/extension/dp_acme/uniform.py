"""A Uniform statistic under Laplace noise: its marginal, and its exact draw given the release."""

import math

import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.random.basic import UniformRV

from pymc_dp.kernels import njit
from pymc_dp.laws import Pair, register_pair
from pymc_dp.mechanisms import LaplaceMechanism
from pymc_dp.mechanisms.arguments import as_float


def _log_marginal(mechanism, value, lower, upper):
    """Log of (F(upper) - F(lower)) / (upper - lower), F the distribution function of the noise."""
    lower, upper = as_float(lower), as_float(upper)  # small constants are in single precision
    a, b = lower - value, upper - value
    a, b = pt.switch(a > 0, -b, a), pt.switch(a > 0, -a, b)  # the lower tail keeps its digits
    law = pm.Laplace.dist(0.0, mechanism.scale)
    return pm.math.logdiffexp(pm.logcdf(law, b), pm.logcdf(law, a)) - pt.log(upper - lower)


@njit(cache=True, nogil=True, error_model="numpy")
def _draw(rng, z, scale, lo, hi, lower, upper):
    """Draw from the noise around z, cut to where the statistic can be."""
    a, b = (max(lo, lower) - z) / scale, (min(hi, upper) - z) / scale
    sign = 1.0
    if a > 0.0:
        a, b, sign = -b, -a, -1.0
    below = 0.5 * math.exp(a)
    above = 0.5 * math.exp(b) if b <= 0.0 else 1.0 - 0.5 * math.exp(-b)
    u = below + (above - below) * rng.random()
    x = math.log(2.0 * u) if u <= 0.5 else -math.log(2.0 * (1.0 - u))
    return z + sign * scale * min(max(x, a), b)


UNIFORM_LAPLACE = register_pair(
    Pair(UniformRV, LaplaceMechanism, _log_marginal, _draw, examples=((0.0, 2.0), (-3.0, 40.0)))
)
