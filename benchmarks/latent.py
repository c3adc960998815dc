"""Latent Normal variables: in `dp.sample`'s coordinates and as they are written, on nutpie.

Takes about five minutes. Both are the same collapsed model, compiled once; what is timed is
sampling alone, in CPU time. Where `dp.sample` goes by slices, it is its second call.
"""

import time

import arviz as az
import numpy as np
import nutpie
import pymc as pm
import pytensor.tensor as pt
from rich.console import Console
from rich.table import Table

import pymc_dp as dp
from pymc_dp.graphs.declined import Declined
from pymc_dp.ladder.collapse import collapsed
from pymc_dp.reading.model import read
from pymc_dp.routes.coordinates import standardised
from pymc_dp.routes.slices import layout

DRAWS = 1000


def means(noise, spread, centred, groups=50):
    """Release means of groups of 20 to 60 Normal records of unknown spread, under Laplace noise."""
    rng = np.random.default_rng(3)
    sizes = rng.integers(20, 60, groups)
    truth = rng.normal(5, spread, groups)
    z = rng.normal(truth, 3 / np.sqrt(sizes)) + rng.laplace(0, noise, groups)
    group = np.repeat(np.arange(groups), sizes)
    with pm.Model() as model:
        level, s = pm.Normal("level", 0, 10), pm.HalfNormal("s", 5)
        x = pm.Normal(
            "x", _vector(level, s, groups, centred)[group], pm.HalfNormal("w", 5), shape=group.size
        )
        total = pt.zeros(groups)[group].inc(x)
        dp.PrivateObservation("z", total / sizes, dp.LaplaceMechanism(noise), observed=z)
    return model


def areas(level, spread, centred, n=400):
    """Release counts of areas, under discrete Gaussian noise of 4."""
    rng = np.random.default_rng(3)
    counts = rng.poisson(np.exp(rng.normal(level, spread, n)))
    z = counts + np.round(rng.normal(0, 4, n)).astype(int)
    with pm.Model() as model:
        mean, s = pm.Normal("level", level, 1), pm.HalfNormal("s", 1)
        rate = pt.exp(_vector(mean, s, n, centred))
        dp.PrivateObservation(
            "z", pm.Poisson("c", rate, shape=n), dp.DiscreteGaussianMechanism(4.0), observed=z
        )
    return model


def walk(level, spread, centred, n=100):
    """Release counts along a random walk, under geometric noise of scale 2."""
    rng = np.random.default_rng(3)
    counts = rng.poisson(np.exp(level + rng.normal(0, spread, n).cumsum()))
    z = counts + rng.geometric(0.4, n) - rng.geometric(0.4, n)
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1)
        if centred:
            first = pm.Normal.dist(level, 2)
            w = pm.GaussianRandomWalk("w", sigma=s, init_dist=first, shape=n)
        else:
            steps = pt.cumsum(pm.Normal("raw", shape=n - 1))
            w = pm.Normal("start", level, 2) + s * pt.concatenate([[0.0], steps])
        dp.PrivateObservation(
            "z", pm.Poisson("c", pt.exp(w), shape=n), dp.GeometricMechanism(2.0), observed=z
        )
    return model


def _vector(level, s, n, centred):
    if centred:
        return pm.Normal("u", level, s, shape=n)
    return level + s * pm.Normal("raw", shape=n)


CASES = (
    ("50 group means, Laplace 0.3, spread 2", means, 0.3, 2.0),
    ("50 group means, Laplace 3, spread 0.5", means, 3.0, 0.5),
    ("400 areas, counts near 7, spread 0.3", areas, 2.0, 0.3),
    ("400 areas, counts near 33, spread 0.3", areas, 3.5, 0.3),
    ("400 areas, counts near 150, spread 0.3", areas, 5.0, 0.3),
    ("walk of 100, counts near 3, steps of 0.1", walk, 1.0, 0.1),
    ("walk of 100, counts near 20, steps of 0.1", walk, 3.0, 0.1),
    ("walk of 100, counts near 400, steps of 0.1", walk, 6.0, 0.1),
)


def speed(model: pm.Model) -> tuple[float, float]:
    """Return the effective draws of the spread, and these for each second of CPU time."""
    compiled = nutpie.compile_pymc_model(model)
    arguments = dict(draws=DRAWS, tune=DRAWS, chains=2, cores=1, target_accept=0.9, seed=1)
    began = time.process_time()
    tree = nutpie.sample(compiled, progress_bar=False, **arguments)
    seconds = time.process_time() - began
    draws = float(az.ess(tree.posterior["s"].to_numpy()))
    return draws, draws / seconds


def by_slices(model: pm.Model) -> tuple[float, float] | None:
    """Return the same of `dp.sample`; None where it does not go by slices."""
    try:
        layout(read(model, ""))
    except Declined:
        return None
    arguments = dict(draws=DRAWS, tune=DRAWS, chains=2, cores=1, random_seed=1, quiet=True)
    for _ in range(2):
        tree = dp.sample(model, **arguments)
    draws = float(az.ess(tree["posterior"]["s"].to_numpy()))
    return draws, draws / tree["posterior"].attrs["sampling_time"]


def main(console: Console) -> None:
    """Print effective draws, and those for each second."""
    table = Table(title=f"Effective draws of the spread of {2 * DRAWS:,}, and a CPU second")
    forms = ("centred", "non-centred")
    for column in ("", *forms, *(f"moved, {form}" for form in forms), "slices"):
        table.add_column(column, justify="right")
    for name, build, *arguments in CASES:
        row = {}
        for centred in (True, False):
            model = build(*arguments, centred)
            if centred:  # which does not matter there
                row["slices"] = by_slices(model)
            reading = read(model, "")
            on = collapsed(reading, "marginal")
            moved, names = standardised(reading, on)
            row["centred" if centred else "not"] = speed(on.model)
            row["centred, moved" if centred else "not, moved"] = speed(moved) if names else None
        order = ("centred", "not", "centred, moved", "not, moved", "slices")
        cells = [row[key] for key in order]
        table.add_row(name, *("-" if c is None else f"{c[0]:,.0f} ({c[1]:,.0f})" for c in cells))
    console.print(table)
