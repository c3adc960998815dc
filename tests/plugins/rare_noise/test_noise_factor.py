"""Values times a random factor, against numerical integrals and closed forms."""

from itertools import pairwise

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from scipy import integrate, stats

import pymc_dp as dp
from pymc_dp.graphs.values import PLAIN_MODE, plain_function
from tests.mechanisms.noise import assert_law_of_draws, evaluate

INF = np.inf
RAMP = dp.NoiseFactor(0.05, 0.25)
S = np.array([20.0, -3.0])


def ramp(factor, a=1.05, b=1.25):
    """The density of the workforce indicators, as they print it."""
    upper = (b - factor) / (b - a) ** 2
    lower = (b + factor - 2) / (b - a) ** 2
    in_upper, in_lower = (a <= factor) & (factor <= b), (2 - b <= factor) & (factor <= 2 - a)
    return np.where(in_upper, upper, np.where(in_lower, lower, 0.0))


FACTORS = {
    "ramp": (RAMP, ramp, [0.75, 0.95, 1.05, 1.25]),
    "lognormal": (
        dp.NoiseFactor(pm.LogNormal.dist(0.0, 0.125)), stats.lognorm(0.125).pdf, [0.3, 0.8, 1.2, 3],
    ),
    "gamma": (
        dp.NoiseFactor(pm.Gamma.dist(8.0, 8.0)), stats.gamma(8, scale=1 / 8).pdf, [0, 0.5, 1, 2, 9],
    ),
    "uniform": (
        dp.NoiseFactor(pm.Uniform.dist(0.5, 2.0)), stats.uniform(0.5, 1.5).pdf, [0.5, 2.0],
    ),
}  # fmt: skip


def integral(density, pieces, low, high):
    ends = np.clip([low, *pieces, high], low, high)
    return sum(integrate.quad(density, a, b, epsabs=1e-13)[0] for a, b in pairwise(ends))


@pytest.mark.parametrize("s", S)
@pytest.mark.parametrize("case", FACTORS)
def test_density_and_intervals(case, s):
    noise, density, pieces = FACTORS[case]
    z = s * np.array([0.76, 0.8, 0.97, 1.0, 1.06, 1.2, 1.3, 2.5, -1.0])
    np.testing.assert_allclose(
        np.exp(evaluate(noise.logp(z, s))), density(z / s) / abs(s), rtol=1e-9
    )
    ends = np.array([(0.7, 0.8), (0.9, 1.1), (1.06, 1.2), (0.97, 1.03), (0.81, 9.0), (-INF, 1.1)])
    ends = np.sort(s * ends, axis=1)
    expected = [
        integral(density, pieces, *np.clip(np.sort([a / s, b / s]), 0, 50)) for a, b in ends
    ]
    found = np.exp(evaluate(noise.log_interval(*ends.T, s)))
    # PyMC's normal distribution function has 8 digits.
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-12)
    assert evaluate(noise.log_interval(1.1 * abs(s), 0.9 * abs(s), s)) == -INF


@pytest.mark.parametrize("case", FACTORS)
def test_a_zero_stays(case):
    noise = FACTORS[case][0]
    np.testing.assert_array_equal(evaluate(noise.logp([0.0, 1e-9, -2.0], 0.0)), [0, -INF, -INF])
    ends = [-1.0, 0.0, 0.5, -INF], [1.0, 0.0, 2.0, -0.1]
    np.testing.assert_array_equal(evaluate(noise.log_interval(*ends, 0.0)), [0, 0, -INF, -INF])
    assert evaluate(noise.logp(0.0, 3.0)) == -INF
    assert np.all(pm.draw(noise.dist(np.zeros(3)), random_seed=1, mode=PLAIN_MODE) == 0)
    assert np.all(evaluate(noise.attainable([0.0, 3.0, -2.0])))


@pytest.mark.parametrize("s", S)
@pytest.mark.parametrize("case", FACTORS)
def test_draws_quantiles_and_bends(case, s):
    noise, density, pieces = FACTORS[case]
    draws = pm.draw(noise.dist(np.full(20_000, s)), random_seed=1, mode=PLAIN_MODE)
    edges = np.sort(s * np.array([0.76, 0.8, 0.94, 1.06, 1.1, 1.2]))
    cdf = np.exp(evaluate(noise.logcdf(edges, s)))
    assert_law_of_draws(draws, edges, cdf)
    p = np.array([0.01, 0.3, 0.5, 0.8, 0.99])
    at, start = evaluate(noise.logcdf(noise.icdf(p, s), s), noise.support_point(s))
    np.testing.assert_allclose(np.exp(at), p, rtol=2e-7)
    assert density(start / s) > 0
    if case in ("ramp", "uniform"):  # at the ends of the factors
        where = evaluate(pt.stack(noise.kinks(7.0)))
        for bend in 7.0 / np.array(pieces):
            assert np.min(np.abs(where - bend)) < 1e-12


def test_slopes():
    z, s, low, high = pt.dvectors("z", "s", "low", "high")
    graph = dp.NoiseFactor(0.01, 0.5).with_parameters(low, high).logp(z, s).sum()
    at = [np.array([22.0, 18.0, -3.3]), np.array([20.0, 20.0, -3.0]), np.full(3, 0.05)]
    at.append(np.full(3, 0.25))
    function = plain_function([z, s, low, high], [graph, *pytensor.grad(graph, [z, s, low, high])])
    for i, slope in enumerate(function(*at)[1:]):
        for k in range(3):
            step = 1e-6 * np.eye(3)[k]
            up, down = (
                function(*(a + sign * step * (i == j) for j, a in enumerate(at)))[0]
                for sign in (1, -1)
            )
            np.testing.assert_allclose(slope[k], (up - down) / 2e-6, rtol=1e-5)


def collapsed_density(noise, z):
    with pm.Model() as model:
        mu = pm.Normal("mu", 1.0, 1.0)
        y = pm.LogNormal("y", mu, 0.5, shape=len(z))
        dp.PrivateObservation("z", y, noise, observed=z)
    collapsed = dp.collapse(model)
    [value] = collapsed.value_vars[:1]
    assert [rv.name for rv in collapsed.free_RVs] == ["mu"]
    graph = collapsed.logp(collapsed["z"], sum=False)[0]
    return plain_function([value], [graph, pytensor.grad(graph.sum(), value)])


def test_values_are_integrated_out():
    z = np.array([2.0, 5.0, 0.3])
    function = collapsed_density(RAMP, z)
    law = stats.lognorm(0.5, scale=np.exp(1.0))
    expected = [
        sum(
            integrate.quad(lambda y, z=z: law.pdf(y) * ramp(z / y) / y, *ends, epsabs=1e-13)[0]
            for ends in ((x / 1.25, x / 1.05), (x / 0.95, x / 0.75))
        )
        for x in z
        for z in [x]
    ]
    np.testing.assert_allclose(np.exp(function(1.0)[0]), expected, rtol=1e-7)
    ends = [function(1.0 + sign * 1e-4)[0].sum() for sign in (1, -1)]
    np.testing.assert_allclose(function(1.0)[1], (ends[0] - ends[1]) / 2e-4, rtol=1e-5)


def test_lognormal_factor_in_closed_form():
    z = np.array([2.0, 5.0, 0.3])
    found = collapsed_density(dp.NoiseFactor(pm.LogNormal.dist(0.0, 0.25)), z)(1.0)[0]
    expected = stats.lognorm(np.hypot(0.5, 0.25), scale=np.exp(1.0)).logpdf(z)
    np.testing.assert_allclose(found, expected, rtol=1e-8)


def test_counts_are_summed_out():
    z = np.array([0.0, 3.2, 7.5])
    with pm.Model() as model:
        dp.PrivateObservation("z", pm.Poisson.dist(4.0, shape=3), RAMP, observed=z)
    found = plain_function([], model.logp(model["z"], sum=False))()[0]
    y = np.arange(1, 60)
    expected = (ramp(z[:, None] / y) / y) @ stats.poisson(4.0).pmf(y)
    expected[0] = np.exp(-4.0)
    np.testing.assert_allclose(np.exp(found), expected, rtol=1e-12)


def test_what_is_refused():
    for lower, upper, match in [(0.2, 0.1, "below upper"), (-0.1, 0.2, "lower"), (0.1, 1, "upper")]:
        with pytest.raises(ValueError, match=match):
            dp.NoiseFactor(lower, upper)
    with pytest.raises(ValueError, match="not known to be of positive"):
        dp.NoiseFactor(pm.Normal.dist(1.0, 0.1))
    with pytest.raises(ValueError, match="not known to be of positive"):
        dp.NoiseFactor(pm.Uniform.dist(-0.5, 2.0))
    with pytest.raises(TypeError, match="one continuous number"):
        dp.NoiseFactor(pm.LogNormal.dist(0.0, 0.1, shape=3))
    with pytest.raises(TypeError, match="parameters that are no numbers"):
        dp.NoiseFactor(pm.LogNormal.dist(0.0, pm.Exponential.dist(1.0)))
    with pytest.raises(TypeError, match="no distribution"):
        dp.NoiseFactor(pt.dscalar())
    with pytest.raises(TypeError, match="upper"):
        dp.NoiseFactor(0.1)


def test_it_is_kept():
    for noise in (RAMP, FACTORS["gamma"][0]):
        again = cloudpickle.loads(cloudpickle.dumps(noise))
        assert repr(again) == repr(noise)
        np.testing.assert_array_equal(
            *evaluate(again.logp([3.1, 4.0], 3.0), noise.logp([3.1, 4], 3))
        )
    assert repr(FACTORS["gamma"][0]) == "NoiseFactor(Gamma(8, 0.125))"
    release = dp.Release([3.0, 0.0], RAMP)
    assert repr(dp.Release.from_json(release.to_json()).mechanism) == repr(RAMP)
