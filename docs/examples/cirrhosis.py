"""Drink and cirrhosis in 46 US states: a linear regression from five noisy sums.

For each of 46 states there is the consumption of wine and of liquor, summed to one number, and the
death rate from cirrhosis of the liver (Brownlee, 1965; data set x20 of J. Burkardt's collection of
regression data). Both are scaled to [0, 1]. Suppose that only the sums of x, x², y, xy and y² are
published, with Laplace noise. The posterior of the regression line, with and without the public
bounds, is set beside two closed forms: the analysis of the confidential sums, and the naive one,
which takes the released sums for exact. The prior is that of Bernstein & Sheldon (2019).

Then the states are split at random, 36 to fit and 10 to predict, many times over: how often do the
predictive intervals cover?

Run it with ``python3 run.py example cirrhosis [--epsilon E] [--splits N] [--output DIR]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from matplotlib.figure import Figure
from rich.progress import Progress
from rich.table import Table
from scipy import stats
from xarray import DataTree

import pymc_dp as dp
import report

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

COLOURS = {
    "confidential": report.GREEN,
    "naive": report.ORANGE,
    "ours": report.BLUE,
    "ours, bounds": report.PINK,
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

    def along(self, rows: np.ndarray, *, new: bool = False):
        """Law of rows @ theta, the line at x for a row (1, x), or of a new y there: Student's t."""
        spread = new + np.sum((rows @ self.cov) * rows, axis=-1)
        return stats.t(2 * self.shape, rows @ self.mean, np.sqrt(self.rate / self.shape * spread))

    @property
    def laws(self) -> list:
        """Laws of the intercept, the slope and sigma."""
        sigma = stats.gengamma(self.shape, -2, scale=np.sqrt(self.rate))
        return [*(self.along(row) for row in np.eye(2)), sigma]


def draws_of(idata: DataTree) -> list[np.ndarray]:
    """Return the draws of the intercept, the slope and sigma of all chains."""
    return [*report.draws(idata, "theta").T, np.sqrt(report.draws(idata, "sigma2"))]


Posterior = ClosedForm | DataTree


def quantiles(posterior: Posterior, probabilities) -> list[np.ndarray]:
    """Quantiles of the intercept, the slope and sigma."""
    if isinstance(posterior, ClosedForm):
        return [law.ppf(probabilities) for law in posterior.laws]
    return [np.quantile(values, probabilities) for values in draws_of(posterior)]


def line(posterior: Posterior, x: np.ndarray, probabilities) -> np.ndarray:
    """Quantiles of the regression line at every x."""
    rows = np.stack([np.ones_like(x), x], axis=-1)
    if isinstance(posterior, ClosedForm):
        return np.stack([posterior.along(rows).ppf(p) for p in probabilities])
    return np.quantile(report.draws(posterior, "theta") @ rows.T, probabilities, axis=0)


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
    rows = []
    for name, posterior in fits.items():
        row = [name, *(report.interval(*x) for x in quantiles(posterior, [0.025, 0.5, 0.975]))]
        if not isinstance(posterior, ClosedForm):
            row.extend(report.convergence(posterior, "theta", "sigma2"))
        rows.append(row)
    return report.table(
        "Posteriors of the regression of cirrhosis on drink",
        ("analysis", *PARAMETERS, "R-hat", "ESS"),
        rows,
        "Each cell: median and central 95% interval. σ: standard deviation of the errors. "
        "Right: the worst R-hat and the smallest bulk ESS of the three, where it was sampled.",
    )


def figure_lines(x: np.ndarray, y: np.ndarray, fits: dict[str, Posterior]) -> Figure:
    """Draw the 90% bands of the regression line."""
    names = [name for name in fits if name != "confidential"]
    figure = report.figure(1, len(names), (11, 4.4), "Where the regression line runs", sharey=True)
    grid = np.linspace(0, 1, 101)
    low, _, high = line(fits["confidential"], grid, [0.05, 0.5, 0.95])
    for ax, name in zip(figure.axes, names, strict=True):
        below, middle, above = line(fits[name], grid, [0.05, 0.5, 0.95])
        ax.scatter(x, y, s=14, color="black", alpha=0.5, lw=0, label="states (confidential)")
        ax.fill_between(grid, below, above, color=COLOURS[name], alpha=0.25, lw=0)
        ax.plot(grid, middle, color=COLOURS[name], lw=2)
        for edge in (low, high):
            ax.plot(grid, edge, color=COLOURS["confidential"], lw=1.5, ls="--",
                    label="confidential analysis: 90%")  # fmt: skip
        ax.set_title(f"{name}: 90% and median")
        ax.set(xlabel="drink, scaled", xlim=(-0.02, 1.02), ylim=(-0.6, 1.6))
    figure.axes[0].set_ylabel("cirrhosis, scaled")
    report.legend(figure)
    return figure


def figure_densities(fits: dict[str, Posterior]) -> Figure:
    """Draw the marginal densities of the intercept, the slope and sigma."""
    figure = report.figure(1, 3, (11, 4.0), "Posterior densities")
    for k, (ax, label) in enumerate(zip(figure.axes, PARAMETERS, strict=True)):
        for name, posterior in fits.items():
            low, high = quantiles(posterior, [0.001, 0.999])[k]
            grid = np.linspace(low, high, 400)
            if isinstance(posterior, ClosedForm):
                density, style = posterior.laws[k].pdf(grid), "--"
            else:
                density, style = stats.gaussian_kde(draws_of(posterior)[k])(grid), "-"
            ax.plot(grid, density, color=COLOURS[name], lw=2, ls=style, label=name)
        ax.set(xlabel=label, yticks=[], ylim=(0, None))
        ax.spines["left"].set_visible(False)
    report.legend(figure)
    return figure


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
    with report.quiet(), Progress(transient=True, disable=not progressbar) as progress:
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
    rows = np.stack([np.ones_like(x), x], axis=-1)
    return ClosedForm.given(released, TRAIN).along(rows, new=True).ppf(ENDS[..., None])


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


def coverage_table(found: dict[str, np.ndarray], epsilons: Sequence[float] = EPSILONS) -> Table:
    """Tabulate the coverage of predictive intervals."""
    cells = [(k, name) for k in range(len(LEVELS)) for name in found]
    return report.table(
        "Test states within their predictive intervals",
        ("ε", *(f"{LEVELS[k]:.0%}\n{name}" for k, name in cells)),
        [
            (f"{epsilon:g}", *(found[name][e, k] for k, name in cells))
            for e, epsilon in enumerate(epsilons)
        ],
        number=".1%",
    )


def figure_coverage(found: dict[str, np.ndarray], epsilons: Sequence[float] = EPSILONS) -> Figure:
    """Draw the coverage against the privacy loss."""
    figure = report.figure(
        1, 1, (8, 4.2), "Do predictive intervals cover new states? (dotted: as stated)"
    )
    [ax] = figure.axes
    for k, (level, marker) in enumerate(zip(LEVELS, "os", strict=True)):
        ax.axhline(level, color="black", lw=1, ls=":")
        for name, shares in found.items():
            ax.plot(epsilons, shares[:, k], color=COLOURS[name], marker=marker, lw=2,
                    label=f"{name}, {level:.0%}")  # fmt: skip
    ax.set(xscale="log", xlabel="privacy loss ε", ylabel="coverage", ylim=(0, 1.02))
    ax.set_xticks(epsilons, [f"{e:g}" for e in epsilons])
    ax.minorticks_off()
    report.legend(figure, loc="outside right center", ncols=1)
    return figure


def main(argv: Sequence[str] | None = None) -> dict[str, Posterior]:
    """Release the sums, fit, print the tables, write the figures."""
    args = report.options(__doc__, argv, epsilon=1.0, splits=20, draws=5_000, seed=5,
                          output=Path("cirrhosis_output"))  # fmt: skip
    x, y = states()
    released = release(x, y, args.epsilon, np.random.default_rng(args.seed))
    report.say(
        report.table(
            "Sums over 46 states",
            ("", "x", "x²", "y", "xy", "y²"),
            [("released", *released), ("confidential", *sums(x, y))],
        ),
        f"Laplace noise of scale {noise_scale(args.epsilon):g} on each: ε = {args.epsilon:g}\n",
    )
    fits = fit_all(x, y, released, args.epsilon, draws=args.draws, seed=args.seed)
    report.say(make_table(fits))
    figures = {"lines": figure_lines(x, y, fits), "densities": figure_densities(fits)}
    if args.splits:
        found = coverage(args.splits, seed=args.seed)
        report.say(coverage_table(found))
        figures["coverage"] = figure_coverage(found)
    report.write(args.output, **figures)
    return fits


if __name__ == "__main__":
    main()
