"""The clamped regression example: its numbers and its exact draws."""

import arviz as az
import numpy as np
import pymc as pm
import pytest

from pymc_dp.examples import clamped_regression
from tests.agreement import has_moments
from tests.references import references

CASE = references("neural")["linreg"]


def test_numbers_are_those_of_the_reference():
    assert list(clamped_regression.RELEASED) == CASE["s_dp"]["10"]
    reference = CASE["reference"]["eps10_priorvar1"]
    found = list(clamped_regression.REFERENCE.values())
    np.testing.assert_array_equal(found, np.transpose([reference["mean"], reference["sd"]]))
    for name, means in clamped_regression.PUBLISHED.items():
        assert list(means) == CASE["paper_table1"][name]["mean"]


def test_one_person_changes_the_means_by_at_most_the_sensitivity():
    rng = np.random.default_rng(1)
    x, y = rng.choice([-1, 0.0, 1], (5000, 2)) * 15, rng.choice([-1, 0.0, 1], 5000) * 15
    terms = np.stack(clamped_regression.products(x, y))[:, :300]
    distance = np.abs(terms[:, :, None] - terms[:, None]).sum(axis=0)
    # The published bound is not sharp: its noise is larger than need be.
    assert 0.6 < distance.max() / clamped_regression.PEOPLE / clamped_regression.SENSITIVITY <= 1


def test_statistic_of_the_model_is_that_of_numbers():
    model = clamped_regression.build()
    x, y, z = pm.draw([model["x"], model["y"], model["release"]], random_seed=1)
    means = [p.mean() for p in clamped_regression.products(x, y)]
    assert np.max(np.abs(z - means)) < 12 * clamped_regression.SENSITIVITY / 10


# tests/night/test_record_references.py holds the same model to its reference in every run.
@pytest.mark.nightly
def test_exact_draws():
    idata = clamped_regression.exact(clamped_regression.build(), 5000, seed=1)
    draws = clamped_regression.coefficients(idata)
    for name, (mean, sd) in clamped_regression.REFERENCE.items():
        chains = draws[name].reshape(4, -1)
        assert az.rhat(chains) < 1.05
        has_moments(chains, mean, sd, least=100)
