"""`Published`: the fields, checks and JSON of `Release`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant

from pymc_dp.graphs.held import Coords, Held, held, positions
from pymc_dp.graphs.values import known_value
from pymc_dp.mechanisms.alignment import placed, reordered, wrong_shape
from pymc_dp.mechanisms.arguments import refuse_unless
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.mechanisms.checks import by_which_rule, check_attainable, is_published
from pymc_dp.mechanisms.html import html_table
from pymc_dp.published import encoding
from pymc_dp.published.privacy import Privacy, check_text

Labels = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, eq=False)
class Published:
    """A published value together with the mechanism that produced it: `Release` without readers."""

    value: np.ndarray
    mechanism: Mechanism
    name: str | None = None
    dims: tuple[str, ...] | None = None
    coords: Labels | None = None
    privacy: Privacy | None = None
    source: str | None = None

    def __post_init__(self) -> None:
        """Validate the fields, and keep the value as an array of int64 or float64."""
        if not isinstance(self.mechanism, Mechanism):
            raise TypeError(
                f"Release: mechanism must be a mechanism such as dp.LaplaceMechanism(scale); got "
                f"{type(self.mechanism).__name__}"
            )
        entries = _held(self.value)
        refuse_unless(
            is_published(self.mechanism, entries.numbers),
            entries.numbers,
            "Release",
            "value",
            "finite",
            f"Where entries were withheld (NaN, or masked), {by_which_rule(self.mechanism)}.",
        )
        dims = _dims(entries.dims if self.dims is None else self.dims, entries.numbers.shape)
        coords = _coords(self.coords, dims, _placed(entries, dims, {}).numbers.shape)
        entries = _placed(entries, dims, coords or {})
        value = entries.numbers
        # Stated labels take the place of those that the value came with.
        named = dict(zip(dims or (), entries.labels, strict=False))
        attached = {dim: labels for dim, labels in named.items() if labels is not None}
        coords = _coords(attached | dict(coords or {}) or None, dims, value.shape)
        mechanism = placed(
            self.mechanism, dims, coords or {}, self.name or "Release", entries.labels
        )
        wrong = wrong_shape(mechanism, value.shape, mechanism.release_ndim)
        if wrong is not None:
            raise ValueError(
                f"Release: a parameter of shape {wrong} of {mechanism!r} does not broadcast "
                f"against the value of shape {value.shape}: write one number for all, or one per "
                f"entry"
            )
        check_attainable(self.name or "Release", mechanism, value)
        value.flags.writeable = False
        for name in ("name", "source"):
            check_text("Release", name, getattr(self, name))
        if self.privacy is not None and not isinstance(self.privacy, Privacy):
            raise TypeError(
                f"Release: privacy must be a dp.Privacy, got {type(self.privacy).__name__}"
            )
        labels = entries.labels if dims is None else (None,) * value.ndim
        kept = {"value": value, "mechanism": mechanism, "dims": dims, "coords": coords}
        for name, field in (kept | {"_labels": labels}).items():
            object.__setattr__(self, name, field)

    @property
    def held(self) -> Held:
        """The value, with its labels if it has no dims: the dims of a model may match them."""
        return Held(self.value, self.__dict__["_labels"])

    def reindex(self, coords: Coords) -> Self:
        """Put the values, and the noise of each, in the order of other labels.

        Producers hand out groups in an order of their own, OpenDP in another at each run.

        Parameters
        ----------
        coords : mapping
            Labels of the release's dims in the order that is wanted, such as `model.coords`. Other
            dims may be there too, and are left alone.

        Returns
        -------
        Release

        Raises
        ------
        ValueError
            Labels that the release lacks, or that it has in addition; no dimension in common.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> noise = dp.LaplaceMechanism([1.0, 2.0])
        >>> release = dp.Release([5.0, 7.0], noise, dims="town", coords={"town": ["Bo", "Aa"]})
        >>> release.reindex({"town": ["Aa", "Bo"]}).mechanism
        LaplaceMechanism(scale=[2., 1.])
        """
        present = self.coords or {}
        wanted = {dim: new for dim in present if (new := coords.get(dim)) is not None}
        if not wanted:
            raise ValueError(
                f"Release: coords label {tuple(coords)}, and the release labels "
                f"{tuple(present)}: give dims and labels to one of the two"
            )
        try:
            places = {dim: positions(present[dim], labels, dim) for dim, labels in wanted.items()}
        except ValueError as error:
            raise ValueError(f"{self.name or 'Release'!r} {error}") from None
        index = [places.get(dim) for dim in self.dims or ()]
        value = self.value
        for axis, order in enumerate(index):
            value = value if order is None else value.take(order, axis)
        return replace(
            self,
            value=value,
            mechanism=reordered(self.mechanism, index),
            coords={**present, **wanted},
        )

    def _repr_html_(self) -> str:
        """Return name, value, noise and privacy, as Jupyter shows them."""
        value = np.array2string(self.value, separator=", ", precision=6, threshold=8)
        rows = [("value", value), ("mechanism", repr(self.mechanism))]
        if self.value.size > 1:
            dims = self.dims or [""] * self.value.ndim
            axes = zip(dims, self.value.shape, strict=True)
            rows.insert(1, ("entries", " × ".join(f"{dim} {n}".strip() for dim, n in axes)))
        withheld = known_value(self.mechanism.is_withheld(self.value))
        if self.mechanism.withholds and withheld is not None:
            rows.append(("withheld", f"{int(withheld.sum())} of {self.value.size}"))
        for dim, labels in (self.coords or {}).items():
            rows.append((dim, ", ".join([*map(str, labels[:8]), *["…"] * (len(labels) > 8)])))
        if self.privacy is not None:
            rows.append(("privacy", ", ".join(map("=".join, self.privacy._rows()))))
        rows += [("source", self.source)] if self.source else []
        return html_table("Release" if self.name is None else f"Release {self.name}", rows)

    def __eq__(self, other: object) -> bool:
        """Whether two releases say the same."""
        if not isinstance(other, Published):
            return NotImplemented
        return self._said() == other._said()

    def __hash__(self) -> int:
        """Hash what the release says."""
        return hash(self._said())

    def _said(self) -> str | int:
        """Return what is compared: the text or, if a parameter is symbolic, the object's own id."""
        try:
            return self.to_json()
        except ValueError:
            return id(self)

    def to_json(self) -> str:
        """Return the release as JSON text, with everything that `from_json` reads back.

        Numbers keep all their digits. See `from_json` for the layout.

        Returns
        -------
        str
            The text, of one line.

        Raises
        ------
        ValueError
            A parameter of the mechanism is symbolic, so that no number can be written.
        TypeError
            The mechanism is of a class that is not registered.

        Examples
        --------
        >>> import json
        >>> import pymc_dp as dp
        >>> text = dp.Release(34, dp.GeometricMechanism(2.0)).to_json()
        >>> json.loads(text)["mechanism"]
        {'class': 'GeometricMechanism', 'scale': 2.0}
        """
        return encoding.encode(self)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a release from JSON text.

        ::

            {"format": "pymc_dp release", "version": 1,
             "value": [34, -1],
             "mechanism": {"class": "GeometricMechanism", "scale": 2.0},
             "name": "cases", "dims": ["town"], "coords": {"town": ["Aa", "Bo"]},
             "privacy": {"unit": "one person", "epsilon": 0.5}, "source": "..."}

        All but the first four may be left out. The fields of a mechanism are those of its class; a
        clipped or rounded one holds another as `inner`. Infinite clipping bounds are written
        "inf" and "-inf". Nothing that is not known is skipped: a misspelt field is an error.

        Parameters
        ----------
        text : str
            The text itself; read a file with ``Path(file).read_text()``.

        Returns
        -------
        Release

        Raises
        ------
        ValueError
            Text that is no JSON or no release of version 1; an unknown, missing or repeated
            field, or an unknown mechanism; a variance where a scale is meant; NaN.
        TypeError
            A field of the wrong kind.

        Examples
        --------
        >>> import pymc_dp as dp
        >>> text = dp.Release([34, -1], dp.GeometricMechanism(2.0), name="cases").to_json()
        >>> release = dp.Release.from_json(text)
        >>> release.name, release.value, release.mechanism
        ('cases', array([34, -1]), GeometricMechanism(scale=2.0))
        """
        return cls(**encoding.decode(text, [field.name for field in fields(cls)]))


def _held(value: Any) -> Held:
    if isinstance(value, SharedVariable):
        raise TypeError(
            f"Release: value is the shared variable {value}, whose value may change; a release is "
            f"what was published: write value.get_value(), or PrivateObservation(..., mechanism, "
            f"observed=value)"
        )
    try:
        entries = held(value.data if isinstance(value, Constant) else value)
    except TypeError:
        raise TypeError(
            f"Release: value must be a number or an array of numbers; got {value!r}"
        ) from None
    return replace(entries, numbers=_numbers(entries.numbers))


def _placed(entries: Held, dims: tuple[str, ...] | None, coords: Labels) -> Held:
    try:
        return entries.placed(dims, coords)
    except ValueError as error:
        raise ValueError(f"Release: value {error}") from None


def _numbers(array: np.ndarray) -> np.ndarray:
    """Return the published value as int64 or float64."""
    kind = array.dtype.kind
    if kind == "u" and np.any(array > np.iinfo("int64").max):
        raise ValueError("Release: value has integers over 2**63 - 1; write it as float64")
    return np.array(array, dtype="float64" if kind == "f" else "int64")


def _dims(dims: Any, shape: tuple[int, ...]) -> tuple[str, ...] | None:
    if dims is None:
        return None
    dims = (dims,) if isinstance(dims, str) else dims
    if not isinstance(dims, list | tuple) or not all(isinstance(dim, str) for dim in dims):
        raise TypeError(f"Release: dims must be texts, got {dims!r}")
    dims = tuple(dims)
    if len(set(dims)) != len(dims):
        raise ValueError(f"Release: dims={dims} names a dimension twice")
    if len(dims) != len(shape):
        raise ValueError(
            f"Release: dims={dims} names {len(dims)} dimensions, the value of shape {shape} has "
            f"{len(shape)}"
        )
    return dims


def _coords(coords: Any, dims: tuple[str, ...] | None, shape: tuple[int, ...]) -> Labels | None:
    if coords is None:
        return None
    if not isinstance(coords, Mapping):
        raise TypeError(f"Release: coords must map dims to labels, got {coords!r}")
    lengths = dict(zip(dims or (), shape, strict=True))
    result = {}
    for dim, labels in coords.items():
        if dim not in lengths:
            raise ValueError(f"Release: coords label {dim!r}, which is not one of dims={dims}")
        if isinstance(labels, str) or not isinstance(labels, Iterable):
            raise TypeError(f"Release: labels of {dim!r} must be a sequence, got {labels!r}")
        labels = [x.item() if isinstance(x, np.generic) else x for x in labels]
        wrong = [x for x in labels if not _is_label(x)]
        if wrong:
            raise TypeError(
                f"Release: labels of {dim!r} must be texts or finite numbers, got {wrong[0]!r}: "
                f"write str(label)"
            )
        if len(labels) != lengths[dim]:
            raise ValueError(
                f"Release: {len(labels)} labels of {dim!r}, but the value has {lengths[dim]} "
                f"entries along it"
            )
        result[dim] = tuple(labels)
    return result


def _is_label(x: Any) -> bool:
    return isinstance(x, str | int) or (isinstance(x, float) and math.isfinite(x))
