"""Which collapse rules exist: by the law of the records and the rung.

A module with rules calls `register_rungs` with the record law's op, or with `Block` for rows of
several columns, and

- ``read(model, records)``: what the rules need to know of the records and all of their releases,
  an object with their `rv`, `name` and `n`; it refuses by name what it cannot read,
- ``describe(model, records, release)``: a release's statistic in words, for `explain`,
- ``notes(model, reading)``: what is wrong with the published values, a list of sentences; optional,
- ``statistics(model, reading)`` and ``marginal(model, reading)``: the `Change` of a rung. The
  rules of rows take the keyword arguments of an approximation that was asked for, too.

`records` is the record variable, and for rows their `Block`.

What a rule leaves without a latent variable, `laws.integrated.recovered` draws.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import pymc as pm
from pymc.distributions.multivariate import MvNormalRV
from pymc.logprob.transforms import Transform
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.questions import depends_on
from pymc_dp.reading.groups import Block, blocks, has_record_axis
from pymc_dp.reading.model import (
    check_transform,
    children,
    privatized,
    release_statistic,
    releases,
)

Rung = Literal["statistics", "marginal"]


class Reading(Protocol):
    """Records with every release of them, as a law's rules read them."""

    @property
    def rv(self) -> TensorVariable:
        """The records."""

    @property
    def name(self) -> str:
        """Their name."""

    @property
    def n(self) -> int:
        """Their number."""


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
    dropped : names of releases that the rung has used up.
    """

    replaced: dict[TensorVariable, TensorVariable] = field(default_factory=dict)
    added: dict[str, tuple[TensorVariable, Transform | None]] = field(default_factory=dict)
    transforms: dict[str, tuple[TensorVariable, Transform | None]] = field(default_factory=dict)
    start: dict[str, np.ndarray] = field(default_factory=dict)
    deterministics: dict[str, TensorVariable] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)


_RULES: dict[type, dict[str, Callable]] = {}


def register_rungs(law: type, **rules: Callable) -> None:
    """Register the rules of a record law: `read`, `describe`, `statistics` and `marginal`."""
    _RULES[law] = rules


_LAST_RESORTS: list[Callable] = []


def register_last_resort(rule: Callable) -> Callable:
    """Register ``(model, records) -> Change``: a marginal of continuous records without a rule."""
    _LAST_RESORTS.append(rule)
    return rule


def record_groups(model: pm.Model) -> list[Block]:
    """Return the privatized records of a model, those that are columns of a row together."""
    found = privatized(model)
    rows = [
        rv
        for rv in found
        if has_record_axis(rv)
        and any(v.dtype.startswith("float") for v in (rv, *children(model, rv)) if v in found)
    ]
    groups = _released_together(model, blocks(model, rows)) if rows else []
    groups += [Block((rv,), 0, ()) for rv in found if rv not in rows]
    order = {rv: i for i, rv in enumerate(model.free_RVs)}
    return sorted(groups, key=lambda group: order[group.records[0]])


def _released_together(model: pm.Model, groups: list[Block]) -> list[Block]:
    """Join groups of the same length that are parts of one release: columns of the same rows."""
    for release in releases(model):
        mine = [
            g for g in groups if any(depends_on(release_statistic(release), rv) for rv in g.records)
        ]
        for first, second in itertools.pairwise(mine):
            if first.n == second.n:
                members = [*first.records, *second.records]
                joined = tuple(rv for rv in model.free_RVs if rv in members)
                block = Block(joined, first.n, (*first.factors, *second.factors))
                groups = [g for g in groups if g not in (first, second)] + [block]
                return _released_together(model, groups)
    return groups


def is_rows(group: Block) -> bool:
    """Whether records have several columns."""
    [first, *others] = group.records
    return bool(others) or (
        group.n > 0 and first.type.ndim > 1 and isinstance(first.owner.op, NormalRV | MvNormalRV)
    )


def rules_of(group: Block) -> dict[str, Callable]:
    """Return the rules for some records; the error names the laws that have any."""
    if is_rows(group):
        return _RULES[Block]
    [records] = group.records
    law = type(records.owner.op)
    if law not in _RULES:
        known = ", ".join(op.__name__.removesuffix("RV") for op in _RULES if op is not Block)
        raise Declined(
            f"the records {records.name!r} follow {law.__name__.removesuffix('RV')}: there are "
            f"collapse rules for {known} records"
        )
    return _RULES[law]


def _subject(group: Block) -> Block | TensorVariable:
    return group if is_rows(group) else group.records[0]


def read(model: pm.Model, group: Block) -> Any:
    """Read records and their releases by the rules of their law."""
    return rules_of(group)["read"](model, _subject(group))


def describe(model: pm.Model, group: Block, release: TensorVariable) -> str:
    """Say what a release of some records is."""
    return rules_of(group)["describe"](model, _subject(group), release)


def notes(model: pm.Model) -> list[str]:
    """Say what is wrong with the published values, where records have rules that look at them."""
    found: list[str] = []
    for group in record_groups(model):
        with suppress(NotImplementedError, ValueError):  # the reason stands among the routes
            rules = rules_of(group)
            if "notes" in rules:
                found += rules["notes"](model, read(model, group))
    return found


def change(model: pm.Model, group: Block, to: Rung, **approximation: Any) -> Change:
    """Return what a rung changes for some records; refuse by name what no rule covers."""
    try:
        rules = rules_of(group)
        options = approximation if is_rows(group) else {}
        return rules[to](model, rules["read"](model, _subject(group)), **options)
    except Declined as reason:
        single = not is_rows(group) and group.records[0].dtype.startswith("float")
        if to == "statistics" or not single:
            raise
        return _last_resort(model, group.records[0], reason)


def _last_resort(model: pm.Model, records: TensorVariable, reason: Exception) -> Change:
    """Integrate continuous records out for want of a rule of their law."""
    check_transform(model, records)
    reasons = [str(reason)]
    for rule in _LAST_RESORTS:
        try:
            return rule(model, records)
        except (NotImplementedError, ValueError) as error:
            reasons.append(str(error))
    raise Declined("; nor ".join(r for r in reasons if r)) from None
