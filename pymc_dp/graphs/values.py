"""What the values of a graph are computed from, and which of them are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.logprob.abstract import MeasurableOp
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.compile.ops import ViewOp
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.graph.traversal import ancestors, toposort, walk
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar import basic as ps
from pytensor.tensor.basic import Alloc, Join, MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.math import Dot
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
)
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, notice


class _Inline(GraphRewriter):
    """Inline every `OpFromGraph`: PyTensor would compile it with C, whatever the mode."""

    def apply(self, fgraph):
        while nodes := [n for n in fgraph.apply_nodes if isinstance(n.op, OpFromGraph)]:
            for node in nodes:
                fgraph.replace_all(zip(node.outputs, inline_ofg_node(node), strict=True))


# Evaluates the small graphs of a reading in Python: to compile them would take longer.
PLAIN_MODE = Mode(linker="py", optimizer=None).register((_Inline(), -0.02))


def is_random(variable: Variable) -> bool:
    """Whether a variable is the direct output of a random variable's op."""
    return variable.owner is not None and isinstance(
        variable.owner.op, RandomVariable | MeasurableOp
    )


def all_rvs(expressions: Sequence[Variable]) -> list[Variable]:
    """Return the random variables that the expressions are computed from, past others too."""
    return [v for v in ancestors(expressions) if is_random(v)]


def nearest_rvs(expressions: Sequence[Variable]) -> list[Variable]:
    """Return the random variables that the expressions are computed from, not looking past them."""

    def expand(variable):
        if is_random(variable) or variable.owner is None:
            return None
        return variable.owner.inputs

    rvs = [v for v in walk(expressions, expand, bfs=False) if is_random(v)]
    return list(dict.fromkeys(rvs))


def public_data(expressions: Sequence[Variable]) -> list[SharedVariable]:
    """Return the `pm.Data` that expressions are computed from, not looking past RVs."""
    sources = ancestors(expressions, blockers=nearest_rvs(expressions))
    return [
        v for v in sources if isinstance(v, SharedVariable) and not isinstance(v.type, RandomType)
    ]


def depends_on(expression: Variable, variable: Variable) -> bool:
    """Whether `expression` is computed from `variable`, not looking past other RVs."""
    return variable in nearest_rvs([expression])


def known_value(graph: Variable, *, fixed: bool = False) -> np.ndarray | None:
    """Return the value of a graph; None if it depends on random or unknown variables.

    The current values of `pm.Data` count as known. With ``fixed`` they do not: they may change.
    """
    roots = [v for v in ancestors([graph]) if v.owner is None]
    kinds = Constant if fixed else Constant | SharedVariable
    # Every draw, one inside a Scan too, has a random generator among its roots.
    if not all(isinstance(r, kinds) and not isinstance(r.type, RandomType) for r in roots):
        return None
    if any(isinstance(r, SharedVariable) for r in roots):
        notice(*valued(graph))
    if isinstance(graph, Constant):
        return np.asarray(graph.data)
    if isinstance(graph, SharedVariable):
        return np.asarray(graph.get_value(borrow=True))
    try:
        [value] = _computed([graph], {})
        return np.array(value)
    except NotImplementedError:  # an op that is no function of values, `ifelse` say
        return np.asarray(graph.eval(mode=PLAIN_MODE))


def plain_function(inputs: Sequence[Variable], outputs) -> Callable:
    """Return a function that is evaluated node by node, without compilation."""
    return pytensor.function(list(inputs), outputs, mode=PLAIN_MODE, on_unused_input="ignore")


def noticed_function(inputs: Sequence[Variable], outputs) -> Callable:
    """Return a plain function for use in a reading; its data are noticed, see `notice`."""
    notice(*public_data([outputs] if isinstance(outputs, Variable) else outputs))
    return plain_function(inputs, outputs)


def valued(graph: Variable) -> list[SharedVariable]:
    """Return the shared variables whose values, not only their shapes, a graph uses."""

    def expand(variable: Variable):
        node = variable.owner
        return None if node is None or isinstance(node.op, Shape | Shape_i) else node.inputs

    return [v for v in walk([graph], expand) if isinstance(v, SharedVariable)]


def _computed(graphs: Sequence[Variable], known: Mapping[Variable, Any]) -> list[Any]:
    """Evaluate graphs op by op, which is faster than to make a function of them."""
    computed = dict(known)

    def value(variable: Variable):
        if variable in computed:
            return computed[variable]
        return variable.data if isinstance(variable, Constant) else variable.get_value(borrow=True)

    for node in toposort(graphs):
        if isinstance(node.op, OpFromGraph):
            inner = dict(zip(node.op.fgraph.inputs, map(value, node.inputs), strict=True))
            outputs = _computed(node.op.fgraph.outputs, inner)
            computed |= dict(zip(node.outputs, outputs, strict=True))
            continue
        if not hasattr(node.op, "perform") or node.op.destroy_map:
            raise NotImplementedError
        node.op.prepare_node(node, None, None, "py")
        storage: list[list] = [[None] for _ in node.outputs]
        node.op.perform(node, [value(i) for i in node.inputs], storage)
        computed |= dict(zip(node.outputs, [s[0] for s in storage], strict=True))
    return [value(graph) for graph in graphs]


def keeps_values(op: Op, operand: Variable | str) -> bool:
    """Whether an op returns its first input, or any input of this dtype, unchanged.

    A cast does if `read_cast` says so. The sizes of whole numbers are not known here: a new
    dtype of integers has to hold every one of the old.
    """
    dtype = operand if isinstance(operand, str) else getattr(operand.type, "dtype", None)
    match getattr(op, "scalar_op", op):
        case ps.Identity() | ViewOp() | SpecifyShape() | CheckAndRaise():
            return True
        case TensorFromScalar() | ScalarFromTensor():
            return True
        case ps.Cast() as cast if dtype is not None:
            target = cast.o_type.dtype
            cut = target == "int64" and np.dtype(dtype).kind == "f"
            holds = cut or target in ("float32", "float64") or np.can_cast(dtype, target)
            return holds and read_cast(cast, operand) is None
        case ps.Floor() | ps.Ceil() | ps.Trunc() if dtype is not None:
            return np.dtype(dtype).kind in "biu"
    return False


def read_cast(cast: ps.Cast, operand: Variable | str) -> Callable | None:
    """Return the function of a number that a cast is; None where it changes no value.

    Whole numbers are taken to fit into integers of any size: `check_wraparound` refuses statistics
    in which they may not. Floats are taken to be numbers up to rounding, but those of 16 bits.
    """
    dtype = np.dtype(operand if isinstance(operand, str) else operand.type.dtype)
    target = np.dtype(cast.o_type.dtype)
    if target == dtype or dtype.kind == "b":
        return None
    if target.kind == "b":
        return lambda x: pt.neq(x, 0)
    if target.kind not in "iuf":
        raise Declined(f"a cast to {target} is no real number", instead="Write float64")
    if target.kind == "f":
        if target.itemsize < 4 and not np.can_cast(dtype, target):
            raise Declined(f"a cast to {target} rounds it", instead="Write float64 in its place")
        return None
    whole = not isinstance(operand, str) and is_whole(operand, fixed=True)
    return pt.trunc if dtype.kind == "f" and not whole else None


def is_whole(graph: Variable, *, fixed: bool = False) -> bool:
    """Whether every value of a graph is known to be a whole number.

    `pm.Data` counts with its current values; with ``fixed``, with any that it may take later.
    """

    def all_whole(graphs) -> bool:
        return all(is_whole(g, fixed=fixed) for g in graphs)

    if np.dtype(graph.type.dtype).kind in "biu":
        return True
    value, node = known_value(graph, fixed=fixed), graph.owner
    if value is not None:
        return bool(np.all(value == np.round(value)))
    if node is None:
        return False
    match getattr(node.op, "scalar_op", core_op(node.op)):
        case (
            ps.RoundHalfToEven() | ps.RoundHalfAwayFromZero() | ps.Floor() | ps.Ceil() | ps.Trunc()
        ):
            return True
        case ps.Add() | ps.Sub() | ps.Mul() | ps.Neg() | ps.Abs() | ps.Sqr() | Dot():
            return all_whole(node.inputs)
        case Join() | MakeVector() | ps.ScalarMaximum() | ps.ScalarMinimum():
            return all_whole(node.inputs)
        case ps.Switch():
            return all_whole(node.inputs[1:])
        case ps.Second():
            return all_whole(node.inputs[1:2])
        case IncSubtensor() | AdvancedIncSubtensor():
            return all_whole(node.inputs[:2])
        case Reshape() | DimShuffle() | Subtensor() | AdvancedSubtensor() | Alloc():
            return all_whole(node.inputs[:1])
        case ps.Identity() | ps.Cast() | ViewOp() | SpecifyShape() | CheckAndRaise():
            return all_whole(node.inputs[:1])
    return False


def core_op(op: Op) -> Op:
    """Return the op that `Blockwise` applies to each entry of a batch; any other op itself."""
    return getattr(op, "core_op", op)


def uncast(graph: TensorVariable) -> TensorVariable:
    """Return what has the same values behind casts and other ops that change none."""
    while (
        graph.owner and graph.owner.inputs and keeps_values(graph.owner.op, graph.owner.inputs[0])
    ):
        graph = graph.owner.inputs[0]
    return graph


def is_itself(expression: TensorVariable, rv: TensorVariable) -> bool:
    """Whether an expression is a variable unchanged, up to its dtype."""
    return uncast(expression) is uncast(rv)
