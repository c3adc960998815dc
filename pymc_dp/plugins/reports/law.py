r"""Records with finitely many values that are reported row by row: summed out, row by row.

A row i is in one of some states k, the values of all of its variables. Given the state, its reports
are independent, so that the law of reports r is

.. math::

    \sum_k P(k) \prod_e \eta_e(r_e \mid s_e(k)).

Rows that are alike are a cell; equal reports in a cell are counted once. Matrices whose entries
are independent given the state, the answers of a latent class say, are summed out entry by entry.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.discrete import DiscreteUniformRV
from pymc.logprob.basic import logp
from pytensor.tensor.random.basic import BernoulliRV, BinomialRV, CategoricalRV
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.draws import per_draw
from pymc_dp.graphs.shapes import leaves, lengths
from pymc_dp.graphs.substitution import substitute
from pymc_dp.graphs.values import known_value, nearest_rvs, plain_function, valued
from pymc_dp.laws.counts.marginal import _NEVER, _TINY, log_sum
from pymc_dp.laws.integrated import Integrated, in_results, integrated_release
from pymc_dp.laws.sum_law import LAWS, Change, Phase, SumLaw, Takes
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.reading.cells import Cells, aligned, at_places, entries_of, keys_at, one_of, partition
from pymc_dp.reading.groups import is_channel
from pymc_dp.reading.model import parents, release_mechanism, release_statistic, releases_of
from pymc_dp.reading.record_lengths import record_length
from pymc_dp.reading.sums import is_rowwise

_MOST_STATES, _MOST_ENTRIES = 1024, 50_000_000


class Reports(NamedTuple):
    """How one release reports rows.

    Attributes
    ----------
    mechanism : its noise.
    shape : of the release.
    places : (rows, entries of a row), in the raveled release.
    there : (cells, entries), or (1, entries), whether a row has this entry.
    values : (states, values, cells, entries), what is reported of a row; lengths may be 1.
    columns : (entries) the column of the matrices that an entry is of, -1 of none.
    """

    mechanism: Mechanism
    shape: tuple[int, ...]
    places: np.ndarray
    there: np.ndarray
    values: np.ndarray
    columns: np.ndarray

    def by_row(self, graph: TensorVariable) -> TensorVariable:
        """Return the entries of a release, or of what is broadcast to it, row by row."""
        flat = pt.broadcast_to(graph, self.shape).ravel()
        in_order = np.array_equal(self.places.ravel(), np.arange(self.places.size))
        return (flat if in_order else flat[self.places.ravel()]).reshape(self.places.shape)


class Patterns(NamedTuple):
    """Different reports, and how often each is there.

    They are those of `cells`, or each may be of any cell, and `times` is (cells, reports).
    """

    cells: np.ndarray | None
    times: Any
    reports: list[Any]
    noise: list[list[TensorVariable]]
    possible: Any = None  # whether all are outcomes, if that is not known


@dataclass(frozen=True, eq=False)
class ReportedRecords(Integrated):
    """Records whose every report is of one row; all reports have one density.

    Parameters are the probabilities of the states, (cells, states), or (cells) of the second of
    two; those of the values of `columns` columns of matrices, (cells, states, columns, values), if
    there are any; then the published value and the noise parameters of each further release.
    """

    names: tuple[str, ...]
    of: np.ndarray  # the cell of each row
    cells: int
    columns: int
    releases: tuple[Reports, ...]

    def split(self, parameters):
        """Return the probabilities of states and of values, and all else."""
        states, *rest = parameters
        return (states, *((rest[0], rest[1:]) if self.columns else (None, rest)))

    def draw(self, rng, *parameters):
        """See `Integrated.draw`."""
        states, values, _ = self.split(parameters)
        if states.type.ndim == 1:
            states = pt.stack([1.0 - states, states], axis=1)
        rng, state = pt.random.categorical(states[self.of], rng=rng, return_next_rng=True)
        release, n = self.releases[0], self.of.size
        at = [
            pt.as_tensor(np.zeros(1, dtype=int)) if k == 1 else i
            for k, i in zip(
                release.values.shape, (state[:, None], None, self.of[:, None], None), strict=True
            )
        ]
        at[1], at[3] = np.zeros((1, 1), dtype=int), np.arange(release.columns.size)[None]
        if values is not None:
            own = values[self.of, 0 if values.type.shape[1] == 1 else state]
            rng, drawn = pt.random.categorical(own, rng=rng, return_next_rng=True)
            if release.values.shape[1] > 1:
                at[1] = drawn[:, np.maximum(release.columns, 0)]
        table = pt.constant(release.values)[tuple(at)]
        table = pt.broadcast_to(table, (n, release.columns.size)).ravel()
        there = np.broadcast_to(
            release.there[self.of if len(release.there) > 1 else 0], (n, release.columns.size)
        ).ravel()
        flat = pt.zeros(math.prod(release.shape))
        flat = pt.set_subtensor(flat[release.places.ravel()[there]], table[np.flatnonzero(there)])
        return rng, flat.reshape(release.shape)

    def patterns(self, value, mechanism, rest) -> Patterns:
        """Return the different reports, counted once where they are known."""
        rest = [value, *mechanism.parameters, *rest]
        reports, noise = [], []
        for release in self.releases:
            published, *own = [rest.pop(0) for _ in range(1 + len(release.mechanism.parameters))]
            reports.append(release.by_row(published))
            noise.append([release.by_row(p) if p.type.ndim else p for p in own])
        found = [known_value(own, fixed=True) for own in reports]
        known = [own for own in found if own is not None]
        shared = not any(p.type.ndim for own in noise for p in own) and all(
            own.values.shape[2] == len(own.there) == 1 for own in self.releases
        )
        if self.cells < self.of.size and len(known) == len(reports):
            table = np.column_stack(known)
            _, one, number = np.unique(table, axis=0, return_index=True, return_inverse=True)
            pairs = self.of * one.size + number
            _, rows, times = np.unique(pairs, return_index=True, return_counts=True)
            if shared and self.cells * one.size <= 2 * rows.size:
                rows, times = one, np.bincount(pairs, minlength=self.cells * one.size)
                times = times.reshape((self.cells, -1))
            noise = [[p[rows] if p.type.ndim else p for p in own] for own in noise]
            cells = self.of[rows] if times.ndim == 1 else None
            return Patterns(cells, times, [own[rows] for own in known], noise)
        listed = self._listed(reports, noise) if shared else None
        return listed or Patterns(self.of, np.ones(self.of.size), reports, noise)

    def _listed(self, reports, noise) -> Patterns | None:
        """Count reports that can change (pm.Data) among all that there can be, if these are few."""
        widths = [release.columns.size for release in self.releases]
        outcomes = [release.mechanism.outcomes for release in self.releases]
        many = np.repeat([0 if own is None else len(own) for own in outcomes], widths)
        count = math.prod(many.tolist())
        if not 0 < self.cells * count <= min(self.of.size, 10_000):
            return None
        table = np.indices(tuple(many)).reshape(many.size, -1).T
        given = pt.concatenate(reports, axis=1)
        code = pt.clip(pt.floor(given), 0, many - 1).astype("int64")
        number = pt.dot(code, np.cumprod([1, *many[:0:-1]])[::-1]) + self.of * count
        times = pt.zeros(self.cells * count)[number].inc(1.0).reshape((self.cells, count))
        split = np.split(table, np.cumsum(widths)[:-1], axis=1)
        return Patterns(None, times, split, noise, pt.all(pt.eq(code, given)))

    def log_reports(self, patterns: Patterns) -> tuple[Any, Any]:
        """Log probability of reports given states, and of each column's given state and value.

        Those of entries that are of no column are (states, patterns), the others (states, values,
        patterns, columns).
        """
        of_states, of_values = pt.zeros((1, 1)), pt.zeros((1, 1, 1, self.columns))
        for release, reports, noise in zip(
            self.releases, patterns.reports, patterns.noise, strict=True
        ):
            values, there = release.values, release.there
            values = values[:, :, patterns.cells] if values.shape[2] > 1 else values
            there = there[patterns.cells] if len(there) > 1 else there
            each = release.mechanism.with_parameters(*noise).logp(reports, values)
            each = each if there.all() else pt.switch(there, each, 0.0)
            alone, [within] = release.columns < 0, np.nonzero(release.columns >= 0)
            if alone.any():
                of_states = of_states + each[:, 0][..., np.flatnonzero(alone)].sum(axis=-1)
            if within.size:
                to = np.eye(self.columns)[release.columns[within]]
                of_values = of_values + pt.dot(pt.maximum(each[..., within], _NEVER), to)
        return _folded(of_states), _folded(of_values)

    def logp(self, value, mechanism, *parameters):
        """See `Integrated.logp`."""
        states, values, rest = self.split(parameters)
        patterns = self.patterns(value, mechanism, rest)
        of_states, of_values = self.log_reports(patterns)
        times, there = patterns.times, patterns.times > 0
        if values is None:
            top, weights = _scaled(of_states, 0)
            chance = self.mixed(states, weights, patterns)
            if not (isinstance(times, np.ndarray) and there.all()):
                chance = pt.switch(there, chance, 1.0)  # of what is not there
            total = (times * pt.log(chance)).sum() + (times * top).sum()
        else:
            total = (
                times * log_sum(self.log_joint(states, values, patterns, of_states, of_values))
            ).sum()
        return total if patterns.possible is None else pt.switch(patterns.possible, total, -np.inf)

    def mixed(self, states, weights, patterns: Patterns) -> TensorVariable:
        """Return the sums over states, of weights of shape (states, reports)."""
        if states.type.ndim == 1:  # of two
            p = states[:, None] if patterns.cells is None else self.at(states, patterns)
            return (1.0 - p) * weights[0] + p * weights[1]
        if patterns.cells is None:
            return pt.dot(states, weights)
        return (self.at(states, patterns) * weights.T).sum(axis=1)

    def at(self, graph: TensorVariable, patterns: Patterns) -> TensorVariable:
        """Return what there is for each cell, for each pattern."""
        if patterns.cells is None:
            return graph[:, None]
        each = np.array_equal(patterns.cells, np.arange(self.cells))
        return graph if each else graph[patterns.cells]

    def log_joint(self, states, values, patterns: Patterns, of_states, of_values):
        """Log probability of patterns and states, the last axis."""
        if states.type.ndim == 1:
            states = pt.stack([1.0 - states, states], axis=1)
        joint = pt.log(pt.maximum(self.at(states, patterns), _TINY)) + of_states.T
        if values is not None:
            top, weights = _scaled(of_values, 1)
            # (..., states, columns, values)
            each = (self.at(values, patterns) * weights.dimshuffle(2, 0, 3, 1)).sum(axis=-1)
            joint = joint + (pt.log(pt.maximum(each, _TINY)) + top.dimshuffle(1, 0, 2)).sum(axis=-1)
        return joint

    def recovered(self, rv, value, posterior, rng):
        """See `Integrated.recovered`: rows with equal reports are exchangeable."""
        if not self.names:
            return super().recovered(rv, value, posterior, rng)
        mechanism, parameters = rv.owner.op.split(rv.owner.inputs)
        states, values, rest = self.split(parameters)
        patterns = self.patterns(value, mechanism, rest)
        graph = self.log_joint(states, values, patterns, *self.log_reports(patterns))
        joint = per_draw(posterior, graph)
        chance = np.exp(joint - joint.max(axis=-1, keepdims=True))
        chance /= chance.sum(axis=-1, keepdims=True)
        times = np.asarray(known_value(pt.as_tensor(patterns.times))).astype(int)
        drawn = rng.multinomial(times, chance)  # (draws, patterns, states)
        if patterns.cells is None:
            counts = drawn.sum(axis=2)
        else:
            counts = np.zeros((len(drawn), self.cells, drawn.shape[-1]), dtype=int)
            np.add.at(counts, (np.arange(len(drawn))[:, None], patterns.cells), drawn)
        [name] = self.names
        counts = counts[:, 0] if self.cells == 1 else counts
        return in_results(posterior, name, counts[..., 1] if name.endswith("_count") else counts)


def _folded(graph: TensorVariable) -> TensorVariable:
    """Return a graph as a number where it is known."""
    found = known_value(graph, fixed=True)
    return graph if found is None else pt.constant(found)


def _scaled(logs: TensorVariable, axis: int) -> tuple[TensorVariable, TensorVariable]:
    """Return the largest along an axis, and what the others are relative to it."""
    top = logs.max(axis=axis, keepdims=True)
    top = pt.switch(top > -np.inf, top, 0.0)
    return _folded(top.squeeze(axis)), _folded(pt.exp(logs - top))


@LAWS.register(Phase.ANSWERS, Takes(answers=True), Takes((BernoulliRV, CategoricalRV), single=True))
@dataclass(frozen=True, eq=False)
class Reported(SumLaw):
    """Records whose every report is of one row, by randomized response."""

    name: str
    releases: tuple[TensorVariable, ...]
    law: ReportedRecords
    parameters: list[TensorVariable]

    @classmethod
    def read(cls, reading, group):
        """See `SumLaw.read`."""
        mine = releases_of(reading.model, group.records)
        channel = all(is_channel(release) for release in mine)
        if not channel and any(map(is_channel, mine)):
            raise Declined(
                f"the records {group.name!r} are released more than once (in "
                f"{', '.join(repr(r.name) for r in mine)}), by randomized response and by other "
                f"noise, which have no joint law: sample on the records",
                near=1,
            )
        # A parameter of each row stays one.
        counted = [rv for rv in group.records if not rv.dtype.startswith("float")]
        records = counted or group.records
        if not channel and not _is_each(records, mine):
            raise Declined
        rows = _Rows.of(records)
        arranged = [rows.arranged(release) for release in mine]
        keys = rows.keys()
        for release, own in zip(mine, arranged, strict=True):
            keys += _differing(release, *own)
        cells = partition(keys, rows.n)
        if not channel and cells.sizes.size > 1:
            raise Declined
        if 2 * cells.sizes.size > rows.n + 1:  # then each is its own
            cells = partition([np.arange(rows.n)], rows.n)
        states, values = rows.chances(cells)
        columns = sum(rows.width(rv) for rv in rows.matrices)
        reports = []
        for release, (places, there, table, column) in zip(mine, arranged, strict=True):
            at = [
                own if own.shape[axis] == 1 else own.take(cells.first, axis)
                for own, axis in ((there, 0), (table, 2))
            ]
            reports.append(
                Reports(release_mechanism(release), lengths(release), places, *at, column)
            )
        [first, *others] = records
        alone = not others and not columns
        suffix = "count" if isinstance(first.owner.op, BernoulliRV) else "counts"
        names = (f"{first.name}_{suffix}",) if alone and 2 * cells.sizes.size <= rows.n + 1 else ()
        law = ReportedRecords(names, cells.of, cells.sizes.size, columns, tuple(reports))
        further = []
        for release in mine[1:]:
            if release not in reading.model.observed_RVs:
                raise Declined(
                    f"the release {release.name!r} of {group.name!r} is not observed, and there "
                    f"are others of them: give it observed=, or leave it out"
                )
            further += [
                reading.model.rvs_to_values[release],
                *release_mechanism(release).parameters,
            ]
        parameters = [states, *([] if values is None else [values]), *further]
        return cls(", ".join(rv.name for rv in records), tuple(mine), law, parameters)

    def describe(self, release):
        """See `SumLaw.describe`."""
        return f"every one of {self.name}"

    def latents(self):
        """Refuse: there is nothing shorter than the reports."""
        raise Declined(
            f"the release {self.releases[0].name!r} reports every one of the records "
            f"{self.name!r}: it is no function of their counts. Use to='marginal'"
        )

    def integrated(self):
        """Sum the records out."""
        [first, *others] = self.releases
        new = integrated_release(self.law, release_mechanism(first), *self.parameters)
        return Change(replaced={first: new}, dropped={release.name for release in others})


def _is_each(records, mine) -> bool:
    """Whether each of some records is released by itself, once, with other noise."""
    [rv, *others] = records
    alike = isinstance(rv.owner.op, BernoulliRV | CategoricalRV) and rv.type.ndim == 1
    [statistic, *more] = map(release_statistic, mine)
    same = not others and not more and statistic.type.shape == rv.type.shape
    return alike and same and is_rowwise(statistic, rv, record_length(rv), 1)


def _differing(release, places, there, table, _) -> list[np.ndarray]:
    """Return columns that tell rows apart by what is released of them, and by its noise."""
    index = np.unravel_index(places.ravel(), lengths(release))
    keys = [key for p in release_mechanism(release).parameters for key in keys_at(p, index)]
    by_row = [*(key.reshape(places.shape) for key in keys), there, np.moveaxis(table, 2, 0)]
    flat = [own.reshape(len(own), -1) for own in by_row if len(own) > 1]
    return [column for own in flat for column in own.T if (column != column[0]).any()]


@dataclass(frozen=True, eq=False)
class _Rows:
    """The variables of rows: vectors, whose values are the state, and matrices given these."""

    n: int
    supports: dict[TensorVariable, np.ndarray]
    vectors: list[TensorVariable]
    matrices: list[TensorVariable]

    @classmethod
    def of(cls, records):
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
        found = cls(record_length(records[0]), supports, vectors, matrices)
        if any(record_length(rv) != found.n for rv in records):
            names = ", ".join(repr(rv.name) for rv in records)
            raise Declined(f"the records {names} are not of the same length")
        if math.prod(supports[rv].size for rv in vectors) > _MOST_STATES:
            names = " and ".join(repr(rv.name) for rv in vectors)
            raise Declined(
                f"a row of {names} has more than {_MOST_STATES} possible values: they are gone "
                f"through one by one"
            )
        return found

    def width(self, rv) -> int:
        return math.prod(lengths(rv)[1:])

    def states(self, variables=None) -> list[dict]:
        """Return all values of some vectors."""
        own = self.vectors if variables is None else variables
        values = itertools.product(*(self.supports[rv] for rv in own))
        return [dict(zip(own, value, strict=True)) for value in values]

    def above(self, rv) -> list[TensorVariable]:
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
        own = columns.max(axis=0)
        if ((columns != own) & there).any():
            raise Declined(
                f"the entries of the release {name!r} are not the same columns of each row"
            )
        return where, _once(there, 0), self.table(release, where), own

    def table(self, release, where) -> np.ndarray:
        """Return what is released (states, values, rows, entries), of length 1 where all agree."""
        statistic = release_statistic(release)
        used = nearest_rvs([statistic])
        matrices = [rv for rv in used if rv in self.matrices]
        supports = {tuple(self.supports[rv]) for rv in matrices} or {(0,)}
        values = max(supports, key=len)
        if any(own != values[: len(own)] for own in supports):
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
        if len(states) * len(values) * where.size > _MOST_ENTRIES:
            raise Declined(f"the release {release.name!r} has too many values to go through")
        found: dict = {}
        for state in states:
            for value in values:
                key = (*(state[rv] for rv in vectors), value)
                if key not in found:
                    given = [
                        np.full(lengths(rv), state.get(rv, value), dtype=rv.dtype) for rv in used
                    ]
                    own = np.asarray(function(*given), dtype="float64").ravel()[where]
                    found[key] = own
        keys = [[(*(s[rv] for rv in vectors), v) for v in values] for s in states]
        table = np.array([[found[key] for key in row] for row in keys])
        if not is_channel(release):
            return _once(table, 2)
        categories = release_mechanism(release).categories  # type: ignore[attr-defined]
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
        given = {v: pt.constant(np.full(self.n, k, dtype=v.dtype)) for v, k in state.items()}
        op = rv.owner.op
        return [
            (substitute(p, {v: k for v, k in given.items() if v in nearest_rvs([p])}), core)
            for p, core in zip(op.dist_params(rv.owner), op.ndims_params, strict=True)
        ]

    def keys(self) -> list[np.ndarray]:
        """Return columns that tell apart rows whose parameters may differ."""
        found = []
        for rv in self.supports:
            for state in self.states(self.above(rv)):
                for parameter, core in self.parameters(rv, state):
                    for key in keys_at(parameter, self.index(rv, parameter, core, slice(None))):
                        table = np.broadcast_to(key, (self.n * (key.size // self.n or 1),))
                        found += [c for c in table.reshape(self.n, -1).T if (c != c[0]).any()]
        return found

    def masses(self, rv, state, cells: Cells) -> TensorVariable:
        """Return the probabilities of a variable's values at a state, (cells, columns, values)."""
        own, count, width = [], cells.first.size, self.width(rv)
        for parameter, core in self.parameters(rv, state):
            index = self.index(rv, parameter, core, cells.first)
            found = at_places(parameter, aligned(parameter, index))
            found = pt.broadcast_to(found.astype("float64"), index[0].shape)
            own.append(found.reshape((count, width, -1)))
        match rv.owner.op:
            case BernoulliRV():
                return pt.concatenate([1.0 - own[0], own[0]], axis=-1)
            case CategoricalRV():
                return own[0]
        _, law = rv.owner.op(*own, rng=rv.owner.inputs[0], return_next_rng=True)
        return pt.exp(logp(law, self.supports[rv]))

    def chances(self, cells: Cells):
        """Return the probabilities of states and of columns' values, see `ReportedRecords`."""
        known = {
            (rv, *state.values()): self.masses(rv, state, cells)
            for rv in self.supports
            for state in self.states(self.above(rv))
        }

        def given(rv, state):
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
                parts = [given(v, state)[:, 0, k] for v, k in zip(self.vectors, at, strict=True)]
                columns.append(math.prod(parts[1:], start=parts[0]))
            states = pt.stack(columns, axis=1)
        if not self.matrices:
            return states, None
        most = max(self.supports[rv].size for rv in self.matrices)
        each = self.states() if any(map(self.above, self.matrices)) else [{}]
        values = []
        for rv in self.matrices:
            own = pt.stack([given(rv, state) for state in each], axis=1)
            short = most - self.supports[rv].size
            if short:
                own = pt.concatenate([own, pt.zeros((*lengths(own)[:-1], short))], axis=-1)
            values.append(own)
        return states, pt.concatenate(values, axis=2)


def _once(table: np.ndarray, axis: int) -> np.ndarray:
    """Return a table with one row only where all agree."""
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
