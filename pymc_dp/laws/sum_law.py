"""Laws of what was released of records: each has up to two rungs without the records.

A law is a class of `LAWS`, with data of the records that it takes. Laws that match are asked by
phase; the first that reads the records has their rungs. `Integrated.recovered` and
`SumLaw.recovered` draw what the rungs integrate out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Any, ClassVar, Literal, Self

import numpy as np
import xarray as xr
from pymc.distributions.multivariate import MvNormalRV
from pymc.logprob.transforms import Transform
from pytensor.graph.op import Op
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, bare, nearest, once
from pymc_dp.graphs.registry import Registry
from pymc_dp.graphs.shapes import of_nothing
from pymc_dp.graphs.values import nearest_rvs
from pymc_dp.laws import is_registered, law_names
from pymc_dp.reading.groups import Records, is_channel, record_groups
from pymc_dp.reading.model import Reading, divisors_of, release_statistic, releases_of
from pymc_dp.reading.record_lengths import size_of
from pymc_dp.reading.record_sums import RecordSumsRV

Rung = Literal["statistics", "marginal"]


@dataclass
class Change:
    """What a rung changes in a model, written in the variables of the model.

    Attributes
    ----------
    replaced : releases, and the variables that replace them.
    added : new free variables by name, with their transforms.
    transforms : free variables by name, in order: what each becomes, with its transform.
    start : starting values of free variables by name.
    deterministics : new deterministic variables by name.
    entries_of : for a new variable by name, the release whose entries and dims it has.
    dropped : names of releases that are no longer in the model.
    trials : functions that evaluate a density, and decline the rung where they cannot. They
        compile graphs, so that planning does not call them.
    """

    replaced: dict[TensorVariable, TensorVariable] = field(default_factory=dict)
    added: dict[str, tuple[TensorVariable, Transform | None]] = field(default_factory=dict)
    transforms: dict[str, tuple[TensorVariable, Transform | None]] = field(default_factory=dict)
    start: dict[str, np.ndarray] = field(default_factory=dict)
    deterministics: dict[str, TensorVariable] = field(default_factory=dict)
    entries_of: dict[str, TensorVariable] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    trials: list[Callable[[], None]] = field(default_factory=list)


class SumLaw(ABC):
    """The law of what was released of some records.

    Attributes
    ----------
    of : the laws of records that it is for, for errors; "" where errors do not name it.
    recovered_on : the rung whose releases say what `dp.recover` draws.
    """

    of: ClassVar[str] = ""
    recovered_on: ClassVar[Rung] = "marginal"

    @classmethod
    def named(cls) -> str:
        """Return the laws of records for errors: `of`, or the laws that are registered."""
        return cls.of

    @classmethod
    @abstractmethod
    def read(cls, reading: Reading, group: Records) -> Self:
        """Read the records and all of their releases.

        Raises
        ------
        Declined
            With the reason; without one where the records are for another law.
        """

    def describe(self, release: TensorVariable) -> str:
        """Say what the entries of a release are."""
        return f"a function of {', '.join(str(rv.name) for rv in nearest_rvs([release]))}"

    def notes(self) -> list[str]:
        """Return sentences on published values that cannot be right."""
        return []

    def recovered(self, posterior: xr.Dataset, rng: np.random.Generator) -> dict[str, Any] | None:
        """Draw the statistics of several releases jointly, as `Integrated.recovered`.

        None where the releases on the rung `recovered_on` are drawn one by one.
        """
        return None

    def statistics(self) -> Change:
        """Keep the statistics as latent variables: the rung "statistics"."""
        raise Declined

    def marginal(self) -> Change:
        """Integrate the statistics out: the rung "marginal"."""
        raise Declined


class Approximation(ABC):
    """A law of what was released that is not exact, which users ask for by name.

    Attributes
    ----------
    of_records : whether it is the one of its name that integrates records out.
    """

    of_records: ClassVar[bool] = True

    def variables(self, reading: Reading) -> list[TensorVariable]:
        """Return variables that it integrates out and that are no records."""
        return []

    @abstractmethod
    def check(self, moments: Any) -> None:
        """Refuse what can be no ``moments=``."""

    @abstractmethod
    def change(self, reading: Reading, group: Records, to: Rung, moments: Any) -> Change:
        """Return what a rung changes for some records; see `change`."""

    @abstractmethod
    def held(self, reading: Reading, group: Records, moments: Any) -> dict[str, str]:
        """Return variables that are read as numbers: by name, the data behind each.

        `dp.collapse` declines them: `pm.set_data` would not reach the numbers in its model.
        """


class Phase(IntEnum):
    """The order in which laws are asked."""

    NOTHING = 0  # no record is part of any release
    UNKNOWN_NUMBER = 1
    ANSWERS = 2  # of each record, changed at random
    SPECIFIC = 3  # records of one law, all alike
    GENERAL = 4  # sums over any of them
    ROWS = 5  # rows of several columns, by group or one by one
    # Where the law that reads the records has no marginal:
    SINGLE = 6  # values that are released one by one
    FALLBACK = 7


@dataclass(frozen=True)
class Facts:
    """What laws are chosen by, of some records.

    Attributes
    ----------
    laws : those of the records, without the number of these.
    single : whether all records are of one variable.
    rows : whether they have several columns, see `is_rows`.
    number_known : whether the records are written out, in a number that is no random variable.
    released : whether any record is part of a release.
    answers : whether answers of each record are released, each changed at random.
    selection : whether a release is made of all entries of its statistic together.
    divided : whether a noisy number divides a release, and its noise.
    """

    laws: tuple[Op, ...]
    single: bool
    rows: bool
    number_known: bool
    released: bool
    answers: bool
    selection: bool
    divided: bool


_WORDS = {  # of each fact, where it holds and where it does not
    "single": ("of one variable", "of several variables"),
    "rows": ("of several columns", "of one column"),
    "number_known": ("of known number", "of unknown number"),
    "released": ("that are released", "that no release is of"),
    "answers": ("answers changed at random", "no such answers"),
    "selection": ("behind a selection", ""),
    "divided": ("behind a ratio of noisy numbers", ""),
}


class Takes:
    """Which records a law is for, as data: one that does not match `Facts` is not asked.

    Attributes
    ----------
    laws : classes of the records' laws, or a function dispatched on them that has to know each.
    wanted : facts by name, each what it has to be; None where both will do, as it is for facts that
        are not stated. Without a word on it no release is a selection, or a ratio.
    """

    def __init__(
        self,
        laws: tuple[type, ...] | Callable[..., Any] = (object,),
        **wanted: bool | None,
    ):
        self.laws = laws
        self.wanted: dict[str, bool | None] = {"selection": False, "divided": False, **wanted}

    def match(self, facts: Facts) -> bool:
        """Whether the records are those that the law is for."""
        laws = self.laws
        if isinstance(laws, tuple):
            known = all(isinstance(law, laws) for law in facts.laws)
        else:
            known = all(is_registered(laws, law) for law in facts.laws)
        wanted = self.wanted.items()
        return known and all(want in (None, getattr(facts, name)) for name, want in wanted)

    def __str__(self) -> str:
        """Say it in words, for `dp.explain`."""
        laws = self.laws if isinstance(self.laws, tuple) else self.laws.registry  # type: ignore[attr-defined]
        wanted = ((words, self.wanted.get(name)) for name, words in _WORDS.items())
        said = [words[not want] for words, want in wanted if want is not None]
        return ", ".join(filter(None, [law_names(laws), *said])) or "any"


class Laws(Registry[tuple[Phase, type[SumLaw]], tuple[Takes, ...]]):
    """Laws of what was released of records, in the order of their phases; what each takes."""

    def register(self, phase: Phase, *takes: Takes):  # type: ignore[override]
        """Register a class of `SumLaw`, which is asked where any of `takes` matches."""

        def register(law):
            self.add(takes or (Takes(),), (phase, law), order=phase)
            return law

        return register

    def matching(self, facts: Facts, *, fallback: bool):
        """Yield the laws that take some records, in the order of their phases."""
        for (phase, law), takes in self.items():
            if (phase >= Phase.SINGLE) == fallback and any(own.match(facts) for own in takes):
                yield law


LAWS = Laws()
APPROXIMATIONS: Registry[Approximation, str] = Registry()  # each with its name


def approximations(name: str) -> list[Approximation]:
    """Return the approximations of a name: each is for variables of its own."""
    return [approximation for approximation, own in APPROXIMATIONS.items() if own == name]


def check_approximation(approximate: str | None, moments: Any) -> None:
    """Refuse an approximation that there is not, and moments that are none."""
    known = dict.fromkeys(APPROXIMATIONS.values())
    names = " or ".join(map(repr, known))
    if approximate not in (None, *known):
        raise ValueError(f"approximate={approximate!r}: write {names}, or leave it out: exact")
    if approximate is None and moments is not None:
        raise ValueError(
            f"moments= is part of the approximation: write approximate={names} with it"
        )
    if approximate is not None:
        for approximation in approximations(approximate):
            approximation.check(moments)  # here, or each route would refuse them


@once
def facts_of(reading: Reading, group: Records) -> Facts:
    """Return what laws are chosen by, of some records."""
    records, released = group.records, releases_of(reading.model, group.records)
    numbers = {number for rv in records if (number := size_of(rv)) is not None}
    sums = any(isinstance(rv.owner.op, RecordSumsRV) for rv in records)
    statistics = [release_statistic(release) for release in released]
    of_none = [s for s in statistics if of_nothing(s) == [s]]
    bounded = any(release.owner.op.bounds is not None for release in released)
    return Facts(
        laws=tuple(rv.owner.op for rv in records if rv not in numbers),
        single=len(records) == 1,
        rows=is_rows(group),
        number_known=not sums and numbers.isdisjoint(records),
        released=bounded or len(of_none) < len(statistics),
        answers=any(map(is_channel, released)),
        selection=any(map(_is_selection, released)),
        divided=any(map(divisors_of, released)),
    )


def _is_selection(release: TensorVariable) -> bool:
    return bool(release.owner.op.mechanism.statistic_ndim)


@once
def law_of(reading: Reading, group: Records) -> SumLaw:
    """Return the first law that reads some records; say why the one that came nearest does not."""
    reasons: list[Exception] = []
    facts = facts_of(reading, group)
    for law in LAWS.matching(facts, fallback=False):
        try:
            return law.read(reading, group)
        except Declined as reason:
            reasons.append(reason)
    names = " and ".join(repr(rv.name) for rv in group.records)
    if facts.selection:
        chosen = next(filter(_is_selection, releases_of(reading.model, group.records)))
        kind = type(chosen.owner.op.mechanism).__name__
        reasons.append(
            Declined(
                f"the release {chosen.name!r} is made by {kind} of all its statistic "
                f"together: records {names} are integrated out of that where it is a function of "
                f"how many have each of a few values, Bernoulli and Categorical ones, or of how "
                f"many lie below public numbers, (x < c).sum()",
                near=-1,
            )
        )
        raise nearest(reasons)
    if any(map(str, reasons)):
        raise nearest(reasons)
    follow = law_names(type(rv.owner.op) for rv in group.records)
    known = ", ".join(filter(None, (law.named() for _, law in LAWS)))
    nothing = f"the records {names} follow {follow}: there are laws of sums over {known} records"
    raise Declined(nothing, near=-1)


def in_words(factor: float, statistic: str) -> str:
    """Write a multiple of a statistic, for `SumLaw.describe`."""
    return statistic if abs(factor - 1) < 1e-12 else f"{factor:g} × {statistic}"


def groups_in_words(statistic: str, sizes: np.ndarray, name: str) -> str:
    """Write a statistic of each of several groups of records, for `SumLaw.describe`."""
    least, most = sizes.min(), sizes.max()
    if sizes.size == 1:
        return f"{statistic} of {least} of {name}"
    span = f"{least}" if least == most else f"{least} to {most}"
    return f"{statistic} of each of {sizes.size} groups of {span} of {name}"


def is_rows(group: Records) -> bool:
    """Whether records have several columns."""
    [first, *further_columns] = group.records
    several = first.type.ndim > 1 and isinstance(first.owner.op, NormalRV | MvNormalRV)
    return group.n > 0 and (bool(further_columns) or several)


@once
def notes(reading: Reading) -> list[str]:
    """Return what the laws of all records say of published values; see `SumLaw.notes`."""
    sentences: list[str] = []
    for group in record_groups(reading):
        with suppress(Declined, ValueError):  # `dp.explain` gives the reason, by route
            sentences += law_of(reading, group).notes()
    return sentences


def change(reading: Reading, group: Records, to: Rung) -> Change:
    """Return what a rung changes for some records; refuse by name what no law covers."""
    facts, is_read = facts_of(reading, group), False
    try:
        law, is_read = law_of(reading, group), True
        return law.statistics() if to == "statistics" else law.marginal()
    except Declined as reason:
        if to == "statistics" or facts.selection:
            raise
        reason.near = max(1, reason.near) if is_read else reason.near
        others: list[Exception] = []
        for resort in LAWS.matching(facts, fallback=True):
            try:
                found = resort.read(reading, group).marginal()
                kept = bare(reason)
                found.trials = [partial(_last_resort, trial, kept) for trial in found.trials]
                return found
            except (Declined, ValueError) as also:
                others.append(also)
        raise _both(reason, nearest(others)) from None


def run_trials(trials: Iterable[Callable[[], None]]) -> None:
    """Decline a rung where a density cannot be evaluated; see `Change.trials`."""
    for trial in trials:
        try:
            trial()
        except ValueError as error:  # parameters at the start of the model are not possible
            raise Declined(str(error), near=1) from None


def _last_resort(trial: Callable[[], None], reason: Declined) -> None:
    try:
        run_trials([trial])
    except Declined as also:
        raise _both(reason, also) from None


def _both(reason: Declined, last: Declined) -> Declined:
    """Combine the refusals of a law and of a last resort, or keep the more relevant one."""
    first, second = str(reason), str(last)
    if not second or (first and reason.near > last.near):
        return reason
    said_in_both = first.rsplit(": ", 1)[-1] in second or (
        second.rsplit(": ", 1)[-1].split(". ")[0] in first
    )
    if not first or reason.near < last.near or said_in_both:
        for route in ("by inversion: ", "by inversion by group: "):
            second = second.removeprefix(route)
        return Declined(second, near=last.near)
    return Declined(f"{first}; nor {second}", near=last.near)
