"""Coefficients of a variable's entries in an expression that is linear in it, by its ops."""

from __future__ import annotations

import math
from functools import reduce
from operator import add

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.scalar import basic as ps
from pytensor.sparse.math import Dot as SparseDot
from pytensor.sparse.math import StructuredDot
from pytensor.tensor.basic import Alloc, ExtractDiag, Join, MakeVector
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import Dot, Sum
from pytensor.tensor.shape import Reshape
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
)
from pytensor.tensor.variable import TensorVariable
from scipy import sparse

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.shapes import lengths, varies_with, with_shapes
from pymc_dp.graphs.substitution import simplified
from pymc_dp.graphs.values import keeps_values, known_value

MOST_RUNNING_TOTALS = 1000  # their matrix is square
_MOST = 10**8  # entries of a variable: some ten gigabytes


def linear_map(expression: TensorVariable, rv: TensorVariable) -> sparse.csr_array:
    """Return the coefficients of a variable's entries in an expression that is linear in it.

    Entries may be picked, moved, summed, stacked, added up by an index, and multiplied by public
    numbers; constant terms are left out. `pm.Data` counts with its current values, and a
    coefficient that is not known is NaN.

    Returns
    -------
    csr_array
        One row for each entry of the expression, one column for each of the variable, in order.

    Raises
    ------
    Declined
        If the expression is not linear in the variable, or a shape or an index is not known.
    """
    return _Map(rv).read(expression)


class _Map:
    """Reads one variable's coefficients, node by node."""

    def __init__(self, rv: TensorVariable):
        self.rv, size = rv, math.prod(lengths(rv))
        if size > _MOST:
            raise ValueError(  # not what a law declines: each would need the memory
                f"{rv.name!r} has {size:,} entries, too many to be looked at one by one. Write "
                f"their sum as a variable, which needs no memory for them: "
                f"total = dp.RecordSums('total', the law of one record, n={size})"
            )
        self.memo: dict[Variable, sparse.csr_array] = {rv: sparse.eye_array(size, format="csr")}

    def read(self, variable: TensorVariable) -> sparse.csr_array:
        if variable not in self.memo:
            if varies_with(variable, self.rv):
                self.memo[variable] = sparse.csr_array(self._node(variable))
            else:
                shape = math.prod(lengths(variable)), self.memo[self.rv].shape[1]
                self.memo[variable] = sparse.csr_array(shape)
        return self.memo[variable]

    def _node(self, variable: TensorVariable) -> sparse.csr_array:
        node = variable.owner
        touched = [i for i in node.inputs if varies_with(i, self.rv)]
        first = touched == [node.inputs[0]]
        op = node.op
        if isinstance(op, Blockwise) and op.batch_ndim(node) == 0:
            op = op.core_op
        match op.scalar_op if isinstance(op, Elemwise) else op:
            case Sum() | Dot() | ps.Add() | AdvancedIncSubtensor() | IncSubtensor() if (
                variable.dtype == "bool"
            ):
                pass  # the sum of truth values means `or`
            case CumOp() if node.inputs[0].dtype == "bool":
                pass  # running totals of truth values may be numbers or not
            case op if first and keeps_values(op, node.inputs[0]):
                return self.read(node.inputs[0])
            case DimShuffle() | Subtensor() | AdvancedSubtensor() | Reshape() | ExtractDiag() if (
                first
            ):
                return self.read(node.inputs[0])[self._moved(variable).ravel()]
            case Alloc() if first:
                return self._spread(node.inputs[0], variable)
            case Sum() if first:
                return self._summed(variable)
            case CumOp(mode="add") if first:
                return self._running(variable)
            case MakeVector() | Join():
                rows = sparse.vstack([self.read(part) for part in node.inputs], format="csr")
                return rows[self._joined(variable).ravel()]
            case AdvancedIncSubtensor() | IncSubtensor() as op:
                target, put = node.inputs[:2]
                # Numbers that are added to whole ones in place would lose their fractions.
                fits = np.can_cast(put.dtype, target.dtype, "same_kind")
                fits = fits and not getattr(op, "ignore_duplicates", False)
                if fits and not set(touched) - {target, put}:
                    return self._scattered(variable)
            case Dot() if len(touched) == 1:
                return self._multiplied(node.inputs, touched[0])
            case SparseDot() | StructuredDot() if not first and isinstance(
                node.inputs[0], Constant
            ):
                columns = math.prod(lengths(node.inputs[1])[1:])
                matrix = sparse.csr_array(node.inputs[0].data)
                return sparse.kron(matrix, sparse.eye_array(columns)) @ self.read(node.inputs[1])
            case ps.Switch() if node.inputs[0] not in touched:
                chosen = (_known(node.inputs[0], "a condition") != 0).astype("float64")
                yes, no = node.inputs[1:]
                return self._scaled(yes, variable, chosen) + self._scaled(no, variable, 1 - chosen)
            case ps.Add():
                return reduce(add, [self._spread(i, variable) for i in node.inputs])
            case ps.Sub():
                left, right = (self._spread(i, variable) for i in node.inputs)
                return left - right
            case ps.Neg():
                return -self.read(node.inputs[0])
            case ps.Mul() if len(touched) == 1:
                factors = [_numbers(i) for i in node.inputs if i is not touched[0]]
                return self._scaled(touched[0], variable, reduce(np.multiply, factors))
            case ps.TrueDiv() if first:
                with np.errstate(divide="ignore"):
                    return self._scaled(node.inputs[0], variable, 1.0 / _numbers(node.inputs[1]))
        raise Declined(f"it is not linear in {self.rv.name!r}: `{node.op}`")

    def _moved(self, variable: TensorVariable) -> np.ndarray:
        """Return the position in the first input of each entry of the output."""
        node = variable.owner
        source, *rest = node.inputs
        numbers = np.arange(math.prod(lengths(source))).reshape(lengths(source))
        moved = node.op.make_node(pt.constant(numbers), *rest).outputs[0]
        return _known(moved, "an index")

    def _summed(self, variable: TensorVariable) -> sparse.csr_array:
        [source] = variable.owner.inputs
        shape, axis = lengths(source), variable.owner.op.axis
        axes = range(len(shape)) if axis is None else axis
        kept = [1 if k in axes else n for k, n in enumerate(shape)]
        entry = np.broadcast_to(np.arange(math.prod(kept)).reshape(kept), shape).ravel()
        return _added(entry, math.prod(kept)) @ self.read(source)

    def _running(self, variable: TensorVariable) -> sparse.csr_array:
        [source], axis = variable.owner.inputs, variable.owner.op.axis
        shape = lengths(source) if axis is not None else (math.prod(lengths(source)),)
        before, after = (math.prod(part) for part in (shape[: axis or 0], shape[(axis or 0) + 1 :]))
        if (n := shape[axis or 0]) > MOST_RUNNING_TOTALS:
            raise Declined(f"it has {n:,} running totals, more than {MOST_RUNNING_TOTALS:,}")
        totals = sparse.csr_array(np.tri(n))
        wide = sparse.kron(totals, sparse.eye_array(after))
        return sparse.kron(sparse.eye_array(before), wide) @ self.read(source)

    @staticmethod
    def _joined(variable: TensorVariable) -> np.ndarray:
        """Return the position of each entry of the output in the inputs, one after the other."""
        parts = variable.owner.inputs
        sizes = [math.prod(lengths(part)) for part in parts]
        starts = np.cumsum([0, *sizes])
        numbers = [
            np.arange(start, start + size).reshape(lengths(part))
            for start, size, part in zip(starts, sizes, parts, strict=False)
        ]
        if isinstance(variable.owner.op, MakeVector):
            return np.array(numbers).ravel()
        return np.concatenate(numbers, axis=variable.owner.op.axis)

    def _scattered(self, variable: TensorVariable) -> sparse.csr_array:
        target, put, *index = variable.owner.inputs
        numbers = np.arange(math.prod(lengths(target))).reshape(lengths(target))
        op = variable.owner.op
        take = Subtensor if isinstance(op, IncSubtensor) else AdvancedSubtensor
        taken = take(op.idx_list)(pt.constant(numbers), *index)
        entry = _known(taken, "an index")
        kept = np.ones(numbers.size)
        if op.set_instead_of_inc:
            kept[entry.ravel()] = 0.0
            if kept.sum() + entry.size > numbers.size:
                raise Declined("an entry of it is set twice")
        rows = self.read(put)[_positions(lengths(put), entry.shape)]
        return (
            sparse.diags_array(kept) @ self.read(target)
            + _added(entry.ravel(), numbers.size) @ rows
        )

    def _multiplied(self, inputs, touched: TensorVariable) -> sparse.csr_array:
        left, right = inputs
        if touched is left:
            b = _numbers(right)
            b = b if b.ndim == 2 else b[:, None]
            rows = math.prod(lengths(left)) // b.shape[0]
            return sparse.kron(sparse.eye_array(rows), sparse.csr_array(b.T)) @ self.read(left)
        a = np.atleast_2d(_numbers(left))
        columns = math.prod(lengths(right)) // a.shape[1]
        return sparse.kron(sparse.csr_array(a), sparse.eye_array(columns)) @ self.read(right)

    def _spread(self, source: TensorVariable, to: TensorVariable) -> sparse.csr_array:
        """Return the rows of an operand, broadcast to the shape of the result."""
        return self.read(source)[_positions(lengths(source), lengths(to))]

    def _scaled(self, source, to: TensorVariable, factor: np.ndarray) -> sparse.csr_array:
        factors = np.broadcast_to(factor, lengths(to)).ravel()
        return sparse.diags_array(factors) @ self._spread(source, to)


class _Uses(_Map):
    """Reads which entries of a variable each entry of an expression is computed from."""

    def _node(self, variable: TensorVariable) -> sparse.csr_array:
        try:
            return super()._node(variable)
        except Declined:
            if not isinstance(variable.owner.op, Elemwise):
                raise
            # A coefficient only marks a dependence: with absolute values none cancel.
            parts = [self._spread(i, variable) for i in variable.owner.inputs]
            return reduce(add, [abs(part).sign() for part in parts])


def uses(expression: TensorVariable, rv: TensorVariable) -> sparse.csr_array:
    """Return a matrix, nonzero where an entry of an expression depends on one of a variable.

    The expression is made of linear operations, as for `linear_map`, and elementwise functions.
    """
    return _Uses(rv).read(expression)


def _added(entry: np.ndarray, size: int) -> sparse.csr_array:
    """Return the matrix that adds up terms of the same entry."""
    return sparse.csr_array(
        (np.ones(entry.size), (entry, np.arange(entry.size))), shape=(size, entry.size)
    )


def _positions(shape: tuple[int, ...], to: tuple[int, ...]) -> np.ndarray:
    """Return which entry stands at each position after broadcasting."""
    return np.broadcast_to(np.arange(math.prod(shape)).reshape(shape), to).ravel()


def _numbers(variable: TensorVariable) -> np.ndarray:
    """Return public numbers; NaN where they are not known."""
    value = _value(variable)
    return np.full(lengths(variable), np.nan) if value is None else value.astype("float64")


def _known(graph: TensorVariable, what: str) -> np.ndarray:
    value = _value(graph)
    if value is None:
        raise Declined(f"{what} in it is not known")
    return value


def _value(graph: TensorVariable) -> np.ndarray | None:
    """Return public numbers or None; known shapes count, as in ``x.reshape((*x.shape, 2))``."""
    value = known_value(graph)
    if value is None:
        value = known_value(with_shapes(graph))
    return known_value(*simplified([graph])) if value is None else value
