"""The marginal of Poisson counts under geometric noise, against reference posteriors."""

import math

import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp
from tests.agreement import has_moments
from tests.chains import QUIET
from tests.references import references

CASES = [case for case in references("counts") if case["id"].startswith("B_scalar")]


def marginal_model(x):
    with pm.Model() as model:
        mu = pm.Gamma("mu", x["shape"], x["rate"])
        mechanism = dp.GeometricMechanism(-1 / math.log(x["alpha"]))
        y = pm.Poisson.dist(mu, shape=len(x["obs"]))
        dp.PrivateObservation("z", y, mechanism, observed=x["obs"])
    return model


@pytest.mark.by_day("B_scalar_4")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_posterior_of_the_marginal(case):
    logp, expected = marginal_model(case["inputs"]).compile_logp(), case["expected"]
    # Smooth in log mu, and less than 1e-15 of the mass is beyond: sums on an even grid are exact.
    grid = np.linspace(-70, 5, 6001)
    joint = np.array([logp({"mu_log__": log_mu}) for log_mu in grid])
    weights = np.exp(joint - joint.max())
    evidence = joint.max() + math.log(weights.sum() * (grid[1] - grid[0]))
    weights /= weights.sum()
    mean = weights @ np.exp(grid)
    sd = math.sqrt(weights @ (np.exp(grid) - mean) ** 2)
    names = ("log_evidence", "post_mean", "post_sd")
    np.testing.assert_allclose([evidence, mean, sd], [expected[n] for n in names], rtol=2e-6)
    below = np.cumsum(weights) - 0.5 * weights
    quantiles = np.exp(np.interp([0.05, 0.5, 0.95], below, grid))
    np.testing.assert_allclose(quantiles, expected["q05_50_95"], rtol=2e-4)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
@pytest.mark.nightly
def test_draws_of_the_marginal(case):
    model, expected = marginal_model(case["inputs"]), case["expected"]
    tree = pm.sample(2500, tune=500, chains=2, cores=1, random_seed=3, model=model, **QUIET)
    has_moments(tree.posterior["mu"], expected["post_mean"], expected["post_sd"])
