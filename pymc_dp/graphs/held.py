"""Numbers as users hold them: lists, arrays, data frames, labelled arrays.

`held` is the one conversion, of published values and of noise parameters; `Held.placed` puts what
it found into the order of a release's dims and labels. No library but NumPy is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Coords = Mapping[str, Sequence[Any] | None]


@dataclass(frozen=True)
class Held:
    """Numbers, and what their axes are called and labelled; None where an axis has no such thing.

    Parameters
    ----------
    numbers : ndarray of bool, int or float
        The numbers. Masked and missing ones are NaN.
    labels : tuple of (tuple or None)
        Labels of each axis. Rows counted from 0, as a data frame does by itself, are none.
    dims : tuple of str, optional
        Names of the axes, which decide which axis is which: those of an xarray.
    """

    numbers: np.ndarray
    labels: tuple[tuple | None, ...]
    dims: tuple[str, ...] | None = None

    @property
    def is_labelled(self) -> bool:
        """Whether positions are not all that there is."""
        return self.dims is not None or any(axis is not None for axis in self.labels)

    def placed(
        self,
        dims: Sequence[str | None] | None,
        coords: Coords,
        like: Sequence[tuple | None] = (),
    ) -> Held:
        """Put the numbers in the order of these dims and labels, as far as both are there.

        Axes without names are the last of the dims, as in broadcasting. `like` has labels of axes
        for which coords have none; the numbers then keep theirs.

        Raises
        ------
        ValueError
            A dimension or a label that is not there, or one that is missing; to come after the name
            of what is converted.
        """
        axes = dims or (None,) * len(like)
        if self.numbers.ndim > len(axes):  # that is told of shapes
            return self
        array, labels = self.numbers, list(self.labels)
        if self.dims and dims:
            strange = [dim for dim in self.dims if dim not in dims]
            if strange:
                raise ValueError(
                    f"has the dimension {strange[0]!r}, and the release has {tuple(dims)}: rename "
                    f"it, or write .to_numpy() to take it by position"
                )
            own: dict[str | None, tuple | None] = dict(zip(self.dims, labels, strict=True))
            array = array.transpose([self.dims.index(dim) for dim in dims if dim in own])
            array = np.expand_dims(array, tuple(i for i, d in enumerate(dims) if d not in own))
            labels = [own.get(dim) for dim in dims]
        for axis in range(1, array.ndim + 1):
            dim, these = axes[-axis], labels[-axis]
            stated = None if dim is None else coords.get(dim)
            wanted = like[-axis] if stated is None and axis <= len(like) else stated
            if these is None or wanted is None or len(these) == 1 < len(wanted):
                continue
            array = array.take(positions(these, wanted, dim), -axis)
            # What is left has not been put in the order of coords yet.
            labels[-axis] = tuple(wanted) if stated is None else None
        return Held(array, tuple(labels), None if dims else self.dims)


def held(value: Any) -> Held:
    """Convert what a user holds.

    Raises
    ------
    TypeError
        Something that is no number and no array of numbers.
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
        nameless = tuple(f"dim_{i}" for i in range(array.ndim))  # what xarray calls them by itself
        dims = None if value.dims == nameless else tuple(map(str, value.dims))
        return Held(array, tuple(labels), dims)
    # The rows of pandas have labels, those of polars none; both name columns.
    axes = [getattr(value, name, None) for name in ("index", "columns")][: array.ndim]
    return Held(array, tuple(map(_labels, [*axes, *[None] * (array.ndim - len(axes))])))


def labelled_like(numbers: np.ndarray, *arguments: Any) -> Held | np.ndarray:
    """Give numbers that were calculated from arguments the labels of these, which must agree."""
    several = [own for own in map(held, arguments) if own.is_labelled]
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


def positions(own: Sequence[Any], wanted: Sequence[Any], dim: str | None) -> list[int]:
    """Return where each of the wanted labels is among the own ones, which must be the same.

    Raises
    ------
    ValueError
        Labels that are not wanted, not there, or there twice.
    """
    at = {label: i for i, label in enumerate(own)}
    faults = {
        "unknown labels": [label for label in own if label not in set(wanted)],
        "no entry for": [label for label in wanted if label not in at],
        "twice": [label for i, label in enumerate(own) if at[label] != i],
    }
    told = [f"{what} {shown(labels)}" for what, labels in faults.items() if labels]
    if told and dim is None:
        raise ValueError(
            f"has {', '.join(told)}: the labels of the release are {shown(wanted)}. Label both "
            f"alike, in any order, or write .to_numpy() to take it by position"
        )
    if told:
        raise ValueError(f"has along {dim!r} {', '.join(told)}: {dim!r} is {shown(wanted)}")
    return [at[label] for label in wanted]


def shown(labels: Sequence[Any]) -> str:
    """Show the first of some labels."""
    text = ", ".join(map(repr, labels[:4]))
    return f"({text}{', ...' if len(labels) > 4 else ''})"
