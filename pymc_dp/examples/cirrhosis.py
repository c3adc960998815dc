"""Drink and cirrhosis in 46 US states: a linear regression from five noisy sums.

For each of 46 states there is the consumption of wine and of liquor, summed to one number, and the
death rate from cirrhosis of the liver (Brownlee, 1965; data set x20 of J. Burkardt's collection of
regression data). Both are scaled to [0, 1]. Suppose that only the sums of x, x², y, xy and y² are
published, with Laplace noise. The posterior of the regression line, with and without the public
bounds, is set beside two closed forms: the analysis of the confidential sums, and the naive one,
which takes the released sums for exact. The prior is that of Bernstein & Sheldon (2019).

Then the states are split at random, 36 to fit and 10 to predict, many times over: how often do the
predictive intervals cover?

Run it with ``python -m pymc_dp.examples.cirrhosis [--epsilon E] [--splits N] [--output DIR]``.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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
from rich.progress import Progress
from rich.table import Table
from scipy import stats
from xarray import DataTree

import pymc_dp as dp

# Consumption of wine and of liquor per head, and deaths from cirrhosis per 100,000.
# fmt: off
WINE = (
    5, 4, 3, 7, 11, 9, 6, 3, 12, 7, 14, 12, 10, 10, 14, 9, 7, 18, 6, 31, 13, 20, 19, 10, 4, 16, 9,
    6, 6, 21, 15, 17, 7, 13, 8, 28, 23, 22, 23, 7, 16, 2, 6, 3, 8, 13,
)
LIQUOR = (
    30, 41, 38, 48, 53, 65, 73, 32, 56, 57, 43, 33, 48, 69, 54, 47, 68, 47, 27, 79, 59, 97, 95, 81,
    26, 76, 37, 46, 40, 76, 70, 66, 63, 59, 55, 149, 77, 43, 74, 56, 63, 41, 59, 32, 40, 57,
)
CIRRHOSIS = (
    41.2, 31.7, 39.4, 57.5, 74.8, 59.8, 54.3, 47.9, 77.2, 56.6, 80.9, 34.3, 53.1, 55.4, 57.8, 62.8,
    67.3, 56.7, 37.6, 129.9, 70.3, 104.2, 83.6, 66.0, 52.3, 86.9, 66.6, 40.1, 55.7, 58.1, 74.3,
    98.1, 40.7, 66.7, 48.0, 122.5, 92.1, 76.0, 97.5, 33.8, 90.5, 29.7, 28.0, 51.6, 55.7, 55.5,
)
# fmt: on

# Prior: sigma2 ~ InverseGamma(20, 0.5), theta ~ Normal((0, 1), sigma2 / 0.25), intercept first.
# Bernstein & Sheldon write the mean as (1, 0); we read it as a slope of one and no intercept, a
# line through two corners of the unit square, because that fits their results, and the data.
MEAN, PRECISION = np.array([0.0, 1.0]), 0.25 * np.eye(2)
SHAPE, RATE = 20.0, 0.5

TRAIN = 36  # of the states in a split
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
LEVELS = (0.5, 0.9)
PARAMETERS = ("intercept", "slope", "σ")

# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = {
    "confidential": "#009E73",
    "naive": "#D55E00",
    "ours": "#0072B2",
    "ours, bounds": "#CC79A7",
}


def states() -> tuple[np.ndarray, np.ndarray]:
    """Return drink and cirrhosis, each scaled to [0, 1].

    The scaling uses the smallest and largest values, as is customary with these data; it would
    not be private. Assume that the ends had been known beforehand.
    """
    drink = np.add(WINE, LIQUOR)
    x, y = ((v - np.min(v)) / np.ptp(v) for v in (drink, np.array(CIRRHOSIS)))
    return x, y


def sums(x, y):
    """Return the sums of x, x², y, xy and y²; of a model's variables, too."""
    parts = [x.sum(), (x**2).sum(), y.sum(), (x * y).sum(), (y**2).sum()]
    return np.array(parts) if isinstance(x, np.ndarray) else pt.stack(parts)


def noise_scale(epsilon: float) -> float:
    """Return the scale of Laplace noise that makes the release of the five sums epsilon-private."""
    return float(dp.regression_sensitivity([(0, 1)], (0, 1)).sum()) / epsilon


def release(x: np.ndarray, y: np.ndarray, epsilon: float, rng: np.random.Generator) -> np.ndarray:
    """Do what a curator does: sum, and add noise."""
    return sums(x, y) + rng.laplace(0.0, noise_scale(epsilon), 5)


def build(released: np.ndarray, scale: float, n: int, *, bounded: bool = False) -> pm.Model:
    """Write the model of n confidential rows, with what was published of them."""
    with pm.Model() as model:
        tau2 = pm.InverseGamma("tau2", 3, 0.1)
        centre = pm.Normal("centre", 0.5, pt.sqrt(tau2))
        sigma2 = pm.InverseGamma("sigma2", SHAPE, RATE)
        theta = pm.Normal("theta", MEAN, pt.sqrt(sigma2 / np.diag(PRECISION)), shape=2)
        x = pm.Normal("x", centre, pt.sqrt(tau2), shape=n)
        y = pm.Normal("y", theta[0] + theta[1] * x, pt.sqrt(sigma2), shape=n)
        dp.PrivateObservation(
            "release",
            sums(x, y),
            dp.LaplaceMechanism(pm.Data("scale", scale)),
            observed=pm.Data("released", released),
            bounds=(0.0, 1.0) if bounded else None,
        )
    return model


@dataclass(frozen=True)
class ClosedForm:
    """The posterior given exact sums: normal-inverse-gamma.

    sigma2 ~ InverseGamma(shape, rate) and theta | sigma2 ~ Normal(mean, sigma2 cov).
    """

    mean: np.ndarray
    cov: np.ndarray
    shape: float
    rate: float

    @classmethod
    def given(cls, released: np.ndarray, n: int) -> ClosedForm:
        """Update the prior with the sums over n rows.

        Released sums that no data have are replaced: negative eigenvalues of the matrix of sums of
        products become zero.
        """
        sx, sxx, sy, sxy, syy = released
        products = np.array([[n, sx, sy], [sx, sxx, sxy], [sy, sxy, syy]])
        values, vectors = np.linalg.eigh(products)
        products = (vectors * np.maximum(values, 0.0)) @ vectors.T
        cov = np.linalg.inv(PRECISION + products[:2, :2])
        right = PRECISION @ MEAN + products[:2, 2]
        mean = cov @ right
        rate = RATE + (products[2, 2] + MEAN @ PRECISION @ MEAN - right @ mean) / 2
        return cls(mean, cov, SHAPE + n / 2, rate)

    def line(self, x: np.ndarray):
        """Law of the regression line at x: Student's t."""
        return self._student(x, 0.0)

    def predictive(self, x: np.ndarray):
        """Law of a new y at x: Student's t."""
        return self._student(x, 1.0)

    def _student(self, x, more: float):
        rows = np.stack([np.ones_like(x), x], axis=-1)
        spread = more + np.sum((rows @ self.cov) * rows, axis=-1)
        return stats.t(2 * self.shape, rows @ self.mean, np.sqrt(self.rate / self.shape * spread))

    def parameter(self, k: int):
        """Law of the intercept (0) or the slope (1): Student's t."""
        scale = np.sqrt(self.rate / self.shape * self.cov[k, k])
        return stats.t(2 * self.shape, self.mean[k], scale)

    def quantiles(self, probabilities) -> list[np.ndarray]:
        """Quantiles of the intercept, the slope and sigma."""
        sigma2 = stats.invgamma(self.shape, scale=self.rate)
        found = [self.parameter(k).ppf(probabilities) for k in range(2)]
        return [*found, np.sqrt(sigma2.ppf(probabilities))]

    def density(self, k: int, at: np.ndarray) -> np.ndarray:
        """Density of the intercept, the slope or sigma."""
        if k < 2:
            return self.parameter(k).pdf(at)
        return 2 * at * stats.invgamma(self.shape, scale=self.rate).pdf(at**2)


def draws_of(idata: DataTree) -> list[np.ndarray]:
    """Return the draws of the intercept, the slope and sigma of all chains."""
    theta = idata["posterior"]["theta"].to_numpy().reshape(-1, 2)
    sigma = np.sqrt(idata["posterior"]["sigma2"].to_numpy().ravel())
    return [theta[:, 0], theta[:, 1], sigma]


Posterior = ClosedForm | DataTree


def quantiles(posterior: Posterior, probabilities) -> list[np.ndarray]:
    """Quantiles of the intercept, the slope and sigma."""
    if isinstance(posterior, ClosedForm):
        return posterior.quantiles(probabilities)
    return [np.quantile(values, probabilities) for values in draws_of(posterior)]


def line(posterior: Posterior, x: np.ndarray, probabilities) -> np.ndarray:
    """Quantiles of the regression line at every x."""
    if isinstance(posterior, ClosedForm):
        return np.stack([posterior.line(x).ppf(p) for p in probabilities])
    intercept, slope, _ = draws_of(posterior)
    return np.quantile(intercept[:, None] + slope[:, None] * x, probabilities, axis=0)


def fit_all(
    x: np.ndarray, y: np.ndarray, released: np.ndarray, epsilon: float, *, draws: int, seed: int
) -> dict[str, Posterior]:
    """Compute the four posteriors."""
    n, scale = len(x), noise_scale(epsilon)
    fits: dict[str, Posterior] = {
        "confidential": ClosedForm.given(sums(x, y), n),
        "naive": ClosedForm.given(released, n),
    }
    for i, (name, bounded) in enumerate((("ours", False), ("ours, bounds", True))):
        model = build(released, scale, n, bounded=bounded)
        fits[name] = dp.sample(
            model, draws=draws, chains=4, random_seed=seed + i, progressbar=False
        )
    return fits


def make_table(fits: dict[str, Posterior]) -> Table:
    """Set the posteriors side by side."""
    table = Table(
        title="Posteriors of the regression of cirrhosis on drink",
        caption="Each cell: median and central 95% interval. σ: standard deviation of the errors. "
        "Right: the worst R-hat and the smallest bulk ESS of the three, where it was sampled.",
        title_justify="left",
        caption_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("analysis", no_wrap=True)
    for heading in (*PARAMETERS, "R-hat", "ESS"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, posterior in fits.items():
        cells = [
            f"[bold]{median:.2f}[/] \\[{low:.2f}, {high:.2f}]"
            for low, median, high in quantiles(posterior, [0.025, 0.5, 0.975])
        ]
        convergence = ["exact", ""]
        if isinstance(posterior, DataTree):
            found = posterior["posterior"].to_dataset()[["theta", "sigma2"]]
            r_hat = max(float(v.max()) for v in az.rhat(found).data_vars.values())
            ess = min(float(v.min()) for v in az.ess(found, method="bulk").data_vars.values())
            convergence = [f"{r_hat:.3f}", f"{ess:,.0f}"]
        table.add_row(name, *cells, *convergence)
    return table


def figure_lines(x: np.ndarray, y: np.ndarray, fits: dict[str, Posterior]) -> Figure:
    """Draw the 90% bands of the regression line."""
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    names = [name for name in fits if name != "confidential"]
    grid = np.linspace(0, 1, 101)
    low, _, high = line(fits["confidential"], grid, [0.05, 0.5, 0.95])
    for ax, name in zip(figure.subplots(1, len(names), sharey=True), names, strict=True):
        ax.scatter(x, y, s=14, color="black", alpha=0.5, lw=0, zorder=3)
        colour = COLOURS[name]
        below, middle, above = line(fits[name], grid, [0.05, 0.5, 0.95])
        ax.fill_between(grid, below, above, color=colour, alpha=0.25, lw=0)
        ax.plot(grid, middle, color=colour, lw=2)
        for edge in (low, high):
            ax.plot(grid, edge, color=COLOURS["confidential"], lw=1.5, ls="--")
        ax.set(title=name, xlabel="drink, scaled", xlim=(-0.02, 1.02), ylim=(-0.6, 1.6))
    figure.axes[0].set_ylabel("cirrhosis, scaled")
    handles = [
        Line2D([], [], marker="o", ls="", color="black", alpha=0.5, label="states (confidential)"),
        Line2D([], [], color=COLOURS["confidential"], ls="--", label="confidential analysis: 90%"),
        Patch(facecolor="#666666", alpha=0.4, label="from the release: 90% band and median"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle("Where the regression line runs", fontsize=13)
    return figure


def figure_densities(fits: dict[str, Posterior]) -> Figure:
    """Draw the marginal densities of the intercept, the slope and sigma."""
    figure = Figure(figsize=(11, 4.0), layout="constrained")
    for k, (ax, label) in enumerate(zip(figure.subplots(1, 3), PARAMETERS, strict=True)):
        for name, posterior in fits.items():
            low, high = quantiles(posterior, [0.001, 0.999])[k]
            grid = np.linspace(low, high, 400)
            if isinstance(posterior, ClosedForm):
                density = posterior.density(k, grid)
            else:
                density = stats.gaussian_kde(draws_of(posterior)[k])(grid)
            style = "--" if isinstance(posterior, ClosedForm) else "-"
            ax.plot(grid, density, color=COLOURS[name], lw=2, ls=style, label=name)
        ax.set(xlabel=label, yticks=[], ylim=(0, None))
        _plain(ax)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=4, frameon=False, loc="outside lower center")
    figure.suptitle("Posterior densities", fontsize=13)
    return figure


def _plain(ax: Axes) -> None:
    for side in ("left", "right", "top"):
        ax.spines[side].set_visible(False)


def coverage(
    splits: int,
    epsilons: Sequence[float] = EPSILONS,
    *,
    draws: int = 500,
    seed: int = 1,
    progressbar: bool = True,
) -> dict[str, np.ndarray]:
    """Share of test states within their predictive intervals, by analysis: (epsilon, level)."""
    x, y = states()
    rng = np.random.default_rng(seed)
    hits = {name: np.zeros((len(epsilons), len(LEVELS))) for name in list(COLOURS)[:3]}
    model = build(np.zeros(5), 1.0, TRAIN)
    with _quiet(), Progress(transient=True, disable=not progressbar) as progress:
        task = progress.add_task("Splits", total=splits * len(epsilons))
        for _ in range(splits):
            order = rng.permutation(len(x))
            train, test = order[:TRAIN], order[TRAIN:]
            for e, epsilon in enumerate(epsilons):
                released = release(x[train], y[train], epsilon, rng)
                pm.set_data({"released": released, "scale": noise_scale(epsilon)}, model=model)
                ends = {
                    "confidential": _exact_intervals(sums(x[train], y[train]), x[test]),
                    "naive": _exact_intervals(released, x[test]),
                    "ours": _sampled_intervals(model, x[test], draws, rng),
                }
                for name, (low, high) in ends.items():
                    hits[name][e] += np.mean((low <= y[test]) & (y[test] <= high), axis=1) / splits
                progress.advance(task)
    return hits


ENDS = np.array([[(1 - p) / 2 for p in LEVELS], [(1 + p) / 2 for p in LEVELS]])


def _exact_intervals(released: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Predictive intervals at every x: (end, level, x)."""
    return ClosedForm.given(released, TRAIN).predictive(x).ppf(ENDS[..., None])


def _sampled_intervals(model: pm.Model, x: np.ndarray, draws: int, rng) -> np.ndarray:
    idata = dp.sample(
        model,
        draws=draws,
        tune=draws,
        chains=2,
        random_seed=rng,
        progressbar=False,
        compute_convergence_checks=False,
    )
    new = dp.predict_records(model, idata, given={"x": x}, random_seed=rng)
    return np.quantile(new["y"].to_numpy().reshape(-1, len(x)), ENDS, axis=0)


@contextmanager
def _quiet():
    """Leave out what is said about every one of many fits."""
    logger = logging.getLogger("pymc")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def coverage_table(found: dict[str, np.ndarray], epsilons: Sequence[float] = EPSILONS) -> Table:
    """Tabulate the coverage of predictive intervals."""
    table = Table(title="Test states within their predictive intervals", box=SIMPLE_HEAD)
    table.add_column("ε", justify="right")
    for level in LEVELS:
        for name in found:
            table.add_column(f"{level:.0%}\n{name}", justify="right")
    for e, epsilon in enumerate(epsilons):
        cells = [f"{found[name][e, k]:.1%}" for k in range(len(LEVELS)) for name in found]
        table.add_row(f"{epsilon:g}", *cells)
    return table


def figure_coverage(found: dict[str, np.ndarray], epsilons: Sequence[float] = EPSILONS) -> Figure:
    """Draw the coverage against the privacy loss."""
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    ax = figure.subplots()
    for level in LEVELS:
        ax.axhline(level, color="black", lw=1, ls=":")
    for name, shares in found.items():
        for k, (level, marker) in enumerate(zip(LEVELS, "os", strict=True)):
            ax.plot(epsilons, shares[:, k], color=COLOURS[name], marker=marker, lw=2,
                    label=f"{name}, {level:.0%}")  # fmt: skip
    ax.set(xscale="log", xlabel="privacy loss ε", ylabel="coverage", ylim=(0, 1.02))
    ax.set_xticks(epsilons, [f"{e:g}" for e in epsilons])
    ax.minorticks_off()
    figure.legend(loc="outside right center", frameon=False)
    figure.suptitle("Do predictive intervals cover new states? (dotted: as stated)", fontsize=13)
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    """Release the sums, fit, print the tables, write the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m pymc_dp.examples.cirrhosis",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
    )
    parser.add_argument("--epsilon", type=float, default=1.0, metavar="E",
                        help="privacy loss of the release (default: %(default)s)")  # fmt: skip
    parser.add_argument("--splits", type=int, default=20, metavar="N",
                        help="random splits of the coverage study, about 3 s each; 0 for none "
                             "(default: %(default)s)")  # fmt: skip
    parser.add_argument("--draws", type=int, default=5_000, metavar="N",
                        help="draws of each of four chains (default: %(default)s)")  # fmt: skip
    parser.add_argument("--output", type=Path, default=Path("cirrhosis_output"), metavar="DIR",
                        help="folder for the figures (default: %(default)s)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=5, metavar="S",
                        help="random seed (default: %(default)s)")  # fmt: skip
    args = parser.parse_args(argv)

    console = Console()
    if not console.is_terminal:
        console = Console(width=100)
    x, y = states()
    released = release(x, y, args.epsilon, np.random.default_rng(args.seed))
    table = Table(title="Sums over 46 states", box=SIMPLE_HEAD, title_justify="left")
    for heading in ("", "x", "x²", "y", "xy", "y²"):
        table.add_column(heading, justify="right")
    table.add_row("released", *(f"{v:.2f}" for v in released))
    table.add_row("confidential", *(f"{v:.2f}" for v in sums(x, y)))
    console.print(table)
    scale = noise_scale(args.epsilon)
    console.print(f"Laplace noise of scale {scale:g} on each: ε = {args.epsilon:g}\n")
    fits = fit_all(x, y, released, args.epsilon, draws=args.draws, seed=args.seed)
    console.print(make_table(fits), highlight=False)

    figures = {"lines.png": figure_lines(x, y, fits), "densities.png": figure_densities(fits)}
    if args.splits:
        found = coverage(args.splits, seed=args.seed)
        console.print(coverage_table(found), highlight=False)
        figures["coverage.png"] = figure_coverage(found)
    args.output.mkdir(parents=True, exist_ok=True)
    console.print("\nWritten:")
    for name, figure in figures.items():
        path = args.output / name
        figure.savefig(path, dpi=120)
        console.print(f"  {path}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
