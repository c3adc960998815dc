"""Releases of SmartNoise SQL: columns of `reader.execute`, by the mechanisms of its reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pymc_dp.mechanisms import GaussianMechanism, LaplaceMechanism
from pymc_dp.published.privacy import Privacy
from pymc_dp.published.tables import chosen, columns_of, keyed, stated_apart
from pymc_dp.published.value import Published

_WHO = "from_smartnoise"
# The library draws continuous noise for "geometric" and "discrete_laplace" as well.
_NOISE: dict[str, Any] = {"Laplace": LaplaceMechanism, "Gaussian": GaussianMechanism}


def from_smartnoise(
    cls: type[Published],
    reader: Any,
    query: str,
    rows: Any,
    column: str | None = None,
    *,
    groups: Sequence[Any] | None = None,
    **described: Any,
) -> Published:
    """Read one column of a query that SmartNoise SQL executed.

    COUNT and SUM are read, under Laplace or Gaussian noise; what comes out as an integer was
    cut toward zero by ``int()``, ``.truncated()``. The columns that were grouped by label the
    entries. Where the metadata have `censor_dims`, as by default, rows with a noisy number of
    individuals below tau were left out: ``.suppressed(below=tau)``; with `clamp_counts` counts
    are ``.clipped(lower=0)``.

    Parameters
    ----------
    reader : private reader of snsql
        What ``snsql.from_df`` or ``from_connection`` returned, of version 1.0.
    query : str
        The query.
    rows : list or data frame
        ``reader.execute(query)`` or ``reader.execute_df(query)``.
    column : str, optional
        Which column; may be left out where only one is noisy.
    groups : sequence, optional
        All groups that could be there. The value is in their order, NaN where one is not:
        groups without records have no row either. Needed with `censor_dims`.
    **described
        `name` (by default the column's), `dims`, `coords`, `privacy` and `source`.

    Raises
    ------
    ValueError
        A column computed from several (AVG), rows that were left out because of another column,
        by HAVING or LIMIT, groups that are not named.
    TypeError
        Another reader, or rows without a header.

    Examples
    --------
    >>> reader = snsql.from_df(frame, metadata=metadata, privacy=privacy)  # doctest: +SKIP
    >>> query = "SELECT COUNT(*) AS n FROM S.T"  # doctest: +SKIP
    >>> dp.Release.from_smartnoise(reader, query, reader.execute(query))  # doctest: +SKIP
    """
    if not (hasattr(reader, "_rewrite") and hasattr(reader, "_get_mechanisms")):
        raise TypeError(
            f"{_WHO}: the reader that executed the query is needed, of smartnoise-sql 1.0; got "
            f"{type(reader).__name__}. Write dp.Release(value, mechanism)"
        )
    columns = columns_of(_WHO, rows)
    inner, outer = reader._rewrite(query)
    if outer.having is not None or outer.limit is not None:
        raise ValueError(
            f"{_WHO}: HAVING and LIMIT leave rows out by noisy values; execute the query without, "
            f"and select from the results of the analysis"
        )
    noisy = {symbol.name: symbol for symbol in inner._select_symbols}
    noise = dict(zip(noisy, reader._get_mechanisms(inner), strict=True))
    # The expression that each published column is computed from.
    texts = [str(named.expression).strip("() ") for named in outer.select.namedExpressions]
    source = dict(zip(columns, texts, strict=True))
    types = dict(zip(columns, (s.expression.type() for s in outer._select_symbols), strict=True))
    keys = {name: columns[name] for name in columns if noise.get(source[name], 0) is None}
    column = chosen(_WHO, column, [name for name in columns if name not in keys])
    expression = source[column]
    if expression not in noise:
        raise ValueError(
            f"{_WHO}: {column!r} is {expression}, computed from several noisy numbers (an AVG is "
            f"SUM / COUNT), and no release with additive noise: select the SUM and the COUNT, and "
            f"read both"
        )
    kind = type(noise[expression]).__name__
    if kind not in _NOISE:
        raise ValueError(f"{_WHO}: {kind} noise is not read; write dp.Release(value, mechanism)")
    law, decided = _NOISE[kind](float(noise[expression].scale)), ""
    if outer.censor_dims:
        decides = noise[key := next(name for name in noisy if noisy[name].is_key_count)]
        by, tau = _NOISE[type(decides).__name__](float(decides.scale)), float(decides.threshold)
        if expression == key:
            law = law.suppressed(below=tau, empty=bool(keys))
        elif expression == "count_star" and decides.max_contrib == 1:
            # One row per individual: rows and individuals are equally many.
            law = law.suppressed(below=tau, by=by, empty=bool(keys))
        else:
            decided = f"dp.{by!r}.thresholded({tau:.17g})"
    elif groups is not None:
        law = law.suppressed(empty=True)
    if outer.clamp_counts and noisy[expression].is_count:
        law = law.clipped(lower=0)
    law = law.truncated() if types[column] == "int" else law  # by int()
    if decided:
        raise ValueError(
            f"{_WHO}: whether a row of {column!r} is there was decided by {key}, the noisy number "
            f"of individuals, which is another statistic. Set censor_dims: False in the metadata "
            f"with groups that are public, or read COUNT(DISTINCT ...), or "
            f"{stated_apart(decided, law, 'individuals')}"
        )
    if outer.censor_dims and keys and groups is None:
        raise ValueError(
            f"{_WHO}: groups whose noisy number of individuals was below tau were left out "
            f"(censor_dims): groups= must name all groups that could be there"
        )
    labels: dict[str, Any] = {}
    value: Any = columns[column][0] if columns[column] else np.nan
    if keys:
        value, labels = keyed(_WHO, keys, columns[column], groups)
    privacy = Privacy(
        epsilon=float(noise[expression].epsilon), delta=float(noise[expression].delta) or None
    )
    made = {"value": value, "mechanism": law, "privacy": privacy, "name": column}
    return cls(**made | {"source": f"SmartNoise SQL: {expression}"} | labels | described)
