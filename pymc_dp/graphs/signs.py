"""Whether a graph has negative values."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.transforms import _default_transform
from pymc.logprob.transforms import IntervalTransform, LogOddsTransform, LogTransform
from pytensor.scalar import basic as ps
from pytensor.scalar.math import Sigmoid, Softplus
from pytensor.tensor.basic import Alloc, Join, MakeVector
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Sum
from pytensor.tensor.shape import Reshape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.values import is_random, known_value


def is_nonnegative(graph: TensorVariable) -> bool:
    """Whether a graph is known to have no negative values, by its ops and its variables."""
    value = known_value(graph, fixed=True)
    if value is not None:
        return bool(np.all(value >= 0))
    if is_random(graph):
        transform = _default_transform(graph.owner.op, graph)
        if isinstance(transform, IntervalTransform):
            lower = transform.args_fn(*graph.owner.inputs)[0]
            value = None if lower is None else known_value(lower, fixed=True)
            return value is not None and bool(np.all(value >= 0))
        return isinstance(transform, LogTransform | LogOddsTransform)
    node = graph.owner
    if node is None:
        return False
    match getattr(node.op, "scalar_op", node.op):
        case ps.Exp() | ps.Sqr() | ps.Sqrt() | ps.Abs() | Sigmoid() | Softplus():
            return True
        case ps.Add() | ps.Mul() | ps.TrueDiv() | ps.Sign() if isinstance(node.op, Elemwise | Sum):
            return all(map(is_nonnegative, node.inputs))
        case ps.Pow():
            power = known_value(node.inputs[1], fixed=True)
            even = power is not None and bool(np.all(power % 2 == 0))
            return even or is_nonnegative(node.inputs[0])
        case ps.ScalarMaximum() if isinstance(node.op, Elemwise):
            return any(map(is_nonnegative, node.inputs))
        case MakeVector():
            return all(map(is_nonnegative, node.inputs))
        case Join():
            return all(map(is_nonnegative, node.inputs[1:]))
        case DimShuffle() | Subtensor() | AdvancedSubtensor() | Reshape() | Alloc() | ps.Cast():
            return is_nonnegative(node.inputs[0])
    return False


def nonnegative(parameter: TensorVariable) -> TensorVariable:
    """Return a parameter with NaN where it is negative: a square would hide its sign."""
    known = is_nonnegative(parameter)
    return parameter if known else pt.switch(parameter >= 0, parameter, np.nan)
