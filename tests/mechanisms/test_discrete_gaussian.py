import mpmath
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from scipy import stats

import pymc_dp as dp
from pymc_dp.kernels.draws import discrete_gaussian as kernels
from pymc_dp.mechanisms import DiscreteGaussianMechanism

PYTHON = Mode(linker="py", optimizer=None)
SIGMAS = [1e-3, 0.05, 0.3, 0.4, 0.999, 1.0, 1.5, 7.9, 8.0, 12.0, 50.0, 60.7]


def evaluate(*graphs):
    values = pytensor.function([], list(graphs), mode=PYTHON)()
    return values[0] if len(graphs) == 1 else values


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


@pytest.fixture(scope="module")
def compiled():
    """The functions and their gradients, by night compiled as in a model."""
    value, s, sigma, low, high, p = (
        pt.vector(name) for name in ("value", "s", "sigma", "low", "high", "p")
    )
    mechanism = DiscreteGaussianMechanism(sigma)
    graphs = [
        mechanism.logp(value, s),
        mechanism.log_interval(low, high, s),
        mechanism.icdf(p, s),
    ]
    grads = [pt.grad(graph.sum(), sigma) for graph in graphs[:2]]
    return pytensor.function([value, s, sigma, low, high, p], graphs + grads)


@pytest.mark.parametrize("sigma", [1e-3, 0.4, 3.0, 40.0])
def test_compiled_mechanism(compiled, sigma):
    k = np.array([0, 1, -2, 60, 10**9])
    expected = np.array([exact(abs(x), abs(x), sigma) for x in k])
    n = len(k)
    s = np.full(n, 12.0)
    ends = (k + 12.0 - 0.4, k + 12.0 + 0.9)
    actual = compiled(k + 12.0, s, np.full(n, sigma), *ends, np.full(n, 0.5))
    for i in (0, 1):
        np.testing.assert_allclose(actual[i], expected[:, 0], rtol=1e-13, atol=1e-300)
        np.testing.assert_allclose(actual[3 + i], expected[:, 1], rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(actual[2], 12.0)
    x = pt.scalar("x")
    slope = pt.grad(DiscreteGaussianMechanism(x).logp(3), x)
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        pt.grad(slope, x)


@pytest.mark.parametrize("sigma", [1e-3, 0.3, 2.0, 77.7, 1e6])
def test_icdf_is_the_least_value(sigma):
    p = np.array([1e-300, 1e-9, 0.01, 0.3, 0.5, 0.75, 1 - 1e-9])
    mechanism = DiscreteGaussianMechanism(sigma)
    z = mechanism.icdf(p, -5)
    at, before, values = evaluate(mechanism.logcdf(z, -5), mechanism.logcdf(z - 1, -5), z)
    assert np.all(values == np.round(values))
    assert np.all(at >= np.log(p) * (1 + 1e-14) - 1e-15)
    assert np.all(before < np.log(p))
    if sigma > 50:
        # Half a step of the continuous law, which has no more error than that.
        np.testing.assert_allclose(values, stats.norm(-5, sigma).ppf(p), atol=0.51)
    ends = evaluate(mechanism.icdf([0.0, 1.0, -0.1, 1.1, np.nan]))
    np.testing.assert_array_equal(ends, [-np.inf, np.inf, np.nan, np.nan, np.nan])


@pytest.mark.parametrize("sigma", [1e-3, 0.6, 0.9999, 1.0, 4.5, 300.0, 1e6])
@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(PYTHON, id="python"),
        pytest.param(None, id="default", marks=pytest.mark.compiled),
    ],
)
def test_draws(sigma, mode):
    mechanism = DiscreteGaussianMechanism(sigma)
    draws = pm.draw(mechanism.dist(np.full(40_000, -3)), random_seed=5, mode=mode)
    assert draws.dtype == "int64"
    edges = np.unique(evaluate(mechanism.icdf(np.linspace(0.005, 0.995, 31), -3)))
    cdf = np.exp(evaluate(mechanism.logcdf(edges, -3)))
    expected = 40_000 * np.diff(cdf, prepend=0.0, append=1.0)
    observed = np.bincount(np.searchsorted(edges, draws), minlength=len(edges) + 1)
    keep = expected > 1e-6
    assert observed[~keep].sum() == 0
    chi2 = ((observed - expected)[keep] ** 2 / expected[keep]).sum()
    assert stats.chi2.sf(chi2, max(keep.sum() - 1, 1)) > 1e-3


def test_draws_are_reproducible_and_independent():
    rv = DiscreteGaussianMechanism([1e3, 1e5]).dist(np.zeros((50, 2)))
    a, b = pm.draw(rv, draws=2, random_seed=3)
    assert len(np.unique(a[:, 1])) > 45
    assert np.any(a != b)
    np.testing.assert_array_equal(pm.draw(rv, draws=2, random_seed=3)[0], a)


def test_privacy_loss():
    mechanism = DiscreteGaussianMechanism.from_rho([0.5, 0.02], sensitivity=[1, 2])
    np.testing.assert_allclose(mechanism.sigma.data, [1.0, 10.0])
    np.testing.assert_allclose(mechanism.rho([1, 2]), [0.5, 0.02])
    assert DiscreteGaussianMechanism(2.0).rho() == 0.125
    assert mechanism.stated_epsilon((2,)) is None


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_bad_sigma(bad):
    message = r"DiscreteGaussianMechanism: sigma must be finite and > 0, got .*from_rho"
    with pytest.raises(ValueError, match=message):
        DiscreteGaussianMechanism([1.0, bad])
    with pytest.raises(ValueError, match="rho must be finite and > 0"):
        DiscreteGaussianMechanism.from_rho(bad)


def test_model():
    with pm.Model() as model:
        x = pm.Poisson("x", 4.0, shape=3)
        mechanism = dp.DiscreteGaussianMechanism(2.0)
        message = r"cannot publish 1\.5 at index 1: DiscreteGaussian.*use dp\.GaussianMechanism"
        with pytest.raises(ValueError, match=message):
            dp.PrivateObservation("z", x, mechanism, observed=[1, 1.5, 2])
        z = dp.PrivateObservation("z", x, mechanism, observed=[4.0, -2.0, 7.0])
        prior = pm.sample_prior_predictive(20, random_seed=1)
    logp = model.compile_logp(vars=[z])({**model.initial_point(), "x": np.array([3, 0, 7])})
    k = np.arange(-60, 61)
    log_normaliser = np.log(np.exp(-(k**2) / 8).sum())
    np.testing.assert_allclose(logp, -5 / 8 - 3 * log_normaliser, rtol=1e-13)
    assert prior.prior_predictive["z"].dtype == "int64"
    with pytest.raises(AssertionError, match=r"whole number.*dp\.GaussianMechanism"):
        pm.draw(mechanism.dist(0.5), mode=PYTHON)


def test_post_processed():
    z = np.arange(-60, 61)
    mechanism = DiscreteGaussianMechanism(4.2)
    masses = np.exp(evaluate(mechanism.logp(z, 3)))
    by_value = np.bincount(np.clip(z, 0, 8), weights=masses)
    clipped = mechanism.clipped(0, 8)
    np.testing.assert_allclose(
        np.exp(evaluate(clipped.logp(np.arange(9), 3))), by_value, rtol=1e-12
    )
    tens = np.array([-20, -10, 0, 10, 20])
    expected = [masses[np.round(z / 10) * 10 == t].sum() for t in tens]
    actual = np.exp(evaluate(mechanism.rounded(-1).logp(tens, 3)))
    np.testing.assert_allclose(actual, expected, rtol=1e-11)
