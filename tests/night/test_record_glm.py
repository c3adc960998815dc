"""Generalised linear models on record rows, against posteriors by enumeration of all tables.

With few people, x on two values and y clamped, the rows are a table with few cells: its exact law
given the coefficients, a multinomial one, is summed over all tables and integrated over a grid.
"""

from itertools import combinations

import numpy as np
import pymc as pm
import pytest
from scipy import special, stats

import pymc_dp as dp
from tests.agreement import weighted
from tests.models import as_model
from tests.night.test_record_references import assert_agrees, run, run_alone

LOW, HIGH, CHANCE = -0.5, 1.5, 0.4  # the values of x, and the chance of the higher one
SCALE = 0.5  # of the noise: with more, plain data augmentation hardly mixes


def linear(intercept, slope, high):
    return intercept + slope * (LOW + (HIGH - LOW) * high)


def sums(x, y):
    return [y.sum(), (x * y).sum(), x.sum(), (x**2).sum()]


FAMILIES = {
    # law of y, its mean in the model and of numbers, clamp, people, what is released
    "logistic": (pm.Bernoulli, pm.math.sigmoid, special.expit, 1, 10, [2.5, 4.0, 5.0, 11.0]),
    "Poisson": (pm.Poisson, pm.math.exp, np.exp, 3, 6, [9.0, 3.0, 1.0, 5.0]),
}


@as_model
def build(name):
    family, inverse_link, _, top, people, z = FAMILIES[name]
    intercept, slope = pm.Normal("intercept", 0, 1), pm.Normal("slope", 0, 1)
    high = pm.Bernoulli("high", CHANCE, shape=people)
    y = family("y", inverse_link(linear(intercept, slope, high)), shape=people)
    x, y = LOW + (HIGH - LOW) * high, y.clip(0, top)
    dp.PrivateObservation("z", sums(x, y), dp.LaplaceMechanism(SCALE), observed=z)
    pm.Deterministic("products", (x * y).sum())


def tables(people, cells):
    """All tables of so many people in so many cells: where the bars stand among the stars."""
    bars = np.array(list(combinations(range(people + cells - 1), cells - 1)))
    ends = np.full((len(bars), 1), -1), np.full((len(bars), 1), people + cells - 1)
    return np.diff(np.hstack([ends[0], bars, ends[1]]), axis=1) - 1


def cell_chances(name, intercept, slope):
    """Chances of the cells (x, y), along the last axis."""
    family, _, mean, top, *_ = FAMILIES[name]
    chances = []
    for high, share in enumerate((1 - CHANCE, CHANCE)):
        mu = mean(linear(intercept, slope, high))
        law = stats.bernoulli(mu) if family is pm.Bernoulli else stats.poisson(mu)
        chances += [share * law.pmf(k) for k in range(top)] + [share * law.sf(top - 1)]
    return np.stack(chances, axis=-1)


def summarise(values, weights):
    """Mean, sd and quantiles of a weighted grid; a quantile is interpolated within its step."""
    mean, sd, _ = weighted(values, weights)
    below = (np.cumsum(weights) - weights / 2) / weights.sum()
    quantiles = {p: np.interp(p, below, values) for p in (0.025, 0.5, 0.975)}
    return {"mean": mean, "sd": sd, "quantiles": quantiles}


def enumerated(name):
    *_, top, people, z = FAMILIES[name]
    x, y = np.repeat([LOW, HIGH], top + 1), np.tile(np.arange(top + 1), 2)
    found = tables(people, 2 * (top + 1))
    s = found @ np.stack([y, x * y, x, x**2], axis=1)
    noise = stats.laplace(s, SCALE).logpdf(z).sum(axis=1)
    ways = special.gammaln(people + 1) - special.gammaln(found + 1).sum(axis=1)
    grid = np.linspace(-5, 5, 121)
    chances = cell_chances(name, *np.meshgrid(grid, grid, indexing="ij"))
    terms = np.log(np.maximum(chances, 1e-300)).reshape(-1, found.shape[1]) @ found.T
    prior = stats.norm.pdf(grid)[:, None] * stats.norm.pdf(grid)
    joint = np.exp(terms + noise + ways) * prior.reshape(-1, 1)
    both = joint.sum(axis=1).reshape(grid.size, grid.size)
    products = joint.sum(axis=0) @ np.stack([s[:, 1], s[:, 1] ** 2], axis=1) / joint.sum()
    return {
        "intercept": summarise(grid, both.sum(axis=1)),
        "slope": summarise(grid, both.sum(axis=0)),
        "products": {"mean": products[0], "sd": np.sqrt(products[1] - products[0] ** 2)},
    }


# What helps one kind of update of the coefficients must not hide an error of the other.


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.nightly
def test_moves_alone(name):
    model = build(name)
    with model:
        step = dp.RecordMetropolis([model["high"], model["y"]], sweeps=5)
    posterior = run_alone(model, step, 5_000)
    for parameter, expected in enumerated(name).items():
        assert_agrees(posterior[parameter], expected)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.nightly
def test_given_the_records(name):
    """Plain data augmentation."""
    model = build(name)
    with model:
        records = dp.RecordMetropolis([model["high"], model["y"]], interweave=False)
        step = [records, pm.NUTS([model["intercept"], model["slope"]], target_accept=0.9)]
    posterior = run(model, step, 8_000)
    for parameter, expected in enumerated(name).items():
        assert_agrees(posterior[parameter], expected)
