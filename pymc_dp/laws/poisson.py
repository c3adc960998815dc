"""Poisson counts under Laplace and two-sided geometric noise; see `kernels.counts.poisson`."""

import math

import pytensor.tensor as pt
from pytensor.tensor.random.basic import PoissonRV

from pymc_dp.graphs.ops import KernelOp
from pymc_dp.kernels.counts.poisson import draw_poisson_two_sided, poisson_two_sided
from pymc_dp.laws import Pair, register_pair
from pymc_dp.mechanisms import GeometricMechanism, LaplaceMechanism
from pymc_dp.mechanisms.arguments import as_float

_EXAMPLES = ((0.02,), (3.5,), (140.0,))


class PoissonTwoSided(KernelOp):
    """Sum of a Poisson mass times two-sided exponential noise.

    Inputs are the whole part of the release and the rate of the noise, without derivatives, then
    the fractional part of the release and the rate of the law.
    """

    nin, fixed = 4, 2
    kernel = staticmethod(poisson_two_sided)


def _log_marginal_laplace(mechanism, value, mu):
    k, lam = pt.floor(as_float(value)), 1.0 / mechanism.scale
    return pt.log(0.5 * lam) + PoissonTwoSided.apply(k, lam, value - k, mu)


def _log_marginal_geometric(mechanism, value, mu):
    value, lam = as_float(value), 1.0 / mechanism.scale
    whole = pt.eq(value, pt.floor(value))
    logp = pt.log(pt.tanh(0.5 * lam)) + PoissonTwoSided.apply(
        pt.switch(whole, value, 0), lam, 0.0, mu
    )
    return pt.switch(whole, logp, -math.inf)


for _mechanism, _log_marginal in (
    (LaplaceMechanism, _log_marginal_laplace),
    (GeometricMechanism, _log_marginal_geometric),
):
    register_pair(Pair(PoissonRV, _mechanism, _log_marginal, draw_poisson_two_sided, _EXAMPLES))
