"""Logistic and Poisson regression from four noisy sums.

Two studies, both simulated. Of every person a covariate x and a response y are confidential: in
one study y says whether the person has a condition, in the other how often they saw a doctor. Of
each study the sums of y, x y, x and x² are published, of values clamped to a public range, with
Laplace noise. Neither likelihood is a function of such sums: the people have to stay in the model,
and `RecordMetropolis` draws them along with the coefficients.

Three posteriors are set side by side: from the confidential data, which nobody but the curator
has; from the release, its noise modelled; and the naive one, which takes the published sums for
the true ones. The naive one needs the law of four exact sums. It is nearly Normal; its mean and
covariance are computed by quadrature.

Run it with ``python3 run.py example glm [--output DIR] [--draws N] [--seed S]``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import batched
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table
from scipy import special, stats
from xarray import DataTree

import pymc_dp as dp
import report
from report import COLOURS

PEOPLE = 1000
EPSILON = 0.25  # of each of the four sums: a total of one
PRIOR_SD = 2.0  # of both coefficients
LEVEL = 0.9  # of the intervals
NODES = 40

COEFFICIENTS = ("intercept", "slope")
LABELS = {
    "confidential": "the confidential data",
    "naive": "naive: the published sums taken for the true ones",
    "private": "the published sums, their noise modelled",
}


def _normal_covariate(**kwargs):
    mean, spread = pm.Normal("mean", 0, 1), pm.HalfNormal("spread", 1)
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    x = pm.Normal("x", mean, spread, **kwargs) if kwargs else None
    return x, mean + spread * nodes, weights / weights.sum()


def _uniform_covariate(**kwargs):
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    x = pm.Uniform("x", -1, 1, **kwargs) if kwargs else None
    return x, pt.constant(nodes), weights / weights.sum()


@dataclass(frozen=True)
class Regression:
    """A kind of regression, with the public ranges that x and y are clamped to.

    Attributes
    ----------
    title, response : str
        What it is called, and what its curve shows.
    reach : float
        x is clamped to [-reach, reach].
    most : int
        y is clamped to [0, most].
    truth : tuple of float
        Intercept and slope.
    family, inverse_link, curve : callable
        The law of y given its mean, and its mean given the linear predictor, in a model and of
        numbers.
    covariate : callable
        Declares x in a model, unless without arguments, and its parameters. Returns it with nodes
        and weights of its law.
    draw : callable
        ``(rng, n)``: confidential values of x.
    """

    title: str
    response: str
    reach: float
    most: int
    truth: tuple[float, float]
    family: Any
    inverse_link: Callable
    curve: Callable
    covariate: Callable
    draw: Callable[[np.random.Generator, int], np.ndarray]

    def terms(self, x, y) -> list:
        """Return what a person adds to each sum; of numbers or of variables of a model."""
        x, y = x.clip(-self.reach, self.reach), y.clip(0, self.most)
        return [y, x * y, x, x**2]

    def sums(self, x, y) -> list:
        """Return what is published but for the noise."""
        return [term.sum() for term in self.terms(x, y)]

    @property
    def sensitivity(self) -> np.ndarray:
        """What exchanging one person can change each sum by."""
        x, y = self.reach, self.most
        return np.array([y, 2 * x * y, 2 * x, x**2])

    @property
    def mechanism(self) -> dp.LaplaceMechanism:
        """The noise: a privacy loss for each sum, which add up."""
        return dp.LaplaceMechanism.from_epsilon([EPSILON] * 4, self.sensitivity)


REGRESSIONS = {
    "logistic": Regression(
        title="Logistic regression",
        response="probability of the condition",
        reach=2.5,
        most=1,
        truth=(-0.5, 1.0),
        family=pm.Bernoulli,
        inverse_link=pm.math.sigmoid,
        curve=special.expit,
        covariate=_normal_covariate,
        draw=lambda rng, n: rng.normal(0.3, 1.0, n),
    ),
    "poisson": Regression(
        title="Poisson regression",
        response="expected visits",
        reach=1.0,
        most=6,
        truth=(0.5, 0.8),
        family=pm.Poisson,
        inverse_link=pt.exp,
        curve=np.exp,
        covariate=_uniform_covariate,
        draw=lambda rng, n: rng.uniform(-1, 1, n),
    ),
}


@dataclass(frozen=True)
class Study:
    """Simulated people, and what was published of them."""

    kind: Regression
    x: np.ndarray
    y: np.ndarray
    release: np.ndarray


def simulate(kind: Regression, people: int, seed: int) -> Study:
    """Draw the confidential data, and release their sums."""
    rng = np.random.default_rng(seed)
    x = kind.draw(rng, people)
    intercept, slope = kind.truth
    mean = kind.curve(intercept + slope * x)
    y = pm.draw(kind.family.dist(mean), random_seed=rng)
    return Study(kind, x, y, pm.draw(kind.mechanism.dist(kind.sums(x, y)), random_seed=rng))


def moments(kind: Regression, predictor, nodes, weights):
    """Return mean and covariance of what one person adds to the sums.

    By quadrature over x; over the values of y, clamped, they are sums.
    """
    values = np.arange(kind.most + 1)
    below = pt.exp(pm.logp(kind.family.dist(kind.inverse_link(predictor)[:, None]), values[:-1]))
    chances = pt.concatenate([below, 1 - below.sum(axis=1, keepdims=True)], axis=1)
    share = (weights[:, None] * chances).ravel()
    x, y = (v.ravel() for v in pt.broadcast_arrays(nodes[:, None], pt.constant(values)[None, :]))
    terms = pt.stack(kind.terms(x, y))
    mean = terms @ share
    centred = terms - mean[:, None]
    return mean, (centred * share) @ centred.T


def build(study: Study, analysis: str) -> pm.Model:
    """Write the model of one of the three analyses."""
    kind, people = study.kind, study.x.size
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0, PRIOR_SD)
        slope = pm.Normal("slope", 0, PRIOR_SD)
        if analysis == "naive":
            _, nodes, weights = kind.covariate()
            mean, covariance = moments(kind, intercept + slope * nodes, nodes, weights)
            pm.MvNormal("release", people * mean, people * covariance, observed=study.release)
        elif analysis == "confidential":
            kind.covariate(observed=study.x)
            kind.family("y", kind.inverse_link(intercept + slope * study.x), observed=study.y)
        else:
            x, *_ = kind.covariate(shape=people)
            y = kind.family("y", kind.inverse_link(intercept + slope * x), shape=people)
            sums = kind.sums(x, y)
            dp.PrivateObservation("release", sums, kind.mechanism, observed=study.release)
    return model


def fit(study: Study, draws: int, seed: int) -> dict[str, DataTree]:
    """Sample the three posteriors."""
    size: dict[str, Any] = {"draws": draws, "tune": min(draws, 500), "chains": 2}
    size |= {"random_seed": seed, "compute_convergence_checks": False, "progressbar": False}
    return {
        "confidential": pm.sample(model=build(study, "confidential"), **size),
        "naive": pm.sample(model=build(study, "naive"), **size),
        "private": dp.sample(build(study, "private"), **size),
    }


def coefficients(idata: DataTree) -> np.ndarray:
    """Return draws of intercept and slope, one row for each."""
    return np.stack([report.draws(idata, name) for name in COEFFICIENTS])


def sums_table(study: Study) -> Table:
    """Set the release beside the confidential sums."""
    kind = study.kind
    return report.table(
        "",
        ("sum of", "confidential", "released", "noise scale"),
        zip(
            ("y", "x y", "x", "x²"),
            kind.sums(study.x, study.y),
            study.release,
            kind.sensitivity / EPSILON,
            strict=True,
        ),
        number=".1f",
    )


def summary(study: Study, fits: dict[str, DataTree]) -> Table:
    """Tabulate medians and intervals of the coefficients."""
    rows = []
    for name, truth in zip(COEFFICIENTS, study.kind.truth, strict=True):
        ends = (report.ends(report.draws(idata, name), LEVEL) for idata in fits.values())
        rows.append((name, f"{truth:g}", *(report.interval(*each) for each in ends)))
    return report.table(f"Median and {LEVEL:.0%} interval", ("", "truth", *fits), rows)


def picture(results: dict[str, tuple[Study, dict[str, DataTree]]]) -> Figure:
    """Draw the posteriors of the coefficients and of the curve, one row for each study."""
    figure = report.figure(len(results), 3, (12, 3.6 * len(results)))
    for axes, (study, fits) in zip(batched(figure.axes, 3), results.values(), strict=True):
        draws = {analysis: coefficients(idata) for analysis, idata in fits.items()}
        for k, name in enumerate(COEFFICIENTS):
            _densities(axes[k], {analysis: d[k] for analysis, d in draws.items()})
            axes[k].axvline(study.kind.truth[k], color="black", lw=1.2, ls=":", label="truth")
            axes[k].set_xlabel(name)
        axes[0].set_title(study.kind.title, loc="left")
        _curves(axes[2], study, draws)
    report.legend(figure)
    return figure


def _densities(ax: Axes, draws: dict[str, np.ndarray]) -> None:
    ends = np.concatenate([np.quantile(d, [0.005, 0.995]) for d in draws.values()])
    margin = 0.1 * np.ptp(ends)
    grid = np.linspace(ends.min() - margin, ends.max() + margin, 400)
    for analysis, values in draws.items():
        density = stats.gaussian_kde(values)(grid)
        ax.plot(grid, density, color=COLOURS[analysis], lw=2, label=LABELS[analysis])
        ax.fill_between(grid, density, color=COLOURS[analysis], alpha=0.15, lw=0)
    ax.set(ylim=(0, None), yticks=[])
    ax.spines["left"].set_visible(False)


def _curves(ax: Axes, study: Study, draws: dict[str, np.ndarray]) -> None:
    kind = study.kind
    x = np.linspace(-kind.reach, kind.reach, 101)
    for analysis in ("private", "naive", "confidential"):  # the widest band below
        intercept, slope = draws[analysis][:, :, None]
        low, median, high = report.ends(kind.curve(intercept + slope * x), LEVEL)
        ax.fill_between(x, low, high, color=COLOURS[analysis], alpha=0.2, lw=0)
        ax.plot(x, median, color=COLOURS[analysis], lw=2)
    intercept, slope = kind.truth
    ax.plot(x, kind.curve(intercept + slope * x), color="black", lw=1.2, ls=":")
    ax.set(ylim=(0, None), xlabel="x", ylabel=kind.response)
    ax.set_title(f"median and {LEVEL:.0%} band", loc="left", color=report.GREY, fontsize=10)


def main(argv: Sequence[str] | None = None) -> dict[str, tuple[Study, dict[str, DataTree]]]:
    """Run both studies, print their tables, write the figure."""
    args = report.options(__doc__, argv, study=("both", *REGRESSIONS), people=PEOPLE,
                          draws=2000, seed=5,  # of noise of ordinary size
                          output=Path("glm_output"))  # fmt: skip
    results = {}
    for name in REGRESSIONS if args.study == "both" else [args.study]:
        study = simulate(REGRESSIONS[name], args.people, args.seed)
        report.say(
            f"\n[bold]{study.kind.title}[/] of {args.people} people, each sum with ε = {EPSILON:g}",
            sums_table(study),
        )
        with report.timed("Three posteriors"):
            results[name] = study, fit(study, args.draws, args.seed)
        report.say(summary(*results[name]))
    report.write(args.output, glm=picture(results))
    return results


if __name__ == "__main__":
    main()
