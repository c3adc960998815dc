"""Releases of Tumult Analytics: what `Session._noise_info` says of a query."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pymc_dp.mechanisms import (
    DiscreteGaussianMechanism,
    GaussianMechanism,
    GeometricMechanism,
    LaplaceMechanism,
    Mechanism,
)
from pymc_dp.published.tables import columns_of, keyed

# Its parameter is the scale of Laplace and geometric noise, but the variance of Gaussian noise.
_NOISE: dict[str, Any] = {
    "LAPLACE": LaplaceMechanism,
    "GEOMETRIC": GeometricMechanism,
    "GAUSSIAN": lambda variance: GaussianMechanism(math.sqrt(variance)),
    "DISCRETE_GAUSSIAN": lambda variance: DiscreteGaussianMechanism(math.sqrt(variance)),
}
_WHO = "from_tumult"


def read(
    noise_info: Any,
    value: Any,
    column: str | None = None,
    *,
    groups: Any = None,
    below: float | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """Read the noise of a query's answer; see `Release.from_tumult`."""
    try:
        named = [(_name(one["noise_mechanism"]), one["noise_parameter"]) for one in noise_info]
    except (TypeError, KeyError):
        raise TypeError(
            f"{_WHO}: the noise is what session._noise_info(query, budget) returns before the "
            f"query is evaluated, a list of {{'noise_mechanism': ..., 'noise_parameter': ...}}; "
            f"got {noise_info!r}"
        ) from None
    what = " and ".join(name for name, _ in named) or "no noise"
    if len(named) != 1:
        raise ValueError(
            f"{_WHO}: the answer has {what} in it, and is no noisy number of its own. An average "
            f"is a middle + noisy sum of deviations / noisy count, a variance likewise: ask for "
            f"count() and sum(), and read these. Groups of get_groups are selected with the noise "
            f"and threshold of dp.thresholds.tumult(epsilon, delta)"
        )
    [(name, parameter)] = named
    if name not in _NOISE:
        raise ValueError(
            f"{_WHO}: {what} is not read: a quantile is drawn from the intervals between the "
            f"records: write dp.Release(value, dp.PrivateQuantile(q, rate, lower, upper)), with "
            f"rate=epsilon / (2 * max(q, 1 - q))"
        )
    if not 0 < float(parameter) < math.inf:
        raise ValueError(f"{_WHO}: {name} with parameter {parameter} is no noise")
    noise: Mechanism = _NOISE[name](float(parameter))
    described: dict[str, Any] = {"source": f"Tumult Analytics: {name}"}
    if hasattr(value, "columns"):
        value, found = _of_frame(value, column, groups, below)
        described |= found
    elif groups is not None or column is not None:
        raise TypeError(f"{_WHO}: column= and groups= are of a data frame; write df.toPandas()")
    if below is not None:
        noise = noise.suppressed(below=below)
    return {"value": value, "mechanism": noise} | described | fields


def _name(mechanism: Any) -> str:
    return str(getattr(mechanism, "name", mechanism))


def _of_frame(frame: Any, column: Any, groups: Any, below: Any) -> tuple[Any, dict[str, Any]]:
    columns = columns_of(_WHO, frame.toPandas() if hasattr(frame, "toPandas") else frame)
    if column is None and len(columns) == 1:
        [column] = columns
    if column not in columns:
        raise ValueError(
            f"{_WHO}: column={column!r}: write which of {', '.join(map(repr, columns))} was noisy; "
            f"the others label the rows"
        )
    values = np.asarray(columns.pop(column))
    if not columns and len(values) == 1:
        return values[0], {"name": column}
    if below is not None and groups is None:
        raise ValueError(
            f"{_WHO}: rows below {below} were left out: groups= must name all groups of the KeySet"
        )
    values, found = keyed(_WHO, columns, values, groups)
    if below is None and np.isnan(values.astype("float64")).any():
        raise ValueError(
            f"{_WHO}: {column!r} lacks some of the groups. Those of a KeySet are all there, unless "
            f"suppress() left out those below a threshold: state it with below="
        )
    return values, {"name": column, **found}
