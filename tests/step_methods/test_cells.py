"""CellGibbs: counts of cells that share the entries of a release."""

import itertools

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import special, stats

import pymc_dp as dp
from pymc_dp.reading.model import Reading
from pymc_dp.step_methods import choose_steps
from tests.agreement import has_moments, weighted
from tests.chains import QUIET, assigned

ROWS = np.column_stack([np.ones(6, int), [0, 1, 1, 0, 1, 1]])


def logistic(rows, z, scale, prior=1.0):
    with pm.Model() as model:
        b = pm.Normal("b", 0, prior, shape=rows.shape[1])
        y = pm.Bernoulli("y", logit_p=pt.dot(rows, b), shape=len(rows))
        dp.PrivateObservation("z", pt.dot(rows.T, y), dp.LaplaceMechanism(scale), observed=z)
    return model


def three_binary_covariates(scale, n=500):
    """Eight kinds of records with four sums: intercept and main effects."""
    rng = np.random.default_rng(3)
    rows = np.column_stack([np.ones(n, int), rng.integers(0, 2, (n, 3))])
    y = rng.random(n) < special.expit(rows @ [0.3, -0.5, 0.8, 0.2])
    return logistic(rows, rows.T @ y + rng.laplace(0, scale, 4), scale, prior=1.5)


def on_a_grid(z, scale):
    """Points of b and their posterior, all counts of both kinds added up; the mean of these."""
    line = np.linspace(-5, 5, 161)
    b = np.array(list(itertools.product(line, line)))
    p = special.expit(b @ [[1, 1], [0, 1]])
    chances, means = np.zeros(len(b)), np.zeros((len(b), 2))
    for counts in itertools.product(range(3), range(5)):
        law = stats.binom([2, 4], p).pmf(counts).prod(axis=1)
        noise = stats.laplace([sum(counts), counts[1]], scale).pdf(z).prod()
        chances += law * noise
        means += (law * noise)[:, None] * counts
    posterior = chances * stats.norm.pdf(b).prod(axis=1)
    return b, posterior, means / chances[:, None]


@pytest.mark.compiled
@pytest.mark.parametrize("scale", [0.2, 1.0, 20.0])
@pytest.mark.by_day("1.0")
def test_the_posterior_of_two_kinds(scale):
    z = [3.2, 1.9]
    model = dp.collapse(logistic(ROWS, z, scale), "statistics")
    assert assigned(model)["y_count"] == "CellGibbs"
    options = {"draws": 1_000, "tune": 400, "chains": 2, "cores": 1, "random_seed": 1}
    found = pm.sample(model=model, **QUIET, **options)["posterior"]
    b, posterior, counts = on_a_grid(z, scale)
    mean, sd, _ = weighted(b, posterior)
    has_moments(found["b"].to_numpy(), mean, sd, least=300)
    has_moments(found["y_count"].to_numpy(), weighted(counts, posterior)[0], least=300)


@pytest.mark.nightly
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_it_mixes_whatever_the_noise(scale):
    model = three_binary_covariates(scale)
    options = {"draws": 1_000, "tune": 500, "chains": 2, "cores": 1, "random_seed": 1}
    found = dp.sample(model, rung="statistics", **QUIET, **options)["posterior"]
    least = np.min(az.ess(found["b"].to_numpy()))
    assert least > 700


def test_directions_that_leave_the_release_alone_are_among_the_moves():
    model = dp.collapse(three_binary_covariates(0.1), "statistics")
    step = dp.CellGibbs([model["y_count"]], model=model)
    [table] = step.tables._updates
    sums = table.directions @ np.array(list(itertools.product([1], *[[0, 1]] * 3)))
    still = table.directions[~sums.any(axis=1)]
    assert np.linalg.matrix_rank(still) == 4


def test_only_counts_that_share_entries_are_claimed():
    with pm.Model() as model:
        rate = pm.Gamma("rate", 1, 1)
        a, b, c = (pm.Poisson(name, rate, shape=3) for name in "abc")
        dp.PrivateObservation("za", pt.dot([[1, 1, 0], [0, 1, 1]], a), dp.LaplaceMechanism(1.0))
        dp.PrivateObservation("zb", pt.dot([[1, 1, 0], [0, 0, 1]], b), dp.LaplaceMechanism(1.0))
        dp.PrivateObservation("zc", pt.dot([[1, 1, 0], [0, 1, 1]], c), dp.LaplaceMechanism(1.0))
        for variable in (a, b, c):  # no records of this model
            del variable.tag.dp_release
        pm.Potential("more", c.sum() * 0.0)
    chosen = {rv.name: step for rv, step in choose_steps(Reading(model)).items()}
    assert chosen["a"] is dp.CellGibbs
    assert chosen["b"] is dp.TableGibbs
    assert "c" not in chosen
    with pytest.raises(NotImplementedError, match="Write TableGibbs"):
        dp.CellGibbs([b], model=model)
