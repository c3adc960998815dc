"""An A/B test whose revenue is confidential: whether B is better, with and without the noise.

Of each arm of a test, the number of visitors and the revenue are published, with Laplace noise;
what a visitor spends was clamped to a public cap. Few visitors buy; how many is not published. The
data are simulated, so that the truth is known. What is asked is P(B better): how probable it is
that the expected clamped spend of a visitor of B is above that of a visitor of A.

Three models with the same priors answer it. The noise modelled: visitors are records, a Bernoulli
and a LogNormal each, of unknown number; they are integrated out. The noise ignored: the published
numbers are taken for exact, and a sum of so many has a Normal law. The confidential data, which
only the curator has: buyers are Binomial, and what each of them spends is LogNormal.

Run it with ``python3 run.py example ab_test [--output DIR] [--draws N] [--seed S]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from matplotlib.figure import Figure
from scipy import stats
from xarray import DataTree

import pymc_dp as dp
import report

CAP = 100.0  # to which what a visitor spends was clamped
EPSILON = np.array([1.0, 0.2])  # of each number of visitors, and of each revenue
VISITORS, CONVERSION = 2_000, np.array([0.060, 0.066])
LEVEL, SPREAD = np.log([25.0, 27.0]), 0.8  # of the logarithm of what a buyer spends
PRIOR = {"conversion": (6.0, 94.0), "level": (np.log(25.0), 0.2)}  # of earlier tests
BOUNDS = np.array([1.0, CAP])  # of what one visitor adds
LABELS = {
    "modelled": ("noise modelled", report.BLUE),
    "ignored": ("noise ignored", report.ORANGE),
    "confidential": ("confidential data", report.GREEN),
}


class Study(NamedTuple):
    """What is confidential, of each arm or each buyer, and what was published of each arm."""

    visitors: np.ndarray
    buyers: np.ndarray
    arm: np.ndarray  # of each buyer
    spend: np.ndarray
    published: np.ndarray  # the numbers of visitors, and the revenues

    @property
    def confidential(self) -> np.ndarray:
        """The numbers of visitors and the clamped revenues without noise."""
        revenue = np.bincount(self.arm, self.spend.clip(0, CAP), minlength=2)
        return np.array([self.visitors, revenue])


def simulate(seed: int) -> Study:
    """Draw visitors, what they spend, and the noise of the releases."""
    rng = np.random.default_rng(seed)
    visitors = rng.poisson(VISITORS, 2)
    buyers = rng.binomial(visitors, CONVERSION)
    arm = np.repeat([0, 1], buyers)
    study = Study(visitors, buyers, arm, rng.lognormal(LEVEL[arm], SPREAD), np.zeros(()))
    noise = rng.laplace(0, (BOUNDS / EPSILON)[:, None], (2, 2))
    return study._replace(published=study.confidential + noise)


def moments(conversion: Any, level: Any) -> tuple[pt.TensorVariable, pt.TensorVariable]:
    """Write the mean and the variance of the clamped spend of a visitor."""
    end = (np.log(CAP) - level) / SPREAD
    first, second = (
        pt.exp(k * level + (k * SPREAD) ** 2 / 2) * pm.math.invprobit(end - k * SPREAD)
        + CAP**k * pm.math.invprobit(-end)
        for k in (1, 2)
    )
    return conversion * first, conversion * second - (conversion * first) ** 2


def build(study: Study, analysis: str = "modelled") -> pm.Model:
    """Write the model of one of the three analyses."""
    with pm.Model(coords={"arm": ["A", "B"]}) as model:
        conversion = pm.Beta("conversion", *PRIOR["conversion"], dims="arm")
        level = pm.Normal("level", *PRIOR["level"], dims="arm")
        mean, variance = moments(conversion, level)
        pm.Deterministic("per_visitor", mean, dims="arm")
        if analysis == "confidential":
            pm.Binomial("buyers", study.visitors, conversion, observed=study.buyers, dims="arm")
            pm.LogNormal("spend", level[study.arm], SPREAD, observed=study.spend)
            return model
        if analysis == "ignored":
            number, revenue = study.published
            sd = pt.sqrt(number * variance)
            pm.Normal("revenue", number * mean, sd, observed=revenue, dims="arm")
            return model
        n = pm.Poisson("visitors", VISITORS, dims="arm")
        revenues = []
        for j, arm in enumerate("AB"):
            buys = pm.Bernoulli(f"buys_{arm}", conversion[j], shape=n[j])
            spend = pm.LogNormal(f"spend_{arm}", level[j], SPREAD, shape=n[j])
            revenues.append((buys * spend).clip(0, CAP).sum())
        of_number, of_revenue = map(dp.LaplaceMechanism, BOUNDS / EPSILON)
        number, revenue = study.published
        dp.PrivateObservation("number", n, of_number, observed=number, dims="arm")
        dp.PrivateObservation(
            "revenue", pt.stack(revenues), of_revenue, observed=revenue, dims="arm"
        )
    return model


def fit(study: Study, draws: int, seed: int) -> dict[str, DataTree]:
    """Sample the three models."""
    size: dict[str, Any] = {"draws": draws, "tune": draws, "chains": 2, "random_seed": seed}
    return {
        name: (dp if name == "modelled" else pm).sample(
            model=build(study, name), progressbar=False, **size
        )
        for name in LABELS
    }


def difference(idata: DataTree) -> np.ndarray:
    """Return draws of the expected clamped spend of a visitor, of B less that of A."""
    return np.diff(report.draws(idata, "per_visitor"))[:, 0]


def densities(fits: dict[str, DataTree]) -> Figure:
    """Draw the posterior densities of the difference, with the probability that B is better."""
    truth = moments(CONVERSION, LEVEL)[0].eval()
    figure = report.figure(1, 1, (8, 4.5))
    [ax] = figure.axes
    grid = np.linspace(-1.5, 2.5, 400)
    for name, idata in fits.items():
        label, colour = LABELS[name]
        found = difference(idata)
        density = stats.gaussian_kde(found, 0.3)(grid)
        better = f"{label}: P(B better) = {(found > 0).mean():.2f}"
        ax.plot(grid, density, color=colour, lw=2, label=better)
        ax.fill_between(grid, density, where=grid >= 0, color=colour, alpha=0.1, lw=0)
    ax.axvline(0, color="black", lw=0.8)
    ax.axvline(truth[1] - truth[0], color="black", lw=1, ls="--", label="truth")
    ax.set(xlabel="revenue per visitor, B less A", ylabel="posterior density", xlim=grid[[0, -1]])
    ax.set_ylim(0, 1.4 * ax.get_ylim()[1])  # room for the legend
    ax.legend(frameon=False, loc="upper right")
    return figure


def main(argv: Sequence[str] | None = None) -> tuple[Study, dict[str, DataTree]]:
    """Simulate, sample, print the tables, write the figure."""
    args = report.options(__doc__, argv, draws=1000, output=Path("ab_test_output"))
    study = simulate(args.seed)
    rows = [
        ("confidential", *study.confidential.ravel(), *study.buyers),
        ("published", *study.published.ravel(), "-", "-"),
    ]
    what = ("visitors", "revenue", "buyers")
    headings = ("", *(f"{name} {arm}" for name in what for arm in "AB"))
    report.say(report.table("", headings, rows, number=",.0f"))
    with report.timed("The three models"):
        fits = fit(study, args.draws, args.seed)
    rows = []
    for name, idata in fits.items():
        found = difference(idata)
        ends = report.interval(*report.ends(found, 0.9), "+.2f")
        better = f"{(found > 0).mean():.2f}"
        rows.append((LABELS[name][0], ends, better, *report.convergence(idata, "per_visitor")))
    headings = ("", "per visitor, B less A [90%]", "P(B better)", "R-hat", "ESS")
    report.say(report.table("", headings, rows))
    report.write(args.output, ab_test=densities(fits))
    return study, fits


if __name__ == "__main__":
    main()
