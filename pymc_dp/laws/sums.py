"""Releases of sums over records: both rungs, for every law of the records.

A family gives the law of sums over the records of one variable. This module reads the releases,
puts entries of several variables together, and builds the rungs.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.transforms import _default_transform
from pytensor.tensor.basic import Alloc
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, about, nearest
from pymc_dp.graphs.registry import Registry
from pymc_dp.graphs.shapes import known_shape
from pymc_dp.laws import require_pair
from pymc_dp.laws.counted import read_law
from pymc_dp.laws.of_function import of_multiple
from pymc_dp.laws.one_value import (
    Law,
    OneValue,
    Piece,
    frozen,
    independent_release,
    is_scaled,
    pieces_release,
)
from pymc_dp.laws.shown import Shown, confidential, of_weights
from pymc_dp.laws.sum_law import LAWS, Change, Phase, SumLaw, groups_in_words
from pymc_dp.mechanisms.release import release_rv
from pymc_dp.reading.cells import require_numbers
from pymc_dp.reading.checks import check_transform, require_possible
from pymc_dp.reading.groups import Records
from pymc_dp.reading.model import Reading, mechanism_of, parents, releases_of
from pymc_dp.reading.statistic import Statistic, is_shared, read_statistic


@dataclass(frozen=True, eq=False)
class Sums:
    """Records of one variable, and their releases.

    Attributes
    ----------
    law, parameters : the law of the records; see `read_law`.
    statistics : what each release was computed from.
    beside : the other variables in these releases.
    """

    reading: Reading
    rv: TensorVariable
    law: Any
    parameters: list[TensorVariable]
    statistics: tuple[Statistic, ...]
    beside: tuple[TensorVariable, ...]

    @classmethod
    def read(cls, reading: Reading, rv: TensorVariable, beside: tuple = ()) -> Self:
        """Read records that are independent and of one law; decline all else."""
        try:
            law, parameters = read_law(rv)
        except Declined:
            raise Declined from None  # for another law of `LAWS`
        # One number for all records is not repeated for each.
        parameters = [
            p.owner.inputs[0] if isinstance(p.owner and p.owner.op, Alloc) else p
            for p in parameters
        ]
        check_transform(reading.model, rv)
        require_numbers(rv, parameters)
        releases = releases_of(reading.model, [rv])
        require_possible(releases)
        for release in releases:
            if release.owner.op.bounds is not None:
                raise Declined(
                    f"the release {release.name!r} has bounds=, which tie the records {rv.name!r} "
                    f"together. Leave it out, or sample with rung='records'",
                    near=2,
                )
        try:
            statistics = tuple(read_statistic(reading, r, rv, beside) for r in releases)
        except Declined:
            if any(family.knows(law) for family in FAMILIES):
                raise
            raise Declined from None  # sums over these records have no law
        return cls(reading, rv, law, parameters, statistics, beside)

    @property
    def releases(self) -> str:
        """The names of the releases, for errors."""
        return ", ".join(repr(s.rv.name) for s in self.statistics)


class Placed(NamedTuple):
    """Indices of entries of a raveled release, and the values of these entries."""

    entries: np.ndarray
    value: TensorVariable


@dataclass(frozen=True, eq=False)
class Entries:
    """The entries of a release, raveled: independent ``factor * statistic + constant``.

    Attributes
    ----------
    law : the law of the statistics; a parameter is a vector, or a scalar where all agree.
    factor, constant : vectors with a number for each entry.
    empty : for each entry, whether it is a sum over no records: the constant alone.
    """

    law: Law
    factor: np.ndarray
    constant: np.ndarray
    empty: np.ndarray


class Family(ABC):
    """The law of sums over the records of one variable.

    A family gives the law of each entry of a release (`law_of`), from which both rungs are built.
    A family whose entries are dependent overrides `statistics` and `marginal`.

    Attributes
    ----------
    takes : the laws of records that it covers, see `read_law`.
    alone : whether it declines releases that other variables are in.
    joint : whether it covers releases that use a record more than once.
    sums : the records and their releases.
    entries : for each release, the laws of its entries; None where the entries are dependent.
    """

    takes: ClassVar[tuple[type, ...]]
    alone = False
    joint = False

    def __init__(self, sums: Sums):
        """Keep the sums, or decline them where the family does not cover them."""
        if not self.joint and is_shared(*sums.statistics):
            raise Declined(
                f"the releases use entries of {sums.rv.name!r} more than once, and only sums of "
                f"Normal records have a joint law here",
                near=1,
            )
        self.sums, self.rv = sums, sums.rv
        self.entries = {s.rv: self.law_of(s) for s in sums.statistics}

    @classmethod
    def knows(cls, law: Any) -> bool:
        """Whether sums of several records of a law have a law here."""
        return isinstance(law, cls.takes)

    @staticmethod
    def named() -> str:
        """Return the laws of records for errors; "" where another family names them."""
        return ""

    def law_of(self, statistic: Statistic) -> Entries | None:
        """Return the laws of the entries of a release; None where the entries are dependent."""
        return None

    def describe(self, statistic: Statistic) -> str:
        """Say what the entries of a release are."""
        if statistic.is_one_by_one:
            return f"every one of {self.rv.name}"
        sizes = statistic.sizes[statistic.own]
        return groups_in_words(_weighting(statistic), sizes, str(self.rv.name))

    def shown(self, statistic: Statistic) -> Shown:
        """Return the name, factor and constant under which results show a release."""
        record_name, sums = str(self.rv.name), self.sums
        prefix = record_name if len(sums.statistics) == 1 else f"{record_name}_{statistic.rv.name}"
        shown = of_weights(prefix, sums.law, statistic)
        return shown._replace(name=record_name) if statistic.is_one_by_one else shown

    def statistics(self, change: Change) -> dict[TensorVariable, Placed]:
        """Add latent variables to a change; return the entries of each release in terms of them."""
        rv = self.rv
        if not self.sums.beside and all(s.is_one_by_one for s in self.sums.statistics):
            raise Declined(
                f"the values {rv.name!r} are released one by one: there is no shorter statistic"
            )
        if not isinstance(self.sums.law, RandomVariable):
            raise Declined(
                f"the values {rv.name!r} follow a mixture, and are integrated out or kept as they "
                f"are: use to='marginal'"
            )
        return {s.rv: self._kept(change, s) for s in self.sums.statistics}

    def _kept(self, change: Change, statistic: Statistic) -> Placed:
        """Add the statistic that results show as a latent variable; return the entries of it."""
        entries, (name, factor, constant) = self.entries[statistic.rv], self.shown(statistic)
        assert entries is not None
        if self.sums.beside and name == confidential(statistic.rv):  # the name of the whole release
            name = f"{name}_{self.rv.name}"
        [kept] = np.nonzero(~entries.empty)
        parts = [p[kept] if p.type.ndim else p for p in entries.law.parameters]
        factor, constant = factor[kept], constant[kept]
        if isinstance(entries.law.op, NormalRV):  # results may show a multiple, a mean say
            times, added = (
                entries.factor[kept] / factor,
                (entries.constant[kept] - constant) / factor,
            )
            if (times != 1.0).any() or added.any():
                mu, sigma = parts
                parts = [times * mu + added, abs(times) * sigma]
        rng = pt.random.shared_rng(seed=None)
        _, latent = entries.law.op(*parts, size=(kept.size,), rng=rng, return_next_rng=True)
        transform, shape = _default_transform(entries.law.op, latent), known_shape(statistic.rv)
        change.entries_of[name] = statistic.rv
        if self.sums.beside or kept.size == entries.empty.size:
            change.added[name] = latent, transform
        else:  # results show a sum of no records as zero
            change.added[f"{name}_filled"] = latent, transform
            every = pt.zeros(entries.empty.size, dtype=latent.dtype)
            change.deterministics[name] = pt.set_subtensor(every[kept], latent).reshape(shape)
        return Placed(kept, factor * latent + constant)

    def marginal(self, statistic: Statistic, change: Change) -> TensorVariable:
        """Integrate the records out of a release of no other variables; return the new release.

        Variables that it needs are added to the change.
        """
        entries, (name, *public) = self.entries[statistic.rv], self.shown(statistic)
        assert entries is not None
        release, shape = statistic.rv, known_shape(statistic.rv)
        mechanism, (op, law_parameters) = mechanism_of(release), entries.law
        factor, constant = entries.factor, entries.constant
        if not is_scaled(mechanism, factor, constant):
            numbers = (_numbers(x, shape) for x in (factor, constant))
            mechanism = of_multiple(mechanism, *(pt.constant(x) for x in numbers))
            factor, constant = np.ones(factor.shape), np.zeros(factor.shape)
        parameters = [
            p.reshape(shape) if p.type.ndim else pt.broadcast_to(p, shape) for p in law_parameters
        ]
        with about(f"the release {release.name!r}"):
            require_pair(op, mechanism, parameters)
        numbers = (_numbers(x, shape) for x in (factor, constant, entries.empty))
        is_shown = isinstance(op, NormalRV) and factor is entries.factor
        shown = tuple(_numbers(x, shape) for x in public) if is_shown else None
        statistic_law = OneValue(name, op, len(parameters), *numbers, shown)
        return independent_release(statistic_law, parameters, mechanism)

    def piece(self, statistic: Statistic, indices: np.ndarray) -> Piece:
        """Return the law of the entries of these records, in a release of several variables."""
        entries, (name, *public) = self.entries[statistic.rv], self.shown(statistic)
        if entries is None:
            raise Declined(
                f"entries of the release {statistic.rv.name!r} that are of {self.rv.name!r} are "
                f"dependent, and other entries are of other records. Use to='statistics', or write "
                f"two releases",
                near=1,
            )
        law = Law(
            entries.law.op, tuple(p[indices] if p.type.ndim else p for p in entries.law.parameters)
        )
        numbers = entries.factor[indices], entries.constant[indices], entries.empty[indices]
        shown = (public[0][indices], public[1][indices]) if isinstance(law.op, NormalRV) else None
        return Piece(name, law, indices, *numbers, shown)


FAMILIES: Registry[type[Family], type[Family]] = Registry()


def family_of(sums: Sums) -> Family:
    """Return the first family that covers the records; raise the most relevant refusal."""
    reasons: list[Exception] = []
    for family in FAMILIES:
        if isinstance(sums.law, family.takes) and not (family.alone and sums.beside):
            try:
                return family(sums)
            except Declined as reason:
                reasons.append(reason)
    raise nearest(reasons)


@LAWS.register(Phase.GENERAL)
@dataclass(frozen=True, eq=False)
class OfSums(SumLaw):
    """Independent records of some variables; an entry of a release is of one variable only."""

    families: tuple[Family, ...]

    @classmethod
    def named(cls):
        """See `SumLaw.named`."""
        return ", ".join(filter(None, (family.named() for family in FAMILIES)))

    @classmethod
    def read(cls, reading, group: Records):
        """See `SumLaw.read`."""
        records = group.records
        if any(v in parents(rv) for rv in records for v in records):
            raise Declined
        sums = cls(
            tuple(
                family_of(Sums.read(reading, rv, tuple(v for v in records if v is not rv)))
                for rv in records
            )
        )
        for release in sums.releases:
            used = sum(s.sizes > 0 for _, s in sums.parts(release))
            if len(records) > 1 and np.max(used, initial=0) > 1:
                names = " and ".join(repr(rv.name) for rv in records)
                raise Declined(f"an entry of {release.name!r} is of the records {names} at once")
        return sums

    @property
    def releases(self) -> list[TensorVariable]:
        """The releases, each once."""
        return list(dict.fromkeys(s.rv for f in self.families for s in f.sums.statistics))

    def parts(self, release: TensorVariable) -> list[tuple[Family, Statistic]]:
        """Return the family of each variable in a release, with its part of the statistic."""
        return [(f, s) for f in self.families for s in f.sums.statistics if s.rv is release]

    def describe(self, release):
        """See `SumLaw.describe`."""
        return ", ".join(family.describe(statistic) for family, statistic in self.parts(release))

    def statistics(self):
        """Keep the statistics as latent variables."""
        change = Change()
        placed_by_family = [family.statistics(change) for family in self.families]
        for release in self.releases:
            [(_, first), *more] = parts = self.parts(release)
            value: Any = pt.constant(first.offset)
            placed = [
                by_release[release] for by_release in placed_by_family if release in by_release
            ]
            together = np.concatenate([entries for entries, _ in placed])
            assert np.unique(together).size == together.size  # an entry is of one variable
            for entries, values in placed:
                covers_all = entries.size == first.offset.size
                value = values if covers_all else pt.set_subtensor(value[entries], values)
            value = value.reshape(known_shape(release))
            if more and any(f.shown(s).name == confidential(release) for f, s in parts):
                change.deterministics[confidential(release)] = value
            change.replaced[release] = release_rv(value, mechanism_of(release))
        return change

    def marginal(self):
        """Integrate the statistics out."""
        change = Change()
        for release in self.releases:
            [(family, statistic), *more] = parts = self.parts(release)
            if not more:
                change.replaced[release] = family.marginal(statistic, change)
                continue
            masks = np.array([s.own for _, s in parts])
            masks[0] |= ~masks.any(axis=0)  # entries of no records go with the first variable
            owned = zip(parts, map(np.flatnonzero, masks), strict=True)
            pieces = [f.piece(s, entries) for (f, s), entries in owned]
            change.replaced[release] = pieces_release(pieces, release, mechanism_of(release))
        return change


def _weighting(statistic: Statistic) -> str:
    """Return "sum", "mean" or "weighted sum", for `Family.describe`."""
    weights, sizes = statistic.weights, statistic.sizes
    if np.allclose(weights.data, 1.0, rtol=1e-12):
        return "sum"
    means = np.repeat(1.0 / np.maximum(sizes, 1), statistic.columns)
    if np.allclose(weights.data, means, rtol=1e-12):
        return "mean"
    return "weighted sum"


def _numbers(numbers: np.ndarray, shape: Sequence[int | None]) -> Any:
    """Return numbers as nested tuples, which can be hashed; a single number where all agree."""
    if numbers.size and (numbers == numbers[0]).all():
        return numbers[0].item()
    return frozen(numbers.reshape([int(n or 0) for n in shape]))
