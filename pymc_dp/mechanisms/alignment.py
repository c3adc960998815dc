"""The parameters of a mechanism beside the shape and the labels of a release."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytensor.graph.basic import Constant

from pymc_dp.graphs.held import Coords
from pymc_dp.graphs.shapes import may_broadcast
from pymc_dp.graphs.values import known_value
from pymc_dp.mechanisms.arguments import as_number

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_dp.mechanisms.base import Mechanism


def wrong_shape(
    mechanism: Mechanism, shape: tuple[int | None, ...], axes: int = 0
) -> tuple[int | None, ...] | None:
    """Return the shape of the first parameter that does not broadcast against a release.

    The last `axes` axes of the release make one draw together: parameters do not have them.
    """
    shape = shape[: len(shape) - axes]
    for parameter in mechanism.parameters:
        known = known_value(parameter)
        parameter_shape = parameter.type.shape if known is None else known.shape
        if not may_broadcast(parameter_shape, shape):
            return parameter_shape
    return None


def placed(
    mechanism: Mechanism,
    dims: Sequence[str | None] | None,
    coords: Coords,
    name: str,
    labels: Sequence[tuple | None] = (),
) -> Mechanism:
    """Put parameters with labels, such as a pandas Series, in the order of a release's entries.

    The order along an axis is that of its coords; without coords, that of the published value's
    `labels`, or else of the first parameter with labels.
    """
    if not any(hasattr(parameter.tag, "held") for parameter in mechanism.parameters):
        return mechanism
    ndim = max(len(dims or ()), *(parameter.type.ndim for parameter in mechanism.parameters))
    axis_labels = [*[None] * (ndim - len(labels)), *labels]

    def entries(parameter: TensorVariable) -> TensorVariable:
        if not hasattr(parameter.tag, "held"):
            return parameter
        ordered = parameter.tag.held.placed(dims, coords, axis_labels)
        for axis, along_axis in enumerate(reversed(ordered.labels), 1):
            if axis_labels[-axis] is None and along_axis is not None and len(along_axis) > 1:
                axis_labels[-axis] = along_axis
        return as_number(ordered)

    try:
        return mechanism.with_parameters(*map(entries, mechanism.parameters))
    except ValueError as error:
        raise ValueError(f"{name!r}: a noise parameter of {mechanism!r} {error}") from None


def reordered(mechanism: Mechanism, positions: Sequence[Sequence[int] | None]) -> Mechanism:
    """Take the entries of the parameters at the given positions along each axis of a release."""

    def entries(parameter: TensorVariable) -> TensorVariable:
        now = known_value(parameter)
        shape = parameter.type.shape if now is None else now.shape
        moved = parameter
        for axis, index in enumerate(positions[len(positions) - len(shape) :]):
            if index is not None and shape[axis] != 1:
                moved = moved.take(index, axis)
        if moved is not parameter and isinstance(parameter, Constant):
            return as_number(known_value(moved))
        return moved

    return mechanism.with_parameters(*map(entries, mechanism.parameters))
