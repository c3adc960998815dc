"""Blood lead of 43 policemen, from a mean and a variance released with Laplace noise.

The blood-lead concentrations of 43 Egyptian policemen, known to lie within 0 and 100 µg/dl, have
mean 32.08 and variance 288.32. Suppose that only a private version of the two numbers is
published, each with privacy loss ε = 0.25: 34.3027 and 2224.8 (Kazan & Reiter). The posterior of
the population's mean and variance is computed under a flat and under an informative prior, with
and without the public bounds, and set beside two closed forms: the analysis of the confidential
statistics, and the naive one, which takes the released statistics for exact.

Run it with ``python -m pymc_dp.examples.blood_lead [--output DIR] [--draws N] [--seed S]``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from scipy import stats
from xarray import DataTree

import pymc_dp as dp

Prior = Literal["flat", "informative"]
PRIORS: tuple[Prior, ...] = ("flat", "informative")

N = 43
LOWER, UPPER = 0.0, 100.0
WIDTH, MIDDLE = UPPER - LOWER, (LOWER + UPPER) / 2
EPSILON = (0.25, 0.25)
SENSITIVITY = (WIDTH / N, WIDTH**2 / N)
RELEASED = (34.3027, 2224.8)
CONFIDENTIAL = (32.08, 288.32)
# Informative prior: sigma2 ~ InverseGamma(nu0/2, nu0 sigma0²/2), mu ~ Normal(mu0, sigma2/kappa0).
MU0, SIGMA0, KAPPA0, NU0 = 12.5, 3.8, 1.0, 1.0

# Okabe and Ito's colours, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"


def build(prior: Prior, bounded: bool) -> pm.Model:
    """Write the model, with a flat or the informative prior, with or without the public bounds."""
    with pm.Model() as model:
        if prior == "flat":
            mu = pm.Flat("mu")
            sigma2 = pm.HalfFlat("sigma2")
        else:
            sigma2 = pm.InverseGamma("sigma2", NU0 / 2, NU0 * SIGMA0**2 / 2)
            mu = pm.Normal("mu", MU0, pt.sqrt(sigma2 / KAPPA0))
        lead = pm.Normal("lead", mu, pt.sqrt(sigma2), shape=N)
        dp.PrivateObservation(
            "release",
            [lead.mean(), lead.var(ddof=1)],
            dp.LaplaceMechanism.from_epsilon(EPSILON, sensitivity=SENSITIVITY),
            observed=RELEASED,
            bounds=(LOWER, UPPER) if bounded else None,
        )
    return model


def feasible(mu: np.ndarray, sigma2: np.ndarray) -> np.ndarray:
    """Whether a law on [0, 100] can have this mean and variance."""
    return (mu > LOWER) & (mu < UPPER) & (sigma2 <= (mu - LOWER) * (UPPER - mu))


@dataclass(frozen=True)
class ClosedForm:
    """The posterior given an exact mean and variance: normal-inverse-gamma.

    sigma2 ~ InverseGamma(nu/2, nu scale2/2) and mu | sigma2 ~ Normal(location, sigma2/kappa).
    """

    location: float
    kappa: float
    nu: float
    scale2: float

    @classmethod
    def given(cls, prior: Prior, mean: float, variance: float) -> ClosedForm:
        """Update the prior with the sample mean and variance of `N` records."""
        squares = (N - 1) * variance
        if prior == "flat":
            return cls(mean, N, N - 3, squares / (N - 3))
        kappa, nu = KAPPA0 + N, NU0 + N
        squares += NU0 * SIGMA0**2 + KAPPA0 * N / kappa * (mean - MU0) ** 2
        return cls((KAPPA0 * MU0 + N * mean) / kappa, kappa, nu, squares / nu)

    @property
    def mu(self):
        """Law of mu: Student's t."""
        return stats.t(self.nu, self.location, np.sqrt(self.scale2 / self.kappa))

    @property
    def sigma2(self):
        """Law of sigma2."""
        return stats.invgamma(self.nu / 2, scale=self.nu * self.scale2 / 2)

    def density_of_sigma(self, sigma: np.ndarray) -> np.ndarray:
        """Density of the standard deviation."""
        return 2 * sigma * self.sigma2.pdf(sigma**2)

    def probability_feasible(self, points: int = 20_000) -> float:
        """Posterior probability that mu and sigma2 are possible for values within the bounds."""
        sigma2 = self.sigma2.ppf(_midpoints(points))
        half = np.sqrt(np.maximum(WIDTH**2 / 4 - sigma2, 0))
        sd = np.sqrt(sigma2 / self.kappa)
        ends = [stats.norm.cdf((MIDDLE + s * half - self.location) / sd) for s in (-1, 1)]
        return float(np.mean(ends[1] - ends[0]))


def _midpoints(points: int) -> np.ndarray:
    return (np.arange(points) + 0.5) / points


@dataclass(frozen=True)
class Summary:
    """One marginal posterior in five numbers."""

    median: float
    low: float
    high: float
    mean: float
    sd: float

    @classmethod
    def of(cls, values: np.ndarray) -> Summary:
        """Summarise draws, or evenly spaced quantiles."""
        low, median, high = np.quantile(values, [0.025, 0.5, 0.975])
        return cls(*(float(x) for x in (median, low, high, values.mean(), values.std(ddof=1))))

    def __str__(self) -> str:
        """Write it as the cell of a rich table."""
        digits = 0 if self.high >= 1000 else 1
        median, low, high, mean, sd = (
            f"{x:,.{digits}f}" for x in (self.median, self.low, self.high, self.mean, self.sd)
        )
        return f"[bold]{median}[/]\n\\[{low}, {high}]\n[dim]{mean} ± {sd}[/]"


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    label: str
    mu: Summary
    sigma: Summary
    sigma2: Summary
    probability_feasible: float
    convergence: str = "exact"


def row_of_closed_form(label: str, posterior: ClosedForm) -> Row:
    """Summarise a closed form through its quantiles."""
    u = _midpoints(20_000)
    mu, sigma2 = posterior.mu.ppf(u), posterior.sigma2.ppf(u)
    return Row(
        label,
        Summary.of(mu),
        Summary.of(np.sqrt(sigma2)),
        Summary.of(sigma2),
        posterior.probability_feasible(),
    )


def row_of_draws(label: str, idata: DataTree) -> Row:
    """Summarise draws; of the convergence diagnostics, the worse parameter's."""
    mu, sigma2 = draws_of(idata)
    posterior = idata["posterior"].to_dataset()[["mu", "sigma2"]]
    r_hat = max(float(x) for x in az.rhat(posterior).data_vars.values())
    ess = min(float(x) for x in az.ess(posterior, method="bulk").data_vars.values())
    return Row(
        label,
        Summary.of(mu),
        Summary.of(np.sqrt(sigma2)),
        Summary.of(sigma2),
        float(feasible(mu, sigma2).mean()),
        f"{r_hat:.3f}\n{ess:,.0f}",
    )


def draws_of(idata: DataTree) -> tuple[np.ndarray, np.ndarray]:
    """Return the draws of mu and sigma2 of all chains."""
    posterior = idata["posterior"]
    return posterior["mu"].to_numpy().ravel(), posterior["sigma2"].to_numpy().ravel()


def make_table(fits: dict[tuple[Prior, bool], DataTree]) -> Table:
    """Set the four posteriors beside the confidential and the naive analysis."""
    table = Table(
        title="Posteriors of the population's mean μ, sd σ and variance σ²",
        caption="Each cell: median, central 95% interval, mean ± sd. P(feasible): probability that "
        "values within [0, 100] can have this μ and σ². Below a posterior that was sampled, the "
        "worse R-hat and the smaller bulk ESS of μ and σ².",
        title_justify="left",
        caption_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("prior and\nanalysis", no_wrap=True)
    for heading in ("μ (µg/dl)", "σ (µg/dl)", "σ²"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("P(fea-\nsible)", justify="right", no_wrap=True)
    table.add_column("R-hat\nESS", justify="right", no_wrap=True)
    for prior in PRIORS:
        rows = [
            row_of_closed_form("confidential", ClosedForm.given(prior, *CONFIDENTIAL)),
            row_of_closed_form("naive", ClosedForm.given(prior, *RELEASED)),
            row_of_draws("ours", fits[prior, False]),
            row_of_draws("ours, bounds", fits[prior, True]),
        ]
        for i, row in enumerate(rows):
            table.add_row(
                row.label if i else f"[bold]{prior}[/]\n{row.label}",
                *(("\n" if i == 0 else "") + str(s) for s in (row.mu, row.sigma, row.sigma2)),
                ("\n" if i == 0 else "") + f"{row.probability_feasible:.3f}",
                ("\n" if i == 0 else "") + row.convergence,
                end_section=i == len(rows) - 1,
            )
    return table


def figure_feasible_region(fits: dict[tuple[Prior, bool], DataTree]) -> Figure:
    """Draws of (mu, sigma2), those that no data within the bounds can have in another colour."""
    figure = Figure(figsize=(10, 8.4), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True, sharey=True)
    x = np.linspace(LOWER, UPPER, 400)
    cap = (x - LOWER) * (UPPER - x)
    for (prior, bounded), ax in zip(fits, axes.ravel(), strict=True):
        mu, sigma2 = draws_of(fits[prior, bounded])
        shown = slice(None, None, max(1, len(mu) // 6000))
        inside = feasible(mu, sigma2)
        ax.fill_between(x, 0, cap, color=BLUE, alpha=0.08, lw=0)
        ax.plot(x, cap, color="black", lw=1.2)
        for which, colour in ((inside, BLUE), (~inside, ORANGE)):
            ax.scatter(mu[shown][which[shown]], sigma2[shown][which[shown]],
                       s=4, color=colour, alpha=0.25, lw=0, rasterized=True)  # fmt: skip
        ax.plot(*CONFIDENTIAL, "o", ms=10, mfc=GREEN, mec="white", mew=1.5, zorder=5)
        ax.plot(*RELEASED, "X", ms=11, mfc="black", mec="white", mew=1.2, zorder=5)
        constraint = "with the bounds [0, 100]" if bounded else "without bounds"
        ax.set_title(f"{prior} prior, {constraint}", fontsize=11)
        ax.text(0.98, 0.97, f"{1 - inside.mean():.0%} of the draws are impossible",
                transform=ax.transAxes, ha="right", va="top", fontsize=10)  # fmt: skip
        ax.set_yscale("function", functions=(lambda v: np.sqrt(np.maximum(v, 0)), np.square))
        ax.set_yticks([0, 100, 500, 1000, 2000, 3000, 5000, 8000])
        ax.set_xlim(-15, 105)
        ax.set_ylim(0, 9000)
    for ax in axes[1]:
        ax.set_xlabel("mean μ (µg/dl)")
    for ax in axes[:, 0]:
        ax.set_ylabel("variance σ² ((µg/dl)², square-root scale)")
    handles = [
        Line2D([], [], marker="o", ls="", color=BLUE, label="draw within the region"),
        Line2D([], [], marker="o", ls="", color=ORANGE, label="draw outside"),
        Line2D([], [], color="black", label="σ² = μ (100 − μ)"),
        Line2D([], [], marker="X", ls="", ms=9, color="black", label="released"),
        Line2D([], [], marker="o", ls="", ms=9, color=GREEN, label="confidential"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False)
    figure.suptitle("Blood lead: which means and variances are possible?", fontsize=13)
    return figure


def figure_posterior_predictive(
    fits: dict[tuple[Prior, bool], DataTree], *, size: int, seed: int
) -> Figure:
    """Predict a new person's value, without and with the bounds."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    axes = figure.subplots(1, 2)
    edges = np.arange(-60.0, 160.1, 2.5)
    for i, (prior, ax) in enumerate(zip(PRIORS, axes, strict=True)):
        for bounded, colour in ((False, ORANGE), (True, BLUE)):
            new = dp.predict_records(
                build(prior, bounded), fits[prior, bounded], size=size, random_seed=seed + i
            ).to_numpy().ravel()  # fmt: skip
            density = np.histogram(new, edges)[0] / (len(new) * np.diff(edges))
            ax.stairs(density, edges, color=colour, lw=1.8)
            ax.stairs(density, edges, color=colour, alpha=0.12, fill=True)
            if not bounded:
                below, above = (new < LOWER).mean(), (new > UPPER).mean()
        top = ax.get_ylim()[1]
        ax.set_ylim(0, 1.08 * top)
        for bound in (LOWER, UPPER):
            ax.axvline(bound, color="black", lw=1, ls="--")
        ax.set_xlim(edges[0], edges[-1])
        for at, share, where in ((-30, below, "below 0"), (130, above, "above 100")):
            ax.text(at, 0.72 * top, f"{share:.1%}\n{where}", color=ORANGE,
                    ha="center", va="center", fontsize=11)  # fmt: skip
        ax.set_title(f"{prior} prior", fontsize=11)
        ax.set_xlabel("blood lead of a new person (µg/dl)")
    axes[0].set_ylabel("posterior predictive density")
    figure.legend(
        handles=[
            Patch(facecolor=ORANGE, alpha=0.7, label="without bounds, and its impossible shares"),
            Patch(facecolor=BLUE, alpha=0.7, label="with the bounds: nothing outside [0, 100]"),
            Line2D([], [], color="black", lw=1, ls="--", label="public bounds"),
        ],
        loc="outside lower center",
        ncols=3,
        frameon=False,
    )
    figure.suptitle("What the released mean and variance predict", fontsize=13)
    return figure


def figure_side_by_side(idata: DataTree) -> Figure:
    """Confidential, naive and our posterior (flat prior, ours with the bounds)."""
    figure = Figure(figsize=(11, 5.4), layout="constrained")
    axes = figure.subplots(2, 2, sharex="col", height_ratios=[4, 1])
    exact = {
        "naive": (ClosedForm.given("flat", *RELEASED), ORANGE, "--"),
        "confidential": (ClosedForm.given("flat", *CONFIDENTIAL), GREEN, "-"),
    }
    mu, sigma2 = draws_of(idata)
    columns = [
        ("mean μ (µg/dl)", mu, lambda c, x: c.mu.pdf(x), lambda c, u: c.mu.ppf(u),
         (0.0, 80.0)),
        ("standard deviation σ (µg/dl)", np.sqrt(sigma2), ClosedForm.density_of_sigma,
         lambda c, u: np.sqrt(c.sigma2.ppf(u)), (0.0, 70.0)),
    ]  # fmt: skip
    for (label, ours, density, quantile, limits), (top, bottom) in zip(
        columns, axes.T, strict=True
    ):
        x = np.linspace(limits[0] + 1e-6, limits[1], 800)
        edges = np.arange(limits[0], limits[1] + 1, 2.0)
        top.hist(ours, edges, density=True, color=BLUE, alpha=0.3)
        top.hist(ours, edges, density=True, color=BLUE, histtype="step")
        intervals = [(np.quantile(ours, [0.025, 0.5, 0.975]), BLUE)]
        for posterior, colour, style in exact.values():
            top.plot(x, density(posterior, x), color=colour, ls=style, lw=2)
            intervals.append((quantile(posterior, np.array([0.025, 0.5, 0.975])), colour))
        for height, ((low, median, high), colour) in enumerate(intervals):
            bottom.plot([low, high], [height, height], color=colour, lw=3, solid_capstyle="butt")
            bottom.plot(median, height, "o", color=colour, mec="white", ms=7)
        top.set_ylim(bottom=0)
        bottom.set_xlim(*limits)
        bottom.set_xlabel(label)
        _plain(bottom, ["ours", *exact])
    axes[0, 0].set_ylabel("posterior density (per µg/dl)")
    handles = [
        Line2D([], [], color=GREEN, lw=2, label="confidential: the true mean and variance"),
        Line2D(
            [], [], color=ORANGE, lw=2, ls="--", label="naive: the released ones, noise ignored"
        ),
        Patch(facecolor=BLUE, alpha=0.5, label="ours: the released ones, with noise and bounds"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle("Ignoring the noise is confident and wrong (flat prior; bars: median and 95% "
                    "interval)", fontsize=13)  # fmt: skip
    return figure


def _plain(ax: Axes, names: list[str]) -> None:
    """Make an axis of labelled lines out of one."""
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(-0.6, len(names) - 0.4)
    ax.tick_params(axis="y", length=0)
    for side in ("left", "right", "top"):
        ax.spines[side].set_visible(False)


def main(argv: Sequence[str] | None = None) -> None:
    """Sample the four posteriors, print the table, write the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m pymc_dp.examples.blood_lead",
        description="Blood lead of 43 policemen from a private mean and variance.",
    )
    parser.add_argument("--output", type=Path, default=Path("blood_lead_output"), metavar="DIR",
                        help="folder for the figures (default: %(default)s)")  # fmt: skip
    parser.add_argument("--draws", type=int, default=10_000, metavar="N",
                        help="draws of each of the four chains (default: %(default)s)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, metavar="S",
                        help="random seed (default: %(default)s)")  # fmt: skip
    args = parser.parse_args(argv)

    console = Console()
    if not console.is_terminal:
        console = Console(width=100)
    scales = [s / e for s, e in zip(SENSITIVITY, EPSILON, strict=True)]
    console.print(
        f"\n[bold]Blood lead of {N} policemen[/], each value publicly within [0, 100] µg/dl\n"
        f"                  mean   variance\n"
        f"  released     {RELEASED[0]:7.2f}   {RELEASED[1]:8.2f}   what is known\n"
        f"  noise scale  {scales[0]:7.2f}   {scales[1]:8.2f}   Laplace, ε = 0.25 for each\n"
        f"  confidential {CONFIDENTIAL[0]:7.2f}   {CONFIDENTIAL[1]:8.2f}   shown to compare with; "
        f"never used by our analysis\n",
        highlight=False,
    )
    fits = {
        (prior, bounded): dp.sample(
            build(prior, bounded),
            draws=args.draws,
            chains=4,
            random_seed=args.seed + 2 * i + bounded,
            progressbar=False,
        )
        for i, prior in enumerate(PRIORS)
        for bounded in (False, True)
    }
    console.print()
    console.print(make_table(fits), highlight=False)

    args.output.mkdir(parents=True, exist_ok=True)
    figures = {
        "feasible_region.png": figure_feasible_region(fits),
        "posterior_predictive.png": figure_posterior_predictive(fits, size=20, seed=args.seed),
        "side_by_side.png": figure_side_by_side(fits["flat", True]),
    }
    console.print("\nWritten:")
    for name, figure in figures.items():
        path = args.output / name
        figure.savefig(path, dpi=150)
        console.print(f"  {path}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
