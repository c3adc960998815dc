r"""The density of reports of records with finitely many values, summed out row by row.

A row i is in one of some states k, the values of all of its variables. Given the state, its reports
are independent, so that the law of reports r is

.. math::

    \sum_k P(k) \prod_e \eta_e(r_e \mid s_e(k)).

Rows that are alike are a cell; equal reports in a cell are counted once. Matrices whose entries
are independent given the state, the answers of a latent class say, are summed out entry by entry.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.draws import per_draw
from pymc_dp.graphs.values import known_value
from pymc_dp.laws.counts.marginal import NEVER, TINY, log_sum
from pymc_dp.laws.integrated import Integrated, in_results
from pymc_dp.mechanisms.base import Mechanism


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
    """Distinct reports, and how often each occurs.

    Report i is of cell ``cells[i]``. If `cells` is None, a report may be of any cell, and `times`
    is (cells, reports).
    """

    cells: np.ndarray | None
    times: Any
    reports: list[Any]
    noise: list[list[TensorVariable]]
    possible: Any = None  # a graph: whether all reports are outcomes; None where they are


@dataclass(frozen=True, eq=False)
class ReportedRecords(Integrated):
    """Records whose every report is of one row; all reports have one density.

    Parameters are the probabilities of the states, (cells, states), or (cells) of the second of
    two; those of the values of `columns` columns of matrices, (cells, states, columns, values), if
    there are any; then the published value and the noise parameters of each further release.
    """

    names: tuple[str, ...]
    cell_of_row: np.ndarray
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
        rng, state = pt.random.categorical(states[self.cell_of_row], rng=rng, return_next_rng=True)
        release, n = self.releases[0], self.cell_of_row.size
        at = [
            pt.as_tensor(np.zeros(1, dtype=int)) if k == 1 else i
            for k, i in zip(
                release.values.shape,
                (state[:, None], None, self.cell_of_row[:, None], None),
                strict=True,
            )
        ]
        at[1], at[3] = np.zeros((1, 1), dtype=int), np.arange(release.columns.size)[None]
        if values is not None:
            chances = values[self.cell_of_row, 0 if values.type.shape[1] == 1 else state]
            rng, drawn = pt.random.categorical(chances, rng=rng, return_next_rng=True)
            if release.values.shape[1] > 1:
                at[1] = drawn[:, np.maximum(release.columns, 0)]
        table = pt.constant(release.values)[tuple(at)]
        table = pt.broadcast_to(table, (n, release.columns.size)).ravel()
        there = np.broadcast_to(
            release.there[self.cell_of_row if len(release.there) > 1 else 0],
            (n, release.columns.size),
        ).ravel()
        flat = pt.zeros(math.prod(release.shape))
        flat = pt.set_subtensor(flat[release.places.ravel()[there]], table[np.flatnonzero(there)])
        return rng, flat.reshape(release.shape)

    def patterns(self, value, mechanism, rest) -> Patterns:
        """Return the different reports, counted once where they are known."""
        rest = [value, *mechanism.parameters, *rest]
        reports, noise = [], []
        for release in self.releases:
            published, *scales = [rest.pop(0) for _ in range(1 + len(release.mechanism.parameters))]
            reports.append(release.by_row(published))
            noise.append([release.by_row(p) if p.type.ndim else p for p in scales])
        values = [known_value(table, fixed=True) for table in reports]
        known = [value for value in values if value is not None]
        shared = not any(p.type.ndim for scales in noise for p in scales) and all(
            release.values.shape[2] == len(release.there) == 1 for release in self.releases
        )
        if self.cells < self.cell_of_row.size and len(known) == len(reports):
            table = np.column_stack(known)
            _, first_rows, number = np.unique(table, axis=0, return_index=True, return_inverse=True)
            pairs = self.cell_of_row * first_rows.size + number
            _, rows, times = np.unique(pairs, return_index=True, return_counts=True)
            if shared and self.cells * first_rows.size <= 2 * rows.size:
                rows, times = first_rows, np.bincount(pairs, minlength=self.cells * first_rows.size)
                times = times.reshape((self.cells, -1))
            noise = [[p[rows] if p.type.ndim else p for p in scales] for scales in noise]
            cells = self.cell_of_row[rows] if times.ndim == 1 else None
            return Patterns(cells, times, [value[rows] for value in known], noise)
        listed = self._listed(reports, noise) if shared else None
        return listed or Patterns(self.cell_of_row, np.ones(self.cell_of_row.size), reports, noise)

    def _listed(self, reports, noise) -> Patterns | None:
        """Count reports that can change (pm.Data) among all that there can be, if these are few."""
        widths = [release.columns.size for release in self.releases]
        outcomes = [release.mechanism.outcomes for release in self.releases]
        many = np.repeat([0 if codes is None else len(codes) for codes in outcomes], widths)
        count = math.prod(many.tolist())
        if not 0 < self.cells * count <= min(self.cell_of_row.size, 10_000):
            return None
        table = np.indices(tuple(many)).reshape(many.size, -1).T
        reported = pt.concatenate(reports, axis=1)
        code = pt.clip(pt.floor(reported), 0, many - 1).astype("int64")
        number = pt.dot(code, np.cumprod([1, *many[:0:-1]])[::-1]) + self.cell_of_row * count
        times = pt.zeros(self.cells * count)[number].inc(1.0).reshape((self.cells, count))
        split = np.split(table, np.cumsum(widths)[:-1], axis=1)
        return Patterns(None, times, split, noise, pt.all(pt.eq(code, reported)))

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
                of_values = of_values + pt.dot(pt.maximum(each[..., within], NEVER), to)
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
                chance = pt.switch(there, chance, 1.0)  # reports that do not occur
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
        """Return the values of cells, for each pattern."""
        if patterns.cells is None:
            return graph[:, None]
        each = np.array_equal(patterns.cells, np.arange(self.cells))
        return graph if each else graph[patterns.cells]

    def log_joint(self, states, values, patterns: Patterns, of_states, of_values):
        """Log probability of patterns and states, the last axis."""
        if states.type.ndim == 1:
            states = pt.stack([1.0 - states, states], axis=1)
        joint = pt.log(pt.maximum(self.at(states, patterns), TINY)) + of_states.T
        if values is not None:
            top, weights = _scaled(of_values, 1)
            # (..., states, columns, values)
            each = (self.at(values, patterns) * weights.dimshuffle(2, 0, 3, 1)).sum(axis=-1)
            joint = joint + (pt.log(pt.maximum(each, TINY)) + top.dimshuffle(1, 0, 2)).sum(axis=-1)
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
    number = known_value(graph, fixed=True)
    return graph if number is None else pt.constant(number)


def _scaled(logs: TensorVariable, axis: int) -> tuple[TensorVariable, TensorVariable]:
    """Return the largest logs along an axis, and the exponentials relative to these."""
    top = logs.max(axis=axis, keepdims=True)
    top = pt.switch(top > -np.inf, top, 0.0)
    return _folded(top.squeeze(axis)), _folded(pt.exp(logs - top))
