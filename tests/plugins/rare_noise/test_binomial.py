import mpmath
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.logprob.utils import ParameterValueError
from scipy import stats

import pymc_dp as dp
from pymc_dp.mechanisms import BinomialMechanism
from tests.mechanisms.noise import PYTHON, assert_law_of_draws, evaluate


def exact_mass(z, n, m, population, s):
    """Log mass and its derivative in s, in 50 digits."""
    mpmath.mp.dps = 50
    m, s = mpmath.mpf(float(m)), mpmath.mpf(float(s))
    p, q = (s + m) / (population + 2 * m), (population - s + m) / (population + 2 * m)
    log_ways = mpmath.loggamma(n + 1) - mpmath.loggamma(z + 1) - mpmath.loggamma(n - z + 1)
    slope = z / (s + m) - (n - z) / (population - s + m)
    return float(log_ways + z * mpmath.log(p) + (n - z) * mpmath.log(q)), float(slope)


@pytest.mark.parametrize(
    ("z", "n", "m", "population", "s"),
    [
        (3, 10, 2.0, 50, 7),
        (0, 10, 2.0, 50, 0),
        (10, 10, 2.0, 50, 0),
        (0, 1, 1e-9, 1, 1),
        (1, 1, 1e-9, 1, 0),
        (120, 1000, 1000.0, 10**6, 123456.789),
        (900, 1000, 1000.0, 10**6, 3),
        (1000, 1000, 1e6, 10**6, 0.5),
        (500_100, 10**6, 4e5, 10**7, 5e6),
        (10, 10**9, 0.5, 10**9, 2),
        (10**9 - 10, 10**9, 0.5, 10**9, 10**9 - 2),
    ],
)
def test_mass_against_mpmath(z, n, m, population, s):
    statistic = pt.scalar("s")
    logp = BinomialMechanism(n, m, population).logp(z, statistic)
    f = pytensor.function([statistic], [logp, pt.grad(logp, statistic)], mode=PYTHON)
    actual, slope = f(s)
    expected, expected_slope = exact_mass(z, n, m, population, s)
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-13)
    size = z / (s + m) + (n - z) / (population - s + m)
    np.testing.assert_allclose(slope, expected_slope, rtol=1e-9, atol=1e-13 * size)


@pytest.mark.parametrize(("n", "p"), [(50, 0.3), (400, 0.004), (3000, 0.9), (30_000, 0.5)])
def test_interval_against_sums(n, p):
    """All the terms of either tail, in 40 digits."""
    mpmath.mp.dps = 40
    population, m = 1000, 5.0
    s = p * (population + 2 * m) - m if p > 0.02 else 0.0
    p = (mpmath.mpf(s) + m) / (population + 2 * m)
    sd = float(mpmath.sqrt(n * p * (1 - p)))
    z = np.unique(np.clip(np.round(float(n * p) + sd * np.array([-6, -2, 0, 1, 4, 15])), 0, n - 1))
    terms = [(1 - p) ** n]
    for k in range(n):
        terms.append(terms[-1] * (n - k) * p / ((k + 1) * (1 - p)))
    mechanism = BinomialMechanism(n, m, population)
    below, above = evaluate(mechanism.logcdf(z, s), mechanism.log_interval(z + 1, np.inf, s))
    for i, k in enumerate(z.astype(int)):
        lower, upper = mpmath.fsum(terms[: k + 1]), mpmath.fsum(terms[k + 1 :])
        if lower < 0.5:
            expected = mpmath.log(lower), mpmath.log1p(-lower)
        else:
            expected = mpmath.log1p(-upper), mpmath.log(upper)
        np.testing.assert_allclose(below[i], float(expected[0]), rtol=1e-11)
        np.testing.assert_allclose(above[i], float(expected[1]), rtol=1e-11)


def test_quantiles():
    mechanism = BinomialMechanism(90, 3.0, 100)
    p = np.array([0.0, 1e-12, 0.01, 0.3, 0.5, 0.9, 0.9999, 1.0])
    expected = stats.binom(90, 43.5 / 106).ppf(p)
    expected[0] = 0
    np.testing.assert_array_equal(evaluate(mechanism.icdf(p, 40.5)), expected)
    assert np.all(np.isnan(evaluate(mechanism.icdf([-0.1, 1.1, 0.5, 0.5], [40, 40, -1, 101]))))


@pytest.mark.parametrize(("n", "m", "s"), [(30, 2.0, 11.5), (10_000, 0.1, 0), (7, 50.0, 80)])
def test_draws(n, m, s):
    mechanism = BinomialMechanism(n, m, 80)
    draws = pm.draw(mechanism.dist(np.full(20_000, s)), random_seed=3)
    assert draws.dtype == "int64"
    law = stats.binom(n, (s + m) / (80 + 2 * m))
    edges = np.unique(law.ppf(np.linspace(0.01, 0.99, 25)))
    assert_law_of_draws(draws, edges, law.cdf(edges))


def test_outside_its_range():
    mechanism = BinomialMechanism(10, 1.5, 4)
    assert np.all(np.isneginf(evaluate(mechanism.logp([-1, 11, 2.5, np.nan, np.inf], 3))))
    bad = np.array([-1e-9, 4.001, np.nan, np.inf])
    assert np.all(np.isneginf(evaluate(mechanism.logp(3, bad))))
    assert np.all(np.isneginf(evaluate(mechanism.log_interval(-np.inf, np.inf, bad))))
    s = pt.vector("s")
    slope = pytensor.function([s], pt.grad(mechanism.logp(3, s).sum(), s), mode=PYTHON)
    assert np.all(slope(bad) == 0)
    with pytest.raises(AssertionError, match="between 0 and the population"):
        pm.draw(mechanism.dist(4.5), mode=PYTHON)


def test_epsilon_is_the_worst_log_ratio():
    """Of neighbouring populations; attained at an empty one, where no draw is affected or all."""
    n, m, population = 6, 3.5, 20
    mechanism = BinomialMechanism(n, m, population)
    s = np.arange(population + 1)[:, None]
    logp = evaluate(mechanism.logp(np.arange(n + 1), s))
    worst = np.abs(np.diff(logp, axis=0)).max()
    np.testing.assert_allclose(mechanism.epsilon(), worst, rtol=1e-12)
    assert mechanism.epsilon() <= n / m
    np.testing.assert_allclose(mechanism.epsilon([1, 2]), n * np.log1p(np.array([1, 2]) / m))
    with pytest.raises(ValueError, match="pseudo_count is symbolic"):
        BinomialMechanism(3, pt.scalar("m"), 5).epsilon()


def test_bad_parameters():
    for bad in (0, -1, 2.5, np.nan, np.inf):
        with pytest.raises(ValueError, match=r"draws must be a whole number >= 1.*index 1"):
            BinomialMechanism([3, bad], 1.0, 5)
        with pytest.raises(ValueError, match="population must be a whole number >= 1"):
            BinomialMechanism(3, 1.0, bad)
    for bad in (0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match=r"pseudo_count must be finite and > 0.*privacy loss"):
            BinomialMechanism(3, bad, 5)
    m = pt.scalar("m")
    f = pytensor.function([m], BinomialMechanism(3, m, 5).logp(1, 2), mode=PYTHON)
    assert np.isfinite(f(2.0))
    with pytest.raises(ParameterValueError, match="0 < pseudo_count < inf"):
        f(-1.0)


def test_model_with_a_continuous_statistic():
    times = np.arange(4)
    mechanism = dp.BinomialMechanism(50, 30.0, 1000)
    with pm.Model() as model:
        rate = pm.Normal("rate", 0.5, 0.1)
        prevalence = 1000 * pm.math.sigmoid(rate * times - 3)
        z = dp.PrivateObservation("z", prevalence, mechanism, observed=[3, 5.0, 6, 9])
        prior = pm.sample_prior_predictive(10, random_seed=1)
    assert z.dtype == "int64"
    assert prior.prior_predictive["z"].dtype == "int64"
    p = (1000 / (1 + np.exp(3 - 0.45 * times)) + 30) / 1060
    logp = model.compile_logp(vars=[z])({"rate": np.array(0.45)})
    np.testing.assert_allclose(logp, stats.binom(50, p).logpmf([3, 5, 6, 9]).sum(), rtol=1e-12)
    gradient = model.compile_dlogp(vars=[rate])({"rate": np.array(0.45)})
    f = model.compile_logp()
    numeric = (f({"rate": np.array(0.45 + 1e-6)}) - f({"rate": np.array(0.45 - 1e-6)})) / 2e-6
    np.testing.assert_allclose(gradient, numeric, rtol=1e-6)


def test_impossible_observations_are_refused():
    mechanism = dp.BinomialMechanism(50, 30.0, 8)
    with pm.Model():
        s = pm.Uniform("s", 0, 8)
        # More draws than members: the release may exceed the population.
        dp.PrivateObservation("ok", s, mechanism, observed=43)
        dp.PrivateObservation("clipped", s, mechanism.clipped(upper=40), observed=39)
        dp.PrivateObservation("rounded", s, mechanism.rounded(-1), observed=40)
        with pytest.raises(ValueError, match=r"cannot publish 51.* from 0 to `draws`"):
            dp.PrivateObservation("z", s, mechanism, observed=51)
        with pytest.raises(ValueError, match=r"cannot publish 0\.3: .*whole number of affected"):
            dp.PrivateObservation("z", s, mechanism, observed=0.3)


def test_repr():
    shown = "BinomialMechanism(draws=10.0, pseudo_count=2.5, population=100.0)"
    assert repr(BinomialMechanism(10, 2.5, 100)) == shown
