"""Linear regression from noisy sums: calibration over repeated data, and speed.

``python -m benchmarks regression`` runs all with 100 trials, in about half an hour, of which nutpie
takes a third to compile;
``python -m benchmarks.regression --trials 300 --output DIR`` draws the picture, too, and
``--parts calibration``, ``--parts speed`` or ``--parts dimensions`` runs one of them.
"""

import argparse
import logging
import time
from collections.abc import Iterable
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from scipy import stats

import pymc_dp as dp
from pymc_dp.kernels.moments import clt_chain as clt_kernel
from pymc_dp.kernels.moments import regression_chain as exact_kernel
from pymc_dp.kernels.moments.clt_law import cross_products
from pymc_dp.reading.model import Reading
from pymc_dp.routes import clt as clt_regression
from pymc_dp.routes import regression as exact_regression

# The simulation study of Bernstein & Sheldon (2019), section 4.2.
SHAPE, RATE, PRECISION = 20.0, 0.5, 0.5 / 19.0  # of the prior
NU, PSI, KAPPA = 50.0, 1.0, 1.0  # tau2 ~ InverseGamma(nu/2, psi/2), mu | tau2 ~ N(0, tau2/kappa)
CELLS = ((10, 0.01), (10, 0.1), (10, 1.0), (100, 0.1), (100, 1.0), (1000, 0.1), (1000, 1.0))
PARAMETERS = ("intercept", "slope", "variance")
METHODS = ("confidential", "exact", "CLT", "published", "naive")


def sums(x, y):
    parts = [x.sum(), (x**2).sum(), y.sum(), (x * y).sum(), (y**2).sum()]
    return np.array(parts) if isinstance(x, np.ndarray) else pt.stack(parts)


def simple(n: int, scale: float, z) -> pm.Model:
    """Write the model of the study."""
    with pm.Model() as model:
        tau2 = pm.InverseGamma("tau2", NU / 2, PSI / 2)
        mu = pm.Normal("mu", 0.0, pt.sqrt(tau2 / KAPPA))
        sigma2 = pm.InverseGamma("sigma2", SHAPE, RATE)
        theta = pm.Normal("theta", 0.0, pt.sqrt(sigma2 / PRECISION), shape=2)
        x = pm.Normal("x", mu, pt.sqrt(tau2), shape=n)
        y = pm.Normal("y", theta[0] + theta[1] * x, pt.sqrt(sigma2), shape=n)
        dp.PrivateObservation("release", sums(x, y), dp.LaplaceMechanism(scale), observed=z)
    return model


def simulate(n: int, rng) -> tuple[np.ndarray, np.ndarray]:
    """Draw parameters from the prior, and data given them: (theta, sigma2) and the sums."""
    tau2 = PSI / 2 / rng.standard_gamma(NU / 2)
    x = rng.normal(rng.normal(0, np.sqrt(tau2 / KAPPA)), np.sqrt(tau2), n)
    sigma2 = RATE / rng.standard_gamma(SHAPE)
    theta = rng.normal(0, np.sqrt(sigma2 / PRECISION), 2)
    y = rng.normal(theta[0] + theta[1] * x, np.sqrt(sigma2))
    return np.array([*theta, sigma2]), sums(x, y)


def scale_of(epsilon: float) -> float:
    """Return the scale of the noise, as if x and y were confined to [-1, 1]."""
    return float(dp.regression_sensitivity([(-1, 1)], (-1, 1)).sum()) / epsilon


# --- Calibration --------------------------------------------------------------------------------


def conjugate_ranks(truth, s, n: int, prior) -> list[float]:
    """Probability below the truth in the posterior that takes the sums for exact."""
    cone = clt_kernel.onto_cone(cross_products(s, float(n), 2))
    mean, root, a, b, _ = clt_kernel.nig_update(cone, float(n), *prior)
    sd = np.sqrt(b / a * np.diag(np.linalg.inv(root.T @ root)))
    below = stats.t(2 * a, mean, sd).cdf(truth[:2])
    return [*below, stats.invgamma(a, scale=b).cdf(truth[2])]


def draw_exact(kernel, rng, *, tune: int = 400, draws: int = 800) -> np.ndarray:
    """Draw as `dp.sample` does."""
    point = exact_regression.start(kernel, rng)
    size = point[0].size
    *point, factor = exact_kernel.tune_proposal(rng, *point, kernel, tune * 5 * size)
    out = np.empty((draws, 3 + size))
    exact_kernel.run_sweeps(rng, *point, kernel, factor, 5 * size, out)
    return out[:, :3]


def draw_clt(kernel, rng, *, tune: int, draws: int) -> np.ndarray:
    """Draw as `dp.sample` does with approximate="clt", or as the published sampler."""
    thin = clt_regression.SWEEPS if kernel.corrected else 1
    width = 3 + kernel.z.size + 4
    warm, out = np.empty((tune, width)), np.empty((draws, width))
    state = clt_kernel.run_sweeps(rng, clt_kernel.initial_state(kernel), kernel, True, thin, warm)
    clt_kernel.run_sweeps(rng, state, kernel, False, thin, out)
    return out[:, :3]


def ranks(n: int, epsilon: float, trials: int, seed: int, advance) -> tuple[dict, dict]:
    """Posterior probabilities below the truth, (trial, parameter), and CPU seconds a trial."""
    rng = np.random.default_rng(seed)
    scale = scale_of(epsilon)
    model = simple(n, scale, np.zeros(5))
    read = exact_regression.covered(Reading(model))
    kernels = {
        "exact": exact_regression.kernel_model(model, read),
        "CLT": clt_regression.kernel_model(model, read, None, corrected=True),
        "published": clt_regression.kernel_model(model, read, None, corrected=False),
    }
    prior = (np.zeros(2), PRECISION * np.eye(2), SHAPE, RATE)
    sampled = {  # the lengths of the paper for its sampler
        "exact": draw_exact,
        "CLT": lambda kernel, rng: draw_clt(kernel, rng, tune=400, draws=800),
        "published": lambda kernel, rng: draw_clt(kernel, rng, tune=5_000, draws=20_000),
    }
    found = {name: np.empty((trials, 3)) for name in METHODS}
    seconds = dict.fromkeys(METHODS, 0.0)
    for name, draw in sampled.items():
        draw(kernels[name], rng)  # compiled after this
    for trial in range(trials):
        truth, s = simulate(n, rng)
        z = s + rng.laplace(0.0, scale, 5)
        found["confidential"][trial] = conjugate_ranks(truth, s, n, prior)
        found["naive"][trial] = conjugate_ranks(truth, z, n, prior)
        for name, draw in sampled.items():
            began = time.thread_time()
            draws = draw(kernels[name]._replace(z=z), rng)
            seconds[name] += (time.thread_time() - began) / trials
            found[name][trial] = np.mean(draws < truth, axis=0)
        advance()
    return found, seconds


def calibration(
    console: Console, trials: int, cells: Iterable = CELLS, output: Path | None = None
) -> None:
    """Print the distances of the ranks from uniform."""
    cells = list(cells)
    table = Table(
        title=f"Calibration: {trials} data sets from the prior. KS distance of the posterior "
        f"probabilities below the truth from uniform",
        caption=f"Below {stats.kstwo.ppf(0.95, trials):.3f} for 95% of calibrated methods, below "
        f"{stats.kstwo.ppf(0.99, trials):.3f} for 99%. Coverage: of 95% intervals of the slope.",
    )
    for column in ("n", "ε", "method", *PARAMETERS, "coverage", "CPU s a trial"):
        table.add_column(column, justify="right")
    everything = {}
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("Calibration", total=trials * len(cells))
        for k, (n, epsilon) in enumerate(cells):
            found, seconds = ranks(n, epsilon, trials, k, lambda: progress.advance(task))
            everything[n, epsilon] = found
            for name, u in found.items():
                distances = [stats.kstest(u[:, j], "uniform").statistic for j in range(3)]
                covered = np.mean(np.abs(u[:, 1] - 0.5) <= 0.475)
                table.add_row(
                    f"{n:,}" if name == METHODS[0] else "",
                    f"{epsilon:g}" if name == METHODS[0] else "",
                    name,
                    *(f"{d:.3f}" for d in distances),
                    f"{covered:.1%}",
                    f"{seconds[name]:.2f}" if seconds[name] else "closed form",
                    end_section=name == METHODS[-1],
                )
    console.print(table)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        figure_ranks(everything).savefig(output / "calibration.png", dpi=120)
        console.print(f"Written: {output / 'calibration.png'}")


def figure_ranks(everything: dict) -> Figure:
    """Draw the quantiles of the ranks, less those of a uniform law, for every cell."""
    colours = dict(zip(METHODS, ("#009E73", "#0072B2", "#56B4E9", "#E69F00", "#D55E00"),
                       strict=True))  # fmt: skip
    figure = Figure(figsize=(10, 2.2 * len(everything)), layout="constrained")
    axes = figure.subplots(len(everything), 3, sharex=True, sharey=True, squeeze=False)
    for row, ((n, epsilon), found) in zip(axes, everything.items(), strict=True):
        for j, ax in enumerate(row):
            for name, u in found.items():
                grid = (np.arange(len(u)) + 0.5) / len(u)
                ax.plot(grid, np.sort(u[:, j]), color=colours[name], label=name)
            ax.plot([0, 1], [0, 1], color="black", lw=0.8, ls=":")
            ax.set_title(f"{PARAMETERS[j]}, n = {n}, ε = {epsilon:g}", fontsize=9)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=5, frameon=False, loc="outside lower center")
    figure.suptitle("Quantiles of posterior probabilities against those of a uniform law")
    return figure


# --- Speed --------------------------------------------------------------------------------------

QUIET = {
    "progressbar": False,
    "compute_convergence_checks": False,
    "random_seed": 1,
    "chains": 2,
    "cores": 1,
}


def several(d: int, n: int, scale: float, rng) -> pm.Model:
    """Write a regression on d - 1 standard Normal covariates and an intercept, and release it."""
    i, j = np.triu_indices(d - 1)
    truth = rng.normal(size=d) / np.sqrt(d)
    x = rng.normal(size=(n, d - 1))
    y = rng.normal(truth[0] + x @ truth[1:], 0.5)
    s = np.concatenate([x.sum(0), (x.T @ x)[i, j], [y.sum()], x.T @ y, [y @ y]])
    with pm.Model() as model:
        sigma2 = pm.InverseGamma("sigma2", 3, 0.5)
        intercept = pm.Normal("intercept", 0.0, 2 * pt.sqrt(sigma2))
        theta = pm.Normal("theta", 0.0, 2 * pt.sqrt(sigma2), shape=d - 1)
        x = pm.Normal("x", 0.0, 1.0, shape=(n, d - 1))
        y = pm.Normal("y", intercept + x @ theta, pt.sqrt(sigma2), shape=n)
        parts = [x.sum(0), (x.T @ x)[i, j], y.sum()[None], x.T @ y, (y**2).sum()[None]]
        dp.PrivateObservation(
            "release",
            pt.concatenate(parts),
            dp.LaplaceMechanism(scale),
            observed=s + rng.laplace(0, scale, len(s)),
        )
    return model


def effective(tree) -> float:
    """Return the effective draws of the slowest coefficient or the variance; NaN if far apart."""
    found = tree["posterior"].to_dataset()[["theta", "sigma2"]]
    if max(float(v.max()) for v in az.rhat(found).data_vars.values()) > 1.1:
        return np.nan
    return min(float(v.min()) for v in az.ess(found, method="bulk").data_vars.values())


def shown(number: float, digits: int = 0) -> str:
    return "not converged" if np.isnan(number) else f"{number:,.{digits}f}"


def nutpie_on_statistics(model, **arguments):
    with dp.collapse(model, "statistics"):
        return pm.sample(nuts_sampler="nutpie", **arguments)


ROUTES = {
    "dp.sample": (dp.sample, {}, 20_000),
    "dp.sample, CLT": (dp.sample, {"approximate": "clt"}, 20_000),
    "published": (dp.sample, {"method": "bernstein-sheldon"}, 50_000),
    "nutpie, statistics": (nutpie_on_statistics, {}, 1_000),
}


def measure(model, route, draws: int | None = None, tune: int = 1_000):
    """Return effective draws, wall seconds of sampling, and the CPU share that this process had."""
    run, arguments, own = ROUTES[route]
    if run is dp.sample:  # nutpie compiles anew in any case, and does not count it
        run(model, draws=5, tune=5, **arguments, **QUIET)  # compiled after this
    wall, cpu = time.perf_counter(), time.process_time()
    tree = run(model, draws=draws or own, tune=tune, **arguments, **QUIET)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return effective(tree), tree["posterior"].attrs["sampling_time"], cpu / wall


def speed(console: Console) -> None:
    """Print effective draws a CPU second, tuning included."""
    table = Table(title="Two coefficients and the variance: effective draws a CPU second")
    for column in ("n", "noise scale", *ROUTES):
        table.add_column(column, justify="right")
    rng = np.random.default_rng(1)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("Speed", total=6 * len(ROUTES))
        for n in (100, 10_000_000):
            _, s = simulate(n, rng)
            for scale in (0.2, 5.0, 160.0):
                model = simple(n, scale, s + rng.laplace(0, scale, 5))
                rates = []
                for route in ROUTES:
                    ess, seconds, share = measure(model, route)
                    rates.append(shown(ess / (seconds * share)))
                    progress.advance(task)
                table.add_row(f"{n:,}", f"{scale:g}", *rates)
    console.print(table)


DIMENSIONS = (
    (10, {"dp.sample": 500, "dp.sample, CLT": 500, "nutpie, statistics": 300}),
    (30, {"dp.sample, CLT": 100}),
)


def dimensions(console: Console, sizes: Iterable = DIMENSIONS) -> None:
    """Print milliseconds for an effective draw of many coefficients, tuning included."""
    rng = np.random.default_rng(2)
    table = Table(title="Many coefficients, n = 1,000, noise scale 5: milliseconds of CPU for one "
                  "effective draw")  # fmt: skip
    for column in ("coefficients", "released sums", "route", "milliseconds"):
        table.add_column(column, justify="right")
    for d, routes in sizes:
        model = several(d, 1_000, 5.0, rng)
        for route, draws in routes.items():
            ess, seconds, share = measure(model, route, draws, tune=draws)
            released = str(d * (d + 1) // 2 + d)
            table.add_row(str(d), released, route, shown(1e3 * seconds * share / ess, 2))
    console.print(table)


def main(console: Console, trials: int = 100) -> None:
    """Print the tables."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    calibration(console, trials)
    speed(console)
    dimensions(console)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--parts", nargs="+", default=["calibration", "speed", "dimensions"])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    logging.getLogger("pymc").setLevel(logging.ERROR)
    if "calibration" in options.parts:
        calibration(Console(width=110), options.trials, output=options.output)
    if "speed" in options.parts:
        speed(Console(width=110))
    if "dimensions" in options.parts:
        dimensions(Console(width=110))
