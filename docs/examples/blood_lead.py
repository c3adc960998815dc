"""Blood lead of 43 policemen, from a mean and a variance released with Laplace noise.

The blood-lead concentrations of 43 Egyptian policemen, known to lie within 0 and 100 µg/dl, have
mean 32.08 and variance 288.32. Suppose that only a private version of the two numbers is
published, each with privacy loss ε = 0.25: 34.3027 and 2224.8 (Kazan & Reiter). The posterior of
the population's mean and variance is computed under a flat and under an informative prior, with
and without the public bounds, and set beside two closed forms: the analysis of the confidential
statistics, and the naive one, which takes the released statistics for exact.

Run it with ``python3 run.py example [--output DIR] [--draws N] [--seed S]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import batched
from pathlib import Path
from typing import Literal

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from matplotlib.figure import Figure
from rich.table import Table
from scipy import stats
from xarray import DataTree

import pymc_dp as dp
import report
from report import BLUE, GREEN, ORANGE

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

    @property
    def sigma(self):
        """Law of the standard deviation."""
        return stats.gengamma(self.nu / 2, -2, scale=np.sqrt(self.nu * self.scale2 / 2))

    def probability_feasible(self, points: int = 20_000) -> float:
        """Posterior probability that mu and sigma2 are possible for values within the bounds."""
        sigma2 = self.sigma2.ppf(_midpoints(points))
        half = np.sqrt(np.maximum(WIDTH**2 / 4 - sigma2, 0))
        sd = np.sqrt(sigma2 / self.kappa)
        ends = [stats.norm.cdf((MIDDLE + s * half - self.location) / sd) for s in (-1, 1)]
        return float(np.mean(ends[1] - ends[0]))


def _midpoints(points: int) -> np.ndarray:
    return (np.arange(points) + 0.5) / points


def draws_of(idata: DataTree) -> tuple[np.ndarray, np.ndarray]:
    """Return the draws of mu and sigma2 of all chains."""
    return report.draws(idata, "mu"), report.draws(idata, "sigma2")


def row(label: str, posterior: ClosedForm | DataTree) -> list[str]:
    """Summarise draws, or the quantiles of a closed form, as a row of the table."""
    if isinstance(posterior, ClosedForm):
        u = _midpoints(20_000)
        mu, sigma2 = posterior.mu.ppf(u), posterior.sigma2.ppf(u)
        last = [f"{posterior.probability_feasible():.3f}"]
    else:
        mu, sigma2 = draws_of(posterior)
        last = [
            f"{feasible(mu, sigma2).mean():.3f}",
            *report.convergence(posterior, "mu", "sigma2"),
        ]
    cells = []
    for values in (mu, np.sqrt(sigma2), sigma2):
        ends = report.ends(values, 0.95)
        number = ",.0f" if ends[-1] >= 1000 else ",.1f"
        moments = f"{values.mean():{number}} ± {values.std(ddof=1):{number}}"
        interval = report.interval(*ends, number).replace(" ", "\n", 1)
        cells.append(f"{interval}\n{moments}")
    return [label, *cells, *last]


def make_table(fits: dict[tuple[Prior, bool], DataTree]) -> Table:
    """Set the four posteriors beside the confidential and the naive analysis."""
    rows = []
    for prior in PRIORS:
        rows.append([f"[bold]{prior} prior[/]"])
        for label, posterior in (
            ("confidential", ClosedForm.given(prior, *CONFIDENTIAL)),
            ("naive", ClosedForm.given(prior, *RELEASED)),
            ("ours", fits[prior, False]),
            ("ours, bounds", fits[prior, True]),
        ):
            rows.append(row(label, posterior))
    return report.table(
        "Posteriors of the population's mean μ, sd σ and variance σ²",
        ("", "μ (µg/dl)", "σ (µg/dl)", "σ²", "P(fea-\nsible)", "R-hat", "ESS"),
        rows,
        "Each cell: median, central 95% interval, mean ± sd. P(feasible): probability that values "
        "within [0, 100] can have this μ and σ². Where it was sampled, R-hat and bulk ESS are "
        "those of the worse of μ and σ².",
    )


def figure_feasible_region(fits: dict[tuple[Prior, bool], DataTree]) -> Figure:
    """Draws of (mu, sigma2), those that no data within the bounds can have in another colour."""
    figure = report.figure(2, 2, (10, 8.4), "Blood lead: which means and variances are possible?",
                           sharex=True, sharey=True)  # fmt: skip
    x = np.linspace(LOWER, UPPER, 400)
    cap = (x - LOWER) * (UPPER - x)
    for (prior, bounded), ax in zip(fits, figure.axes, strict=True):
        mu, sigma2 = draws_of(fits[prior, bounded])
        inside = feasible(mu, sigma2)
        shown = np.arange(len(mu)) % max(1, len(mu) // 6000) == 0
        ax.fill_between(x, 0, cap, color=BLUE, alpha=0.08, lw=0)
        for which, colour, label in (
            (inside, BLUE, "draw within the region"),
            (~inside, ORANGE, "draw outside"),
        ):
            ax.plot(mu[shown & which], sigma2[shown & which], "o", ms=2, mew=0, color=colour,
                    alpha=0.25, rasterized=True)  # fmt: skip
            ax.plot([], [], "o", color=colour, label=label)
        ax.plot(x, cap, color="black", lw=1.2, label="σ² = μ (100 − μ)")
        ax.plot(*RELEASED, "X", ms=11, mfc="black", mec="white", label="released")
        ax.plot(*CONFIDENTIAL, "o", ms=10, mfc=GREEN, mec="white", label="confidential")
        constraint = "with the bounds [0, 100]" if bounded else "without bounds"
        ax.set_title(f"{prior} prior, {constraint}", fontsize=11)
        ax.text(0.98, 0.97, f"{1 - inside.mean():.0%} of the draws are impossible",
                transform=ax.transAxes, ha="right", va="top")  # fmt: skip
        ax.set_yscale("function", functions=(lambda v: np.sqrt(np.maximum(v, 0)), np.square))
        ax.set_yticks([0, 100, 500, 1000, 2000, 3000, 5000, 8000])
        ax.set(xlim=(-15, 105), ylim=(0, 9000), xlabel="mean μ (µg/dl)",
               ylabel="variance σ² ((µg/dl)², square-root scale)")  # fmt: skip
        ax.label_outer()
    report.legend(figure)
    return figure


def figure_posterior_predictive(
    fits: dict[tuple[Prior, bool], DataTree], *, size: int, seed: int
) -> Figure:
    """Predict a new person's value, without and with the bounds."""
    figure = report.figure(1, 2, (11, 4.6), "What the released mean and variance predict")
    edges = np.arange(-60.0, 160.1, 2.5)
    for i, (prior, ax) in enumerate(zip(PRIORS, figure.axes, strict=True)):
        for bounded, colour, label in (
            (False, ORANGE, "without bounds, and its impossible shares"),
            (True, BLUE, "with the bounds: nothing outside [0, 100]"),
        ):
            new = dp.predict_records(
                build(prior, bounded), fits[prior, bounded], size=size, random_seed=seed + i
            ).to_numpy().ravel()  # fmt: skip
            density = np.histogram(new, edges)[0] / (len(new) * np.diff(edges))
            ax.stairs(density, edges, color=colour, lw=1.8, label=label)
            ax.stairs(density, edges, color=colour, alpha=0.12, fill=True)
            if not bounded:
                for at, outside, where in (
                    (-30, new < LOWER, "below 0"),
                    (130, new > UPPER, "above 100"),
                ):
                    ax.text(at, 0.67, f"{outside.mean():.1%}\n{where}", color=ORANGE, fontsize=11,
                            ha="center", transform=ax.get_xaxis_transform())  # fmt: skip
        for bound in (LOWER, UPPER):
            ax.axvline(bound, color="black", lw=1, ls="--", label="public bounds")
        ax.set_title(f"{prior} prior", fontsize=11)
        ax.set(xlim=(edges[0], edges[-1]), xlabel="blood lead of a new person (µg/dl)")
    figure.axes[0].set_ylabel("posterior predictive density")
    report.legend(figure)
    return figure


def figure_side_by_side(idata: DataTree) -> Figure:
    """Confidential, naive and our posterior (flat prior, ours with the bounds)."""
    figure = report.figure(
        2, 2, (11, 5.4), "Ignoring the noise is confident and wrong (flat prior; bars: median and "
        "95% interval)", sharex="col", height_ratios=[4, 1],
    )  # fmt: skip
    naive, confidential = (ClosedForm.given("flat", *s) for s in (RELEASED, CONFIDENTIAL))
    mu, sigma2 = draws_of(idata)
    panels = (
        ("mean μ (µg/dl)", mu, naive.mu, confidential.mu, 80.0),
        ("standard deviation σ (µg/dl)", np.sqrt(sigma2), naive.sigma, confidential.sigma, 70.0),
    )
    tops, bottoms = batched(figure.axes, 2)
    for top, bottom, panel in zip(tops, bottoms, panels, strict=True):
        label, ours, published, true, highest = panel
        x = np.linspace(1e-6, highest, 800)
        edges = np.arange(0, highest + 1, 2.0).tolist()
        top.hist(ours, edges, density=True, histtype="stepfilled", fc=(BLUE, 0.3), ec=BLUE,
                 label="ours: the released ones, with noise and bounds")  # fmt: skip
        intervals = [(report.ends(ours, 0.95), BLUE)]
        for law, colour, style, name in (
            (published, ORANGE, "--", "naive: the released ones, noise ignored"),
            (true, GREEN, "-", "confidential: the true mean and variance"),
        ):
            top.plot(x, law.pdf(x), color=colour, ls=style, lw=2, label=name)
            intervals.append((law.ppf([0.025, 0.5, 0.975]), colour))
        for height, ((low, median, high), colour) in enumerate(intervals):
            bottom.plot([low, high], [height, height], color=colour, lw=3, solid_capstyle="butt")
            bottom.plot(median, height, "o", color=colour, mec="white", ms=7)
        top.set_ylim(bottom=0)
        bottom.set(xlim=(0, highest), xlabel=label, ylim=(-0.6, 2.6))
        bottom.set_yticks(range(3), ("ours", "naive", "confidential"))
        bottom.tick_params(axis="y", length=0)
        bottom.spines["left"].set_visible(False)
    tops[0].set_ylabel("posterior density (per µg/dl)")
    report.legend(figure)
    return figure


def main(argv: Sequence[str] | None = None) -> dict[tuple[Prior, bool], DataTree]:
    """Sample the four posteriors, print the table, write the figures."""
    args = report.options(__doc__, argv, draws=10_000, output=Path("blood_lead_output"))
    report.say(
        report.table(
            f"Blood lead of {N} policemen, each value publicly within [0, 100] µg/dl",
            ("", "mean", "variance", ""),
            (
                ("released", *RELEASED, "what is known"),
                ("noise scale", *np.divide(SENSITIVITY, EPSILON), "Laplace, ε = 0.25 for each"),
                ("confidential", *CONFIDENTIAL, "to compare with; never used by our analysis"),
            ),
        )
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
    report.say(make_table(fits))
    report.write(
        args.output,
        feasible_region=figure_feasible_region(fits),
        posterior_predictive=figure_posterior_predictive(fits, size=20, seed=args.seed),
        side_by_side=figure_side_by_side(fits["flat", True]),
    )
    return fits


if __name__ == "__main__":
    main()
