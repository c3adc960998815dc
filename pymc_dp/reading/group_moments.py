"""Releases whose entries are functions of the mean and variance of one group of records each."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace, graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import Join, MakeVector
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, once
from pymc_dp.graphs.linear import linear_map
from pymc_dp.graphs.questions import (
    keeps_values,
    known_value,
    lengths,
    with_shapes,
)
from pymc_dp.reading.cells import require_own, stand_in_records
from pymc_dp.reading.column_sums import LinearStatistic, read_sums
from pymc_dp.reading.model import Reading, release_statistic
from pymc_dp.reading.sums import is_rowwise


@dataclass(frozen=True)
class GroupEntry:
    """An entry of a release.

    Attributes
    ----------
    records : the places of the group's records, in order, in the raveled records.
    statistic : what it is of their mean and variance.
    """

    records: tuple[int, ...]
    statistic: LinearStatistic


@once
def read_group_moments(
    reading: Reading, release: TensorVariable, records: TensorVariable
) -> tuple[GroupEntry, ...]:
    """Read every entry of a release, raveled; refuse by name what is of another kind."""
    statistic = with_shapes(release_statistic(release))
    require_own(release, records)
    found: dict[int, GroupEntry] = {}
    entries = np.arange(math.prod(lengths(statistic))).reshape(lengths(statistic))
    try:
        _Reader(release, records, found).read(statistic, entries)
    except Declined as error:
        raise Declined(
            f"the release {release.name!r} is not of the mean and variance of a group of the "
            f"records {records.name!r} in each entry: {error}"
        ) from None
    return tuple(found[e] for e in range(entries.size))


class _Reader:
    """Takes a statistic apart into its entries."""

    def __init__(self, release, records, found: dict[int, GroupEntry]):
        self.release, self.records, self.found = release, records, found
        self.places = np.arange(math.prod(lengths(records))).reshape(lengths(records))

    def read(self, graph: TensorVariable, entries: np.ndarray) -> None:
        """Read a graph that stands at some entries."""
        node = graph.owner
        if node is None:
            raise Declined("an entry of it is of no records")
        match node.op:
            case MakeVector():
                for part, own in zip(node.inputs, entries, strict=True):
                    self.read(part, own)
            case Join():
                sizes = [lengths(part)[node.op.axis] for part in node.inputs]
                pieces = np.split(entries, np.cumsum(sizes)[:-1], axis=node.op.axis)
                for part, own in zip(node.inputs, pieces, strict=True):
                    self.read(part, own)
            case DimShuffle(is_expand_dims=True):
                self.read(node.inputs[0], entries.reshape(lengths(node.inputs[0])))
            case op if keeps_values(op, node.inputs[0]):
                self.read(node.inputs[0], entries)
            case _:
                self._leaf(graph, entries)

    def _leaf(self, graph: TensorVariable, entries: np.ndarray) -> None:
        try:
            return self._linear(graph, entries)
        except Declined:
            pass
        if graph.type.ndim == 0:
            records, stand_in, given = self._group(graph)
            [own] = graph_replace([graph], given, strict=False)
            self.found[int(entries)] = GroupEntry(records, self._moments(own, stand_in))
            return None
        return self._rows(graph, entries)

    def _linear(self, graph: TensorVariable, entries: np.ndarray) -> None:
        """Read means and sums."""
        weights = linear_map(graph, self.records)
        weights.eliminate_zeros()
        if not np.all(np.isfinite(weights.data)):
            raise Declined("numbers in it are not known")
        zero = pt.zeros(lengths(self.records), dtype=self.records.dtype)
        constant = known_value(graph_replace([graph], {self.records: zero}, strict=False)[0])
        if constant is None:
            raise Declined("numbers in it are not known")
        for e, row in enumerate(np.ravel(entries)):
            own = slice(weights.indptr[e], weights.indptr[e + 1])
            factors = weights.data[own]
            if not factors.size or (factors != factors[0]).any():
                raise Declined("it weighs the records unequally")
            records = tuple(np.sort(weights.indices[own]).tolist())
            mean = float(factors[0] * factors.size)
            statistic = LinearStatistic(float(np.ravel(constant)[e]), mean, 0.0)
            self.found[int(row)] = GroupEntry(records, statistic)

    def _group(self, graph: TensorVariable):
        """Return the records that a scalar is of, and what stands for them."""
        found: dict[Variable, np.ndarray] = {}
        for variable in ancestors([graph], blockers=[self.records]):
            node = variable.owner
            if node is None or self.records not in node.inputs:
                continue
            if isinstance(node.op, Shape | Shape_i):
                continue
            if not isinstance(node.op, Subtensor | AdvancedSubtensor) or variable.type.ndim != 1:
                raise Declined(f"`{node.op}` is of all records")
            moved = known_value(
                node.op.make_node(pt.constant(self.places), *node.inputs[1:]).outputs[0]
            )
            if moved is None:
                raise Declined("an index in it is not known")
            found[variable] = moved
        places = list(found.values())
        if not places or any(not np.array_equal(p, places[0]) for p in places):
            raise Declined("it is of several groups")
        if np.unique(places[0]).size < places[0].size:
            raise Declined("it takes a record twice")
        stand_in = stand_in_records(places[0].size)
        return tuple(np.sort(places[0]).tolist()), stand_in, dict.fromkeys(found, stand_in)

    def _rows(self, graph: TensorVariable, entries: np.ndarray) -> None:
        """Read what is alike in all rows of an array of records, from one of them."""
        rv, (rows, *others) = self.records, lengths(self.records)
        if len(others) != 1 or graph.type.ndim != 1 or not is_rowwise(graph, rv, rows, 1):
            raise Declined("it is neither a list nor computed row by row")
        stand_in = stand_in_records(others[0])
        row = stand_in.type()
        [one] = clone_replace([graph], {rv: row[None, :]}, rebuild_strict=False)
        if lengths(one) != (1,):
            raise Declined("its rows are not alike")
        [one] = graph_replace([one.sum()], {row: stand_in}, strict=False)
        statistic = self._moments(one, stand_in)
        for e, places in zip(entries, self.places, strict=True):
            self.found[int(e)] = GroupEntry(tuple(places.tolist()), statistic)

    def _moments(self, graph: TensorVariable, stand_in: TensorVariable) -> LinearStatistic:
        n = stand_in.type.shape[0]
        if n < 2:
            raise Declined(
                f"the release {self.release.name!r}: a variance needs n >= 2 records, and a group "
                f"of {self.records.name!r} has {n}. Release its mean only"
            )
        columns = [(stand_in, ())]
        read = read_sums(self.release, graph, columns, {stand_in: n}, n)
        [statistic] = read.mean_and_variance()
        return statistic
