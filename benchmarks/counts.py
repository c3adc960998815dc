"""Latent counts under geometric noise: the steps for them beside PyMC's own Metropolis.

Takes about three minutes, nearly all of it PyMC's own sampler.
"""

import time

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


def main(console: Console) -> None:
    """Print the tables."""
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
    console.print(table)
    table = Table(title=f"A call of the step for {CELLS} counts: microseconds of CPU, one thread")
    for column in ("rates", "TwoSidedGibbs", "SkellamBesselGibbs"):
        table.add_column(column, justify="right")
    for title, *both in calls:
        table.add_row(title, *(f"{t:.0f}" for t in both))
    console.print(table)
