"""Sums of binomial counts of different probabilities with noise, against convolutions."""

import mpmath as mp
import numpy as np
import pytest
from scipy import special, stats

from pymc_dp.kernels import njit
from pymc_dp.kernels.counts.binomial_sums import make_binomial_sum_draws, make_binomial_sums
from pymc_dp.kernels.counts.noise import ADDITIVE
from pymc_dp.kernels.functions.count_masses import log_binomial
from tests.agreement import counts_follow

# Rates and precisions: a noise of nothing, of hardly anything, of all scales between, and of much.
NOISES = [(1e4, 0.0), (50.0, 0.0), (1.0, 0.0), (1e-4, 0.0), (0.0, 1e4), (0.0, 1.0), (0.0, 1e-6)]
RELEASES = [-1e5, -40.3, -1.0, 0.0, 0.5, 3.0, 7.25, 1e4]
EXTREME = [0.0, 1e-12, 1e-6, 0.01, 0.3, 0.5, 0.9, 1 - 1e-6, 1 - 1e-12, 1.0]


@njit
def unpack(row):
    return row[0], row[1]


SUMS, DRAWS = (make(ADDITIVE, unpack) for make in (make_binomial_sums, make_binomial_sum_draws))


def summed(trials, chance, z, noise):
    """Return the log density, and its derivatives by the release and the probabilities."""
    cells = np.array([trials, chance], dtype=float)
    entry = np.zeros(cells.shape[1])
    log_p, by_z, by_chance = SUMS(np.array(noise)[:, None], np.array([z]), *cells, entry)
    return log_p[0], by_z[0], by_chance


def exact(trials, chance, z, noise):
    """Return the log density and its derivatives by the probabilities, in 60 digits."""
    lam, tau = map(mp.mpf, noise)

    def eta(s):
        return mp.exp(-lam * abs(mp.mpf(z) - s) - tau * (mp.mpf(z) - s) ** 2 / 2)

    def law(counts):
        masses = [mp.mpf(1)]
        for n, p in zip(counts, map(mp.mpf, chance), strict=True):
            one = [mp.binomial(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
            masses = [
                mp.fsum(masses[s - c] * one[c] for c in range(n + 1) if 0 <= s - c < len(masses))
                for s in range(len(masses) + n)
            ]
        return masses

    with mp.workdps(60):
        total = mp.fsum(f * eta(s) for s, f in enumerate(law(trials)))
        slopes = []
        for j, n in enumerate(trials):
            less = law([m - (i == j) for i, m in enumerate(trials)]) if n else []
            rest = mp.fsum(f * (eta(s + 1) - eta(s)) for s, f in enumerate(less))
            slopes.append(float(n * rest / total))
        return float(mp.log(total)), np.array(slopes)


def test_all_scales_of_noise_probabilities_and_releases():
    """Where the release is far from all that is likely, too."""
    rng = np.random.default_rng(0)
    for k in range(120):
        cells = rng.integers(0, 6)
        trials = [int(n) for n in rng.choice([0, 1, 2, 5, 9], cells)]
        chance = [float(p) for p in rng.choice(EXTREME, cells)]
        noise, z = NOISES[k % len(NOISES)], RELEASES[k % len(RELEASES)]
        log_p, _, by_chance = summed(trials, chance, z, noise)
        expected, slopes = exact(trials, chance, z, noise)
        where = f"{trials}, {chance}, {noise}, {z}"
        np.testing.assert_allclose(log_p, expected, rtol=1e-12, atol=1e-12, err_msg=where)
        # Beyond is what no double holds; a slope of nearly 0 is a difference of two of size n.
        slopes, by_chance = (np.clip(x, -1e300, 1e300) for x in (slopes, by_chance))
        error = np.abs(by_chance - slopes) / (np.abs(slopes) + trials + 1e-300)
        assert np.max(error, initial=0.0) < 1e-9, where


@pytest.mark.parametrize("n", [50, 3000])
@pytest.mark.parametrize("where", [-3.0, 0.0, 0.5, 1.0, 1.5])
def test_many_records_of_different_probabilities(n, where):
    rng = np.random.default_rng(n)
    chance = special.expit(rng.normal(0, 2, n))
    log_law = np.zeros(1)
    for p in chance:
        zero, one = log_law + np.log1p(-p), log_law + np.log(p)
        log_law = np.logaddexp(np.append(zero, -np.inf), np.append(-np.inf, one))
    z, s = where * n, np.arange(n + 1)
    for lam, tau in NOISES:
        e = z - s
        terms = log_law - lam * np.abs(e) - 0.5 * tau * e**2
        log_p, by_z, by_chance = summed(np.ones(n), chance, z, (lam, tau))
        np.testing.assert_allclose(log_p, special.logsumexp(terms), rtol=1e-11, atol=1e-11)
        by_noise = special.softmax(terms) @ (-lam * np.where(e >= 0, 1, -1) - tau * e)
        np.testing.assert_allclose(by_z, by_noise, rtol=1e-9, atol=1e-9)
        # The scores of all records add up to what the sum is beyond its mean.
        excess = special.softmax(terms) @ s - chance.sum()
        score = by_chance @ (chance * (1 - chance))
        np.testing.assert_allclose(score, excess, rtol=1e-9, atol=1e-9 * n)


def test_one_cell_is_a_binomial_count():
    """Up to a billion trials, in the tail and in the middle."""
    masses = np.vectorize(log_binomial)  # SciPy's have six digits of a billion trials
    for n, p in [(100_000, 0.3), (1_000_000_000, 1e-7), (100_000_000, 0.5)]:
        spread = np.sqrt(n * p * (1 - p))
        for z in (n * p, n * p + 40 * spread):
            window = np.arange(max(0, int(n * p - 20 * spread)), int(n * p + 60 * spread))
            terms = masses(window, n, p, 1 - p) - np.abs(z - window)
            log_p, _, by_chance = summed([n], [p], z, (1.0, 0.0))
            np.testing.assert_allclose(log_p, special.logsumexp(terms), rtol=1e-8)
            excess = special.softmax(terms) @ (window - n * p)
            np.testing.assert_allclose(by_chance[0] * p * (1 - p), excess, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("given", [([1], [1.5]), ([1], [np.nan]), ([-1], [0.5]), ([0.5], [0.5])])
def test_what_is_no_law_has_no_density(given):
    assert np.isnan(summed(*given, 0.0, (1.0, 0.0))[0])


@pytest.mark.parametrize("noise", [(0.3, 0.0), (0.0, 2.0), (20.0, 0.0)])
def test_draws_of_the_sum(noise):
    trials, chance, z = np.array([3.0, 1, 4, 2]), np.array([0.2, 1.0, 0.7, 0.01]), 8.6
    law = np.ones(1)
    for n, p in zip(trials, chance, strict=True):
        law = np.convolve(law, stats.binom(n, p).pmf(np.arange(n + 1)))
    e = z - np.arange(law.size)
    chances = law * np.exp(-noise[0] * np.abs(e) - 0.5 * noise[1] * e**2)
    rng, entry = np.random.default_rng(5), np.zeros(4)
    rows = np.array(noise)[:, None]
    drawn = [DRAWS(rng, rows, np.array([z]), trials, chance, entry)[0] for _ in range(4_000)]
    counts_follow(np.bincount(np.array(drawn, dtype=int), minlength=law.size), chances)
