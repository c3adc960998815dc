"""Numba kernels as elementwise PyTensor ops that come with their derivatives."""

from collections.abc import Callable

import pytensor.tensor as pt
from pytensor.compile import optdb
from pytensor.gradient import DisconnectedGrad, DisconnectedType
from pytensor.graph.basic import Apply
from pytensor.graph.features import ReplaceValidate
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.link.numba.dispatch import basic as numba_basic
from pytensor.link.numba.dispatch.scalar import register_scalar_funcify, scalar_op_cache_key
from pytensor.scalar.basic import ScalarOp, float64
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.variable import TensorVariable

from pymc_dp.kernels import version_of


class KernelOp(ScalarOp):
    """A scalar kernel with its value as first output and its derivatives as the others.

    Subclasses set `nin`, `kernel`, a compiled function of that many doubles, and `fixed`, the
    number of leading inputs without a derivative. All outputs share one evaluation: the gradient of
    the first *is* the other outputs of the same node. Second derivatives are not available.
    """

    kernel: Callable
    fixed: int = 0

    def __init_subclass__(cls, **kwargs):
        """Count the outputs."""
        super().__init_subclass__(**kwargs)
        cls.nout = 1 + cls.nin - cls.fixed
        cls.output_types_preference = staticmethod(lambda *_: [float64] * cls.nout)

    @classmethod
    def apply(cls, *inputs) -> TensorVariable:
        """Evaluate elementwise on tensors; small integers would have less than double precision."""
        return cls(name=cls.__name__).on(*inputs)

    def on(self, *inputs) -> TensorVariable:
        """Apply this instance elementwise, see `apply`."""
        outputs = Elemwise(self)(*(pt.cast(x, "float64") for x in inputs))
        return outputs[0] if self.nout > 1 else outputs

    @property
    def key(self) -> str | None:
        """Key of the kernel's code beside the class; None if it cannot be kept on disk."""
        return ""

    def impl(self, *inputs):
        """Evaluate in Python."""
        return self.kernel(*(float(x) for x in inputs))

    def pullback(self, inputs, outputs, output_gradients):
        """Return the gradients of the inputs."""
        first, *others = output_gradients
        if self.nout == 1 or not all(isinstance(g.type, DisconnectedType) for g in others):
            raise NotImplementedError(f"{self.name} has no second derivatives")
        none = [x.zeros_like(dtype="float64") for x in inputs[: self.fixed]]
        return none + [first * slope for slope in outputs[1:]]


@register_scalar_funcify(KernelOp)
def _numba_funcify_kernel_op(op, node, **kwargs):
    kernel = op.kernel

    @numba_basic.numba_njit
    def evaluate(*inputs):
        return kernel(*inputs)

    if op.key is None:
        return evaluate, None
    return evaluate, scalar_op_cache_key(op, kernel_version=version_of(__file__), kernel=op.key)


class Held(Op):
    """`disconnected_grad` for JAX: PyTensor rewrites its own away, and JAX derives through it."""

    __props__ = ()

    def make_node(self, x):
        """Apply to what no gradient passes."""
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, output_storage):
        """Return it as it is."""
        output_storage[0][0] = inputs[0]


class _ForJax(GraphRewriter):
    """Have JAX know the package's ops, without the package importing it."""

    def add_requirements(self, fgraph):
        """Make the graph's variables replaceable."""
        fgraph.attach_feature(ReplaceValidate())

    def apply(self, fgraph):
        """Register the ops, and keep what gradients must not pass."""
        import pymc_dp.laws.jax  # noqa: F401

        for node in fgraph.toposort():
            if isinstance(node.op, DisconnectedGrad):
                fgraph.replace(node.outputs[0], Held()(*node.inputs), reason="pymc_dp_jax")


# Rewrites of this name run on every graph that is compiled to JAX, and on no other; this one before
# PyTensor simplifies.
optdb.register("pymc_dp_jax", _ForJax(), "jax", position=0.05)
