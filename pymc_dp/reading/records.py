"""Which variables are records, and which of them depend on each other row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import pymc as pm
from pymc.distributions.custom import CustomSymbolicDistRV
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, Unrelated, once
from pymc_dp.graphs.linear import uses
from pymc_dp.graphs.shapes import known_shape, lengths
from pymc_dp.graphs.values import depends_on, nearest_rvs
from pymc_dp.reading.model import (
    Reading,
    is_component,
    parents,
    privatized,
    release_statistic,
    releases,
    releases_of,
)
from pymc_dp.reading.record_lengths import record_length, size_of
from pymc_dp.reading.record_sums import RecordSumsRV
from pymc_dp.reading.sums import additive, is_rowwise


def has_record_axis(rv: TensorVariable) -> bool:
    """Whether a variable is a batch of independent draws along its first axis.

    For a `pm.CustomDist` with a graph, the graph decides, not the shape: its entries may depend on
    each other though no ndim_supp= or signature= says so.
    """
    op = rv.owner.op
    ndim_supp = getattr(op, "ndim_supp", 0)
    if ndim_supp is None or rv.type.ndim - ndim_supp < 1 or size_of(rv) is not None:
        return False
    if isinstance(op, RecordSumsRV):
        return False
    return ndim_supp > 0 or not isinstance(op, CustomSymbolicDistRV) or _has_separate_rows(rv)


def _has_separate_rows(rv: TensorVariable) -> bool:
    """Whether entry i of a user's law is computed from entries i of its inner draws alone."""
    graph, drawn = _opened(rv)
    n = known_shape(graph)[0] or known_shape(rv)[0]
    if n is None:
        return True  # `record_length` refuses it with the reason
    outside = ancestors([graph], blockers=nearest_rvs([graph]))
    if any(isinstance(v.type, RandomType) for v in outside):
        return False  # a draw inside another op, a Scan say
    outer = nearest_rvs(rv.owner.inputs)
    return bool(drawn) and all(
        _is_separate(d, n, outer) and is_rowwise(graph, d, n, rv.type.ndim) for d in drawn
    )


def _is_separate(drawn: TensorVariable, n: int, outer: Sequence[TensorVariable]) -> bool:
    """Whether the entries of an inner draw of a law are independent, given the law's inputs."""
    if not has_record_axis(drawn) or known_shape(drawn)[0] != n:
        return False
    above = [v for v in nearest_rvs(drawn.owner.inputs) if v not in outer]
    components = [v for v in above if v in drawn.owner.inputs]
    return all(v in outer for c in components for v in parents(c)) and all(
        _is_separate(v, n, outer) and by_rows(drawn, v) for v in above if v not in components
    )


def _opened(rv: TensorVariable) -> tuple[TensorVariable, list[TensorVariable]]:
    """Return the graph of a user's law, and its inner draws."""
    node = rv.owner
    graph = inline_ofg_node(node)[node.outputs.index(rv)]
    outer = nearest_rvs(node.inputs)
    return graph, [v for v in nearest_rvs([graph]) if v not in outer]


@once
def record_variables(reading: Reading) -> list[TensorVariable]:
    """Return the confidential records that feed some release, in model order.

    A vector of parameters of other records in the same release, the coefficients of a regression
    say, is not one of them.
    """
    candidates = [rv for rv in privatized(reading) if has_record_axis(rv)]
    return [
        rv
        for rv in candidates
        if all(
            by_rows(child, rv) for child in candidates if child is not rv and has_parent(child, rv)
        )
    ]


def has_parent(child: TensorVariable, rv: TensorVariable) -> bool:
    """Whether the law of `child` is computed from `rv`; see `parents`."""
    return rv in parents(child)


def by_rows(child: TensorVariable, rv: TensorVariable) -> bool:
    """Whether entry i of `child` depends on entry i of `rv` alone.

    It is not so if `child` depends on `rv` through the components of a mixture, say: they are
    variables that are not drawn together with the records.
    """
    if not has_record_axis(child) or record_length(child) != record_length(rv):
        return False
    n, op = record_length(rv), child.owner.op
    if isinstance(op, CustomSymbolicDistRV) and not op.ndim_supp:
        graph, drawn = _opened(child)
        return (not depends_on(graph, rv) or is_rowwise(graph, rv, n, child.type.ndim)) and all(
            by_rows(d, rv) for d in drawn if has_parent(d, rv)
        )
    if rv not in nearest_rvs(child.owner.inputs):
        return not has_parent(child, rv)
    if any(is_component(v) and has_parent(v, rv) for v in nearest_rvs(child.owner.inputs)):
        return False
    batch = child.type.ndim - op.ndim_supp
    cores = dict(zip(op.dist_params(child.owner), op.ndims_params, strict=True))
    return all(
        p in cores and is_rowwise(p, rv, n, batch + cores[p])
        for p in child.owner.inputs
        if isinstance(p, TensorVariable) and depends_on(p, rv)
    )


@once
def looked_up(reading: Reading) -> list[TensorVariable]:
    """Return the privatized variables that are parameters, not records.

    A record has an entry of its own in the release, or is part of a sum over records. Parameters,
    such as effects of counties, are looked up by an index: each released entry uses one of them.
    """
    model = reading.model
    return [
        rv
        for rv in privatized(reading)
        if None not in known_shape(rv)  # not sums over records that are never built
        and not isinstance(rv.owner.op, RecordSumsRV)
        and released_singly(model, rv)
        and not any(
            is_rowwise(release_statistic(r), rv, record_length(rv), rv.type.ndim)
            for r in releases_of(model, [rv])
        )
    ]


def released_singly(model: pm.Model, rv: TensorVariable) -> bool:
    """Whether every released entry is computed from at most one entry of a continuous variable."""
    if not rv.dtype.startswith("float"):
        return False
    statistics = [release_statistic(r) for r in releases(model)]
    return all(_one_by_one(s, rv) for s in statistics if depends_on(s, rv))


def _one_by_one(statistic: TensorVariable, rv: TensorVariable) -> bool:
    """Whether each entry of a statistic is computed from at most one entry of a variable."""
    if is_rowwise(statistic, rv, record_length(rv), rv.type.ndim):
        return True
    with suppress(Declined):
        if math.prod(lengths(statistic)) < math.prod(lengths(rv)):
            return False  # before a matrix as long as the records is built
        used = uses(statistic, rv)
        used.eliminate_zeros()
        return bool((np.diff(used.indptr) <= 1).all())
    return False


def check_axes(reading: Reading) -> None:
    """Refuse statistics that pair the records of one variable with all those of another."""
    records = record_variables(reading)
    for release in releases(reading.model):
        statistic = release_statistic(release)
        summed = {rv: record_length(rv) for rv in records if depends_on(statistic, rv)}
        if len(summed) < 2:
            continue
        try:
            additive(statistic.sum(), summed)
        except Unrelated:
            names = " with those of ".join(repr(rv.name) for rv in summed)
            raise ValueError(
                f"the statistic of {release.name!r} pairs the records of {names}, each with every "
                f"other: write what the curator summed over single records, (x * y).sum() say, or "
                f"combine sums, x.sum() * y.sum()"
            ) from None
        except Declined:
            pass
