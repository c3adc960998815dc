"""Poisson counts seen through two-sided exponential noise, against references of many digits."""

import json
import math
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest

from pymc_dp.kernels.poisson_mass import poisson_two_sided

CASES = [
    case
    for case in json.loads((Path(__file__).parents[1] / "data" / "counts.json").read_text())[
        "cases"
    ]
    if case["kind"] == "log P(t|mu,alpha) and d/dmu"
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_reference(case):
    inputs, expected = case["inputs"], dict(case["expected"])
    lam = -math.log(inputs["alpha"])
    logp, slope = poisson_two_sided(float(inputs["t"]), 0.0, lam, inputs["mu"])
    np.testing.assert_allclose(
        logp + math.log(math.tanh(lam / 2)), expected.pop("logpmf"), rtol=1e-12, atol=1e-12
    )
    [gradient] = expected.values()
    np.testing.assert_allclose(slope, gradient, rtol=1e-10, atol=1e-12)


def reference(k, delta, lam, mu):
    """Both sums by incomplete gamma functions, in 60 digits."""
    with mp.workdps(60):
        lam, mu, delta = mp.mpf(lam), mp.mpf(mu), mp.mpf(delta)

        def total(rate):
            up, down = rate * mp.exp(lam), rate * mp.exp(-lam)
            left = mp.gammainc(k + 1, up, regularized=True) if k >= 0 else 0
            right = mp.gammainc(k + 1, 0, down, regularized=True) if k >= 0 else 1
            left *= mp.exp(up - rate - lam * (k + delta))
            return mp.log(left + mp.exp(down - rate + lam * (k + delta)) * right)

        h = mu * mp.mpf(10) ** -20
        return float(total(mu)), float((total(mu + h) - total(mu - h)) / (2 * h))


def test_anywhere():
    rng = np.random.default_rng(3)
    for _ in range(150):
        lam, mu = 10 ** rng.uniform(-4, 1.5), 10 ** rng.uniform(-6, 3.7)
        k = int(rng.choice([rng.integers(-20, 50), mu * rng.uniform(0.5, 1.5), rng.integers(3000)]))
        delta = rng.choice([0.0, rng.random()])
        logp, slope = poisson_two_sided(float(k), delta, lam, mu)
        expected, gradient = reference(k, delta, lam, mu)
        assert abs(logp - expected) <= 1e-13 * max(1, abs(expected)), (k, delta, lam, mu)
        assert abs(slope - gradient) <= 1e-11 * max(1e-3, abs(gradient)), (k, delta, lam, mu)


@pytest.mark.parametrize("k", [-3.0, 0.0, 4.0])
@pytest.mark.parametrize("lam", [1e-12, 1e-3, 40.0, 5000.0])
def test_extremes_are_finite(k, lam):
    for mu in (1e-300, 1.0, 1e9):
        logp, slope = poisson_two_sided(k, 0.0, lam, mu)
        assert math.isfinite(logp)
        assert not math.isnan(slope)
    # Without noise the count itself is seen.
    if lam == 5000.0 and k >= 0:
        expected = k * math.log(2.5) - 2.5 - math.lgamma(k + 1)
        assert poisson_two_sided(k, 0.0, lam, 2.5)[0] == pytest.approx(expected, rel=1e-13)
