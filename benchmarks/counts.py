"""Counts under noise: marginals, a large regression, and latent counts beside plain PyMC.

Takes about ten minutes, most of it the regression and PyMC's own sampler.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
from rich.console import Console
from rich.table import Table

import pymc_dp as dp

QUIET = {
    "progressbar": False,
    "quiet": True,
    "compute_convergence_checks": False,
    "random_seed": 1,
    "chains": 2,
    "cores": 1,
}
CELLS, SCALE = 200, 2.0


def a_rate_each():
    return pm.Gamma("mu", 2, 0.5, shape=CELLS)


def one_rate():
    return pm.LogNormal("mu", 1, 1)


def one_conjugate_rate():
    return pm.Gamma("mu", 2, 0.5)


def counts(rate):
    """Return a model of counts released one by one, and its counts."""
    rng = np.random.default_rng(1)
    alpha = np.exp(-1 / SCALE)
    noise = rng.geometric(1 - alpha, CELLS) - rng.geometric(1 - alpha, CELLS)
    with pm.Model() as model:
        y = pm.Poisson("y", rate(), shape=CELLS)
        z = rng.poisson(rng.gamma(2, 2, CELLS)) + noise
        dp.PrivateObservation("z", y, dp.GeometricMechanism(SCALE), observed=z)
    return model, y


def measure(model, build, draws: int):
    """Effective draws a second of the slowest count and of the slowest parameter."""
    with model:
        pm.sample(5, tune=5, step=build(), **QUIET)  # compiled after this
        tree = pm.sample(draws, tune=500, step=build(), **QUIET)
        seconds = tree["posterior"].attrs["sampling_time"]
    found = [float(az.ess(tree["posterior"][name].values[..., None].reshape(2, draws, -1)[..., i]))
             for name in ("y", "mu")
             for i in range(1 if tree["posterior"][name].ndim == 2 else CELLS)]  # fmt: skip
    y, mu = found[:CELLS], found[CELLS:]
    return min(y) / seconds, min(mu) / seconds


def step_times(model, y) -> tuple[float, float]:
    """Microseconds of a call of each step for all counts."""
    times = []
    for cls in (dp.TwoSidedGibbs, dp.SkellamBesselGibbs):
        with model:
            step = cls([y])
        step.setup_chain(np.random.default_rng(1), tune=0, draws=1)
        point = model.initial_point()
        point, _ = step.step(point)
        began = time.thread_time()
        for _ in range(2_000):
            point, _ = step.step(point)
        times.append((time.thread_time() - began) / 2_000 * 1e6)
    return times[0], times[1]


def route(build, draws: int):
    """Effective draws a second, as `measure` does, of what dp.sample and dp.recover do."""
    model, _ = counts(build)
    with model:
        arguments = QUIET | {"tune": 500}
        dp.recover(model, dp.sample(draws=5, **arguments), random_seed=1)  # compiled after this
        tree = dp.sample(draws=draws, **arguments)
        seconds = tree["posterior"].attrs["sampling_time"]
        began = time.perf_counter()
        tree = dp.recover(model, tree, random_seed=1)
        recovering = time.perf_counter() - began
    y, mu = (tree["posterior"][name].values.reshape(2, draws, -1) for name in ("y", "mu"))
    y, mu = (min(float(az.ess(v[..., i])) for i in range(v.shape[-1])) for v in (y, mu))
    return y / (seconds + recovering), mu / seconds


MARGINALS = (
    ("geometric, scale 2", dp.GeometricMechanism(2.0), 5.0),
    ("geometric, scale 2", dp.GeometricMechanism(2.0), 1000.0),
    ("geometric, scale 50", dp.GeometricMechanism(50.0), 1000.0),
    ("discrete Gaussian, sigma 2", dp.DiscreteGaussianMechanism(2.0), 5.0),
    ("discrete Gaussian, sigma 10", dp.DiscreteGaussianMechanism(10.0), 1000.0),
    ("geometric, scale 2, clipped at 0", dp.GeometricMechanism(2.0).clipped(0), 5.0),
)


def marginal_time(mechanism, mean: float, law: str, cells: int = 100_000) -> float:
    """CPU nanoseconds a cell of the log density of all cells and its gradient."""
    rng = np.random.default_rng(1)
    rates = mean * rng.gamma(2, 0.5, cells) + 1e-3
    with pm.Model() as model:
        slope = pm.Normal("slope")
        mu = rates * pm.math.exp(slope)
        y = pm.Poisson.dist(mu) if law == "Poisson" else pm.NegativeBinomial.dist(mu=mu, alpha=2.0)
        z = pm.draw(mechanism.dist(rng.poisson(rates)), random_seed=rng)
        dp.PrivateObservation("z", y, mechanism, observed=z)
    function = model.logp_dlogp_function(ravel_inputs=True)
    function.set_extra_values({})
    point = np.zeros(1)
    function(point)
    times = []
    for _ in range(5):
        began = time.thread_time()
        function(point)
        times.append(time.thread_time() - began)
    return min(times) / cells * 1e9


def regression(cells: int, draws: int = 700):
    """Wall seconds and the smallest effective number of draws of 5 coefficients."""
    rng = np.random.default_rng(1)
    x = np.column_stack([np.ones(cells), rng.normal(size=(cells, 4))])
    rate = np.exp(x @ [1.0, 0.3, -0.2, 0.1, 0.0])
    mechanism = dp.GeometricMechanism.from_epsilon(0.5)
    z = pm.draw(mechanism.dist(rng.poisson(rate)), random_seed=rng)
    with pm.Model():
        beta = pm.Normal("beta", 0, 1, shape=5)
        mu = pm.math.exp(pm.math.dot(x, beta))
        dp.PrivateObservation("z", pm.Poisson.dist(mu), mechanism, observed=z)
        began = time.perf_counter()
        tree = pm.sample(draws, tune=300, **(QUIET | {"cores": 2}))
        seconds = time.perf_counter() - began
    ess = min(float(az.ess(tree["posterior"]["beta"].values[..., k])) for k in range(5))
    return seconds, ess


def memory(cells: int) -> float:
    """Peak resident memory (MB) above the import of a gradient over this many cells."""
    code = (
        "import json, resource; import benchmarks.counts as c;"
        "before = c.peak_memory(); c.marginal_time(c.MARGINALS[0][1], 5.0, 'Poisson', "
        f"{cells}); print(json.dumps(c.peak_memory() - before))"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def peak_memory() -> float:
    """Peak resident memory of this process in MB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def marginals_table(console: Console) -> None:
    """Time, the regression and memory."""
    table = Table(
        title="Log density and gradient of 100,000 releases: ns of CPU a cell, one thread"
    )
    for column in ("noise", "mean count", "Poisson", "negative binomial"):
        table.add_column(column, justify="right")
    for name, mechanism, mean in MARGINALS:
        both = (marginal_time(mechanism, mean, law) for law in ("Poisson", "other"))
        table.add_row(name, f"{mean:g}", *(f"{t:,.0f}" for t in both))
    console.print(table)
    seconds, ess = regression(100_000)
    console.print(
        f"Poisson regression on 100,000 released counts, 5 coefficients, two cores: "
        f"{seconds:.0f} s in all, {ess:.0f} effective draws of the slowest"
    )
    console.print(
        f"Gradient over 1,000,000 cells: peak {memory(1_000_000):.0f} MB above the import"
    )


def main(console: Console) -> None:
    """Print the tables."""
    marginals_table(console)
    table = Table(title=f"{CELLS} Poisson counts under geometric noise: effective draws a second")
    for column in ("rates", "step", "counts", "rates", "ratio: counts", "ratio: rates"):
        table.add_column(column, justify="right")
    calls = []
    for title, rate in (
        ("one each, NUTS", a_rate_each),
        ("one, NUTS", one_rate),
        ("one, conjugate", one_conjugate_rate),
    ):
        model, y = counts(rate)
        calls.append((title, *step_times(model, y)))
        own = measure(model, lambda y=y: pm.Metropolis([y]), 1_000)
        table.add_row(title, "Metropolis (PyMC)", *(f"{r:.2g}" for r in own), "1", "1")
        for cls in (dp.TwoSidedGibbs, dp.SkellamBesselGibbs):

            def build(model=model, y=y, cls=cls, rate=rate):
                others = [dp.ConjugateGibbs([model["mu"]])] if rate is one_conjugate_rate else []
                return [cls([y]), *others]

            ours = measure(model, build, 4_000)
            ratios = (f"{a / b:.0f}" for a, b in zip(ours, own, strict=True))
            table.add_row(title, cls.__name__, *(f"{r:.0f}" for r in ours), *ratios)
        ours = route(rate, 4_000)
        ratios = (f"{a / b:.0f}" for a, b in zip(ours, own, strict=True))
        table.add_row(title, "dp.sample, dp.recover", *(f"{r:.0f}" for r in ours), *ratios)
    console.print(table)
    table = Table(title=f"A call of the step for {CELLS} counts: microseconds of CPU, one thread")
    for column in ("rates", "TwoSidedGibbs", "SkellamBesselGibbs"):
        table.add_column(column, justify="right")
    for title, *both in calls:
        table.add_row(title, *(f"{t:.0f}" for t in both))
    console.print(table)
