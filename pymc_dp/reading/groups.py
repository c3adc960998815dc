"""Which variables of a model form one record, and what depends on them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.custom import CustomSymbolicDistRV
from pymc.logprob.basic import logp
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import Join, MakeVector
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.random.basic import BinomialRV
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, Unrelated, once
from pymc_dp.graphs.linear import uses
from pymc_dp.graphs.questions import depends_on, known_shape, lengths, nearest_rvs
from pymc_dp.reading.model import (
    Reading,
    children,
    is_component,
    parents,
    privatized,
    record_length,
    release_mechanism,
    release_statistic,
    releases,
    releases_of,
    size_of,
)
from pymc_dp.reading.record_sums import RecordSumsRV
from pymc_dp.reading.sums import Additive, additive, is_rowwise


@dataclass(frozen=True)
class Block:
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


def has_record_axis(rv: TensorVariable) -> bool:
    """Whether a variable is a batch of independent draws along its first axis.

    That a `pm.CustomDist` with a graph is one follows from the graph, not from its shape: its
    entries may depend on each other where no ndim_supp= or signature= says so.
    """
    op = rv.owner.op
    ndim_supp = getattr(op, "ndim_supp", 0)
    if ndim_supp is None or rv.type.ndim - ndim_supp < 1 or size_of(rv) is not None:
        return False
    if isinstance(op, RecordSumsRV):
        return False
    return ndim_supp > 0 or not isinstance(op, CustomSymbolicDistRV) or _has_separate_rows(rv)


def _has_separate_rows(rv: TensorVariable) -> bool:
    """Whether entry i of a user's law is made of entries i of what it draws, and of no others."""
    graph, drawn = _opened(rv)
    n = known_shape(graph)[0] or known_shape(rv)[0]
    if n is None:
        return True  # to be refused with the reason: `record_length`
    outside = ancestors([graph], blockers=nearest_rvs([graph]))
    if any(isinstance(v.type, RandomType) for v in outside):
        return False  # drawn by something that is no random variable: a Scan
    given = nearest_rvs(rv.owner.inputs)
    return bool(drawn) and all(
        _is_separate(d, n, given) and is_rowwise(graph, d, n, rv.type.ndim) for d in drawn
    )


def _is_separate(drawn: TensorVariable, n: int, given: Sequence[TensorVariable]) -> bool:
    """Whether entries of what is drawn inside a law are independent, given what it depends on."""
    if not has_record_axis(drawn) or known_shape(drawn)[0] != n:
        return False
    above = [v for v in nearest_rvs(drawn.owner.inputs) if v not in given]
    components = [v for v in above if v in drawn.owner.inputs]
    return all(v in given for c in components for v in parents(c)) and all(
        _is_separate(v, n, given) and by_rows(drawn, v) for v in above if v not in components
    )


def _opened(rv: TensorVariable) -> tuple[TensorVariable, list[TensorVariable]]:
    """Return the graph of a user's law, and the variables that are drawn inside of it."""
    node = rv.owner
    graph = inline_ofg_node(node)[node.outputs.index(rv)]
    given = nearest_rvs(node.inputs)
    return graph, [v for v in nearest_rvs([graph]) if v not in given]


@once
def record_variables(reading: Reading) -> list[TensorVariable]:
    """Return the confidential records that feed some release, in model order.

    A vector that is a parameter of other records in the same release, the coefficients of a
    regression say, is none.
    """
    found = [rv for rv in privatized(reading) if has_record_axis(rv)]
    return [
        rv
        for rv in found
        if all(by_rows(child, rv) for child in found if child is not rv and _parent(child, rv))
    ]


def _parent(child: TensorVariable, rv: TensorVariable) -> bool:
    return rv in parents(child)


def by_rows(child: TensorVariable, rv: TensorVariable) -> bool:
    """Whether entry i of `child` depends on entry i of `rv` alone.

    If it depends on it by the components of a mixture, say, which are variables of their own, the
    answer is no: they are not drawn along.
    """
    if not has_record_axis(child) or record_length(child) != record_length(rv):
        return False
    n, op = record_length(rv), child.owner.op
    if isinstance(op, CustomSymbolicDistRV) and not op.ndim_supp:
        graph, drawn = _opened(child)
        return (not depends_on(graph, rv) or is_rowwise(graph, rv, n, child.type.ndim)) and all(
            by_rows(d, rv) for d in drawn if _parent(d, rv)
        )
    if rv not in nearest_rvs(child.owner.inputs):
        return not _parent(child, rv)
    if any(is_component(v) and _parent(v, rv) for v in nearest_rvs(child.owner.inputs)):
        return False
    batch = child.type.ndim - op.ndim_supp
    cores = dict(zip(op.dist_params(child.owner), op.ndims_params, strict=True))
    return all(
        p in cores and is_rowwise(p, rv, n, batch + cores[p])
        for p in child.owner.inputs
        if isinstance(p, TensorVariable) and depends_on(p, rv)
    )


@once
def blocks(reading: Reading, records: tuple[TensorVariable, ...]) -> list[Block]:
    """Group records that are drawn together: rows of several variables, one given another.

    Vectors that records depend on entry by entry belong to the record too, if nothing else
    depends on them.
    """
    members, model = list(records), reading.model
    for rv in reversed(model.free_RVs):  # children first
        if rv in members or not has_record_axis(rv):
            continue
        below = children(reading, rv)
        above = [m for m in members if _parent(rv, m)]
        mine = all(c in members and by_rows(c, rv) for c in below)
        if below and mine and all(by_rows(rv, m) for m in above):
            members.append(rv)
    members = [rv for rv in model.free_RVs if rv in members]
    found = []
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
        found.append(Block(ordered, record_length(ordered[0]), tuple(factors)))
    return found


def _belongs(rv: TensorVariable, group: Sequence[TensorVariable]) -> bool:
    """Whether a variable is drawn row by row with a group: every dependence has to be rowwise.

    One that is not, beside another that is, keeps it out: it is a factor of the group, and the
    group of it, or one of its parameters.
    """
    pairs = [(rv, other) for other in group if _parent(rv, other)]
    pairs += [(other, rv) for other in group if _parent(other, rv)]
    return bool(pairs) and all(by_rows(child, above) for child, above in pairs)


@once
def record_groups(reading: Reading) -> list[Block]:
    """Return the privatized records of a model, those that are columns of a row together.

    A latent vector with one entry a record belongs to the record if the release sums over records.
    If each record is released by itself, it is a parameter.
    """
    found, model = privatized(reading), reading.model
    rows = tuple(
        rv
        for rv in found
        if has_record_axis(rv)
        and any(v.dtype.startswith("float") for v in (rv, *children(reading, rv)) if v in found)
        and not _released_by_row(reading, rv)
    )
    groups = _released_together(model, blocks(reading, rows)) if rows else []
    groups += _with_classes(reading, [rv for rv in found if rv not in rows])
    groups = _mixed(model, _with_sizes(model, groups))
    order = {rv: i for i, rv in enumerate(model.free_RVs)}
    return sorted(groups, key=lambda group: order[group.records[0]])


def is_channel(release: TensorVariable) -> bool:
    """Whether a release reports categories, each changed at random."""
    return release_mechanism(release).is_channel


def _with_classes(reading: Reading, found: Sequence[TensorVariable]) -> list[Block]:
    """Return groups of other records; those that are reported row by row, with what they depend on.

    These are summed out row by row, with the latent class of a row, which nothing else depends on.
    """
    reported = tuple(
        rv
        for rv in found
        if has_record_axis(rv) and all(map(is_channel, releases_of(reading.model, [rv])))
    )
    together = blocks(reading, reported) if reported else []
    return [
        *(Block(block.records, 0, ()) for block in together),
        *(Block((rv,), 0, ()) for rv in found if rv not in reported),
    ]


def _with_sizes(model: pm.Model, groups: list[Block]) -> list[Block]:
    """Join records of unknown sizes with these, which are parts of the group."""
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
    found = [Block((*_whole(model, size), size, *own), 0, ()) for size, own in sized.items()]
    together = {v for block in found for v in block.records}
    return [group for group in groups if not together & {*group.records}] + found


def _whole(model: pm.Model, size: TensorVariable) -> list[TensorVariable]:
    """Return the unknown number of which one that nothing is released of is a Binomial part."""
    if not isinstance(size.owner.op, BinomialRV) or releases_of(model, [size]):
        return []
    return [
        v for v in nearest_rvs(size.owner.op.dist_params(size.owner)[:1]) if releases_of(model, [v])
    ]


def _mixed(model: pm.Model, groups: list[Block]) -> list[Block]:
    """Join groups that are parts of one release, though they are no columns of the same rows."""
    for release in releases(model):
        statistic = release_statistic(release)
        mine = [g for g in groups if any(depends_on(statistic, rv) for rv in g.records)]
        members = [rv for g in mine for rv in g.records]
        if len(mine) > 1 and not any(_parent(rv, v) for rv in members for v in members):
            joined = Block(tuple(rv for rv in model.free_RVs if rv in members), 0, ())
            return _mixed(model, [*(g for g in groups if g not in mine), joined])
    return groups


def _released_by_row(reading: Reading, rv: TensorVariable) -> bool:
    """Whether each released entry depends on one row of this variable, which is a lone column."""
    found, n = privatized(reading), record_length(rv)
    statistics = [release_statistic(r) for r in releases_of(reading.model, [rv])]
    return not any(_parent(rv, v) or _parent(v, rv) for v in found) and all(
        _of_rows(s, rv, n) for s in statistics
    )


def _of_rows(statistic: TensorVariable, rv: TensorVariable, n: int) -> bool:
    node = statistic.owner
    if node is not None and isinstance(node.op, Join | MakeVector):
        return all(_of_rows(part, rv, n) for part in node.inputs)
    if node is not None and isinstance(node.op, DimShuffle) and node.op.is_expand_dims:
        return _of_rows(node.inputs[0], rv, n)
    return statistic.type.ndim > 0 and is_rowwise(statistic, rv, n, statistic.type.ndim)


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


def tag_records(reading: Reading, exact: Mapping[TensorVariable, str] | None = None) -> None:
    """Tag what is confidential: `pm.sample` then assigns its step.

    Tags are strings, which survive in copies of the model: ``dp_release`` names the releases of
    records, ``dp_step`` the step of counts that have an exact draw given their release. Continuous
    values that are released one by one, and in no aggregate, are left to NUTS.

    Parameters
    ----------
    reading : Reading
    exact : mapping of TensorVariable to str, optional
        Counts and the name of their step.
    """
    model, exact = reading.model, exact or {}
    for rv in model.free_RVs:
        _tag(rv, "dp_step", exact.get(rv))
    aggregated = tuple(
        rv
        for rv in record_variables(reading)
        if rv not in exact and not _released_singly(model, rv)
    )
    members = {
        rv: ",".join(f.name for f in block.factors if f in releases(model))
        for block in blocks(reading, aggregated)
        for rv in block.records
    }
    # `RecordMetropolis` says what to do: any other step would take the number as it starts.
    for rv in privatized(reading):
        if size_of(rv) is not None or isinstance(rv.owner.op, RecordSumsRV):
            members[rv] = ",".join(release.name for release in releases_of(model, [rv]))
    for rv in model.free_RVs:
        _tag(rv, "dp_release", members.get(rv))


def _tag(rv: TensorVariable, name: str, tag: str | None) -> None:
    if tag:
        setattr(rv.tag, name, tag)
    elif hasattr(rv.tag, name):
        delattr(rv.tag, name)


@once
def looked_up(reading: Reading) -> list[TensorVariable]:
    """Return the privatized variables that are parameters, not records.

    A record has an entry of its own in what is released, or a part in a sum over records.
    Parameters, such as effects of counties, are looked up by an index, one for each entry.
    """
    model = reading.model
    return [
        rv
        for rv in privatized(reading)
        if None not in known_shape(rv)  # nor sums over records that are never built
        and not isinstance(rv.owner.op, RecordSumsRV)
        and _released_singly(model, rv)
        and not any(
            is_rowwise(release_statistic(r), rv, record_length(rv), rv.type.ndim)
            for r in releases_of(model, [rv])
        )
    ]


def _released_singly(model: pm.Model, rv: TensorVariable) -> bool:
    if not rv.dtype.startswith("float"):
        return False
    statistics = [release_statistic(r) for r in releases(model)]
    return all(_one_by_one(s, rv) for s in statistics if depends_on(s, rv))


def _one_by_one(statistic: TensorVariable, rv: TensorVariable) -> bool:
    """Whether each entry is computed from one of a variable at most, its own or one looked up."""
    if is_rowwise(statistic, rv, record_length(rv), rv.type.ndim):
        return True
    with suppress(Declined):
        if math.prod(lengths(statistic)) < math.prod(lengths(rv)):
            return False  # and nothing of the size of many records is built
        used = uses(statistic, rv)
        used.eliminate_zeros()
        return bool((np.diff(used.indptr) <= 1).all())
    return False


def parameters(reading: Reading, block: Block) -> list[TensorVariable]:
    """Return the continuous parameters of the records, theirs included, in model order."""
    above = set(ancestors(list(block.records))) - set(block.records)
    others = set(record_variables(reading))
    return [
        rv
        for rv in reading.model.free_RVs
        if rv in above
        and rv not in others
        and rv not in block.factors  # it depends on the records, and they on it
        and rv.dtype.startswith("float")
    ]


def transform_parents(model: pm.Model, rv: TensorVariable) -> list[TensorVariable]:
    """Return the variables that the transform of a free variable is computed from."""
    transform = model.rvs_to_transforms.get(rv)
    if transform is None:
        return []
    value = model.rvs_to_values[rv]
    return nearest_rvs([transform.backward(value, *rv.owner.inputs)])


def factor_terms(model: pm.Model, block: Block) -> list[TensorVariable]:
    """Log densities of all that is computed from the records, the releases above all."""
    terms = []
    for factor in block.factors:
        if factor in model.potentials:
            terms.append(factor)
            continue
        value, transform = model.rvs_to_values[factor], model.rvs_to_transforms.get(factor)
        if transform is None and None in value.type.shape:  # of dims: it says no length
            value = pt.specify_shape(value, known_shape(factor))
        if transform is not None:
            if transform_parents(model, factor):
                raise ValueError(
                    f"{factor.name!r} depends on the records {block.name!r}, and its transform "
                    f"on other variables: give {factor.name!r} default_transform=None"
                )
            value = transform.backward(value, *factor.owner.inputs)
        terms.append(logp(factor, value, warn_rvs=False))
    return terms


def factor_density(model: pm.Model, block: Block) -> TensorVariable:
    """Log density of all that is computed from the records."""
    return sum((t.sum() for t in factor_terms(model, block)), start=pt.zeros((), dtype="float64"))


@once
def read_block(reading: Reading, block: Block) -> Additive:
    """Read what is computed from some records as a function of sums over them; see `additive`."""
    density = factor_density(reading.model, block)
    return additive(density, dict.fromkeys(block.records, block.n))


def check_axes(reading: Reading) -> None:
    """Refuse statistics that pair the records of one variable with all those of another."""
    found = record_variables(reading)
    for release in releases(reading.model):
        statistic = release_statistic(release)
        mine = {rv: record_length(rv) for rv in found if depends_on(statistic, rv)}
        if len(mine) < 2:
            continue
        try:
            additive(statistic.sum(), mine)
        except Unrelated:
            names = " with those of ".join(repr(rv.name) for rv in mine)
            raise ValueError(
                f"the statistic of {release.name!r} pairs the records of {names}, each with every "
                f"other: write what the curator summed over single records, (x * y).sum() say, or "
                f"combine sums, x.sum() * y.sum()"
            ) from None
        except Declined:
            pass
