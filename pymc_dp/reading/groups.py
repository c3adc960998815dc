"""Which records are drawn together: columns of the same rows, parts of one release."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import pymc as pm
from pytensor.tensor.basic import Join, MakeVector
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.random.basic import BinomialRV
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import once
from pymc_dp.graphs.values import depends_on, nearest_rvs
from pymc_dp.reading.model import (
    Reading,
    children,
    divisors_of,
    mechanism_of,
    privatized,
    release_statistic,
    releases,
    releases_of,
)
from pymc_dp.reading.record_lengths import record_length, size_of
from pymc_dp.reading.records import by_rows, has_parent, has_record_axis
from pymc_dp.reading.sums import is_rowwise


@dataclass(frozen=True)
class Records:
    """Confidential records: one or several variables, entry i of each belonging to record i.

    Attributes
    ----------
    records : the variables, parents before children.
    n : the number of records.
    factors : the other variables and potentials of the model that are computed from them.
    """

    records: tuple[TensorVariable, ...]
    n: int
    factors: tuple[TensorVariable, ...]

    @property
    def name(self) -> str:
        """Names of the variables."""
        return ", ".join(rv.name for rv in self.records)


@once
def blocks(reading: Reading, records: tuple[TensorVariable, ...]) -> list[Records]:
    """Group records that are drawn together: rows of several variables, one given another.

    A vector that records depend on entry by entry is part of the record too, if nothing else
    depends on it.
    """
    members, model = list(records), reading.model
    for rv in reversed(model.free_RVs):  # children first
        if rv in members or not has_record_axis(rv):
            continue
        below = children(reading, rv)
        above = [m for m in members if has_parent(rv, m)]
        only_records = all(c in members and by_rows(c, rv) for c in below)
        if below and only_records and all(by_rows(rv, m) for m in above):
            members.append(rv)
    members = [rv for rv in model.free_RVs if rv in members]
    grouped = []
    while members:
        group = members[:1]
        while True:
            more = next((v for v in members if v not in group and _belongs(v, group)), None)
            if more is None:
                break
            group.append(more)
        ordered = tuple(rv for rv in members if rv in group)
        members = [rv for rv in members if rv not in group]
        factors = dict.fromkeys(
            c for rv in ordered for c in children(reading, rv) if c not in group
        )
        grouped.append(Records(ordered, record_length(ordered[0]), tuple(factors)))
    return grouped


def _belongs(rv: TensorVariable, group: Sequence[TensorVariable]) -> bool:
    """Whether a variable is drawn row by row with a group: every dependence has to be rowwise.

    A variable with any other dependence is a factor of the group, or a parameter.
    """
    pairs = [(rv, other) for other in group if has_parent(rv, other)]
    pairs += [(other, rv) for other in group if has_parent(other, rv)]
    return bool(pairs) and all(by_rows(child, above) for child, above in pairs)


@once
def record_groups(reading: Reading) -> list[Records]:
    """Return the privatized records of a model, those that are columns of a row together.

    A latent vector with an entry for each record is part of the record if the release sums over
    records. If each record is released by itself, the vector is a parameter.
    """
    confidential, model = privatized(reading), reading.model
    rows = tuple(
        rv
        for rv in confidential
        if has_record_axis(rv)
        and any(
            v.dtype.startswith("float") for v in (rv, *children(reading, rv)) if v in confidential
        )
        and not _released_by_row(reading, rv)
    )
    groups = _released_together(model, blocks(reading, rows)) if rows else []
    groups += _with_classes(reading, [rv for rv in confidential if rv not in rows])
    groups = _mixed(model, _with_sizes(model, groups))
    order = {rv: i for i, rv in enumerate(model.free_RVs)}
    return sorted(groups, key=lambda group: order[group.records[0]])


def is_channel(release: TensorVariable) -> bool:
    """Whether a release reports categories, each changed at random."""
    return mechanism_of(release).is_channel


def _with_classes(reading: Reading, records: Sequence[TensorVariable]) -> list[Records]:
    """Return groups of the other records.

    Records that are reported row by row are grouped with the latent class of the row, if nothing
    else depends on it: both are summed out, row by row.
    """
    reported = tuple(
        rv
        for rv in records
        if has_record_axis(rv) and all(map(is_channel, releases_of(reading.model, [rv])))
    )
    together = blocks(reading, reported) if reported else []
    return [
        *(Records(block.records, 0, ()) for block in together),
        *(Records((rv,), 0, ()) for rv in records if rv not in reported),
    ]


def _with_sizes(model: pm.Model, groups: list[Records]) -> list[Records]:
    """Join records of unknown number with the variables that are their numbers."""
    sized: dict[TensorVariable, list[TensorVariable]] = {}
    for group in groups:
        for rv in group.records:
            if (size := size_of(rv)) is not None:
                if size in model.observed_RVs:
                    raise ValueError(
                        f"the number of records {rv.name!r} is {size.name!r}, which is observed: "
                        f"write this number as their shape="
                    )
                sized.setdefault(size, []).append(rv)
    sized_groups = [
        Records((*_whole(model, size), size, *records), 0, ()) for size, records in sized.items()
    ]
    together = {v for block in sized_groups for v in block.records}
    return [group for group in groups if not together & {*group.records}] + sized_groups


def _whole(model: pm.Model, size: TensorVariable) -> list[TensorVariable]:
    """Return the released number of which an unreleased number is a Binomial part."""
    if not isinstance(size.owner.op, BinomialRV) or releases_of(model, [size]):
        return []
    return [
        v for v in nearest_rvs(size.owner.op.dist_params(size.owner)[:1]) if releases_of(model, [v])
    ]


def _mixed(model: pm.Model, groups: list[Records]) -> list[Records]:
    """Join groups that enter one release, though they are not columns of the same rows."""
    for release in releases(model):
        statistic = release_statistic(release)
        released = [g for g in groups if any(depends_on(statistic, rv) for rv in g.records)]
        members = [rv for g in released for rv in g.records]
        apart = not any(has_parent(rv, v) for rv in members for v in members)
        if len(released) > 1 and (apart or divisors_of(release)):
            joined = Records(tuple(rv for rv in model.free_RVs if rv in members), 0, ())
            return _mixed(model, [*(g for g in groups if g not in released), joined])
    return groups


def _released_by_row(reading: Reading, rv: TensorVariable) -> bool:
    """Whether a variable is a single column, and each released entry depends on one row of it."""
    confidential, n = privatized(reading), record_length(rv)
    statistics = [release_statistic(r) for r in releases_of(reading.model, [rv])]
    return not any(has_parent(rv, v) or has_parent(v, rv) for v in confidential) and all(
        _of_rows(s, rv, n) for s in statistics
    )


def _of_rows(statistic: TensorVariable, rv: TensorVariable, n: int) -> bool:
    node = statistic.owner
    if node is not None and isinstance(node.op, Join | MakeVector):
        return all(_of_rows(part, rv, n) for part in node.inputs)
    if node is not None and isinstance(node.op, DimShuffle) and node.op.is_expand_dims:
        return _of_rows(node.inputs[0], rv, n)
    return statistic.type.ndim > 0 and is_rowwise(statistic, rv, n, statistic.type.ndim)


def _released_together(model: pm.Model, groups: list[Records]) -> list[Records]:
    """Join groups of the same length that enter one release: columns of the same rows."""
    for release in releases(model):
        released = [
            g for g in groups if any(depends_on(release_statistic(release), rv) for rv in g.records)
        ]
        for first, second in itertools.pairwise(released):
            if first.n == second.n:
                members = [*first.records, *second.records]
                joined = tuple(rv for rv in model.free_RVs if rv in members)
                block = Records(joined, first.n, (*first.factors, *second.factors))
                groups = [g for g in groups if g not in (first, second)] + [block]
                return _released_together(model, groups)
    return groups
