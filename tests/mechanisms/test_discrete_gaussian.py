import mpmath
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_dp.kernels.draws import discrete_gaussian as kernels
from pymc_dp.mechanisms import DiscreteGaussianMechanism
from tests.mechanisms.noise import functions_of

SIGMAS = [1e-3, 0.05, 0.3, 0.4, 0.999, 1.0, 1.5, 7.9, 8.0, 12.0, 50.0, 60.7]


def series(first, last, sigma, moment=0):
    """Sum of (k / sigma)^moment exp(-k^2 / (2 sigma^2)), 0 <= f <= k <= l, term by term."""
    sigma, total, k = mpmath.mpf(float(sigma)), mpmath.mpf(0), first
    while k <= last:
        u = mpmath.mpf(k) / sigma
        term = u**moment * mpmath.exp(-u * u / 2)
        total += term
        if k > first + 3 and term < total * mpmath.mpf(10) ** -35:
            break
        k += 1
    return total


def theta(sigma):
    """The normaliser, by mpmath's theta function on the side where it converges."""
    sigma = mpmath.mpf(float(sigma))
    if sigma < 1:
        return mpmath.jtheta(3, 0, mpmath.exp(-1 / (2 * sigma**2)))
    dual = mpmath.jtheta(3, 0, mpmath.exp(-2 * mpmath.pi**2 * sigma**2))
    return sigma * mpmath.sqrt(2 * mpmath.pi) * dual


def exact(first, last, sigma):
    """Log probability of an interval and its derivative in sigma, by sums in many digits."""
    mpmath.mp.dps = 50 if sigma > 0.1 else 150
    if last <= 0:
        first, last = -last, -first
    normaliser = theta(sigma)
    variance = 2 * series(1, mpmath.inf, sigma, 2) / normaliser
    if first >= 0:
        total, second = series(first, last, sigma), series(first, last, sigma, 2)
        log_p = mpmath.log(total / normaliser)
    else:
        total = 1 + series(1, last, sigma) + series(1, -first, sigma)
        second = series(1, last, sigma, 2) + series(1, -first, sigma, 2)
        rest = mpmath.mpf(0)
        for end in (last, -first):
            rest += series(end + 1, mpmath.inf, sigma) if end < np.inf else 0
        log_p = mpmath.log1p(-rest / normaliser)
    return float(log_p), float((second / total - variance) / mpmath.mpf(float(sigma)))


@pytest.mark.parametrize("sigma", [*SIGMAS, 0.39894, 1e6, 3e5])
def test_normaliser_against_theta_function(sigma):
    mpmath.mp.dps = 50 if sigma > 0.1 else 150
    log_z, variance = kernels.log_normaliser(float(sigma))
    np.testing.assert_allclose(log_z, float(mpmath.log(theta(sigma))), rtol=1e-13, atol=1e-300)
    if sigma < 10:
        expected = float(2 * series(1, mpmath.inf, sigma, 2) / theta(sigma))
        np.testing.assert_allclose(variance, expected, rtol=1e-13, atol=1e-300)
    elif sigma > 2:
        np.testing.assert_allclose(variance, 1.0, rtol=1e-14)


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.by_day("0.001", "0.05", "0.3", "0.4", "0.999", "1.0", "1.5", "7.9", "8.0")
def test_interval_against_sums(sigma):
    cases = []
    for u in (0, 0.3, 1, 1.9, 4, 9, 37):
        f = round(u * sigma)
        width = round(0.7 * sigma)
        cases += [(f, np.inf), (f, f), (f, f + 63), (f, f + 64), (f, f + 70), (f, f + width)]
        cases += [(-np.inf, f), (-width - 1, f + 1), (-f - 3, -f - 1), (-np.inf, -f - 1)]
    cases += [(10**9, np.inf), (10**9, 10**9 + 5)]
    expected = np.array([exact(*case, sigma) for case in cases])
    actual = np.array([kernels.log_between(*map(float, case), sigma) for case in cases])
    np.testing.assert_allclose(actual[:, 0], expected[:, 0], rtol=2e-13, atol=1e-300)
    np.testing.assert_allclose(actual[:, 1], expected[:, 1], rtol=1e-9, atol=1e-13 / sigma)


@pytest.mark.parametrize("sigma", [300.0, 5e3, 1e6])
def test_wide_noise_against_euler_maclaurin_on_the_lattice(sigma):
    """The textbook form of the formula, with its ends on the lattice, and more terms of it."""
    mpmath.mp.dps = 60
    s = mpmath.mpf(sigma)

    def tail(k):
        x = mpmath.mpf(k)
        u, he = x / s, [mpmath.mpf(1), x / s]
        for n in range(1, 30):
            he.append(u * he[n] - n * he[n - 1])
        g = mpmath.exp(-u * u / 2)
        total = s * mpmath.sqrt(mpmath.pi / 2) * mpmath.erfc(u / mpmath.sqrt(2)) + g / 2
        for j in range(1, 15):
            slope = (-1 / s) ** (2 * j - 1) * he[2 * j - 1] * g
            total -= mpmath.bernoulli(2 * j) / mpmath.factorial(2 * j) * slope
        return total

    for u in (0.0, 0.4, 2.0, 6.0, 37.0):
        f = int(u * sigma) + 1
        for width in (100, int(0.01 * sigma) + 70, int(sigma), None):
            last = float("inf") if width is None else float(f + width - 1)
            total = tail(f) - (0 if width is None else tail(f + width))
            expected = float(mpmath.log(total / theta(sigma)))
            actual = kernels.log_between(float(f), last, sigma)[0]
            np.testing.assert_allclose(actual, expected, rtol=1e-13)


@pytest.mark.parametrize("sigma", [1e-3, 0.4, 3.0, 40.0])
def test_mechanism_against_sums(sigma):
    k = np.array([0, 1, -2, 60, 10**9])
    expected = np.array([exact(abs(x), abs(x), sigma) for x in k])
    z = k + 12.0
    actual = functions_of(DiscreteGaussianMechanism)(z, 12.0, sigma, z - 0.4, z + 0.9)
    for mass, slope in (
        (actual.logp, actual.logp_by_scale),
        (actual.interval, actual.interval_by_scale),
    ):
        np.testing.assert_allclose(mass, expected[:, 0], rtol=1e-13, atol=1e-300)
        np.testing.assert_allclose(slope, expected[:, 1], rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(actual.icdf, 12.0)
    x = pt.scalar("x")
    slope = pt.grad(DiscreteGaussianMechanism(x).logp(3), x)
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        pt.grad(slope, x)


def test_draws_are_reproducible_and_independent():
    rv = DiscreteGaussianMechanism([1e3, 1e5]).dist(np.zeros((50, 2)))
    a, b = pm.draw(rv, draws=2, random_seed=3)
    assert len(np.unique(a[:, 1])) > 45
    assert np.any(a != b)
    np.testing.assert_array_equal(pm.draw(rv, draws=2, random_seed=3)[0], a)
