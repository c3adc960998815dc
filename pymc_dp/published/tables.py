"""Tables that producers hand out: their columns, and the labels of their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def columns_of(who: str, rows: Any) -> dict[str, list]:
    """Return the columns of a data frame, a mapping, or of rows with a header."""
    if hasattr(rows, "columns") and not hasattr(rows, "collect"):
        return {str(name): list(rows[name].to_list()) for name in rows.columns}
    if isinstance(rows, Mapping):
        return {str(name): list(column) for name, column in rows.items()}
    if isinstance(rows, Sequence) and rows and isinstance(rows[0], list | tuple):
        names, *body = (list(row) for row in rows)
        return {str(name): [row[at] for row in body] for at, name in enumerate(names)}
    raise TypeError(
        f"{who}: a data frame, or rows with a header as reader.execute returns them, is needed; "
        f"got {type(rows).__name__}"
    )


def keyed(
    who: str, keys: Mapping[str, Sequence[Any]], values: Any, groups: Sequence[Any] | None = None
) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the values of rows with these keys, and the dims and coords that say which they are.

    Groups are all that could be there: the values are then in their order, NaN where one is not.
    """
    dim, values = "_".join(keys), np.asarray(values)
    labels = [_label(row) for row in zip(*keys.values(), strict=True)]
    if groups is None:
        return values, {"dims": dim, "coords": {dim: labels}}
    named = [_label(group if isinstance(group, tuple | list) else (group,)) for group in groups]
    at = {label: i for i, label in enumerate(named)}
    strange = [label for label in labels if label not in at]
    if strange or len(at) < len(named) or len(set(labels)) < len(labels):
        what = f"{strange[0]!r} is none of them" if strange else "a label is there twice"
        raise ValueError(f"{who}: groups= must name all groups that could be there: {what}")
    full = np.full(len(named), np.nan)
    full[[at[label] for label in labels]] = values
    full = full if np.isnan(full).any() else full.astype(values.dtype)
    return full, {"dims": dim, "coords": {dim: named}}


def _label(row: Sequence[Any]) -> Any:
    return row[0] if len(row) == 1 else ", ".join(map(str, row))
