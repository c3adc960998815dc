"""Register the package's ops with JAX when a graph is compiled to it, and not before."""

from pytensor.compile import optdb
from pytensor.gradient import DisconnectedGrad
from pytensor.graph.features import ReplaceValidate
from pytensor.graph.rewriting.basic import GraphRewriter

from pymc_dp.graphs.ops import Held


class _ForJax(GraphRewriter):
    """Register the package's ops with JAX, which the package itself does not import."""

    def add_requirements(self, fgraph):
        """Make the graph's variables replaceable."""
        fgraph.attach_feature(ReplaceValidate())

    def apply(self, fgraph):
        """Register the ops, and replace `DisconnectedGrad`, which PyTensor would remove."""
        import pymc_dp.graphs.jax  # noqa: F401

        for node in fgraph.toposort():
            if isinstance(node.op, DisconnectedGrad):
                fgraph.replace(node.outputs[0], Held()(*node.inputs), reason="pymc_dp_jax")


# Rewrites with the tag "jax" run on graphs that are compiled to JAX, and on no others. This one
# runs before PyTensor simplifies the graph.
optdb.register("pymc_dp_jax", _ForJax(), "jax", position=0.05)
