"""Draws of sums given their noisy release, against laws written out and convolved on grids."""

import arviz_base as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import signal, stats

import pymc_dp as dp
from pymc_dp.plugins.inversion.kernels.draws import draw_sum
from pymc_dp.plugins.inversion.kernels.nodes import RULE, WEIGHTS
from tests.agreement import counts_follow, follows

NOISES = {
    "laplace": (1.5, 0.0, lambda e: -np.abs(e) / 1.5),
    "gaussian": (0.0, 1.5, lambda e: -0.5 * (e / 1.5) ** 2),
}


def on_panels(p, values):
    """Nodes of a quadrature that has a panel for each value."""
    log_weight = np.log(p)[:, None] + np.log(WEIGHTS / 2)
    return log_weight.ravel(), np.repeat(values, RULE), np.zeros(log_weight.size)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("z", [9.4, 31.0, -4.0, 200.0])
def test_records_of_two_values(noise, z):
    n, p, (b, sg, log_noise) = 30, 0.3, NOISES[noise]
    rng, nodes = np.random.default_rng(1), on_panels([1 - p, p], [0.0, 1.0])
    drawn = [draw_sum(rng, *nodes, float(n), z, b, sg) for _ in range(4000)]
    k = np.arange(n + 1)
    log = stats.binom.logpmf(k, n, p) + log_noise(z - k)
    counts_follow(np.bincount(np.rint(drawn).astype(int), minlength=n + 1), np.exp(log - log.max()))


def law_of_clamped_sum(n, theta, spread, step=2e-3):
    """Masses of the sum of n Normal records clamped to [0, 1], each rounded to a grid."""
    edges = np.arange(0.5, 1 / step) * step
    below = np.r_[0.0, stats.norm(theta, spread).cdf(edges), 1.0]
    one = np.diff(below)
    total = one
    for _ in range(n - 1):
        total = np.maximum(signal.fftconvolve(total, one), 0.0)
    return np.arange(total.size) * step, total


SIZES = np.array([7, 20, 9])
G = np.random.default_rng(3).permutation(np.repeat(np.arange(3), SIZES))
THETA, Z = np.array([0.2, 0.5, 0.9]), np.array([0.3, 0.5, 1.2])


@pytest.mark.parametrize("noise", [dp.LaplaceMechanism, dp.GaussianMechanism])
def test_recovered_sums_of_groups(noise):
    draws, scale, rng = 400, 0.05, np.random.default_rng(1)
    with pm.Model() as model:
        theta = pm.HalfNormal("theta", shape=3)
        c = pt.clip(pm.Normal("x", theta[G], 0.4, shape=G.size), 0, 1)
        sums = pt.inc_subtensor(pt.zeros(4)[G], c) / [*SIZES, 1] + 2  # the last is of no records
        dp.PrivateObservation("z", sums, noise(scale), observed=[*(Z + 2), 2.01])
    idata = az.from_dict({"posterior": {"theta": np.tile(THETA, (1, draws, 1))}})
    found = dp.recover(model, idata, random_seed=1)["posterior"]["z_confidential"].values[0] - 2
    assert not found[:, 3].any()
    law = stats.laplace if noise is dp.LaplaceMechanism else stats.norm
    for j, n in enumerate(SIZES):
        grid, mass = law_of_clamped_sum(n, THETA[j], 0.4)
        mass = mass * law.pdf(grid / n, Z[j], scale)
        # The place among what is below, within an atom at random: that all are clamped is one.
        k = np.rint(found[:, j] * n / grid[1]).astype(int)
        place = np.r_[0.0, np.cumsum(mass)][k] + rng.random(draws) * mass[k]
        follows(place / mass.sum(), "uniform")


def test_the_recovered_sum_of_all_records():
    """One that no record is clamped in, so that it is Normal."""
    n, draws = 40, 400
    with pm.Model() as model:
        mu = pm.Normal("mu")
        x = pm.Normal("x", mu, 1.0, shape=n)
        statistic = pt.clip(x, -9, 9).sum() + 1
        dp.PrivateObservation("z", statistic, dp.GaussianMechanism(3.0), observed=25.0)
    idata = az.from_dict({"posterior": {"mu": np.full((1, draws), 0.3)}})
    found = dp.recover(model, idata, random_seed=1)["posterior"]["z_confidential"].values[0]
    precision = 1 / n + 1 / 9
    follows(found - 1, stats.norm((12.0 / n + 24.0 / 9) / precision, precision**-0.5))


def test_what_is_too_narrow_is_refused():
    with pm.Model() as model:
        x = pm.Normal("x", pm.Normal("mu"), 1, shape=50)
        dp.PrivateObservation("z", pt.abs(x).sum(), dp.GaussianMechanism(1e-9), observed=30.0)
    idata = az.from_dict({"posterior": {"mu": np.zeros((1, 2))}})
    with pytest.raises(NotImplementedError, match="'z_confidential' cannot be drawn"):
        dp.recover(model, idata, random_seed=1)
