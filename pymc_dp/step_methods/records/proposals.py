"""Drawing many records of one law at once, where that can be faster than one by one."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.continuous import TruncatedNormalRV
from pymc.distributions.truncated import TruncatedRV
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_default_op_cache_key
from pytensor.tensor.random.basic import PoissonRV
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.registry import ability
from pymc_dp.kernels import version_of
from pymc_dp.kernels.draws.poisson import draw_poisson
from pymc_dp.laws.tails import Tails, cut_law, cut_quantile, is_two_tailed


@ability
def proposals(op, rv: TensorVariable, n: int) -> TensorVariable:
    """Return a graph that draws n records as `rv` does, or `rv`; dispatched on the law's op."""
    return rv


class PoissonDraws(Op):
    """Vector of Poisson numbers of one rate; the generator moves on in place."""

    __props__ = ()

    def make_node(self, rng, rate, n):
        """Take a generator, a scalar rate, the number of draws."""
        rate, n = pt.as_tensor(rate).astype("float64"), pt.as_tensor(n).astype("int64")
        return Apply(self, [rng, rate, n], [pt.lvector()])

    def perform(self, node, inputs, outputs):
        """Draw with numpy."""
        rng, rate, n = inputs
        outputs[0][0] = rng.poisson(rate, size=int(n))


@register_funcify_default_op_cache_key(PoissonDraws)
def _poisson_draws(op, node, **kwargs):
    @numba_njit
    def poisson_draws(rng, rate, n):
        return draw_poisson(rng, rate.item(), n.item())

    return poisson_draws, version_of(poisson_draws)


@proposals.register
def _poisson(op: PoissonRV, rv, n):
    [rate] = op.dist_params(rv.owner)
    if rv.type.ndim != 1 or not all(rate.type.broadcastable):
        return rv
    drawn = PoissonDraws()(op.rng_param(rv.owner), rate.squeeze(), np.int64(n))
    return drawn.astype(rv.dtype)


@proposals.register(TruncatedRV)
@proposals.register(TruncatedNormalRV)
def _truncated(op, rv, n):
    # PyMC inverts lower tail probabilities: in an upper tail they round to one, which gives inf. It
    # draws a truncated Normal outside of compiled code.
    cut = cut_law(rv)
    if not is_two_tailed(cut.law.owner.op):
        return rv
    [rng] = [i for i in rv.owner.inputs if isinstance(i.type, RandomType)]
    shape = rv.shape if None in rv.type.shape else rv.type.shape
    u = pt.random.uniform(size=shape, rng=rng, return_next_rng=True)[1]
    return cut_quantile(cut, Tails(pt.log(u), pt.log1p(-u))).astype(rv.dtype)
