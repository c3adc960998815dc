"""Releases of PipelineDP: what `DPEngine.aggregate` returned, with its report or its deviations."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from pymc_dp.mechanisms import GaussianMechanism, LaplaceMechanism
from pymc_dp.published.tables import keyed, stated_apart
from pymc_dp.published.value import Published

_WHO = "from_pipelinedp"
_METRICS = ("count", "privacy_id_count", "sum", "mean")
_LAWS = {"laplace": LaplaceMechanism, "gaussian": GaussianMechanism}
_NUMBER = r"([-+.\deE]+)"


def from_pipelinedp(
    cls: type[Published],
    results: Any,
    metric: str,
    noise: Any,
    *,
    partitions: Sequence[Any] | None = None,
    **described: Any,
) -> Published:
    r"""Read one metric of what PipelineDP aggregated over public partitions.

    Its noise is Laplace or Gaussian. The results give a **standard deviation**, of which the
    scale of Laplace noise is :math:`\text{sd} / \sqrt 2`; the report gives the scale itself. A
    mean is middle + noisy sum / max(1, noisy count), where what was summed is (value - middle)
    for the middle of the bounds. It is read as the release of that sum,
    ``(x.clip(lower, upper) - middle).sum()`` in the model, and so needs the count beside it.

    Parameters
    ----------
    results : list or dict
        ``list(engine.aggregate(...))``.
    metric : {"count", "privacy_id_count", "sum", "mean"}
        Which metric.
    noise : report, or {"laplace", "gaussian"}
        ``pipeline_dp.ExplainComputationReport``, its text, or, where the results have
        ``output_noise_stddev``, the `noise_kind`.
    partitions : sequence, optional
        The public partitions, in the order that the entries shall have.
    **described
        `name`, `dims`, `coords`, `privacy` and `source` of the release.

    Raises
    ------
    ValueError
        A metric without noise of its own (a variance, a percentile, a sum beside a mean),
        without a count, or without its deviation; partitions that were selected privately.
    TypeError
        Results of another kind.

    Examples
    --------
    >>> from collections import namedtuple
    >>> import pymc_dp as dp
    >>> Metrics = namedtuple("MetricsTuple", ["count", "count_noise_stddev"])  # as PipelineDP's own
    >>> results = [("Aa", Metrics(41.2, 2.0)), ("Bo", Metrics(7.9, 2.0))]
    >>> release = dp.Release.from_pipelinedp(results, "count", "gaussian")
    >>> release.mechanism, release.coords
    (GaussianMechanism(sigma=2.0), {'partition': ('Aa', 'Bo')})
    """
    if metric not in _METRICS:
        raise ValueError(
            f"{_WHO}: metric={metric!r} is not read; it reads {', '.join(map(repr, _METRICS))}. A "
            f"variance is made of three noisy numbers that are not published, a percentile of a "
            f"tree of noisy counts: ask for counts and sums"
        )
    try:
        rows = {key: metrics._asdict() for key, metrics in dict(results).items()}
    except (TypeError, ValueError, AttributeError):
        raise TypeError(
            f"{_WHO}: results must be list(engine.aggregate(...)), pairs of a partition and its "
            f"metrics; got {type(results).__name__}"
        ) from None
    for needed in [metric, "count"] if metric == "mean" else [metric]:
        if not rows or any(needed not in row for row in rows.values()):
            raise ValueError(
                f"{_WHO}: there is no {needed!r} in the results, which have "
                f"{', '.join(next(iter(rows.values()), ())) or 'no partitions'}. A mean needs the "
                f"count that was divided by: ask for Metrics.COUNT beside Metrics.MEAN"
            )
    report = noise.text() if hasattr(noise, "text") else str(getattr(noise, "value", noise))
    law, scale, middle = _from_report(report, metric) or _from_deviations(report, metric, rows)
    values = np.array([row[metric] for row in rows.values()])
    if metric == "mean":
        # The published mean is middle + noisy sum / max(1, noisy count).
        values = (values - middle) * np.maximum(1.0, [row["count"] for row in rows.values()])
    mechanism = law(scale)
    if "private partitions" in report:
        apart = stated_apart("noise.thresholded(threshold)", mechanism, "privacy ids")
        raise ValueError(
            f"{_WHO}: the partitions were selected by noise of their own, and which ones are there "
            f"depends on the data. Ask for public_partitions=, or with noise, threshold = "
            f"dp.thresholds.pipelinedp(epsilon, delta, max_partitions) {apart}. Selection by "
            f"truncated geometric, the default, has no threshold"
        )
    value, labels = keyed(_WHO, {"partition": list(rows)}, values, partitions)
    if np.isnan(value).any():
        raise ValueError(f"{_WHO}: public partitions are all there, but the results lack some")
    name = "normalized_sum" if metric == "mean" else metric
    made = {"value": value, "mechanism": mechanism, "source": f"PipelineDP: {metric}"}
    return cls(**made | {"name": name} | labels | described)


def _from_report(report: str, metric: str) -> tuple[Any, Any, float] | None:
    """Return the law and scale of a metric's noise, and the middle of a mean's bounds."""
    if "Computation graph" not in report:
        return None
    mean_line = re.search(rf"'normalized_sum' = sum of \(value - {_NUMBER}\)", report)
    column = "'normalized_sum'" if metric == "mean" else rf"'{metric}'"
    text = rf"(?:DP {metric} with|Applied to {column})\s+(Laplace|Gaussian) mechanism:\s+"
    noise_line = re.search(rf"{text}parameter={_NUMBER}", report)
    if noise_line is None:
        raise ValueError(
            f"{_WHO}: the report has no line on the noise of {metric!r}. Give it after "
            f"accountant.compute_budgets() and list(results). Beside a mean the sum is mean * "
            f"count, which has no noise of its own: read 'mean', whose release is the noisy sum of "
            f"(value - {mean_line[1] if mean_line else 'middle'})"
        )
    return (
        _LAWS[noise_line[1].lower()],
        float(noise_line[2]),
        float(mean_line[1]) if mean_line else 0.0,
    )


def _from_deviations(kind: str, metric: str, rows: dict[Any, dict]) -> tuple[Any, Any, float]:
    """Return the law of a metric's noise, and its scale by the standard deviations beside it."""
    if kind not in _LAWS:
        raise ValueError(
            f"{_WHO}: noise must be the report of the computation, its text, or the noise_kind, "
            f"'laplace' or 'gaussian'; got {kind!r}"
        )
    deviations = [row.get(f"{metric}_noise_stddev") for row in rows.values()]
    if None in deviations:
        raise ValueError(
            f"{_WHO}: the results do not say the noise of {metric!r}: pass the report, "
            f"pipeline_dp.ExplainComputationReport, in the place of {kind!r}"
            + ("" if metric == "mean" else ", or ask for output_noise_stddev=True")
        )
    sd = np.array(deviations, dtype="float64") / (math.sqrt(2) if kind == "laplace" else 1.0)
    return _LAWS[kind], sd[0] if np.all(sd == sd[0]) else sd, 0.0
