"""Reading a graph node by node, as tables of rows and of forms."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytensor.tensor as pt
from pytensor import scalar as ps
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import (
    Alloc,
    ExtractDiag,
    Join,
    MakeVector,
    ScalarFromTensor,
    TensorFromScalar,
)
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp, SearchsortedOp
from pytensor.tensor.math import Argmax, Dot
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.sort import ArgSortOp, SortOp
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    Subtensor,
    indices_from_subtensor,
)
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.linear import MOST_RUNNING_TOTALS
from pymc_dp.graphs.shapes import known_shape, lengths
from pymc_dp.graphs.values import known_value
from pymc_dp.reading.sums.forms import or_refusal, refusal
from pymc_dp.reading.sums.operands import MOST_TABLE_ENTRIES, Operands, Public
from pymc_dp.reading.sums.reductions import accumulated, reduced, squeezed
from pymc_dp.reading.sums.shapes import appended, indexed, joined, repeated, reshaped
from pymc_dp.reading.sums.tables import Layout, Ledger, Table, common_layout, is_pure, mapped
from pymc_dp.reading.sums.weighted import adds_up, weighted_sums


class Reader:
    """Reads graphs of the records.

    Parameters
    ----------
    records : variables of the record, the records on their first axis.
    n : the number of records.
    categories : the number of values of records that are codes.
    keep_axis : whether a single record keeps its axis; if not, its values are sums.
    by_records : whether a public axis of length n that meets statistics is that of the records.
    """

    def __init__(
        self,
        records: Sequence[TensorVariable],
        n: int,
        categories: dict[TensorVariable, int],
        keep_axis: bool = False,
        by_records: bool = True,
    ):
        self.n = n
        self.ledger = Ledger(n, dict.fromkeys(records, True))
        self.operands = Operands(self.ledger, by_records)
        self.centers = pt.vector("centers", dtype="float64")
        self.columns: list[tuple[TensorVariable, tuple[int, ...]]] = []
        self._categories = categories
        self._memo: dict[Variable, Public | Table | Declined] = {}
        for rv in records:
            table = self._memo[rv] = self._record(rv)
            if n == 1 and not keep_axis:
                sums = mapped(lambda row: self.ledger.total([row], None), [table.entries])
                self._memo[rv] = Table(sums)

    def _record(self, rv: TensorVariable) -> Table:
        shape = rv.type.shape[1:]
        if any(s is None for s in shape):
            raise Declined(f"the width of the records {rv.name!r} is not known: give shape=")
        rows = np.empty((1, *shape), dtype=object)
        for index in np.ndindex(*shape):
            center = self.centers[len(self.columns)]
            self.columns.append((rv, index))
            rows[0, *index] = self.ledger.column(rv[(slice(None), *index)], center)
        return Table(rows, 0)

    def read(self, variable: TensorVariable) -> Public | Table:
        """Return a variable as a public value or a table."""
        if variable not in self._memo:
            touches = self.ledger.touches(variable)
            self._memo[variable] = self._touched(variable) if touches else Public(variable)
        value = self._memo[variable]
        if isinstance(value, Declined):
            raise value
        return value

    def _touched(self, variable: TensorVariable) -> Public | Table | Declined:
        """Read a node; if that fails and it adds up records, read it by its weights."""
        try:
            return self._node(variable)
        except Declined as error:
            if not adds_up(variable.owner.op):
                return error
            try:
                return weighted_sums(self.operands, variable, self.read)
            except Declined:
                return error

    def entries(self, variable: TensorVariable) -> np.ndarray:
        """Return the entries of a tensor without an axis of records: scalar graphs or numbers."""
        return mapped(
            self.ledger.scalars.graph, [self.operands.aggregate(self.read(variable)).entries]
        )

    # --- Nodes ----------------------------------------------------------------------------------

    def _node(self, variable: TensorVariable) -> Public | Table:
        node = variable.owner
        op, inputs = node.op, node.inputs
        if isinstance(op, Blockwise) and op.batch_ndim(node) == 0:
            op = op.core_op
        match op:
            case Elemwise():
                return self._elemwise(op.scalar_op, inputs)
            case CAReduce():
                return reduced(self.ledger, variable, self.operands.table(self.read(inputs[0])))
            case Dot() if variable.type.dtype == "bool":
                raise or_refusal(op)
            case Dot():
                a, b = inputs
                return self.read((a[:, :, None] * b[None, :, :]).sum(axis=1))
            case CumOp(mode="add") if variable.type.dtype != "bool" and self._is_short(inputs[0]):
                # A product with a triangular matrix: each total is a sum over the records before.
                totals = np.tri(lengths(inputs[0])[0], dtype=inputs[0].dtype)
                return self.read(pt.dot(pt.constant(totals), inputs[0]))
            case CumOp():
                return accumulated(self.ledger, variable, self.operands.table(self.read(inputs[0])))
            case DimShuffle():
                table = self.operands.table(self.read(inputs[0]))
                return squeezed(self.ledger, table, op.new_order)
            case Subtensor() | AdvancedSubtensor():
                return self._subtensor(variable, op, inputs)
            case AdvancedIncSubtensor():
                return self._scattered(op, inputs)
            case ExtractDiag():
                whole = self.operands.aggregate(self.read(inputs[0])).entries
                return Table(whole.diagonal(op.offset, op.axis1, op.axis2))
            case Join():
                return self._join(op.axis % variable.type.ndim, inputs)
            case MakeVector():
                parts = [self.operands.aggregate(self.read(i)).entries for i in inputs]
                return Table(np.array([part[()] for part in parts], dtype=object))
            case Alloc():
                return self._alloc(inputs)
            case Reshape():
                shape = [int(s) for s in np.atleast_1d(self.operands.known(inputs[1]))]
                return reshaped(self.operands.table(self.read(inputs[0])), shape, self.n)
            case CheckAndRaise() | SpecifyShape() | TensorFromScalar() | ScalarFromTensor():
                return self.read(inputs[0])
        return self._row_by_row(variable)

    @staticmethod
    def _is_short(variable: TensorVariable) -> bool:
        shape = known_shape(variable)
        return len(shape) == 1 and shape[0] is not None and shape[0] <= MOST_RUNNING_TOTALS

    def _elemwise(self, op: ps.ScalarOp, inputs: Sequence[TensorVariable]) -> Table:
        tables = self.operands.aligned([self.read(i) for i in inputs])
        axis, layout = common_layout(tables)
        dtypes = [i.type.dtype for i in inputs]
        entries = mapped(lambda *e: self.ledger.apply(op, e, dtypes), [t.entries for t in tables])
        return Table(entries, axis, layout)

    # --- Shapes and indices ---------------------------------------------------------------------

    def _join(self, axis: int, inputs: Sequence[TensorVariable]) -> Table:
        values = [self.read(i) for i in inputs]
        tables = [v for v in values if isinstance(v, Table)]
        if len(tables) == len(values) and all(t.axis == axis for t in tables):
            return appended(tables, axis, self.n)
        return joined(self.operands.aligned([self.read(i) for i in inputs]), axis)

    def _alloc(self, inputs: Sequence[TensorVariable]) -> Table:
        shape = [int(self.operands.known(i)) for i in inputs[1:]]
        table = self.operands.table(self.read(inputs[0]))
        if table.axis is None and self.n in shape:
            # Read as one value for each record, to be combined with the records' own.
            axis = shape.index(self.n)
            new = tuple(range(len(shape) - table.entries.ndim))
            aligned = np.expand_dims(table.entries, new)
            if aligned.shape[axis] == 1:
                table = Table(aligned, axis)
        if np.prod(shape) > MOST_TABLE_ENTRIES * (1 if table.axis is None else self.n):
            raise Declined("it repeats a statistic too often")
        return repeated(table, shape, self.n)

    def _subtensor(
        self, variable: TensorVariable, op, inputs: Sequence[Variable]
    ) -> Table | Public:
        source = self.read(inputs[0])
        index = list(indices_from_subtensor(inputs[1:], op.idx_list))
        by_records = [i for i in index if isinstance(i, Variable) and self.ledger.touches(i)]
        if by_records:
            return self._chosen_by_records(variable, source, index, by_records)
        return indexed(self.operands.table(source), [self._constant(i) for i in index], self.n)

    def _constant(self, index):
        """Evaluate the variables in an index; slices stay slices."""
        if isinstance(index, slice):
            return slice(*(self._constant(i) for i in (index.start, index.stop, index.step)))
        return self.operands.known(pt.as_tensor(index)) if isinstance(index, Variable) else index

    def _chosen_by_records(self, variable, source, index, by_records) -> Public | Table:
        """Read ``x[mask]`` with a condition on the records, and ``values[k]`` with their codes."""
        [chosen, *further] = by_records
        axis = next(i for i, v in enumerate(index) if v is chosen)
        rows = self.operands.table(self.read(chosen))
        pure = rows.entries.flat[0].pure if rows.axis == 0 and rows.entries.ndim == 1 else None
        if further or pure is None or rows.layout is not None:
            raise Declined("the records decide on the entries that it takes")
        if chosen.type.dtype == "bool":
            if isinstance(source, Public):
                source = self.operands.rows_of(source.graph, axis)
            if source.axis != axis or source.layout is not None:
                raise Declined("a condition on the records selects something else")
            index[axis] = slice(None)
            table = indexed(source, [self._constant(i) for i in index], self.n)
            blocks = np.zeros(self.n, dtype=int)
            return Table(table.entries, table.axis, Layout(np.arange(self.n), blocks, pure))
        if len(index) > 1 or (isinstance(source, Table) and source.axis is not None):
            raise Declined("the records decide on the entries that it takes")
        if isinstance(source, Public):
            return self.operands.rows_of(variable, 0)
        # The sum of all values, each multiplied by whether the code picks it.
        [size, *rest] = source.entries.shape
        code = (
            chosen if _number_of_values(chosen, self._categories) <= size else pt.mod(chosen, size)
        )  # from the end
        code = code.dimshuffle(0, "x", *["x"] * len(rest))
        is_it = pt.eq(code, np.arange(size).reshape(1, size, *[1] * len(rest)))
        values = variable.owner.inputs[0]
        return self.read((is_it * values.dimshuffle("x", *range(values.ndim))).sum(axis=1))

    def _scattered(
        self, op: AdvancedIncSubtensor, inputs: Sequence[TensorVariable]
    ) -> Public | Table:
        """Count codes, or add values up by codes: there is a sum for each possible code."""
        target, added, *index = inputs
        if op.set_instead_of_inc or op.ignore_duplicates:
            raise refusal(op)
        if target.type.dtype == "bool":
            raise or_refusal(op)
        if not np.can_cast(added.type.dtype, target.type.dtype, "same_kind"):
            raise refusal(op)  # the values would be cut to whole numbers
        zeros = isinstance(target.owner and target.owner.op, Alloc) and target.type.ndim == 1
        if not zeros or len(index) != 1:
            raise refusal(op)
        start, size = target.owner.inputs
        bounds = [size, *(size.owner.inputs if size.owner else ())]
        lengths = [int(i.data) for i in bounds if isinstance(i, Constant)]
        if not (lengths and max(lengths) >= _number_of_values(index[0], self._categories)):
            raise Declined(
                "`bincount` may have as many entries as the data: give it minlength= the number "
                "of categories, of Categorical or Bernoulli records, or write "
                "pt.eq(x[:, None], np.arange(k)).sum(0)"
            )
        equal = pt.eq(index[0][:, None], np.arange(max(lengths)))
        weight = added[:, None] if added.type.ndim else added
        return self.read(start + pt.switch(equal, weight, 0).sum(0))

    # --- Ops that work on each record's own values ----------------------------------------------

    def _row_by_row(self, variable: TensorVariable) -> Table:
        """Keep an op that works within each record, on values without an aggregate."""
        node: Apply = variable.owner
        values = [self.read(i) for i in node.inputs]
        tables = [v for v in values if isinstance(v, Table)]
        axis, layout = common_layout(tables)
        pure = all(t.axis is not None and all(map(is_pure, t.entries.flat)) for t in tables)
        dropped: tuple[int, ...] = ()
        match node.op:
            case Blockwise() as op:
                apart = axis is not None and axis < op.batch_ndim(node)
            case SortOp() | ArgSortOp() as op:
                apart = op.axis is not None and axis != op.axis % tables[0].entries.ndim
            case Argmax() as op:
                dropped = op.axis or ()
                apart = bool(dropped) and axis not in dropped
            case SearchsortedOp():
                apart = isinstance(values[0], Public)
            case _:
                apart = False
        if axis is None or layout is not None or not (apart and pure):
            raise refusal(node.op)
        return self.operands.rows_of(variable, axis - sum(a < axis for a in dropped))


def _number_of_values(codes: TensorVariable, categories: dict[TensorVariable, int]) -> float:
    """Return the number of values 0, 1, ... that codes can have."""
    above = set(ancestors([codes]))
    used = [rv for rv in categories if rv in above]
    sizes = [range(categories[rv]) for rv in used]
    widths = [int(np.prod(rv.type.shape[1:])) for rv in used]
    sizes = [s for s, width in zip(sizes, widths, strict=True) for _ in range(width)]
    if not used or np.prod([float(len(s)) for s in sizes]) > 1e6:
        return np.inf
    grid = np.array(list(product(*sizes)))
    columns = np.split(grid, np.cumsum(widths)[:-1], axis=1)
    all_of = {
        rv: pt.constant(g.reshape(-1, *rv.type.shape[1:]).astype(rv.dtype))
        for rv, g in zip(used, columns, strict=True)
    }
    try:
        values = known_value(clone_replace(codes, all_of, rebuild_strict=False), fixed=True)
    except Exception:  # it has a value for each record
        return np.inf
    # If it is not known, codes depend on other records, or on data that may change.
    return np.inf if values is None or values.min() < 0 else values.max() + 1
