"""Write what PipelineDP answers and reports, as JSON, to standard output.

`pipelinedp.json` was made by pipeline-dp 0.3.1, which needs an environment of its own:

    python tests/data/pipelinedp_cases.py > tests/data/pipelinedp.json
"""

import json
import sys
from importlib.metadata import version

import pipeline_dp as pdp
from pipeline_dp.partition_selection import create_partition_selection_strategy
from pipeline_dp.report_generator import ExplainComputationReport

M, RUNS = pdp.Metrics, 150
ROWS = [(user, key, float(user % k)) for user in range(60) for key, k in (("a", 5), ("b", 3))]
EXTRACT = pdp.DataExtractors(lambda r: r[0], lambda r: r[1], lambda r: r[2])
PUBLIC = ["a", "b", "zz"]
CASES = [
    (kind, metrics, partitions)
    for kind in (pdp.NoiseKind.LAPLACE, pdp.NoiseKind.GAUSSIAN)
    for metrics, partitions in (
        ([M.COUNT, M.PRIVACY_ID_COUNT, M.SUM], PUBLIC),
        ([M.MEAN, M.COUNT, M.SUM], PUBLIC),
        ([M.COUNT], None),
    )
]
SELECTIONS = [(1.0, 1e-5, 1), (0.7, 1e-3, 3), (3.0, 0.05, 2)]


def aggregated(kind, metrics, partitions):
    """Return the results of one run, and its report."""
    accountant = pdp.NaiveBudgetAccountant(total_epsilon=2.0, total_delta=1e-4)
    engine, report = pdp.DPEngine(accountant, pdp.LocalBackend()), ExplainComputationReport()
    asked = pdp.AggregateParams(
        metrics=metrics,
        noise_kind=kind,
        max_partitions_contributed=2,
        max_contributions_per_partition=1,
        min_value=0.0,
        max_value=6.0,
        output_noise_stddev=M.MEAN not in metrics,
    )
    results = engine.aggregate(ROWS, asked, EXTRACT, partitions, report)
    accountant.compute_budgets()
    return {key: row._asdict() for key, row in results}, report.text()


def case(kind, metrics, partitions):
    """Return the answers of some runs, and the report of the last."""
    runs = [aggregated(kind, metrics, partitions) for _ in range(RUNS if partitions else 1)]
    names = [name for name in runs[0][0]["a"] if not name.endswith("stddev")]
    return {
        "kind": kind.value,
        "results": runs[-1][0],
        "report": runs[-1][1],
        "draws": {name: [round(run["a"][name], 4) for run, _ in runs] for name in names},
    }


def threshold(epsilon, delta, most):
    """Return the thresholds of two selections, and how likely 1 and 12 ids are kept."""
    kinds = pdp.PartitionSelectionStrategy
    made = [
        create_partition_selection_strategy(kind, epsilon, delta, most)
        for kind in (kinds.LAPLACE_THRESHOLDING, kinds.GAUSSIAN_THRESHOLDING)
    ]
    kept = [[one.probability_of_keep(n) for n in (1, 12)] for one in made]
    return [epsilon, delta, most, [one.threshold for one in made], kept]


if __name__ == "__main__":
    made = {
        "pipeline-dp": version("pipeline-dp"),
        "cases": [case(*c) for c in CASES],
        "thresholds": [threshold(*s) for s in SELECTIONS],
    }
    sys.stdout.write(json.dumps(made) + "\n")
