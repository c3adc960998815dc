"""The record engine: time of a proposal, memory, mixing, and plain PyMC beside it.

Takes about fifteen minutes, most of it PyMC's own samplers on the confidential records.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from rich.console import Console
from rich.table import Table

import pymc_dp as dp
from pymc_dp.reading.bounds import feasible_point
from pymc_dp.reading.groups import blocks
from pymc_dp.reading.model import Reading
from pymc_dp.step_methods.records.engine import Engine

QUIET = {
    "progressbar": False,
    "quiet": True,
    "compute_convergence_checks": False,
    "random_seed": 1,
}


def normal(n):
    mu, sigma = pm.Normal("mu", 0, 1), pm.HalfNormal("sigma", 1)
    return pm.Normal("x", mu, sigma, shape=n)


def exponential(n):
    return pm.Exponential("x", pm.Gamma("rate", 20, 20), shape=n)


def uniform(n):
    return pm.Uniform("x", 0, pm.Uniform("top", 1, 2), shape=n, default_transform=None)


def bernoulli(n):
    return pm.Bernoulli("x", pm.Beta("p", 2, 2), shape=n)


def poisson(n):
    return pm.Poisson("x", pm.Gamma("rate", 30, 10), shape=n)


def poisson_rates(n):
    rates = np.random.default_rng(1).gamma(3.0, 1.0, n)
    return pm.Poisson("x", pm.Gamma("factor", 30, 30) * rates, shape=n)


def gamma(n):
    return pm.Gamma("x", 2.0, pm.Gamma("rate", 20, 20), shape=n, default_transform=None)


def student(n):
    return pm.StudentT("x", nu=5, mu=pm.Normal("mu"), sigma=1.0, shape=n)


def mixture(n):
    mu = pm.Normal("mu", [-1.0, 1.0], 0.1, shape=2)
    return pm.NormalMixture("x", [0.3, 0.7], mu, 1.0, shape=n)


def lognormal(n):
    return pm.LogNormal("x", pm.Normal("mu", 0, 0.1), 0.5, shape=n, default_transform=None)


BUILT_IN = {
    "normal": normal,
    "exponential": exponential,
    "uniform": uniform,
    "Bernoulli": bernoulli,
    "Poisson": poisson,
}
GENERIC = {
    "Poisson, own rates": poisson_rates,
    "gamma": gamma,
    "Student t": student,
    "log-normal": lognormal,
    "normal mixture": mixture,
}
STATISTICS = {
    "sum": lambda x: [x.sum()],
    "clamped mean": lambda x: [pt.clip(x, 0, 3).mean()],
    "mean, variance": lambda x: [x.mean(), x.var(ddof=1)],
}


def proposal_time(law, statistic, n: int) -> float:
    """CPU nanoseconds of a proposal, with the release near what the law gives."""
    with pm.Model() as model:
        x = law(n)
        value = pm.draw(pt.stack(statistic(x)), random_seed=1)
        # Laplace noise of epsilon 1, for a range of 3.
        noise = 3.0 * n if statistic is STATISTICS["sum"] else 3.0
        z = dp.PrivateObservation("z", statistic(x), dp.LaplaceMechanism(noise / n), observed=value)
        point = feasible_point(model)
    assert z in model.observed_RVs
    engine = Engine(model, blocks(Reading(model), (x,))[0], point)
    rng = np.random.default_rng(1)
    theta, env = engine.theta(point), engine.env(point)
    records = engine.draw(rng, theta, env)
    engine.center(records)
    env = engine.env(point)
    size = engine.size
    arguments = (np.eye(size), np.zeros(size))
    records, *_ = engine.sweep(rng, records, theta, env, *arguments, 5, 0, 0)  # compiled, settled
    sweeps = max(3, 3_000_000 // n)
    best = np.inf
    for _ in range(3):
        began = time.thread_time()
        engine.sweep(rng, records, theta, env, *arguments, sweeps, 0, 0)
        best = min(best, (time.thread_time() - began) / sweeps / n)
    return best * 1e9


def proposals_table(console: Console) -> None:
    """Time of a proposal for laws, statistics and numbers of records."""
    sizes = (100, 10_000, 1_000_000)
    for title, laws, statistics in (
        ("Built-in laws", BUILT_IN, STATISTICS),
        ("Other laws", GENERIC, {"mean, variance": STATISTICS["mean, variance"]}),
    ):
        table = Table(title=f"{title}: ns of CPU a proposal, one thread")
        for column in ("law", "statistic", *(f"n = {n:,}" for n in sizes)):
            table.add_column(column, justify="right")
        for law, build in laws.items():
            for name, statistic in statistics.items():
                figures = [f"{proposal_time(build, statistic, n):.0f}" for n in sizes]
                table.add_row(law, name, *figures)
        console.print(table)


def mean_and_square(n: int, noise: float, scale: float | None = None):
    """Clamped sums of normal records with Gaussian noise."""
    z = [53.0, 115.0] if n == 100 else [0.503 * n, 1.195 * n]
    with pm.Model() as model:
        sigma2 = pm.InverseGamma("sigma2", 2, 2)
        mu = pm.Normal("mu", 0, pt.sqrt(sigma2 / 0.01))
        x = pm.Normal("x", mu, pt.sqrt(sigma2), shape=n)
        clamped = pt.clip(x, -3, 3)
        dp.PrivateObservation(
            "z",
            [clamped.sum(), (clamped**2).sum()],
            dp.GaussianMechanism(noise),
            observed=z,
        )
    return model


def released_moments(n: int):
    """Mean and variance of normal records with Laplace noise, epsilon 0.25 each, range 6."""
    with pm.Model() as model:
        sigma2 = pm.InverseGamma("sigma2", 2, 2)
        mu = pm.Normal("mu", 0, pt.sqrt(sigma2 / 0.01))
        x = pm.Normal("x", mu, pt.sqrt(sigma2), shape=n)
        dp.PrivateObservation(
            "z",
            [x.mean(), x.var(ddof=1)],
            dp.LaplaceMechanism.from_epsilon([0.25, 0.25], sensitivity=[6 / n, 36 / n]),
            observed=[0.5, 0.95],
        )
    return model


def poisson_sum(n: int):
    """Sum of Poisson records with Laplace noise."""
    with pm.Model() as model:
        rate = pm.Gamma("rate", 2, 1)
        x = pm.Poisson("x", rate, shape=n)
        dp.PrivateObservation("z", x.sum(), dp.LaplaceMechanism(20.0), observed=3.0 * n)
    return model


def effective(idata, names) -> float:
    """Effective draws of the slowest parameter."""
    return min(float(az.ess(idata["posterior"][name].values)) for name in names)


def mixing_table(console: Console) -> None:
    """Effective draws a sweep where the noise is large."""
    table = Table(title="Clamped sums: effective draws a sweep, two chains of 4,000 draws")
    for column in ("n", "noise sd", "mu", "sigma2", "without interweaving: mu", "sigma2"):
        table.add_column(column, justify="right")
    for n, noise in ((100, 10), (100, 40), (100, 400), (1000, 100)):
        row = [f"{n}", f"{noise}"]
        for interweave in (True, False):
            model = mean_and_square(n, noise)
            with model:
                step = [
                    dp.RecordMetropolis([model["x"]], sweeps=1, interweave=interweave),
                    dp.ConjugateGibbs([model["sigma2"], model["mu"]]),
                ]
                idata = pm.sample(
                    4000,
                    tune=1000,
                    chains=2,
                    cores=1,
                    step=step,
                    var_names=["mu", "sigma2"],
                    **QUIET,
                )
            row += [f"{effective(idata, [name]) / 8000:.2f}" for name in ("mu", "sigma2")]
        table.add_row(*row)
    console.print(table)


def million() -> None:
    """Print seconds and megabytes of 1,000 sweeps over a million records; run on its own."""

    def resident(which: str) -> float:
        # Not getrusage: its peak is inherited from the process that started this one.
        status = dict(
            line.split(":") for line in Path("/proc/self/status").read_text().splitlines()
        )
        return float(status[which].split()[0]) / 1024

    before = resident("VmRSS")
    model = mean_and_square(1_000_000, 100.0)
    with model:
        step = dp.steps(model)
        arguments = {"chains": 1, "cores": 1, "step": step, "var_names": ["mu", "sigma2"]}
        pm.sample(2, tune=0, **arguments, **QUIET)  # compiled after this
        began = time.perf_counter()
        pm.sample(900, tune=100, **arguments, **QUIET)
    print(json.dumps({"seconds": time.perf_counter() - began, "MB": resident("VmHWM") - before}))


def million_table(console: Console) -> None:
    """Print time and memory for a million records."""
    command = [sys.executable, "-c", "from benchmarks.records import million; million()"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    table = Table(title="A million normal records: 1,000 sweeps with conjugate updates, one chain")
    for column in ("seconds", "MB above the import, at most"):
        table.add_column(column, justify="right")
    table.add_row(f"{found['seconds']:.0f}", f"{found['MB']:.0f}")
    console.print(table)


def cores_table(console: Console) -> None:
    """Wall time of two chains on two cores, beside one chain, medians of five pairs."""
    table = Table(title="Two chains on two cores, beside one chain: wall time of 2,000 draws")
    for column in ("n", "one chain, s", "two chains, s", "ratio"):
        table.add_column(column, justify="right")
    for n in (10_000, 100_000):
        model = mean_and_square(n, 10.0)
        with model:
            arguments = {"step": dp.steps(model), "var_names": ["mu", "sigma2"], **QUIET}
            pm.sample(5, tune=5, chains=1, cores=1, **arguments)
            times = []
            for chains in (1, 2) * 5:  # in turns: the speed of the machine may drift
                began = time.perf_counter()
                pm.sample(1500, tune=500, chains=chains, cores=chains, **arguments)
                times.append(time.perf_counter() - began)
        pairs = np.reshape(times, (-1, 2))
        ratio = np.median(pairs[:, 1] / pairs[:, 0])
        table.add_row(f"{n:,}", *(f"{t:.1f}" for t in np.median(pairs, axis=0)), f"{ratio:.2f}")
    console.print(table)


def plain(model: pm.Model) -> pm.Model:
    """Return the model as PyMC alone would have it, with its own step for the records."""
    copied = model.copy()
    for rv in copied.free_RVs:
        if hasattr(rv.tag, "dp_release"):
            del rv.tag.dp_release
    return copied


def beside_table(console: Console) -> None:
    """Effective draws a second beside PyMC's own samplers on the records."""
    table = Table(title="Effective draws a second of the slowest parameter, two cores")
    columns = ("model", "n", "PyMC's own", "of", "the records rung", "ratio", "dp.sample", "ratio")
    for column in columns:
        table.add_column(column, justify="right")
    for title, build, n, names, own_draws, ours in (
        ("mean, variance", released_moments, 1_000, ["mu", "sigma2"], 2_000, 8_000),
        ("mean, variance", released_moments, 10_000, ["mu", "sigma2"], 500, 4_000),
        ("clamped sums", mean_and_square, 1_000, ["mu", "sigma2"], 2_000, 8_000),
        ("clamped sums", mean_and_square, 10_000, ["mu", "sigma2"], 500, 4_000),
        ("Poisson sum", poisson_sum, 1_000, ["rate"], 2_000, 8_000),
    ):
        model = build(n, 10.0) if build is mean_and_square else build(n)
        discrete = build is poisson_sum
        both = {"chains": 2, "cores": 2, **QUIET}
        with plain(model):
            sampler = {} if discrete else {"nuts_sampler": "nutpie"}
            own = pm.sample(own_draws, tune=500, **sampler, **both)
        own_rate = effective(own, names) / own["posterior"].attrs["sampling_time"]
        rates = []
        with model:
            for arguments in ({"rung": "records"}, {}):
                dp.sample(draws=20, tune=20, **arguments, **both)  # compiled after this
                idata = dp.sample(draws=ours, tune=500, **arguments, **both)
                rates.append(effective(idata, names) / idata["posterior"].attrs["sampling_time"])
        table.add_row(
            title,
            f"{n:,}",
            f"{own_rate:.3g}",
            "Metropolis" if discrete else "nutpie",
            f"{rates[0]:.0f}",
            f"{rates[0] / own_rate:.0f}",
            f"{rates[1]:.0f}",
            f"{rates[1] / own_rate:.0f}",
        )
    console.print(table)


def main(console: Console) -> None:
    """Print all tables."""
    proposals_table(console)
    mixing_table(console)
    million_table(console)
    cores_table(console)
    beside_table(console)
