"""Tables that producers hand out: their columns, and the labels of their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def columns_of(who: str, rows: Any) -> dict[str, list]:
    """Return the columns of a data frame, or of rows with a header."""
    if hasattr(rows, "columns") and not hasattr(rows, "collect"):
        return {str(name): list(rows[name].to_list()) for name in rows.columns}
    if isinstance(rows, Mapping):
        return {str(name): list(column) for name, column in rows.items()}
    if isinstance(rows, Sequence) and rows and isinstance(rows[0], list | tuple):
        names, *body = rows
        return {str(name): [row[j] for row in body] for j, name in enumerate(names)}
    raise TypeError(
        f"{who}: a data frame, or rows with a header as reader.execute returns them, is needed; "
        f"got {type(rows).__name__}"
    )


def chosen(who: str, column: str | None, released: Sequence[str]) -> str:
    """Return the named column of those that were released, or the only one."""
    if column is None and len(released) == 1:
        return released[0]
    if column is None or column not in released:
        columns = ", ".join(map(repr, released))
        raise ValueError(f"{who}: column={column!r}: write one of the noisy columns {columns}")
    return column


def positions(who: str, labels: Sequence[Any], value: Any) -> np.ndarray:
    """Return the positions of published labels among all labels."""
    place, published = {label: k for k, label in enumerate(labels)}, np.asarray(value, dtype=object)
    strange = [label for label in published.ravel() if label not in place]
    if strange:
        raise ValueError(f"{who}: {strange[0]!r} is none of {', '.join(map(repr, labels))}")
    return np.array([place[label] for label in published.ravel()], dtype="int64").reshape(
        published.shape
    )


def keyed(
    who: str, keys: Mapping[str, Sequence[Any]], values: Any, groups: Sequence[Any] | None = None
) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the values of rows with these keys, and the dims and coords that say which they are.

    `groups` are all that could be there: the values are then in their order, NaN for absent ones.
    """
    dim, values = "_".join(keys), np.asarray(values)
    labels = [_label(row) for row in zip(*keys.values(), strict=True)]
    if groups is None:
        return values, {"dims": dim, "coords": {dim: labels}}
    named = [_label(group if isinstance(group, tuple | list) else (group,)) for group in groups]
    places = positions(f"{who}: groups= must name all groups that could be there", named, labels)
    if len(set(named)) < len(named) or len(set(labels)) < len(labels):
        raise ValueError(f"{who}: groups= must name each group once, with at most one row")
    full = np.full(len(named), np.nan)
    full[places] = values
    full = full if np.isnan(full).any() else full.astype(values.dtype)
    return full, {"dims": dim, "coords": {dim: named}}


def stated_apart(decides: str, mechanism: Any, members: str) -> str:
    """Return what to write where a noisy number of members decided which rows are there."""
    return (
        f"state both. With values of all groups that could be there, NaN where a row is absent, "
        f"and absent = np.isnan(values): dp.Release(1 - absent, {decides}) is released of "
        f"pt.switch(n > 0, n, -1e9), n the number of {members} of each group, and "
        f"dp.Release(values, dp.{mechanism!r}.suppressed(where=absent)) of the statistic"
    )


def _label(row: Sequence[Any]) -> Any:
    return row[0] if len(row) == 1 else ", ".join(map(str, row))
