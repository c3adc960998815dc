"""Chains that have not mixed are named, once."""

import logging
import re

import numpy as np
import pymc as pm
import pytest
from xarray import Dataset, DataTree

import pymc_dp as dp
from pymc_dp import sampling
from pymc_dp.reading.model import Reading
from pymc_dp.routes import Plan, Route, chain
from pymc_dp.routes.convergence import check_convergence, have_mixed, rewrite
from tests.models import gaussian_model


def tree(**draws):
    return DataTree.from_dict({
        "posterior": Dataset({
            name: (("chain", "draw", "entry")[: np.ndim(v)], v) for name, v in draws.items()
        })
    })  # fmt: skip


def said(caplog, **draws):
    """Return the warnings; of draws that were not looked at yet, where there are any."""
    if draws:
        check_convergence(tree(**draws), [*draws])
    return [r.message for r in caplog.records if r.name == "pymc.dp" and r.levelname == "WARNING"]


def test_what_has_not_mixed_is_named_the_worst_first(caplog):
    rng = np.random.default_rng(1)
    good = rng.normal(size=(2, 1_000))
    walk = np.cumsum(rng.normal(size=(2, 1_000)), axis=1)
    apart = rng.normal(size=(2, 1_000, 3)) + np.array([0.0, 3.0])[:, None, None] * [0, 0, 1]
    check_convergence(tree(good=good, apart=apart, walk=walk), ["good", "apart", "walk"], "Do it.")
    [message] = said(caplog)
    assert "'good'" not in message
    assert "'apart' (R-hat 1." in message
    assert "'walk' (R-hat " in message
    assert message.endswith("Do it.")


def test_chains_that_have_mixed_are_not_named(caplog):
    rng = np.random.default_rng(1)
    count = np.ones((2, 1_000), dtype=int)
    known = np.stack([count, rng.poisson(9, size=(2, 1_000))], axis=-1)
    draws = tree(good=rng.normal(size=(2, 1_000)), count=count, known=known)
    check_convergence(draws, ["good", "count", "known", "integrated out"])
    assert not said(caplog)


def normal(seed, *center, size=1_000):
    return np.random.default_rng(seed).normal(np.array(center)[:, None], 1.0, (2, size))


WALK = np.cumsum(np.random.default_rng(3).normal(size=200))


@pytest.mark.parametrize(
    ("draws", "match"),
    [
        (np.full((2, 200), 0.3), r"'mu' \(has not moved\)"),
        (normal(2, 0.0, 0.0)[..., None] * [1.0, 0.0], r"'mu'\[1\] \(has not moved\)"),
        (normal(2, 0.0, 0.0)[..., None] * [0.0, 1.0, 0.0], r"\[0\] .*nor have 1 more entries"),
        (np.tile(WALK, (2, 2)), "^There are few effective draws"),  # halves that are alike
        (normal(2, 0.0, 0.4), "^The chains have not quite mixed"),
        (normal(2, 0.0, 0.9), "^The chains have not mixed"),
        (normal(1, 5.0, -5.0, size=300), "^The chains have not mixed.*a mode of its own"),
        (np.repeat([[3.0], [5.0]], 1_000, axis=1), r"'mu' \(R-hat "),  # they stand still
    ],
)
def test_what_is_said_of_chains(caplog, draws, match):
    [message] = said(caplog, mu=draws)
    assert re.search(match, message, re.DOTALL)


@pytest.mark.parametrize("shape", [(1, 1_000), (4, 99)])
def test_of_few_draws_nothing_is_said(caplog, shape):
    assert not said(caplog, walk=np.cumsum(np.ones(shape), axis=1))


class Slow:
    """A chain of two numbers whose draws are correlated."""

    sweeps = 3

    def __init__(self, correlation):
        self.a = correlation

    def begin(self, rng, tune, *, pieces):
        return np.zeros(2)

    def advance(self, rng, state, draws):
        rows = np.empty((draws, 2))
        for row in rows:
            state = row[:] = self.a * state + np.sqrt(1 - self.a**2) * rng.normal(size=2)
        return state, rows

    def posterior(self, rows, rng):
        return {"mu": rows}


@pytest.mark.parametrize(
    ("correlation", "seconds", "least", "most"),
    [(0.0, 60.0, 3, 3), (0.98, 60.0, 12, 96), (0.98, 0.0, 3, 3), (1.0 - 1e-9, 0.2, 3, 3_000)],
    ids=["mixes", "drawn on", "no time", "hopeless"],
)
def test_chains_are_drawn_on_until_they_have_mixed(
    correlation, seconds, least, most, monkeypatch, caplog
):
    with pm.Model() as model:
        pm.Normal("mu", shape=2)
    monkeypatch.setattr(chain, "_LONGEST", seconds)
    options = {"draws": 500, "chains": 4, "cores": 2, "random_seed": 1, "progressbar": False}
    found = chain.run(Reading(model), "", Slow(correlation), **options)
    mu, sweeps = found["posterior"]["mu"].to_numpy(), found["sample_stats"]["sweeps"].to_numpy()
    assert mu.shape == (4, 500, 2)
    assert least <= sweeps.min() == sweeps.max() <= most
    assert have_mixed({"mu": mu}, ["mu"]) == (correlation == 0.0 or most == 96)
    if most == 96:  # the draws are as far from each other as it says
        lagged = np.corrcoef(mu[:, 1:].ravel(), mu[:, :-1].ravel())[0, 1]
        assert lagged == pytest.approx(correlation ** (sweeps[0, 0] // 3), abs=0.1)


SHORT = {"draws": 100, "tune": 20, "chains": 2, "random_seed": 1, "progressbar": False}


@pytest.mark.nightly
def test_sample_names_the_parameters_and_the_better_route(caplog):
    """On the records, each draw is one sweep: a hundred are few."""
    prior = {"mu_0": 0.3, "kappa_0": 1.0, "nu_0": 3.0, "sigma_0_sq": 0.1}
    model = gaussian_model(200, [0.001, 0.001], [0.4, 0.06], prior=prior)
    options = SHORT | {"cores": 1, "rung": "records"}
    with caplog.at_level(logging.INFO):
        dp.sample(model, **options, compute_convergence_checks=False)
        assert not said(caplog)
        dp.sample(model, **options)
    [message] = said(caplog)
    assert "'mu' (R-hat" in message
    assert "'fused Gibbs'" in message
    assert not [r for r in caplog.records if "rhat statistic" in r.message]


def test_two_modes_are_seen_with_two_chains(caplog):
    """The square of a mean is released: either sign is right, and no chain sees both."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        x = pm.Poisson("x", 20 * mu**2)
        dp.PrivateObservation("z", x, dp.GeometricMechanism(1.0), observed=20)
    step = {"initvals": [{"mu": 1.0}, {"mu": -1.0}], "cores": 1, "nuts_sampler": "pymc"}
    dp.sample(model, **SHORT | {"draws": 400, "tune": 300}, **step)
    [message] = said(caplog)
    assert "'mu' (R-hat" in message


@pytest.mark.parametrize(
    ("rung", "handicap", "advice"),
    [
        ("auto", 10.0, "Draw more, or try rung='marginal', the route 'exact'."),
        ("auto", 1.0, ""),
        ("marginal", 10.0, "Without rung='marginal' it takes the route 'walk'."),
        ("marginal", 1000.0, ""),  # which is not taken
    ],
)
def test_what_is_said_to_do_better(rung, handicap, advice, monkeypatch):
    heard = []
    monkeypatch.setattr(sampling, "check_convergence", lambda tree, names, said: heard.append(said))
    found = [
        (
            Route("walk", "records", None, handicap=handicap),
            Plan(900.0, lambda **kwargs: DataTree()),
        ),
        (Route("exact", "marginal", None), Plan(9.0, lambda **kwargs: DataTree())),
    ]
    monkeypatch.setattr(sampling, "routes", lambda *args, **kwargs: found)
    dp.sample(gaussian_model(20, [1.0, 1.0], [0.5, 1.5]), rung=rung)
    assert heard == [advice]


def test_a_walk_is_told_how_to_be_written():
    with pm.Model() as model:
        step = pm.HalfNormal("step")
        pm.GaussianRandomWalk("w", sigma=step, init_dist=pm.Normal.dist(), shape=(2, 9))
    assert rewrite(Reading(model)).startswith("'w' is moved as it is written: ")
    with pm.Model() as model:  # in coordinates that mix
        w = pm.GaussianRandomWalk("w", init_dist=pm.Normal.dist(), steps=9)
        dp.PrivateObservation("z", w, dp.LaplaceMechanism(1.0), observed=np.zeros(10))
    assert rewrite(Reading(model)) == ""
