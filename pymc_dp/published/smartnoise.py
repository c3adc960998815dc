"""Releases of SmartNoise SQL: columns of `reader.execute`, by the mechanisms of its reader."""

from __future__ import annotations

from typing import Any

import numpy as np

from pymc_dp.mechanisms import GaussianMechanism, LaplaceMechanism, Mechanism
from pymc_dp.published.privacy import Privacy
from pymc_dp.published.tables import columns_of, keyed

_WHO = "from_smartnoise"
# The library draws continuous noise for "geometric" and "discrete_laplace" as well.
_NOISE = {"Laplace": LaplaceMechanism, "Gaussian": GaussianMechanism}


def read(
    reader: Any,
    query: str,
    rows: Any,
    column: str | None = None,
    *,
    groups: Any = None,
    **fields: Any,
) -> dict[str, Any]:
    """Read one column of a query's result; see `Release.from_smartnoise`."""
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
    noisy = dict(zip((s.name for s in inner._select_symbols), inner._select_symbols, strict=True))
    noise = dict(zip(noisy, reader._get_mechanisms(inner), strict=True))
    # Of each column that comes out, what it is computed from.
    made = dict(
        zip(columns, [str(e.expression) for e in outer.select.namedExpressions], strict=True)
    )
    source = {name: text.strip("() ") for name, text in made.items()}
    types = dict(zip(columns, (s.expression.type() for s in outer._select_symbols), strict=True))
    keys = [name for name in columns if source[name] in noise and noise[source[name]] is None]
    released = [name for name in columns if name not in keys]
    if column is None and len(released) == 1:
        [column] = released
    if column not in released:
        raise ValueError(
            f"{_WHO}: column={column!r}: write one of the noisy columns "
            f"{', '.join(map(repr, released))}"
        )
    own = source[column]
    if own not in noise:
        raise ValueError(
            f"{_WHO}: {column!r} is {made[column]}, computed from several noisy numbers (an AVG is "
            f"SUM / COUNT), and no release with additive noise: select the SUM and the COUNT, and "
            f"read these"
        )
    mechanism = noise[own]
    if type(mechanism).__name__ not in _NOISE:
        raise ValueError(
            f"{_WHO}: {column!r} has {type(mechanism).__name__} noise, which is not read; write "
            f"dp.Release(value, mechanism)"
        )
    law: Mechanism = _NOISE[type(mechanism).__name__](float(mechanism.scale))
    if outer.censor_dims:
        law = _censored(law, column, own, noisy, noise, bool(keys))
    elif groups is not None:
        law = law.suppressed(empty=True)
    if outer.censor_dims and keys and groups is None:
        raise ValueError(
            f"{_WHO}: groups whose noisy number of individuals was below tau were left out "
            f"(censor_dims): groups= must name all groups that could be there"
        )
    if outer.clamp_counts and noisy[own].is_count:
        law = law.clipped(lower=0)
    values = columns[column]
    if types[column] == "int":
        law = law.truncated()  # by int()
    delta = float(mechanism.delta)
    described: dict[str, Any] = {
        "name": column,
        "source": f"SmartNoise SQL: {own}",
        "privacy": Privacy(epsilon=float(mechanism.epsilon), delta=delta or None),
    }
    if keys:
        value, found = keyed(_WHO, {key: columns[key] for key in keys}, values, groups)
        described |= found
    else:
        value = np.asarray(values[0] if values else np.nan)
    return {"value": value, "mechanism": law} | described | fields


def _censored(
    law: Mechanism, column: str, own: str, noisy: Any, noise: Any, by_group: bool
) -> Mechanism:
    """Return the mechanism where rows with few individuals were left out."""
    key = next(name for name, symbol in noisy.items() if symbol.is_key_count)
    decides = noise[key]
    how: dict[str, Any] = {"below": float(decides.threshold), "empty": by_group}
    if own == key:
        return law.suppressed(**how)
    if own == "count_star" and decides.max_contrib == 1:
        # One row an individual: both count the same.
        return law.suppressed(by=_NOISE[type(decides).__name__](float(decides.scale)), **how)
    raise ValueError(
        f"{_WHO}: whether a row of {column!r} is there was decided by {key}, the noisy number of "
        f"individuals (above {how['below']:.6g}), which is another statistic. Set censor_dims: "
        f"False in the metadata with groups that are public, or read COUNT(DISTINCT ...)"
    )
