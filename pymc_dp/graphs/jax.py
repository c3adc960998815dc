"""The package's ops in JAX: callbacks to their compiled kernels.

PyTensor asks for this module when it compiles a graph to JAX; see `graphs.to_jax`.
"""

from __future__ import annotations

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytensor.tensor as pt
from jax.custom_derivatives import SymbolicZero
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.fg import FunctionGraph
from pytensor.link.jax.dispatch import jax_funcify
from pytensor.scalar.basic import float64
from pytensor.tensor.elemwise import Elemwise

from pymc_dp.graphs.compiled import from_graph, from_source
from pymc_dp.graphs.ops import Held, HostOp, KernelOp


@lru_cache(maxsize=256)
def _compiled(op, types):
    # Not a PyTensor function, which stores its inputs: chains may call this at the same time.
    inputs = [t() for t in types]
    inner = from_graph(inputs, op(*inputs, return_list=True))
    return from_source("on_host", "*inputs", "inner(*inputs)", inner=inner).function


def _differentiable(op, node, call):
    """Give a JAX function, which computes a node's outputs, the gradient of the node's op."""
    evaluate = jax.custom_vjp(call)

    def forward(*inputs):
        inputs = tuple(x.value for x in inputs)
        outputs = evaluate(*inputs)
        return outputs, (inputs, outputs)

    def backward(kept, cotangents):
        inputs, outputs = ([v.type() for v in part] for part in (node.inputs, node.outputs))
        connected = [not isinstance(g, SymbolicZero) for g in cotangents]
        seeds = [v.type() if c else disconnected_type() for v, c in zip(outputs, connected, strict=True)]  # fmt: skip  # noqa: E501
        gradients = op.pullback(inputs, outputs, seeds)
        moved = [not isinstance(g.type, DisconnectedType) for g in gradients]
        if not any(moved):
            return (None,) * len(moved)
        graph = FunctionGraph(
            [*inputs, *outputs, *(s for s, c in zip(seeds, connected, strict=True) if c)],
            [g for g, m in zip(gradients, moved, strict=True) if m],
            clone=False,
        )
        values = [*kept[0], *kept[1], *(g for g, c in zip(cotangents, connected, strict=True) if c)]
        results = iter(jax_funcify(graph)(*values))
        return tuple(jnp.asarray(next(results)) if m else None for m in moved)

    # Symbolic zeros mark outputs that are not used, as PyTensor's disconnected gradients do.
    evaluate.defvjp(forward, backward, symbolic_zeros=True)
    return evaluate


def _doubles(inputs):
    if not jax.config.jax_enable_x64:
        raise TypeError("pymc_dp needs double precision: set pytensor.config.floatX = 'float64'")
    return [jnp.asarray(x, dtype="float64") for x in inputs]


@jax_funcify.register(KernelOp)
def _jax_funcify_kernel_op(op, **kwargs):
    function = _compiled(Elemwise(op), (pt.dvector,) * op.nin)

    def on_host(*inputs):
        outputs = function(*(np.array(x).ravel() for x in inputs))
        return tuple(np.reshape(o, inputs[0].shape) for o in outputs)

    def call(*inputs):
        shapes = (jax.ShapeDtypeStruct(inputs[0].shape, "float64"),) * op.nout
        return jax.pure_callback(on_host, shapes, *inputs, vmap_method="broadcast_all")

    evaluate = _differentiable(op, op.make_node(*(float64() for _ in range(op.nin))), call)

    def kernel_op(*inputs):
        outputs = evaluate(*jnp.broadcast_arrays(*_doubles(inputs)))
        return outputs if op.nout > 1 else outputs[0]

    return kernel_op


@jax_funcify.register(HostOp)
def _jax_funcify_host_op(op, node, **kwargs):
    if hasattr(op, "in_jax"):
        return op.in_jax
    function = _compiled(op, tuple(v.type for v in node.inputs))

    def on_host(*inputs):
        return tuple(function(*(np.array(x) for x in inputs)))

    def call(*inputs):
        known = op.make_node(*(pt.tensor(dtype="float64", shape=x.shape) for x in inputs))
        shapes = tuple(jax.ShapeDtypeStruct(o.type.shape, "float64") for o in known.outputs)
        return jax.pure_callback(on_host, shapes, *inputs, vmap_method="sequential")

    evaluate = _differentiable(op, node, call)

    def tensor_op(*inputs):
        outputs = evaluate(*_doubles(inputs))
        return outputs if len(outputs) > 1 else outputs[0]

    return tensor_op


@jax_funcify.register(Held)
def _jax_funcify_held(op, **kwargs):
    return jax.lax.stop_gradient
