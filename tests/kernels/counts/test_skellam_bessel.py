"""The augmentation of Poisson counts under two-sided geometric noise, against exact laws."""

import math

import numpy as np
import pytest
from scipy import special, stats

from pymc_dp.kernels import njit
from pymc_dp.kernels.counts.poisson import draw_poisson_two_sided
from pymc_dp.kernels.counts.skellam_bessel import draw_count, draw_rates, draw_skellam_bessel
from tests.agreement import counts_follow, has_moments, uniform
from tests.references import references

CASES = [case for case in references("counts") if case["kind"] == "P(y|t,mu,alpha)"]


def sweeps(z, scale, mu, cells, rounds, seed=1, start=None):
    """Independent chains of one cell each, at equilibrium after a few rounds."""
    rng = np.random.default_rng(seed)
    z, scale, mu = (np.full(cells, float(x)) for x in (z, scale, mu))
    y = np.full(cells, max(z[0], 0.0)) if start is None else np.asarray(start, dtype=float)
    for _ in range(rounds):
        y = draw_skellam_bessel(rng, y, z, scale, mu)
    return y


def exact(z, scale, mu, size):
    k = np.arange(size)
    return special.softmax(stats.poisson.logpmf(k, mu) - np.abs(z - k) / scale)


@pytest.mark.by_day("B_cond_2")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_reference(case):
    x, expected = case["inputs"], case["expected"]
    y = sweeps(x["t"], -1 / math.log(x["alpha"]), x["mu"], 40_000, 60)
    p = np.array(expected["pmf_y0_to_9"])
    seen = np.bincount(np.minimum(y, 10).astype(int), minlength=11)
    counts_follow(seen, np.append(p, max(1 - p.sum(), 1e-12)))
    assert abs(y.mean() - expected["mean"]) < 4 * math.sqrt(expected["var"] / y.size)


@pytest.mark.parametrize(
    ("z", "scale", "mu"),
    [(0, 0.2, 3.0), (7, 0.5, 0.01), (-5, 3.0, 12.0), (30, 4.0, 20.0), (3, 1e-3, 1e-8)],
)
def test_one_sweep_keeps_the_conditional(z, scale, mu):
    """From exact draws to exact draws, wherever the chain would be slow."""
    p = exact(z, scale, mu, 200)
    start = np.random.default_rng(2).choice(200, 40_000, p=p)
    y = sweeps(z, scale, mu, start.size, 1, start=start)
    counts_follow(np.bincount(y.astype(int), minlength=p.size), p)
    moved = np.mean(y != start)
    assert moved > 0.02 or p.max() > 0.99


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("mu", [1e-8, 1.0, 1e4, 1e8])
@pytest.mark.parametrize("z", [-(10**6), 0, 10**6])
def test_extremes(z, scale, mu):
    """The mean and the spread of exact draws are kept."""
    rng, n = np.random.default_rng(3), 2_000
    start = np.array([draw_poisson_two_sided(rng, z, scale, 0.0, np.inf, mu) for _ in range(n)])
    y = sweeps(z, scale, mu, n, 3, start=start)
    assert np.all(y >= 0)
    assert np.all(y == np.floor(y))
    sd = max(start.std(), y.std())
    assert abs(y.mean() - start.mean()) <= 5 * sd * math.sqrt(2 / n)
    if sd > 1.0:
        assert abs(math.log(y.std() / start.std())) < 5 * math.sqrt(2 / n)


def test_nothing_to_draw_from():
    good = (2.0, 1.0, 3.0)
    for i, bad in ((0, math.nan), (0, math.inf), (1, 0.0), (1, math.nan), (2, -1.0), (2, math.inf)):
        z, scale, mu = (bad if j == i else x for j, x in enumerate(good))
        rng = np.random.default_rng(1)
        alpha = math.exp(-1 / scale) if scale else math.nan
        assert math.isnan(draw_count(rng, z, alpha, mu, 1.0, 1.0)[0]), (i, bad)
    assert draw_count(np.random.default_rng(1), 4.0, math.exp(-1), 0.0, 1.0, 1.0)[0] == 0.0


@njit(cache=True)
def _ranks(rng, trials, augmented, draws, thin, cells, shape, rate, scale):
    """Rank of the true rate among posterior draws of it, for each of many data sets."""
    ranks = np.empty(trials, dtype=np.int64)
    z, scales = np.empty(cells), np.full(cells, scale)
    for t in range(trials):
        truth = rng.standard_gamma(shape) / rate
        for i in range(cells):
            noise = math.floor(scale * rng.standard_exponential())
            noise -= math.floor(scale * rng.standard_exponential())
            z[i] = rng.poisson(truth) + noise
        y, mu, below = np.maximum(z, 0.0), shape / rate, 0
        for j in range(50 + draws * thin):
            if augmented:
                y = draw_skellam_bessel(rng, y, z, scales, np.full(cells, mu))
            else:
                for i in range(cells):
                    y[i] = draw_poisson_two_sided(rng, z[i], scale, 0.0, np.inf, mu)
            mu = rng.standard_gamma(shape + y.sum()) / (rate + cells)
            if j >= 50 and (j - 50) % thin == 0 and mu < truth:
                below += 1
        ranks[t] = below
    return ranks


@pytest.mark.parametrize("augmented", [True, False], ids=["augmented", "direct"])
def test_simulation_based_calibration(augmented):
    rng = np.random.default_rng(4)
    ranks = _ranks(rng, 300, augmented, 19, 15, 4, 2.0, 0.5, 2.0)
    uniform(ranks, 19)


def test_rates_given_a_count():
    """Mean of the first rate: that of the noise it makes, plus one."""
    rng, alpha = np.random.default_rng(5), math.exp(-0.5)
    found = np.array([draw_rates(rng, 2.0, 5.0, 2.0) for _ in range(40_000)])
    both = alpha**2 / (1 - alpha**2)
    has_moments(found, [4 + both, 1 + both])


@pytest.mark.parametrize(("z", "scale"), [(3.0, np.nan), (3.0, np.inf), (np.nan, 2.0)])
def test_what_is_no_number_is_not_drawn_from_without_end(z, scale):
    rng = np.random.default_rng(1)
    drawn = draw_skellam_bessel(rng, *np.array([[2.0], [z], [scale], [3.0]]))
    assert np.isnan(drawn).all()
