"""Rows of Census noisy measurement files."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_dp.mechanisms import DiscreteGaussianMechanism
from pymc_dp.mechanisms.arguments import refuse_unless
from pymc_dp.published.privacy import Privacy
from pymc_dp.published.value import Published

if TYPE_CHECKING:
    from pathlib import Path


def from_nmf(
    cls: type[Published],
    rows: str | Path | Any,
    *,
    value: str = "value",
    variance: str = "variance",
    label: str | None = None,
    **described: Any,
) -> Published:
    r"""Read rows of a Census noisy measurement file: counts with discrete Gaussian noise.

    The file gives the **variance** of the noise; the mechanism is
    ``DiscreteGaussianMechanism(sigma)`` with :math:`\sigma = \sqrt{\text{variance}}`. (The
    variance of the discrete Gaussian is :math:`\sigma^2` within a relative 1e-6 from
    :math:`\sigma = 1` on.) Noisy measurements are what the statistic plus noise gave, negative
    ones included. Published census tables are not: they were made consistent and non-negative,
    and are no releases.

    Parameters
    ----------
    rows : path, or polars or pandas data frame
        A parquet file or folder, or the rows themselves. Pass a data frame to take some rows of
        a file: one query at one level of geography, say.
    value, variance : str
        Columns of the noisy count and of the variance of its noise, as your file names them.
        Where a row holds the counts of a whole query, they must be as many in every row; the
        value then has one row for each.
    label : str, optional
        Column that labels the rows. It becomes the first dimension.
    **described
        `name`, `dims`, `coords`, `privacy` and `source` of the release.

    Raises
    ------
    ValueError
        No such column, no rows, a count that is not whole, or a variance that is not positive:
        a variance of zero marks an invariant, which was published without noise.
    TypeError
        Neither a path nor a data frame.
    ImportError
        A path without pandas and pyarrow, the extra ``[parquet]``.

    Examples
    --------
    >>> import pandas as pd
    >>> import pymc_dp as dp
    >>> rows = pd.DataFrame({"geocode": ["01", "02"], "value": [12, -3], "variance": [4.0, 6.25]})
    >>> release = dp.Release.from_nmf(rows, label="geocode")
    >>> release.mechanism, release.value
    (DiscreteGaussianMechanism(sigma=[2. , 2.5]), array([12, -3]))
    """
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
    made: dict[str, Any] = {
        "value": counts.astype("int64"),
        "mechanism": DiscreteGaussianMechanism(sigma),
        "source": "Census noisy measurement file",
        "privacy": Privacy(neighbouring="replace one record", measure="zero-concentrated"),
    }
    if label and "dims" not in described:
        inner = tuple(f"{value}_{axis}" for axis in range(1, counts.ndim))
        made |= {"dims": (label, *inner), "coords": {label: rows[label].to_list()}}
    return cls(**made | described)


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
