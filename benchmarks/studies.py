"""Kazan & Reiter's simulation study (their Figure 2): coverage and length of 95% intervals.

    python -m benchmarks.studies --cell 100 0.2 0.5 constrained      one cell at full size
    python -m benchmarks.studies --all                               every cell, 200 data sets each

A cell of the study is 10,000 data sets of n truncated Normal values, whose mean and variance are
released with Laplace noise of total privacy loss epsilon, and 20,000 Gibbs draws for each, of which
the highest-density interval and the mode are taken. There are 168: 21 sample sizes, 2 levels, 2
true means, with and without the constraints. Published results stand beside where there are some.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from functools import cache
from pathlib import Path

import numpy as np
import pymc as pm
from rich.console import Console
from rich.table import Table

import pymc_dp as dp

SIZES = np.round(10 ** np.arange(1, 3.01, 0.1)).astype(int).tolist()
LEVELS, MEANS, KINDS = (0.2, 2.0), (0.1, 0.5), ("unconstrained", "constrained")
CELLS = len(SIZES) * len(LEVELS) * len(MEANS) * len(KINDS)
FULL = {"replicates": 10_000, "draws": 20_000}
PUBLISHED = Path(__file__).parent / "data" / "figure2.json"


def build(n: int, epsilon: float, center: float, kind: str) -> pm.Model:
    """Write the model: a flat prior, which the true mean, `center`, is no part of."""
    with pm.Model() as model:
        mu, sigma2 = pm.Flat("mu"), pm.HalfFlat("sigma2")
        x = pm.Normal("x", mu, pm.math.sqrt(sigma2), shape=n)
        noise = dp.LaplaceMechanism.from_epsilon(epsilon / 2, 1 / n)
        bounds = (0, 1) if kind == "constrained" else None
        dp.PrivateObservation("z", [x.mean(), x.var(ddof=1)], noise, bounds=bounds)
    return model


def truth(cell: dict) -> dict:
    """Return the parameters of the Normal law before truncation."""
    return {"mu": cell["center"], "sigma2": (0.4 * cell["center"]) ** 2}


def simulate(cell: dict, rng: np.random.Generator) -> np.ndarray:
    """Release mean and variance of truncated Normal values."""
    mean, n = cell["center"], cell["n"]
    values = np.empty(0)
    while len(values) < n:
        drawn = rng.normal(mean, 0.4 * mean, n + 10)
        values = np.concatenate([values, drawn[(drawn > 0) & (drawn < 1)]])
    values = values[:n]
    noise = rng.laplace(0.0, 2.0 / (n * cell["epsilon"]), 2)
    return np.array([values.mean(), values.var(ddof=1)]) + noise


def run(cells: dict, **kwargs):
    """Run the study on a grid."""
    return dp.studies.coverage(
        build, truth=truth, simulate=simulate, grid=cells, var_names=["mu"], point="mode",
        tune=200, chains=1, thin=1, compiled=True, **kwargs,
    )  # fmt: skip


@cache
def _published() -> dict:
    return json.loads(PUBLISHED.read_text())


def published(cell: dict, of: str) -> float | None:
    """Return a published number of a cell, if there is one."""
    kind = cell["kind"] == "constrained"
    key = f"{of}|eps={cell['epsilon']}|mu={cell['center']}|constrained={kind}"
    return _published().get(key, {}).get(str(cell["n"]))


def table(found, console: Console) -> None:
    """Set coverage and length beside those published."""
    shown = Table(title="95% intervals of the mean")
    for column in (
        "n", "ε", "true mean", "", "coverage", "published", "difference / SE", "length",
        "published", "ratio", "ESS, least decile",
    ):  # fmt: skip
        shown.add_column(column, justify="right")
    stacked = found.sel(parameter="mu").stack(cell=["kind", "center", "epsilon", "n"])
    for k in range(stacked.sizes["cell"]):
        own = stacked.isel(cell=k)
        cell = {name: own[name].item() for name in ("n", "epsilon", "center", "kind")}
        coverage, length = own["coverage"].item(), own["length"].item()
        count = int(own["mean"].notnull().sum())
        theirs, their_length = (published(cell, of) for of in ("coverage", "len"))
        off = ratio = ""
        if theirs is not None and their_length is not None:
            variance = theirs * (1 - theirs) * (1 / count + 1 / FULL["replicates"])
            off = f"{(coverage - theirs) / np.sqrt(max(variance, 1e-12)):+.1f}"
            ratio = f"{length / their_length:.3f}"
        shown.add_row(
            str(cell["n"]), str(cell["epsilon"]), str(cell["center"]), cell["kind"],
            f"{coverage:.4f}", "" if theirs is None else f"{theirs:.4f}", off, f"{length:.4f}",
            "" if their_length is None else f"{their_length:.4f}", ratio,
            f"{np.nanquantile(own['ess'], 0.1):,.0f}",
        )  # fmt: skip
    console.print(shown)


def report(console: Console, cells: dict, replicates: int, jobs: int, **kwargs) -> None:
    """Run the study on a grid; print its results and what the whole would take."""
    kwargs = {"draws": FULL["draws"], **kwargs}
    began = time.perf_counter()
    found = run(cells, replicates=replicates, n_jobs=jobs, **kwargs)
    seconds = time.perf_counter() - began
    table(found, console)
    count = int(np.prod([len(v) for v in cells.values()]))
    hours = seconds * jobs / 3600 / count * CELLS * FULL["replicates"] / replicates
    console.print(
        f"{count} cells, {replicates:,} data sets each, {kwargs['draws']:,} draws at most: "
        f"{seconds:.0f} s on {jobs} processes. All {CELLS} cells at full size would take "
        f"{hours:.1f} core-hours like this."
    )


def command() -> None:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cell", nargs=4, metavar=("N", "EPSILON", "MEAN", "KIND"))
    parser.add_argument("--all", action="store_true", help="every cell, at a reduced size")
    parser.add_argument("--replicates", type=int, help="data sets of a cell")
    parser.add_argument("--draws", type=int, default=FULL["draws"])
    parser.add_argument("--min-ess", type=float, help="end a replicate at so many effective draws")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=2024)
    parser.add_argument("--path", help="folder of a checkpoint")
    options = parser.parse_args()
    console = Console(width=140)
    if options.cell:
        n, epsilon, mean, kind = options.cell
        cells = {
            "n": [int(n)],
            "epsilon": [float(epsilon)],
            "center": [float(mean)],
            "kind": [kind],
        }
        replicates = options.replicates or FULL["replicates"]
    elif options.all:
        cells = {"n": SIZES, "epsilon": LEVELS, "center": MEANS, "kind": KINDS}
        replicates = options.replicates or 200
    else:
        parser.error("give --cell or --all")
    report(
        console, cells, replicates, options.jobs, draws=options.draws, min_ess=options.min_ess,
        random_seed=options.seed, path=options.path,
    )  # fmt: skip


if __name__ == "__main__":
    command()
