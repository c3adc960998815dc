"""Whether lengths and indices in a model fit; errors name the variables."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
    indices_from_subtensor,
)
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.shapes import known_shape, may_broadcast
from pymc_dp.graphs.values import all_rvs, known_value, nearest_rvs, public_data


def check_fits(statistics: Iterable[TensorVariable]) -> None:
    """Refuse variables whose shape is not that of their parameters, and indices out of range.

    With an index that is too large, compiled code reads memory behind the array. The errors of PyMC
    and PyTensor about shapes do not name a variable.

    Parameters
    ----------
    statistics : iterable of TensorVariable
        The released statistics. All variables that they are computed from are checked.
    """
    statistics = list(statistics)
    for rv in all_rvs(statistics):
        if rv.name is None:
            continue
        if any(length is not None and length < 0 for length in known_shape(rv)):
            raise ValueError(
                f"{rv.name!r} has the shape {_shown(known_shape(rv))}, which is negative: write "
                f"the number of records, shape=n"
            )
        _check_shape(rv)
        _check_indices(f"the parameters of {rv.name!r}", rv.owner.inputs)
    _check_indices("the released statistic", statistics)


def _check_shape(rv: TensorVariable) -> None:
    op = rv.owner.op
    if not isinstance(op, RandomVariable):  # walks, mixtures: their inputs have other shapes
        return
    batch = known_shape(rv)[: rv.type.ndim - op.ndim_supp]
    for parameter, cores in zip(op.dist_params(rv.owner), op.ndims_params, strict=True):
        if not isinstance(parameter, TensorVariable):
            continue
        shape = known_shape(parameter)[: parameter.type.ndim - cores]
        if may_broadcast(shape, batch):
            continue
        sources = [str(v.name) for v in (*nearest_rvs([parameter]), *public_data([parameter]))]
        what = f", computed from {' and '.join(map(repr, sources))}," if sources else ""
        raise ValueError(
            f"{rv.name!r} has the shape {_shown(batch)}, and a parameter of it{what} the shape "
            f"{_shown(shape)}: write shape={_shown(shape)} for {rv.name!r}, or an entry for each "
            f"of its own, {[*sources, 'parameter'][0]}[g] with an index g of the length "
            f"{batch[0] if batch else 1}"
        )


def _check_put(where: str, node: Apply) -> None:
    """Refuse values that are set or added at more or fewer places than there are values."""
    target, put, *index = node.inputs
    take = Subtensor if isinstance(node.op, IncSubtensor) else AdvancedSubtensor
    places = known_shape(take(node.op.idx_list)(target, *index))
    if not may_broadcast(known_shape(put), places):
        names = " and ".join(repr(rv.name) for rv in nearest_rvs([put])) or "numbers"
        raise ValueError(
            f"{where}: values of {names}, of the shape {_shown(known_shape(put))}, are put at "
            f"places of the shape {_shown(places)}: write an index with a place for each value"
        )


def _shown(shape) -> str:
    return str(shape[0]) if len(shape) == 1 else str(tuple(shape))


def _check_indices(where: str, graphs: Iterable) -> None:
    graphs = list(graphs)
    for variable in ancestors(graphs, blockers=nearest_rvs(graphs)):
        node = variable.owner
        if node is not None and isinstance(node.op, AdvancedIncSubtensor | IncSubtensor):
            _check_put(where, node)
        if node is None or not isinstance(node.op, AdvancedSubtensor | AdvancedIncSubtensor):
            continue
        source, *rest = node.inputs
        rest = rest[isinstance(node.op, AdvancedIncSubtensor) :]
        shape, axis = known_shape(source), 0
        for index in indices_from_subtensor(rest, node.op.idx_list):
            whole = getattr(index, "dtype", "").startswith(("int", "uint"))
            value = known_value(index) if whole else None
            length = shape[axis] if axis < len(shape) else None
            axis += getattr(index.type, "ndim", 1) if getattr(index, "dtype", "") == "bool" else 1
            if value is None or length is None or not value.size:
                continue
            if value.max() < length and value.min() >= -length:
                continue
            wrong = int(value.max() if value.max() >= length else value.min())
            named = [v.name for v in (source, *nearest_rvs([source])) if v.name]
            what = repr(named[0]) if named else "an array"
            data = "".join(f" {v.name!r}" for v in public_data([index]))
            raise ValueError(
                f"{where}: {what} has {length} entries, and the index{data} of length "
                f"{np.size(value)} asks for the entry {wrong}. Entries are counted from 0 to "
                f"{length - 1}: write {what} with shape={wrong + 1}, or codes that begin at 0"
            )
