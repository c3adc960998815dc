"""Operands brought to one shape: public values beside tables of the records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.values import known_value
from pymc_dp.reading.sums.forms import Form
from pymc_dp.reading.sums.tables import Layout, Ledger, Row, Table, common_layout

MOST_TABLE_ENTRIES = 4096


@dataclass
class Public:
    """A value that is computed without the records; kept as its graph."""

    graph: TensorVariable


class Operands:
    """Makes tables of public values that are operands beside tables of the records.

    A public axis of length n that meets statistics is taken for that of the records, unless
    `by_records` is False; `assumed` says whether one was.
    """

    def __init__(self, ledger: Ledger, by_records: bool):
        self.ledger = ledger
        self.by_records, self.assumed = by_records, False
        self._vectors: dict[tuple, TensorVariable] = {}

    def aligned(self, values: Sequence[Public | Table]) -> list[Table]:
        """Return operands as tables, with public vectors as rows where they meet the records."""
        axis, layout = common_layout([v for v in values if isinstance(v, Table)])
        if axis is None and self.by_records:
            axis = self._axis_of_public_rows(values)
            self.assumed |= axis is not None
        if axis is None:
            return [self.aggregate(v) for v in values]
        tables = []
        for v in values:
            if isinstance(v, Public) and not v.graph.type.broadcastable[axis]:
                tables.append(self.rows_of(v.graph, axis, layout))
                continue
            table = self.table(v)
            if table.axis is None and table.entries.shape[axis] != 1:
                raise Declined("it combines the records with a vector of statistics")
            tables.append(table)
        return tables

    def _axis_of_public_rows(self, values: Sequence[Public | Table]) -> int | None:
        """Return the axis along which public values, one for each record, meet statistics."""
        public = [self.shape(v.graph) for v in values if isinstance(v, Public)]
        tables = [v.entries.shape for v in values if isinstance(v, Table)]
        for axis in range(len(tables[0])):
            if all(t[axis] == 1 for t in tables) and any(p[axis] == self.ledger.n for p in public):
                return axis
        return None

    def table(self, value: Public | Table) -> Table:
        """Return a value as a table."""
        if isinstance(value, Table):
            return value
        entries = self.empty(self.shape(value.graph))
        for index in np.ndindex(*entries.shape):
            entries[index] = self.ledger.public_form(value.graph, index)
        return Table(entries)

    def aggregate(self, value: Public | Table) -> Table:
        """Return a value as a table without an axis of records."""
        table = self.table(value)
        if table.axis is not None:
            raise Declined("it still has one value per record")
        return table

    def rows_of(self, graph: TensorVariable, axis: int, layout: Layout | None = None) -> Table:
        """Return the rows of a tensor that has one entry per position along an axis."""
        blocks = 1 if layout is None else int(layout.blocks.max(initial=0)) + 1
        shape = list(self.shape(graph))
        shape[axis] = blocks
        entries = self.empty(shape)
        alike = _alike(graph)
        if alike is not None:
            entries.fill(Form(alike))
            return Table(entries, axis, layout)
        for index in np.ndindex(*shape):
            if (graph, axis, index) not in self._vectors:
                place = (*index[:axis], slice(None), *index[axis + 1 :])
                self._vectors[graph, axis, index] = graph[place]
            vector = self._vectors[graph, axis, index]
            if layout is not None:
                vector = self._spread(vector, layout, index[axis])
            entries[index] = Row(None, vector)
        return Table(entries, axis, layout)

    def _spread(self, vector: TensorVariable, layout: Layout, block: int) -> TensorVariable:
        """Put the values of positions at the places of their records."""
        here = layout.blocks == block
        records = layout.records[here]
        if layout.mask is not None or len(np.unique(records)) < len(records):
            raise Declined(
                "it combines a selection of the records with a vector: select from both, as in "
                "(x * w)[mask]"
            )
        return pt.zeros(self.ledger.n, dtype=vector.dtype)[records].set(
            vector[np.flatnonzero(here)]
        )

    def shape(self, graph: TensorVariable) -> tuple[int, ...]:
        """Return the shape of a graph; decline one that is not known."""
        shape = graph.type.shape
        return tuple(self.known(graph.shape)) if None in shape else shape

    @staticmethod
    def empty(shape: Sequence[int]) -> np.ndarray:
        """Return an empty array for the entries of a table."""
        if np.prod(shape) > MOST_TABLE_ENTRIES:
            raise Declined(f"it has too many entries ({np.prod(shape)})")
        return np.empty(shape, dtype=object)

    def known(self, graph: TensorVariable) -> np.ndarray:
        """Evaluate a shape or an index; decline one that is not known."""
        if self.ledger.touches(graph):
            raise Declined("the records decide on the shape or the entries that it takes")
        try:
            value = known_value(graph)
        except Exception:  # if it cannot be computed, it is not known
            value = None
        if value is None:
            raise Declined(f"`{graph}`, a shape or an index, is not known")
        return value[()]


def _alike(graph: TensorVariable) -> float | None:
    """Return the number that all entries of a constant are; None for other graphs."""
    while graph.owner is not None and isinstance(graph.owner.op, DimShuffle):
        [graph] = graph.owner.inputs
    if not isinstance(graph, Constant) or graph.data.size == 0 or graph.type.dtype == "bool":
        return None
    first = float(graph.data.flat[0])
    return first if np.all(graph.data == first) else None
