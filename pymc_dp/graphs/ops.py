"""Numba kernels as PyTensor ops, elementwise ones with their derivatives."""

from collections.abc import Callable

import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch import basic as numba_basic
from pytensor.link.numba.dispatch.scalar import register_scalar_funcify, scalar_op_cache_key
from pytensor.scalar.basic import ScalarOp, float64
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.variable import TensorVariable

from pymc_dp.kernels import joined, key_of


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
        """Evaluate elementwise on tensors, in double precision whatever their dtypes."""
        return cls(name=cls.__name__).on(*inputs)

    def on(self, *inputs) -> TensorVariable:
        """Apply this instance elementwise, see `apply`."""
        outputs = Elemwise(self)(*(pt.cast(x, "float64") for x in inputs))
        return outputs[0] if self.nout > 1 else outputs

    @property
    def key(self) -> str | None:
        """Key of the kernel's code; None if it cannot be kept on disk."""
        return key_of(self.kernel)

    def impl(self, *inputs):
        """Evaluate in Python."""
        return self.kernel(*(float(x) for x in inputs))

    def pullback(self, inputs, outputs, output_gradients):
        """Return the gradients of the inputs."""
        first, *slope_gradients = output_gradients
        if self.nout == 1 or not all(isinstance(g.type, DisconnectedType) for g in slope_gradients):
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
    # The key covers this wrapper of the kernel.
    key = joined(op.key, key_of(_numba_funcify_kernel_op))
    return evaluate, scalar_op_cache_key(op, kernel=key)


class HostOp(Op):
    """An op of doubles whose compiled code JAX calls back, unless it has a method `in_jax`."""


class Placement(HostOp):
    """An op that returns positions, not values: no gradient passes through it."""

    __props__: tuple[str, ...] = ()

    def connection_pattern(self, node):
        """Disconnect every input."""
        return [[False] * len(node.outputs) for _ in node.inputs]

    def pullback(self, inputs, outputs, cotangents):
        """Return no gradient."""
        return [disconnected_type() for _ in inputs]


class Held(Op):
    """`disconnected_grad` for JAX: PyTensor removes its own, and JAX would pass the gradient."""

    __props__ = ()

    def make_node(self, x):
        """Stop the gradient of `x`."""
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, output_storage):
        """Return the input."""
        output_storage[0][0] = inputs[0]
