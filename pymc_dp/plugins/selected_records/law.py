"""Sums over records that others select: of visitors, the revenue of those who buy.

A Bernoulli or categorical record b beside a continuous x, as in ``(b * x).clip(0, c).sum()``, says
which function of x is summed. Where this does not depend on x, the record may as well be a number:
it follows a mixture of such numbers and the law of x. So are k
records of n, k being Binomial: each of the n is one of them, or adds nothing.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytensor.tensor.random.basic as ptr
from pymc.distributions.mixture import MixtureTransformWarning
from pytensor.graph.basic import equal_computations
from pytensor.graph.replace import clone_replace, graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Second
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Sum
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.shapes import entry_of, known_shape, lengths, require_entry_each
from pymc_dp.graphs.substitution import simplified
from pymc_dp.graphs.values import depends_on, known_value
from pymc_dp.laws.sum_law import LAWS, Change, Phase, SumLaw, Takes, change
from pymc_dp.mechanisms.release import release_rv
from pymc_dp.reading.checks import check_transform
from pymc_dp.reading.frozen import shallow
from pymc_dp.reading.groups import Records, record_groups
from pymc_dp.reading.model import Reading, mechanism_of, parents, release_statistic, releases_of
from pymc_dp.reading.record_lengths import written_length


class Selected(NamedTuple):
    """Records x, the records `by` whose values select a summand, and the shares of the values."""

    x: TensorVariable
    by: TensorVariable
    shares: TensorVariable

    def at(self, graph: TensorVariable, value: int, x: TensorVariable) -> TensorVariable:
        """Return the summand of records x where the selecting records have a value."""
        by = pt.constant(np.full(x.type.shape if None not in x.type.shape else 1, value))
        replacements = {self.by: by.astype(self.by.dtype), self.x: x}
        return simplified(clone_replace([graph], replacements, rebuild_strict=False))[0]

    def mixed(self, graphs: list[TensorVariable]) -> tuple[TensorVariable, list[TensorVariable]]:
        """Return records of a mixture, and the graphs as functions of these."""
        x, by = self.x, self.by
        summed = _of_both(graphs, x, by)
        some = pt.vector(shape=(known_shape(x)[0] or 2,), dtype=x.dtype)
        zeros, record = pt.constant(np.zeros(some.type.shape)), x.type()
        values = range(self.shares.type.shape[-1])
        counts = [v for v in values if any(_uses(self.at(e, v, some), some) for e in summed)]
        if not counts:
            raise Declined
        written = [[self.at(e, v, record) for e in summed] for v in counts]
        if any(not equal_computations(written[0], functions) for functions in written[1:]):
            raise Declined(
                f"several functions of {x.name!r} are summed, by the value of {by.name!r}: one "
                f"function, and numbers where a record does not count, are supported, "
                f"pt.switch({by.name}, {x.name}, 0) say",
                near=1,
            )
        new, laws = dict(zip(summed, written[0], strict=True)), []
        for v in values:
            if v in counts:
                laws.append(_unnamed(x))
                continue
            ends = [[known_value(self.at(e, k, zeros)) for k in (v, counts[0])] for e in summed]
            same = all(a is not None and b is not None and np.array_equal(a, b) for a, b in ends)
            # A marker that occurs nowhere else stands for the summand of this value.
            number = 0.0 if same else -np.sqrt(2.0) - v
            laws.append(pm.DiracDelta.dist(number))
            if not same:
                for e in summed:
                    instead = self.at(e, v, pt.constant(np.ones(1)))
                    new[e] = pt.switch(pt.eq(record, number), instead, new[e])
        y = pm.Mixture.dist(self.shares, laws, shape=(known_shape(x)[0] or written_length(x),))
        new = {e: graph_replace([h], {record: y}, strict=False)[0] for e, h in new.items()}
        graphs = graph_replace(graphs, new, strict=False)
        shapes = {
            v: v.owner.op(y)
            for v in ancestors(graphs)
            if v.owner and isinstance(v.owner.op, Shape | Shape_i) and v.owner.inputs[0] in (x, by)
        }
        return y, graph_replace(graphs, shapes, strict=False)


def _of_both(graphs, x: TensorVariable, by: TensorVariable) -> list[TensorVariable]:
    """Return the smallest elementwise functions of both vectors in some graphs."""

    def by_entry(v) -> bool:
        if v in (x, by) or not (depends_on(v, x) or depends_on(v, by)):
            return True
        return isinstance(v.owner.op, Elemwise | DimShuffle) and all(map(by_entry, v.owner.inputs))

    above = ancestors(graphs, blockers=[x, by])
    both = {v for v in above if depends_on(v, x) and depends_on(v, by) and by_entry(v)}
    smallest = [v for v in both if both.isdisjoint(v.owner.inputs)]
    for v in smallest:
        require_entry_each(v, [x, by])
    return smallest


def _uses(graph, x: TensorVariable) -> bool:
    """Whether the values of a simplified graph depend on a variable, not its shape alone."""
    if graph is x or graph.owner is None:
        return graph is x
    is_fill = isinstance(getattr(graph.owner.op, "scalar_op", None), Second)
    return any(_uses(i, x) for i in graph.owner.inputs[is_fill:])


def _unnamed(x: TensorVariable) -> TensorVariable:
    """Return a variable of the same law, which is no part of a model."""
    law = x.owner.clone().outputs[x.owner.outputs.index(x)]
    law.name = None
    return law


def _beside(group: Records, graphs) -> list[Selected]:
    """Return the continuous records of which finite records beside them select some."""
    selected = []
    for by in group.records:
        if not isinstance(by.owner.op, ptr.BernoulliRV | ptr.CategoricalRV) or by.type.ndim != 1:
            continue
        [p] = by.owner.op.dist_params(by.owner)
        shares = p if by.owner.op.ndims_params[0] else pt.stack([1 - p, p], axis=-1)
        selected += [
            Selected(x, by, shares)
            for x in group.records
            if x.dtype.startswith("float") and by not in parents(x) and _of_both(graphs, x, by)
        ]
    return selected


def _among(group: Records, graphs) -> tuple[list[Selected], list[TensorVariable]]:
    """Return records of which a Binomial number is present, and the graphs as functions of all."""
    k = next((rv for rv in group.records if isinstance(rv.owner.op, ptr.BinomialRV)), None)
    if k is None or any(depends_on(graph, k) for graph in graphs):
        raise Declined
    n, p = k.owner.op.dist_params(k.owner)
    selected = []
    for x in group.records:
        length = written_length(x)
        entry = None if length is None else entry_of(length)
        if length is None or entry is None or entry[0] is not k or not x.dtype.startswith("float"):
            continue
        share = pt.broadcast_to(p, lengths(k))[entry[1]]
        number = n if n.type.ndim == 0 else n[entry[1]]
        known = known_value(number)
        count = number if known is None else pt.constant(int(known))
        [all_x] = graph_replace([_unnamed(x)], {length: count.astype(length.dtype)}, strict=False)
        by = pm.Bernoulli.dist(share, shape=(count,))
        all_x.name, by.name = x.name, k.name
        totals = [
            v
            for v in ancestors(graphs, blockers=[x])
            if v.owner and isinstance(v.owner.op, Sum) and depends_on(v, x) and not v.type.ndim
        ]
        of_all = graph_replace([v.owner.inputs[0] for v in totals], {x: all_x}, strict=False)
        chosen = [pt.switch(by, h, pt.zeros((), dtype=h.dtype)).sum() for h in of_all]
        new = {v: s.astype(v.dtype) for v, s in zip(totals, chosen, strict=True)}
        graphs = graph_replace(graphs, new, strict=False)
        selected.append(Selected(all_x, by, pt.stack([1 - share, share])))
    if not selected:
        raise Declined
    return selected, graphs


@LAWS.register(Phase.FALLBACK, Takes(single=False))
@dataclass(frozen=True, eq=False)
class SelectedRecords(SumLaw):
    """Records of which others say whether they count."""

    reading: Reading
    group: Records

    @classmethod
    def read(cls, reading, group):
        """See `SumLaw.read`."""
        return cls(reading, group)

    def marginal(self):
        """Integrate records out as those of a mixture."""
        return _of_mixtures(self.reading, self.group)


def _of_mixtures(reading: Reading, group: Records) -> Change:
    model, releases = reading.model, releases_of(reading.model, group.records)
    graphs = [release_statistic(release) for release in releases]
    if any(release.owner.op.bounds is not None for release in releases):
        raise Declined
    selected = _beside(group, graphs)
    if not selected:
        selected, graphs = _among(group, graphs)
    records: dict[TensorVariable, TensorVariable] = {}
    for selection in selected:
        x, (y, graphs) = model[selection.x.name], selection.mixed(graphs)
        check_transform(model, x)
        if x in records:
            raise Declined(f"several records say which of {x.name!r} count: one can", near=1)
        records[x] = y
    gone = {*records, *(model[selection.by.name] for selection in selected)}
    for release, graph in zip(releases, graphs, strict=True):
        for rv in gone:
            if depends_on(graph, rv):
                raise Declined(
                    f"the release {release.name!r} depends on {rv.name!r} beside the sum over "
                    f"records that count: release sums of (b * x).clip(0, c), of records b and x "
                    f"say, or of x.clip(0, c) over a number of records that is not released",
                    near=1,
                )
    new = {r: release_rv(g, mechanism_of(r)) for r, g in zip(releases, graphs, strict=True)}
    inner = Reading(_with(model, records | new, gone), reading)
    [of_all] = (g for g in record_groups(inner) if not {*records.values()}.isdisjoint(g.records))
    with warnings.catch_warnings():  # the records have no transform, and need none
        warnings.simplefilter("ignore", MixtureTransformWarning)
        made = change(inner, of_all, "marginal")
    old = {rewritten: release for release, rewritten in new.items()}
    pairs = made.replaced.items()
    replaced = {old[r]: graph_replace([g], old, strict=False)[0] for r, g in pairs}
    return Change(replaced, trials=made.trials)


def _with(model: pm.Model, new: dict[TensorVariable, TensorVariable], gone: set) -> pm.Model:
    """Return a shallow copy of a model, for reading only, with some variables replaced."""
    altered = shallow(model)
    for old, rv in new.items():
        rv.name = old.name
    for kind in ("free_RVs", "observed_RVs"):
        rvs = [new.get(rv, rv) for rv in getattr(model, kind) if rv in new or rv not in gone]
        setattr(altered, kind, rvs)
    values, transforms = model.rvs_to_values, model.rvs_to_transforms
    altered.rvs_to_values = values | {rv: values[old] for old, rv in new.items()}
    altered.rvs_to_transforms = transforms | dict.fromkeys(new.values())
    altered.rvs_to_initial_values = model.rvs_to_initial_values | dict.fromkeys(new.values())
    altered.named_vars = model.named_vars | {rv.name: rv for rv in new.values()}
    return altered
