"""Fifty hospitals: noisy means of clamped values, partial pooling.

Each of fifty hospitals publishes the mean of its patients' systolic blood pressure, of values
clamped to a public range, with Laplace noise: the smaller the hospital, the larger the noise. The
data are simulated, so that the truth is known.

Three answers are set side by side. Without pooling, each published mean has an interval of its own,
for noise and sampling. The naive hierarchy takes the published means for exact: noise looks like
differences between hospitals. Ours is the same hierarchy with the patients as what is confidential,
clamped and released; they are integrated out of all hospitals at once.

Run it with ``python3 run.py example hospitals [--output DIR] [--draws N] [--seed S]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from matplotlib.figure import Figure
from rich.table import Table
from xarray import DataTree

import pymc_dp as dp
import report

HOSPITALS = 50
LOWER, UPPER = 90.0, 180.0  # mmHg, to which the curator clamped each value
EPSILON = 1.0  # of the mean of each hospital; nobody is a patient of two
MEAN, BETWEEN, WITHIN = 130.0, 5.0, 17.0
COLOURS = {"no pooling": report.GREY, "naive": report.ORANGE, "private": report.BLUE}
LABELS = {
    "no pooling": "no pooling: each published mean by itself",
    "naive": "naive hierarchy: published means taken for exact",
    "private": "hierarchy with the noise modelled",
}


@dataclass(frozen=True)
class Study:
    """Simulated hospitals: whose patient each is, and what was released."""

    hospital: np.ndarray
    truth: np.ndarray
    release: np.ndarray

    @property
    def sizes(self) -> np.ndarray:
        """The number of patients of each hospital."""
        return np.bincount(self.hospital, minlength=self.truth.size)

    @property
    def mechanism(self) -> dp.LaplaceMechanism:
        """The noise: exchanging one patient moves the mean of n by (UPPER - LOWER) / n at most."""
        return dp.LaplaceMechanism.from_epsilon(
            np.full(self.sizes.size, EPSILON), (UPPER - LOWER) / self.sizes
        )


def simulate(hospitals: int, seed: int) -> Study:
    """Draw hospitals, patients and the noise of the release."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(20, 80, hospitals)
    truth = rng.normal(MEAN, BETWEEN, hospitals)
    hospital = np.repeat(np.arange(hospitals), sizes)
    clamped = rng.normal(truth[hospital], WITHIN).clip(LOWER, UPPER)
    noise = rng.laplace(0, (UPPER - LOWER) / sizes / EPSILON)
    return Study(hospital, truth, np.bincount(hospital, clamped) / sizes + noise)


def build(study: Study, analysis: str) -> pm.Model:
    """Write the hierarchy for one of the analyses."""
    coords = {"hospital": np.arange(study.truth.size), "patient": np.arange(study.hospital.size)}
    with pm.Model(coords=coords) as model:
        mean = pm.Normal("mean", 130, 20)
        between = pm.HalfNormal("between", 10)
        within = pm.Normal("within", 17, 2)  # known from other studies
        offset = pm.Normal("offset", dims="hospital")
        theta = pm.Deterministic("theta", mean + between * offset, dims="hospital")
        if analysis == "naive":
            sd = within / np.sqrt(study.sizes)
            pm.Normal("release", theta, sd, observed=study.release, dims="hospital")
            return model
        pressure = pm.Normal("pressure", theta[study.hospital], within, dims="patient")
        clamped = pressure.clip(LOWER, UPPER)
        total = pt.zeros(study.truth.size)[study.hospital].inc(clamped)
        dp.PrivateObservation(
            "release", total / study.sizes, study.mechanism, observed=study.release, dims="hospital"
        )
    return model


def fit(study: Study, draws: int, seed: int) -> dict[str, DataTree]:
    """Sample the two hierarchies."""
    naive, private = build(study, "naive"), build(study, "private")
    size: dict[str, Any] = {
        "draws": draws,
        "tune": draws,
        "chains": 2,
        "random_seed": seed,
        "progressbar": False,
    }
    return {"naive": pm.sample(model=naive, **size), "private": dp.sample(private, **size)}


def intervals(study: Study, fits: dict[str, DataTree]) -> dict[str, np.ndarray]:
    """Return the lower end, the middle and the upper end for each hospital, at 90%."""
    noise = np.sqrt(2) * (UPPER - LOWER) / np.sqrt(study.sizes)
    spread = np.hypot(WITHIN, noise) / np.sqrt(study.sizes)
    found = {"no pooling": study.release + 1.645 * np.outer([-1, 0, 1], spread)}
    return found | {k: report.ends(report.draws(v, "theta"), 0.9) for k, v in fits.items()}


def summary(study: Study, fits: dict[str, DataTree]) -> Table:
    """Tabulate errors, coverage and the spread between hospitals."""
    rows = []
    for analysis, (low, middle, high) in intervals(study, fits).items():
        error = np.sqrt(np.mean((middle - study.truth) ** 2))
        holds = report.covered(study.truth, low, high)
        between = "-"
        if analysis in fits:
            ends = report.ends(fits[analysis]["posterior"]["between"], 0.9, axis=None)
            between = report.interval(*ends, ".1f")
        rows.append((analysis, error, np.mean(high - low), f"{holds:.0%}", between))
    headings = ("", "error, mmHg", "90% interval, width", "holds the truth", "between hospitals")
    return report.table("", headings, rows, number=".1f")


def forest(study: Study, fits: dict[str, DataTree]) -> Figure:
    """Draw the intervals of all hospitals, the smallest at the top."""
    found, order = intervals(study, fits), np.argsort(-study.sizes, kind="stable")
    figure = report.figure(1, len(found), (11, 0.13 * order.size + 1.6), sharex=True, sharey=True)
    rows = np.arange(order.size)
    for ax, (analysis, (low, middle, high)) in zip(figure.axes, found.items(), strict=True):
        ax.hlines(rows, low[order], high[order], color=COLOURS[analysis], lw=2, alpha=0.6)
        ax.plot(middle[order], rows, "o", ms=4, color=COLOURS[analysis])
        ax.plot(study.truth[order], rows, "|", ms=8, color="black", label="truth")
        ax.axvline(MEAN, color="black", lw=0.8, ls=":")
        ax.set_title(LABELS[analysis], fontsize=9, loc="left")
        ax.set(xlabel="systolic pressure, mmHg", xlim=(MEAN - 45, MEAN + 45), ylim=(-1, order.size))
    figure.axes[0].set_yticks(rows[::5], [f"n = {n}" for n in study.sizes[order][::5]])
    figure.axes[0].legend(frameon=False, loc="upper left")
    return figure


def main(argv: Sequence[str] | None = None) -> tuple[Study, dict[str, DataTree]]:
    """Simulate, sample, print the table, write the figure."""
    args = report.options(__doc__, argv, hospitals=HOSPITALS, draws=500,
                          output=Path("hospitals_output"))  # fmt: skip
    study = simulate(args.hospitals, args.seed)
    report.say(
        f"{args.hospitals} hospitals of {study.sizes.min()} to {study.sizes.max()} patients: each "
        f"mean with ε = {EPSILON:g}, truly {BETWEEN:g} mmHg apart"
    )
    with report.timed("Both hierarchies"):
        fits = fit(study, args.draws, args.seed)
    report.say(summary(study, fits))
    report.write(args.output, hospitals=forest(study, fits))
    return study, fits


if __name__ == "__main__":
    main()
