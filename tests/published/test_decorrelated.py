"""Vectors with correlated Gaussian noise."""

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_dp as dp

STRATEGY = np.array([[1, 1, 1], [1, 0, 0], [1, 1, 0], [0, 0, 1], [0, 1, -1]])
VALUE = np.array([3.0, -1.0, 4.5])
COVARIANCE = 4.0 * np.linalg.inv(STRATEGY.T @ STRATEGY)
STATED = [{"strategy": STRATEGY, "sigma": 2.0}, {"covariance": COVARIANCE}]


@pytest.mark.parametrize("stated", STATED, ids=["strategy", "covariance"])
def test_it_says_the_same(stated):
    """The density is that of the published vector, but for a constant."""
    with pm.Model() as model:
        x = pm.Normal("x", [1.0, 2.0, 3.0], 2.0)
        combined, release = dp.decorrelate(x, VALUE, **stated)
        z = dp.PrivateObservation("z", combined, release)
    density = model.compile_logp([z])
    points = np.array([[0.0, 0, 0], [3, -1, 4], [-7, 2, 20]])
    found = np.array([density({"x": x}) for x in points])
    expected = np.array([stats.multivariate_normal(x, COVARIANCE).logpdf(VALUE) for x in points])
    np.testing.assert_allclose(np.diff(found), np.diff(expected), rtol=1e-12)


@pytest.mark.parametrize(
    ("stated", "match"),
    [
        ({}, "write strategy= and sigma="),
        ({"strategy": STRATEGY}, "write strategy= and sigma="),
        (STATED[0] | STATED[1], "write strategy= and sigma="),
        ({"strategy": STRATEGY[:, :2], "sigma": 1.0}, r"matrix of shape \(5, 2\)"),
        ({"strategy": STRATEGY[:2], "sigma": 1.0}, "has not the rank 3"),
        ({"strategy": STRATEGY[[0, 0, 1, 2]] * [1, 0, 1], "sigma": 1.0}, "has not the rank 3"),
        ({"covariance": np.ones((3, 3))}, "not symmetric and positive definite"),
        ({"covariance": np.triu(COVARIANCE)}, "not symmetric and positive definite"),
    ],
)
def test_refused(stated, match):
    with pytest.raises(ValueError, match=match):
        dp.decorrelate(np.zeros(3), VALUE, **stated)
