"""Indexing, reshaping and joining tables, with the records as one of their axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pymc_dp.graphs.declined import Declined
from pymc_dp.reading.sums.tables import Layout, Table, common_layout, whole


def length(table: Table, n: int) -> int | None:
    """Return the number of positions along the records' axis; None if records decide on it."""
    if table.layout is None:
        return n
    return None if table.layout.mask is not None else len(table.layout.records)


def reordered(table: Table, order: Sequence) -> Table:
    """Reorder, drop and add ("x") axes."""
    if table.axis is not None and table.axis not in order:
        raise Declined("it drops the axis of the records")
    kept = [d for d in order if d != "x"]
    dropped = [d for d in range(table.entries.ndim) if d not in kept]
    entries = np.transpose(table.entries, [*kept, *dropped])
    entries = entries.reshape(entries.shape[: len(kept)])
    entries = np.expand_dims(entries, tuple(i for i, d in enumerate(order) if d == "x"))
    axis = None if table.axis is None else list(order).index(table.axis)
    return Table(entries, axis, table.layout)


def indexed(table: Table, index: Sequence, n: int) -> Table:
    """Take entries, by integers, slices and arrays."""
    index = [*index, *[slice(None)] * (table.entries.ndim - len(index))]
    if table.axis is None:
        return Table(np.asarray(table.entries[tuple(index)], dtype=object))
    chosen, index[table.axis] = index[table.axis], slice(None)
    arrays = [i for i in [*index, chosen] if np.ndim(i) > 0]
    if len(arrays) > 1 or (arrays and np.asarray(arrays[0]).dtype == bool and arrays[0].ndim > 1):
        raise Declined("it takes single entries of some records")
    widths = [1 if isinstance(i, slice) else np.ndim(i) for i in index[: table.axis]]
    entries = np.asarray(table.entries[tuple(index)], dtype=object)
    layout = table.layout
    if not (isinstance(chosen, slice) and chosen == slice(None)):
        if not isinstance(chosen, slice) and np.ndim(chosen) == 0:
            raise Declined("it takes a single record by its position")
        if np.ndim(chosen) > 1 or length(table, n) is None:
            raise Declined("it takes some of the records in a way that is not read")
        layout = (layout or whole(n)).taken(chosen)
    return Table(entries, sum(widths), layout)


def joined(tables: Sequence[Table], axis: int) -> Table:
    """Concatenate along an axis that is not that of the records."""
    records, layout = common_layout(tables)
    if records is None:
        return Table(np.concatenate([t.entries for t in tables], axis))
    if records == axis:
        raise Declined("it appends other values to the records")
    blocks = max(t.entries.shape[records] for t in tables)
    wide = [np.repeat(t.entries, blocks // t.entries.shape[records], records) for t in tables]
    return Table(np.concatenate(wide, axis), records, layout)


def appended(tables: Sequence[Table], axis: int, n: int) -> Table:
    """Concatenate along the axis of the records."""
    records, blocks, shift = [], [], 0
    for t in tables:
        if length(t, n) is None:
            raise Declined("it appends a selection of the records")
        layout = t.layout or whole(n)
        records.append(layout.records)
        blocks.append(layout.blocks + shift)
        shift += t.entries.shape[axis]
    layout = Layout(np.concatenate(records), np.concatenate(blocks))
    return Table(np.concatenate([t.entries for t in tables], axis), axis, layout)


def repeated(table: Table, shape: Sequence[int], n: int) -> Table:
    """Broadcast to a shape."""
    if table.axis is None:
        return Table(np.broadcast_to(table.entries, shape))
    axis = table.axis + len(shape) - table.entries.ndim
    if shape[axis] != length(table, n):
        raise Declined("it repeats the records")
    shape = [*shape[:axis], table.entries.shape[table.axis], *shape[axis + 1 :]]
    return Table(np.broadcast_to(table.entries, shape), axis, table.layout)


def reshaped(table: Table, shape: Sequence[int], n: int) -> Table:
    """Reshape; an axis of the result may run over the records and other axes at once."""
    if table.axis is None:
        return Table(table.entries.reshape(shape))
    positions = length(table, n)
    if positions is None:
        raise Declined("it reshapes a selection of the records")
    old = table.entries.shape
    before, after = math.prod(old[: table.axis]), math.prod(old[table.axis + 1 :])
    if -1 in shape:
        rest = -math.prod(shape)
        shape = [before * positions * after // rest if s == -1 else s for s in shape]
    for axis, size in enumerate(shape):
        lead, trail = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        outer, inner = before // lead, after // trail
        if (outer * lead, inner * trail, outer * positions * inner) != (before, after, size):
            continue
        if outer == inner == 1:
            entries = table.entries.reshape(*shape[:axis], old[table.axis], *shape[axis + 1 :])
            return Table(entries, axis, table.layout)
        if table.layout is None:
            # Positions run over (outer, record, inner), blocks over (outer, inner).
            a, record, b = np.indices((outer, n, inner)).reshape(3, -1)
            entries = table.entries.reshape(*shape[:axis], outer * inner, *shape[axis + 1 :])
            return Table(entries, axis, Layout(record, a * inner + b))
    raise Declined("it reshapes the records")
