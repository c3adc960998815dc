"""The truncated gamma mixture as a PyMC distribution."""

import itertools

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.testing import (
    Domain,
    Rplusbig,
    assert_support_point_is_expected,
    check_logcdf,
    check_logp,
)
from scipy import integrate, stats

from pymc_dp.distributions import TruncatedGammaMixture
from pymc_dp.distributions.truncated_gamma_mixture import TruncatedGammaMixtureRV
from pymc_dp.kernels.functions.tilting import gamma_log_tilted_mass
from tests.distributions.random import random_checks
from tests.kernels.functions.laplace import laplace_log_marginal_gamma

INF = np.inf
POSITIVE = Domain([0, 0.3, 1.0, 4.0, 20.0, INF])
CENTRE = Domain([-INF, -3.0, 0.0, 0.7, 12.0, INF])
# Shape, rate, noise rate, centre: the rate below, at and above the noise rate; centres off the
# support, in the bulk and far out; shapes with and without a pole at zero.
CASES = [
    (3.0, 0.5, 2.0, 4.0),
    (3.0, 2.0, 2.0, 4.0),
    (3.0, 2.0, 0.5, 1.0),
    (0.4, 1.0, 3.0, 0.6),
    (0.4, 3.0, 1.0, 0.6),
    (2.5, 1.0, 2.0, -3.0),
    (21.0, 0.0525, 0.01, 2224.8),
    (500.0, 5.0, 40.0, 90.0),
]


def logpdf(value, alpha, beta, lam, tau):
    alpha, beta, lam, tau = map(float, (alpha, beta, lam, tau))
    return (
        stats.gamma.logpdf(value, alpha, scale=1 / beta)
        - lam * np.abs(tau - value)
        + np.log(lam / 2)
        - laplace_log_marginal_gamma(tau, lam, alpha, beta, 0.0, INF)
    )


def cdf(values, alpha, beta, lam, tau):
    alpha, beta, lam, tau = map(float, (alpha, beta, lam, tau))
    norm = laplace_log_marginal_gamma(tau, lam, alpha, beta, 0.0, INF) - np.log(lam / 2)

    def mass(t, lo, hi):
        return np.exp(gamma_log_tilted_mass(t, tau, float(lo), float(hi), alpha, beta) - norm)

    return np.array(
        [mass(lam, 0.0, min(x, tau)) + mass(-lam, max(tau, 0.0), max(x, tau)) for x in values]
    )


def pieces(alpha, beta, lam, tau):
    """Return intervals that hold all mass, split at the kink."""
    width = np.sqrt(alpha) / beta
    points = [0.0, 1e-6, 1e-3, alpha / beta, alpha / beta + 5 * width, alpha / beta + 80 * width]
    if tau > 0.0:
        points += [tau, max(tau - 9 / lam, 0.0), tau + 9 / lam]
    points = sorted(set(points))
    return itertools.pairwise(points)


def integral(f, case):
    return sum(integrate.quad(f, *ends, limit=200)[0] for ends in pieces(*case))


@pytest.fixture(scope="module")
def compiled():
    value, *params = pt.dvectors("value", "alpha", "beta", "lam", "tau")
    rv = TruncatedGammaMixture.dist(*params)
    return pytensor.function(
        [value, *params],
        [
            pm.logp(rv, value),
            pm.logcdf(rv, value),
            TruncatedGammaMixture.mean(*params),
            TruncatedGammaMixture.variance(*params),
        ],
        on_unused_input="ignore",
    )


def test_logp():
    check_logp(
        TruncatedGammaMixture,
        Rplusbig,
        {"alpha": POSITIVE, "beta": POSITIVE, "lam": POSITIVE, "tau": CENTRE},
        logpdf,
        decimal=8,
        n_samples=60,
    )


def test_logcdf():
    with np.errstate(divide="ignore"):
        check_logcdf(
            TruncatedGammaMixture,
            Rplusbig,
            {"alpha": POSITIVE, "beta": POSITIVE, "lam": POSITIVE, "tau": CENTRE},
            lambda value, **params: np.log(cdf([value], **params)[0]),
            decimal=8,
            n_samples=60,
        )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_density_integrates_to_one_with_the_stated_moments(case, compiled):
    def density(s):
        return np.exp(logpdf(s, *case))

    # The compiled density is the reference's, at a point on either side of the kink.
    points = np.array([0.3, 0.9, 1.1, 2.0]) * max(case[3], 1.0)
    logp, logcdf, mean, variance = compiled(points, *(np.full(4, x) for x in case))
    np.testing.assert_allclose(logp, logpdf(points, *case), rtol=1e-10, atol=1e-10)
    assert integral(density, case) == pytest.approx(1.0, abs=1e-6)
    expected = integral(lambda s: s * density(s), case)
    assert mean[0] == pytest.approx(expected, rel=1e-6)
    expected = integral(lambda s: (s - mean[0]) ** 2 * density(s), case)
    assert variance[0] == pytest.approx(expected, rel=1e-6)
    below = integral(lambda s: density(s) * (s <= points[1]), case)
    assert np.exp(logcdf[1]) == pytest.approx(below, abs=1e-4)


def test_distribution_function_keeps_its_digits_in_both_tails(compiled):
    case = [np.full(2, x) for x in (3.0, 1.0, 2.0, 4.0)]
    _, logcdf, _, _ = compiled(np.array([1e-120, 300.0]), *case)
    # Near zero the density is (lam/2) beta^3 s^2 e^(-lam tau) / (2 p(tau)).
    p = laplace_log_marginal_gamma(4.0, 2.0, 3.0, 1.0, 0.0, INF)
    expected = 3 * np.log(1e-120) - np.log(6) - 8.0 - p
    assert logcdf[0] == pytest.approx(expected, rel=1e-13)
    assert -1e-300 < logcdf[1] <= 0.0


def test_outside_the_support(compiled):
    logp, logcdf, _, _ = compiled(np.array([-1.0, 0.0]), *(np.full(2, x) for x in CASES[0]))
    assert (logp == -INF).all()
    assert (logcdf == -INF).all()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_draws(case):
    rng = np.random.default_rng(1)
    draws = TruncatedGammaMixtureRV.rng_fn(rng, *case, size=(20_000,))
    assert (draws > 0).all()
    assert stats.kstest(draws, lambda x: cdf(x, *case)).pvalue > 1e-3


TestTruncatedGammaMixture = random_checks(
    TruncatedGammaMixture, alpha=3.0, beta=0.5, lam=2.0, tau=4.0
)


def test_compiled_draws_do_not_leave_numba():
    """Warnings are errors in this suite, and PyTensor's fall-back to Python warns."""
    rv = TruncatedGammaMixture.dist(np.array([3.0, 0.4]), 2, 2, tau=[[1.0], [-1.0], [9.0]])
    draws = pm.draw(rv, 4000, random_seed=3)
    assert draws.shape == (4000, 3, 2)
    tau = np.array([[1.0], [-1.0], [9.0]])
    expected = TruncatedGammaMixture.mean(np.array([3.0, 0.4]), 2, 2, tau).eval()
    np.testing.assert_allclose(draws.mean(0), expected, rtol=0.1)
    assert np.unique(draws).size == draws.size


@pytest.mark.parametrize(("size", "shape"), [(None, ()), (3, (3,)), ((2, 3), (2, 3))])
def test_support_point_is_the_mean(size, shape):
    with pm.Model() as model:
        TruncatedGammaMixture("x", 3.0, 0.5, 2.0, 4.0, size=size)
    expected = TruncatedGammaMixture.mean(3.0, 0.5, 2.0, 4.0).eval()
    assert_support_point_is_expected(model, np.full(shape, expected))


def test_parameters_are_checked():
    rv = TruncatedGammaMixture.dist(-1.0, 1.0, 1.0, 1.0)
    with pytest.raises(pm.logprob.utils.ParameterValueError, match="alpha > 0"):
        pm.logp(rv, 1.0).eval()


def test_pickles():
    rv = TruncatedGammaMixture.dist(3.0, 0.5, 2.0, 4.0)
    copy = cloudpickle.loads(cloudpickle.dumps(rv))
    assert copy.owner.op == rv.owner.op


@pytest.mark.compiled
@pytest.mark.nightly
def test_samples_as_a_free_variable():
    tau = np.array([4.0, -1.0, 10.0])
    alpha = np.array([3.0, 0.5, 30.0])
    with pm.Model():
        x = TruncatedGammaMixture("x", alpha, 0.5, 2.0, tau)
        prior = pm.sample_prior_predictive(2000, random_seed=4)
        trace = pm.sample(
            1000, tune=500, chains=2, cores=1, random_seed=4, nuts_sampler="pymc", progressbar=False
        )
    assert x.type.shape == (3,)
    expected = TruncatedGammaMixture.mean(alpha, 0.5, 2.0, tau).eval()
    np.testing.assert_allclose(prior.prior["x"].mean(("chain", "draw")), expected, rtol=0.1)
    np.testing.assert_allclose(trace.posterior["x"].mean(("chain", "draw")), expected, rtol=0.15)
