"""What routes cost: each model on each route that is open, and constants that fit what they took.

``python3 run.py bench routes [MODEL ...]`` measures the models that are named, by default all, and
writes `benchmarks/results/routes/`; then it fits `pymc_dp/routes/costs.json` to all that is there.
``--fit`` only does the latter. The models are the rows of the benchmark and some small ones.
"""

import json
import logging
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from rich.console import Console
from rich.table import Table
from scipy.optimize import least_squares

import pymc_dp as dp
from benchmarks.measure import RESULTS, call, limit, messages
from benchmarks.rows import OURS, ROWS
from pymc_dp.graphs.declined import Declined
from pymc_dp.reading.kept import kept
from pymc_dp.reading.model import privatized
from pymc_dp.routes import routes
from pymc_dp.routes.costs import COMPILING, CONSTANTS, COSTS, expected_rate

FOLDER = RESULTS / "routes"
SECONDS, FEWEST, MOST, COLD = 4.0, 50, 20_000, 90.0
SLOWLY, LONG = 4e-3, 20.0  # seconds for a draw of each chain, for which so many are taken
SHORTEST, LONGEST = 100, 1000  # warm-up
HOPELESS = 100.0  # times slower than the best, by what was known before: not measured again
MIXED = 1.05  # R-hat, above which a rate says nothing
# Records of a design follow slowly where those of groups do not, which no shape tells apart.
NO_COST = [("design-Laplace", "Metropolis on the records")]
TUNED = 0.02  # weight, in logarithms, of what a constant was before

MODELS: dict[str, Callable[[], pm.Model]] = {
    name: lambda row=row: row.build(OURS) for name, row in ROWS.items()
}


def model(write):
    """Register a small model."""

    def build():
        with pm.Model() as found:
            write()
        return found

    MODELS[write.__name__.replace("_", "-")] = build
    return write


def release(statistic, mechanism, z, name="z"):
    dp.PrivateObservation(name, statistic, mechanism, observed=z)


@model
def ten_records():
    """Write records of a known spread under a flat prior."""
    x = pm.Normal("x", pm.Flat("mu"), 1.0, shape=10)
    release(x.mean(), dp.LaplaceMechanism(0.2), 0.4)


@model
def exponential_sum():
    x = pm.Exponential("x", pm.Gamma("rate", 2, 1), shape=50)
    release(x.clip(0, 5).sum(), dp.LaplaceMechanism(2.0), 60.0)


@model
def clamped_by_group():
    group = np.repeat(np.arange(8), [30, 120, 80, 60, 200, 150, 45, 90])
    theta = pm.Normal("theta", pm.Normal("mu", 3, 1), pm.HalfNormal("tau", 0.5), shape=8)
    x = pm.LogNormal("x", theta[group], pm.HalfNormal("s", 1), shape=group.size)
    sizes = np.bincount(group)
    means = pt.zeros(8)[group].inc(x.clip(0, 120)) / sizes
    z = np.array([24.0, 31.0, 17.0, 29.0, 22.0, 35.0, 26.0, 20.0])
    release(means, dp.LaplaceMechanism(120 / sizes), z)


@model
def two_inverted_sums():
    x = pm.Normal("x", pm.Normal("mu", 0, 2), pm.HalfNormal("s", 2), shape=50)
    release(pt.stack([x.clip(-2, 2).mean(), (x > 1).mean()]), dp.LaplaceMechanism(0.05), [0.3, 0.3])


@model
def ones():
    x = pm.Bernoulli("x", pm.Beta("p", 1, 1), shape=1000)
    release(x.sum(), dp.GeometricMechanism(2.0), 420)


@model
def histogram():
    x = pm.Categorical("x", pm.Dirichlet("p", np.ones(5)), shape=300)
    counts = pt.stack([pt.eq(x, k).sum() for k in range(5)])
    release(counts, dp.GeometricMechanism(2.0), [50, 70, 61, 40, 82])


@model
def a_count():
    release(pm.Poisson("k", pm.Gamma("rate", 2, 0.1)), dp.GeometricMechanism(2.0), 17)


@model
def counts():
    rate = pm.Gamma("rate", pm.Exponential("a", 1), pm.Exponential("b", 1))
    release(pm.Poisson("k", rate, shape=12), dp.GeometricMechanism(1.0), np.arange(12))


@model
def sum_of_counts():
    k = pm.Poisson("k", pm.Gamma("rate", 2, 1), shape=40)
    release(k.sum(), dp.GeometricMechanism(2.0), 90)


@model
def bounded_records():
    mu, s = pm.Normal("mu", 5, 5), pm.HalfNormal("s", 5)
    x = pm.Normal("x", mu, s, shape=60)
    dp.PrivateObservation(
        "z", pt.stack([x.mean(), x.var(ddof=1)]), dp.LaplaceMechanism(0.3), observed=[4.0, 6.0],
        bounds=(0, 10),
    )  # fmt: skip


def variances(k):
    x = pm.Normal("x", pm.Normal("theta", shape=k)[np.arange(4 * k) // 4], pm.HalfNormal("s"))
    of_each = pt.stack([x[4 * j : 4 * j + 4].var() for j in range(k)])
    release(of_each, dp.GaussianMechanism(0.3), np.ones(k))


@model
def two_variances():
    variances(2)


@model
def variances_of_40():
    variances(40)


@model
def groups_of_40():
    rng, group = np.random.default_rng(1), np.repeat(np.arange(40), 30)
    z = rng.normal(rng.normal(5, 2, 40), 0.7)
    theta = pm.Normal("theta", pm.Normal("mu", 0, 10), pm.HalfNormal("tau", 5), shape=40)
    x = pm.Normal("x", theta[group], pm.HalfNormal("s", 5), shape=1200)
    release(pt.zeros(40)[group].inc(x) / 30, dp.LaplaceMechanism(0.3), z)


@model
def ones_of_several_chances():
    """Write two sums over records of four kinds."""
    covariates = np.repeat(np.array([[1, 0], [1, 1], [1, 2], [1, 3]]), [60, 30, 20, 10], axis=0)
    y = pm.Bernoulli("y", pm.math.sigmoid(pt.dot(covariates, pm.Normal("b", shape=2))), shape=120)
    release(pt.stack([y.sum()]), dp.LaplaceMechanism(2.0), [66.0])


@model
def shared_ones():
    p = pm.Beta("p", 1, 1, shape=2)
    x = pm.Bernoulli("x", p[np.repeat([0, 1], [20, 30])], shape=50)
    release(pt.stack([x.sum(), x[:35].sum()]), dp.GeometricMechanism(1.0), [21, 16])


@model
def reports():
    x = pm.Bernoulli("x", pm.Beta("p", 1, 1), shape=400)
    release(x, dp.RandomizedResponse(0.7), (np.arange(400) % 5 < 2).astype(int))


@model
def unknown_number():
    n = pm.Poisson("n", pm.Gamma("rate", 4, 0.1))
    release(n, dp.GeometricMechanism(2.0), 41, "count")
    x = pm.Normal("x", pm.Normal("mu", 0, 5), pm.HalfNormal("s", 3), shape=n)
    release(x.sum(), dp.LaplaceMechanism(5.0), 90.0)


@model
def classes_of_unknown_number():
    n = pm.Poisson("n", pm.Gamma("rate", 4, 0.1))
    x = pm.Normal("x", pm.Normal("mu", 0, 5), pm.HalfNormal("s", 3), shape=n)
    classes = [(x < 0).sum(), ((x >= 0) & (x < 3)).sum(), (x >= 3).sum()]
    release(pt.stack(classes), dp.GeometricMechanism(1.0), [5, 20, 14])


@model
def a_median():
    x = pm.Normal("x", pm.Normal("mu", 0, 2), 1.0, shape=21)
    release(pt.sort(x)[10], dp.LaplaceMechanism(0.2), 0.4)


@model
def a_chosen_record():
    x = pm.Normal("x", pm.Normal("mu", 0, 1), 1, shape=4)
    release(x[pm.Binomial("i", 3, 0.5)], dp.LaplaceMechanism(1.0), 0.2)


def on_route(plan, names, draws: int, seed: int) -> dict[str, Any]:
    """Sample on one route; return what is measured of sampling alone."""
    options = dict(draws=draws, tune=max(SHORTEST, min(draws, LONGEST)), chains=2, cores=1)
    options |= dict(random_seed=seed, progressbar=False, compute_convergence_checks=False)
    found = call(plan.run, names, options)
    return {
        "draws": draws,
        "seconds": found["sampling"],
        "ess": found["ess"],
        "rhat": found["rhat"],
    }


def side(pipe, name: str, route: str) -> None:
    """Send the open routes of a model, or what one of them takes."""
    warnings.simplefilter("ignore")
    logging.getLogger("pymc").setLevel(logging.ERROR)
    try:
        limit(COLD)
        with kept(MODELS[name]()) as reading:
            plans = {r.name: p for r, p in routes(reading) if not isinstance(p, Declined)}
            if not route:
                return pipe.send({n: dict(p.cost) for n, p in plans.items()})
            hidden = {rv.name for rv in privatized(reading)}
            names = ROWS[name].names if name in ROWS else [
                rv.name for rv in reading.model.free_RVs
                if rv.name not in hidden and rv.dtype.startswith("float")
            ]  # fmt: skip
            plan = plans[route]
            on_route(plan, names, FEWEST, 0)
            each = on_route(plan, names, FEWEST, 1)["seconds"] / (FEWEST + SHORTEST)
            seconds = SECONDS if each < SLOWLY else LONG
            draws = int(np.clip(seconds / each - LONGEST, seconds / each / 2, MOST))
            limit(5 * seconds)
            pipe.send(on_route(plan, names, draws, 2))
    except BaseException as error:  # a panic of nutpie is no Exception
        pipe.send({"error": f"{type(error).__name__}: {error}".split("\n")[0][:200]})


def ask(name: str, route: str) -> dict[str, Any]:
    """Run `side` in a process of its own."""
    found = next(messages(side, name, route, over="too slow"))
    return {"error": found} if isinstance(found, str) else found


def run(name: str) -> str:
    """Measure a model on every open route, each written as it comes."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = ask(name, "")
    if "error" in found:
        return f"{name}: {found['error']}"
    found = {route: {"cost": cost} for route, cost in found.items()}
    best = max(expected_rate(own["cost"]) for own in found.values())
    for route, own in found.items():
        hopeless = expected_rate(own["cost"]) * HOPELESS < best
        own |= {"error": "hopeless"} if hopeless else ask(name, route)
        (FOLDER / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    return name


def measured() -> dict[str, dict[str, dict[str, Any]]]:
    """Return what was measured, by model and route, with rates where chains agree."""
    files = sorted(FOLDER.glob("*.json"))
    found = {path.stem: json.loads(path.read_text()) for path in files}
    for path in files:  # of routes as they are priced now
        costs = ask(path.stem, "")
        for route, cost in costs.items() if "error" not in costs else ():
            found[path.stem].setdefault(route, {"error": "not measured"})["cost"] = cost
        path.write_text(json.dumps(found[path.stem], indent=1) + "\n")
    for own in (own for sides in found.values() for own in sides.values()):
        if own.get("rhat", np.inf) < MIXED:
            own["rate"] = own["ess"] / own["seconds"]
    return found


def fit(found) -> dict[str, float]:
    """Return constants that fit the rates that were measured, in logarithms.

    What few models tell apart stays near what it was. Within a factor of two it matters less.
    """
    every = [
        own for name, sides in found.items() for route, own in sides.items()
        if (name, route) not in NO_COST
    ]  # fmt: skip
    rows = [own for own in every if own.get("rate")]
    most = Counter()
    for own in every:
        most |= Counter(own["cost"])  # the most of each that a model has
    names = sorted({*CONSTANTS, *most})
    shapes = np.array([[own["cost"].get(name, 0.0) for name in names] for own in rows])
    target = np.log([own["rate"] for own in rows])
    before = np.log([CONSTANTS.get(name) or 1e-3 / max(most[name], 1.0) for name in names])

    def residuals(logs):
        left = np.log(shapes @ np.exp(logs)) + target  # of how many times too slow
        beyond = np.sign(left) * 2.0 * np.maximum(np.abs(left) - np.log(2.0), 0.0)
        return np.concatenate([0.3 * left, beyond, TUNED * (logs - before)])

    logs = least_squares(residuals, before).x
    return {n: float(f"{x:.3g}") for n, x in zip(names, np.exp(logs), strict=True)}


def report(found, constants) -> None:
    """Print what was measured beside what is expected."""
    table = Table("model", "route", "ESS / s", "expected", "of the best", "R-hat")
    for name, sides in found.items():
        best = max((own.get("rate", 0.0) for own in sides.values()), default=0.0)
        expected = {
            route: 1.0 / sum(constants[k] * x for k, x in own["cost"].items())
            for route, own in sides.items()
        }
        for route in sorted(sides, key=expected.__getitem__, reverse=True):
            own = sides[route]
            rate = own.get("rate", 0.0)
            table.add_row(
                name, route, f"{rate:,.3g}" if rate else own.get("error", "not mixed"),
                f"{expected[route]:,.3g}", f"{rate / best:.2f}" if best else "",
                f"{own['rhat']:.2f}" if "rhat" in own else "",
            )  # fmt: skip
            name = ""
    Console(width=140).print(table)


def main(names: list[str], *, only_fit: bool) -> None:
    """Measure, fit and print."""
    began = time.perf_counter()
    # CPU time is measured, so that models may run beside each other.
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        for name in pool.map(run, [] if only_fit else names or MODELS):
            print(f"{name}, {time.perf_counter() - began:.0f} s", flush=True)
    found = measured()
    constants = fit(found)
    COSTS.write_text(json.dumps(constants | {"compiling": COMPILING}, indent=1) + "\n")
    report(found, constants)
