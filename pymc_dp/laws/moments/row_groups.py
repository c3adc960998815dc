r"""The law of what was released of sums over public groups of rows.

Rows of a group are jointly Normal with parameters of their own, and groups are independent: the
sums of each have the latents of `sums.ExactLatents`. Where every entry of a release is of one
group, what the releases say of the latents is a block for each group, see `latents`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.scalar.basic import ScalarVariable
from pytensor.tensor.variable import TensorVariable
from scipy import sparse

from pymc_dp.graphs.declined import Declined
from pymc_dp.laws.moments.latents import Linearised, row_latents
from pymc_dp.laws.moments.suggested import observed_noise, wrong_values
from pymc_dp.laws.moments.sums import ExactLatents, RowSums, column_products, nearest_sample
from pymc_dp.laws.sum_law import SUM_LAWS, Change, SumLaw, groups_in_words, is_rows
from pymc_dp.mechanisms.release import release_rv
from pymc_dp.reading.bounds import starting_values
from pymc_dp.reading.cells import multiplied
from pymc_dp.reading.column_sums import RowRelease
from pymc_dp.reading.model import Reading, require_possible
from pymc_dp.reading.row_groups import RowGroups, read_row_groups

_MOST_JOINT = 500  # latents of one block, whose precision is factorised for every gradient

type Linear = tuple[sparse.csr_array, np.ndarray]  # a matrix, and what is added


class Published(NamedTuple):
    """Observed entries that are linear in the sums of groups, around zero.

    Attributes
    ----------
    names : the releases that they are of.
    matrix, offset : see `SumsByGroup.linear`.
    value, variance : vectors of the published values and of the variances of the noise.
    group : of which group each is; -1 of several, or of none.
    """

    names: list[str]
    matrix: sparse.csr_array
    offset: np.ndarray
    value: TensorVariable
    variance: TensorVariable
    group: np.ndarray

    @property
    def mixes(self) -> bool:
        """Whether an entry is of several groups."""
        return bool(np.diff(self.matrix.indptr)[self.group < 0].any())

    def of(self, g: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the entries of a group, and their matrix on its own `count` sums."""
        [own] = np.nonzero(self.group == g)
        return own, self.matrix[own][:, g * count : (g + 1) * count].toarray()


@SUM_LAWS.register(order=46)
@dataclass(frozen=True, eq=False)
class GroupedColumns(SumLaw):
    """Rows of several columns by public groups: a regression in each, say."""

    reading: Reading
    rows: RowGroups

    @classmethod
    def read(cls, reading, group):
        """See `SumLaw.read`."""
        if not is_rows(group):
            raise Declined
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
        found = cls(reading, rows)
        for sums in found.sums:
            sums.require_known()
        return found

    def describe(self, release):
        """See `SumLaw.describe`."""
        rows, zero = self.rows, np.zeros(self.rows.width)
        [sums] = [s for s in self.sums if s.read.rv is release]
        try:
            used = np.unique(sums.linear(zero)[0].indices)
        except Declined:
            used = np.unique(sums.of_sums(zero)[0].indices)
            what = f"a function of {len(sums.read.maps)} sums"
        else:
            terms = [sums.products[p] for p in np.unique(used % self.count)]
            what = ", ".join(f"Σ {'·'.join(rows.labels[j] for j in term)}" for term in terms)
        sizes = rows.sizes[np.unique(used // self.count)]
        return groups_in_words(what, sizes, f"the rows {', '.join(rows.labels)}")

    def notes(self):
        """See `SumLaw.notes`."""
        known, rows = self.published(), self.rows
        if known is None:
            return []
        z, sd = starting_values([known.value - known.offset, pt.sqrt(known.variance)])
        found = []
        for g, n in enumerate(rows.sizes):
            own, matrix = known.of(g, self.count)
            names = [known.names[e] for e in own]
            if names:
                found += wrong_values(matrix, z[own], sd[own], names, rows.labels, int(n))
        return found

    @property
    def count(self) -> int:
        """The number of sums of a group."""
        return len(column_products(self.rows.width))

    @property
    def sums(self) -> list[SumsByGroup]:
        """The releases as functions of the groups' sums."""
        rows, products = self.rows, column_products(self.rows.width)
        return [SumsByGroup(release, rows.sizes, products) for release in rows.releases]

    def published(self) -> Published | None:
        """Return the observed entries that are linear in the sums; None where there are none."""
        names, linear, noise = [], [], []
        for sums in self.sums:
            own = observed_noise(self.reading.model, sums.read.rv, sums.read.mechanism)
            if own is None:
                continue
            try:
                linear.append(sums.linear(np.zeros(self.rows.width)))
            except Declined:
                continue
            noise.append(own)
            names += [sums.read.name] * linear[-1][1].size
        if not names:
            return None
        matrix = sparse.vstack([matrix for matrix, _ in linear], format="csr")
        value, variance = map(pt.concatenate, zip(*noise, strict=True))
        of_groups = sparse.kron(sparse.eye_array(self.rows.sizes.size), np.ones((self.count, 1)))
        touched = sparse.csr_array(abs(matrix) @ of_groups)
        group, single = np.full(len(names), -1), np.diff(touched.indptr) == 1
        group[single] = touched.indices[touched.indptr[:-1][single]]
        offset = np.concatenate([own for _, own in linear])
        return Published(names, matrix, offset, value, variance, group)

    def latents(self):
        """Keep the sample mean and covariance matrix of each group, as functions of latents."""
        rows, (mean, root) = self.rows, self.rows.law()
        exact, groups, known = ExactLatents(rows.width, rows.sizes), len(rows.sizes), None
        blocks = np.arange(groups * exact.size).reshape(groups, -1)
        linear: list[Linearised] = []
        if known := self.published():
            samples = self._samples(known, mean, root)
            blocks, linear = self._linearised(known, exact, samples, mean, root)
            center = samples[0]
        else:
            [center] = starting_values([mean])
        alpha = exact.alpha.reshape(len(blocks), -1)
        latents, transform = row_latents(blocks.shape[1], alpha, linear)
        z = latents.ravel()[np.argsort(blocks.ravel())].reshape((groups, -1))
        sums = exact.sums(mean, root, z)
        return self._change(latents, transform, sums, rows.sizes @ center / rows.sizes.sum())

    def integrated(self):
        """See `SumLaw.integrated`."""
        raise Declined(
            f"the sums over groups of the rows {self.rows.name!r} follow Wishart laws, which have "
            f"no marginal in closed form: use to='statistics'"
        )

    def _change(self, latents, transform, sums: RowSums, center: np.ndarray) -> Change:
        rows, n = self.rows, self.rows.sizes[:, None]
        change = Change(added={f"{rows.name}_sums_standard": (latents, transform)})
        change.deterministics[f"{rows.name}_mean"] = sums.center
        freedom = np.where(n > 1, n - 1.0, np.nan)[..., None]
        change.deterministics[f"{rows.name}_cov"] = sums.second / freedom
        first = n * (sums.center - center)
        second = sums.second + first[:, :, None] * first[:, None, :] / n[..., None]
        i, j = np.triu_indices(rows.width)
        pairs = second.reshape((len(n), -1))[:, i * rows.width + j]
        moments = pt.concatenate([first, pairs], axis=1).ravel()
        for own in self.sums:
            release = own.read.rv
            change.replaced[release] = release_rv(
                own.expression(center, moments), own.read.mechanism, n=release.owner.op.n
            )
        return change

    def _samples(self, known: Published, mean, root) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean of each group's sample, and the factor of its scatter, as suggested."""
        start, start_root, z, sd = starting_values(
            [mean, root, known.value - known.offset, pt.sqrt(known.variance)]
        )
        sizes = self.rows.sizes
        entries = [known.of(g, self.count) for g in range(sizes.size)]

        def nearest(means, factors, roots):
            found = []
            for (own, matrix), n, mean, factor, root in zip(
                entries, sizes.tolist(), means, factors, roots, strict=True
            ):
                sample = mean, factor
                if own.size:
                    sample = nearest_sample(matrix, z[own], sd[own], n, sample, root)
                found.append(sample)
            return tuple(map(np.array, zip(*found, strict=True)))

        factors = np.sqrt(np.maximum(sizes - 1, 1))[:, None, None] * start_root
        means, factors = nearest(start, factors, [None] * sizes.size)
        # Noise takes single groups to the wall, together they say what spread to expect of each.
        seen = np.linalg.solve(start_root, factors)
        together = (seen @ seen.swapaxes(1, 2)).sum(axis=0) / max(np.sum(sizes - 1), 1)
        roots = start_root @ np.linalg.cholesky(together + 1e-9 * np.diag(np.diag(together)))
        return nearest(means, factors, roots)

    def _linearised(
        self, known: Published, exact: ExactLatents, samples, mean, root
    ) -> tuple[np.ndarray, list[Linearised]]:
        """Return which latents make a block, and what is published as linear functions of these."""
        sizes = self.rows.sizes.tolist()
        latents = np.arange(len(sizes) * exact.size)
        laws = [
            (n, ExactLatents(exact.width, n).tangent(*sample))
            for n, *sample in zip(sizes, *samples, strict=True)
        ]
        moved = sparse.block_diag(
            [sparse.coo_array(np.sqrt(n) * factor) for n, (_, factor) in laws]
        )
        jacobian = sparse.csr_array(known.matrix @ moved)
        expected = np.concatenate([n * own_mean for n, (own_mean, _) in laws])
        base = np.append(known.offset + known.matrix @ expected, 0.0)
        blocks = latents.reshape(len(sizes), -1)
        members = [np.flatnonzero(known.group == g) for g in range(len(sizes))]
        if latents.size <= _MOST_JOINT and known.mixes:
            normal = exact.size - exact.width
            blocks = np.concatenate([blocks[:, :normal].ravel(), blocks[:, normal:].ravel()])[None]
            members = [np.arange(len(known.names))]
        most = max(own.size for own in members)
        entry = np.full((len(blocks), most), len(known.names))  # which is none
        table = np.zeros((*entry.shape, blocks.shape[1]))
        for b, own in enumerate(members):
            entry[b, : own.size] = own
            table[b, : own.size] = jacobian[own][:, blocks[b]].toarray()
        value = pt.concatenate([known.value, [0.0]])[entry]
        variance = pt.concatenate([known.variance, [np.inf]])[entry]
        at = exact.at(mean, root, *samples).ravel()[blocks]
        target = value - base[entry] + pt.matvec(table, at)
        return blocks, [Linearised(pt.constant(table), target, variance)]


@dataclass(frozen=True, eq=False)
class SumsByGroup:
    """A release as a function of the groups' sums.

    These are sums of single columns and of products of two, in deviations from a center, group by
    group and each in the order of `products`.

    Attributes
    ----------
    read : the release, see `RowGroups`.
    sizes : the number of rows of each group.
    products : see `column_products`.
    """

    read: RowRelease
    sizes: np.ndarray
    products: list[tuple[int, ...]]

    def require_known(self) -> None:
        """Decline what is no function of such sums, with numbers that do not change."""
        read = self.read
        if read.degree > 2:
            raise Declined(
                f"the release {read.name!r} is of products of {read.degree} columns: sums of "
                f"single columns and of products of two have a known law",
                near=1,
            )
        self._public(np.zeros(self.products[-1][-1] + 1))

    def linear(self, center: np.ndarray) -> Linear:
        """Return the entries as linear functions of the groups' sums.

        Raises
        ------
        Declined
            If an entry is none.
        """
        additive = self.read.additive
        entries = additive.affine(self._public(center))
        own = sparse.lil_array((len(entries), len(additive.sums)))
        for e, (_, sums) in enumerate(entries):
            for symbol, factor in sums.items():
                own[e, additive.sums.index(symbol)] = factor
        matrix, added = self.of_sums(center)
        own = sparse.csr_array(own)
        offset = np.array([c for c, _ in entries], dtype="float64") + own @ added
        return sparse.csr_array(own @ matrix), offset

    def expression(self, center: np.ndarray, moments: TensorVariable) -> TensorVariable:
        """Return the statistic at the groups' sums."""
        additive = self.read.additive
        try:
            matrix, offset = self.linear(center)
            entries = offset + multiplied(matrix, moments)
        except Declined:
            matrix, offset = self.of_sums(center)
            sums = offset + multiplied(matrix, moments)
            values = {symbol: sums[k] for k, symbol in enumerate(additive.sums)}
            values |= {symbol: pt.constant(c) for symbol, c in self._public(center).items()}
            entries = pt.stack(additive.at(values))
        return entries.reshape(additive.entries.shape)

    def of_sums(self, center: np.ndarray) -> Linear:
        """Return the release's own sums as linear functions of the groups'."""
        sums, groups = self.read.additive.sums, np.arange(self.sizes.size)
        matrix = sparse.lil_array((len(sums), groups.size * len(self.products)))
        added = np.zeros(len(sums))
        for k, symbol in enumerate(sums):
            for monomial, multiples in self.read.of_deviations(symbol, center).items():
                if monomial:
                    at = groups * len(self.products) + self.products.index(monomial)
                    matrix[k, at] = multiples
                else:
                    added[k] = multiples @ self.sizes
        found = sparse.csr_array(matrix)
        found.eliminate_zeros()
        return found, added

    def _public(self, center: np.ndarray) -> dict[ScalarVariable, float]:
        found = self.read.public(center)
        if any(isinstance(c, Variable) for c in found.values()):
            raise Declined(
                f"the statistic of the release {self.read.name!r} has coefficients that are no "
                f"fixed numbers, pm.Data say: write numbers in their place",
                near=2,
            )
        return found
