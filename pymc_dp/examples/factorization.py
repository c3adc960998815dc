"""Poisson factorization of locally private counts: two experiments on simulated tables.

Every count of a D x V table, how often person d did v, say, is released by itself with two-sided
geometric noise (Schein, Wu, Schofield, Zhou & Wallach). The experiments ask what is lost:

1. With theta held at the truth, how far are the rows of phi, as distributions over the columns,
   from the true ones at each Gibbs iteration? The Kullback-Leibler divergence is shown for the
   counts themselves, for the release with its noise modelled, and for the naive analysis, which
   takes the release for counts, negative ones for 0.
2. What does the posterior say about 25 confidential counts, beside the released values?

Run it with ``python -m pymc_dp.examples.factorization [--output DIR] [--seed S]``.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pymc as pm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from xarray import DataTree

import pymc_dp as dp

ROWS, COLUMNS, COMPONENTS = 400, 50, 5
EPSILONS = (2.0, 1.0, 0.5)
SHAPE, RATE = 0.5, 1.0  # of the Gamma priors of both factors: about one count to a cell

# Okabe and Ito's colours, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"
ANALYSES = {"confidential": GREEN, "private": BLUE, "naive": ORANGE}
LABELS = {
    "confidential": "the confidential counts themselves",
    "private": "the release, its noise modelled",
    "naive": "naive: the release taken for counts",
}


@dataclass(frozen=True)
class Data:
    """A simulated table: the true factors, the confidential counts and their release."""

    theta: np.ndarray
    phi: np.ndarray
    counts: np.ndarray
    release: np.ndarray
    mechanism: dp.GeometricMechanism


def simulate(
    epsilon: float,
    seed: int,
    rows: int = ROWS,
    columns: int = COLUMNS,
    components: int = COMPONENTS,
) -> Data:
    """Draw factors from the prior, counts from them, and release every count."""
    rng = np.random.default_rng(seed)
    theta = rng.gamma(SHAPE, 1 / RATE, (rows, components))
    phi = rng.gamma(SHAPE, 1 / RATE, (components, columns))
    counts = rng.poisson(theta @ phi)
    truth = 1 - np.exp(-epsilon)
    noise = rng.geometric(truth, counts.shape) - rng.geometric(truth, counts.shape)
    mechanism = dp.GeometricMechanism.from_epsilon(epsilon)
    return Data(theta, phi, counts, counts + noise, mechanism)


def clamped_model(data: Data, analysis: str) -> pm.Model:
    """Write the model of phi with theta held at the truth, for one of the three analyses."""
    with pm.Model() as model:
        phi = pm.Gamma("phi", SHAPE, RATE, shape=data.phi.shape)
        rate = pm.Data("theta", data.theta) @ phi
        if analysis == "private":
            dp.PrivateObservation(
                "release", pm.Poisson.dist(rate), data.mechanism, observed=data.release
            )
        else:
            naive = np.maximum(data.release, 0)
            pm.Poisson("y", rate, observed=naive if analysis == "naive" else data.counts)
    return model


def divergence(truth: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Mean Kullback-Leibler divergence (nats) of the rows, made distributions, from the truth.

    At each iteration the mean over the later half of the draws so far stands for the inferred
    factor: single draws would add the posterior's width, which is smallest in the naive analysis.
    `truth` is (K, V), `draws` (N, K, V).
    """
    p, q = (x / x.sum(axis=-1, keepdims=True) for x in (truth, draws))
    sums = np.concatenate([np.zeros_like(q[:1]), np.cumsum(q, axis=0)])
    last = np.arange(1, len(sums))
    first = last // 2
    mean = (sums[last] - sums[first]) / (last - first)[:, None, None]
    return (p * np.log(p / mean)).sum(axis=-1).mean(axis=-1)


def clamped_experiment(data: Data, iterations: int, seed: int) -> dict[str, np.ndarray]:
    """Divergence at each iteration, from one chain for each analysis."""
    found = {}
    for analysis in ANALYSES:
        with clamped_model(data, analysis) as model:
            idata = pm.sample(
                iterations,
                tune=0,
                chains=1,
                step=dp.FactorizationGibbs([model["phi"]]),
                compute_convergence_checks=False,
                progressbar=False,
                random_seed=seed,
            )
        found[analysis] = divergence(data.phi, idata["posterior"]["phi"].to_numpy()[0])
    return found


def figure_divergence(found: dict[float, dict[str, np.ndarray]]) -> Figure:
    """Divergence by iteration, a panel for each privacy loss."""
    figure = Figure(figsize=(3.7 * len(found), 4.2), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, len(found), sharey=True))
    for ax, (epsilon, curves) in zip(axes, found.items(), strict=True):
        for analysis, curve in curves.items():
            ax.plot(np.arange(1, len(curve) + 1), curve, color=ANALYSES[analysis], lw=1.8)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_title(f"ε = {epsilon:g}")
        ax.set_xlabel("Gibbs iteration")
        ax.spines[["top", "right"]].set_visible(False)
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
    axes[0].set_ylabel("mean divergence of φ from the truth (nats)")
    handles = [Line2D([], [], color=c, lw=2, label=LABELS[a]) for a, c in ANALYSES.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle("φ inferred with θ held at the truth", fontsize=13)
    return figure


def fit(data: Data, draws: int, seed: int) -> DataTree:
    """Sample both factors given the release, and recover the confidential counts."""
    model = dp.poisson_factorization(
        data.release,
        COMPONENTS,
        data.mechanism,
        theta_shape=SHAPE,
        theta_rate=RATE,
        phi_shape=SHAPE,
        phi_rate=RATE,
    )
    with model:
        idata = pm.sample(
            draws,
            tune=draws,
            chains=2,
            cores=1,
            step=dp.FactorizationGibbs([model["theta"], model["phi"]], sweeps=5),
            compute_convergence_checks=False,  # the components of two chains have other numbers
            progressbar=False,
            random_seed=seed,
        )
    return dp.recover(model, idata, random_seed=seed)


def figure_counts(data: Data, idata: DataTree, seed: int) -> Figure:
    """Posterior histograms of 25 confidential counts, picked at random."""
    draws = idata["posterior"]["release_confidential"].to_numpy()
    draws = draws.reshape(-1, *data.counts.shape).astype(int)
    chosen = np.random.default_rng(seed).choice(data.counts.size, 25, replace=False)
    figure = Figure(figsize=(11, 9.5), layout="constrained")
    for ax, flat in zip(figure.subplots(5, 5).flat, np.sort(chosen), strict=True):
        cell = np.unravel_index(flat, data.counts.shape)
        values = draws[(slice(None), *cell)]
        share = np.bincount(values) / len(values)
        ax.bar(np.arange(len(share)), share, width=0.9, color=BLUE, alpha=0.55)
        ax.axvline(data.counts[cell], color=GREEN, lw=4)
        ax.axvline(data.release[cell], color=ORANGE, lw=2, ls="--")  # above: they may coincide
        shown = [*np.quantile(values, [0, 0.999]), data.release[cell], data.counts[cell]]
        ax.set_xlim(min(shown) - 1.5, max(shown) + 1.5)
        ax.xaxis.get_major_locator().set_params(integer=True, nbins=5)
        ax.set_yticks([])
        ax.set_title(f"row {cell[0]}, column {cell[1]}", fontsize=9, color=GREY)
        ax.spines[["top", "right", "left"]].set_visible(False)
    handles = [
        Patch(facecolor=BLUE, alpha=0.55, label="posterior of the confidential count"),
        Line2D([], [], color=GREEN, lw=4, label="the confidential count"),
        Line2D([], [], color=ORANGE, lw=2, ls="--", label="the released value"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle("What the release says about 25 of the counts behind it", fontsize=13)
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    """Run both experiments, print their numbers, write the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m pymc_dp.examples.factorization",
        description="Poisson factorization of locally private counts.",
    )
    parser.add_argument("--output", type=Path, default=Path("factorization_output"), metavar="DIR",
                        help="folder for the figures (default: %(default)s)")  # fmt: skip
    parser.add_argument("--iterations", type=int, default=1000, metavar="N",
                        help="Gibbs iterations of experiment 1 (default: %(default)s)")  # fmt: skip
    parser.add_argument("--draws", type=int, default=300, metavar="N",
                        help="draws of a chain of experiment 2 (default: %(default)s)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, metavar="S",
                        help="random seed (default: %(default)s)")  # fmt: skip
    args = parser.parse_args(argv)

    console = Console()
    if not console.is_terminal:
        console = Console(width=100)
    logging.getLogger("pymc").setLevel(logging.WARNING)  # a dozen short chains
    console.print(
        f"\n[bold]Locally private counts[/]: {ROWS} x {COLUMNS}, {COMPONENTS} components, each "
        f"count released by itself\n",
        highlight=False,
    )
    found = {
        epsilon: clamped_experiment(simulate(epsilon, args.seed), args.iterations, args.seed)
        for epsilon in EPSILONS
    }
    table = Table(box=SIMPLE_HEAD, title="Divergence of the posterior mean of φ (nats)")
    for column in ("privacy loss ε", *ANALYSES):
        table.add_column(column, justify="right")
    for epsilon, curves in found.items():
        table.add_row(f"{epsilon:g}", *(f"{curve[-1]:.4f}" for curve in curves.values()))
    console.print(table)

    data = simulate(EPSILONS[1], args.seed)
    idata = fit(data, args.draws, args.seed)
    mean = idata["posterior"]["release_confidential"].mean(("chain", "draw")).to_numpy()
    errors = [
        np.sqrt(np.mean((estimate - data.counts) ** 2))
        for estimate in (mean, data.release, np.maximum(data.release, 0))
    ]
    console.print(
        f"Root mean square error of the confidential counts, ε = {EPSILONS[1]:g}: posterior mean "
        f"{errors[0]:.2f}, release {errors[1]:.2f}, release clipped at 0 {errors[2]:.2f}",
        highlight=False,
    )
    args.output.mkdir(parents=True, exist_ok=True)
    figures = {
        "divergence.png": figure_divergence(found),
        "hidden_counts.png": figure_counts(data, idata, args.seed),
    }
    console.print("\nWritten:")
    for name, figure in figures.items():
        path = args.output / name
        figure.savefig(path, dpi=110)
        console.print(f"  {path}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
