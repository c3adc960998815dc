"""Poisson counts seen through two-sided exponential noise, against references of many digits."""

import math

import mpmath as mp
import numpy as np
import pytest

from pymc_dp.kernels.counts.poisson import draw_poisson_two_sided, poisson_two_sided
from tests.references import references

CASES = [case for case in references("counts") if case["kind"] == "log P(t|mu,alpha) and d/dmu"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_reference(case):
    inputs, expected = case["inputs"], dict(case["expected"])
    lam = -math.log(inputs["alpha"])
    logp, _, slope = poisson_two_sided(float(inputs["t"]), lam, 0.0, inputs["mu"])
    np.testing.assert_allclose(
        logp + math.log(math.tanh(lam / 2)), expected.pop("logpmf"), rtol=1e-12, atol=1e-12
    )
    [gradient] = expected.values()
    np.testing.assert_allclose(slope, gradient, rtol=1e-10, atol=1e-12)


def reference(k, delta, lam, mu):
    """Both sums by incomplete gamma functions, in 60 digits."""
    with mp.workdps(60):
        lam, mu, delta = mp.mpf(lam), mp.mpf(mu), mp.mpf(delta)

        def total(rate, delta=delta):
            up, down = rate * mp.exp(lam), rate * mp.exp(-lam)
            left = mp.gammainc(k + 1, up, regularized=True) if k >= 0 else 0
            right = mp.gammainc(k + 1, 0, down, regularized=True) if k >= 0 else 1
            left *= mp.exp(up - rate - lam * (k + delta))
            return mp.log(left + mp.exp(down - rate + lam * (k + delta)) * right)

        h = mu * mp.mpf(10) ** -20
        slope = (total(mu + h) - total(mu - h)) / (2 * h)
        h = mp.mpf(10) ** -20
        by_z = (total(mu, delta + h) - total(mu, delta - h)) / (2 * h)
        return float(total(mu)), float(by_z), float(slope)


def test_anywhere():
    rng = np.random.default_rng(3)
    for _ in range(150):
        lam, mu = 10 ** rng.uniform(-4, 1.5), 10 ** rng.uniform(-6, 3.7)
        k = int(rng.choice([rng.integers(-20, 50), mu * rng.uniform(0.5, 1.5), rng.integers(3000)]))
        delta = rng.choice([0.0, rng.random()])
        logp, by_delta, slope = poisson_two_sided(float(k), lam, delta, mu)
        expected, by_z, gradient = reference(k, delta, lam, mu)
        assert abs(logp - expected) <= 1e-13 * max(1, abs(expected)), (k, delta, lam, mu)
        assert abs(by_delta - by_z) <= 1e-11 * lam
        assert abs(slope - gradient) <= 1e-11 * max(1e-3, abs(gradient)), (k, delta, lam, mu)


@pytest.mark.parametrize("k", [-3.0, 0.0, 4.0])
@pytest.mark.parametrize("lam", [1e-12, 1e-3, 40.0, 5000.0])
def test_extremes_are_finite(k, lam):
    for mu in (1e-300, 1.0, 1e9):
        logp, _, slope = poisson_two_sided(k, lam, 0.0, mu)
        assert math.isfinite(logp)
        assert not math.isnan(slope)
    # Without noise the count itself is seen.
    if lam == 5000.0 and k >= 0:
        expected = k * math.log(2.5) - 2.5 - math.lgamma(k + 1)
        assert poisson_two_sided(k, lam, 0.0, 2.5)[0] == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("delta", [0.0, 0.0004, 0.5, 0.9992])
@pytest.mark.parametrize("lam", [99.0, 101.0, 700.0, 1e3, 1e6])
def test_between_counts_with_hardly_any_noise(lam, delta):
    """The nearer of two counts alone is left; its term underflows beside none."""
    for k, mu in ((0, 1e-3), (4, 4.0), (399, 350.0)):
        terms = [y * mp.log(mu) - mp.loggamma(y + 1) - lam * abs(k + delta - y) for y in (k, k + 1)]
        expected = float(mp.log(sum(map(mp.exp, terms))) - mu)
        found = poisson_two_sided(float(k), lam, delta, mu)[0]
        assert abs(found - expected) <= 1e-12 * max(1, abs(expected), lam * 1e-4), (k, mu)


def test_draws_with_hardly_any_noise():
    """The tilted rate is beyond the integers there; the count is the release."""
    rng = np.random.default_rng(1)
    for noise in (0.025, 0.02, 0.001):
        assert draw_poisson_two_sided(rng, 4.0, noise, 0.0, np.inf, 3.0) == 4.0
