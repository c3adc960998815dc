"""Releases of PipelineDP: what `DPEngine.aggregate` returned, with its report or its deviations."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from pymc_dp.mechanisms import GaussianMechanism, LaplaceMechanism, Mechanism
from pymc_dp.published.tables import keyed

_WHO = "from_pipelinedp"
_METRICS = ("count", "privacy_id_count", "sum", "mean")
_NUMBER = r"([-+.\deE]+)"


def read(
    results: Any, metric: str, noise: Any, *, partitions: Any = None, **fields: Any
) -> dict[str, Any]:
    """Read one metric of the partitions; see `Release.from_pipelinedp`."""
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
    lacking = [key for key, row in rows.items() if metric not in row]
    if lacking or not rows:
        there = ", ".join(rows[lacking[0]]) if lacking else "no partitions"
        raise ValueError(f"{_WHO}: there is no {metric!r} in the results, which have {there}")
    report = noise.text() if hasattr(noise, "text") else str(getattr(noise, "value", noise))
    if "private partitions" in report:
        raise ValueError(
            f"{_WHO}: the partitions were selected by noise of their own, and which ones are there "
            f"depends on the data. Ask for public_partitions=, or state all that could be there in "
            f"dp.Release(values, mechanism.suppressed(below=threshold, by=noise, empty=True)), NaN "
            f"where absent, with noise, threshold = dp.thresholds.pipelinedp(epsilon, delta, "
            f"max_partitions). Selection by truncated geometric has no threshold"
        )
    mechanism, middle = _from_report(report, metric) or _from_deviations(report, metric, rows)
    values = [row[metric] for row in rows.values()]
    described: dict[str, Any] = {"name": metric, "source": f"PipelineDP: {metric}"}
    if metric == "mean":
        # The published mean is middle + noisy sum / max(1, noisy count).
        if any("count" not in row for row in rows.values()):
            raise ValueError(
                f"{_WHO}: a mean is read by its sum, mean - middle times the noisy count that was "
                f"divided by: ask for Metrics.COUNT beside Metrics.MEAN"
            )
        counts = np.array([row["count"] for row in rows.values()])
        values = list((np.array(values) - middle) * np.maximum(1.0, counts))
        described["name"] = "normalized_sum"
    value, found = keyed(_WHO, {"partition": list(rows)}, values, partitions)
    if np.isnan(value).any():
        raise ValueError(
            f"{_WHO}: the results lack some of the partitions; public ones are all there, also "
            f"those without records"
        )
    return {"value": value, "mechanism": mechanism} | described | found | fields


def _from_report(report: str, metric: str) -> tuple[Mechanism, float] | None:
    """Return the noise of a metric by the text of a report, and the middle of a mean's bounds."""
    if "Computation graph" not in report:
        return None
    of_mean = re.search(rf"'normalized_sum' = sum of \(value - {_NUMBER}\)", report)
    what = "'normalized_sum'" if metric == "mean" else rf"'{metric}'"
    text = rf"(?:DP {metric} with|Applied to {what})\s+(Laplace|Gaussian) mechanism:\s+"
    found = re.search(rf"{text}parameter={_NUMBER}", report)
    if found is None and of_mean and metric == "sum":
        raise ValueError(
            f"{_WHO}: beside a mean the sum is mean * count, which has no noise of its own. Read "
            f"'mean', whose release is the noisy sum of (value - {of_mean[1]})"
        )
    if found is None:
        raise ValueError(
            f"{_WHO}: the report has no line on the noise of {metric!r}; give it after "
            f"accountant.compute_budgets() and list(results)"
        )
    law = LaplaceMechanism if found[1] == "Laplace" else GaussianMechanism
    return law(float(found[2])), float(of_mean[1]) if of_mean else 0.0


def _from_deviations(kind: str, metric: str, rows: dict[Any, dict]) -> tuple[Mechanism, float]:
    """Return the noise of a metric by the standard deviations beside it."""
    if kind not in ("laplace", "gaussian"):
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
    sd = np.array(deviations, dtype="float64")
    sd = sd[0] if np.all(sd == sd[0]) else sd
    mechanism = LaplaceMechanism(sd / math.sqrt(2)) if kind == "laplace" else GaussianMechanism(sd)
    return mechanism, 0.0
