"""Poisson factorization of locally private counts: two experiments on simulated tables.

Every count of a D x V table, how often person d did v, say, is released by itself with two-sided
geometric noise (Schein, Wu, Schofield, Zhou & Wallach). The experiments ask what is lost:

1. With theta held at the truth, how far are the rows of phi, as distributions over the columns,
   from the true ones at each Gibbs iteration? The Kullback-Leibler divergence is shown for the
   counts themselves, for the release with its noise modelled, and for the naive analysis, which
   takes the release for counts, negative ones for 0.
2. What does the posterior say about 25 confidential counts, beside the released values?

Run it with ``python3 run.py example factorization [--output DIR] [--seed S]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pymc as pm
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from xarray import DataTree

import pymc_dp as dp
import report

ROWS, COLUMNS, COMPONENTS = 400, 50, 5
EPSILONS = (2.0, 1.0, 0.5)
SHAPE, RATE = 0.5, 1.0  # of the Gamma priors of both factors: about one count to a cell

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
    for analysis in LABELS:
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
    figure = report.figure(
        1, len(found), (3.7 * len(found), 4.2), "φ inferred with θ held at the truth", sharey=True
    )
    for ax, (epsilon, curves) in zip(figure.axes, found.items(), strict=True):
        for analysis, curve in curves.items():
            ax.loglog(np.arange(1, len(curve) + 1), curve, color=report.COLOURS[analysis], lw=1.8,
                      label=LABELS[analysis])  # fmt: skip
        ax.set(title=f"ε = {epsilon:g}", xlabel="Gibbs iteration")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
    figure.axes[0].set_ylabel("mean divergence of φ from the truth (nats)")
    report.legend(figure)
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
    draws = report.draws(idata, "release_confidential").astype(int)
    chosen = np.random.default_rng(seed).choice(data.counts.size, 25, replace=False)
    figure = report.figure(
        5, 5, (11, 9.5), "What the release says about 25 of the counts behind it"
    )
    for ax, flat in zip(figure.axes, np.sort(chosen), strict=True):
        row, column = np.unravel_index(flat, data.counts.shape)
        values = draws[:, row, column]
        count, released = float(data.counts[row, column]), float(data.release[row, column])
        share = np.bincount(values) / len(values)
        ax.bar(np.arange(len(share)), share, width=0.9, color=report.BLUE, alpha=0.55,
               label="posterior of the confidential count")  # fmt: skip
        ax.axvline(count, color=report.GREEN, lw=4, label="the confidential count")
        # Above: they may coincide.
        ax.axvline(released, color=report.ORANGE, lw=2, ls="--", label="the released value")
        shown = [*np.quantile(values, [0, 0.999]), released, count]
        ax.set(xlim=(min(shown) - 1.5, max(shown) + 1.5), yticks=[])
        ax.xaxis.get_major_locator().set_params(integer=True, nbins=5)
        ax.set_title(f"row {row}, column {column}", fontsize=9, color=report.GREY)
        ax.spines["left"].set_visible(False)
    report.legend(figure)
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    """Run both experiments, print their numbers, write the figures."""
    args = report.options(__doc__, argv, iterations=1000, draws=300,
                          output=Path("factorization_output"))  # fmt: skip
    report.say(
        f"[bold]Locally private counts[/]: {ROWS} x {COLUMNS}, {COMPONENTS} components, each "
        f"count released by itself\n"
    )
    data = simulate(EPSILONS[1], args.seed)
    with report.quiet():  # a dozen short chains
        found = {
            epsilon: clamped_experiment(simulate(epsilon, args.seed), args.iterations, args.seed)
            for epsilon in EPSILONS
        }
        idata = fit(data, args.draws, args.seed)
    mean = report.draws(idata, "release_confidential").mean(axis=0)
    estimates = {
        "posterior mean": mean,
        "release": data.release,
        "release clipped at 0": np.maximum(data.release, 0),
    }
    errors = {name: np.sqrt(np.mean((x - data.counts) ** 2)) for name, x in estimates.items()}
    report.say(
        report.table(
            "Divergence of the posterior mean of φ (nats)",
            ("privacy loss ε", *LABELS),
            [(f"{e:g}", *(curve[-1] for curve in found[e].values())) for e in found],
            number=".4f",
        ),
        f"Root mean square error of the confidential counts, ε = {EPSILONS[1]:g}: "
        + ", ".join(f"{name} {error:.2f}" for name, error in errors.items()),
    )
    report.write(
        args.output,
        divergence=figure_divergence(found),
        hidden_counts=figure_counts(data, idata, args.seed),
    )


if __name__ == "__main__":
    main()
