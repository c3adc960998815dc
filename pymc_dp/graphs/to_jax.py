"""Has JAX know the package's ops when a graph is compiled to it, and not before."""

from pytensor.compile import optdb
from pytensor.gradient import DisconnectedGrad
from pytensor.graph.features import ReplaceValidate
from pytensor.graph.rewriting.basic import GraphRewriter

from pymc_dp.graphs.ops import Held


class _ForJax(GraphRewriter):
    """Have JAX know the package's ops, without the package importing it."""

    def add_requirements(self, fgraph):
        """Make the graph's variables replaceable."""
        fgraph.attach_feature(ReplaceValidate())

    def apply(self, fgraph):
        """Register the ops, and keep what gradients must not pass."""
        import pymc_dp.graphs.jax  # noqa: F401

        for node in fgraph.toposort():
            if isinstance(node.op, DisconnectedGrad):
                fgraph.replace(node.outputs[0], Held()(*node.inputs), reason="pymc_dp_jax")


# Rewrites of this name run on every graph that is compiled to JAX, and on no other; this one before
# PyTensor simplifies.
optdb.register("pymc_dp_jax", _ForJax(), "jax", position=0.05)
