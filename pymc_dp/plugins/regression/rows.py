r"""The exact law of released sums over jointly Normal rows, all rows or by public groups.

Rows of a group are jointly Normal with parameters of their own, and groups are independent: the
sums of each have the latents of `sums.ExactLatents`. Where every entry of a release is of one group
only, the latents have a block for each group in the posterior precision, see `statistics`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable
from scipy import sparse

from pymc_dp.graphs.declined import Declined
from pymc_dp.laws.moments.latents import Linearised, matvec, observed_noise, row_latents
from pymc_dp.laws.moments.sums import (
    ExactLatents,
    RowSums,
    column_products,
    matrix_of,
    nearest_sample,
    sample_sums,
)
from pymc_dp.laws.sum_law import LAWS, Change, Phase, SumLaw, Takes, groups_in_words
from pymc_dp.mechanisms.release import FeasibleRegression, record_bounds, release_rv
from pymc_dp.reading.bounds import starting_values
from pymc_dp.reading.cells import multiplied
from pymc_dp.reading.checks import require_possible
from pymc_dp.reading.column_sums import RowRelease, as_numbers
from pymc_dp.reading.columns import Rows
from pymc_dp.reading.model import Reading
from pymc_dp.reading.row_groups import read_row_groups
from pymc_dp.reading.sums.polynomials import Polynomial

_IMPOSSIBLE = 10.0  # standard deviations of the noise from possible sums, for a note
_MOST_JOINT_LATENTS = 500  # latents of one block, whose precision is factorised for every gradient

type Sample = tuple[np.ndarray, np.ndarray]  # means of the groups, and factors of their scatter


class Published(NamedTuple):
    """Observed entries that are linear in the sums of groups.

    Attributes
    ----------
    names : the name of each entry's release.
    polynomials : the entries as functions of the sums, see `RowRelease.linear_graphs`.
    value, variance : vectors of the published values and of the variances of the noise.
    """

    names: list[str]
    polynomials: list[Polynomial]
    value: TensorVariable
    variance: TensorVariable


@dataclass(frozen=True, eq=False)
class JointRows(SumLaw):
    """Rows of several columns, all alike or by groups."""

    reading: Reading
    rows: Rows

    def recovered(self, posterior, rng):
        """See `SumLaw.recovered`: the statistics of rows are sampled, not drawn afterwards."""
        name = f"{self.rows.name}_mean"
        if name not in posterior:
            raise ValueError(
                f"the statistics of the rows are part of a result that was sampled on them: "
                f"this one has no {name!r}. Sample with rung='statistics'"
            )
        return {}

    def notes(self):
        """See `SumLaw.notes`."""
        known, rows = self._published(), self.rows
        if known is None:
            return []
        matrix, offset = self.matrix(as_numbers(known.polynomials))
        z, sd = starting_values([known.value - offset, pt.sqrt(known.variance)])
        notes = []
        for members, table, n in self._by_group(matrix, self._members(self._groups_of(known))):
            if members.size:
                entries = [(name := known.names[e], e - known.names.index(name)) for e in members]
                notes += _wrong_values(table, z[members], sd[members], entries, rows.labels, n)
        return notes

    def statistics(self):
        """Keep the sample mean and covariance matrix of each group, as functions of latents."""
        rows, (mean, root) = self.rows, self.rows.law()
        exact, groups = ExactLatents(rows.width, rows.sizes), rows.sizes.size
        known, joint = self._published(), False
        blocks, alpha = np.arange(groups * exact.size).reshape(groups, -1), exact.alpha
        linear, center = [], None
        if known is not None:
            entry_groups = self._groups_of(known)
            members = self._members(entry_groups)
            joint = blocks.size <= _MOST_JOINT_LATENTS and any(
                involved.size > 1 for involved in entry_groups
            )
            if joint:
                parts = np.split(blocks, [exact.size - exact.width], axis=1)
                blocks = np.concatenate([p.ravel() for p in parts])[None]
                alpha = alpha.reshape(1, -1)
            # Coefficients with pm.Data may change: then the sums themselves are linearised, not
            # entries.
            products, polynomials = column_products(rows.width), known.polynomials
            changes = any(isinstance(c, Variable) for p in polynomials for c in p.values())
            polynomials = [{p: 1.0} for p in products] if changes else polynomials
            entry = _padded(
                [np.arange(len(polynomials))] if len(blocks) == 1 else members, len(polynomials)
            )

            def linearised() -> list[np.ndarray]:
                arrays = self._linearised(
                    known, exact, members, mean, root, polynomials, blocks, entry
                )
                return arrays if rows.sizes.ndim else [only for [only] in arrays]

            numbers = linearised() if rows.sizes.ndim else self.reading.following(linearised)
            center, factor, table, base = numbers
            if changes:
                by, offset = matrix_of(known.polynomials, products)
                table, base = by @ table, offset + by @ base
            standard = exact.at(mean, root, center, factor)
            value, variance = known.value, known.variance
            if rows.sizes.ndim:
                value = pt.concatenate([value, [0.0]])[entry]
                variance = pt.concatenate([variance, [np.inf]])[entry]
            standard = standard.ravel()[blocks] if joint else standard
            target = value - base + matvec(table, standard)
            linear = [Linearised(pt.as_tensor(table), target, variance)]
        latents, transform = row_latents(blocks.shape[1], alpha, linear)
        z = latents
        if joint:
            z = latents.ravel()[np.argsort(blocks.ravel())].reshape((groups, -1))
        if rows.sizes.ndim:
            [center] = starting_values([mean]) if center is None else [center]
            center = rows.sizes @ center / rows.sizes.sum()
        sums = exact.sums(mean, root, z)
        return self.kept((latents, transform), sums, rows.releases, center)

    def kept(self, latents, sums: RowSums, used: Sequence[RowRelease], center=None) -> Change:
        """Return the change to latents and sums that are functions of them.

        Statistics of groups are written in sums of deviations from a public `center`.
        """
        rows, change = self.rows, Change(added={f"{self.rows.name}_sums_standard": latents})
        mean, cov = sums.moments(rows.sizes)
        change.deterministics[f"{rows.name}_mean"] = mean
        change.deterministics[f"{rows.name}_cov"] = cov
        for release in used:
            if rows.sizes.ndim:
                statistic = self._statistic(release, sums, center)
            else:
                statistic = release.expression(sums.center, sums.first, sums.second)
            op, region = release.op, self._region(release, mean, cov)
            change.replaced[release.rv] = release_rv(
                statistic, release.mechanism, moments=region, bounds=op.bounds, n=op.n
            )
        change.dropped |= {r.name for r in rows.releases} - {r.name for r in used}
        return change

    def matrix(self, polynomials: Sequence[Polynomial]) -> tuple[sparse.csr_array, np.ndarray]:
        """Return polynomials of degree one as a matrix on the groups' sums, and an offset.

        The sums are group by group, and each in the order of `column_products`.
        """
        products, groups = column_products(self.rows.width), self.rows.sizes.size
        matrix = sparse.lil_array((len(polynomials), groups * len(products)))
        offset = np.zeros(len(polynomials))
        for e, polynomial in enumerate(polynomials):
            for monomial, c in polynomial.items():
                if monomial:
                    c = np.broadcast_to(c, groups)
                    [g] = np.nonzero(c)
                    matrix[e, g * len(products) + products.index(monomial)] = c[g]
                else:
                    offset[e] = c
        return sparse.csr_array(matrix), offset

    def _published(self) -> Published | None:
        """Return the observed entries that are linear in the sums; None where there are none."""
        names: list[str] = []
        polynomials: list[Polynomial] = []
        noise = []
        for release in self.rows.releases:
            observed = observed_noise(self.reading.model, release.rv, release.mechanism)
            with suppress(Declined):
                if observed is not None and release.degree <= 2:
                    polynomials += release.linear_graphs()
                    names += [release.name] * (len(polynomials) - len(names))
                    noise.append(observed)
        if not names:
            return None
        return Published(names, polynomials, *map(pt.concatenate, zip(*noise, strict=True)))

    def _groups_of(self, known: Published) -> list[np.ndarray]:
        """Return, for each entry, the groups in it."""
        groups = self.rows.sizes.size
        if groups == 1:
            return [np.zeros(1, dtype=int)] * len(known.names)
        weighed = ([c != 0 for m, c in p.items() if m] for p in known.polynomials)
        return [np.flatnonzero(sum(masks, np.zeros(groups))) for masks in weighed]

    def _members(self, entry_groups: list[np.ndarray]) -> list[np.ndarray]:
        """Return the entries of each group alone, from the groups in each entry."""
        alone = [involved[0] if involved.size == 1 else -1 for involved in entry_groups]
        return [np.flatnonzero(np.equal(alone, g)) for g in range(self.rows.sizes.size)]

    def _by_group(self, matrix: sparse.csr_array, members: list[np.ndarray]):
        """Yield the entries of each group, their matrix on the sums of the group, and its size."""
        count = len(column_products(self.rows.width))
        for g, (entries, n) in enumerate(
            zip(members, self.rows.sizes.ravel().tolist(), strict=True)
        ):
            yield entries, matrix[entries][:, g * count : (g + 1) * count].toarray(), n

    def _samples(self, parts, z, sd, start, start_root) -> Sample:
        """Return the most plausible sample of each group, searched from the law's expectation."""
        sizes = self.rows.sizes.ravel()

        def nearest(means, factors, roots) -> Sample:
            samples = []
            for (entries, table, n), *sample, root in zip(
                parts, means, factors, roots, strict=True
            ):
                if entries.size:
                    sample = [
                        *nearest_sample(table, z[entries], sd[entries], n, tuple(sample), root)
                    ]
                samples.append(sample)
            means, factors = map(np.array, zip(*samples, strict=True))
            return means, factors

        factors = np.sqrt(np.maximum(sizes - 1, 1))[:, None, None] * start_root
        means, factors = nearest(start, factors, [None] * sizes.size)
        if not self.rows.sizes.ndim:
            return means, factors
        # With much noise single groups end at the edge; all together tell the spread of each group.
        seen = np.linalg.solve(start_root, factors)
        pooled = (seen @ seen.swapaxes(1, 2)).sum(axis=0) / max(np.sum(sizes - 1), 1)
        roots = start_root @ np.linalg.cholesky(pooled + 1e-9 * np.diag(np.diag(pooled)))
        return nearest(means, factors, roots)

    def _linearised(
        self, known: Published, exact: ExactLatents, members, mean, root, polynomials, blocks, entry
    ) -> list[np.ndarray]:
        """Return the samples, and polynomials of the sums linearised in blocks of latents."""
        matrix, offset = self.matrix(as_numbers(known.polynomials))
        start, start_root, z, sd = starting_values(
            [mean, root, known.value - offset, pt.sqrt(known.variance)]
        )
        w, parts = exact.width, [*self._by_group(matrix, members)]
        start, start_root = start.reshape(-1, w), start_root.reshape(-1, w, w)
        samples = self._samples(parts, z, sd, start, start_root)
        laws = [
            (n, *ExactLatents(w, n).tangent(*sample))
            for (*_, n), *sample in zip(parts, *samples, strict=True)
        ]
        matrix, offset = self.matrix(as_numbers(polynomials))
        moved = sparse.block_diag([sparse.coo_array(np.sqrt(n) * factor) for n, _, factor in laws])
        base = offset + matrix @ np.concatenate([n * group_mean for n, group_mean, _ in laws])
        # The last row, of zeros, stands for no entry: blocks are padded with it.
        jacobian = sparse.vstack([matrix @ moved, sparse.csr_array((1, moved.shape[1]))], "csr")
        table = [jacobian[e][:, block].toarray() for e, block in zip(entry, blocks, strict=True)]
        return [*samples, np.array(table), np.append(base, 0.0)[entry]]

    def _statistic(self, release: RowRelease, sums: RowSums, center: np.ndarray) -> TensorVariable:
        """Return a release's statistic at the groups' sums."""
        n, w, additive = self.rows.sizes[:, None], self.rows.width, release.additive
        first = n * (sums.center - center)
        second = sums.second + first[:, :, None] * first[:, None, :] / n[..., None]
        i, j = np.triu_indices(w)
        pairs = second.reshape((len(n), -1))[:, i * w + j]
        moments = pt.concatenate([first, pairs], axis=1).ravel()

        def evaluated(polynomials: list[Polynomial]) -> TensorVariable:
            matrix, offset = self.matrix(polynomials)
            return offset + multiplied(matrix, moments)

        try:
            entries = evaluated(release.linear_around(center))
        except Declined:
            totals = evaluated(release.of_sums(center))
            values = {symbol: totals[k] for k, symbol in enumerate(additive.sums)}
            values |= {symbol: pt.constant(c) for symbol, c in release.public(center).items()}
            entries = pt.stack(additive.at(values))
        return entries.reshape(additive.entries.shape)

    def _region(self, release: RowRelease, mean, cov) -> FeasibleRegression | None:
        """Return the feasible region of the sums under the bounds that a release states."""
        rows, op, inputs = self.rows, release.op, release.rv.owner.inputs
        if op.region is None:
            return None
        if rows.width != 2 or op.region is not FeasibleRegression:
            bounded = ", ".join(repr(rv.name) for rv in record_bounds(release.rv, rows.records))
            raise Declined(
                f"the release {release.name!r} states bounds= of {bounded}: on the sums of the "
                f"rows {', '.join(rows.labels)} only those of a simple regression are kept, "
                f"stated for both columns in one release. Sample with rung='records'"
            )
        *_, law = op.split(inputs)
        total, products = mean * rows.n, (rows.n - 1) * cov + rows.n * pt.outer(mean, mean)
        region_sums = total[0], products[0, 0], total[1], products[0, 1], products[1, 1]
        return FeasibleRegression(*law[:3], *region_sums)


def _padded(entries: list[np.ndarray], none: int) -> np.ndarray:
    """Return index arrays as rows of a matrix, padded with `none`."""
    padded = np.full((len(entries), max(map(len, entries))), none)
    for row, indices in zip(padded, entries, strict=True):
        row[: indices.size] = indices
    return padded


def _wrong_values(
    matrix: np.ndarray,
    z: np.ndarray,
    sd: np.ndarray,
    entries: list[tuple[str, int]],
    labels: list[str],
    n: int,
) -> list[str]:
    """Say which released values n rows cannot have; see `nearest_sample`."""
    width, products = len(labels), column_products(len(labels))
    problems = []
    for row in np.unique(matrix, axis=0):
        [repeated] = np.nonzero((matrix == row).all(axis=1))
        if row.any() and repeated.size > 1 and np.unique(z[repeated]).size < repeated.size:
            product = products[int(np.flatnonzero(row)[0])]
            problems.append(
                f"{entries[repeated[0]][0]!r}: the sum of "
                f"{'·'.join(labels[c] for c in product)} is released {repeated.size} times with "
                f"the same value, which separate draws of noise do not give: release each number "
                f"once, of a symmetric matrix X'X the upper triangle, "
                f"(X.T @ X)[np.triu_indices(d)]"
            )
    if n > width:
        mean, factor = nearest_sample(
            matrix, z, sd, n, (np.zeros(width), np.sqrt(n) * np.eye(width))
        )
        distance = np.abs(matrix @ sample_sums(mean, factor, n) - z) / sd
        worst = int(np.argmax(distance))
        if distance[worst] > _IMPOSSIBLE:
            name, number = entries[worst]
            problems.append(
                f"{name!r}: no {n} rows have these sums: entry {number} is "
                f"{distance[worst]:.3g} standard deviations of the noise from the nearest that "
                f"rows have. Check the units, the order of the entries, the number of rows and the "
                f"noise"
            )
    return problems


# --- By groups ---------------------------------------------------------------------------------


@LAWS.register(Phase.ROWS, Takes(rows=True))
class GroupedColumns(JointRows):
    """Rows of several columns by public groups: a regression in each, say."""

    @classmethod
    def read(cls, reading, group):
        """See `SumLaw.read`."""
        rows = read_row_groups(reading, group)
        require_possible([release.rv for release in rows.releases])
        for release in rows.releases:
            if release.op.bounds is not None:
                raise Declined(
                    f"the release {release.name!r} states bounds=: on the sums of groups of rows "
                    f"none are kept. Leave it out, or sample with rung='records'",
                    near=2,
                )
        latents, sizes = ExactLatents(rows.width, rows.sizes).size, rows.sizes
        if latents * sizes.size >= rows.width * sizes.sum():
            raise Declined(
                f"the rows {rows.name!r} are in {sizes.size} groups of {sizes.min()} to "
                f"{sizes.max()} that are alike: there is no shorter statistic than these rows",
                near=0 if rows.sizes.max() > 1 else -1,
            )
        for release in rows.releases:
            _require_known(release)
        return cls(reading, rows)

    def describe(self, release):
        """See `SumLaw.describe`."""
        rows, products = self.rows, column_products(self.rows.width)
        [row_release] = [r for r in rows.releases if r.rv is release]
        try:
            used = np.unique(self.matrix(row_release.linear())[0].indices)
        except Declined:
            used = np.unique(self.matrix(row_release.of_sums())[0].indices)
            statistic = f"a function of {len(row_release.maps)} sums"
        else:
            terms = [products[p] for p in np.unique(used % len(products))]
            statistic = ", ".join(f"Σ {'·'.join(rows.labels[j] for j in term)}" for term in terms)
        sizes = rows.sizes[np.unique(used // len(products))]
        return groups_in_words(statistic, sizes, f"the rows {', '.join(rows.labels)}")

    def marginal(self):
        """See `SumLaw.marginal`."""
        raise Declined(
            f"the sums over groups of the rows {self.rows.name!r} follow Wishart laws, which have "
            f"no marginal in closed form: use to='statistics'"
        )


def _require_known(release: RowRelease) -> None:
    """Decline statistics that are no functions of sums with fixed coefficients."""
    if release.degree > 2:
        raise Declined(
            f"the release {release.name!r} is of products of {release.degree} columns: sums of "
            f"single columns and of products of two have a known law",
            near=1,
        )
    if any(isinstance(c, Variable) for c in release.public().values()):
        raise Declined(
            f"the statistic of the release {release.name!r} has coefficients that are no "
            f"fixed numbers, pm.Data say: write numbers in their place",
            near=2,
        )
