"""Releases each of whose entries is quadratic in the records of one group."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace

import numpy as np
import pytensor.scalar as ps
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace, graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, once
from pymc_dp.graphs.linear import linear_map
from pymc_dp.graphs.questions import (
    computation,
    known_value,
    leaves,
    lengths,
    with_shapes,
)
from pymc_dp.reading.cells import require_own, stand_in_records
from pymc_dp.reading.column_sums import read_sums
from pymc_dp.reading.groups import Block
from pymc_dp.reading.model import (
    Reading,
    check_transform,
    release_statistic,
    releases_of,
    require_possible,
)
from pymc_dp.reading.sums import is_rowwise


@dataclass(frozen=True, eq=False)
class QuadraticEntry:
    r"""An entry of a release, quadratic in records x that are alike in it but for their weights.

    It is :math:`c + w' x + s \sum x_i^2 + m (\sum x_i)^2`.

    Attributes
    ----------
    records : the places of the records, in order, in the raveled records.
    weights : vector w.
    square, squared_sum, constant : numbers s, m and c.
    """

    records: np.ndarray
    weights: np.ndarray
    square: float = 0.0
    squared_sum: float = 0.0
    constant: float = 0.0

    def moments(self) -> tuple[float, float, float]:
        """Return its multiples of 1, of the mean and of the variance (ddof=1) of the records."""
        n, w = self.records.size, self.weights
        # A variance is (sum of squares - squared sum / n) / (n - 1).
        left = abs(self.square + n * self.squared_sum)
        if left > 1e-12 * abs(self.square) or not n or (w != w[0]).any():
            raise Declined(
                "an entry of it is no function of the mean and the variance of a group of records"
            )
        return self.constant, float(w[0] * n), self.square * (n - 1)


@once
def read_quadratic(
    reading: Reading, release: TensorVariable, records: TensorVariable
) -> tuple[QuadraticEntry, ...]:
    """Read every entry of a release, raveled; refuse by name what is of another kind."""
    statistic = with_shapes(release_statistic(release))
    require_own(release, records)
    found: dict[int, QuadraticEntry] = {}
    entries = np.arange(math.prod(lengths(statistic))).reshape(lengths(statistic))
    try:
        _Reader(release, records, found).read(statistic, entries)
    except Declined as error:
        raise Declined(
            f"the release {release.name!r} is not of the sums and the squares of a group of the "
            f"records {records.name!r} in each entry: {error}",
            near=error.near,
        ) from None
    return tuple(found[e] for e in range(entries.size))


def quadratic_releases(
    reading: Reading, group: Block
) -> tuple[TensorVariable, dict[TensorVariable, tuple[QuadraticEntry, ...]]]:
    """Read a group of one Normal variable: it, and every entry of its releases."""
    [rv, *more] = group.records
    if more or not isinstance(rv.owner.op, NormalRV):
        raise Declined
    check_transform(reading.model, rv)
    mine = releases_of(reading.model, [rv])
    if any(release.owner.op.bounds is not None for release in mine):
        raise Declined
    require_possible(mine)
    return rv, {release: read_quadratic(reading, release, rv) for release in mine}


class _Reader:
    """Takes a statistic apart into its entries."""

    def __init__(self, release, records, found: dict[int, QuadraticEntry]):
        self.release, self.records, self.found = release, records, found
        self.places = np.arange(math.prod(lengths(records))).reshape(lengths(records))
        self.stand_ins: dict[int, TensorVariable] = {}
        self.alike: dict[Hashable, QuadraticEntry] = {}

    def read(self, graph: TensorVariable, entries: np.ndarray) -> None:
        """Read a graph that stands at some entries."""
        for leaf, own in leaves(graph, entries):
            if leaf.owner is None:
                raise Declined("an entry of it is of no records")
            self._leaf(leaf, own)

    def _leaf(self, graph: TensorVariable, entries: np.ndarray) -> None:
        """Read an array of entries, or one that may be alike in another group of this size."""
        try:
            records, stand_in, given = self._group(graph)
        except Declined:
            given = {}
        if graph.type.ndim or not given or self.records in given:
            return self._read_leaf(graph, entries)
        key = computation(*graph_replace([graph], given, strict=False), stand_in)
        if key not in self.alike:
            self._read_leaf(graph, entries)
            found = self.found[int(entries)]
            if np.array_equal(found.records, records) and np.unique(found.weights).size == 1:
                self.alike[key] = found
        else:
            self.found[int(entries)] = replace(self.alike[key], records=records)
        return None

    def _read_leaf(self, graph: TensorVariable, entries: np.ndarray) -> None:
        for squares in (False, True):
            try:
                return self._linear(graph, entries, squares)
            except Declined:
                pass
        if graph.type.ndim == 0:
            records, stand_in, given = self._group(graph)
            [own] = graph_replace([graph], given, strict=False)
            self.found[int(entries)] = self._quadratic(own, stand_in, records)
            return None
        return self._rows(graph, entries)

    def _linear(self, graph: TensorVariable, entries: np.ndarray, squares: bool) -> None:
        """Read what is linear in the records, or in their squares."""
        part = self._squares(graph) if squares else self.records
        weights = linear_map(graph, part)
        weights.eliminate_zeros()
        zero = pt.zeros(lengths(part), dtype=part.dtype)
        constant = known_value(graph_replace([graph], {part: zero}, strict=False)[0])
        if constant is None or not np.all(np.isfinite(weights.data)):
            raise Declined("numbers in it are not known")
        if not np.all(np.isfinite(constant)):
            raise Declined("an entry of it is not finite: a mean of no records, say")
        weights.sort_indices()
        for e, row in enumerate(np.ravel(entries)):
            own = slice(weights.indptr[e], weights.indptr[e + 1])
            records, factors, c = weights.indices[own], weights.data[own], np.ravel(constant)[e]
            if not squares:
                entry = QuadraticEntry(records, factors, constant=float(c))
            elif factors.size and (factors == factors[0]).all():
                entry = QuadraticEntry(records, 0.0 * factors, float(factors[0]), 0.0, float(c))
            else:
                raise Declined("it weighs the squares of records unequally")
            self.found[int(row)] = entry

    def _squares(self, graph: TensorVariable) -> TensorVariable:
        """Return the squares of all records that a graph is computed from."""
        for variable in ancestors([graph], blockers=[self.records]):
            node = variable.owner
            if node is None or not isinstance(node.op, Elemwise):
                continue
            match node.op.scalar_op:
                case ps.Sqr():
                    found = True
                case ps.Mul():
                    found = len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]
                case ps.Pow():
                    exponent = known_value(node.inputs[1], fixed=True)
                    found = exponent is not None and bool(np.all(exponent == 2))
                case _:
                    found = False
            if found and node.inputs[0] is self.records:
                return variable
        raise Declined("it is of no squares of the records")

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
                if self.records.type.ndim > 1:
                    raise Declined(f"`{node.op}` is of all records")
                found[self.records] = self.places
                continue
            moved = known_value(
                node.op.make_node(pt.constant(self.places), *node.inputs[1:]).outputs[0]
            )
            if moved is None:
                raise Declined("an index in it is not known")
            found[variable] = moved
        places = list(found.values())
        if not places or any(not np.array_equal(p, places[0]) for p in places):
            raise Declined("it is of several groups", near=1)
        if np.unique(places[0]).size < places[0].size:
            raise Declined("it takes a record twice")
        n = places[0].size
        if n not in self.stand_ins:
            self.stand_ins[n] = stand_in_records(n)
        stand_in = self.stand_ins[n]
        return np.sort(places[0]), stand_in, dict.fromkeys(found, stand_in)

    def _rows(self, graph: TensorVariable, entries: np.ndarray) -> None:
        """Read what is alike in all rows of an array of records, from one of them."""
        rv, (rows, *others) = self.records, lengths(self.records)
        if len(others) != 1 or graph.type.ndim != 1 or not is_rowwise(graph, rv, rows, 1):
            raise Declined("it is neither a list nor computed row by row")
        stand_in = stand_in_records(others[0])
        row = stand_in.type()
        [one] = clone_replace([graph], {rv: row[None, :]}, rebuild_strict=False)
        if lengths(one) != (1,):
            raise Declined("its rows are not alike", near=1)
        [one] = graph_replace([one.sum()], {row: stand_in}, strict=False)
        entry = self._quadratic(one, stand_in, self.places[0])
        for e, places in zip(entries, self.places, strict=True):
            self.found[int(e)] = replace(entry, records=places)

    def _quadratic(self, graph, stand_in: TensorVariable, records) -> QuadraticEntry:
        n, y, q, square = records.size, (0,), (1,), (0, 0)
        if n < 2:
            raise Declined(
                f"squares and variances are read of n >= 2 records, and a group has {n}. Release "
                f"its mean only",
                near=1,
            )
        read = read_sums(self.release, graph, [(stand_in, ())], {stand_in: n}, n)
        [found] = read.in_means()
        numbers = {m: c for m, c in found.items() if not isinstance(c, Variable)}
        if len(numbers) < len(found) or set(numbers) - {(), y, q, square}:
            raise Declined("it is no function of a sum, a sum of squares and a squared sum")
        constant, mean, of_squares, squared = (numbers.get(m, 0.0) for m in ((), y, q, square))
        weights = np.full(n, mean / n)
        return QuadraticEntry(records, weights, of_squares / n, squared / n**2, constant)
