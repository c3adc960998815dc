"""The marginal of continuous records whose law has no rule of its own: by inversion."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors, graph_inputs
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.basic import BernoulliRV, CategoricalRV
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, about
from pymc_dp.graphs.questions import keeps_values, known_shape, known_value, lengths, nearest_rvs
from pymc_dp.laws.integrated import integrated_release
from pymc_dp.laws.shown import as_released, of_multiples, of_weights
from pymc_dp.laws.sum_law import LAST_RESORTS, Change
from pymc_dp.plugins.inversion.lattice import on_lattice
from pymc_dp.plugins.inversion.law import Inverted
from pymc_dp.plugins.inversion.parts import parts_of
from pymc_dp.plugins.inversion.quadrature import noise_parts, starts_at_zero
from pymc_dp.plugins.inversion.readable import readable_law
from pymc_dp.plugins.inversion.summand import read_summand, summand_of
from pymc_dp.plugins.inversion.trial import require_found, trial_of
from pymc_dp.reading.bounds import at_start
from pymc_dp.reading.columns import column_parameters, only_column, width_of
from pymc_dp.reading.groups import Block
from pymc_dp.reading.model import (
    Reading,
    check_transform,
    record_length,
    release_mechanism,
    release_statistic,
    releases_of,
)
from pymc_dp.reading.statistic import Statistic, is_shared, read_statistic


def _read(reading: Reading, group: Block) -> tuple[TensorVariable, list[TensorVariable]]:
    """Return records of one variable, and their releases; decline others."""
    [records, *others] = group.records
    if others:
        raise Declined
    check_transform(reading.model, records)
    mine = releases_of(reading.model, [records])
    if any(r.owner.op.bounds is not None for r in mine):
        raise Declined
    return records, list(mine)


@contextmanager
def _by_inversion(records: TensorVariable) -> Iterator[None]:
    """Say of a refusal in this block, or in what this decorates, what was tried."""
    try:
        yield
    except (Declined, ValueError) as error:
        # Counts of the records' values say more of why there is no marginal.
        counted = isinstance(records.owner.op, BernoulliRV | CategoricalRV)
        near = -1 if counted else getattr(error, "near", 1)
        raise Declined(f"by inversion: {error}", near=near) from None


@LAST_RESORTS.register("all records", order=1)
def of_all_records(reading: Reading, group: Block) -> Change:
    """Integrate records of one law out of the release of a sum over all of them."""
    records, mine = _read(reading, group)
    column, name = only_column(records, mine)
    with _by_inversion(records):
        found = sum_of_all(records, record_length(records), column, mine)
        trials = [_by_inversion(records)(trial) for trial in bulk_trials(found, name)]
    return Change(replaced={mine[0]: found}, trials=trials)


@LAST_RESORTS.register("groups", order=2)
def of_groups(reading: Reading, group: Block) -> Change:
    """Integrate records out of sums over groups, of one function of a record."""
    records, mine = _read(reading, group)
    part = part_of(reading, mine, records)
    sums = [read_statistic(reading, release, records, (), part) for release in mine]
    if is_shared(*sums):
        raise Declined(
            f"by inversion by group: records of {records.name!r} are used more than once, and "
            f"sums that share records are dependent",
            near=1,
        )
    change = Change()
    for statistic in sums:
        what, of = "by inversion by group", f"the release {statistic.rv.name!r}"
        with about(what):
            released = sums_by_group(records, part, statistic, len(sums) > 1)
            with about(of):
                trials = bulk_trials(released, str(records.name))
        change.trials += [about(what)(about(of)(trial)) for trial in trials]
        change.replaced[statistic.rv] = released
    return change


def sum_of_all(
    records: TensorVariable, n: int, column: int, releases: Sequence[TensorVariable]
) -> TensorVariable:
    """Return the release of a sum over n records alike, a vector or a column, without these.

    Raises
    ------
    NotImplementedError, ValueError
        Where this does not apply; the message names the variable and says why.
    """
    law, given = readable_law(records)
    # Small integers and floats in the graph would be computed with in single precision.
    parameters = [p.astype("float64") for p in column_parameters(records, column, given)]
    positive = starts_at_zero(law, parameters, str(records.name))
    if len(releases) != 1:
        names = ", ".join(repr(r.name) for r in releases)
        raise Declined(
            f"the records {records.name!r} have {len(releases)} releases ({names}), which are "
            f"dependent: only one release, of one sum, can be inverted"
        )
    [release] = releases
    name, mechanism = release.name, release_mechanism(release)
    statistic = release_statistic(release)
    with about(f"the release {name!r}"):
        noise_parts(mechanism, whole=not records.dtype.startswith("float"))
    others = [rv for rv in nearest_rvs([statistic]) if rv is not records]
    if others:
        raise Declined(
            f"the release {name!r} mixes the records {records.name!r} with "
            f"{', '.join(repr(o.name) for o in others)}: write what does not depend on "
            f"{records.name!r} behind the release"
        )
    shape = statistic.type.shape
    if shape not in ((), (1,)):
        raise Declined(
            f"the release {name!r} has shape {shape}: one sum over all records {records.name!r} "
            f"can be integrated out, given as a scalar or a list",
            near=1,
        )
    try:
        entry = statistic[0] if shape else statistic
        summand, added = read_summand(entry, records, n, column=column, positive=positive)
    except Declined as error:
        instead = "Release sums of functions of single records, or sample with rung='records'"
        raise Declined(
            f"the statistic of the release {name!r} of {records.name!r}: {error}",
            instead="" if error.near else instead,
            near=error.near,
        ) from None
    with about(f"the release {name!r}"):
        summand = on_lattice(summand, law, parameters, str(records.name))
        summand.require(records, mechanism, 1.0, added)
    shown = as_released(release, 1)
    if found := summand.multiple:
        factor, of_each = np.array(found).reshape(2, 1)
        several = records.type.ndim > 1 and width_of(records) > 1
        of = f"{records.name}_{column}" if several else str(records.name)
        shown = of_multiples(of, records.owner.op, np.array(n), factor, n * of_each + added)
    graphs = [summand.h, *summand.breakpoints]
    public = [
        v for v in graph_inputs(graphs) if v is not summand.record and not isinstance(v, Constant)
    ]
    # What the law keeps is no part of the model.
    own = {v: v.type() for v in public}
    summand = summand.rewritten(lambda g: clone_replace(g, own, rebuild_strict=False))
    numbers = np.full(shape, n), np.ones(shape), np.full(shape, added)
    inverted = Inverted(law, *numbers, summand, tuple(own.values()), shown)
    parameters = [pt.broadcast_to(p, shape) for p in parameters]
    return integrated_release(inverted, mechanism, *parameters, *public)


def sums_by_group(
    rv: TensorVariable, part: TensorVariable, release: Statistic, several: bool
) -> TensorVariable:
    """Return the release of sums over groups of a function of each record, without these.

    `several` says whether there are others of these records, which decides on the name.
    """
    mechanism, shape = release_mechanism(release.rv), lengths(release.rv)
    law, given = readable_law(rv)
    with about(f"the release {release.rv.name!r}"):
        noise_parts(mechanism, whole=not rv.dtype.startswith("float"))
    sizes, factor, added = (
        x.reshape(shape) for x in (release.sizes, release.factors(rv), release.offset)
    )
    parameters = release.parameters(rv, given)
    own = [p.astype("float64") for p in parameters]
    scalars = [p[0] if p.type.ndim else p for p in own]
    own = [p.reshape(shape) if p.type.ndim else pt.broadcast_to(p, shape) for p in own]
    positive = starts_at_zero(law, scalars, str(rv.name))
    with about(f"the release {release.rv.name!r}"):
        summand = summand_of(part, rv, math.prod(lengths(rv)), positive)
        summand = on_lattice(summand, law, own, str(rv.name))
        summand.require(rv, mechanism, factor, added)
    shown = as_released(release.rv, release.offset.size)
    if part is rv:
        of = f"{rv.name}_{release.rv.name}" if several else str(rv.name)
        shown = of_weights(of, rv.owner.op, release)
    inverted = Inverted(law, sizes, factor, added, summand, (), shown)
    return integrated_release(inverted, mechanism, *own)


def bulk_trials(release: TensorVariable, name: str) -> list[Callable[[], None]]:
    """Return what tries the density of a release, its records of this name integrated out.

    The smallest of its groups is tried, under the narrowest noise of all.
    """
    mechanism, parameters = release.owner.op.split(release.owner.inputs)
    law = release.owner.op.law
    if not law.summand.inverted:
        return []
    sizes, (_, *noise), given, summand = law.standardised(release, mechanism, parameters)
    if not sizes.size:
        return []
    j = int(np.argmin(sizes))
    narrowest = [part.min() for part in noise]

    def found_at(times, **how):
        own = at_start([p[j] for p in given], times)
        at = summand.rewritten(lambda graphs: at_start(graphs, times))
        require_found(name, parts_of(law.law, own), int(sizes[j]), at, *at_start(narrowest), **how)

    return [trial_of(found_at)]


def part_of(reading: Reading, mine: list[TensorVariable], rv: TensorVariable) -> TensorVariable:
    """Return the function of each record that all releases are linear in."""
    above = ancestors([release_statistic(r) for r in mine], blockers=[rv])
    for found in (rv, *above):  # sums of the records themselves first
        elementwise = found.owner is not None and isinstance(found.owner.op, Elemwise)
        if not (found is rv or elementwise):
            continue
        if found.type.ndim != rv.type.ndim or known_shape(found) != known_shape(rv):
            continue
        if not _of_one_record(found, rv):
            continue
        try:
            for release in mine:
                read_statistic(reading, release, rv, (), found)
        except Declined:
            continue
        return found
    raise Declined(
        f"by inversion by group: the releases of {rv.name!r} are no sums of one function of a "
        f"single record: write it once for all records, c = pt.clip(x, a, b), and release sums of c"
    )


def _of_one_record(graph: TensorVariable, rv: TensorVariable) -> bool:
    """Whether entry i of a graph is the same function of entry i of a variable for all i."""
    if graph is rv:
        return True
    node = graph.owner
    if not nearest_rvs([graph]):
        return all(graph.type.broadcastable) and known_value(graph, fixed=True) is not None
    if node is None or not (isinstance(node.op, Elemwise) or keeps_values(node.op, node.inputs[0])):
        return False
    return all(_of_one_record(i, rv) for i in node.inputs)
