"""The walkers reach the density."""

import numpy as np
import pytest

from pymc_dp.neural.ensemble import ensemble_draws, resample


def test_walkers_reach_a_stretched_normal():
    rng = np.random.default_rng(1)
    scales, mean = np.array([0.01, 1.0, 100.0]), np.array([1.0, -2.0, 300.0])

    def log_density(x):
        return -0.5 * (((x - mean) / scales) ** 2).sum(1)

    start = mean + 3 * scales * rng.standard_normal((1000, 3))
    found = ensemble_draws(log_density, start, 200, rng)
    np.testing.assert_allclose((found.mean(0) - mean) / scales, 0, atol=0.15)
    np.testing.assert_allclose(found.std(0) / scales, 1, atol=0.1)


def test_walkers_stay_in_the_support():
    rng = np.random.default_rng(2)

    def log_density(x):
        return np.where(x[:, 0] > 0, -x[:, 0], -np.inf)

    found = ensemble_draws(log_density, rng.random((1000, 1)), 100, rng)
    assert found.min() > 0
    np.testing.assert_allclose(found.mean(), 1, atol=0.15)
    with pytest.raises(ValueError, match="even number"):
        ensemble_draws(log_density, rng.random((3, 1)), 1, rng)


def test_resampling_follows_the_weights():
    rng = np.random.default_rng(3)
    found = resample(np.log([0.1, 0.6, 0.3]) - 1000, 1000, rng)
    np.testing.assert_allclose(np.bincount(found) / 1000, [0.1, 0.6, 0.3], atol=0.01)
