"""Whether integer arithmetic in a graph can exceed its dtype, and wrap around."""

from __future__ import annotations

import math

import numpy as np
from pymc.distributions.discrete import DiscreteUniformRV
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.scalar import basic as ps
from pytensor.tensor.basic import Alloc, Join, MakeVector
from pytensor.tensor.elemwise import CAReduce, DimShuffle
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import Dot, Prod, Sum
from pytensor.tensor.random.basic import BernoulliRV, BinomialRV, CategoricalRV, MultinomialRV
from pytensor.tensor.shape import Reshape
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
)
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.shapes import known_shape
from pymc_dp.graphs.values import keeps_values, known_value, nearest_rvs

Range = tuple[float, float]
_ALL: Range = (-math.inf, math.inf)
_COUNT = 2.0**24  # bound on counts in int32, so that a few may be added up


def check_wraparound(name: str, statistic: TensorVariable) -> None:
    """Refuse a statistic in which integers of few bits can wrap around.

    Raises
    ------
    ValueError
        Naming the release, the operation and its type.
    """
    ranges: dict[Variable, Range] = {}
    rvs = nearest_rvs([statistic])
    inputs = [*rvs, *(v for v in ancestors([statistic], blockers=rvs) if v.owner is None)]
    for node in toposort([statistic], blockers=inputs):
        exact = _range_of(node, ranges)
        for output in node.outputs:
            limits = _limits(output)
            ranges[output] = max(exact[0], limits[0]), min(exact[1], limits[1])
            if not _is_narrow(output) or (limits[0] <= exact[0] and exact[1] <= limits[1]):
                continue
            instead = 'Write .astype("int64") on its inputs'
            if isinstance(getattr(node.op, "scalar_op", None), ps.Cast):
                if output.type.dtype == "int32":  # no count is that large
                    ranges[output] = -_COUNT, _COUNT
                    continue
                what = f"a cast to {output.type.dtype}"
                instead = 'Write .astype("int64") in its place'
            else:
                op = getattr(node.op, "scalar_op", node.op)
                what = f"`{getattr(op, 'name', None) or type(op).__name__}` in {output.type.dtype}"
            raise ValueError(
                f"{name!r}: {what} in the statistic can wrap around: its values may go from "
                f"{exact[0]:g} to {exact[1]:g}. {instead}"
            )


def _is_narrow(variable: Variable) -> bool:
    """Whether a variable has integers of less than 64 bits, or unsigned ones."""
    dtype = getattr(variable.type, "dtype", None)
    return dtype is not None and np.dtype(dtype).kind in "iu" and dtype != "int64"


def _limits(variable: Variable) -> Range:
    dtype = np.dtype(getattr(variable.type, "dtype", None) or "float64")
    if dtype.kind == "b":
        return 0.0, 1.0
    if _is_narrow(variable):
        return float(np.iinfo(dtype).min), float(np.iinfo(dtype).max)
    return _ALL


def _leaf(variable: Variable) -> Range:
    """Return the range of an input of the graph; for data, which may change, by their dtype."""
    if isinstance(variable, SharedVariable) and variable.type.dtype == "int32":
        return -_COUNT, _COUNT  # the dtype in which pm.Data holds whole numbers
    if isinstance(variable, Constant) and np.size(variable.data):
        try:
            data = np.asarray(variable.data, dtype="float64")
        except (TypeError, ValueError):  # a slice, a generator
            return _ALL
        return float(data.min()), float(data.max())
    if variable.owner is not None:
        node = variable.owner
        match node.op:
            case BernoulliRV():
                return 0.0, 1.0
            case DiscreteUniformRV():
                ends = [known_value(p, fixed=True) for p in node.op.dist_params(node)]
                known = [e for e in ends if e is not None]
                return (float(known[0].min()), float(known[1].max())) if len(known) == 2 else _ALL
            case CategoricalRV():
                cells = known_shape(node.op.dist_params(node)[0])[-1]
                return (0.0, cells - 1.0) if cells is not None else _ALL
            case BinomialRV() | MultinomialRV():
                trials = known_value(node.op.dist_params(node)[0], fixed=True)
                return (0.0, float(trials.max())) if trials is not None else _ALL
    return _limits(variable)


def _range_of(node: Apply, ranges: dict[Variable, Range]) -> Range:
    """Return the range of the values if they did not wrap around."""
    parts = [ranges[i] if i in ranges else _leaf(i) for i in node.inputs]
    op = getattr(node.op, "scalar_op", node.op)
    if isinstance(node.op, CAReduce):
        shape = known_shape(node.inputs[0])
        axes = range(len(shape)) if node.op.axis is None else node.op.axis
        lengths = [shape[a] for a in axes] if shape else []  # a single value has an axis 0, too
        n = math.inf if None in lengths else math.prod(length or 0 for length in lengths)
        if isinstance(node.op, Prod):
            return _ALL if _is_narrow(node.outputs[0]) else _of_type(node)
        if not isinstance(node.op, Sum):
            return _of_type(node)
        if n == math.inf and node.outputs[0].type.dtype == "uint64" and parts[0][0] >= 0.0:
            return _of_type(node)  # a sum of unknown length is taken to fit into 2**64
        return _times(parts[0], (n, n))
    match op:
        case ps.Add():
            return sum(low for low, _ in parts), sum(high for _, high in parts)
        case ps.Sub():
            return parts[0][0] - parts[1][1], parts[0][1] - parts[1][0]
        case ps.Mul():
            total = parts[0]
            for part in parts[1:]:
                total = _times(total, part)
            return total
        case ps.Neg():
            return -parts[0][1], -parts[0][0]
        case ps.Abs() | ps.Sqr() | ps.Pow() if not isinstance(op, ps.Pow) or parts[1] == (2.0, 2.0):
            low, high = sorted(abs(e) for e in parts[0])
            low = 0.0 if parts[0][0] <= 0.0 <= parts[0][1] else low
            return (low, high) if isinstance(op, ps.Abs) else (low * low, high * high)
        case ps.Mod() if parts[1][0] > 0.0:
            return 0.0, parts[1][1]
        case ps.Sign():
            return -1.0, 1.0
        case ps.Switch():
            return _union(parts[1:])
        case ps.ScalarMaximum() | ps.ScalarMinimum():
            pick = max if isinstance(op, ps.ScalarMaximum) else min
            return pick(low for low, _ in parts), pick(high for _, high in parts)
        case ps.Clip():
            return parts[1][0], parts[2][1]
        case ps.Second():
            return parts[1]
        case ps.Cast():
            if node.outputs[0].type.dtype == "bool":
                return 0.0, 1.0
            return tuple(np.trunc(parts[0])) if node.outputs[0].type.dtype[0] in "iu" else parts[0]
        case CumOp() if op.mode == "add" and None not in known_shape(node.inputs[0]):
            length = math.prod(n or 0 for n in known_shape(node.inputs[0]))
            return _union([_times(parts[0], (1.0, 1.0)), _times(parts[0], (length, length))])
        case CumOp() | ps.Pow():
            return _of_type(node) if not _is_narrow(node.outputs[0]) else _ALL
        case op if isinstance(getattr(op, "core_op", op), Dot):
            return _of_type(node) if not _is_narrow(node.outputs[0]) else _ALL
        case DimShuffle() | Subtensor() | AdvancedSubtensor() | Reshape() | Alloc():
            return parts[0]
        case Join() | MakeVector():
            return _union(parts)
        case IncSubtensor() | AdvancedIncSubtensor() if op.set_instead_of_inc:
            return _union(parts[:2])
        case IncSubtensor():
            return _union([parts[0], (parts[0][0] + parts[1][0], parts[0][1] + parts[1][1])])
        case AdvancedIncSubtensor():  # an index may occur several times
            return _ALL if _is_narrow(node.outputs[0]) else _of_type(node)
    if parts and keeps_values(op, node.inputs[0]):
        return parts[0]
    return _of_type(node)


def _of_type(node: Apply) -> Range:
    return _union([_limits(output) for output in node.outputs])


def _union(parts: list[Range]) -> Range:
    return min(low for low, _ in parts), max(high for _, high in parts)


def _times(a: Range, b: Range) -> Range:
    ends = [0.0 if 0.0 in (x, y) else x * y for x in a for y in b]
    return min(ends), max(ends)
