"""Cells: the parts of a public partition in which records are alike.

Records with equal parameters, and with equal weights in all releases (`reading.statistic`), are one
cell; parameters are computed once for each cell.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.traversal import ancestors
from pytensor.scalar import basic as ps
from pytensor.tensor.basic import Alloc, MakeVector
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.extra_ops import Repeat
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor
from pytensor.tensor.variable import TensorVariable
from scipy import sparse

from pymc_dp.graphs.declined import Declined, notice
from pymc_dp.graphs.shapes import known_shape, lengths
from pymc_dp.graphs.values import keeps_values, known_value, nearest_rvs

type Index = tuple[np.ndarray, ...]  # for each axis, the place of every entry


@dataclass(frozen=True, eq=False)
class Cells:
    """A partition of records into cells.

    Attributes
    ----------
    first : the place of one record of each cell, in the raveled records.
    sizes : the number of records in each cell.
    of : the cell of each record.
    """

    first: np.ndarray
    sizes: np.ndarray
    of: np.ndarray


def _has_numbers(graph: TensorVariable) -> bool:
    """Whether a graph is not data or a constant with NaN."""
    if isinstance(graph, SharedVariable):
        return not np.isnan(graph.get_value(borrow=True)).any()
    return not isinstance(graph, Constant) or not np.isnan(graph.data).any()


def require_numbers(rv: TensorVariable, parameters: Sequence[TensorVariable]) -> None:
    """Refuse records whose parameters are computed from NaN, in covariates say."""
    for graph in ancestors(parameters, blockers=nearest_rvs(parameters)):
        if graph.owner is None and getattr(graph, "dtype", "").startswith("float"):
            if isinstance(graph, SharedVariable):  # other values need no new reading
                notice(following=[partial(_has_numbers, graph)])
            if not _has_numbers(graph):
                raise ValueError(
                    f"the records {rv.name!r}: their parameters are computed from numbers of which "
                    f"some are NaN. Leave these records out, or give the missing numbers a prior"
                )


def have_one_law(index: Index, parameters: Sequence, members, sizes) -> bool:
    """Whether parameters agree within groups of `members`, which follow each other by sizes."""
    cell = cells_of(index, parameters).of[members]
    first = np.cumsum([0, *sizes[:-1]])[sizes > 0]
    return np.array_equal(np.repeat(cell[first], sizes[sizes > 0]), cell)


def at_records(index: Index, parameter: TensorVariable, records) -> TensorVariable:
    """Return a parameter at some records, given by their numbers among those of an index."""
    index = tuple(place[records] for place in index)
    return at_places(parameter, aligned(parameter, index))


def cells_of(index: Index, parameters: Sequence, *weights: sparse.csr_array) -> Cells:
    """Return the cells of records with equal parameters, and equal weights if there are any."""
    keys = [k for p in parameters for k in keys_at(p, index)]
    if weights:
        keys += column_keys(sparse.csc_array(sparse.vstack(weights)))
    return partition(keys, index[0].size)


def column_keys(weights: sparse.csc_array) -> list[np.ndarray]:
    """Return keys that differ between the columns of a sparse matrix: their nonzero entries."""
    weights.sort_indices()
    sizes = np.diff(weights.indptr)
    keys = []
    for j in range(sizes.max(initial=0)):
        [columns] = np.nonzero(sizes > j)
        row, weight = np.full(sizes.size, -1), np.zeros(sizes.size)
        nonzero = weights.indptr[columns] + j
        row[columns], weight[columns] = weights.indices[nonzero], weights.data[nonzero]
        keys += [row, weight]
    return keys


def partition(keys: Sequence[np.ndarray], n: int) -> Cells:
    """Return the cells of n records in which all keys agree."""
    cell = np.zeros(n, dtype=np.int64)
    for key in keys:
        _, values = np.unique(key, return_inverse=True)
        _, cell = np.unique(cell * (int(values.max(initial=0)) + 1) + values, return_inverse=True)
    _, first, sizes = np.unique(cell, return_index=True, return_counts=True)
    return Cells(first, sizes, cell)


def row_keys(parameter: TensorVariable, n: int) -> list[np.ndarray]:
    """Return keys of n rows: where they are equal, a parameter, perhaps a vector, is equal."""
    return keys_at(parameter, (np.arange(n),))


def keys_at(parameter: TensorVariable, index: Index) -> list[np.ndarray]:
    """Return keys of some places: where they are equal, a broadcast parameter is equal."""
    return _keys(parameter, aligned(parameter, index))


def at_rows(parameter: TensorVariable, rows: np.ndarray) -> TensorVariable:
    """Return a parameter at some rows, as a vector."""
    return pt.broadcast_to(at_places(parameter, aligned(parameter, (rows,))), rows.shape)


def places(rv: TensorVariable) -> Index:
    """Return the place of every entry of a variable, raveled."""
    sizes = lengths(rv)
    return tuple(np.unravel_index(np.arange(math.prod(sizes)), sizes)) if sizes else ()


def aligned(graph: TensorVariable, index: Index) -> Index:
    """Return the index of the same entries in a graph that is broadcast."""
    last = index[len(index) - graph.type.ndim :]
    return tuple(
        np.zeros_like(i) if repeated else i
        for i, repeated in zip(last, graph.type.broadcastable, strict=True)
    )


def at_places(graph: TensorVariable, index: Index) -> TensorVariable:
    """Return entries of a graph as a vector, or as a scalar if the graph has only one.

    Only these entries are computed: elementwise ops are applied to entries of their inputs, down to
    variables and numbers.
    """
    if all(graph.type.broadcastable):
        return graph.reshape(()) if graph.type.ndim else graph
    parts = _through(graph, index)
    if parts is None:
        value, count = known_value(graph, fixed=True), index[0].size
        if value is not None:
            return pt.constant(value[index])
        with contextlib.suppress(Declined):
            sizes = lengths(graph)
            if math.prod(sizes) == count and np.array_equal(
                np.ravel_multi_index(list(index), sizes), np.arange(count)
            ):
                return graph.ravel()  # all of them, in their order
        return graph[index]
    entries = [at_places(*part) for part in parts]
    op = graph.owner.op
    if isinstance(op, Elemwise):
        return op(*entries)
    if _is_product(graph):
        return pt.dot(pt.constant(_rows(graph, index)), graph.owner.inputs[1].ravel())
    return entries[0]


class Part(NamedTuple):
    """Public columns, with a row for each of some places, and the coefficients of the columns."""

    columns: np.ndarray | sparse.csr_array
    coefficients: TensorVariable  # a vector, or a scalar for all columns


def parts_of(graph: TensorVariable, index: Index) -> list[Part]:
    """Return a graph's entries at some places as a sum of parts.

    Sums and common factors are taken apart; a product of public rows and a column of coefficients
    is one part; of any other graph one entry of each cell is computed.
    """
    n, index = index[0].size, aligned(graph, index)
    if all(graph.type.broadcastable):
        return [Part(np.ones((n, 1)), at_places(graph, index))]
    value = known_value(graph, fixed=True)
    if value is not None:
        return [Part(value[index].astype("float64")[:, None], pt.ones(()))]
    node = graph.owner
    inputs = node.inputs if node is not None and isinstance(node.op, Elemwise) else []
    common = [i for i in inputs if all(i.type.broadcastable)]
    # Sums of whole numbers may wrap around, those of truth values mean `or`.
    splits = inputs and graph.dtype.startswith("float")
    match node.op.scalar_op if splits else None:
        case ps.Add() | ps.Sub() | ps.Neg() as op:
            negative = [isinstance(op, ps.Neg), isinstance(op, ps.Sub)]
            signs = [*negative[: len(inputs)], *[False] * (len(inputs) - 2)]
            return [
                Part(columns, -coefficients if sign else coefficients)
                for i, sign in zip(inputs, signs, strict=True)
                for columns, coefficients in parts_of(i, index)
            ]
        case (ps.Mul() | ps.TrueDiv()) as op if len(common) == len(inputs) - 1:
            if isinstance(op, ps.Mul) or common == inputs[1:]:
                [varying] = [i for i in inputs if i not in common]
                factors = [at_places(i, index) for i in common]
                return [
                    Part(columns, Elemwise(op)(coefficients, *factors))
                    for columns, coefficients in parts_of(varying, index)
                ]
    if _is_product(graph):
        return [Part(_rows(graph, index), node.inputs[1].ravel())]
    through = _through(graph, index)
    if through is not None and not isinstance(node.op, Elemwise):
        source, source_index = through[0]
        if not source_index:  # a scalar that is repeated
            return [Part(np.ones((n, 1)), at_places(source, source_index))]
        return parts_of(source, source_index)
    cells = partition(_keys(graph, index), n)
    members = sparse.csr_array((np.ones(n), (np.arange(n), cells.of)), shape=(n, cells.sizes.size))
    return [Part(members, at_places(graph, tuple(place[cells.first] for place in index)))]


def combined(weights: sparse.csr_array, graph: TensorVariable, index: Index) -> TensorVariable:
    """Return weighted sums of a graph's entries at some places, computing each cell once."""
    parts = parts_of(graph, index)
    return sum(multiplied(weights @ columns, coefficients) for columns, coefficients in parts)


def multiplied(matrix: np.ndarray | sparse.csr_array, vector: TensorVariable) -> TensorVariable:
    """Return a public matrix times a vector, in time that grows with its nonzero entries."""
    if vector.type.ndim == 0:
        return pt.constant(matrix.sum(axis=1)) * vector
    if isinstance(matrix, np.ndarray):
        return pt.dot(pt.constant(matrix), vector)
    matrix = sparse.csr_array(matrix)
    counts = np.diff(matrix.indptr)
    if (counts <= 1).all() and matrix.nnz:
        entry, factor = np.zeros((2, counts.size))  # a row without entries: 0 times the first
        entry[counts == 1], factor[counts == 1] = matrix.indices, matrix.data
        same = np.array_equal(entry, np.arange(matrix.shape[1]))
        picked = vector if same else vector[entry.astype("int64")]
        return picked if (factor == 1.0).all() else pt.constant(factor) * picked
    if math.prod(matrix.shape) <= max(4 * matrix.nnz, 10_000):
        return pt.dot(pt.constant(matrix.toarray()), vector)
    terms = pt.constant(matrix.data) * vector[matrix.indices]
    rows = np.repeat(np.arange(counts.size), counts)
    return pt.inc_subtensor(pt.zeros(counts.size)[rows], terms)


def _keys(graph: TensorVariable, index: Index) -> list[np.ndarray]:
    """Return keys of some places: where they are equal, the entries of a graph are equal."""
    if all(graph.type.broadcastable):
        return []
    parts = _through(graph, index)
    if parts is None:
        value = known_value(graph, fixed=True)
        if value is None:
            return list(index)
        return [value[index]]
    if _is_product(graph):
        return list(_rows(graph, index).T)
    return [key for part in parts for key in _keys(*part)]


def entries_of(graph: TensorVariable, variable: TensorVariable, index: Index) -> np.ndarray:
    """Return the entry of a variable that each place of a graph is computed from, -1 for none.

    Declined if a place is computed from several entries, or may be.
    """
    if graph is variable:
        return np.ravel_multi_index(index, lengths(variable))
    if variable not in ancestors([graph]):
        return np.array(-1)
    if isinstance(graph.owner.op, MakeVector):
        first_place = (np.zeros(1, dtype="int64"),)
        each = [entries_of(pt.atleast_1d(x), variable, first_place) for x in graph.owner.inputs]
        return np.array([x.item() for x in each])[index[0]]
    parts = _looked_up(graph, variable, index) or _through(graph, index)
    if parts is None or _is_product(graph):
        raise Declined(f"entries of {variable.name!r} are tied together")
    return one_of([entries_of(part, variable, part_index) for part, part_index in parts])


def _looked_up(graph: TensorVariable, variable: TensorVariable, index: Index):
    """Return the indices by which a function of a variable looks entries up; None otherwise."""
    node = graph.owner
    if not isinstance(node.op, AdvancedSubtensor) or variable in ancestors(node.inputs[:1]):
        return None
    [table, *by], axes = node.inputs, node.op.idx_list
    parts = []
    for k, index_graph in enumerate(by):
        if variable in ancestors([index_graph]):
            # Look up the numbers of this index's entries in place of the table's entries.
            sizes, shape = lengths(index_graph), list(lengths(table))
            numbers = np.arange(math.prod(sizes))
            for axis, j in enumerate(axes):
                shape[axis] = shape[axis] if isinstance(j, slice) else 1 if j != k else len(numbers)
            along = np.reshape(
                numbers,
                [-1 if j == k else 1 for j in axes[: len(shape)]] + [1] * (len(shape) - len(axes)),
            )
            indices = [
                pt.constant(numbers.reshape(sizes))
                if j == k
                else pt.zeros(lengths(graph_of_index), dtype="int64")
                if j in axes
                else graph_of_index
                for j, graph_of_index in enumerate(by)
            ]
            looked_up = node.op.make_node(pt.constant(np.broadcast_to(along, shape)), *indices)
            moved = np.asarray(known_value(looked_up.outputs[0]))[index]
            parts.append((index_graph, tuple(np.unravel_index(moved, sizes)) if sizes else ()))
    return parts


def one_of(entries: Sequence[np.ndarray]) -> np.ndarray:
    """Return the one entry that is named for each place, -1 for none; decline several."""
    largest = np.maximum.reduce(np.broadcast_arrays(np.array(-1), *entries))
    if any(((named >= 0) & (named != largest)).any() for named in entries):
        raise Declined("entries are tied together")
    return largest


def _through(graph: TensorVariable, index: Index) -> list[tuple[TensorVariable, Index]] | None:
    """Return the inputs, and places in them, of entries at some places; None if not known."""
    node = graph.owner
    if node is None or known_value(graph, fixed=True) is not None:
        return None
    match node.op:
        case Elemwise():
            return [(i, aligned(i, index)) for i in node.inputs]
        case op if keeps_values(op, node.inputs[0]):
            return [(node.inputs[0], index)]
        case Alloc():
            return [(node.inputs[0], aligned(node.inputs[0], index))]
        case DimShuffle() | Subtensor() | AdvancedSubtensor() | Reshape() | Repeat():
            source, *rest = node.inputs
            shape = known_shape(source)
            if None in shape or any(known_value(r, fixed=True) is None for r in rest):
                return None
            sizes = tuple(int(n or 0) for n in shape)
            source_index = _moved(node, sizes, index)
            # An entry counted from the end of a dim moves when the dim gets another length.
            longer = tuple(n + (k is None) for n, k in zip(sizes, source.type.shape, strict=True))
            if longer != sizes:
                with contextlib.suppress(Exception):  # such a model could not be computed, either
                    if not np.array_equal(_moved(node, longer, index), source_index):
                        return None
            return [(source, source_index)]
        case _ if _is_product(graph):
            return []
    return None


def _moved(node: Apply, sizes: tuple[int, ...], index: Index) -> Index:
    """Return the places of the input from which an op that moves entries takes some places."""
    numbers = np.arange(math.prod(sizes)).reshape(sizes)
    moved = known_value(node.op.make_node(pt.constant(numbers), *node.inputs[1:]).outputs[0])
    assert moved is not None
    return tuple(np.unravel_index(moved[index], sizes)) if sizes else ()


def _is_product(graph: TensorVariable) -> bool:
    """Whether a graph is the product of public rows and one column of coefficients."""
    node = graph.owner
    op = node and (node.op.core_op if isinstance(node.op, Blockwise) else node.op)
    if not isinstance(op, Dot) or graph.type.ndim > 2:
        return False
    rows, column = node.inputs
    single = column.type.ndim == 1 or column.type.shape[-1] == 1
    return single and rows.type.ndim == 2 and known_value(rows, fixed=True) is not None


def _rows(graph: TensorVariable, index: Index) -> np.ndarray:
    value = known_value(graph.owner.inputs[0], fixed=True)
    assert value is not None
    return value[index[0]].astype("float64")
