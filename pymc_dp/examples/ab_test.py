"""An A/B test whose revenue is confidential: whether B is better, with and without the noise.

Of each arm of a test, the number of visitors and the revenue are published, with Laplace noise;
what a visitor spends was clamped to a public cap. The data are simulated, so that the truth is
known. Few visitors buy; how many is not published. The uplift is that of the expected clamped
spend of a visitor, B over A: a number and a sum tell of that, and of conversion and the level of a
spend only by what earlier tests say of these.

Three answers are set side by side: the noise modelled; the published numbers taken for exact; the
confidential numbers, which only the curator has. The first has visitors as records, a Bernoulli
and a LogNormal each, which are integrated out; sums of so many have a Normal law, by which the
others weigh draws from the prior.

Run it with ``python -m pymc_dp.examples.ab_test [--output DIR] [--draws N] [--seed S]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from matplotlib.figure import Figure
from scipy import stats

import pymc_dp as dp
from pymc_dp.examples import report

CAP = 100.0  # to which what a visitor spends was clamped
EPSILON = np.array([1.0, 0.2])  # of each number of visitors, and of each revenue
VISITORS, CONVERSION = 2_000, np.array([0.060, 0.066])
LEVEL, SPREAD = np.log([25.0, 27.0]), 0.8  # of the logarithm of what a buyer spends
PRIOR = {"conversion": (6.0, 94.0), "level": (np.log(25.0), 0.2)}  # of earlier tests
BOUNDS = np.array([1.0, CAP])  # of what one visitor adds
COLOURS = {"modelled": report.BLUE, "ignored": report.ORANGE, "confidential": report.GREEN}


class Study(NamedTuple):
    """The number of visitors and the clamped revenue of each arm, confidential and published."""

    confidential: np.ndarray
    published: np.ndarray


def simulate(seed: int) -> Study:
    """Draw visitors, what they spend, and the noise of the releases."""
    rng = np.random.default_rng(seed)
    n = rng.poisson(VISITORS, 2)
    buyers = rng.binomial(n, CONVERSION)
    each = zip(LEVEL, buyers, strict=True)
    spent = [rng.lognormal(level, SPREAD, k).clip(0, CAP).sum() for level, k in each]
    confidential = np.array([n, spent])
    return Study(confidential, confidential + rng.laplace(0, (BOUNDS / EPSILON)[:, None], (2, 2)))


def build(study: Study) -> pm.Model:
    """Write the model with the noise."""
    with pm.Model(coords={"arm": ["A", "B"]}) as model:
        n = pm.Poisson("visitors", VISITORS, dims="arm")
        conversion = pm.Beta("conversion", *PRIOR["conversion"], dims="arm")
        level = pm.Normal("level", *PRIOR["level"], dims="arm")
        revenue = []
        for j, arm in enumerate("AB"):
            buys = pm.Bernoulli(f"buys_{arm}", conversion[j], shape=n[j])
            spend = pm.LogNormal(f"spend_{arm}", level[j], SPREAD, shape=n[j])
            revenue.append((buys * spend).clip(0, CAP).sum())
        for name, value, noise, observed in zip(
            ("number", "revenue"), (n, pt.stack(revenue)), BOUNDS / EPSILON, study.published,
            strict=True,
        ):  # fmt: skip
            dp.PrivateObservation(
                name, value, dp.LaplaceMechanism(noise), observed=observed, dims="arm"
            )
    return model


def moments(conversion: np.ndarray, level: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the variance of the clamped spend of a visitor."""
    end = (np.log(CAP) - level) / SPREAD
    first, second = (
        np.exp(k * level + (k * SPREAD) ** 2 / 2) * stats.norm.cdf(end - k * SPREAD)
        + CAP**k * stats.norm.sf(end)
        for k in (1, 2)
    )
    return conversion * first, conversion * second - (conversion * first) ** 2


def taken_for_exact(numbers: np.ndarray, draws: int, seed: int) -> np.ndarray:
    """Draw the mean spend of a visitor of each arm given numbers and sums without noise."""
    rng = np.random.default_rng(seed)
    conversion = rng.beta(*PRIOR["conversion"], (200_000, 2))
    mean, variance = moments(conversion, rng.normal(*PRIOR["level"], (200_000, 2)))
    n, revenue = numbers
    weight = stats.norm.pdf(revenue, n * mean, np.sqrt(n * variance))
    return np.stack([rng.choice(m, draws, p=w / w.sum())
                     for m, w in zip(mean.T, weight.T, strict=True)], axis=-1)  # fmt: skip


def fit(study: Study, draws: int, seed: int) -> dict[str, np.ndarray]:
    """Draw the uplift, B over A in percent, three ways."""
    idata = dp.sample(build(study), draws=draws, tune=draws, chains=2, random_seed=seed,
                      progressbar=False)  # fmt: skip
    own = (report.draws(idata, name) for name in ("conversion", "level"))
    found = {"modelled": moments(*own)[0]}
    found["ignored"] = taken_for_exact(study.published, 20_000, seed)
    found["confidential"] = taken_for_exact(study.confidential, 20_000, seed)
    return {name: 100 * (mean[:, 1] / mean[:, 0] - 1) for name, mean in found.items()}


def densities(uplift: dict[str, np.ndarray]) -> Figure:
    """Draw the posterior densities of the uplift, with the probability that B is better."""
    truth, _ = moments(CONVERSION, LEVEL)
    labels = ("noise modelled", "noise ignored", "confidential numbers")
    figure = report.figure(1, 1, (8, 4.5))
    [ax] = figure.axes
    grid = np.linspace(-60, 120, 400)
    for (name, values), label in zip(uplift.items(), labels, strict=True):
        density = stats.gaussian_kde(values)(grid)
        better = f"{label}: P(B better) = {(values > 0).mean():.2f}"
        ax.plot(grid, density, color=COLOURS[name], lw=2, label=better)
        ax.fill_between(grid, density, where=grid >= 0, color=COLOURS[name], alpha=0.12, lw=0)
    ax.axvline(0, color="black", lw=0.8)
    ax.axvline(100 * (truth[1] / truth[0] - 1), color="black", lw=1, ls="--", label="truth")
    ax.set(
        xlabel="revenue per visitor, B over A, %", ylabel="posterior density", xlim=grid[[0, -1]]
    )
    ax.set_ylim(0, 1.5 * ax.get_ylim()[1])  # room for the legend
    ax.legend(frameon=False, loc="upper right")
    return figure


def main(argv: Sequence[str] | None = None) -> tuple[Study, dict[str, np.ndarray]]:
    """Simulate, sample, print the table, write the figure."""
    args = report.options("ab_test", __doc__, argv, draws=250, output=Path("ab_test_output"))
    study = simulate(args.seed)
    rows = [(name, *own.ravel()) for name, own in study._asdict().items()]
    headings = ("", "visitors A", "visitors B", "revenue A", "revenue B")
    report.say(report.table("", headings, rows, number=",.0f"))
    with report.timed("Noise modelled"):
        uplift = fit(study, args.draws, args.seed)
    rows = [
        (name, report.interval(*report.ends(own, 0.9), "+.0f"), f"{(own > 0).mean():.2f}")
        for name, own in uplift.items()
    ]
    report.say(report.table("", ("noise", "uplift, % [90%]", "P(B better)"), rows))
    report.write(args.output, ab_test=densities(uplift))
    return study, uplift


if __name__ == "__main__":
    main()
