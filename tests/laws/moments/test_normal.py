"""Draws of jointly Normal statistics given their release, against the conditional law."""

import arviz_base as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_dp as dp
from pymc_dp.laws.moments.normal import conditional

A = np.array([[0.25, 0.25, 0.25, 0.25, 0, 0], [0, 0, 0, 1, 1, 1], [1.0, 0, 0, 0, -1, 0]])
G = np.array([0, 0, 0, 1, 1, 1])
MU, SIGMA, Z = np.array([0.4, 1.9]), np.array([0.7, 1.3]), np.array([1.5, 2.0, -0.3])


def moments(variances):
    """Mean and covariance of the statistics given their release."""
    joint = A * SIGMA[G] ** 2 @ A.T
    gain = joint @ np.linalg.inv(joint + np.diag(variances))
    mean = A @ MU[G]
    return mean + gain @ (Z - mean), joint - gain @ joint


@pytest.mark.parametrize("variances", [[0.3, 1.0, 1e-4], [1e4, 1e-8, 2.0]])
def test_draws_are_those_of_the_conditional_law(variances):
    """They are linear in Normal numbers: the constant is the mean, the slopes the covariance."""
    factor = A * SIGMA[G]
    numbers = np.vstack([np.zeros(9), np.eye(9)])
    drawn = np.array([conditional(Z, A @ MU[G], factor, np.array(variances), e) for e in numbers])
    mean, covariance = moments(variances)
    root = drawn[1:] - drawn[0]
    np.testing.assert_allclose(drawn[0], mean, rtol=1e-12)
    np.testing.assert_allclose(root.T @ root, covariance, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("noise", [dp.GaussianMechanism, dp.LaplaceMechanism])
def test_recovered_statistics_that_share_records(noise):
    draws, scale = 40_000, np.array([0.5, 1.0, 0.3])
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu", shape=2), pm.HalfNormal("sigma", shape=2)
        x = pm.Normal("x", mu[G], sigma[G], shape=6)
        dp.PrivateObservation("z", pt.dot(A, x) + 1, noise(scale), observed=Z + 1)
    given = {"mu": np.tile(MU, (1, draws, 1)), "sigma": np.tile(SIGMA, (1, draws, 1))}
    variances = scale**2
    if noise is dp.LaplaceMechanism:
        variances = np.array([0.2, 3.0, 0.9])
        given["z_noise_variance"] = np.tile(variances, (1, draws, 1))
    found = []
    for of in (model, dp.collapse(model)):
        tree = dp.recover(of, az.from_dict({"posterior": given}), random_seed=1)
        found.append(tree["posterior"]["z_confidential"].values[0] - 1)
    np.testing.assert_array_equal(*found)
    mean, covariance = moments(variances)
    error = np.sqrt(np.diag(covariance) / draws)
    np.testing.assert_allclose(found[0].mean(axis=0), mean, atol=4.5 * error.max())
    np.testing.assert_allclose(np.cov(found[0].T), covariance, atol=0.04 * covariance.max())
    if noise is dp.LaplaceMechanism:
        del given["z_noise_variance"]
        with pytest.raises(ValueError, match="no z_noise_variance"):
            dp.recover(model, az.from_dict({"posterior": given}))
