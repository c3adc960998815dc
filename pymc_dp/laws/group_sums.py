r"""Sums over records that differ by public groups or covariates, and values released one by one.

A release is :math:`A x + b`, see `reading.cells`. Where each of its entries is a sum over records
that no other entry uses, entries are independent, and each has a law of its own where the records'
law is closed under addition: Normal, and with one law in each entry Bernoulli, Binomial, Gamma,
Exponential and negative binomial; Poisson rates add up whatever they are (other counts with
several laws in an entry are for `counts_by_cell`). Of a single record, each law is its own. Normal
entries that share records are jointly Normal, with covariance
:math:`A \operatorname{diag}(\sigma^2) A'`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, singledispatch
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytensor.tensor.random.basic as ptr
from pymc.distributions.transforms import _default_transform
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable
from scipy import sparse

from pymc_dp.graphs.declined import Declined, about
from pymc_dp.graphs.questions import is_nonnegative, known_shape
from pymc_dp.laws import is_registered, law_names, require_pair
from pymc_dp.laws.counted import read_law
from pymc_dp.laws.moments.normal import normal_release
from pymc_dp.laws.one_value import (
    Law,
    Piece,
    Statistic,
    frozen,
    independent_release,
    pieces_release,
    require_multiples,
)
from pymc_dp.laws.shown import Shown, confidential, of_weights
from pymc_dp.laws.sum_law import SUM_LAWS, Change, SumLaw, groups_in_words
from pymc_dp.mechanisms.release import release_rv
from pymc_dp.reading.cells import (
    LinearSums,
    at_records,
    cells_of,
    combined,
    factors,
    is_shared,
    parameters_of_entries,
    places,
    read_linear,
    require_numbers,
)
from pymc_dp.reading.model import (
    Reading,
    check_transform,
    parents,
    release_mechanism,
    releases_of,
    require_possible,
)

_MOST_JOINT = 2000  # entries whose covariance matrix is made


def _sum(op, *parameters) -> Law:
    return Law(op, tuple(map(pt.as_tensor, parameters)))


@singledispatch
def sum_of(op, n, *parameters) -> Law:
    """Return the law of the sum of n independent records with these parameters.

    Dispatched on the op of the records' law. `n` is an array, the parameters are vectors or
    scalars.
    """
    raise Declined


sum_of.register(ptr.PoissonRV, lambda op, n, rate: _sum(op, n * rate))
sum_of.register(ptr.NormalRV, lambda op, n, mu, sigma: _sum(op, n * mu, pt.sqrt(n) * sigma))
sum_of.register(ptr.BernoulliRV, lambda op, n, p: _sum(ptr.binomial, n, p))
sum_of.register(ptr.BinomialRV, lambda op, n, m, p: _sum(op, n * m, p))
sum_of.register(ptr.ExponentialRV, lambda op, n, scale: _sum(ptr._gamma, n * 1.0, scale))
sum_of.register(ptr.GammaRV, lambda op, n, shape, scale: _sum(op, n * shape, scale))
sum_of.register(ptr.NegBinomialRV, lambda op, n, m, p: _sum(op, n * m, p))


@dataclass(frozen=True, eq=False)
class IndependentEntries:
    """The entries of a release, raveled: independent ``factor * statistic + constant``.

    Attributes
    ----------
    law : of the statistics; parameters are vectors, or scalars where all agree.
    factor, constant : numbers, one for each entry.
    empty : whether an entry is a sum over no records, and the constant alone.
    shown : what stands in results; of Normal records it may be other than the statistics.
    """

    law: Law
    factor: np.ndarray
    constant: np.ndarray
    empty: np.ndarray
    shown: Shown

    def keep(self, change: Change, name: str, statistic: TensorVariable) -> TensorVariable:
        """Add what stands in results as a latent variable; put it where it belongs in a release."""
        [kept] = np.nonzero(~self.empty)
        parts = [p[kept] if p.type.ndim else p for p in self.law.parameters]
        factor, constant = self.shown.factor[kept], self.shown.constant[kept]
        if isinstance(self.law.op, ptr.NormalRV):
            times, added = self.factor[kept] / factor, (self.constant[kept] - constant) / factor
            if (times != 1.0).any() or added.any():
                mu, sigma = parts
                parts = [times * mu + added, abs(times) * sigma]
        rng = pt.random.shared_rng(seed=None)
        _, latent = self.law.op(*parts, size=(kept.size,), rng=rng, return_next_rng=True)
        change.added[name] = (latent, _default_transform(self.law.op, latent))
        own = factor * latent + constant
        return own if kept.size == self.empty.size else pt.set_subtensor(statistic[kept], own)


def read_sums(
    reading: Reading, rv: TensorVariable, beside: tuple[TensorVariable, ...] = ()
) -> tuple[Any, list[TensorVariable], tuple[LinearSums, ...]]:
    """Return the law of independent records, its parameters, and their linear releases."""
    try:
        law, parameters = read_law(rv)
    except Declined:
        raise Declined from None  # another law's, or of none
    check_transform(reading.model, rv)
    require_numbers(rv, parameters)
    mine = releases_of(reading.model, [rv])
    require_possible(mine)
    for release in mine:
        if release.owner.op.bounds is not None:
            raise Declined(
                f"the release {release.name!r} has bounds=, which tie the records {rv.name!r} "
                f"together. Leave it out, or sample with rung='records'",
                near=2,
            )
    try:
        return law, parameters, tuple(read_linear(reading, r, rv, beside) for r in mine)
    except Declined:
        if is_registered(sum_of, law):
            raise
        raise Declined from None  # sums over these records have no law


@SUM_LAWS.register(order=40)
@dataclass(frozen=True, eq=False)
class GroupSums(SumLaw):
    """Independent records of one law: sums over public groups of them, and records one by one."""

    rv: TensorVariable
    law: Any
    parameters: Sequence[TensorVariable]
    releases: tuple[LinearSums, ...]

    @classmethod
    def named(cls):
        """See `SumLaw.named`."""
        elsewhere = ptr.BernoulliRV, ptr.NormalRV  # which other laws name
        return law_names(law for law in sum_of.registry if law not in elsewhere)

    @classmethod
    def read(cls, reading, group):
        """See `SumLaw.read`."""
        [rv, *more] = group.records
        if more:
            raise Declined
        found = cls.of_one(reading, rv)
        if found._is_joint() and len(found.releases) > 1:
            names = ", ".join(repr(r.rv.name) for r in found.releases)
            raise Declined(
                f"the records {rv.name!r} are in several releases ({names}), which use the same "
                f"records: write them as one release of pt.concatenate([...])"
            )
        return found

    @classmethod
    def of_one(
        cls, reading: Reading, rv: TensorVariable, beside: tuple[TensorVariable, ...] = ()
    ) -> GroupSums:
        """Read the records of one variable; those `beside` are in the same releases."""
        found = cls(rv, *read_sums(reading, rv, beside))
        if not found.is_normal:
            _ = found.entries  # or why they have no law
        return found

    @property
    def is_normal(self) -> bool:
        """Whether the records are Normal, so that all linear functions of them are."""
        return isinstance(self.law, ptr.NormalRV)

    def is_by_itself(self, release: LinearSums) -> bool:
        """Whether each entry of a release is of one record, in order."""
        n, weights = release.weights.shape[1], release.weights
        return (
            weights.shape == (n, n)
            and np.array_equal(weights.indptr, np.arange(n + 1))
            and (np.array_equal(weights.indices, np.arange(n)))
        )

    def describe(self, release):
        """See `SumLaw.describe`."""
        [found] = [r for r in self.releases if r.rv is release]
        name = self.rv.name
        if self.is_by_itself(found):
            return f"every one of {name}"
        sizes = np.diff(found.weights.indptr)
        return groups_in_words(_weighting(found.weights), sizes, name)

    def shown(self, release: LinearSums) -> Shown:
        """Return what stands in results of a release."""
        of = self.rv.name if len(self.releases) == 1 else f"{self.rv.name}_{release.rv.name}"
        found = of_weights(of, self.law, release.rv, release.weights, release.offset)
        return found._replace(name=self.rv.name) if self.is_by_itself(release) else found

    @cached_property
    def entries(self) -> list[IndependentEntries]:
        """The law of every entry of each release; decline what is not independent."""
        if is_shared(*self.releases):
            raise Declined(
                f"the releases of the records {self.rv.name!r} use the same records more than "
                f"once, and only sums of Normal records have a joint law here",
                near=1,
            )
        return [self._entries(release) for release in self.releases]

    def _entries(self, release: LinearSums) -> IndependentEntries:
        weights, constant = release.weights, release.offset
        sizes = np.diff(weights.indptr)
        empty, shown = sizes == 0, self.shown(release)
        if self.is_normal:
            mu, _ = self.parameters
            mean = combined(weights, mu, places(self.rv))
            # Of nothing the variance is 0, where the density has no gradient; nor has it below.
            law = _sum(self.law, mean, pt.sqrt(self.variances(weights) + empty))
            return IndependentEntries(law, np.ones(sizes.size), constant, empty, shown)
        factor = factors(release, self.rv)
        if isinstance(self.law, ptr.PoissonRV):
            ones = sparse.csr_array(
                (np.ones(weights.nnz), weights.indices, weights.indptr), shape=weights.shape
            )
            [rate] = self.parameters
            total = combined(ones, rate, places(self.rv)) + empty
            law = _sum(self.law, self.possible(rate, total))
            return IndependentEntries(law, factor, constant, empty, shown)
        single = bool((sizes <= 1).all())
        if not single and not is_registered(sum_of, self.law):
            raise Declined
        own = parameters_of_entries(release, self.rv, self.parameters)
        if single:
            return IndependentEntries(_sum(self.law, *own), factor, constant, empty, shown)
        n = np.maximum(sizes, 1)
        if (n == n[0]).all():
            n = n[0]
        return IndependentEntries(sum_of(self.law, n, *own), factor, constant, empty, shown)

    def variances(self, weights: sparse.csr_array) -> TensorVariable:
        """Return the variance of each entry of weights @ records, for Normal records."""
        _, sigma = self.parameters
        squares = sparse.csr_array(weights.multiply(weights))
        return self.possible(sigma, combined(squares, sigma**2, places(self.rv)))

    def possible(self, parameter: TensorVariable, total: TensorVariable) -> TensorVariable:
        """Return a total, NaN where a record's parameter is negative: its sum may not show it."""
        if is_nonnegative(parameter):
            return total
        of_cells = at_records(self.rv, parameter, cells_of(self.rv, [parameter]).first)
        return pt.switch(pt.all(of_cells >= 0), total, np.nan)

    def latents(self):
        """Keep the statistics as latent variables."""
        if all(map(self.is_by_itself, self.releases)):
            raise Declined(
                f"the values {self.rv.name!r} are released one by one: there is no shorter "
                f"statistic"
            )
        self.require_variable()
        change = Change()
        if self._is_joint():
            release, mean, factor = self._joint()
            name, times, added = self.shown(release)
            standard = pm.Normal.dist(0.0, 1.0, shape=factor.type.shape[1])
            change.added[f"{name}_standard"] = (standard, None)
            statistic, shape = mean + factor @ standard, known_shape(release.rv)
            change.deterministics[name] = ((statistic - added) / times).reshape(shape)
            statistic = statistic.reshape(shape)
            change.replaced[release.rv] = release_rv(statistic, release_mechanism(release.rv))
            return change
        for release, found in zip(self.releases, self.entries, strict=True):
            statistic = found.keep(change, found.shown.name, pt.constant(found.constant))
            statistic = statistic.reshape(known_shape(release.rv))
            change.replaced[release.rv] = release_rv(statistic, release_mechanism(release.rv))
        return change

    def integrated(self):
        """Integrate the statistics out, too."""
        change = Change()
        if self._is_joint():
            release, mean, factor = self._joint()
            shown = self.shown(release)
            normal_release(change, release.rv, mean, factor, shown.name, shown.public)
            return change
        for release, found in zip(self.releases, self.entries, strict=True):
            mechanism = release_mechanism(release.rv)
            shape = known_shape(release.rv)
            require_multiples(release.rv, mechanism, found.factor, found.constant)
            parameters = [
                p.reshape(shape) if p.type.ndim else pt.broadcast_to(p, shape)
                for p in found.law.parameters
            ]
            with about(f"the release {release.rv.name!r}"):
                require_pair(found.law.op, mechanism, parameters)
            name, *public = found.shown
            statistic = Statistic(
                name,
                found.law.op,
                len(parameters),
                *(_numbers(x, shape) for x in (found.factor, found.constant, found.empty)),
                tuple(_numbers(x, shape) for x in public) if self.is_normal else None,
            )
            change.replaced[release.rv] = independent_release(statistic, parameters, mechanism)
        return change

    def require_variable(self) -> None:
        """Decline a law that PyMC has no variable of, one that is read from a mixture."""
        if not isinstance(self.law, RandomVariable):
            raise Declined(
                f"the values {self.rv.name!r} follow a mixture, and are integrated out or kept as "
                f"they are: use to='marginal'"
            )

    def _is_joint(self) -> bool:
        return self.is_normal and is_shared(*self.releases)

    def _joint(self) -> tuple[LinearSums, TensorVariable, TensorVariable]:
        """Return the one release of Normal records, its mean and a factor of its covariance."""
        [release] = self.releases  # of others, see `read`
        weights, (mu, sigma) = release.weights, self.parameters
        entries = weights.shape[0]
        if entries > _MOST_JOINT:
            raise Declined(
                f"the release {release.rv.name!r} has {entries} entries that use the same records: "
                f"their covariance matrix is too large"
            )
        mean = combined(weights, mu, places(self.rv)) + release.offset
        mean = self.possible(sigma, mean)
        cells = cells_of(self.rv, [sigma])
        spread = at_records(self.rv, sigma, cells.first)
        columns = []
        for c in range(cells.sizes.size):
            own = weights[:, np.flatnonzero(cells.of == c)]
            values, vectors = np.linalg.eigh((own @ own.T).toarray())
            kept = values > 1e-12 * values.max(initial=0.0)
            root = pt.constant(vectors[:, kept] * np.sqrt(values[kept]))
            columns.append(root * (spread[c] if spread.type.ndim else spread))
        return release, mean, pt.concatenate(columns, axis=1)


@SUM_LAWS.register(order=45)
@dataclass(frozen=True, eq=False)
class SeveralSums(SumLaw):
    """Independent records of several variables in the same releases, each entry of one of them."""

    variables: tuple[GroupSums, ...]

    @classmethod
    def named(cls):
        """See `SumLaw.named`."""
        return ""

    @classmethod
    def read(cls, reading, group):
        """See `SumLaw.read`."""
        records = group.records
        if len(records) == 1 or any(v in parents(rv) for rv in records for v in records):
            raise Declined
        found = cls(
            tuple(
                GroupSums.of_one(reading, rv, tuple(v for v in records if v is not rv))
                for rv in records
            )
        )
        for release in found.releases():
            used = sum(np.diff(r.weights.indptr) > 0 for _, r in found.parts(release))
            if np.max(used) > 1:
                names = " and ".join(repr(rv.name) for rv in records)
                raise Declined(f"an entry of {release.name!r} is of the records {names} at once")
        return found

    def releases(self) -> list[TensorVariable]:
        """Return the releases, each once."""
        return list(dict.fromkeys(r.rv for v in self.variables for r in v.releases))

    def parts(self, release: TensorVariable) -> list[tuple[GroupSums, LinearSums]]:
        """Return the variables that a release is of."""
        return [(v, r) for v in self.variables for r in v.releases if r.rv is release]

    def describe(self, release):
        """See `SumLaw.describe`."""
        return ", ".join(variable.describe(release) for variable, _ in self.parts(release))

    def latents(self):
        """Keep the statistics as latent variables."""
        change = Change()
        for release in self.releases():
            statistic: Any = None
            whole_shown = False
            for variable, sums in self.parts(release):
                variable.require_variable()
                found = variable.entries[variable.releases.index(sums)]
                if statistic is None:
                    statistic = pt.constant(found.constant)
                name = found.shown.name
                if whole := name == confidential(release):  # of which this is a part
                    name = f"{name}_{variable.rv.name}"
                whole_shown |= whole
                statistic = found.keep(change, name, statistic)
            statistic = statistic.reshape(known_shape(release))
            if whole_shown:
                change.deterministics[confidential(release)] = statistic
            change.replaced[release] = release_rv(statistic, release_mechanism(release))
        return change

    def integrated(self):
        """Integrate the statistics out, too."""
        change = Change()
        for release in self.releases():
            pieces: list[Piece] = []
            laws = [(v, s, v.entries[v.releases.index(s)]) for v, s in self.parts(release)]
            of_none = np.all([found.empty for _, _, found in laws], axis=0)
            for variable, _, found in laws:
                # What is of no records stands with the first variable.
                [own] = np.nonzero(~found.empty | (of_none & (not pieces)))
                parameters = (p[own] if p.type.ndim else p for p in found.law.parameters)
                law = Law(found.law.op, tuple(parameters))
                numbers = found.factor[own], found.constant[own], found.empty[own]
                public = found.shown.factor[own], found.shown.constant[own]
                shown = public if variable.is_normal else None
                pieces.append(Piece(found.shown.name, law, own, *numbers, shown))
            mechanism = release_mechanism(release)
            change.replaced[release] = pieces_release(pieces, release, mechanism)
        return change


def _weighting(weights: sparse.csr_array) -> str:
    """Say what a weighted sum is, for `SumLaw.describe`."""
    sizes = np.diff(weights.indptr)
    if np.allclose(weights.data, 1.0, rtol=1e-12):
        return "sum"
    if np.allclose(weights.data, np.repeat(1.0 / np.maximum(sizes, 1), sizes), rtol=1e-12):
        return "mean"
    return "weighted sum"


def _numbers(numbers: np.ndarray, shape: Sequence[int | None]) -> Any:
    """Return numbers as what can be hashed, one where all agree."""
    if numbers.size and (numbers == numbers[0]).all():
        return numbers[0].item()
    return frozen(numbers.reshape([int(n or 0) for n in shape]))
