"""Sums over records: both rungs of what was released of them, whatever their law.

A family says what the law of sums over the records of one variable is. All else is here, once:
what was released is read, entries of several variables are put together, and the rungs are built.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.transforms import _default_transform
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, about, nearest
from pymc_dp.graphs.registry import Registry
from pymc_dp.graphs.shapes import known_shape
from pymc_dp.laws import require_pair
from pymc_dp.laws.counted import read_law
from pymc_dp.laws.one_value import (
    Law,
    OneValue,
    Piece,
    frozen,
    independent_release,
    pieces_release,
    require_multiples,
)
from pymc_dp.laws.shown import Shown, confidential, of_weights
from pymc_dp.laws.sum_law import LAWS, Change, Phase, SumLaw, groups_in_words
from pymc_dp.mechanisms.release import release_rv
from pymc_dp.reading.cells import require_numbers
from pymc_dp.reading.checks import check_transform, require_possible
from pymc_dp.reading.groups import Block
from pymc_dp.reading.model import Reading, parents, release_mechanism, releases_of
from pymc_dp.reading.statistic import Statistic, read_statistic


@dataclass(frozen=True, eq=False)
class Sums:
    """Records of one variable, and all that was released of them.

    Attributes
    ----------
    law, parameters : of the records; see `read_law`.
    statistics : the releases.
    beside : other variables in them.
    """

    reading: Reading
    rv: TensorVariable
    law: Any
    parameters: list[TensorVariable]
    statistics: tuple[Statistic, ...]
    beside: tuple[TensorVariable, ...]

    @classmethod
    def read(cls, reading: Reading, rv: TensorVariable, beside: tuple = ()) -> Self:
        """Read independent records of one law; decline others."""
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
            statistics = tuple(read_statistic(reading, r, rv, beside) for r in mine)
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
    """Some entries of a release, raveled, and what stands there."""

    entries: np.ndarray
    value: TensorVariable


@dataclass(frozen=True, eq=False)
class Entries:
    """The entries of a release, raveled: independent ``factor * statistic + constant``.

    Attributes
    ----------
    law : of the statistics; parameters are vectors, or scalars where all agree.
    factor, constant : numbers, one for each entry.
    empty : whether an entry is a sum over no records, and the constant alone.
    """

    law: Law
    factor: np.ndarray
    constant: np.ndarray
    empty: np.ndarray


class Family(ABC):
    """What is known of sums over the records of one variable.

    A family says the law of each entry of a release, and has both rungs by that. One whose entries
    are not independent has latent variables and a density of its own.

    Attributes
    ----------
    takes : the laws of records that it may be for, see `read_law`.
    alone : whether it is for releases of no other variables only.
    sums : the records and their releases.
    entries : for each release, the law of every entry; None where these are not independent.
    """

    takes: ClassVar[tuple[type, ...]]
    alone = False

    def __init__(self, sums: Sums):
        """Take what it covers; raise Declined, with a reason perhaps, if that is something else."""
        self.sums, self.rv = sums, sums.rv
        self.entries = {s.rv: self.law_of(s) for s in sums.statistics}

    @classmethod
    def knows(cls, law: Any) -> bool:
        """Whether it knows of sums over records of a law, not of single ones only."""
        return isinstance(law, cls.takes)

    @staticmethod
    def named() -> str:
        """Return the laws of records that it is for, as errors name them; "" where others do."""
        return ""

    def law_of(self, statistic: Statistic) -> Entries | None:
        """Return the law of every entry of a release; None where these are not independent."""
        return None

    def describe(self, statistic: Statistic) -> str:
        """Say what the entries of a release are."""
        if statistic.is_one_by_one:
            return f"every one of {self.rv.name}"
        sizes = statistic.sizes[statistic.own]
        return groups_in_words(_weighting(statistic), sizes, str(self.rv.name))

    def shown(self, statistic: Statistic) -> Shown:
        """Return what stands in results of a release."""
        of, sums = str(self.rv.name), self.sums
        several = of if len(sums.statistics) == 1 else f"{of}_{statistic.rv.name}"
        found = of_weights(several, sums.law, statistic)
        return found._replace(name=of) if statistic.is_one_by_one else found

    def latents(self, change: Change) -> dict[TensorVariable, Placed]:
        """Add latent variables to a change; return what they make of the entries of releases."""
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
        """Add what stands in results as a latent variable; of Normal records it may be scaled."""
        found, (name, factor, constant) = self.entries[statistic.rv], self.shown(statistic)
        assert found is not None
        if self.sums.beside and name == confidential(statistic.rv):  # of which this is a part
            name = f"{name}_{self.rv.name}"
        [kept] = np.nonzero(~found.empty)
        parts = [p[kept] if p.type.ndim else p for p in found.law.parameters]
        factor, constant = factor[kept], constant[kept]
        if isinstance(found.law.op, NormalRV):
            times, added = found.factor[kept] / factor, (found.constant[kept] - constant) / factor
            if (times != 1.0).any() or added.any():
                mu, sigma = parts
                parts = [times * mu + added, abs(times) * sigma]
        rng = pt.random.shared_rng(seed=None)
        _, latent = found.law.op(*parts, size=(kept.size,), rng=rng, return_next_rng=True)
        transform, shape = _default_transform(found.law.op, latent), known_shape(statistic.rv)
        change.entries_of[name] = statistic.rv
        if self.sums.beside or kept.size == found.empty.size:
            change.added[name] = latent, transform
        else:  # in results a sum of no records has its place
            change.added[f"{name}_filled"] = latent, transform
            every = pt.zeros(found.empty.size, dtype=latent.dtype)
            change.deterministics[name] = pt.set_subtensor(every[kept], latent).reshape(shape)
        return Placed(kept, factor * latent + constant)

    def marginal(self, statistic: Statistic, change: Change) -> TensorVariable:
        """Integrate the records out of a release, of these alone: return what it becomes.

        What is needed beside that is added to the change.
        """
        found, (name, *public) = self.entries[statistic.rv], self.shown(statistic)
        assert found is not None
        release, shape = statistic.rv, known_shape(statistic.rv)
        mechanism, (op, own) = release_mechanism(release), found.law
        require_multiples(release, mechanism, found.factor, found.constant)
        parameters = [p.reshape(shape) if p.type.ndim else pt.broadcast_to(p, shape) for p in own]
        with about(f"the release {release.name!r}"):
            require_pair(op, mechanism, parameters)
        numbers = (_numbers(x, shape) for x in (found.factor, found.constant, found.empty))
        shown = tuple(_numbers(x, shape) for x in public) if isinstance(op, NormalRV) else None
        one = OneValue(name, op, len(parameters), *numbers, shown)
        return independent_release(one, parameters, mechanism)

    def piece(self, statistic: Statistic, own: np.ndarray) -> Piece:
        """Return the law of some entries of a release, which others are not of these records."""
        found, (name, *public) = self.entries[statistic.rv], self.shown(statistic)
        if found is None:
            raise Declined(
                f"entries of the release {statistic.rv.name!r} that are of {self.rv.name!r} have "
                f"no density each, and others are of other records. Use to='statistics', or write "
                f"two releases",
                near=1,
            )
        law = Law(found.law.op, tuple(p[own] if p.type.ndim else p for p in found.law.parameters))
        numbers = found.factor[own], found.constant[own], found.empty[own]
        shown = (public[0][own], public[1][own]) if isinstance(law.op, NormalRV) else None
        return Piece(name, law, own, *numbers, shown)


FAMILIES: Registry[type[Family], type[Family]] = Registry()


def family_of(sums: Sums) -> Family:
    """Return the first family that covers some records, or the reason of what came nearest."""
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
    """Independent records of one or several variables, each entry of a release of one of them."""

    families: tuple[Family, ...]

    @classmethod
    def named(cls):
        """See `SumLaw.named`."""
        return ", ".join(filter(None, (family.named() for family in FAMILIES)))

    @classmethod
    def read(cls, reading, group: Block):
        """See `SumLaw.read`."""
        records = group.records
        if any(v in parents(rv) for rv in records for v in records):
            raise Declined
        found = cls(
            tuple(
                family_of(Sums.read(reading, rv, tuple(v for v in records if v is not rv)))
                for rv in records
            )
        )
        for release in found.releases:
            used = sum(s.sizes > 0 for _, s in found.parts(release))
            if len(records) > 1 and np.max(used, initial=0) > 1:
                names = " and ".join(repr(rv.name) for rv in records)
                raise Declined(f"an entry of {release.name!r} is of the records {names} at once")
        return found

    @property
    def releases(self) -> list[TensorVariable]:
        """The releases, each once."""
        return list(dict.fromkeys(s.rv for f in self.families for s in f.sums.statistics))

    def parts(self, release: TensorVariable) -> list[tuple[Family, Statistic]]:
        """Return the families of the variables that a release is of."""
        return [(f, s) for f in self.families for s in f.sums.statistics if s.rv is release]

    def describe(self, release):
        """See `SumLaw.describe`."""
        return ", ".join(family.describe(statistic) for family, statistic in self.parts(release))

    def latents(self):
        """Keep the statistics as latent variables."""
        change = Change()
        found = [family.latents(change) for family in self.families]
        for release in self.releases:
            [(_, first), *more] = parts = self.parts(release)
            value: Any = pt.constant(first.offset)
            placed = [own[release] for own in found if release in own]
            together = np.concatenate([entries for entries, _ in placed])
            assert np.unique(together).size == together.size  # each is of one variable
            for entries, own in placed:
                whole = entries.size == first.offset.size
                value = own if whole else pt.set_subtensor(value[entries], own)
            value = value.reshape(known_shape(release))
            if more and any(f.shown(s).name == confidential(release) for f, s in parts):
                change.deterministics[confidential(release)] = value
            change.replaced[release] = release_rv(value, release_mechanism(release))
        return change

    def integrated(self):
        """Integrate the statistics out, too."""
        change = Change()
        for release in self.releases:
            [(family, statistic), *more] = parts = self.parts(release)
            if not more:
                change.replaced[release] = family.marginal(statistic, change)
                continue
            own = np.array([s.own for _, s in parts])
            own[0] |= ~own.any(axis=0)  # what is of no records stands with the first variable
            owned = zip(parts, map(np.flatnonzero, own), strict=True)
            pieces = [f.piece(s, entries) for (f, s), entries in owned]
            change.replaced[release] = pieces_release(pieces, release, release_mechanism(release))
        return change


def _weighting(statistic: Statistic) -> str:
    """Say what a weighted sum is, for `Family.describe`."""
    weights, sizes = statistic.weights, statistic.sizes
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
