"""Sums and other reductions of tables, over the records and over other axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from pytensor import scalar as ps
from pytensor.tensor.elemwise import CAReduce
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import All, Any, Prod, Sum
from pytensor.tensor.variable import TensorVariable

from pymc_dp.reading.sums.forms import Form, refusal
from pymc_dp.reading.sums.shapes import reordered
from pymc_dp.reading.sums.tables import Entry, Layout, Ledger, Table, mapped


def reduced(ledger: Ledger, variable: TensorVariable, table: Table) -> Table:
    """Reduce a table as the op of a variable does."""
    op, dtype = variable.owner.op, variable.owner.inputs[0].type.dtype
    ndim, entries = table.entries.ndim, table.entries
    axes = list(range(ndim)) if op.axis is None else [a % ndim for a in op.axis]
    other_axes = [a for a in axes if a != table.axis]
    if other_axes:
        entries = _folded(ledger, variable, entries, other_axes)
    kept = [a for a in range(ndim) if a not in axes]
    if table.axis is None or table.axis not in axes:
        return reordered(Table(entries, table.axis, table.layout), kept)
    totals = _along(
        entries, table.axis, lambda row: _over_records(ledger, op, row, table.layout, dtype)
    )
    return Table(totals.reshape([table.entries.shape[a] for a in kept]))


def squeezed(ledger: Ledger, table: Table, order: Sequence) -> Table:
    """Reorder, drop and add ("x") axes, also a records' axis that has only one record."""
    if (
        table.axis is None
        or table.axis in order
        or (table.layout and table.layout.mask is not None)
    ):
        return reordered(table, order)
    only = _along(table.entries, table.axis, lambda row: ledger.total(row, table.layout))
    return reordered(Table(np.expand_dims(only, table.axis)), order)


def _along(entries: np.ndarray, axis: int, reduce: Callable[[list[Entry]], Form]) -> np.ndarray:
    """Reduce the entries along an axis, which is dropped."""
    entries = np.moveaxis(entries, axis, -1)
    result = np.empty(entries.shape[:-1], dtype=object)
    for index in np.ndindex(*result.shape):
        result[index] = reduce(list(entries[index]))
    return result


def _over_records(
    ledger: Ledger, op: CAReduce, entries: list[Entry], layout: Layout | None, dtype: str
) -> Form:
    if isinstance(op, Sum):
        return ledger.total(entries, layout)
    if not isinstance(op, All | Any):
        raise refusal(op)
    test, compare = (ps.eq, ps.eq) if isinstance(op, All) else (ps.neq, ps.gt)
    held = [ledger.apply(test, [e, Form()], [dtype] * 2) for e in entries]
    return ledger.scalars.apply(compare, [ledger.total(held, layout), Form()], ["float64"] * 2)


def _folded(
    ledger: Ledger, variable: TensorVariable, entries: np.ndarray, axes: Sequence[int]
) -> np.ndarray:
    """Reduce over axes without records, which stay with length one."""
    op, dtype = variable.owner.op, variable.owner.inputs[0].type.dtype
    if isinstance(op, Sum | Prod):  # the sum of two truth values would be a truth value
        cast = ps.Cast(ps.get_scalar_type(variable.type.dtype))
        entries = mapped(lambda e: ledger.apply(cast, [e], [dtype]), [entries])
        dtype = variable.type.dtype
    last = tuple(range(-len(axes), 0))
    moved = np.moveaxis(entries, axes, last)
    many = math.prod(entries.shape[a] for a in axes)
    moved = moved.reshape(*moved.shape[: entries.ndim - len(axes)], many)
    result = np.empty(moved.shape[:-1], dtype=object)
    if not many and not isinstance(op, Sum):
        raise refusal(op)
    for index in np.ndindex(*result.shape):
        total, *rest = moved[index] if many else [Form()]  # an empty sum is zero
        for entry in rest:
            total = ledger.apply(op.scalar_op, [total, entry], [dtype] * 2)
        result[index] = total
    return np.expand_dims(result, tuple(axes))


def accumulated(ledger: Ledger, variable: TensorVariable, table: Table) -> Table:
    """Accumulate a table along an axis without records, as the op of a variable does."""
    op: CumOp = variable.owner.op
    is_truth = variable.type.dtype == "bool"  # running totals may be numbers or not
    if op.axis is None or op.axis % table.entries.ndim == table.axis or is_truth:
        raise refusal(op)
    step = ps.add if op.mode == "add" else ps.mul
    dtypes = [variable.type.dtype] * 2
    entries = np.moveaxis(table.entries.copy(), op.axis, 0)
    for k in range(1, len(entries)):
        pair = [entries[k - 1 : k], entries[k : k + 1]]
        [entries[k]] = mapped(lambda *e: ledger.apply(step, e, dtypes), pair)
    return Table(np.moveaxis(entries, 0, op.axis), table.axis, table.layout)
