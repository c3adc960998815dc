"""Whether an expression is linear in a variable, by the ops on the way."""

from __future__ import annotations

from pytensor.scalar import basic as ps
from pytensor.tensor.basic import Join, MakeVector
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot, Sum
from pytensor.tensor.shape import Reshape
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor, Subtensor
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.questions import depends_on, keeps_values, varies_with


def is_linear(entry: TensorVariable, rv: TensorVariable) -> bool:
    """Decide linearity by the ops on the way: sums, and products and quotients with constants."""
    if entry is rv or not depends_on(entry, rv):
        return True
    node = entry.owner
    touched = [i for i in node.inputs if depends_on(i, rv)]
    if isinstance(node.op, DimShuffle) or keeps_values(node.op, node.inputs[0]):
        return touched == node.inputs[:1] and is_linear(node.inputs[0], rv)
    if not isinstance(node.op, Elemwise) or not all(is_linear(i, rv) for i in touched):
        return False
    match node.op.scalar_op:
        case ps.Add() | ps.Sub() | ps.Neg():
            return True
        case ps.Mul():
            return len(touched) == 1
        case ps.TrueDiv():
            return touched == [node.inputs[0]]
    return False


def is_linear_in(entry: TensorVariable, rv: TensorVariable) -> bool:
    """Decide linearity by the ops on the way; entries of `rv` may be picked, summed and stacked."""
    if entry is rv or not varies_with(entry, rv):
        return True
    node = entry.owner
    touched = [i for i in node.inputs if varies_with(i, rv)]
    if not all(is_linear_in(i, rv) for i in touched):
        return False
    match getattr(node.op, "scalar_op", node.op) if isinstance(node.op, Elemwise) else node.op:
        case DimShuffle() | Subtensor() | AdvancedSubtensor() | Sum() | Reshape():
            return touched == [node.inputs[0]]
        case op if keeps_values(op, node.inputs[0]):
            return touched == [node.inputs[0]]
        case AdvancedIncSubtensor() as op:
            return not op.set_instead_of_inc and not set(touched) - set(node.inputs[:2])
        case MakeVector() | Join() | ps.Add() | ps.Sub() | ps.Neg():
            return True
        case ps.Mul() | Dot():
            return len(touched) == 1
        case ps.TrueDiv():
            return touched == [node.inputs[0]]
    return False
