"""Exact draws of counts, against their probabilities."""

from functools import cache

import mpmath
import numpy as np
import pytest
from scipy import special, stats

from pymc_dp.kernels import njit
from pymc_dp.kernels.counts.exchanges import log_binomial, log_rising, make_table_sweep
from tests.agreement import follows, values_follow

DRAWS = 30_000
NO_ROWS = np.empty((0, 2))


@njit(cache=True)
def laplace(counts, rows, z, b):
    return -abs(z - counts[1]) / b


@njit(cache=True)
def gaussian(counts, rows, z, b):
    return -0.5 * ((z - counts[1]) / b) ** 2


@njit(cache=True)
def bimodal(counts, rows, z, b):
    return -abs(z - counts[0] * counts[1]) / b


@njit(cache=True)
def one_entry_each(counts, rows, z, b):
    """Histogram under Laplace noise; only some of its entries where `rows` says so."""
    total = 0.0
    for row in rows:
        total -= abs(z[row] - counts[row]) / b
    return total


@njit(cache=True)
def joint(counts, rows, z, b):
    """A release that is no sum over cells: of a weighted sum, and of the last cell."""
    return -abs(z[0] - counts[0] - 2 * counts[1]) / b - abs(z[1] - counts[2]) / b


SWEEPS = {f: make_table_sweep(f) for f in (laplace, gaussian, bimodal, one_entry_each, joint)}


@cache
def chain(noise):
    """Return a function that keeps the draws of sweeps under one of the densities above."""
    sweep = SWEEPS[noise]

    @njit(cache=True)
    def run(rng, draws, thin, counts, slopes, weights, integrated, concave, rounds, z, b):
        out = np.empty((draws, counts.size))
        for i in range(draws):
            for _ in range(thin):
                sweep(rng, counts, slopes, weights, integrated, concave, rounds, (z, b))
            out[i] = counts
        return out

    return run


@pytest.mark.parametrize(
    ("n", "p"),
    [(1, 0.3), (10, 0.3), (50, 0.9), (1000, 0.001), (10**6, 1 - 1e-9), (10**9, 0.5), (10**9, 1e-8)],
)
def test_log_binomial(n, p):
    mean, sd = n * p, (n * p * (1 - p)) ** 0.5
    values = {0, 1, 2, n // 2, n - 1, n, int(mean), int(mean + 3 * sd), int(mean - 5 * sd)}
    with mpmath.workdps(50):
        for c in sorted(v for v in values if 0 <= v <= n):
            p_, q_ = mpmath.mpf(p), 1 - mpmath.mpf(p)
            exact = mpmath.log(mpmath.binomial(n, c)) if n < 100 else (
                mpmath.loggamma(n + 1) - mpmath.loggamma(c + 1) - mpmath.loggamma(n - c + 1)
            )  # fmt: skip
            exact = float(exact + c * mpmath.log(p_) + (n - c) * mpmath.log(q_))
            # 1 - p is not a double: its rounding counts n - c times
            slack = (n - c) * 1.2e-16 / (1 - p)
            assert abs(log_binomial(float(c), float(n), p, 1 - p) - exact) <= (
                1e-13 * abs(exact) + 2e-11 + slack
            )
    assert log_binomial(-1.0, float(n), p, 1 - p) == -np.inf
    assert log_binomial(n + 1.0, float(n), p, 1 - p) == -np.inf


def test_log_binomial_at_the_ends():
    assert log_binomial(0.0, 5.0, 0.0, 1.0) == 0.0
    assert log_binomial(5.0, 5.0, 1.0, 0.0) == 0.0
    assert log_binomial(2.0, 5.0, 0.0, 1.0) == -np.inf
    assert log_binomial(2.0, 5.0, 1.0, 0.0) == -np.inf
    assert log_binomial(0.0, 0.0, 0.3, 0.7) == 0.0


@pytest.mark.parametrize("a", [1e-3, 0.3, 1.0, 2.5, 30.0, 1e6])
def test_log_rising(a):
    with mpmath.workdps(50):
        for c in (0, 1, 3, 10, 11, 12, 100, 10**6, 10**9):
            exact = float(mpmath.loggamma(mpmath.mpf(c) + a) - mpmath.loggamma(c + 1))
            assert log_rising(float(c), a) == pytest.approx(exact, rel=2e-13, abs=2e-13)


@pytest.mark.by_day(
    "laplace-50-33.0-2.0-weights0-False-listed",
    "laplace-50-33.0-2.0-weights0-False-rejection",
    "laplace-50--300.0-2.0-weights1-False-listed",
    "laplace-50--300.0-2.0-weights1-False-rejection",
    "laplace-50-60.0-1000000000.0-weights8-True-rejection",
    "laplace-2-1.0-0.01-weights6-True-listed",
    "laplace-1-0.3-2.0-weights4-False-listed",
    "gaussian-400-130.0-10.0-weights11-True-rejection",
)
@pytest.mark.parametrize("concave", [True, False], ids=["rejection", "listed"])
@pytest.mark.parametrize(
    ("noise", "t", "z", "b", "weights", "integrated"),
    [
        (laplace, 50, 33.0, 2.0, (0.3, 0.7), False),
        (laplace, 50, -300.0, 2.0, (0.3, 0.7), False),
        (laplace, 50, 400.0, 1.0, (0.999, 0.001), False),
        (laplace, 1000, 900.0, 30.0, (0.001, 0.999), False),
        (laplace, 1, 0.3, 2.0, (0.3, 0.7), False),
        (laplace, 2, 1.0, 1e6, (0.5, 0.5), False),
        (laplace, 2, 1.0, 0.01, (0.3, 0.7), True),
        (laplace, 50, 33.0, 2.0, (1.0, 1.0), True),
        (laplace, 50, 60.0, 1e9, (1.0, 1.0), True),
        (laplace, 50, 20.0, 20.0, (0.5, 0.2), True),
        (laplace, 50, 33.0, 1e6, (0.05, 3.0), True),
        (gaussian, 400, 130.0, 10.0, (2.5, 1.0), True),
        (gaussian, 400, -50.0, 10.0, (30.0, 1.0), True),
        (gaussian, 30, 12.2, 0.6, (0.2, 0.8), False),
    ],
)
def test_two_cells(noise, t, z, b, weights, integrated, concave):
    c, weights = np.arange(t + 1), np.array(weights)
    if integrated:
        log_p = stats.betabinom.logpmf(c, t, weights[1], weights[0])
    else:
        log_p = stats.binom.logpmf(c, t, weights[1])
    log_p = log_p + np.array([noise(np.array([t - i, float(i)]), c[:0], z, b) for i in c])
    # The mixing variables of weights below one couple successive draws.
    thin = 10 if integrated and concave and weights.min() < 1 else 1
    rng, start = np.random.default_rng(t), np.array([float(t), 0.0])
    draws = chain(noise)(rng, DRAWS, thin, start, NO_ROWS, weights, integrated, concave, 1, z, b)
    assert np.all(draws.sum(axis=1) == t)
    values_follow(draws[:, 1], c, special.softmax(log_p))


@pytest.mark.nightly
def test_two_modes_are_listed():
    t, z, b = 40, 300.0, 8.0
    c = np.arange(t + 1)
    p = stats.binom.pmf(c, t, 0.45) * np.exp(-abs(z - c * (t - c)) / b)
    weights, rng = np.array([0.55, 0.45]), np.random.default_rng(1)
    start = np.array([20.0, 20.0])
    draws = chain(bimodal)(rng, DRAWS, 1, start, NO_ROWS, weights, False, False, 1, z, b)
    values_follow(draws[:, 1], c, p)


@pytest.mark.parametrize("integrated", [True, False], ids=["integrated", "given"])
@pytest.mark.parametrize("noise", [joint, one_entry_each])
@pytest.mark.nightly
def test_table(noise, integrated):
    n, b = 7, 1.5
    weights = np.array([0.5, 1.0, 2.5])
    if not integrated:
        weights /= weights.sum()
    states = np.array([(i, j, n - i - j) for i in range(n + 1) for j in range(n + 1 - i)])
    z = np.array([4.0, 3.0, 1.0])
    law = stats.dirichlet_multinomial(weights, n) if integrated else stats.multinomial(n, weights)
    log_p = law.logpmf(states) + [noise(s, np.arange(3), z, b) for s in states.astype(float)]
    slopes = np.eye(3) if noise is one_entry_each else np.empty((0, 3))
    rng, start = np.random.default_rng(2), np.array([float(n), 0.0, 0.0])
    draws = chain(noise)(rng, DRAWS, 5, start, slopes, weights, integrated, True, 2, z, b)
    values_follow(draws, states, special.softmax(log_p))


def test_a_billion():
    draws, z, b = 20_000, 5.3e8, 1e5
    rng, weights = np.random.default_rng(3), np.ones(2)
    start = np.array([1e9, 0.0])
    out = chain(gaussian)(rng, draws, 1, start, NO_ROWS, weights, True, True, 1, z, b)[1:, 1]
    assert abs(out.mean() - z) < 5 * b / draws**0.5
    follows(out, stats.norm(z, b))
    # The probability given: precisions of the binomial and the noise add up.
    weights = np.array([0.47, 0.53])
    out = chain(gaussian)(rng, draws, 1, start, NO_ROWS, weights, False, True, 1, z, 1e4)
    sd = (1 / 1e8 + 1 / (1e9 * 0.47 * 0.53)) ** -0.5
    follows(out[1:, 1], stats.norm(5.3e8, sd))


@pytest.mark.parametrize("concave", [True, False])
@pytest.mark.parametrize("z", [np.nan, np.inf])
def test_nothing_to_draw_from(concave, z):
    counts = np.array([3.0, 4.0])
    sweep = SWEEPS[laplace]
    rng = np.random.default_rng(0)
    assert not sweep(rng, counts, NO_ROWS, np.ones(2), False, concave, 1, (z, 1.0))
    assert counts.tolist() == [3.0, 4.0]
