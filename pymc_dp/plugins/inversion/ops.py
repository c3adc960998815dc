"""The ops of the characteristic function marginal: where the nodes go, and the density."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.rewriting.basic import register_specialize

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.ops import Placement
from pymc_dp.laws.kernel_call import KernelCall, doubles
from pymc_dp.plugins.inversion.kernels import nodes as law_nodes
from pymc_dp.plugins.inversion.kernels.numbers import release, sparing_line, tiers


class Reaches(KernelCall, Placement):
    """How far the pieces of a law matter on either side; see `law_nodes.reaches`."""

    def make_node(self, y, g, h, target, tilt):
        """Apply to scouted points, log densities and statistics, and to what they may tilt to."""
        output = pt.TensorType("float64", shape=(y.type.shape[0], 2))()
        return Apply(self, doubles(y, g, h, target, tilt), [output])

    def call(self):
        """See `KernelCall.call`."""
        kernel = law_nodes.reaches

        def reaches(y, g, h, target, tilt):
            return kernel(y, g, h, target.item(), tilt.item())

        return reaches


class Panels(KernelCall, Placement):
    """Quadrature nodes, their log weights and cut ends; see `law_nodes.panels`."""

    __props__ = ("count",)

    def __init__(self, count: int):
        self.count = count

    def make_node(self, center, limit, reach, g, h, safe):
        """Apply to the pieces and to log densities and statistics on them."""
        pieces = center.type.shape[0]
        size = None if pieces is None else pieces * 2 * self.count * law_nodes.RULE
        outputs = [pt.vector(shape=(size,), dtype="float64") for _ in range(3)]
        return Apply(self, doubles(center, limit, reach, g, h, safe), outputs)

    def call(self):
        """See `KernelCall.call`."""
        kernel, count = law_nodes.panels, self.count

        def panels(center, limit, reach, g, h, safe):
            return kernel(center, limit, reach, g, h, count, safe.item())

        return panels


class ReleaseDensity(KernelCall):
    """Log density of a release, with its derivatives; see `inversion.kernels.numbers`.

    The first `few` nodes are tried first. `plain` says that no number is so small that it needs
    care; compiling is faster then. The gradient of the first output *is* the other outputs of the
    same node; where a graph uses none of them, it is compiled without, not `full`. Second
    derivatives are not available.
    """

    __props__ = ("few", "plain", "each", "full")

    def __init__(self, few: int, *, plain: bool, each: bool, full: bool = True):
        self.few, self.plain, self.each, self.full = few, plain, each, full

    def make_node(self, log_weight, h, cut, n, log_number, z, laplace, gaussian):
        """Apply to the nodes, the numbers of records, the release and the noise.

        All but n are vectors: `log_number` are log weights of n, n + 1, ... records, the last
        three have one entry for all of these numbers, or one for each.
        """
        inputs = doubles(log_weight, h, cut, n, log_number, z, laplace, gaussian)
        outputs = [pt.dscalar(), inputs[5].type(), inputs[0].type(), inputs[4].type()]
        return Apply(self, inputs, outputs)

    def connection_pattern(self, node):
        """Connect the log weights and the release to the density."""
        return [[i in (0, 4, 5), False, False, False] for i in range(8)]

    def pullback(self, inputs, outputs, cotangents):
        """Return the derivatives that came with the value."""
        if not self.full:
            raise Declined("the density was compiled without derivatives")
        first, *of_derivatives = cotangents
        if not all(isinstance(g.type, DisconnectedType) for g in of_derivatives):
            raise Declined("the density has no second derivatives")
        gradients = [disconnected_type() for _ in inputs]
        for i, of_input in zip((5, 0, 4), outputs[1:], strict=True):
            gradients[i] = first * of_input
        return gradients

    def call(self):
        """See `KernelCall.call`."""
        few, full = self.few, self.full
        if self.each:

            def density_of_each(log_weight, h, cut, n, log_number, z, laplace, gaussian):
                logp, by_z, by_node, by_number = release(
                    log_weight, h, cut, few, n.item(), log_number, z, laplace, gaussian
                )
                return np.asarray(logp), by_z, by_node, by_number

            return density_of_each
        kernel = tiers if self.plain else sparing_line

        def density(log_weight, h, cut, n, log_number, z, laplace, gaussian):
            logp, by_z, by_node, by_number = kernel(
                log_weight, h, cut, few, n.item(), log_number, z[0], laplace[0], gaussian[0], full
            )
            return np.asarray(logp), np.full(1, by_z), by_node, by_number

        return density


@register_specialize
@node_rewriter([Blockwise, ReleaseDensity])
def _without_derivatives(fgraph, node):
    """Compute no derivatives that nothing uses."""
    op, inputs = node.op, node.inputs
    core = op.core_op if isinstance(op, Blockwise) else op
    if type(core) is not ReleaseDensity or core.each or not core.full:
        return None
    if any(fgraph.clients[out] for out in node.outputs[1:]):
        return None
    value = ReleaseDensity(core.few, plain=core.plain, each=False, full=False)
    if isinstance(op, Blockwise):
        return Blockwise(value, signature=op.signature)(*inputs)
    return value(*inputs)
