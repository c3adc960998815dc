"""The parameters of a mechanism beside the shape and the labels of a release."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytensor.graph.basic import Constant

from pymc_dp.graphs.held import Coords
from pymc_dp.graphs.questions import known_value, may_broadcast
from pymc_dp.mechanisms.arguments import as_number

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_dp.mechanisms.base import Mechanism


def wrong_shape(
    mechanism: Mechanism, shape: tuple[int | None, ...], axes: int = 0
) -> tuple[int | None, ...] | None:
    """Return the shape of a parameter that does not broadcast against this one, if any.

    The last `axes` of the shape are of one release.
    """
    shape = shape[: len(shape) - axes]
    for parameter in mechanism.parameters:
        known = known_value(parameter)
        own = parameter.type.shape if known is None else known.shape
        if not may_broadcast(own, shape):
            return own
    return None


def placed(
    mechanism: Mechanism,
    dims: Sequence[str | None] | None,
    coords: Coords,
    name: str,
    labels: Sequence[tuple | None] = (),
) -> Mechanism:
    """Put parameters that have labels, as a pandas Series does, in the order of a release's.

    Of an axis that coords do not label, that is the order of the published value's `labels`, or of
    the first parameter that has some.
    """
    if not any(hasattr(parameter.tag, "held") for parameter in mechanism.parameters):
        return mechanism
    most = max(len(dims or ()), *(parameter.type.ndim for parameter in mechanism.parameters))
    like = [*[None] * (most - len(labels)), *labels]

    def entries(parameter: TensorVariable) -> TensorVariable:
        if not hasattr(parameter.tag, "held"):
            return parameter
        own = parameter.tag.held.placed(dims, coords, like)
        for axis, these in enumerate(reversed(own.labels), 1):
            if like[-axis] is None and these is not None and len(these) > 1:
                like[-axis] = these
        return as_number(own)

    try:
        return mechanism.with_parameters(*map(entries, mechanism.parameters))
    except ValueError as error:
        raise ValueError(f"{name!r}: a noise parameter of {mechanism!r} {error}") from None


def reordered(mechanism: Mechanism, at: Sequence[Sequence[int] | None]) -> Mechanism:
    """Take the entries of the parameters at these positions of each axis of a release."""

    def entries(parameter: TensorVariable) -> TensorVariable:
        now = known_value(parameter)
        shape = parameter.type.shape if now is None else now.shape
        moved = parameter
        for axis, index in enumerate(at[len(at) - len(shape) :]):
            if index is not None and shape[axis] != 1:
                moved = moved.take(index, axis)
        if moved is not parameter and isinstance(parameter, Constant):
            return as_number(known_value(moved))
        return moved

    return mechanism.with_parameters(*map(entries, mechanism.parameters))
