"""Releases of OpenDP's Polars queries, by their summaries.

OpenDP itself is never imported: everything is read from the data frames that the user passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pymc_dp.published.opendp_noise import INSTEAD, NOISE, SELECTIONS, check_noisy, selection
from pymc_dp.published.tables import chosen, keyed, positions
from pymc_dp.published.value import Published

_WHO = "from_opendp_summary"


def from_opendp_summary(
    cls: type[Published],
    summary: Any,
    frame: Any,
    column: str | None = None,
    *,
    groups: Sequence[Any] | None = None,
    lengths: ArrayLike | None = None,
    candidates: Sequence[Any] | None = None,
    **described: Any,
) -> Published:
    """Read one column of a data frame that an OpenDP Polars query released.

    Columns of unsigned integers, such as those of ``dp.len()`` by default, are clamped at zero,
    and their noise is ``.clipped(lower=0)``. In a grouped query the other columns label the
    entries, in the order of the frame's rows: they become dims and coords.

    Parameters
    ----------
    summary : polars or pandas data frame
        ``query.summarize()``.
    frame : polars or pandas data frame
        ``query.release().collect()``.
    column : str, optional
        Which column; may be left out where there is only one.
    groups : sequence, optional
        Where groups were left out whose noisy count was below a threshold: all groups that
        could be there. The value is in their order, NaN where one is not.
    lengths : array_like, optional
        Of a mean over a public number of records, that number, for each row. The release is
        then that of the **sum** of the records.
    candidates : sequence, optional
        Of a median or quantile, the candidates of the query. The release is the position among
        them; its statistic is, for each candidate c, ``-abs((1 - alpha) * (x < c).sum() - alpha
        * (x > c).sum())``.
    **described
        `name` (by default the column's), `dims`, `coords`, `privacy` and `source`.

    Raises
    ------
    ValueError
        No such column; one that is computed from several noisy numbers (a mean), by another
        mechanism (a median), or without noise; groups that were left out because a noisy
        count, of this column or another, was below a threshold.
    TypeError
        A frame that is none, or was not collected.

    Examples
    --------
    As ``query.summarize()`` and ``query.release().collect()`` return them:

    >>> import polars as pl
    >>> import pymc_dp as dp
    >>> said = {"column": ["n"], "aggregate": ["Frame Length"], "distribution": ["Integer Laplace"]}
    >>> summary = pl.DataFrame({**said, "scale": [2.0]})
    >>> frame = pl.DataFrame({"n": [41]}, schema={"n": pl.UInt32})
    >>> dp.Release.from_opendp_summary(summary, frame).mechanism
    GeometricMechanism(scale=2.0).clipped(lower=0.0)
    """
    for name, table in (("summary", summary), ("frame", frame)):
        if not hasattr(table, "columns") or hasattr(table, "collect"):
            raise TypeError(
                f"{_WHO}: {name} must be a data frame, got {type(table).__name__}: "
                f"write query.summarize() for the summary and query.release().collect() for the "
                f"frame"
            )
    rows = summary.to_dicts() if hasattr(summary, "to_dicts") else summary.to_dict("records")
    if not {"column", "distribution", "scale"} <= set(summary.columns):
        raise ValueError(
            f"{_WHO}: the summary has the columns {list(summary.columns)}; it must be what "
            f"query.summarize() returns"
        )
    released = list(dict.fromkeys(row["column"] for row in rows))
    column = chosen(_WHO, column, [name for name in released if name in frame.columns])
    # A column without a threshold has None or, in pandas, NaN.
    cuts = {row["column"]: row.get("threshold") for row in rows}
    cuts = {name: cut for name, cut in cuts.items() if cut is not None and cut == cut}
    decides = next(iter(cuts), None)
    if cuts and groups is None:
        raise ValueError(
            f"{_WHO}: groups whose noisy count was below {cuts[decides]} were left out, "
            f"and which ones are there depends on the data. Name all that could be there, with "
            f"groups=[...], or state them in the query, with .with_keys(...) or Margin(by=..., "
            f"invariant='keys')"
        )
    if cuts and column not in cuts:
        raise ValueError(
            f"{_WHO}: whether a row of {column!r} is there was decided by {decides!r}, "
            f"another statistic. Read {decides!r}, and write dp.Release(values, "
            f"mechanism.suppressed(where=np.isnan(values))) for {column!r}, NaN where absent"
        )
    parts = [row for row in rows if row["column"] == column]
    aggregates, noise = (
        " and ".join(str(row.get(key)) for row in parts) for key in ("aggregate", "distribution")
    )
    subject = f"{_WHO}: column {column!r} ({aggregates})"
    value = np.asarray(frame[column].to_numpy())
    if noise in SELECTIONS and candidates is None:
        raise ValueError(
            f"{subject} is a quantile, selected among candidates: candidates= must be those of the "
            f"query. The release is the position of the published one among them, of the "
            f"statistic -abs((1 - alpha) * (number below) - alpha * (number above)) of each"
        )
    if lengths is not None and len(parts) == 1:
        raise ValueError(f"{subject} is no mean: leave lengths= out")
    if noise in SELECTIONS:
        # OpenDP multiplies the scores by the denominator of alpha as a float: they are whole.
        alpha = Fraction(float(aggregates.removesuffix("-Quantile")))
        noisy = selection(subject, noise, float(parts[0]["scale"]) / alpha.denominator)
        value = positions(_WHO, candidates or (), value)
    elif any(row["distribution"] not in NOISE for row in parts):
        raise ValueError(f"{subject} has {noise} noise, which is not read; {INSTEAD}")
    else:
        check_noisy(subject, max(float(row["scale"]) for row in parts), value)
        noisy = NOISE[parts[0]["distribution"]](float(parts[0]["scale"]))
        if len(parts) > 1:
            exact = [row["column"] for row in rows if row["scale"] == 0 and row["column"] != column]
            length = f"frame[{exact[0]!r}]" if exact else "..."
            value = _sum_of_mean(subject, parts, value, lengths, length)
            value = np.round(value).astype("int64") if noisy.is_discrete else value
        if column in cuts:
            # A count must exceed the threshold; with make_laplace_threshold it may equal it.
            noisy = noisy.suppressed(below=cuts[column] + 1, empty=True)
        elif value.dtype.kind == "u":
            noisy = noisy.clipped(lower=0)
        elif noisy.is_discrete and np.any(value == 0) and not np.any(value < 0):
            raise ValueError(
                f"{_WHO}: the zeros of {column!r} ({aggregates}) were cut there if its numbers "
                f"were unsigned, which csv files and pandas forget. Pass the Polars frame or a "
                f"parquet file of it, or say which: frame.cast({{{column!r}: pl.UInt32}}) if they "
                f"were; dp.Release(frame[{column!r}], dp.{noisy!r}) if not"
            )
    keys = {name: frame[name].to_list() for name in frame.columns if name not in released}
    made: dict[str, Any] = {"name": column, "source": f"OpenDP Polars: {aggregates}"}
    if keys:
        value, labels = keyed(_WHO, keys, value, groups)
        made |= {"dims": labels["dims"]} if "dims" in described else labels
    elif len(value) == 1:
        value = value[0]
    else:
        raise ValueError(f"{_WHO}: {len(value)} rows, and no column that labels them")
    return cls(**made | {"value": value, "mechanism": noisy} | described)


def _sum_of_mean(subject: str, parts: Any, mean: Any, lengths: Any, length: str) -> np.ndarray:
    """Return the noisy sum that was divided by a public number of records."""
    noise = {row["aggregate"]: row["scale"] for row in parts}
    if [*noise] != ["Sum", "Length"] or noise["Length"] > 0:
        raise ValueError(
            f"{subject} is a ratio of noisy numbers, which is no release with additive noise. Of a "
            f"mean, release the sum and the length"
        )
    if lengths is None:
        raise ValueError(
            f"{subject} is (sum + noise) / n for a public number n of records. Release the sum of "
            f"the records in the model, and say the number of records of each row: lengths={length}"
        )
    return np.asarray(lengths) * mean
