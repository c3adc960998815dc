"""The discrete Laplace and the discrete Gaussian law, against references of many digits."""

import cloudpickle
import mpmath as mp
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

import pymc_dp as dp
from tests.distributions.random import random_checks
from tests.mechanisms.noise import assert_law_of_draws

SPREADS = (1e-3, 0.03, 0.3, 1.0, 4.7, 60.0, 1e4, 1e8)
FAR = (0, 1, 2, 7, 0.5, 1.0, 5.0, 40.0)  # in units of one, then of the spread


class Laplace:
    """Reference for the discrete Laplace law."""

    dist, spread = dp.DiscreteLaplace, "scale"

    @staticmethod
    def log_mass(k, b):
        b = mp.mpf(b)
        return mp.log(mp.tanh(1 / (2 * b))) - abs(k) / b

    @staticmethod
    def slope(k, b):
        b = mp.mpf(b)
        return (abs(k) - 1 / mp.sinh(1 / b)) / b**2

    @staticmethod
    def log_below(k, b):
        a = mp.exp(-1 / mp.mpf(b))
        return mp.log(a ** (-k) / (1 + a)) if k < 0 else mp.log1p(-(a ** (k + 1)) / (1 + a))

    @staticmethod
    def variance(b):
        return 1 / (2 * mp.sinh(1 / (2 * mp.mpf(b))) ** 2)


class Gaussian:
    """Reference for the discrete Gaussian law."""

    dist, spread = dp.DiscreteGaussian, "sigma"

    @staticmethod
    def moments(sigma):
        """Log normaliser and variance; by Poisson's formula for a large sigma."""
        s = mp.mpf(sigma)
        ks = range(1, 40)
        if sigma < 2:
            mass = [2 * mp.exp(-((k / s) ** 2) / 2) for k in ks]
            total = 1 + sum(mass)
            return mp.log(total), sum(k * k * p for k, p in zip(ks, mass, strict=True)) / total
        waves = [2 * mp.exp(-((2 * mp.pi * s * k) ** 2) / 2) for k in ks]
        total = 1 + sum(waves)
        second = sum((2 * mp.pi * s * k) ** 2 * p for k, p in zip(ks, waves, strict=True))
        return mp.log(mp.sqrt(2 * mp.pi) * s * total), s**2 * (1 - second / total)

    @classmethod
    def log_mass(cls, k, sigma):
        return -((mp.mpf(k) / sigma) ** 2) / 2 - cls.moments(sigma)[0]

    @classmethod
    def slope(cls, k, sigma):
        return (mp.mpf(k) ** 2 - cls.moments(sigma)[1]) / mp.mpf(sigma) ** 3

    @classmethod
    def variance(cls, sigma):
        return cls.moments(sigma)[1]

    @classmethod
    def log_below(cls, k, sigma):
        if k >= 0:  # of the upper tail, which may be far smaller than rounding
            return mp.log1p(-mp.exp(cls.log_below(-k - 1, sigma)))
        if sigma > 1e3:  # Euler-Maclaurin at the middle; the next term is below 1e-14
            u = (mp.mpf(k) + mp.mpf(1) / 2) / sigma
            density = mp.npdf(u)
            return mp.log(mp.ncdf(u) + u * density / (24 * mp.mpf(sigma) ** 2))
        reach = int(45 * sigma) + 10
        terms = [mp.exp(-((mp.mpf(j) / sigma) ** 2) / 2) for j in range(k - reach, k + 1)]
        return mp.log(mp.fsum(terms)) - cls.moments(sigma)[0]


LAWS = [Laplace, Gaussian]


@pytest.fixture(scope="module", params=LAWS, ids=lambda law: law.__name__)
def law(request):
    return request.param


@pytest.fixture(scope="module")
def evaluate(law):
    """Log mass, its gradient, log distribution function, quantile, variance."""
    k, p, mu, spread = pt.lvector("k"), pt.dvector("p"), pt.lscalar("mu"), pt.dscalar("spread")
    x = law.dist.dist(mu, spread)
    logp = pm.logp(x, k)
    # At one value a time: a gradient of the sum would hide errors.
    slope = pytensor.gradient.jacobian(logp, spread)
    outputs = [logp, slope, pm.logcdf(x, k), pm.icdf(x, p), law.dist.variance(mu, spread)]
    return pytensor.function([k, p, mu, spread], outputs, on_unused_input="ignore")


def close(found, expected, slack=0.0):
    expected = float(expected)
    return abs(found - expected) <= 1e-10 * abs(expected) + slack


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("mu", [0, -(10**12)])
def test_against_mpmath(law, evaluate, mu, spread):
    offsets = sorted({s * k for x in FAR for k in {round(x), round(x * spread)} for s in (-1, 1)})
    k = np.array(offsets, dtype="int64") + mu
    logp, slope, logcdf, _, variance = evaluate(k, [0.5], mu, spread)
    with mp.workdps(60):
        assert close(variance, law.variance(spread), 1e-300)
        for i, j in enumerate(offsets):
            where = (spread, j)
            assert close(logp[i], law.log_mass(j, spread), 1e-58), where
            # The slope is a difference: of its terms' size.
            terms = abs(law.slope(0, spread))
            assert close(slope[i], law.slope(j, spread), 1e-10 * float(terms) + 1e-290), where
            if abs(j) < 10**4 or spread > 1e3:
                expected = law.log_below(j, spread)
                if expected > -700 or law is Laplace:
                    assert close(logcdf[i], expected, 1e-58), where


@pytest.mark.parametrize("spread", SPREADS)
def test_quantiles_are_the_least_values(law, evaluate, spread):
    p = np.array([1e-12, 0.01, 0.3, 0.5, 0.9, 1 - 1e-9])
    *_, quantile, _ = evaluate([0], p, 5, spread)
    assert np.all(np.isfinite(quantile))
    at = evaluate(quantile.astype("int64"), p, 5, spread)[2]
    before = evaluate(quantile.astype("int64") - 1, p, 5, spread)[2]
    assert np.all(np.exp(at) >= p * (1 - 1e-12))
    assert np.all(np.exp(before) < p * (1 + 1e-13))


@pytest.mark.parametrize("spread", [0.4, 3.0, 25.0])
def test_draws(law, spread):
    draws = pm.draw(law.dist.dist([4, -2], spread, size=(20_000, 2)), random_seed=5)
    assert draws.dtype == np.int64
    for found, mu in zip(draws.T, (4, -2), strict=True):
        k = np.arange(found.min(), found.max() + 1)
        with mp.workdps(30):
            below = float(mp.exp(law.log_below(int(k[0]) - 1 - mu, spread)))
            cdf = below + np.cumsum([float(mp.exp(law.log_mass(int(j) - mu, spread))) for j in k])
        assert_law_of_draws(found, k, cdf)


@pytest.mark.parametrize("spread", [1e-3, 1e8])
def test_draws_at_the_ends(law, spread):
    draws = pm.draw(law.dist.dist(-3, spread), 4000, random_seed=5).astype(float)
    variance = float(law.variance(spread))
    assert abs(draws.mean() + 3) <= 4 * np.sqrt(variance / 4000)
    kurtosis = 6 if law is Laplace else 3
    assert abs(draws.var() - variance) <= 4 * variance * np.sqrt((kurtosis - 1) / 4000)


def test_in_a_model(law):
    """A random spread, as no mechanism may have; gradients, copies and support points work."""
    with pm.Model() as model:
        spread = pm.LogNormal("spread", 1, 0.3)
        law.dist("x", [2, 3], spread, shape=(3, 2))
        law.dist("y", 0, spread, observed=[1, -2, 0])
    np.testing.assert_array_equal(model.initial_point()["x"], [[2, 3]] * 3)
    copied = cloudpickle.loads(cloudpickle.dumps(model))
    point = model.initial_point()
    logp, gradient = copied.compile_logp()(point), model.compile_dlogp()(point)
    ends = [
        model.compile_logp()({**point, "spread_log__": point["spread_log__"] + h})
        for h in (1e-5, -1e-5)
    ]
    assert np.isfinite(logp)
    np.testing.assert_allclose(gradient, (ends[0] - ends[1]) / 2e-5, rtol=1e-7)
    prior = pm.draw(model["x"], 5, random_seed=1)
    assert prior.shape == (5, 3, 2)
    assert law.dist.mean(3, spread).eval({spread: 2.0}) == 3.0


TestDiscreteLaplace = random_checks(dp.DiscreteLaplace, mu=3, scale=1.5)
TestDiscreteGaussian = random_checks(dp.DiscreteGaussian, mu=3, sigma=1.5)


def test_errors(law):
    with pytest.raises(ValueError, match=r"Discrete\w+: mu must be a whole number .* use pm\."):
        law.dist.dist(0.5, 1.0)
    for bad in (0.0, -1.0, np.inf):
        with pytest.raises(pm.logprob.utils.ParameterValueError, match=rf"0 < {law.spread} < inf"):
            pm.logp(law.dist.dist(0, bad), 1).eval()
    mu = pt.dscalar("mu")
    with pytest.raises(AssertionError, match="must be a whole number"):
        law.dist.dist(mu, 1.0).eval({mu: 0.5})
    value = pt.dvector("value")
    logp = pm.logp(law.dist.dist(0, 1.0), value).eval({value: [0.5, np.inf, -np.inf]})
    np.testing.assert_array_equal(logp, -np.inf)


@pytest.mark.parametrize("law", [dp.DiscreteLaplace, dp.DiscreteGaussian])
def test_a_location_for_several_scales(law):
    with pm.Model() as model:
        law("x", 0, [1.0, 2.0, 3.0])
        law("y", np.arange(3), np.ones((2, 1)))
    point = model.initial_point()
    np.testing.assert_array_equal(point["x"], [0, 0, 0])
    np.testing.assert_array_equal(point["y"], [[0, 1, 2]] * 2)
