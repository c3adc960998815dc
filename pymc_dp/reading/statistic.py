"""The normal form of a release of one variable's records: sums over records, entry by entry."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

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
from scipy import sparse

from pymc_dp.graphs.declined import Declined, nearest, once
from pymc_dp.graphs.shapes import leaves, lengths, with_shapes
from pymc_dp.graphs.substitution import computation
from pymc_dp.graphs.values import known_value, nearest_rvs, public_data
from pymc_dp.reading.alike import Alike, alike
from pymc_dp.reading.cells import Index, at_records, have_one_law
from pymc_dp.reading.column_sums import read_sums
from pymc_dp.reading.model import Reading, release_statistic
from pymc_dp.reading.sums import is_rowwise


@dataclass(frozen=True, eq=False)
class Statistic:
    r"""A release of sums over the records x of a variable, both raveled.

    Its entries are :math:`b + W x + S x^2 + m (M x)^2`, with public numbers; x may also be a
    function of each record.

    Attributes
    ----------
    rv : the release.
    offset : vector b.
    weights : sparse W, a row for each entry and a column for each record, or one for like records.
    squares : sparse S.
    squared : vector m; a sum is squared where it is not zero.
    members : sparse M of ones, the records of the squared sums.
    own : whether an entry is about these records, or about others in the same release.
    index : the places in the variable of the records that have a column.
    times : the number of records that each of these stands for, all alike.
    """

    rv: TensorVariable
    offset: np.ndarray
    weights: sparse.csr_array
    squares: sparse.csr_array
    squared: np.ndarray
    members: sparse.csr_array
    own: np.ndarray
    index: Index
    times: np.ndarray

    @property
    def is_linear(self) -> bool:
        """Whether nothing is squared."""
        return not self.squares.nnz and not self.squared.any()

    @cached_property
    def support(self) -> sparse.csr_array:
        """A matrix that is nonzero at the records of each entry, which are in order."""
        support = abs(self.weights) + abs(self.squares) + self.members
        support = sparse.csr_array(support)
        support.sort_indices()
        return support

    @property
    def is_one_by_one(self) -> bool:
        """Whether entry i is about record i alone."""
        n, weights = self.weights.shape[1], self.weights
        return (
            self.is_linear
            and weights.shape == (n, n)
            and (self.times == 1).all()
            and np.array_equal(weights.indptr, np.arange(n + 1))
            and np.array_equal(weights.indices, np.arange(n))
        )

    @property
    def sizes(self) -> np.ndarray:
        """The number of records with a weight in each entry."""
        return self.weights.astype(bool) @ self.times

    @property
    def columns(self) -> np.ndarray:
        """The number of weights of each entry: that of its records, unless one stands for many."""
        return np.diff(self.weights.indptr)

    @property
    def first_weights(self) -> np.ndarray:
        """The first weight of each entry; 1 for an entry of no records."""
        weights, some = np.ones(self.columns.size), self.columns > 0
        weights[some] = self.weights.data[self.weights.indptr[:-1][some]]
        return weights

    def factors(self, records: TensorVariable) -> np.ndarray:
        """Return the one weight of all records of each entry; 1 for an entry of no records."""
        weights = self.first_weights
        if not np.allclose(np.repeat(weights, self.columns), self.weights.data, 1e-12, 0.0):
            raise Declined(
                f"the release {self.rv.name!r} weighs the records {records.name!r} unequally, and "
                f"only sums of Normal records have a law then",
                near=1,
            )
        return weights

    def parameters(self, records: TensorVariable, graphs: Sequence) -> list[TensorVariable]:
        """Return the parameters of each entry's records, which have to agree."""
        sizes, weights = self.columns, self.weights
        record = np.zeros(sizes.size, dtype=np.int64)
        record[sizes > 0] = weights.indices[weights.indptr[:-1][sizes > 0]]
        if (sizes > 1).any() and not have_one_law(self.index, graphs, weights.indices, sizes):
            raise Declined(
                f"the release {self.rv.name!r} adds records of {records.name!r} with different "
                f"parameters, where sums need the same. Release sums of records that have the "
                f"same, or sample with rung='records'",
                near=1,
            )
        return [at_records(self.index, p, record) for p in graphs]

    def moments(self) -> np.ndarray:
        """Return each entry's coefficients of 1, and of its records' mean and variance (ddof=1).

        There is a row for each entry, which has to treat all of its records alike.
        """
        support = self.support
        sizes, records = support.astype(bool) @ self.times, support.indices
        if not records.size:
            return np.outer(self.offset, [1.0, 0.0, 0.0])
        entry = np.repeat(np.arange(sizes.size), np.diff(support.indptr))
        [filled] = np.nonzero(sizes)
        numbers, alike = [], True
        for matrix in (self.weights, self.squares):
            of_first = np.zeros(sizes.size)
            of_first[filled] = np.ravel(matrix[filled, records[support.indptr[filled]]])
            alike &= np.allclose(np.ravel(matrix[entry, records]), of_first[entry], 1e-12, 0.0)
            numbers.append(of_first)
        weight, square = numbers
        # A variance is (sum of squares - squared sum / n) / (n - 1).
        left = abs(square + sizes * self.squared) > 1e-12 * abs(square)
        if not alike or left.any():
            raise Declined(
                "an entry of it is no function of the mean and the variance of a group of records"
            )
        return np.stack([self.offset, weight * sizes, square * (sizes - 1)], axis=1)


def is_shared(*sums: Statistic) -> bool:
    """Whether a record is in several entries of these releases."""
    used = np.concatenate([s.weights.indices for s in sums])
    return bool(np.bincount(used, minlength=1).max() > 1)


@once
def read_statistic(
    reading: Reading,
    release: TensorVariable,
    records: TensorVariable,
    beside: tuple[TensorVariable, ...] = (),
    function: TensorVariable | None = None,
) -> Statistic:
    """Read a release of sums over some records.

    The release may sum records `beside` them, too: their part is left out. `function`, an
    expression with an entry for each record, is summed in place of the records. Squares are read of
    Normal records only, whose sums have a law.

    Raises
    ------
    Declined
        If the statistic is no such sum, mixes the records with others, or depends on `pm.Data`.
    """
    require_only(release, records, beside)
    statistic, name = release_statistic(release), release.name
    part = records if function is None else function
    found = alike(reading, records, beside)
    try:
        weights, offset = found.linear(statistic, part, beside)
    except Declined as error:
        parts = leaves(statistic, np.zeros(lengths(statistic)))
        if beside and all(len(nearest_rvs([leaf])) < 2 for leaf, _ in parts):
            instead = "beside other variables: write one release for each variable"
            error = Declined(f"{error}, {instead}", near=error.near)
        linear = Declined(f"the statistic of the release {name!r}: {error}")
        if function is not None or beside or not isinstance(records.owner.op, NormalRV):
            raise linear from None
    else:
        finite = offset is not None and np.all(np.isfinite(weights.data))
        if offset is None or not finite or not np.all(np.isfinite(offset)):
            why = f"the statistic of the release {name!r} has numbers that are not finite"
            raise Declined(why, near=1)
        offset, none = offset.ravel().astype("float64"), sparse.csr_array(weights.shape)
        has_records = np.diff(weights.indptr) > 0
        if not beside:
            has_records[:] = True
        elif not has_records.all():
            # An entry of no records is about the records of its part of a list.
            shape = lengths(statistic)
            for leaf, entries in leaves(statistic, np.arange(offset.size).reshape(shape)):
                has_records[entries] |= {*nearest_rvs([leaf])} == {records}
        squared, columns = np.zeros(offset.size), found.parts(records)
        return Statistic(release, offset, weights, none, squared, none, has_records, *columns)
    try:
        return _Reader(release, records, found).read(with_shapes(statistic))
    except Declined as error:
        squares = Declined(
            f"the release {name!r} is not of the sums and the squares of a group of the records "
            f"{records.name!r} in each entry: {error}",
            near=error.near,
        )
        raise nearest([linear, squares]) from None


def require_only(
    release: TensorVariable, records: TensorVariable, beside: tuple[TensorVariable, ...] = ()
) -> None:
    """Decline a release that depends on variables other than some records, or on `pm.Data`."""
    statistic = release_statistic(release)
    foreign = [rv for rv in nearest_rvs([statistic]) if rv is not records and rv not in beside]
    if foreign:
        raise Declined(
            f"the release {release.name!r} mixes the records {records.name!r} with "
            f"{', '.join(repr(rv.name) for rv in foreign)}"
        )
    if data := public_data([statistic]):
        raise Declined(
            f"the statistic of the release {release.name!r} of {records.name!r} is computed from "
            f"{data[0].name!r}, which pm.set_data may change: write numbers in its place",
            near=2,
        )


def stand_in_records(n: int, dtype: str = "float64") -> TensorVariable:
    """Return n records that stand for those of a model while a statistic of them is read."""
    rng = pt.random.shared_rng(seed=None)
    if not dtype.startswith("float"):
        return pt.random.poisson(1.0, size=(n,), rng=rng, return_next_rng=True)[1]
    return pt.random.normal(size=(n,), rng=rng, dtype=dtype, return_next_rng=True)[1]


@dataclass(frozen=True, eq=False)
class _Entry:
    """One entry of a statistic: its records, and their weights or one weight for all."""

    records: np.ndarray
    weights: np.ndarray | float = 0.0
    square: float = 0.0
    squared: float = 0.0
    offset: float = 0.0


class _Reader:
    """Reads a statistic with squares, entry by entry."""

    def __init__(self, release: TensorVariable, records: TensorVariable, alike: Alike):
        self.release, self.records, self.alike = release, records, alike
        self.entries: dict[int, _Entry] = {}
        self.index, self.times = alike.parts(records)
        self.one_each = alike.written(records)
        self.places = np.arange(self.times.size).reshape(lengths(self.one_each))
        self.stand_ins: dict[int, TensorVariable] = {}
        self.similar: dict[Hashable, _Entry] = {}

    def read(self, graph: TensorVariable) -> Statistic:
        """Read all entries of a statistic."""
        places = np.arange(math.prod(lengths(graph))).reshape(lengths(graph))
        for leaf, leaf_places in leaves(graph, places):
            if leaf.owner is None:
                raise Declined("an entry of it is of no records")
            self._leaf(leaf, leaf_places)
        entries = [self.entries[e] for e in range(places.size)]
        return Statistic(
            self.release,
            np.array([entry.offset for entry in entries]),
            self._matrix(entries, [entry.weights for entry in entries]),
            self._matrix(entries, [entry.square for entry in entries]),
            np.array([entry.squared for entry in entries]),
            self._matrix(entries, [float(entry.squared != 0.0) for entry in entries]),
            np.ones(places.size, dtype=bool),
            self.index,
            self.times,
        )

    def _matrix(self, entries: Sequence[_Entry], values: Sequence) -> sparse.csr_array:
        """Return a sparse matrix with one value, or a vector, for the records of each entry."""
        ends = np.cumsum([0, *(entry.records.size for entry in entries)])
        columns = np.concatenate([np.zeros(0, dtype=int), *(entry.records for entry in entries)])
        data = [np.broadcast_to(x, e.records.shape) for e, x in zip(entries, values, strict=True)]
        shape = len(entries), self.places.size
        matrix = sparse.csr_array(
            (np.concatenate([np.zeros(0), *data]), columns, ends), shape=shape
        )
        matrix.eliminate_zeros()
        return matrix

    def _leaf(self, graph: TensorVariable, entries: np.ndarray) -> None:
        """Read an array of entries, or an entry that has the form of an earlier group's."""
        try:
            records, stand_in, replacements = self._group(graph)
        except Declined:
            replacements = {}
        if graph.type.ndim or not replacements or self.records in replacements:
            return self._read_leaf(graph, entries)
        key = computation(*graph_replace([graph], replacements, strict=False), stand_in)
        if key not in self.similar:
            self._read_leaf(graph, entries)
            entry = self.entries[int(entries)]
            if np.array_equal(entry.records, records) and np.unique(entry.weights).size == 1:
                self.similar[key] = replace(entry, weights=float(np.ravel(entry.weights)[0]))
        else:
            self.entries[int(entries)] = replace(self.similar[key], records=records)
        return None

    def _read_leaf(self, graph: TensorVariable, entries: np.ndarray) -> None:
        for squares in (False, True):
            try:
                return self._linear(graph, entries, squares)
            except Declined:
                pass
        if graph.type.ndim == 0:
            records, stand_in, replacements = self._group(graph)
            [replaced] = graph_replace([graph], replacements, strict=False)
            self.entries[int(entries)] = self._quadratic(replaced, stand_in, records)
            return None
        return self._rows(graph, entries)

    def _linear(self, graph: TensorVariable, entries: np.ndarray, squares: bool) -> None:
        """Read entries that are linear in the records, or in their squares."""
        part = self._squares(graph) if squares else self.records
        weights, constant = self.alike.linear(graph, part)
        if constant is None or not np.all(np.isfinite(weights.data)):
            raise Declined("numbers in it are not known")
        if not np.all(np.isfinite(constant)):
            raise Declined("an entry of it is not finite: a mean of no records, say")
        for e, row in enumerate(np.ravel(entries)):
            entry_range = slice(weights.indptr[e], weights.indptr[e + 1])
            records, factors = weights.indices[entry_range], weights.data[entry_range]
            offset = float(np.ravel(constant)[e])
            if not squares:
                entry = _Entry(records, factors, offset=offset)
            elif factors.size and (factors == factors[0]).all():
                entry = _Entry(records, square=float(factors[0]), offset=offset)
            else:
                raise Declined("it weighs the squares of records unequally")
            self.entries[int(row)] = entry

    def _squares(self, graph: TensorVariable) -> TensorVariable:
        """Return the vector of squared records that a graph is computed from."""
        for variable in ancestors([graph], blockers=[self.records]):
            node = variable.owner
            if node is None or not isinstance(node.op, Elemwise):
                continue
            match node.op.scalar_op:
                case ps.Sqr():
                    is_square = True
                case ps.Mul():
                    is_square = len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]
                case ps.Pow():
                    exponent = known_value(node.inputs[1], fixed=True)
                    is_square = exponent is not None and bool(np.all(exponent == 2))
                case _:
                    is_square = False
            if is_square and node.inputs[0] is self.records:
                return variable
        raise Declined("it is of no squares of the records")

    def _group(self, graph: TensorVariable):
        """Return the records that a scalar depends on, a stand-in, and what it replaces."""
        groups: dict[Variable, np.ndarray] = {}
        for variable in ancestors([graph], blockers=[self.records]):
            node = variable.owner
            if node is None or self.records not in node.inputs:
                continue
            if isinstance(node.op, Shape | Shape_i):
                continue
            if not isinstance(node.op, Subtensor | AdvancedSubtensor) or variable.type.ndim != 1:
                if self.records.type.ndim > 1:
                    raise Declined(f"`{node.op}` is of all records")
                groups[self.records] = self.places
                continue
            taken = self.alike.written(variable)
            numbered = {self.one_each: pt.constant(self.places.astype(variable.dtype))}
            moved = known_value(graph_replace([taken], numbered, strict=False)[0])
            if moved is None:
                raise Declined("an index in it is not known")
            groups[variable] = moved
        places = list(groups.values())
        if not places or any(not np.array_equal(p, places[0]) for p in places):
            raise Declined("it is of several groups", near=1)
        if np.unique(places[0]).size < places[0].size:
            raise Declined("it takes a record twice")
        places = [p.astype("int64") for p in places]
        n = int(self.times[places[0]].sum())
        if n not in self.stand_ins:
            self.stand_ins[n] = stand_in_records(n, self.records.dtype)
        stand_in = self.stand_ins[n]
        return np.sort(places[0]), stand_in, dict.fromkeys(groups, stand_in)

    def _rows(self, graph: TensorVariable, entries: np.ndarray) -> None:
        """Read the entries of an array of records, whose rows are alike, from one row."""
        rv, (rows, *widths) = self.records, lengths(self.records)
        if len(widths) != 1 or graph.type.ndim != 1 or not is_rowwise(graph, rv, rows, 1):
            raise Declined("it is neither a list nor computed row by row")
        stand_in = stand_in_records(widths[0], rv.dtype)
        row = stand_in.type()
        [row_graph] = clone_replace([graph], {rv: row[None, :]}, rebuild_strict=False)
        if lengths(row_graph) != (1,):
            raise Declined("its rows are not alike", near=1)
        [row_graph] = graph_replace([row_graph.sum()], {row: stand_in}, strict=False)
        entry = self._quadratic(row_graph, stand_in, self.places[0])
        for e, places in zip(entries, self.places, strict=True):
            self.entries[int(e)] = replace(entry, records=places)

    def _quadratic(self, graph, stand_in: TensorVariable, records) -> _Entry:
        n, y, q, square = int(self.times[records].sum()), (0,), (1,), (0, 0)
        if n < 2:
            raise Declined(
                f"squares and variances are read of n >= 2 records, and a group has {n}. Release "
                f"its mean only",
                near=1,
            )
        read = read_sums(self.release, graph, [(stand_in, ())], {stand_in: n}, n)
        [polynomial] = read.in_means()
        numbers = {m: c for m, c in polynomial.items() if not isinstance(c, Variable)}
        if len(numbers) < len(polynomial) or set(numbers) - {(), y, q, square}:
            raise Declined("it is no function of a sum, a sum of squares and a squared sum")
        constant, mean, of_squares, squared = (numbers.get(m, 0.0) for m in ((), y, q, square))
        return _Entry(records, mean / n, of_squares / n, squared / n**2, constant)
