"""Numbers as users hold them: lists, arrays, data frames, labelled arrays.

`held` converts published values and noise parameters; `Held.placed` puts them into the order of a
release's dims and labels. No library but NumPy is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Coords = Mapping[str, Sequence[Any] | None]


@dataclass(frozen=True)
class Held:
    """Numbers, with the names and the labels of their axes; None where an axis has none.

    Parameters
    ----------
    numbers : ndarray of bool, int or float
        The numbers. Masked and missing ones are NaN.
    labels : tuple of (tuple or None)
        Labels of each axis; None for a data frame's default ones, 0, 1, 2, ...
    dims : tuple of str, optional
        Names of the axes of an xarray, by which axes are matched.
    """

    numbers: np.ndarray
    labels: tuple[tuple | None, ...]
    dims: tuple[str, ...] | None = None

    @property
    def is_labelled(self) -> bool:
        """Whether an axis has a name or labels."""
        return self.dims is not None or any(axis is not None for axis in self.labels)

    def placed(
        self,
        dims: Sequence[str | None] | None,
        coords: Coords,
        like: Sequence[tuple | None] = (),
    ) -> Held:
        """Put the numbers in the order of these dims and labels, as far as both are there.

        Axes without names are the last of the dims, as in broadcasting. `like` has labels of axes
        for which coords have none; the result keeps them.

        Raises
        ------
        ValueError
            A dimension or a label that is unknown or missing. The message continues a sentence that
            begins with the name of the numbers.
        """
        axes = dims or (None,) * len(like)
        if self.numbers.ndim > len(axes):  # the check of shapes reports it
            return self
        array, labels = self.numbers, list(self.labels)
        if self.dims and dims:
            strange = [dim for dim in self.dims if dim not in dims]
            if strange:
                raise ValueError(
                    f"has the dimension {strange[0]!r}, and the release has {tuple(dims)}: rename "
                    f"it, or write .to_numpy() to take it by position"
                )
            by_dim: dict[str | None, tuple | None] = dict(zip(self.dims, labels, strict=True))
            array = array.transpose([self.dims.index(dim) for dim in dims if dim in by_dim])
            array = np.expand_dims(array, tuple(i for i, d in enumerate(dims) if d not in by_dim))
            labels = [by_dim.get(dim) for dim in dims]
        for axis in range(1, array.ndim + 1):
            dim, axis_labels = axes[-axis], labels[-axis]
            stated = None if dim is None else coords.get(dim)
            wanted = like[-axis] if stated is None and axis <= len(like) else stated
            if axis_labels is None or wanted is None or len(axis_labels) == 1 < len(wanted):
                continue
            array = array.take(positions(axis_labels, wanted, dim), -axis)
            # Labels of `like` stay: coords may reorder them later.
            labels[-axis] = tuple(wanted) if stated is None else None
        return Held(array, tuple(labels), None if dims else self.dims)


def held(value: Any) -> Held:
    """Convert numbers, whatever they are held in.

    Raises
    ------
    TypeError
        If the value is neither a number nor an array of numbers.
    """
    if isinstance(value, Held):
        return value
    try:
        array = np.asarray(value)
        if np.ma.is_masked(value):
            array = np.ma.filled(value.astype("float64"), np.nan)
        if array.dtype.kind == "O":  # None, Decimal
            if any(isinstance(entry, str | bytes) for entry in array.flat):
                raise TypeError
            array = array.astype("float64")
        if array.dtype.kind not in "biuf":
            raise TypeError
    except (TypeError, ValueError):
        raise TypeError(f"no number and no array of numbers: {value!r}") from None
    if hasattr(value, "dims") and hasattr(value, "indexes"):  # xarray
        labels = [tuple(value.indexes[d]) if d in value.indexes else None for d in value.dims]
        nameless = tuple(f"dim_{i}" for i in range(array.ndim))  # xarray's default names
        dims = None if value.dims == nameless else tuple(map(str, value.dims))
        return Held(array, tuple(labels), dims)
    # pandas labels rows, polars does not; both name columns.
    axes = [getattr(value, name, None) for name in ("index", "columns")][: array.ndim]
    return Held(array, tuple(map(_labels, [*axes, *[None] * (array.ndim - len(axes))])))


def labelled_like(numbers: np.ndarray, *arguments: Any) -> Held | np.ndarray:
    """Give numbers that were computed from arguments the labels of the arguments, if they agree."""
    several = [argument for argument in map(held, arguments) if argument.is_labelled]
    if not several:
        return numbers
    labels, dims = several[0].labels, several[0].dims
    if len(labels) != numbers.ndim or any((o.labels, o.dims) != (labels, dims) for o in several):
        raise ValueError(
            "the arguments are labelled in different ways: put them in one order, or write "
            ".to_numpy() to take them by position"
        )
    return Held(numbers, labels, dims)


def _labels(axis: Any) -> tuple | None:
    if axis is None or callable(axis):  # a list has a method of this name
        return None
    labels = tuple(axis)
    return None if labels == tuple(range(len(labels))) else labels


def positions(labels: Sequence[Any], wanted: Sequence[Any], dim: str | None) -> list[int]:
    """Return the position of each wanted label among the labels of an axis, which must match.

    Raises
    ------
    ValueError
        Labels that are unknown, missing, or repeated.
    """
    index = {label: i for i, label in enumerate(labels)}
    faults = {
        "unknown labels": [label for label in labels if label not in set(wanted)],
        "no entry for": [label for label in wanted if label not in index],
        "twice": [label for i, label in enumerate(labels) if index[label] != i],
    }
    told = [f"{what} {shown(faulty)}" for what, faulty in faults.items() if faulty]
    if told and dim is None:
        raise ValueError(
            f"has {', '.join(told)}: the labels of the release are {shown(wanted)}. Label both "
            f"alike, in any order, or write .to_numpy() to take it by position"
        )
    if told:
        raise ValueError(f"has along {dim!r} {', '.join(told)}: {dim!r} is {shown(wanted)}")
    return [index[label] for label in wanted]


def shown(labels: Sequence[Any]) -> str:
    """Show the first of some labels."""
    text = ", ".join(map(repr, labels[:4]))
    return f"({text}{', ...' if len(labels) > 4 else ''})"
