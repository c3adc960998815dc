"""`LaplaceScaleMixtureGibbs` of values that are jointly Normal."""

import numpy as np
import pymc as pm
import pytest
from scipy import special, stats

import pymc_dp as dp
from tests.agreement import has_moments
from tests.chains import chain, step_of


@pytest.mark.nightly
def test_joint_law():
    """Moments against sums on a grid."""
    mean, cov = np.array([0.0, 1.0]), np.array([[2.0, 1.2], [1.2, 1.0]])
    z, b = np.array([1.5, -0.5]), np.array([0.6, 1.0])
    with pm.Model() as model:
        s = pm.MvNormal("s", mean, cov)
        dp.PrivateObservation("z", s, dp.LaplaceMechanism(b), observed=z)
    x = chain(step_of(dp.LaplaceScaleMixtureGibbs, model, "s"), model.initial_point(), 20_000)["s"]
    axis = np.linspace(-9, 9, 721) + 1e-9
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1)
    logs = stats.multivariate_normal(mean, cov).logpdf(grid) - (np.abs(grid - z) / b).sum(-1)
    weight = special.softmax(logs)
    expected = (weight[..., None] * grid).sum((0, 1))
    has_moments(x, expected)
    covariance = (weight * (grid - expected).prod(-1)).sum()
    has_moments((x - expected).prod(axis=1), covariance)
