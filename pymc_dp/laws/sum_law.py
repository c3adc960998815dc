"""Laws of what was released of records: each has up to two rungs without the records.

A law is a class of `SUM_LAWS`: the first that reads the records builds the rungs. Statistics that a
rung integrates out are drawn by `Integrated.recovered` and `SumLaw.recovered`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal, Self

import numpy as np
import xarray as xr
from pymc.distributions.multivariate import MvNormalRV
from pymc.logprob.transforms import Transform
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, bare, nearest, once
from pymc_dp.graphs.registry import Registry
from pymc_dp.laws import law_names
from pymc_dp.reading.groups import Block, record_groups
from pymc_dp.reading.model import Reading, releases_of

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
    approximate : whether its rungs take the arguments of an approximation.
    selections : whether it reads mechanisms that take all entries of a statistic together.
    recovered_on : the rung whose releases say what `dp.recover` draws.
    """

    of: ClassVar[str] = ""
    approximate = False
    selections: ClassVar[bool] = False
    recovered_on: ClassVar[Rung] = "marginal"

    @classmethod
    def named(cls) -> str:
        """Return the laws of records for errors: `of`, or the laws that are registered."""
        return cls.of

    @classmethod
    @abstractmethod
    def read(cls, reading: Reading, group: Block) -> Self:
        """Read the records and all of their releases.

        Raises
        ------
        Declined
            With the reason; without one where the records are for another law.
        """

    @abstractmethod
    def describe(self, release: TensorVariable) -> str:
        """Say what the entries of a release are."""

    def notes(self) -> list[str]:
        """Return sentences on published values that cannot be right."""
        return []

    def recovered(self, posterior: xr.Dataset, rng: np.random.Generator) -> dict[str, Any] | None:
        """Draw the statistics of several releases jointly, as `Integrated.recovered`.

        None where the releases on the rung `recovered_on` are drawn one by one.
        """
        return None

    def latents(self) -> Change:
        """Keep the statistics as latent variables: the rung "statistics"."""
        raise Declined

    def integrated(self) -> Change:
        """Integrate the statistics out: the rung "marginal"."""
        raise Declined

    def held(self, moments: Any) -> dict[str, str]:
        """Return variables that an approximation reads as numbers: by name, the data behind each.

        `dp.collapse` declines them: `pm.set_data` would not reach the numbers in its model.
        """
        return {}


SUM_LAWS: Registry[type[SumLaw], type[SumLaw]] = Registry()
APPROXIMATIONS: Registry[str, Callable[[Any], Any]] = Registry()
"""By the name of an approximation, the function that checks its ``moments=``."""
LAST_RESORTS: Registry[str, Callable[[Reading, Block], Change]] = Registry()
"""Functions that integrate records out where their law has no marginal, asked in order."""


@once
def law_of(reading: Reading, group: Block, approximate: bool = False) -> SumLaw:
    """Return the first law that reads some records; say why the one that came nearest does not."""
    reasons: list[Exception] = []
    selection = _selection(reading, group)
    for law in SUM_LAWS:
        if (approximate and not law.approximate) or (selection is not None and not law.selections):
            continue
        try:
            return law.read(reading, group)
        except Declined as reason:
            reasons.append(reason)
    names = " and ".join(repr(rv.name) for rv in group.records)
    if selection is not None:
        kind = type(selection.owner.op.mechanism).__name__
        reasons.append(
            Declined(
                f"the release {selection.name!r} is made by {kind} of all its statistic together: "
                f"records {names} are integrated out of that where it is a function of how many "
                f"have each of a few values, Bernoulli and Categorical ones, or of how many lie "
                f"below public numbers, (x < c).sum()",
                near=-1,
            )
        )
        raise nearest(reasons)
    follow = law_names(type(rv.owner.op) for rv in group.records)
    known = ", ".join(filter(None, (law.named() for law in SUM_LAWS)))
    nothing = f"the records {names} follow {follow}: there are laws of sums over {known} records"
    raise nearest([*reasons, Declined(nothing, near=-1)])


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


def is_rows(group: Block) -> bool:
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


def _selection(reading: Reading, group: Block) -> TensorVariable | None:
    """Return a release by a mechanism that takes all entries of a statistic together, if any."""
    releases = releases_of(reading.model, group.records)
    return next((r for r in releases if r.owner.op.mechanism.statistic_ndim), None)


def change(reading: Reading, group: Block, to: Rung, **approximation: Any) -> Change:
    """Return what a rung changes for some records; refuse by name what no law covers."""
    approximate, is_read = approximation.get("approximate") is not None, False
    try:
        law, is_read = law_of(reading, group, approximate), True
        options = approximation if approximate else {}
        return (law.latents if to == "statistics" else law.integrated)(**options)
    except Declined as reason:
        if to == "statistics" or approximate or _selection(reading, group) is not None:
            raise
        reason.near = max(1, reason.near) if is_read else reason.near
        others: list[Exception] = []
        for integrated in LAST_RESORTS.values():
            try:
                found = integrated(reading, group)
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
