r"""Jointly Normal rows of unknown number, of which sums and sums of products are released.

For each number n of rows with mean m and covariance LL' the sums :math:`S \sim N(nm, nLL')` and the
scatter matrix W, a Wishart of n - 1 degrees, are independent, and the sums of products are
:math:`W + SS'/n`. S and W stay variables of the model, written in latents that are standard for a
number in the middle; over n, with its prior and release, the density is summed.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.replace import graph_replace
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.variable import TensorVariable
from scipy import special

from pymc_dp.graphs.declined import Declined, about
from pymc_dp.graphs.draws import each_draw
from pymc_dp.graphs.shapes import lengths
from pymc_dp.graphs.values import is_itself, nearest_rvs
from pymc_dp.laws.integrated import Integrated, in_results, integrated_release
from pymc_dp.laws.moments.latents import Linearised, observed_noise, row_latents
from pymc_dp.laws.moments.sums import ExactLatents, column_products, nearest_sample
from pymc_dp.laws.sum_law import LAWS, Change, Phase, SumLaw, Takes
from pymc_dp.plugins.unknown_sizes.density import log_prior
from pymc_dp.plugins.unknown_sizes.reader import place_of
from pymc_dp.plugins.unknown_sizes.sizes import by_group, sizes_that_matter
from pymc_dp.reading.bounds import starting_values
from pymc_dp.reading.checks import check_transform, require_possible
from pymc_dp.reading.column_sums import read_release
from pymc_dp.reading.columns import Link, Rows, columns_of, read_links
from pymc_dp.reading.groups import Records
from pymc_dp.reading.model import Reading, mechanism_of, release_statistic, releases_of
from pymc_dp.reading.record_lengths import size_of
from pymc_dp.reading.sums.polynomials import Polynomial

_PROBED_ROWS = (50, 51, 60)  # numbers of rows at which a statistic is read
_NUMBER = (-1,)  # the key of the number's coefficient in a polynomial
_TELLS = 1.0  # least information of the releases on each variance, relative to that of its law
_MAX_NUMBERS = 5_000  # numbers of rows that are summed over


@dataclass(frozen=True)
class OneOfSeveral(Integrated):
    """A statistic for each of some numbers. Parameters: log weights of numbers, statistics."""

    names: tuple[str, ...]
    numbers: tuple[int, ...]

    def draw(self, rng, weights, statistics):
        """See `Integrated.draw`."""
        chance = pt.special.softmax(weights)
        rng, k = pt.random.categorical(chance, rng=rng, return_next_rng=True)
        return rng, statistics[k]

    def each(self, value, mechanism, weights, statistics):
        """Return the log density of the release and each number."""
        terms = mechanism.logp(value, statistics)
        return weights + terms.sum(axis=tuple(range(1, terms.type.ndim)))

    def logp(self, value, mechanism, *parameters):
        """See `Integrated.logp`."""
        return pt.logsumexp(self.each(value, mechanism, *parameters))

    def recovered(self, rv, value, posterior, rng):
        """See `Integrated.recovered`."""
        mechanism, parameters = rv.owner.op.split(rv.owner.inputs)
        each = self.each(value, mechanism, *parameters)
        log = np.array([log_chances for [log_chances] in each_draw(posterior, [each])])
        drawn = np.argmax(log + rng.gumbel(size=log.shape), axis=1)
        return in_results(posterior, self.names[0], np.array(self.numbers)[drawn], whole=True)


@LAWS.register(Phase.ROWS, Takes((NormalRV,), number_known=False))
@dataclass(frozen=True, eq=False)
class CountedRows(SumLaw):
    """Normal rows of one unknown number: the density is summed over the number alone."""

    recovered_on = "statistics"
    reading: Reading
    number: TensorVariable
    rvs: tuple[TensorVariable, ...]
    links: tuple[Link, ...]
    entries: dict[TensorVariable, list[Polynomial]]

    @classmethod
    def read(cls, reading, group):
        """See `SumLaw.read`."""
        number = size_of(group.records[-1])
        rvs = tuple(rv for rv in group.records if rv is not number)
        if number is None or number not in group.records or number.type.ndim:
            raise Declined
        for rv in rvs:
            check_transform(reading.model, rv)
            place_of(number, rv)
            if number in nearest_rvs(rv.owner.op.dist_params(rv.owner)):
                raise Declined
        releases = releases_of(reading.model, group.records)
        require_possible(releases)
        links = read_links(Records(rvs, _PROBED_ROWS[0], ()))
        entries: dict[TensorVariable, list[Polynomial]] = {}
        for release in releases:
            statistic = release_statistic(release)
            if is_itself(statistic, number):
                entries[release] = []
                continue
            readings = list[list[Polynomial]]()
            if number not in nearest_rvs([statistic]):
                with (
                    about(f"rows of unknown number {number.name!r}")
                    if len(rvs) > 1
                    else nullcontext()
                ):
                    by_number = (read_release(release, columns_of(rvs), n) for n in _PROBED_ROWS)
                    readings = [r.linear() for r in by_number]
            entries[release] = _entries(readings)
            if not entries[release]:
                raise Declined(
                    f"the release {release.name!r} of the rows {', '.join(rv.name for rv in rvs)}, "
                    f"of unknown number {number.name!r}: sums of columns and of products of two "
                    f"are read, and the number itself in another release",
                    near=2 if len(rvs) > 1 else 0,
                )
        if any(r not in reading.model.observed_RVs for r in releases) or not any(entries.values()):
            raise Declined
        return cls(reading, number, rvs, links, entries)

    def describe(self, release):
        """See `SumLaw.describe`."""
        statistic = "sums over" if self.entries[release] else "the number of"
        rows = ", ".join(rv.name for rv in self.rvs)
        return f"{statistic} rows {rows}, of unknown number {self.number.name}"

    def marginal(self):
        """See `SumLaw.marginal`."""
        raise Declined(
            f"the sums over the rows {', '.join(rv.name for rv in self.rvs)} of unknown number "
            f"{self.number.name!r} have no marginal in closed form: use to='statistics'"
        )

    def _sizes(self) -> tuple[np.ndarray, TensorVariable]:
        """Return the numbers that matter, and the logarithms of prior and noise there."""
        matrix = pt.matrix(dtype="int64")
        noise, start = pt.zeros_like(matrix, dtype="float64"), np.full(1, np.nan)
        values = self.reading.model.rvs_to_values
        for release in (r for r, polynomials in self.entries.items() if not polynomials):
            noise += mechanism_of(release).logp(values[release], matrix)
            start = np.ravel(values[release].eval()).astype("float64")
        names = " and ".join(repr(rv.name) for rv in self.rvs)
        windows = sizes_that_matter(
            self.number, names, matrix, noise, start, _MAX_NUMBERS, linear=True
        )
        sizes, width = windows.sizes.astype("int64"), len(self.rvs)
        if sizes.min() <= width:
            raise Declined(
                f"there may be {sizes.min()} rows of {width} columns, {names}: give the number "
                f"{self.number.name!r} a prior of more than {width} rows, "
                f"pm.DiscreteUniform({self.number.name!r}, {width + 1}, {sizes.max()}) say",
                near=2,
            )
        prior = log_prior(self.number.owner.op, by_group(self.number), pt.constant(sizes))
        return sizes[0], (prior + graph_replace(noise, {matrix: pt.constant(sizes)}, strict=False))[
            0
        ]

    def _table(self, release: TensorVariable) -> np.ndarray:
        """Return the coefficients of a release: constants, those of the number, those of sums."""
        products = [(), _NUMBER, *column_products(len(self.rvs))]
        return np.array([[p.get(m, 0.0) for m in products] for p in self.entries[release]])

    def _linearised(self, exact: ExactLatents, mean, root) -> list[Linearised]:
        """Return the releases of sums, linearised in the latents of the number in the middle."""
        n, model = int(exact.n), self.reading.model
        summed = [release for release, entries in self.entries.items() if entries]
        noise = [observed_noise(model, release, mechanism_of(release)) for release in summed]
        if any(of_one is None for of_one in noise):
            return []
        value, variance = map(pt.concatenate, zip(*noise, strict=True))
        table = np.concatenate([self._table(release) for release in summed])
        offset, matrix = table[:, 0] + n * table[:, 1], table[:, 2:]
        start, start_root, z, sd = starting_values([mean, root, value - offset, pt.sqrt(variance)])
        begin = start, np.sqrt(n - 1.0) * start_root
        sample = nearest_sample(matrix, z, sd, n, begin)
        sums, moves = exact.tangent(*sample)
        jacobian = np.sqrt(n) * matrix @ moves
        # A variance that may be near zero, for all that is released, is not followed by latents
        # that are scaled by it.
        if ((jacobian[:, -exact.width :] / sd[:, None]) ** 2).sum(axis=0).min() < _TELLS:
            return []
        standard = exact.at(mean, root, *sample)
        target = value - (offset + n * matrix @ sums) + pt.dot(jacobian, standard)
        return [Linearised(pt.as_tensor(jacobian), target, variance)]

    def statistics(self):
        """Keep sums and scatter as latent variables, and sum over the numbers."""
        (sizes, weights), width = self._sizes(), len(self.rvs)
        n, middle = sizes[:, None], int(np.median(sizes))
        exact = ExactLatents(width, middle)
        rows = Rows(self.rvs, middle, self.links, (), np.array(middle))
        mean, root = rows.law()
        linear = self._linearised(exact, mean, root)
        latents, transform = row_latents(exact.size, exact.alpha, linear)
        sums, (e, _, log) = exact.sums(mean, root, latents), exact.split(latents)
        # Density of sums and scatter for each number, relative to the number in the middle.
        moved = (middle - n) * pt.linalg.solve_triangular(root, mean, lower=True, b_ndim=1)
        distance = ((moved + np.sqrt(middle) * e) ** 2 / n - e**2).sum(axis=1)
        scatter = (np.log(exact.alpha) + log / np.sqrt(exact.alpha)).sum()
        gammas = special.multigammaln((sizes - 1) / 2, width)
        weights += 0.5 * (sizes - middle) * scatter - gammas + gammas[sizes == middle]
        weights -= 0.5 * (width * np.log(sizes / middle) + distance)
        first, (i, j) = middle * sums.center, np.triu_indices(width)
        pairs = sums.second[i, j] + (first[i] * first[j]) / n
        moments = pt.concatenate([n, pt.zeros((sizes.size, width)) + first, pairs], axis=1)
        change = Change(added={f"{rows.name}_sums_standard": (latents, transform)})
        *earlier, last = (release for release, entries in self.entries.items() if entries)
        values = self.reading.model.rvs_to_values
        statistics = {}
        for release in (*earlier, last):
            table = self._table(release)
            statistic = table[:, 0] + moments @ table[:, 1:].T
            statistics[release] = statistic.reshape((sizes.size, *lengths(release)))
        law = OneOfSeveral((str(self.number.name),), tuple(sizes.tolist()))
        for release in earlier:
            mechanism = mechanism_of(release)
            weights = law.each(values[release], mechanism, weights, statistics[release])
        change.dropped = {str(r.name) for r in self.entries if r is not last}
        mechanism = mechanism_of(last)
        change.replaced[last] = integrated_release(law, mechanism, weights, statistics[last])
        return change


def _entries(readings: list[list[Polynomial]]) -> list[Polynomial]:
    """Return entries that are linear in sums and the number; none where a reading is not.

    The readings are those at `_PROBED_ROWS` numbers of rows.
    """
    entries = []
    for at in zip(*readings, strict=True):
        constants = [float(p.get((), 0.0)) for p in at]
        sums = [{m: c for m, c in p.items() if m} for p in at]
        slope = constants[1] - constants[0]
        added = constants[0] - _PROBED_ROWS[0] * slope
        if (
            any(terms != sums[0] for terms in sums)
            or any(len(m) > 2 for m in sums[0])
            or abs(added + _PROBED_ROWS[2] * slope - constants[2]) > 1e-9 * (1 + abs(constants[2]))
        ):
            return []
        entries.append({(): added, _NUMBER: slope, **sums[0]})
    return entries
