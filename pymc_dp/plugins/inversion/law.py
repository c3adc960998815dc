"""The marginal of continuous records whose law has no rule of its own: by inversion."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors, graph_inputs
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.basic import BernoulliRV, CategoricalRV
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, about
from pymc_dp.graphs.shapes import known_shape, lengths
from pymc_dp.graphs.values import keeps_values, known_value, nearest_rvs
from pymc_dp.laws.integrated import integrated_release
from pymc_dp.laws.parts import parts_of
from pymc_dp.laws.shown import as_released, of_multiples
from pymc_dp.laws.sum_law import LAWS, Change, Phase, SumLaw, Takes
from pymc_dp.plugins.inversion.density import Inverted
from pymc_dp.plugins.inversion.lattice import on_lattice
from pymc_dp.plugins.inversion.quadrature import noise_parts, starts_at_zero
from pymc_dp.plugins.inversion.readable import readable_law
from pymc_dp.plugins.inversion.summand import read_summand, summand_of
from pymc_dp.plugins.inversion.trial import require_found, trial_of
from pymc_dp.reading.bounds import at_start
from pymc_dp.reading.checks import check_transform
from pymc_dp.reading.columns import column_parameters, only_column
from pymc_dp.reading.model import Reading, mechanism_of, release_statistic, releases_of
from pymc_dp.reading.record_lengths import record_length
from pymc_dp.reading.statistic import Statistic, is_shared, read_statistic


@contextmanager
def _by_inversion(records: TensorVariable) -> Iterator[None]:
    """Prefix refusals in this block, or in the function that it decorates: by inversion."""
    try:
        yield
    except (Declined, ValueError) as error:
        # The law of counts of finite records says better why there is no marginal.
        counted = isinstance(records.owner.op, BernoulliRV | CategoricalRV)
        near = -1 if counted else getattr(error, "near", 1)
        raise Declined(f"by inversion: {error}", near=near) from None


@dataclass(frozen=True, eq=False)
class ByInversion(SumLaw):
    """Records of one variable of which sums were released."""

    reading: Reading
    records: TensorVariable
    released: list[TensorVariable]

    @classmethod
    def read(cls, reading, group):
        """See `SumLaw.read`."""
        [records] = group.records
        check_transform(reading.model, records)
        released = list(releases_of(reading.model, [records]))
        if any(release.owner.op.bounds is not None for release in released):
            raise Declined
        return cls(reading, records, released)


@LAWS.register(Phase.FALLBACK, Takes(single=True))
class SumOfAll(ByInversion):
    """A sum over all records, which are alike."""

    def marginal(self):
        """Integrate the records out."""
        records, released = self.records, self.released
        column, name = only_column(records, released)
        with _by_inversion(records):
            found = sum_of_all(records, column, name, released)
            trials = [_by_inversion(records)(trial) for trial in bulk_trials(found, name)]
        return Change(replaced={released[0]: found}, trials=trials)


@LAWS.register(Phase.FALLBACK, Takes(single=True))
class SumsByGroup(ByInversion):
    """Sums over groups of records, of one function of a record."""

    def marginal(self):
        """Integrate the records out."""
        records, released = self.records, self.released
        part, sums = part_of(self.reading, released, records)
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
                name = f"{records.name}_{statistic.rv.name}" if len(sums) > 1 else str(records.name)
                replaced = sums_by_group(records, part, statistic, name)
                with about(of):
                    trials = bulk_trials(replaced, str(records.name))
            change.trials += [about(what)(about(of)(trial)) for trial in trials]
            change.replaced[statistic.rv] = replaced
        return change


def sum_of_all(
    records: TensorVariable, column: int, prefix: str, releases: Sequence[TensorVariable]
) -> TensorVariable:
    """Return the release of a sum over all records, of a vector or a column, without the records.

    The name of the sum in results begins with `prefix`.

    Raises
    ------
    NotImplementedError, ValueError
        Where this does not apply; the message names the variable and says why.
    """
    n = record_length(records)
    law, law_parameters = readable_law(records)
    # Small integers and floats in the graph would make it single precision.
    parameters = [p.astype("float64") for p in column_parameters(records, column, law_parameters)]
    positive = starts_at_zero(law, parameters, str(records.name))
    if len(releases) != 1:
        names = ", ".join(repr(r.name) for r in releases)
        raise Declined(
            f"the records {records.name!r} have {len(releases)} releases ({names}), which are "
            f"dependent: only one release, of one sum, can be inverted"
        )
    [release] = releases
    name, statistic = release.name, release_statistic(release)
    with about(f"the release {name!r}"):
        noise_parts(mechanism_of(release), whole=not records.dtype.startswith("float"))
    foreign = [rv for rv in nearest_rvs([statistic]) if rv is not records]
    if foreign:
        raise Declined(
            f"the release {name!r} mixes the records {records.name!r} with "
            f"{', '.join(repr(o.name) for o in foreign)}: write what does not depend on "
            f"{records.name!r} behind the release"
        )
    shape = statistic.type.shape
    if shape not in ((), (1,)):
        raise Declined(
            f"the release {name!r} has shape {shape}: one sum over all records {records.name!r} "
            f"can be integrated out, given as a scalar or a list of one",
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
    one_group = np.array([n]), np.ones(1), np.array([added])
    return without_records(release, records, law, parameters, summand, one_group, prefix)


def sums_by_group(
    rv: TensorVariable, part: TensorVariable, release: Statistic, prefix: str
) -> TensorVariable:
    """Return the release of sums over groups of a function of each record, without the records.

    The name of the sums in results begins with `prefix`.
    """
    law, law_parameters = readable_law(rv)
    with about(f"the release {release.rv.name!r}"):
        noise_parts(mechanism_of(release.rv), whole=not rv.dtype.startswith("float"))
    if not np.any(release.sizes):
        raise Declined(
            f"the release {release.rv.name!r} is the same whatever {rv.name!r} are: leave it out"
        )
    groups = release.sizes, release.factors(rv), release.offset
    parameters = [p.astype("float64") for p in release.parameters(rv, law_parameters)]
    scalars = [p[0] if p.type.ndim else p for p in parameters]
    positive = starts_at_zero(law, scalars, str(rv.name))
    with about(f"the release {release.rv.name!r}"):
        summand = summand_of(part, rv, math.prod(lengths(rv)), positive)
    return without_records(release.rv, rv, law, parameters, summand, groups, prefix)


def without_records(
    release: TensorVariable, records: TensorVariable, law, parameters, summand, groups, prefix: str
) -> TensorVariable:
    """Return a release of ``factor * sum + added`` over groups of records, without the records.

    Parameters
    ----------
    law, parameters : the law of a record; a parameter is a vector of the groups, or a scalar.
    summand : the contribution of a record to a sum.
    groups : vectors of the groups: the number of records, the factor and the added constant.
    prefix : begins the name that the sums have in results.
    """
    mechanism, shape = mechanism_of(release), lengths(release_statistic(release))
    sizes, factor, added = (x.reshape(shape) for x in groups)
    parameters = [
        p.reshape(shape) if p.type.ndim else pt.broadcast_to(p, shape) for p in parameters
    ]
    with about(f"the release {release.name!r}"):
        summand = on_lattice(summand, law, parameters, str(records.name))
        summand.require(records, mechanism, factor, added)
    shown = as_released(release, sizes.size)
    if multiple := summand.multiple:
        times, of_each = multiple
        sums = groups[0], times * groups[1], of_each * groups[0] * groups[1] + groups[2]
        shown = of_multiples(prefix, records.owner.op, *sums)
    graphs = [summand.h, *summand.breakpoints]
    public = [
        v for v in graph_inputs(graphs) if v is not summand.record and not isinstance(v, Constant)
    ]
    # The law holds stand-ins of public data, not variables of the model.
    stand_ins = {v: v.type() for v in public}
    summand = summand.rewritten(lambda g: clone_replace(g, stand_ins, rebuild_strict=False))
    inverted = Inverted(law, sizes, factor, added, summand, tuple(stand_ins.values()), shown)
    return integrated_release(inverted, mechanism, *parameters, *public)


def bulk_trials(release: TensorVariable, name: str) -> list[Callable[[], None]]:
    """Return trials of the density of a release whose records, of this name, are integrated out.

    The smallest of its groups is tried, under the narrowest noise of all.
    """
    mechanism, parameters = release.owner.op.split(release.owner.inputs)
    law = release.owner.op.law
    if not law.summand.inverted:
        return []
    sizes, (_, *noise), by_group, summand = law.standardised(release, mechanism, parameters)
    if not sizes.size:
        return []
    j = int(np.argmin(sizes))
    narrowest = [part.min() for part in noise]

    def found_at(times, **how):
        smallest = at_start([p[j] for p in by_group], times)
        at = summand.rewritten(lambda graphs: at_start(graphs, times))
        require_found(
            name,
            parts_of(law.law, smallest),
            int(sizes[j]),
            at,
            *at_start(narrowest),
            **how,
        )

    return [trial_of(found_at)]


def part_of(
    reading: Reading, releases: list[TensorVariable], rv: TensorVariable
) -> tuple[TensorVariable, list[Statistic]]:
    """Return the function of each record that all releases are linear in, and the statistics."""
    above = ancestors([release_statistic(r) for r in releases], blockers=[rv])
    for candidate in (rv, *above):  # sums of the records themselves first
        elementwise = candidate.owner is not None and isinstance(candidate.owner.op, Elemwise)
        if not (candidate is rv or elementwise):
            continue
        if candidate.type.ndim != rv.type.ndim or known_shape(candidate) != known_shape(rv):
            continue
        if not _of_one_record(candidate, rv):
            continue
        with suppress(Declined):
            return candidate, [read_statistic(reading, r, rv, (), candidate) for r in releases]
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
