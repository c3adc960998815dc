"""Lengths that do not fit and indices out of range are refused by the names of the variables."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_dp as dp

G = np.array([0, 1, 2, 0, 1, 2])
OUT = np.array([0, 1, 2, 0, 1, 3])
X = np.ones((5, 2))
LAPLACE = dp.LaplaceMechanism(1.0)
OUT_OF_RANGE = ".z.: the parameters of .x.: .theta. has 3 entries, .* the entry 3.* shape=4"


def length(have, given, source="theta"):
    return (
        rf"'z': 'x' has the shape {have}, and a parameter of it, computed from '{source}', the "
        rf"shape {given}: write shape={given} for 'x', or .*{source}\[g\] .* length {have}"
    )


@pytest.mark.parametrize(
    ("records", "match"),
    [
        (lambda theta: pm.Normal("x", theta[OUT], 1, shape=6), OUT_OF_RANGE),
        (lambda theta: pm.Normal("x", theta[-OUT - 1], 1, shape=6), "asks for the entry -4"),
        (lambda theta: pm.Poisson("x", pt.exp(theta[OUT]), shape=6), OUT_OF_RANGE),
        (lambda theta: pm.Bernoulli("x", pm.math.sigmoid(theta[OUT])), OUT_OF_RANGE),
        (lambda theta: pm.Normal("x", theta[pm.Data("g", OUT)], 1, shape=6), "the index 'g' of"),
        (lambda theta: pm.Normal("x", theta[G], 1, shape=7), length(7, 6)),
        (lambda theta: pm.Normal("x", 0, pt.exp(theta), shape=6), length(6, 3)),
        (lambda theta: pm.Normal("x", pt.dot(X, theta[:2]), 1, shape=7), length(7, 5)),
        (lambda theta: pm.Normal("x", np.zeros(5), 1, shape=6), "a parameter of it the shape 5"),
        (lambda theta: pm.Normal("x", pm.Normal("y", theta, 1), 1, shape=4), length(4, 3, "y")),
        (lambda theta: pm.Normal("x", pm.Normal("y", theta[OUT], 1), 1), "parameters of 'y': 'th"),
    ],
)
def test_records_and_parameters(records, match):
    with pm.Model() as model:
        x = records(pm.Normal("theta", shape=3))
        with pytest.raises(ValueError, match=match):
            dp.PrivateObservation("z", x.sum(), LAPLACE, observed=1.0)
    assert not model.observed_RVs


def test_index_of_the_statistic():
    with pm.Model():
        x = pm.Normal("x", pm.Normal("mu"), 1, shape=6)
        sums = pt.inc_subtensor(pt.zeros(3)[OUT], x)
        with pytest.raises(ValueError, match="the released statistic: an array has 3 entries"):
            dp.PrivateObservation("z", sums, LAPLACE, observed=np.ones(3))


@pytest.mark.parametrize(
    "call", [dp.explain, dp.collapse, lambda model: dp.sample(model, draws=1, tune=1, chains=1)]
)
def test_data_that_were_changed(call):
    with pm.Model() as model:
        theta = pm.Normal("theta", shape=3)
        x = pm.Normal("x", theta[pm.Data("g", G)], 1, shape=6)
        dp.PrivateObservation("z", x.mean(), LAPLACE, observed=1.0)
    dp.explain(model, details=True)
    pm.set_data({"g": OUT}, model=model)
    with pytest.raises(ValueError, match="'theta' has 3 entries, and the index 'g' of length 6"):
        call(model)


def test_what_fits():
    """A number for all, a column beside a row, negative indices, masks, slices, two indices."""
    with pm.Model() as model:
        theta = pm.Normal("theta", shape=(3, 2))
        mean = theta[-G - 1, 1] + theta[G][:, 0] + theta[:, 0][np.array([True, False, False])]
        x = pm.Normal("x", mean, theta[0, 0] ** 2, shape=6)
        y = pm.Normal("y", theta[:, :1], pt.exp(theta[0]), shape=(3, 2))
        dp.PrivateObservation("z", x.sum() + y.sum(), LAPLACE, observed=1.0)
    assert "z" in model.named_vars
