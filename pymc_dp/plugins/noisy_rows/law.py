r"""Jointly Normal rows that are released one by one, under Gaussian noise of their own.

A row is a chain of linear regressions, whose intercepts, slopes and spreads may differ from row to
row, and what is released of it is linear: all of it is jointly Normal. The rows' columns are kept
as a mean and a covariance given what was released so far, as Kalman's filter does: numbers where
all rows are alike, vectors with an entry for each row where they are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.multivariate import MvNormalRV
from pytensor.graph.replace import graph_replace
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, about
from pymc_dp.graphs.draws import each_draw
from pymc_dp.graphs.shapes import known_shape, lengths
from pymc_dp.graphs.values import nearest_rvs
from pymc_dp.laws.integrated import Integrated, in_results, integrated_release
from pymc_dp.laws.mixture import split_by
from pymc_dp.laws.sum_law import LAWS, Change, Phase, SumLaw, Takes
from pymc_dp.mechanisms.arguments import as_float
from pymc_dp.mechanisms.base import has_continuous_rates, has_kink
from pymc_dp.reading.checks import check_transform, require_possible
from pymc_dp.reading.columns import columns_of
from pymc_dp.reading.groups import Records
from pymc_dp.reading.model import Reading, mechanism_of, release_statistic, releases_of
from pymc_dp.reading.row_groups import Rowwise, read_row_law
from pymc_dp.reading.sums import row_vectors
from pymc_dp.reading.sums.polynomials import degree, read_polynomial

type Entry = Any  # a graph or an array: a number, or a vector of the rows


@dataclass(frozen=True)
class Columns:
    """The columns of rows, jointly Normal: means, and covariances by the numbers of two columns."""

    mean: list[Entry]
    cov: dict[tuple[int, int], Entry]

    @classmethod
    def of(cls, entries: Sequence[Entry], width: int) -> Columns:
        """Return the columns from `entries`."""
        pairs = combinations_with_replacement(range(width), 2)
        return cls([*entries[:width]], dict(zip(pairs, entries[width:], strict=True)))

    @property
    def entries(self) -> list[Entry]:
        """All means, then the covariances."""
        return [*self.mean, *(self.cov[pair] for pair in sorted(self.cov))]

    def of_sum(self, weights: Sequence[Entry]) -> tuple[Entry, list[Entry]]:
        """Return the mean of a weighted sum of the columns, and its covariance with each."""
        used = range(len(weights))
        mean = sum((w * m for w, m in zip(weights, self.mean, strict=False)), 0.0)
        with_each = [
            sum(weights[j] * self.cov[min(i, j), max(i, j)] for j in used)
            for i in range(len(self.mean))
        ]
        return mean, with_each

    def add_column(
        self, intercept: Entry, slopes: Sequence[Entry], errors: Sequence[Entry]
    ) -> None:
        """Add a column, by its regression on the columns before.

        `errors` are the covariances of its error with those of the last columns, and its variance;
        these last columns have no slopes.
        """
        k = len(self.mean)
        mean, with_each = self.of_sum(slopes)
        explained = sum((b * c for b, c in zip(slopes, with_each, strict=False)), 0.0)
        for i, c in enumerate(with_each):
            self.cov[i, k] = c + errors[i - k - 1] if i > k - len(errors) else c
        self.cov[k, k] = explained + errors[-1]
        self.mean.append(intercept + mean)

    def value(self, row: Sequence[Entry]) -> tuple[Entry, Entry, list[Entry]]:
        """Return mean and variance of ``row[0] + row[1:] @ columns``, and its covariances."""
        mean, with_each = self.of_sum(row[1:])
        return row[0] + mean, sum(h * c for h, c in zip(row[1:], with_each, strict=True)), with_each

    def conditioned(self, gain: Entry, residual: Entry, with_each: list[Entry]) -> Columns:
        """Return the columns given a noisy value; `gain` is 1 / its variance."""
        mean = [m + c * gain * residual for m, c in zip(self.mean, with_each, strict=True)]
        cov = {(i, j): c - with_each[i] * gain * with_each[j] for (i, j), c in self.cov.items()}
        return Columns(mean, cov)


@dataclass(frozen=True)
class NoisyRows(Integrated):
    """A release of rows one by one, given earlier releases of them.

    Parameters are those of the `width` columns, see `Columns`, then for each entry of a row that is
    released its intercept and its weights of the columns. The last of the releases
    also holds the names and shapes of the records, and all published values.
    """

    shape: tuple[int, ...]
    width: int
    records: tuple[tuple[str, tuple[int, ...]], ...] = ()
    published: tuple[tuple[str | None, TensorVariable], ...] = ()
    by_entry = True

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override]
        """See `Integrated`."""
        return tuple(name for name, _ in self.records)

    def split(self, parameters) -> tuple[Columns, list[list[TensorVariable]]]:
        """Return the columns, and the rows of weights."""
        count = self.width * (self.width + 3) // 2
        rest = parameters[count:]
        widths = [self.width + 1] * (len(rest) // (self.width + 1))
        return Columns.of(parameters[:count], self.width), split_by(widths, rest)

    def observed(self, value, mechanism, *parameters) -> Iterator[tuple[Any, ...]]:
        """Yield the residual and the variance of each entry given those before; and the columns."""
        columns, rows = self.split(parameters)
        noise = pt.broadcast_to(1.0 / mechanism.rates[1], self.shape)
        for k, row in enumerate(rows):
            at = (slice(None), k)[: value.type.ndim]
            mean, variance, with_each = columns.value(row)
            residual, variance = as_float(value[at]) - mean, variance + noise[at]
            columns = columns.conditioned(1.0 / variance, residual, with_each)
            yield residual, variance, columns

    def logp(self, value, mechanism, *parameters):
        """See `Integrated.logp`."""
        terms = [
            -0.5 * (residual**2 / variance + pt.log(2 * np.pi * variance))
            for residual, variance, _ in self.observed(value, mechanism, *parameters)
        ]
        return sum(terms[1:], start=terms[0])

    def draw(self, rng, *parameters):
        """See `Integrated.draw`."""
        columns, rows = self.split(parameters)
        size, drawn = (len(rows), self.shape[0]), []
        rng, normal = pt.random.normal(size=size, rng=rng, return_next_rng=True)
        for k, row in enumerate(rows):
            mean, variance, with_each = columns.value(row)
            known = variance <= 0  # given the entries that are drawn already
            gain = pt.switch(known, 0.0, 1.0 / pt.switch(known, 1.0, variance))
            residual = pt.sqrt(pt.maximum(variance, 0.0)) * normal[k]
            columns = columns.conditioned(gain, residual, with_each)
            drawn.append(mean + residual)
        return rng, pt.stack(drawn, axis=1).reshape(self.shape)

    def mean_variance(self, *parameters):
        """See `Integrated.mean_variance`."""
        columns, rows = self.split(parameters)
        if len(rows) > 1:
            raise Declined
        mean, variance, _ = columns.value(rows[0])
        return tuple(
            pt.broadcast_to(g, self.shape[:1]).reshape(self.shape) for g in (mean, variance)
        )

    def cost(self, entries: int) -> dict[str, float]:
        """See `Integrated.cost`."""
        return {"rows with noise": entries}

    def recovered(self, rv, value, posterior, rng):
        """See `Integrated.recovered`."""
        if not self.records:
            return {}
        mechanism, parameters = rv.owner.op.split(rv.owner.inputs)
        *_, (*_, columns) = self.observed(value, mechanism, *parameters)
        graphs, published = columns.entries, dict(self.published)
        seen = {v: published[v.name] for v in nearest_rvs(graphs) if v.name in published}
        drawn = np.empty(
            (posterior.sizes["chain"] * posterior.sizes["draw"], self.shape[0], self.width)
        )
        for rows, entries in zip(
            drawn, each_draw(posterior, graph_replace(graphs, seen, strict=False)), strict=True
        ):
            columns = Columns.of(entries, self.width)
            for j in range(self.width):
                mean, with_each = columns.of_sum(np.eye(self.width)[j])
                variance = np.maximum(with_each[j], 0.0)
                residual = np.sqrt(variance) * rng.standard_normal(self.shape[0])
                rows[:, j] = mean + residual
                gain = np.divide(
                    1.0, variance, out=np.zeros(np.shape(variance)), where=variance > 0
                )
                columns = columns.conditioned(gain, residual, with_each)
        ends = np.cumsum([np.prod(shape[1:], dtype=int) for _, shape in self.records])[:-1]
        results: dict[str, Any] = {}
        for (name, shape), draws in zip(self.records, np.split(drawn, ends, axis=-1), strict=True):
            results |= in_results(posterior, name, draws.reshape(-1, *shape))
        return results


# The fallback is for rows that another law reads, and has no marginal for: one released twice.
@LAWS.register(Phase.FALLBACK, Takes((NormalRV, MvNormalRV), number_known=True))
@LAWS.register(Phase.ROWS, Takes((NormalRV, MvNormalRV), number_known=True))
@dataclass(frozen=True, eq=False)
class RowsOneByOne(SumLaw):
    """Normal rows, and releases that have one or more entries for each row."""

    reading: Reading
    group: Records
    n: int
    rows: dict[TensorVariable, list[list[TensorVariable]]]

    @classmethod
    def read(cls, reading, group):
        """See `SumLaw.read`."""
        records, model = group.records, reading.model
        lengths_of_records = {rv.type.shape[:1] for rv in records if rv.type.ndim in (1, 2)}
        if len(lengths_of_records) != 1 or (None,) in lengths_of_records:
            raise Declined
        [(n,)] = lengths_of_records
        released = releases_of(model, records)
        read = {release: _vectors(release, records, n) for release in released}
        require_possible(released)
        for rv in records:
            check_transform(model, rv)
        leaves, rows = Rowwise(columns_of(records), None), {}
        for release, entries in read.items():
            with about(f"the release {release.name!r}"):
                polynomials = [read_polynomial(v, leaves) for v in entries]
            if any(degree(p) > 1 for p in polynomials):
                raise Declined(
                    f"the release {release.name!r} multiplies columns of a row: rows that are "
                    f"released one by one are integrated out of what is linear in them",
                    near=1 if group.n else -1,
                )
            _require_gaussian(release, records)
            monomials = [(), *((j,) for j in range(len(leaves.columns)))]
            rows[release] = [
                [as_float(pt.as_tensor(p.get(m, 0.0))) for m in monomials] for p in polynomials
            ]
        return cls(reading, group, n, rows)

    def describe(self, release):
        """See `SumLaw.describe`."""
        return f"each of {self.n} rows of {self.group.name}"

    def statistics(self):
        """See `SumLaw.statistics`."""
        raise Declined(
            f"the rows of {', '.join(repr(rv.name) for rv in self.group.records)} are released one "
            f"by one: there is no shorter statistic than these. Integrate them out: to='marginal'"
        )

    def marginal(self):
        """Integrate the rows out of their releases, each given those before it."""
        records, model, change = self.group.records, self.reading.model, Change()
        columns = Columns([], {})
        for i, rv in enumerate(records):
            chain = read_row_law(rv, records[:i], self.n)
            single = isinstance(rv.owner.op, NormalRV)
            for j, ((intercept, *slopes), spread) in enumerate(
                zip(chain.means, chain.spread, strict=True)
            ):
                errors = [spread[0] ** 2] if single else spread[: j + 1]
                columns.add_column(intercept, slopes, errors)
        shown = tuple((rv.name, lengths(rv)) for rv in records)
        published = tuple((r.name, model.rvs_to_values[r]) for r in self.rows)
        for release, rows in self.rows.items():
            last = len(change.replaced) == len(self.rows) - 1
            law = NoisyRows(
                lengths(release), len(columns.mean), *((shown, published) if last else ())
            )
            parameters = [*columns.entries, *(entry for row in rows for entry in row)]
            mechanism = mechanism_of(release)
            change.replaced[release] = integrated_release(law, mechanism, *parameters)
            *_, (*_, columns) = law.observed(release, mechanism, *parameters)
        return change


def _vectors(release: TensorVariable, records, n: int) -> list[TensorVariable]:
    """Return the entries of each row in a release; decline a release that is not by row."""
    statistic = release_statistic(release)
    if statistic.type.ndim not in (1, 2) or known_shape(statistic)[0] != n:
        raise Declined
    try:
        return [*row_vectors(statistic, dict.fromkeys(records, n)).flat]
    except (Declined, RecursionError):
        raise Declined from None


def _require_gaussian(release: TensorVariable, records) -> None:
    mechanism = mechanism_of(release)
    names = " and ".join(repr(rv.name) for rv in records)
    if not has_continuous_rates(mechanism) or has_kink(mechanism):
        raise Declined(
            f"the release {release.name!r} of single rows of {names} has no marginal under "
            f"{type(mechanism).__name__}: rows of several columns are integrated out under "
            f"GaussianMechanism. Sample with rung='records'",
            near=2,
        )
    if release.owner.op.bounds is not None:
        raise Declined(
            f"the release {release.name!r} states bounds= of {names}, which are released row by "
            f"row: within bounds they have no marginal. Sample with rung='records'",
            near=2,
        )
