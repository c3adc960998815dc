"""The naive Bayes example: its enumeration and its exact draws."""

import numpy as np
import pytest

from pymc_dp.examples import naive_bayes
from tests.agreement import has_moments
from tests.references import references

CASE = references("neural")["loglinear"]
# p^k_{ij}: feature k has value j in class i.
LABELS = {
    "P(class 1)": "p_1",
    "P(feature 1 | class 1)": "p^1_{11}",
    "P(feature 2 | class 1)": "p^2_{11}",
    "P(feature 1 | class 2)": "p^1_{21}",
    "P(feature 2 | class 2)": "p^2_{21}",
}


def test_release_is_that_of_the_reference():
    assert naive_bayes.RELEASED.ravel().tolist() == CASE["spec"]["released_counts"]["m"]


def test_enumeration_is_the_reference():
    found = naive_bayes.enumerate_counts()
    assert found.keys() == LABELS.keys()
    for name, label in LABELS.items():
        expected = CASE["reference"][label]
        np.testing.assert_allclose(found[name], (expected["mean"], expected["sd"]), atol=6e-5)


@pytest.mark.nightly
def test_exact_draws():
    idata = naive_bayes.exact(naive_bayes.build(), 2000, seed=2)
    draws = naive_bayes.chances(idata)
    for name, (mean, sd) in naive_bayes.enumerate_counts().items():
        has_moments(draws[name].reshape(2, -1), mean, sd, sd_within=0.06, least=400)
