"""Numbers of records that are sums over people of few-valued counts, against enumeration."""

from itertools import product
from math import comb

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr
from scipy import stats

import pymc_dp as dp
from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.values import PLAIN_MODE, plain_function
from pymc_dp.plugins.unknown_sizes.totals import LogPowers, TotalRV, log_powers


@pytest.mark.parametrize("times", [1, 2, 7, 40])
def test_powers_of_two_values_are_binomial_far_into_the_tails(times):
    log_p = np.array([-0.0, -900.0])
    power, before = log_powers(log_p, times)
    k = np.arange(times + 1)
    expected = np.log([comb(times, j) for j in k]) - 900.0 * k
    np.testing.assert_allclose(power, expected, rtol=1e-13)
    assert before.size == times


def test_powers_of_three_values():
    p = np.array([0.5, 0.0, 0.2, 0.3])
    expected = np.zeros(16)
    for steps in product(range(4), repeat=5):
        expected[sum(steps)] += p[list(steps)].prod()
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(np.exp(log_powers(np.log(p), 5)[0]), expected, rtol=1e-12)


def test_slopes_of_powers():
    log_p = pt.vector(shape=(3,), dtype="float64")
    weights = np.random.default_rng(1).normal(size=9)
    graph = (LogPowers(4)(log_p)[0] * weights).sum()
    function = pytensor.function([log_p], [graph, pt.grad(graph, log_p)], mode=PLAIN_MODE)
    at = np.log([0.2, 0.5, 0.3])
    numbers = [(function(at + e)[0] - function(at - e)[0]) / 2e-6 for e in 1e-6 * np.identity(3)]
    np.testing.assert_allclose(function(at)[1], numbers, rtol=1e-7)


def test_draws():
    rng = pt.random.shared_rng(seed=None)
    _, total = TotalRV(50, 20, 2, 3)(np.log([0.2, 0.5, 0.3]), rng=rng, return_next_rng=True)
    drawn = pm.draw(total, 4000, random_seed=1)
    assert drawn.dtype == "int64"
    assert (drawn % 2 == 0).all()
    np.testing.assert_allclose(drawn.mean(), 20 + 100 * 1.1, atol=0.4)
    np.testing.assert_allclose(drawn.var(), 200 * 0.49, rtol=0.1)


def people_model(of=None, released=lambda kept: kept, n=lambda kept: kept):
    """Return a model of three people, of whom at most two rows are kept."""
    with pm.Model() as model:
        lam, mu = pm.Exponential("lam", 0.5), pm.Normal("mu", 1.5, 1)
        rows = pm.Poisson("rows", lam, shape=3)
        kept = rows.clip(0, 2)
        dp.PrivateObservation("count", released(kept.sum()), dp.LaplaceMechanism(1.5), observed=4.3)
        total = dp.RecordSums("total", pm.Normal.dist(mu, 0.8), n(rows.clip(0, 2).sum()), of=of)
        dp.PrivateObservation("sum", total, dp.GaussianMechanism(0.7), observed=5.2)
    return model


def density_of(model, lam, mu):
    """Return the log densities of both releases in the collapsed model."""
    collapsed = dp.collapse(model)
    assert [rv.name for rv in collapsed.free_RVs] == ["lam", "mu"]
    values = [collapsed.rvs_to_values[rv] for rv in collapsed.free_RVs]
    logp = collapsed.logp([collapsed["count"], collapsed["sum"]], sum=False)
    return [float(x) for x in plain_function(values, logp)(np.log(lam), mu)]


def noisy_sum(n, mu, sigma=0.8):
    return stats.norm(n * mu, np.hypot(np.sqrt(n) * sigma, 0.7)).pdf(5.2)


@pytest.mark.parametrize("times", [1.0, 2.0])
def test_both_densities_are_sums_over_all_rows(times):
    lam, mu = 1.3, 1.7
    p = [*stats.poisson(lam).pmf([0, 1]), stats.poisson(lam).sf(1)]
    of_count = of_both = 0.0
    for kept in product(range(3), repeat=3):
        n, chance = sum(kept), np.prod([p[k] for k in kept])
        seen = chance * stats.laplace(times * n, 1.5).pdf(4.3)
        of_count, of_both = of_count + seen, of_both + seen * noisy_sum(n, mu)
    got = density_of(people_model(released=lambda n: times * n), lam, mu)
    np.testing.assert_allclose(got, [np.log(of_count), np.log(of_both / of_count)], rtol=1e-9)


def test_sums_of_clipped_values_by_inversion():
    """Six rows for certain: those of three people who have far more than two."""
    x = stats.norm(1.7, 0.8)
    grid = np.linspace(0.0, 2.0, 4001)
    mass = np.diff(x.cdf(grid))
    mass[0], mass[-1] = mass[0] + x.cdf(0.0), mass[-1] + x.sf(2.0)
    sums = mass
    for _ in range(5):
        sums = np.convolve(sums, mass)
    at = 0.0005 * np.arange(sums.size) + 6 * 0.00025
    expected = np.log((sums * stats.norm(at, 0.7).pdf(5.2)).sum())
    got = density_of(people_model(of=lambda x: x.clip(0, 2)), 60.0, 1.7)
    np.testing.assert_allclose(got[1], expected, rtol=1e-4)


def test_the_number_is_recovered():
    model = people_model()
    collapsed = dp.collapse(model)
    lam, mu = np.full((1, 4000), 1.3), np.full((1, 4000), 1.7)
    posterior = xr.Dataset({"lam": (("chain", "draw"), lam), "mu": (("chain", "draw"), mu)})
    idata = xr.DataTree.from_dict({"posterior": posterior})
    drawn = dp.recover(collapsed, idata, random_seed=1)["posterior"]
    p = [*stats.poisson(1.3).pmf([0, 1]), stats.poisson(1.3).sf(1)]
    chance = np.zeros(7)
    for kept in product(range(3), repeat=3):
        n = sum(kept)
        chance[n] += np.prod([p[k] for k in kept]) * noisy_sum(n, 1.7)
    chance *= stats.laplace(np.arange(7), 1.5).pdf(4.3)
    seen = np.bincount(np.ravel(drawn["total_n"]), minlength=7) / 4000
    np.testing.assert_allclose(seen, chance / chance.sum(), atol=0.03)


def test_other_numbers_are_refused_by_name():
    with pytest.raises(Declined, match="the number of records of 'total'"):
        dp.collapse(people_model(n=lambda n: n**2))
    with people_model() as model:
        ones = pt.eq(model["rows"], 1).sum()
        dp.PrivateObservation("ones", ones, dp.LaplaceMechanism(1.0), observed=1.2)
    with pytest.raises(Declined, match="mixes"):
        dp.collapse(model)


def test_sums_that_are_not_released():
    with pm.Model() as model:
        n = pm.Poisson("n", 5, shape=2)
        dp.RecordSums("total", pm.Bernoulli.dist(0.4), n, shape=2)
        dp.PrivateObservation("z", n, dp.GeometricMechanism(1.0), observed=[3, 5])
    with pytest.raises(NotImplementedError, match="'total' have a density with what is released"):
        dp.steps(model)
