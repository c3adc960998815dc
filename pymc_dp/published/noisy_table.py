"""A table of published values with a column of their noise, as public files come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pymc_dp.mechanisms import (
    DiscreteGaussianMechanism,
    GaussianMechanism,
    GeometricMechanism,
    LaplaceMechanism,
    Mechanism,
)
from pymc_dp.published.record import Release
from pymc_dp.published.tables import columns_of

_LAWS: dict[str, type[Mechanism]] = {
    "laplace": LaplaceMechanism,
    "gaussian": GaussianMechanism,
    "geometric": GeometricMechanism,
    "discrete gaussian": DiscreteGaussianMechanism,
}


def from_table(
    frame: Any,
    *,
    value: str,
    law: str | type[Mechanism],
    sd: str | float | None = None,
    variance: str | float | None = None,
    scale: str | float | None = None,
    accuracy: str | float | None = None,
    alpha: float | None = None,
    dims: str | Sequence[str] | None = None,
    after: Callable[[Mechanism], Mechanism] | None = None,
    **described: Any,
) -> Release:
    """Read one release from a table of values with a column that says how much noise each has.

    Parameters
    ----------
    frame : pandas or polars data frame, or mapping of columns
        One row for each published value.
    value : str
        Column of the published values. An empty one (NaN, None) was withheld; say by which rule
        with `after`.
    law : {"laplace", "gaussian", "geometric", "discrete gaussian"} or mechanism class
        Law of the noise. A class is one with `from_sd`, such as `dp.StudentTMechanism`.
    sd, variance, scale, accuracy : str or float
        How much noise, one of the four: a column, or one number for all. Standard deviation,
        variance, the mechanism's own parameter (b of Laplace noise), or half the width of an
        interval that the noise stays in but for a probability `alpha`.
    alpha : float, optional
        That of `accuracy`: .05 for an interval of 95%.
    dims : str or sequence of str, optional
        Columns that label the rows. Of several the release is a table, with a dimension for each;
        all combinations must be there. Labels are in the order of their first rows.
    after : callable, optional
        What was done to the noisy values: ``after=lambda noise: noise.rounded(base=5)``.
    **described
        `name` (by default the column's), `privacy` and `source` of the release.

    Returns
    -------
    Release

    Raises
    ------
    ValueError
        No such column; no noise, or two; labels that are there twice or missing.
    TypeError
        No table, a column of something else than numbers, or a law that is none.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> rows = {"town": ["Bo", "Aa"], "cases": [12, -3], "noise_sd": [1.5, 3.0]}
    >>> release = dp.from_table(rows, value="cases", sd="noise_sd", law="geometric", dims="town")
    >>> release.coords, release.value
    ({'town': ('Bo', 'Aa')}, array([12, -3]))
    """
    columns = columns_of("from_table", frame)
    dims = [dims] if isinstance(dims, str) else list(dims or ())
    all_four = {"sd": sd, "variance": variance, "scale": scale, "accuracy": accuracy}
    stated = {name: noise for name, noise in all_four.items() if noise is not None}
    if len(stated) != 1 or ("accuracy" in stated) != (alpha is not None):
        raise ValueError(
            f"from_table: write one of sd=, variance=, scale= and, with alpha=, accuracy=: the "
            f"column that says how much noise {value!r} has, or one number; got "
            f"{', '.join(stated) or 'none'}{'' if alpha is None else ' and alpha'}"
        )
    [(kind, noise)] = stated.items()
    named = [noise] if isinstance(noise, str) else []
    for column in [value, *named, *dims]:
        if column not in columns:
            raise ValueError(
                f"from_table: there is no column {column!r} among {', '.join(columns)}. Labels "
                f"that are the index of a data frame become columns by frame.reset_index()"
            )
    place, shape, coords = _places({dim: columns[dim] for dim in dims}, len(columns[value]))

    def entries(name: str) -> np.ndarray:
        table = np.empty(shape)
        try:
            table[place] = np.array(columns[name], dtype="float64")
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"from_table: the column {name!r} holds something else than numbers: {error}. What "
                f"was withheld is NaN: pd.read_csv(file, na_values='*') reads a mark as that"
            ) from None
        return table

    published = entries(value)
    if np.all(published == np.round(published)):
        published = published.astype("int64")
    cls = _law(law)
    size = entries(noise) if isinstance(noise, str) else float(noise)
    if kind == "accuracy":
        mechanism = cls.from_accuracy(size, alpha)
    else:
        mechanism = cls(size) if kind == "scale" else getattr(cls, f"from_{kind}")(size)
    described = {"name": value, **described}
    if dims:
        described |= {"dims": tuple(dims), "coords": coords}
    return Release(published, mechanism if after is None else after(mechanism), **described)


def _law(law: Any) -> Any:
    mechanism = _LAWS.get(law.lower().replace("_", " "), law) if isinstance(law, str) else law
    if not (isinstance(mechanism, type) and hasattr(mechanism, "from_sd")):
        raise TypeError(
            f"from_table: law={law!r}: write one of {', '.join(map(repr, _LAWS))}, or the class of "
            f"a mechanism with from_sd. Of another, write dp.Release(values, mechanism)"
        )
    return mechanism


def _places(
    keys: Mapping[str, Sequence[Any]], rows: int
) -> tuple[tuple[np.ndarray, ...], tuple[int, ...], dict[str, list]]:
    """Return the indices of each row in the table of all labels, its shape and its coords."""
    if not keys:
        return (np.arange(rows),), (rows,), {}
    coords = {dim: list(dict.fromkeys(labels)) for dim, labels in keys.items()}
    shape = tuple(map(len, coords.values()))
    numbers = [{label: i for i, label in enumerate(labels)} for labels in coords.values()]
    indices = [
        [number_of[x] for x in column]
        for number_of, column in zip(numbers, keys.values(), strict=True)
    ]
    flat = np.ravel_multi_index(indices, shape)
    times = np.bincount(flat, minlength=int(np.prod(shape)))
    if np.any(times != 1):
        wrong = np.unravel_index(int(np.flatnonzero(times != 1)[0]), shape)
        label = ", ".join(str(coords[dim][i]) for dim, i in zip(coords, wrong, strict=True))
        how = "has several rows" if times.max() > 1 and times[times != 1][0] > 1 else "has no row"
        raise ValueError(
            f"from_table: {label} {how}: dims={list(coords)} must label each value once, and a "
            f"value that was withheld needs a row without a number"
        )
    return tuple(map(np.asarray, indices)), shape, coords
