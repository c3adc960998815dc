"""Noise by randomized quasi-Monte Carlo: unbiased, converging fast, of the mechanism's own law."""

import logging

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_dp as dp
from pymc_dp.mechanisms import mechanism_examples
from pymc_dp.neural.noise import Channel, Noise, SobolPool, fast_quantiles

EXAMPLES = list(mechanism_examples())


def test_points_are_uniform_and_stratified():
    rng = np.random.default_rng(1)
    points = SobolPool(64, 3, rng).draw(400, rng)
    assert points.shape == (400, 64, 3)
    assert points.min() > 0
    assert points.max() < 1
    # Each net has one point in each of 64 intervals, in every coordinate.
    cells = np.sort(np.floor(points * 64), axis=1)
    np.testing.assert_array_equal(cells, np.broadcast_to(np.arange(64)[:, None], cells.shape))
    # One point of each net: uniform, and independent of the others' first points.
    for j in range(3):
        assert stats.kstest(points[:, 0, j], "uniform").pvalue > 1e-3


def test_one_point_and_odd_numbers():
    rng = np.random.default_rng(2)
    single = SobolPool(1, 2, rng).draw(2000, rng)
    assert single.shape == (2000, 1, 2)
    assert stats.kstest(single[:, 0, 1], "uniform").pvalue > 1e-3
    assert SobolPool(5, 2, rng).draw(3, rng).shape == (3, 5, 2)
    with pytest.raises(ValueError, match="points"):
        SobolPool(0, 2, rng)


def root_mean_square_error(draws, *, qmc, repeats=600, dimension=9):
    """Error of the mean of a smooth function of nine Laplace noises, as in a loss."""
    rng = np.random.default_rng(draws)
    channel = Channel("z", dp.LaplaceMechanism(1.0), (dimension,))
    noise = Noise([channel], draws, rng, qmc=qmc)
    z = noise.draw(np.zeros((repeats, dimension)))
    inner = np.tanh(0.4 * z).sum(-1) + 0.05 * (z**2).sum(-1) + 0.01 * z.sum(-1) ** 2
    exact = 0.06 * 2 * dimension
    found = inner.mean(1)
    error = found.mean() - exact
    assert abs(error) < 5 * found.std() / np.sqrt(repeats)  # unbiased
    return np.sqrt(np.mean((found - exact) ** 2))


def test_quasi_monte_carlo_converges_faster():
    sizes = np.array([8, 32, 128, 512])
    slopes = [
        np.polyfit(np.log(sizes), np.log([root_mean_square_error(m, qmc=q) for m in sizes]), 1)[0]
        for q in (True, False)
    ]
    assert slopes[0] < -0.75
    assert -0.6 < slopes[1] < -0.4


# Independent draws come from a function that is compiled for each mechanism.
@pytest.mark.by_day(
    "BinomialMechanism(draws=200.0, pseudo_count=20.0, population=1000.0)-True",
    "DiscreteGaussianMechanism(sigma=0.6)-True",
    "GaussianMechanism(sigma=1.5).clipped(lower=0.0)-True",
    "GaussianMechanism(sigma=1.7)-True",
    "GeometricMechanism(scale=0.25)-True",
    "LaplaceMechanism(scale=0.3).rounded(1)-True",
    "LaplaceMechanism(scale=1.0).clipped(upper=3.0)-True",
    "LaplaceMechanism(scale=2.0).clipped(lower=-1.0, upper=4.5)-True",
    "LaplaceMechanism(scale=2.5)-True",
    "LaplaceMechanism(scale=4.0).clipped(lower=-2.5, upper=3.5).rounded(0)-True",
    "RandomizedResponse(truth_probability=0.75, categories=2)-True",
    "RandomizedResponse(truth_probability=0.75, categories=2).counted(100.0)-True",
)
@pytest.mark.parametrize("qmc", [True, pytest.param(False, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: repr(e.mechanism))
def test_noise_follows_the_mechanism(example, qmc):
    """Against draws of PyMC's own random variable of the release."""
    rng = np.random.default_rng(3)
    noise = Noise([Channel("z", example.mechanism, ())], 8, rng, qmc=qmc)
    found = noise.draw(np.full((500, 1), example.statistic))
    assert found.shape == (500, 8, 1)
    wanted = pm.draw(example.mechanism.dist(example.statistic), 4000, random_seed=4)
    values = np.unique(wanted)
    if len(values) <= 12:  # few values: their shares
        shares = [np.mean(found == v) for v in values]
        np.testing.assert_allclose(shares, [np.mean(wanted == v) for v in values], atol=0.05)
    else:
        assert stats.ks_2samp(found.ravel(), wanted).statistic < 0.045


@pytest.mark.parametrize(
    "mechanism",
    [
        dp.GeometricMechanism(0.3),
        dp.GeometricMechanism(np.array([2.0, 40.0])),
        dp.DiscreteGaussianMechanism(25.0),
        dp.DiscreteGaussianMechanism(np.array([0.4, 3.0])),
        dp.BinomialMechanism(1000, 50, 60),
        dp.BinomialMechanism(np.array([7, 400]), 0.5, 60),
    ],
)
def test_fast_quantiles_are_those_of_the_mechanism(mechanism):
    rng = np.random.default_rng(5)
    # Out to the outermost points of a net.
    u = np.concatenate([rng.random((2000, 2)), 2.0**-33 * rng.integers(1, 99, (200, 2))])
    u = np.concatenate([u, 1.0 - u])
    s = np.repeat(rng.integers(0, 60, (len(u) // 8, 2)), 8, axis=0).astype(float)
    fast = fast_quantiles(mechanism)
    np.testing.assert_array_equal(fast(u, s), mechanism.icdf(u, s).eval())
    assert fast_quantiles(dp.GeometricMechanism(1e6)) is None
    assert fast_quantiles(dp.LaplaceMechanism(1.0)) is None


def test_several_releases_with_their_own_parameters():
    rng = np.random.default_rng(5)
    channels = [
        Channel("a", dp.LaplaceMechanism([1.0, 10.0]), (2,)),
        Channel("b", dp.BinomialMechanism(1000, 5.0, 100), ()),
        Channel("c", dp.LaplaceMechanism(2.0).rounded().clipped(0, None), (1,)),
    ]
    noise = Noise(channels, 16, rng)
    z = noise.draw(np.tile([3.0, -4.0, 50.0, 1.0], (300, 1)))
    assert z.shape == (300, 16, 4)
    np.testing.assert_allclose(z[..., :2].std((0, 1)), np.sqrt(2) * np.array([1, 10]), rtol=0.1)
    np.testing.assert_allclose(z[..., 2].mean(), 500, rtol=0.01)
    assert z[..., 3].min() == 0
    np.testing.assert_array_equal(noise.spacing, [0, 0, 1, 1])


class WithoutQuantiles(dp.LaplaceMechanism):
    def icdf(self, p, statistic=0.0):
        raise NotImplementedError


def test_without_quantiles_it_is_monte_carlo_and_says_so(caplog):
    rng = np.random.default_rng(6)
    channel = Channel("z", WithoutQuantiles(2.0), (3,))
    with caplog.at_level(logging.WARNING, logger="pymc.dp"):
        noise = Noise([channel], 8, rng)
    assert "'z': WithoutQuantiles has no quantile function" in caplog.text
    z = noise.draw(np.ones((500, 3)))
    np.testing.assert_allclose(z.std(), 2 * np.sqrt(2), rtol=0.1)
    caplog.clear()
    Noise([channel], 8, rng, qmc=False)
    assert not caplog.text


def test_noise_repeats_by_seed_and_is_fresh_at_each_call():
    channel = Channel("z", dp.LaplaceMechanism(2.0), (3,))
    for qmc in (True, False):
        one, two = (Noise([channel], 4, np.random.default_rng(7), qmc=qmc) for _ in range(2))
        first = one.draw(np.zeros((5, 3)))
        np.testing.assert_array_equal(first, two.draw(np.zeros((5, 3))))
        assert not np.any(first == one.draw(np.zeros((5, 3))))


def test_more_dimensions_than_sobol_nets_have(caplog):
    channel = Channel("z", dp.LaplaceMechanism(1.0), (SobolPool.LARGEST + 1,))
    with caplog.at_level(logging.WARNING, logger="pymc.dp"):
        noise = Noise([channel], 2, np.random.default_rng(1))
    assert "'z': Sobol nets have at most 21201 dimensions" in caplog.text
    z = noise.draw(np.zeros((1, channel.size)))
    assert abs(z.var() - 2) < 0.2


def test_entries_that_are_withheld_or_chosen_are_refused():
    for mechanism in (dp.LaplaceMechanism(1.0).suppressed(below=2), dp.ExponentialMechanism(1.0)):
        with pytest.raises(NotImplementedError, match=r"'z': .* neural estimation takes noise of"):
            Channel("z", mechanism, (2,))
