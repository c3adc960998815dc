"""Reading reported rows: the values of a row, their probabilities, and its entries of releases."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.discrete import DiscreteUniformRV
from pymc.logprob.basic import logp
from pytensor.tensor.random.basic import BernoulliRV, BinomialRV, CategoricalRV
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.shapes import leaves, lengths
from pymc_dp.graphs.substitution import substitute
from pymc_dp.graphs.values import known_value, nearest_rvs, plain_function, valued
from pymc_dp.reading.cells import Cells, aligned, at_places, entries_of, keys_at, one_of
from pymc_dp.reading.groups import is_channel
from pymc_dp.reading.model import mechanism_of, parents, release_statistic
from pymc_dp.reading.record_lengths import record_length

_MAX_STATES, _MAX_ENTRIES = 1024, 50_000_000


@dataclass(frozen=True, eq=False)
class Rows:
    """The variables of rows: vectors, whose values are the state of a row, and matrices."""

    n: int
    supports: dict[TensorVariable, np.ndarray]
    vectors: list[TensorVariable]
    matrices: list[TensorVariable]

    @classmethod
    def of(cls, records):
        """Read records of one length, whose parents among them are vectors; else decline."""
        supports = {rv: _support(rv) for rv in records}
        vectors = [rv for rv in records if rv.type.ndim == 1]
        matrices = [rv for rv in records if rv.type.ndim > 1]
        for rv in records:
            for above in parents(rv):
                if above in matrices:
                    raise Declined(
                        f"{rv.name!r} depends on {above.name!r}, which has {above.type.ndim} axes: "
                        f"write the columns of {above.name!r} as variables of shape n"
                    )
        rows = cls(record_length(records[0]), supports, vectors, matrices)
        if any(record_length(rv) != rows.n for rv in records):
            names = ", ".join(repr(rv.name) for rv in records)
            raise Declined(f"the records {names} are not of the same length")
        if math.prod(supports[rv].size for rv in vectors) > _MAX_STATES:
            names = " and ".join(repr(rv.name) for rv in vectors)
            raise Declined(
                f"a row of {names} has more than {_MAX_STATES} possible values: they are gone "
                f"through one by one"
            )
        return rows

    def width(self, rv) -> int:
        """Return how many entries of a variable a row has."""
        return math.prod(lengths(rv)[1:])

    def states(self, variables=None) -> list[dict]:
        """Return all values of some vectors."""
        vectors = self.vectors if variables is None else variables
        values = itertools.product(*(self.supports[rv] for rv in vectors))
        return [dict(zip(vectors, value, strict=True)) for value in values]

    def above(self, rv) -> list[TensorVariable]:
        """Return the vectors that are parents of a variable."""
        return [v for v in self.vectors if v in parents(rv)]

    def arranged(self, release):
        """Return places, whether a row has them, what is released at each state, and columns."""
        statistic, name = release_statistic(release), release.name
        for rv in nearest_rvs([statistic]):
            if rv not in self.supports:
                raise Declined(f"the release {name!r} mixes the records with {rv.name!r}")
        if release.owner.op.bounds is not None:
            raise Declined(f"the release {name!r} states bounds=: leave it out")
        row, column = np.full((2, math.prod(lengths(release))), -1)
        places = np.arange(row.size).reshape(lengths(release))
        for part, at in leaves(statistic, places):
            index = tuple(np.unravel_index(np.arange(at.size), at.shape)) if at.ndim else ()
            entries = {rv: entries_of(part, rv, index) for rv in nearest_rvs([part])}
            first = np.cumsum([0, *map(self.width, self.matrices)])
            row[at.ravel()] = one_of(
                [np.where(e < 0, -1, e // self.width(rv)) for rv, e in entries.items()]
            )
            column[at.ravel()] = one_of(
                [
                    np.where(e < 0, -1, e % self.width(rv) + first[self.matrices.index(rv)])
                    for rv, e in entries.items()
                    if rv in self.matrices
                ]
            )
        if (row < 0).any():
            raise Declined(f"an entry of the release {name!r} is of no record: leave it out")
        order = np.argsort(row, kind="stable")
        sizes = np.bincount(row, minlength=self.n)
        within = np.arange(row.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        where, columns = np.zeros((2, self.n, sizes.max()), dtype=int)
        there = np.zeros(where.shape, dtype=bool)
        where[row[order], within], there[row[order], within] = order, True
        columns = np.where(there, column[where], columns - 2)
        entry_columns = columns.max(axis=0)
        if ((columns != entry_columns) & there).any():
            raise Declined(
                f"the entries of the release {name!r} are not the same columns of each row"
            )
        return where, _once(there, 0), self.table(release, where), entry_columns

    def table(self, release, where) -> np.ndarray:
        """Return what is released (states, values, rows, entries), of length 1 where all agree."""
        statistic = release_statistic(release)
        used = nearest_rvs([statistic])
        matrices = [rv for rv in used if rv in self.matrices]
        supports = {tuple(self.supports[rv]) for rv in matrices} or {(0,)}
        values = max(supports, key=len)
        if any(support != values[: len(support)] for support in supports):
            raise Declined(
                f"the release {release.name!r} is of matrices whose values differ: release each by "
                f"itself"
            )
        dummies = {rv: rv.type() for rv in used}
        plain = substitute(statistic, dummies)
        if data := valued(plain):
            raise Declined(
                f"the release {release.name!r} is computed from the `pm.Data` {data[0].name!r}, "
                f"which may change: write its numbers, and the records are summed out"
            )
        function = plain_function([*dummies.values()], plain)
        vectors = [rv for rv in used if rv in self.vectors]
        states = self.states() if vectors else [{}]
        if len(states) * len(values) * where.size > _MAX_ENTRIES:
            raise Declined(f"the release {release.name!r} has too many values to go through")
        entries_by_key: dict = {}
        for state in states:
            for value in values:
                key = (*(state[rv] for rv in vectors), value)
                if key not in entries_by_key:
                    arguments = [
                        np.full(lengths(rv), state.get(rv, value), dtype=rv.dtype) for rv in used
                    ]
                    entries = np.asarray(function(*arguments), dtype="float64").ravel()[where]
                    entries_by_key[key] = entries
        keys = [[(*(s[rv] for rv in vectors), v) for v in values] for s in states]
        table = np.array([[entries_by_key[key] for key in row] for row in keys])
        if not is_channel(release):
            return _once(table, 2)
        categories = mechanism_of(release).categories  # type: ignore[attr-defined]
        outside = table[~np.isin(table, np.arange(categories))]
        if outside.size:
            names = " and ".join(repr(rv.name) for rv in used)
            raise ValueError(
                f"the release {release.name!r}: what is reported of {names} can be "
                f"{outside[0]:g}, which is none of the categories 0, ..., {categories - 1} of the "
                f"mechanism: write its number of categories, or release a function of the records"
            )
        return _once(table, 2)

    def index(self, rv, parameter, core, rows):
        """Return the place of a parameter's entries in some rows."""
        shape = (*lengths(rv), *lengths(parameter)[parameter.type.ndim - core :])
        numbers = np.arange(math.prod(shape)).reshape(shape)[rows].ravel()
        return np.unravel_index(numbers, shape)

    def parameters(self, rv, state):
        """Return the parameters of a variable at a state, with the number of their core axes."""
        constants = {v: pt.constant(np.full(self.n, k, dtype=v.dtype)) for v, k in state.items()}
        op = rv.owner.op
        return [
            (substitute(p, {v: k for v, k in constants.items() if v in nearest_rvs([p])}), core)
            for p, core in zip(op.dist_params(rv.owner), op.ndims_params, strict=True)
        ]

    def keys(self) -> list[np.ndarray]:
        """Return columns of keys: rows that agree in all of them have the same parameters."""
        columns = []
        for rv in self.supports:
            for state in self.states(self.above(rv)):
                for parameter, core in self.parameters(rv, state):
                    for key in keys_at(parameter, self.index(rv, parameter, core, slice(None))):
                        table = np.broadcast_to(key, (self.n * (key.size // self.n or 1),))
                        columns += [c for c in table.reshape(self.n, -1).T if (c != c[0]).any()]
        return columns

    def masses(self, rv, state, cells: Cells) -> TensorVariable:
        """Return the probabilities of a variable's values at a state, (cells, columns, values)."""
        parameters, count, width = [], cells.first.size, self.width(rv)
        for parameter, core in self.parameters(rv, state):
            index = self.index(rv, parameter, core, cells.first)
            values = at_places(parameter, aligned(parameter, index))
            values = pt.broadcast_to(values.astype("float64"), index[0].shape)
            parameters.append(values.reshape((count, width, -1)))
        match rv.owner.op:
            case BernoulliRV():
                return pt.concatenate([1.0 - parameters[0], parameters[0]], axis=-1)
            case CategoricalRV():
                return parameters[0]
        _, law = rv.owner.op(*parameters, rng=rv.owner.inputs[0], return_next_rng=True)
        return pt.exp(logp(law, self.supports[rv]))

    def chances(self, cells: Cells):
        """Return the probabilities of states and of columns' values, see `ReportedRecords`."""
        known = {
            (rv, *state.values()): self.masses(rv, state, cells)
            for rv in self.supports
            for state in self.states(self.above(rv))
        }

        def mass_at(rv, state):
            return known[(rv, *(state[v] for v in self.above(rv)))]

        count = cells.first.size
        if not self.vectors:
            states = pt.ones((count, 1))
        elif len(self.vectors) == 1:
            [rv] = self.vectors
            states = known[(rv,)][:, 0]
            if isinstance(rv.owner.op, BernoulliRV):
                states = known[(rv,)].owner.inputs[-1].reshape((count,))
        else:
            columns = []
            for state in self.states():
                at = [np.flatnonzero(self.supports[v] == state[v])[0] for v in self.vectors]
                parts = [mass_at(v, state)[:, 0, k] for v, k in zip(self.vectors, at, strict=True)]
                columns.append(math.prod(parts[1:], start=parts[0]))
            states = pt.stack(columns, axis=1)
        if not self.matrices:
            return states, None
        most = max(self.supports[rv].size for rv in self.matrices)
        each = self.states() if any(map(self.above, self.matrices)) else [{}]
        values = []
        for rv in self.matrices:
            table = pt.stack([mass_at(rv, state) for state in each], axis=1)
            short = most - self.supports[rv].size
            if short:
                table = pt.concatenate([table, pt.zeros((*lengths(table)[:-1], short))], axis=-1)
            values.append(table)
        return states, pt.concatenate(values, axis=2)


def _once(table: np.ndarray, axis: int) -> np.ndarray:
    """Return a table, of length 1 along an axis where all entries agree."""
    first = table.take([0], axis)
    return first if (table == first).all() else table


def _support(rv: TensorVariable) -> np.ndarray:
    """Return the values that a record can take."""
    node = rv.owner
    if isinstance(node.op, BernoulliRV):
        return np.arange(2)
    if isinstance(node.op, CategoricalRV):
        return np.arange(lengths(node.op.dist_params(node)[0])[-1])
    if isinstance(node.op, BinomialRV | DiscreteUniformRV):
        ends = [known_value(p) for p in node.op.dist_params(node)]
        low, high = (np.zeros(1), ends[0]) if isinstance(node.op, BinomialRV) else ends
        if low is not None and high is not None:
            return np.arange(int(np.min(low)), int(np.max(high)) + 1)
    raise Declined(
        f"the values that {rv.name!r} can take are not known to be finitely many: there are sums "
        f"over Bernoulli, Categorical, Binomial and DiscreteUniform records of known ends"
    )
