"""The factorization example: its divergence and its noise."""

import numpy as np
import pytest

from pymc_dp.examples import factorization


def test_divergence_is_of_the_mean_of_the_later_half():
    truth = np.array([[1.0, 3.0], [2.0, 2.0]])
    draws = np.array([9 * truth, truth[:, ::-1], 0.1 * truth, truth])
    found = factorization.divergence(truth, draws)
    # After the second draw: (3, 1) alone against (1, 3), and a row that is right.
    expected = (0.25 * np.log(0.25 / 0.75) + 0.75 * np.log(0.75 / 0.25)) / 2
    np.testing.assert_allclose(found[[0, 1, 3]], [0.0, expected, 0.0], atol=1e-12)


@pytest.mark.nightly
def test_noise_that_is_modelled_does_less_harm_than_noise_that_is_ignored():
    curves = factorization.clamped_experiment(factorization.simulate(0.5, 3), 300, 3)
    late = {name: curve[-1] for name, curve in curves.items()}
    assert late["confidential"] < late["private"] < 0.8 * late["naive"]


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_simulated_noise_is_the_mechanisms(epsilon):
    data = factorization.simulate(epsilon, 1)
    alpha = np.exp(-epsilon)
    noise = data.release - data.counts
    variance = 2 * alpha / (1 - alpha) ** 2
    assert abs(noise.mean()) < 5 * np.sqrt(variance / noise.size)
    assert abs(noise.var() / variance - 1) < 0.1
