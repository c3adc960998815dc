"""Several groups of records in one compiled loop: what is drawn, and what is not covered."""

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_dp as dp
from pymc_dp.graphs.interrupts import Pieces
from pymc_dp.reading.model import Reading
from pymc_dp.routes import records_chain
from pymc_dp.routes.warm_up import warm_up
from tests.agreement import has_moments
from tests.chains import QUIET
from tests.models import LAPLACE, route_table

N, SD, NOISE, Z = [12, 30], [1.5, 0.8], [0.3, 0.6], [0.9, 2.3]


def two_groups():
    """Means of two groups, with Normal noise; that of the second is shifted."""
    with pm.Model() as model:
        mu, shift = pm.Normal("mu", 0.0, 2.0), pm.Normal("shift", 0.0, 1.0)
        a = pm.Normal("a", mu, SD[0], shape=N[0])
        b = pm.Normal("b", mu + shift, SD[1], shape=N[1])
        for name, x, scale, z in zip("yz", (a, b), NOISE, Z, strict=True):
            dp.PrivateObservation(name, x.mean(), dp.GaussianMechanism(scale), observed=z)
        pm.Deterministic("mean of b", b.mean())  # before that of a: each has its own place
        pm.Deterministic("total", mu + shift)
        pm.Deterministic("mean of a", a.mean())
        pm.Deterministic("difference", pt.stack([b.mean() - a.mean(), mu - a.mean() + 0 * b[0]]))
    return model


def sample(model, **options):
    settings = {"draws": 4_000, "tune": 500, "chains": 2, "random_seed": 1} | QUIET
    return records_chain._plan(Reading(model)).run(**settings | options)["posterior"]


def test_two_groups_follow_their_joint_law():
    """A Normal one, of the parameters and of the means of the records, given the releases."""
    own = SD / np.sqrt(N)
    of = {  # standard Normal variables, of the parameters and of each mean
        "mu": [2, 0, 0, 0],
        "shift": [0, 1, 0, 0],
        "total": [2, 1, 0, 0],
        "mean of a": [2, 0, own[0], 0],
        "mean of b": [2, 1, 0, own[1]],
    }
    loads = np.array(list(of.values()))
    joint = loads @ loads.T
    gain = np.linalg.solve(joint[-2:, -2:] + np.diag(np.square(NOISE)), joint[-2:]).T
    mean, cov = gain @ Z, joint - gain @ joint[-2:]
    found = sample(two_groups())
    assert set(found) == {*of, "difference"}
    a, b = (found[f"mean of {x}"].to_numpy() for x in "ab")
    np.testing.assert_allclose(
        found["difference"], np.stack([b - a, found["mu"].to_numpy() - a], axis=-1)
    )
    for k, name in enumerate(of):
        has_moments(found[name].values, mean[k], cov[k, k] ** 0.5)


def different_groups():
    """Rows of a regression, counts under a prior of their rate, and shares with a shape of each."""
    with pm.Model() as model:
        level = pm.Normal("level", 0.0, 1.0)
        x = pm.Normal("x", level, 1.0, shape=15)
        y = pm.Normal("y", 0.5 * x + level, 1.0, shape=15)
        counts = pm.Poisson("counts", pt.exp(level), shape=10)
        shape = pm.Gamma("shape", 2.0, 1.0, shape=2)
        shares = pm.Beta("shares", shape[0], shape[1] + pt.exp(level), shape=20)
        sums = pt.stack([x.clip(-2, 2).sum(), (x * y).clip(-4, 4).sum()])
        dp.PrivateObservation("xy", sums, dp.LaplaceMechanism(2.0), observed=[3.0, 9.0])
        total = counts.clip(0, 5).sum()
        dp.PrivateObservation("count", total, dp.GeometricMechanism(1.0), observed=12)
        dp.PrivateObservation("share", shares.sum(), LAPLACE, observed=7.0)
    return model


@pytest.mark.nightly
def test_groups_of_different_laws_agree_with_the_steps():
    model = different_groups()
    found = sample(model, draws=5_000)
    with model:
        options = {"chains": 2, "cores": 1, "random_seed": 2} | QUIET
        steps = pm.sample(2_000, tune=1_000, step=dp.steps(model), **options)["posterior"]
    for name in ("level", "shape"):
        exact = steps[name].values
        error = az.mcse(steps[name])[name].values
        has_moments(found[name].values, exact.mean(axis=(0, 1)), mean_se=error)


def test_draws_are_the_same_in_pieces():
    chain = records_chain.RecordChain(Reading(two_groups()))
    found = []
    for sizes in ((40,), (7, 1, 32)):
        rng = np.random.default_rng(3)
        state, rows = chain.begin(rng, 120, pieces=Pieces()), []
        for size in sizes:
            state, row = chain.advance(rng, state, size)
            rows.append(row)
        found.append(np.concatenate(rows))
    np.testing.assert_array_equal(*found)


def test_the_way_to_the_posterior_is_not_taken_for_slow_mixing():
    """A chain that arrives after 260 of 300 draws, and then mixes at once; a slow one."""
    rng = np.random.default_rng(1)
    arrives = np.maximum(260 - np.arange(300), 0) + rng.standard_normal(300)
    rounds = {}
    for name, path in (("arrives", arrives), ("slow", rng.standard_normal(300).cumsum())):
        counts, position = np.ones(3, int), [0]

        def draw(draws, path=path, position=position):
            position[0] += draws
            return path[position[0] - draws : position[0], None], []

        warm_up(300, Pieces(), draw, lambda *learnt: None, counts, [slice(0, 1)])
        rounds[name] = counts[0]
    assert rounds["arrives"] <= 12
    assert rounds["slow"] > 12


def test_moves_given_sums_are_many_beside_many_records():
    """Moves with the records draw as many random numbers as a sweep: one in a round."""
    with pm.Model() as model:
        x = pm.Gamma("x", pm.Gamma("shape", 2, 1), pm.Gamma("rate", 2, 1), shape=3_000)
        z = pm.math.log(x.clip(0.01, 9.0)).mean()
        dp.PrivateObservation("z", z, dp.LaplaceMechanism(0.003), observed=0.1)
    chain = records_chain.RecordChain(Reading(model))
    rng = np.random.default_rng(1)
    assert chain._moves(chain.begun(rng), rng.standard_normal((50, 2))).tolist() == [1, 30]


def groups(rate=None):
    """Two groups of records of one parameter, and their clipped sums."""
    mu = pm.Normal("mu") if rate is None else rate()
    a, b = pm.Normal("a", mu, shape=5), pm.Normal("b", mu, shape=25)
    for name, x in (("of a", a), ("of b", b)):
        dp.PrivateObservation(name, x.clip(0, 1).sum(), LAPLACE, observed=3.0)
    return a, b


def contrast():
    a, b = groups()
    pm.Deterministic("contrast", (a[:, None] > b).mean())  # of all pairs of records


def test_parts_of_a_deterministic_are_found_once():
    """It is doubled forty times: as many paths as 2**40 lead to its two sums."""
    with pm.Model() as model:
        a, b = groups()
        doubled = a.mean() + b.mean()
        for _ in range(40):
            doubled = doubled + doubled
        pm.Deterministic("doubled", doubled)
    blocks = records_chain.covered(Reading(model))
    assert len(records_chain._parts(model["doubled"], blocks)) == 2


def total():
    a, b = groups()
    both = a.clip(0, 1).sum() + b.clip(0, 1).sum()
    dp.PrivateObservation("total", both, LAPLACE, observed=7.0)


def aside():
    groups()
    pm.Normal("seen", pm.Normal("w"), observed=2.0)


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (contrast, "'contrast' is computed from records of several groups, 'a' and 'b'"),
        (total, "'total' is computed from records of several groups, 'a' and 'b'"),
        (aside, "it does not cover 'w', which is no parameter of the records"),
        (lambda: groups(rate=lambda: pm.Poisson("k", 3.0)), "it does not cover 'k', which is no"),
    ],
)
def test_what_is_not_covered(write, why):
    with pm.Model() as model:
        write()
    [reason] = [why for route, _, why in route_table(model) if route.name == records_chain._NAME]
    assert why in reason
