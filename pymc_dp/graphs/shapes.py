"""Shapes of a graph, the entries that it is made of, and dependence on more than a shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, toposort, walk
from pytensor.scalar import basic as ps
from pytensor.tensor.basic import Join, MakeVector
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.substitution import simplified
from pymc_dp.graphs.values import core_op, is_random, keeps_values, known_value, nearest_rvs


def entry_of(variable: TensorVariable) -> tuple[TensorVariable, tuple[int, ...]] | None:
    """Return the variable that a scalar is an entry of, and its index; None if not known."""
    source = variable
    moved = DimShuffle | Subtensor | SpecifyShape | ViewOp  # dims= and Deterministic leave these
    while source.owner is not None and isinstance(source.owner.op, moved):
        source, *index = source.owner.inputs
        if not all(isinstance(i, Constant) for i in index):
            return None
    shape = [n for n in known_shape(source) if n is not None]
    if variable.type.ndim or len(shape) < source.type.ndim:
        return None
    numbered = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(source.dtype)
    place = graph_replace(variable, {source: pt.constant(numbered)}, strict=False)
    place = known_value(place)
    if place is None:
        return None
    position = np.unravel_index(int(place), shape) if shape else ()
    return source, tuple(int(k) for k in position)


def leaves(
    graph: TensorVariable, places: np.ndarray
) -> Iterator[tuple[TensorVariable, np.ndarray]]:
    """Yield the parts that a graph is joined from, each with the places of its entries.

    `places` are those of the graph's own entries, an array of its shape.
    """
    node = graph.owner
    match node and node.op:
        case MakeVector():
            for part, part_places in zip(node.inputs, places, strict=True):
                yield from leaves(part, part_places)
        case Join(axis=axis):
            ends = np.cumsum([lengths(part)[axis] for part in node.inputs])
            for part, part_places in zip(
                node.inputs, np.split(places, ends[:-1], axis), strict=True
            ):
                yield from leaves(part, part_places)
        case Reshape() | DimShuffle(drop=[]) if graph.type.ndim:
            shape = lengths(node.inputs[0])
            if isinstance(node.op, DimShuffle):  # back to the order of the input's axes
                places = places.reshape([shape[axis] for axis in node.op.shuffle])
                places = places.transpose(np.argsort(node.op.shuffle))
            yield from leaves(node.inputs[0], places.reshape(shape))
        case op if node is not None and keeps_values(op, node.inputs[0]):
            yield from leaves(node.inputs[0], places)
        case _:
            yield graph, places


def of_nothing(expression: TensorVariable) -> list[TensorVariable]:
    """Return the largest parts of an expression that depend on RVs, but on none of their entries.

    They are picked by an empty index, or multiplied by zero.
    """
    # Each variable that is computed from RVs, and whether it uses an entry of theirs.
    random: dict[Variable, bool] = {
        rv: 0 not in known_shape(rv) for rv in nearest_rvs([expression])
    }
    for node in toposort([expression], blockers=random):
        inputs = [i for i in node.inputs if i in random]
        if not inputs or isinstance(node.op, Shape | Shape_i):
            continue
        used = [i for i in inputs if random[i]]
        match getattr(node.op, "scalar_op", core_op(node.op)):
            case ps.Mul() | Dot() if any(_is_zero(i) for i in node.inputs if i not in random):
                used = []
            case ps.Switch() if node.inputs[0] not in random and _is_zero(node.inputs[0]):
                used = [i for i in used if i is node.inputs[2]]
            case Subtensor() | AdvancedSubtensor() if used and 0 in known_shape(node.outputs[0]):
                used = []
        random |= dict.fromkeys(node.outputs, bool(used))

    def unlike(variable: Variable) -> list[Variable] | None:
        return variable.owner.inputs if random.get(variable) and not is_random(variable) else None

    return [v for v in walk([expression], unlike) if random.get(v) is False and not is_random(v)]


def _is_zero(graph: Variable) -> bool:
    value = known_value(graph, fixed=True)
    return value is not None and not np.any(value)


def varies_with(expression: TensorVariable, rv: TensorVariable) -> bool:
    """Whether an expression depends on the values of a variable, not only on its shape."""
    blockers = nearest_rvs([expression])
    above = list(ancestors([expression], blockers=blockers))
    shapes = [v for v in above if v.owner is not None and isinstance(v.owner.op, Shape | Shape_i)]
    return rv in ancestors([expression], blockers=[*blockers, *shapes])


def known_shape(variable: TensorVariable) -> tuple[int | None, ...]:
    """Return the shape of a variable, by the current values of `dims` and `pm.Data`."""
    if None not in variable.type.shape:
        return variable.type.shape
    shape = known_value(*simplified([variable.shape]))
    return variable.type.shape if shape is None else tuple(int(length) for length in shape)


def may_broadcast(shape: Sequence[int | None], to: Sequence[int | None]) -> bool:
    """Whether a shape may broadcast to another; None stands for an unknown length."""
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(None in (a, b) or a in (b, 1) for a, b in pairs)


def with_shapes(graph: TensorVariable) -> TensorVariable:
    """Return a graph whose known shapes are replaced by constants."""
    numbers: dict[Variable, Variable] = {}
    for variable in ancestors([graph], blockers=nearest_rvs([graph])):
        node = variable.owner
        if node is None or not isinstance(node.op, Shape | Shape_i):
            continue
        shape = known_shape(node.inputs[0])
        if None not in shape:
            known = shape[node.op.i] if isinstance(node.op, Shape_i) else shape
            numbers[variable] = pt.constant(np.array(known, dtype="int64"))
    return graph_replace([graph], numbers, strict=False)[0] if numbers else graph


def lengths(variable: TensorVariable) -> tuple[int, ...]:
    """Return the shape of a variable; decline one that is not known."""
    shape = known_shape(variable)
    if None in shape:
        raise Declined(f"the shape of `{variable}` is not known: give it a shape= or dims=")
    return tuple(int(n or 0) for n in shape)


def require_entry_each(graph: TensorVariable, rvs: Sequence[TensorVariable]) -> None:
    """Decline a graph unless each entry depends on one scalar of its own of each variable.

    All between the variables and the graph is elementwise then, and nothing is broadcast: by the
    types, as PyTensor does not broadcast a dimension whose length is not known to be one.
    """
    between = [
        v for v in ancestors([graph], blockers=rvs) if not {*rvs}.isdisjoint(nearest_rvs([v]))
    ]
    for v in between:
        op = None if v in rvs else v.owner.op
        moved = isinstance(op, DimShuffle) and [*op.shuffle] != sorted(op.shuffle)
        if moved or not (
            op is None or isinstance(op, Elemwise | DimShuffle | ViewOp | SpecifyShape)
        ):
            raise Declined(f"`{op}` makes it something else than a function of each value", near=-1)
    long = graph.type.broadcastable.count(False)
    for v in between:
        if v.type.broadcastable.count(False) < long:
            rv = next(rv for rv in nearest_rvs([v]) if rv in rvs)
            raise Declined(
                f"several entries share a value of {rv.name!r}, whose shape {known_shape(rv)} is "
                f"broadcast to {known_shape(graph)}",
                instead=f"Sample with rung='records'; or, if each entry has one of its own, make "
                f"{rv.name} of that shape",
                near=1,
            )


def value_lengths(model: Any, rv: TensorVariable) -> tuple[int, ...]:
    """Return the shape of a variable's value, which a transform may change (a covariance, say)."""
    value, transform = model.rvs_to_values[rv], model.rvs_to_transforms[rv]
    if transform is not None and None in known_shape(value):
        return lengths(transform.forward(rv, *rv.owner.inputs))
    return lengths(value)
