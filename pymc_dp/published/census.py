"""Rows of Census noisy measurement files."""

from __future__ import annotations

from os import PathLike
from typing import Any

import numpy as np

from pymc_dp.mechanisms import DiscreteGaussianMechanism
from pymc_dp.mechanisms.arguments import refuse_unless
from pymc_dp.published.privacy import Privacy


def read(
    rows: Any, *, value: str, variance: str, label: str | None, **fields: Any
) -> dict[str, Any]:
    """Read rows of a file or a data frame; see `Release.from_nmf`."""
    columns = [value, variance, *([label] if label else [])]
    if isinstance(rows, str | PathLike):
        rows = _parquet(rows)
    if not hasattr(rows, "columns") or hasattr(rows, "collect"):
        raise TypeError(
            f"from_nmf: a parquet path or a data frame is needed, got {type(rows).__name__}"
        )
    missing = [column for column in columns if column not in rows.columns]
    if missing:
        raise ValueError(
            f"from_nmf: there is no column {missing[0]!r} among {', '.join(map(str, rows.columns))}"
            f": name the columns with value=, variance= and label="
        )
    counts = _stacked(value, rows[value].to_numpy())
    whole = np.isfinite(counts) & (counts == np.round(counts))
    refuse_unless(whole, counts, "from_nmf", value, "whole", "Noisy measurements are integers.")
    noise = _stacked(variance, rows[variance].to_numpy())
    if noise.ndim > 1:
        raise ValueError(
            f"from_nmf: {variance!r} holds several numbers a row: name the column of the variance "
            f"with variance="
        )
    refuse_unless(
        np.isfinite(noise) & (noise > 0),
        noise,
        "from_nmf",
        variance,
        "finite and > 0",
        "A row with variance 0 is an invariant, which was published without noise: leave it out, "
        "and state it in the model.",
    )
    sigma = np.sqrt(noise)
    sigma = sigma[0] if np.all(sigma == sigma[0]) else sigma.reshape(-1, *[1] * (counts.ndim - 1))
    described: dict[str, Any] = {
        "source": "Census noisy measurement file",
        "privacy": Privacy(neighbouring="replace one record", measure="zero-concentrated"),
    }
    if label and "dims" not in fields:
        inner = tuple(f"{value}_{axis}" for axis in range(1, counts.ndim))
        described |= {"dims": (label, *inner), "coords": {label: rows[label].to_list()}}
    mechanism = DiscreteGaussianMechanism(sigma)
    return {"value": counts.astype("int64"), "mechanism": mechanism, **(described | fields)}


def _parquet(path: Any) -> Any:
    try:
        import pandas
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ImportError(
            'from_nmf: reading parquet needs pandas and pyarrow: pip install "pymc-dp[parquet]"'
        ) from error
    return pandas.read_parquet(path, engine="pyarrow")


def _stacked(column: str, counts: np.ndarray) -> np.ndarray:
    """Return the counts as one array, also where every row holds an array of them."""
    if counts.dtype == object:
        shapes = sorted({np.shape(row) for row in counts})
        if len(shapes) > 1:
            raise ValueError(
                f"from_nmf: rows of {column!r} hold {shapes[0]} and {shapes[1]} counts; select the "
                f"rows of one query"
            )
        counts = np.stack(list(counts)) if len(counts) else counts
    return np.asarray(counts, dtype="float64")
