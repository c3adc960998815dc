"""Laws of what was released of records: each has up to two rungs without the records.

A law is a class of `SUM_LAWS`: the first that reads some records has their rungs. What the rungs
leave without a latent variable, `Integrated.recovered` and `SumLaw.recovered` draw.
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
    """What a rung changes in a model, written in the model's own variables.

    Attributes
    ----------
    replaced : releases and what they become.
    added : new free variables by name, with their transforms.
    transforms : existing free variables that become others, with their transforms, in order.
    start : starting values of free variables by name.
    deterministics : new deterministic variables by name.
    entries_of : by name, releases whose entries new variables have; their dims are those.
    dropped : names of releases that the rung has used up.
    trials : what declines the rung where a density is not found; they compile, so that planning
        does without them.
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
    of : what records it is for, as an error says it; "" where it says nothing.
    approximate : whether it takes the arguments of an approximation.
    selections : whether it reads releases that are made of all entries of a statistic together.
    recovered_on : the rung whose releases tell what `dp.recover` draws.
    """

    of: ClassVar[str] = ""
    approximate = False
    selections: ClassVar[bool] = False
    recovered_on: ClassVar[Rung] = "marginal"

    @classmethod
    def named(cls) -> str:
        """Return `of`; where other laws can be registered, with these."""
        return cls.of

    @classmethod
    @abstractmethod
    def read(cls, reading: Reading, group: Block) -> Self:
        """Read the records and all of their releases.

        Raises
        ------
        Declined
            With the reason, or none where the records are another law's.
        """

    @abstractmethod
    def describe(self, release: TensorVariable) -> str:
        """Say what the entries of a release are."""

    def notes(self) -> list[str]:
        """Say what is wrong with the published values, in sentences."""
        return []

    def recovered(self, posterior: xr.Dataset, rng: np.random.Generator) -> dict[str, Any] | None:
        """Draw the statistics of several releases together, as `Integrated.recovered`.

        None where each release of `recovered_on` is drawn by itself.
        """
        return None

    def latents(self) -> Change:
        """Keep the statistics as latent variables: the rung "statistics"."""
        raise Declined

    def integrated(self) -> Change:
        """Integrate the statistics out, too: the rung "marginal"."""
        raise Declined

    def held(self, moments: Any) -> dict[str, str]:
        """Return what an approximation holds as numbers: variables, by name, and data behind each.

        A model that the user gets has to be without: `pm.set_data` would not reach these numbers.
        """
        return {}


SUM_LAWS: Registry[type[SumLaw], type[SumLaw]] = Registry()
APPROXIMATIONS: Registry[str, Callable[[Any], Any]] = Registry()
"""By the name of an approximation, what checks its ``moments=``."""
LAST_RESORTS: Registry[str, Callable[[Reading, Block], Change]] = Registry()
"""What integrates records out where their law has no marginal; asked one after the other."""


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


def in_words(factor: float, what: str) -> str:
    """Write a multiple of a statistic, for `SumLaw.describe`."""
    return what if abs(factor - 1) < 1e-12 else f"{factor:g} × {what}"


def groups_in_words(what: str, sizes: np.ndarray, name: str) -> str:
    """Write what is released of each of some groups of records, for `SumLaw.describe`."""
    least, most = sizes.min(), sizes.max()
    if sizes.size == 1:
        return f"{what} of {least} of {name}"
    span = f"{least}" if least == most else f"{least} to {most}"
    return f"{what} of each of {sizes.size} groups of {span} of {name}"


def is_rows(group: Block) -> bool:
    """Whether records have several columns."""
    [first, *others] = group.records
    several = first.type.ndim > 1 and isinstance(first.owner.op, NormalRV | MvNormalRV)
    return group.n > 0 and (bool(others) or several)


@once
def notes(reading: Reading) -> list[str]:
    """Say what is wrong with the published values, where the law of their records looks at them."""
    found: list[str] = []
    for group in record_groups(reading):
        with suppress(Declined, ValueError):  # the reason stands among the routes
            found += law_of(reading, group).notes()
    return found


def _selection(reading: Reading, group: Block) -> TensorVariable | None:
    """Return a release of some records that is made of all entries of its statistic, if any."""
    found = releases_of(reading.model, group.records)
    return next((r for r in found if r.owner.op.mechanism.statistic_ndim), None)


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
    """Decline what is integrated out where a density is not found; see `Change.trials`."""
    for trial in trials:
        try:
            trial()
        except ValueError as error:  # of parameters where a model starts
            raise Declined(str(error), near=1) from None


def _last_resort(trial: Callable[[], None], reason: Declined) -> None:
    try:
        run_trials([trial])
    except Declined as also:
        raise _both(reason, also) from None


def _both(reason: Declined, last: Declined) -> Declined:
    """Join the reasons of a law and of a last resort, or tell the one that came nearer."""
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
