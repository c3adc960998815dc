"""The Skellam and Bessel laws: against 50-digit references, sums, and their own draws."""

import itertools
import math

import mpmath as mp
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.testing import assert_support_point_is_expected
from scipy import stats

from pymc_dp.distributions import Bessel, Skellam
from pymc_dp.kernels.functions import bessel as kernels
from tests.distributions.random import random_checks
from tests.mechanisms.noise import assert_law_of_draws

INF = np.inf


def log_bessel_i(order, x):
    """Log of I_v(x) by its integral on the steepest contour; the trapezoid rule is exact there."""
    with mp.workdps(50):
        v, x = mp.mpf(order), mp.mpf(x)
        if v + x < 20:
            return mp.log(mp.besseli(v, x))
        t, w = mp.asinh(v / x), mp.sqrt(v * v + x * x)
        step = 1 / (8 * mp.sqrt(w))
        total = mp.mpf(1)
        for j in range(1, 110):
            angle = mp.mpc(0, j * step)
            total += 2 * mp.re(mp.exp(x * (mp.cosh(t + angle) - mp.cosh(t)) - v * angle))
        return x * mp.cosh(t) - v * t + mp.log(total * step / (2 * mp.pi))


def log_skellam(k, mu1, mu2):
    with mp.workdps(50):
        a, b = mp.mpf(mu1), mp.mpf(mu2)
        return -a - b + mp.mpf(k) / 2 * mp.log(a / b) + log_bessel_i(abs(k), 2 * mp.sqrt(a * b))


def log_bessel(k, order, a):
    with mp.workdps(50):
        ways = mp.loggamma(k + 1) + mp.loggamma(k + mp.mpf(order) + 1)
        return (2 * k + mp.mpf(order)) * mp.log(mp.mpf(a) / 2) - ways - log_bessel_i(order, a)


@pytest.mark.parametrize("rates", list(itertools.product([1e-8, 0.3, 20.0, 1e4, 1e8], repeat=2)))
def test_skellam_against_mpmath(rates):
    """The mass to 1e-12, the derivatives to 1e-9 of their size (or of a standard error's)."""
    mu1, mu2 = rates
    for q in (-8, -1, 0, 3):
        k = round(mu1 - mu2 + q * math.sqrt(mu1 + mu2))
        logp, by_1, by_2 = kernels.skellam_parts(float(k), mu1, mu2)
        here = log_skellam(k, mu1, mu2)
        assert abs(logp - here) <= 1e-12 * max(1, abs(here))
        for slope, shifted, rate in ((by_1, k - 1, mu1), (by_2, k + 1, mu2)):
            expected = mp.exp(log_skellam(shifted, mu1, mu2) - here) - 1
            assert (
                abs(slope - expected)
                <= 1e-9 * max(abs(expected), 1e-3 / math.sqrt(1 + rate)) + 1e-15
            )


@pytest.mark.parametrize("order", [0, 1, 7, 39, 1000, 10**6])
@pytest.mark.parametrize("a", [1e-8, 0.3, 12.0, 39.5, 1e3, 1e6])
def test_bessel_against_mpmath(order, a):
    with mp.workdps(50):
        mean = mp.mpf(a) / 2 * mp.exp(log_bessel_i(order + 1, a) - log_bessel_i(order, a))
    np.testing.assert_allclose(kernels.bessel_mean(float(order), a), float(mean), rtol=1e-12)
    for q in (-5, 0, 2, 20):
        k = max(0, round(float(mean) + q * math.sqrt(float(mean) + 1)))
        logp, slope = kernels.bessel_parts(float(k), float(order), a)
        expected = log_bessel(k, order, a)
        assert abs(logp - expected) <= 1e-13 * max(1, abs(expected)) + 1e-12
        np.testing.assert_allclose(slope, float(2 * (k - mean) / a), rtol=1e-10, atol=1e-10)


def test_one_rate_is_zero():
    k = np.arange(-3.0, 4.0)
    for mu1, mu2, sign in ((2.0, 0.0, 1), (0.0, 2.0, -1)):
        logp = [kernels.skellam_parts(x, mu1, mu2)[0] for x in k]
        np.testing.assert_allclose(logp, stats.poisson.logpmf(sign * k, 2.0), rtol=1e-14)
        cdf = [kernels.skellam_logcdf(x, mu1, mu2) for x in k]
        law = stats.poisson(2.0)
        expected = law.cdf(k) if sign > 0 else law.sf(-k - 1)
        np.testing.assert_allclose(np.exp(cdf), expected, rtol=1e-12)
    assert kernels.skellam_parts(0.0, 0.0, 0.0)[0] == 0.0


@pytest.fixture(scope="module")
def densities():
    """Densities of both laws as PyMC distributions, and their distribution functions."""
    mu1, mu2, nu, a, k = *pt.dscalars("mu1", "mu2"), pt.lscalar("nu"), pt.dscalar("a"), pt.lvector()
    laws = {(mu1, mu2): Skellam.dist(mu1, mu2), (nu, a): Bessel.dist(nu, a)}
    return [
        pytensor.function([k, *parameters], [pm.logp(law, k), pm.logcdf(law, k)])
        for parameters, law in laws.items()
    ]


@pytest.mark.by_day("5.0-0.6")
@pytest.mark.parametrize("mu2", [0.01, 0.6, 5.0, 30.0])
@pytest.mark.parametrize("mu1", [0.01, 0.6, 5.0, 30.0])
def test_skellam_as_pymc_distribution(mu1, mu2, densities):
    values = np.arange(-120, 70)
    logp, logcdf = densities[0](values, mu1, mu2)
    expected = [float(log_skellam(int(v), mu1, mu2)) for v in values]
    np.testing.assert_allclose(logp, expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(np.exp(logcdf), np.exp(expected).cumsum(), rtol=1e-9, atol=1e-11)


@pytest.mark.by_day("4-40.0")
@pytest.mark.parametrize("a", [0.1, 3.0, 40.0])
@pytest.mark.parametrize("nu", [0, 1, 4, 50])
def test_bessel_as_pymc_distribution(nu, a, densities):
    values = np.arange(-1, 60)
    logp, logcdf = densities[1](values, nu, a)
    expected = [-INF, *(float(log_bessel(int(v), nu, a)) for v in values[1:])]
    np.testing.assert_allclose(logp, expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(np.exp(logcdf), np.exp(expected).cumsum(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("k", "mu1", "mu2"), [(-30, 3.0, 9.0), (100, 1e8, 1e8), (-(10**5), 1e8, 1e8)]
)
def test_skellam_tails(k, mu1, mu2):
    below, upto = (kernels.skellam_logcdf(x, mu1, mu2) for x in (k - 1.0, float(k)))
    mass = upto + math.log(-math.expm1(below - upto))
    np.testing.assert_allclose(mass, float(log_skellam(k, mu1, mu2)), rtol=1e-8)
    # From the other side: X <= k and -X >= -k.
    above = kernels.skellam_logcdf(-k - 1.0, mu2, mu1)
    np.testing.assert_allclose(math.exp(upto) + math.exp(above), 1.0, rtol=1e-11)


def test_gradient_in_a_graph():
    mu1, mu2, a = pt.dscalars("mu1", "mu2", "a")
    logp = pm.logp(Skellam.dist(mu1, mu2), np.array([4, -2])).sum() + pm.logp(Bessel.dist(3, a), 2)
    function = pytensor.function([mu1, mu2, a], [logp, *pytensor.grad(logp, [mu1, mu2, a])])
    point = [3.0, 1.5, 7.0]
    for i, slope in enumerate(function(*point)[1:]):
        ends = [
            function(*(x + h * (i == j) for j, x in enumerate(point)))[0] for h in (1e-6, -1e-6)
        ]
        np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-6, rtol=1e-7)


@pytest.mark.by_day("3-10.0", "0-1e-08")
@pytest.mark.parametrize(
    ("nu", "a"), [(0, 1e-8), (0, 1.0), (3, 10.0), (100, 50.0), (1000, 1e3), (0, 400.0)]
)
def test_bessel_draws(nu, a):
    draws = np.array(pm.draw(Bessel.dist(nu, a), 20_000, random_seed=7))
    values = np.arange(draws.max() + 60)
    masses = np.exp(pm.logp(Bessel.dist(nu, a), values).eval())
    assert_law_of_draws(draws, values, masses.cumsum())


def test_draws_at_large_parameters():
    for law, mean, variance in (
        (Bessel.dist(10**6, 1e6), Bessel.mean(10**6, 1e6), Bessel.variance(10**6, 1e6)),
        (Skellam.dist(1e8, 1e7), Skellam.mean(1e8, 1e7), Skellam.variance(1e8, 1e7)),
    ):
        draws = np.array(pm.draw(law, 4000, random_seed=3), dtype=float)
        m, v = float(mean.eval()), float(variance.eval())
        assert abs(draws.mean() - m) < 4 * math.sqrt(v / 4000)
        assert abs(draws.var() / v - 1) < 4 * math.sqrt(2 / 4000)


def test_moments_and_support_points():
    with pm.Model() as model:
        Skellam("x", [3.2, 1.0], 1.0)
    assert_support_point_is_expected(model, [2, 0])
    with pm.Model() as model:
        Bessel("x", 3, 10.0, size=2)
    assert_support_point_is_expected(model, [3, 3])
    k = np.arange(200)
    p = np.exp(pm.logp(Bessel.dist(3, 10.0), k).eval())
    np.testing.assert_allclose(Bessel.mean(3, 10.0).eval(), p @ k, rtol=1e-12)
    np.testing.assert_allclose(Bessel.variance(3, 10.0).eval(), p @ k**2 - (p @ k) ** 2, rtol=1e-10)


TestSkellam = random_checks(Skellam, mu1=3.0, mu2=1.5)
TestBessel = random_checks(Bessel, nu=3.0, a=1.5)


def test_errors():
    for law in (Skellam.dist(-1.0, 1.0), Bessel.dist(-1, 1.0)):
        with pytest.raises(pm.logprob.utils.ParameterValueError, match=">= 0"):
            pm.logp(law, 1).eval()
    with pytest.raises(ValueError, match="mu1 >= 0 and mu2 >= 0"):
        pm.draw(Skellam.dist(-1.0, 1.0))
