"""Releases of Tumult Analytics: what `Session._noise_info` says of a query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pymc_dp import mechanisms
from pymc_dp.published.tables import chosen, columns_of, keyed
from pymc_dp.published.value import Published

_WHO = "from_tumult"
# The noise parameter is the scale of Laplace and geometric noise, but the variance of Gaussian
# noise.
_NOISE: dict[str, Any] = {
    "LAPLACE": mechanisms.LaplaceMechanism,
    "GEOMETRIC": mechanisms.GeometricMechanism,
    "GAUSSIAN": lambda variance: mechanisms.GaussianMechanism(np.sqrt(variance)),
    "DISCRETE_GAUSSIAN": lambda variance: mechanisms.DiscreteGaussianMechanism(np.sqrt(variance)),
}
# What to write for noise that is not read.
_INSTEAD = {
    "EXPONENTIAL": "a quantile is drawn from the intervals between the records: write "
    "dp.Release(value, dp.PrivateQuantile(q, rate, lower, upper)), with rate=epsilon / (2 * max(q, "
    "1 - q))",
    "": "groups of get_groups are selected with the noise and threshold of "
    "dp.thresholds.tumult(epsilon, delta)",
}
_RATIO = (
    "it is no noisy number of its own. An average is a middle + noisy sum of deviations / noisy "
    "count, a variance likewise: ask for count() and sum(), and read these"
)


def from_tumult(
    cls: type[Published],
    noise_info: Any,
    value: Any,
    column: str | None = None,
    *,
    groups: Sequence[Any] | None = None,
    below: float | None = None,
    **described: Any,
) -> Published:
    """Read the answer of a query of Tumult Analytics.

    The noise parameter is a scale for Laplace and geometric noise, and the **variance** for
    Gaussian and discrete Gaussian noise.

    Parameters
    ----------
    noise_info : list of dict
        ``session._noise_info(query, budget)``, asked before the query is evaluated, or the same
        written down: ``[{"noise_mechanism": "GEOMETRIC", "noise_parameter": 2.0}]``.
    value : array_like or data frame
        The answer, of Spark or pandas, or the number in it.
    column : str, optional
        The noisy column; the others label the entries. May be left out where it is alone.
    groups : sequence, optional
        All groups of the KeySet, in the order that the entries shall have.
    below : float, optional
        Threshold of ``suppress(column, threshold)``, under which rows were left out.
    **described
        `name` (by default the column's), `dims`, `coords`, `privacy` and `source`.

    Raises
    ------
    ValueError
        An average, a variance or a quantile, which are no noisy numbers of their own.
    TypeError
        Another kind of noise information.

    Examples
    --------
    >>> import pymc_dp as dp
    >>> noise = [{"noise_mechanism": "GAUSSIAN", "noise_parameter": 9.0}]
    >>> dp.Release.from_tumult(noise, 285.2).mechanism
    GaussianMechanism(sigma=3.0)
    """
    try:
        # The library names its mechanisms by members of an enumeration.
        named = [
            (str(getattr(law := entry["noise_mechanism"], "name", law)), entry["noise_parameter"])
            for entry in noise_info
        ]
    except (TypeError, KeyError):
        raise TypeError(
            f"{_WHO}: the noise is what session._noise_info(query, budget) returns before the "
            f"query is evaluated, a list of {{'noise_mechanism': ..., 'noise_parameter': ...}}; "
            f"got {noise_info!r}"
        ) from None
    kind = " and ".join(name for name, _ in named)
    if kind not in _NOISE:
        why = _INSTEAD.get(kind, _RATIO)
        raise ValueError(f"{_WHO}: an answer with {kind or 'no'} noise is not read: {why}")
    noise = _NOISE[kind](float(named[0][1]))
    labels: dict[str, Any] = {}
    if hasattr(value, "columns"):
        value, labels = _of_frame(value, column, groups, below)
    elif groups is not None or column is not None:
        raise TypeError(f"{_WHO}: column= and groups= are of a data frame; write df.toPandas()")
    noise = noise if below is None else noise.suppressed(below=below)
    made = {"value": value, "mechanism": noise, "source": f"Tumult Analytics: {kind}"}
    return cls(**made | labels | described)


def _of_frame(frame: Any, column: Any, groups: Any, below: Any) -> tuple[Any, dict[str, Any]]:
    columns = columns_of(_WHO, frame.toPandas() if hasattr(frame, "toPandas") else frame)
    column = chosen(_WHO, column, list(columns))
    values = np.asarray(columns.pop(column))
    if not columns:
        return (values[0] if len(values) else np.nan), {"name": column}
    value, labels = keyed(_WHO, columns, values, groups)
    if (groups is None and below is not None) or (below is None and np.any(value != value)):
        raise ValueError(
            f"{_WHO}: the groups of a KeySet are all there, unless suppress() left out those below "
            f"a threshold: state it with below=, and name all of them with groups="
        )
    return value, {"name": column, **labels}
