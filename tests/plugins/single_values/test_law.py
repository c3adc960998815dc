"""Values that are released one by one lose their records, whatever law and noise are."""

from itertools import pairwise

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats
from scipy.special import logsumexp

import pymc_dp as dp
from pymc_dp.graphs.values import plain_function

RNG = np.random.default_rng(3)


def log_density(model):
    """Return the log density of the collapsed model's release at its starting point."""
    collapsed = dp.collapse(model)
    assert all(rv.name != "y" for rv in collapsed.free_RVs)
    values = [collapsed.rvs_to_values[rv] for rv in collapsed.free_RVs]
    [release] = collapsed.observed_RVs
    start = collapsed.initial_point(0)
    function = plain_function(values, collapsed.logp(release, sum=False))
    return np.asarray(function(*(start[v.name] for v in values))[0])


def uniform_rows(y):
    return y, dp.UniformMechanism(0.5), lambda y: y, stats.uniform(-0.5, 1.0).pdf


def exponentials(y):
    return (
        pt.exp(0.3 * y),
        dp.LaplaceMechanism(0.4),
        lambda y: np.exp(0.3 * y),
        stats.laplace(scale=0.4).pdf,
    )


def clipped_to_weights(y):
    return (
        np.array([1.0, 2.0, -0.5]) * pt.clip(y, -1, 1), dp.GaussianMechanism(0.3),
        lambda y: np.clip(y, -1, 1)[..., None] * [1.0, 2.0, -0.5], stats.norm(scale=0.3).pdf,
    )  # fmt: skip


def withheld(y):
    kept = dp.LaplaceMechanism(0.5).suppressed(below=0.2)
    return y, kept, lambda y: y, stats.laplace(scale=0.5)


def cut(y):
    cut = 2 * y.astype("int64") + 1
    return cut, dp.GaussianMechanism(0.6), lambda y: 2 * np.trunc(y) + 1, stats.norm(scale=0.6).pdf


CASES = [uniform_rows, exponentials, clipped_to_weights, withheld, cut]


@pytest.mark.parametrize("case", CASES)
def test_density_is_the_integral(case):
    released = np.array([0.4, 1.3, -0.2])
    if case is withheld:
        released[2] = np.nan
    if case is exponentials:
        released[2] = -0.1
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.7, 1)
        y = pm.Normal("y", mu, 0.8, shape=3)
        statistic, mechanism, function, noise = case(y)
        dp.PrivateObservation("z", statistic, mechanism, observed=released)
    points = np.linspace(-9.0, 11.0, 200_001)
    at, law = function(points), stats.norm(0.7, 0.8).pdf(points)
    expected = []
    for i, z in enumerate(released):
        s = at[:, i] if at.ndim > 1 else at
        eta = noise.cdf(0.2 - s) if np.isnan(z) else getattr(noise, "pdf", noise)(z - s)
        expected.append((law * eta).sum() * (points[1] - points[0]))
    np.testing.assert_allclose(np.exp(log_density(model)), expected, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["int32", "bool"])
def test_a_cast_of_a_count_is_a_function(dtype):
    with pm.Model() as model:
        y = pm.Poisson("y", 1.3, shape=2)
        dp.PrivateObservation("z", y.astype(dtype), dp.LaplaceMechanism(0.7), observed=[0.4, 2.2])
    counts = np.arange(40)
    law, s = stats.poisson(1.3).pmf(counts), counts.astype(dtype).astype(float)
    expected = [(law * stats.laplace(s, 0.7).pdf(z)).sum() for z in (0.4, 2.2)]
    np.testing.assert_allclose(np.exp(log_density(model)), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("of_label", "of_value", "shared"),
    [((1,), (3,), "b"), ((3,), (1,), "y"), ((3, 1), (3, 2), "b"), ((), (3,), "b"), ((3,), (), "y")],
)
@pytest.mark.parametrize("chosen", [lambda b, y: pt.switch(b, y, 0), lambda b, y: b * pt.exp(y)])
def test_a_value_shared_by_entries_is_refused(of_label, of_value, shared, chosen):
    with pm.Model() as model:
        b = pm.Bernoulli("b", 0.4, shape=of_label)
        statistic = chosen(b, pm.Normal("y", 0, 1, shape=of_value))
        released = np.zeros(np.broadcast_shapes(of_label, of_value))
        dp.PrivateObservation("z", statistic, dp.GaussianMechanism(0.7), observed=released)
    with pytest.raises(NotImplementedError, match=f"several entries share a value of '{shared}'"):
        dp.collapse(model, "marginal")


def tiered(value, statistic):
    scale = pt.switch(statistic < 3.3, 0.01, pt.switch(statistic < 20, 1.0, 30.0))
    return -pt.abs(value - statistic) / scale - pt.log(2 * scale)


def tiered_draw(statistic, rng=None, size=None):
    scale = np.select([statistic < 3.3, statistic < 20], [0.01, 1.0], 30.0)
    return rng.laplace(statistic, scale, size)


@pytest.mark.parametrize("n", [0, 7], ids=["values", "mean"])
def test_noise_that_is_narrow_at_the_release_and_jumps_elsewhere(n):
    released = np.array([1.234, 25.0, 3.29, 8.0]) if n == 0 else np.array(1.234)
    with pm.Model() as model:
        mu = pm.Normal("mu", 2.7, 10)
        y = pm.Normal("y", mu, 1, shape=n or 4)
        noise = dp.CustomMechanism(tiered, tiered_draw)
        dp.PrivateObservation("z", y.mean() if n else y, noise, observed=released)
    expected, sd = [], 1 / np.sqrt(n or 1)
    for z in np.atleast_1d(released):
        ends = np.unique([2.7 - 9 * sd, 3.3, 20.0, z - 1, z - 0.2, z, z + 0.2, z + 1])
        points = np.concatenate(
            [np.linspace(a + 1e-12, b - 1e-12, 40_001) for a, b in pairwise(ends)]
        )
        scale = np.select([points < 3.3, points < 20], [0.01, 1.0], 30.0)
        terms = stats.norm.pdf(points, 2.7, sd) * stats.laplace.pdf(z, points, scale)
        expected.append(np.log(np.trapezoid(terms, points)))
    np.testing.assert_allclose(np.ravel(log_density(model)), expected, atol=2e-5)


def half_to_fives(value, statistic):
    fives = pt.eq(value, 5 * pt.floor(statistic / 5.0 + 0.5))
    return pt.log(0.35 * fives + 0.65 * pt.eq(value, statistic))


def half_to_fives_draw(statistic, rng=None, size=None):
    fives = 5 * np.floor(statistic / 5 + 0.5)
    return np.where(rng.random(size) < 0.35, fives, statistic).astype(int)


def test_noise_that_jumps_for_some_entries_only():
    released, counts = np.array([26, 30]), np.arange(200)
    noise = dp.CustomMechanism(half_to_fives, half_to_fives_draw, discrete=True)
    with pm.Model() as model:
        y = pm.Poisson("y", pm.Exponential("rate", 1 / 9.0), shape=2)
        dp.PrivateObservation("z", y, noise, observed=released)
    law, fives = stats.poisson.pmf(counts, 9.0), 5 * np.floor(counts / 5 + 0.5)
    expected = [0.35 * law[fives == z].sum() + 0.65 * law[z] for z in released]
    np.testing.assert_allclose(log_density(model), np.log(expected), atol=1e-9)


def test_rates_of_counts_that_lie_between_the_knots():
    people, z = np.array([65_000, 450_000, 170_000]), np.array([4.6, 4.4, 23.5])
    with pm.Model() as model:
        rate = pm.Exponential("rate", 1.0)
        y = pm.Poisson("y", rate * people * 1e-5, shape=3)
        dp.PrivateObservation("z", 1e5 * y / people, dp.UniformMechanism(1e-4).rounded(1),
                              observed=z)  # fmt: skip
    collapsed, counts = dp.collapse(model), np.arange(300)
    function = plain_function(
        [collapsed.rvs_to_values[collapsed["rate"]]],
        collapsed.logp(collapsed.observed_RVs, sum=False),
    )
    inside = np.abs(1e5 * counts / people[:, None] - z[:, None]) < 0.05
    for log_rate in np.linspace(-1.0, 3.0, 81):  # the sums begin elsewhere for each
        law = stats.poisson.logpmf(counts, np.exp(log_rate) * people[:, None] * 1e-5)
        expected = logsumexp(law, axis=1, b=inside)
        np.testing.assert_allclose(function(log_rate)[0], expected, atol=1e-9)


def test_counts_under_noise_that_is_not_log_concave():
    noise = dp.StudentTMechanism(2.0, 3.0)
    with pm.Model() as model:
        rate = pm.Exponential("rate", 0.2)
        y = pm.Poisson("y", rate, shape=4)
        dp.PrivateObservation("z", y, noise, observed=[1.5, 4.0, -3.0, 30.0])
    counts = np.arange(200)
    eta = [np.exp(noise.logp(z, counts).eval()) for z in (1.5, 4.0, -3.0, 30.0)]
    expected = np.array(eta) @ stats.poisson(5.0).pmf(counts)
    np.testing.assert_allclose(np.exp(log_density(model)), expected, rtol=1e-9)


@pytest.mark.parametrize("rounded", [False, True])
def test_a_mean_and_a_variance_after_the_release(rounded):
    noise = dp.LaplaceMechanism([2.0, 9.0])
    noise = noise.rounded(1) if rounded else noise.clipped(0, 60)
    mean, variance = 31.2, 55.3 if rounded else 60.0
    with pm.Model() as model:
        x = pm.Normal("x", pm.Normal("mu", 30, 5), 7, shape=20)
        dp.PrivateObservation("z", [x.mean(), x.var(ddof=1)], noise, observed=[mean, variance])
    s = np.linspace(0.0, 300.0, 300_001)
    weights = [stats.norm(30, 7 / np.sqrt(20)).pdf(s), stats.gamma(9.5, scale=98 / 19).pdf(s)]
    first, second = stats.laplace(scale=2.0), stats.laplace(scale=9.0)
    if rounded:
        etas = [
            law.cdf(z + 0.05 - s) - law.cdf(z - 0.05 - s)
            for law, z in ((first, mean), (second, variance))
        ]
    else:
        etas = [first.pdf(mean - s), second.sf(60 - s)]
    expected = sum(np.log(w @ eta * (s[1] - s[0])) for w, eta in zip(weights, etas, strict=True))
    assert abs(log_density(model).sum() - expected) < 1e-5


@pytest.mark.parametrize("divided", [False, True])
def test_functions_of_counts(divided):
    """Of which some may be impossible: halves under noise on whole numbers."""
    noise = dp.DiscreteGaussianMechanism(0.7) if divided else dp.LaplaceMechanism(0.7)
    released = [1, 2, 0] if divided else [1.2, 2.9, 0.4]
    with pm.Model() as model:
        rate = pm.Gamma("rate", 4, 2)
        y = pm.Poisson("y", rate, shape=3)
        dp.PrivateObservation("z", y / 2 if divided else pt.sqrt(y), noise, observed=released)
    counts = np.arange(0, 120, 2 if divided else 1)
    at = counts / 2 if divided else np.sqrt(counts)
    eta = np.array([np.exp(noise.logp(z, at).eval()) for z in released])
    expected = eta @ stats.poisson(2.0).pmf(counts)
    np.testing.assert_allclose(np.exp(log_density(model)), expected, rtol=1e-9)


def piecewise(epsilon):
    """The piecewise mechanism of Wang et al. (2019), as a user writes it."""
    e2 = np.exp(epsilon / 2)
    C = (e2 + 1) / (e2 - 1)
    high, low = e2 / (e2 + 1) / (C - 1), 1 / (e2 + 1) / (C + 1)

    def logp(z, s):
        left = (C + 1) / 2 * s - (C - 1) / 2
        inside = pt.and_(pt.ge(z, left), pt.le(z, left + C - 1))
        return pt.switch(inside, np.log(high), pt.switch(pt.le(abs(z), C), np.log(low), -np.inf))

    def random(s, rng=None, size=None):
        s = np.broadcast_to(s, np.shape(s) if size is None else size)
        left = (C + 1) / 2 * s - (C - 1) / 2
        outside = rng.random(s.shape) * (C + 1)
        outside = np.where(outside < left + C, outside - C, outside - 1)
        near = left + (C - 1) * rng.random(s.shape)
        return np.where(rng.random(s.shape) < e2 / (e2 + 1), near, outside)

    return dp.CustomMechanism(logp, random, tried_at=(-0.7, 0.0, 0.5)), (C, high, low)


@pytest.mark.parametrize("n", [7, 1_500])
def test_reports_of_the_piecewise_mechanism(n):
    """Its density has two jumps, at places that the user does not state."""
    mechanism, (C, high, low) = piecewise(1.0)
    z = RNG.uniform(-C, C, n)
    with pm.Model() as model:
        m = pm.Uniform("m", 0, 1, initval=0.7)
        y = pm.Beta("y", 6 * m, 6 * (1 - m), shape=n)
        dp.PrivateObservation("z", 2 * y - 1, mechanism, observed=z)
    law = stats.beta(4.2, 1.8, loc=-1, scale=2)
    ends = (2 * z + C - 1) / (C + 1) - 2 * (C - 1) / (C + 1), (2 * z + C - 1) / (C + 1)
    inside = law.cdf(ends[1]) - law.cdf(ends[0])
    expected = np.log(low + (high - low) * inside)
    got = log_density(model)
    np.testing.assert_allclose(got, expected, atol=1e-9 if n == 7 else 1e-4)
    assert abs(got.sum() - expected.sum()) < 1e-3


@pytest.mark.compiled
def test_values_are_recovered():
    z = np.array([0.4, 1.3, 3.0])
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.7, 1)
        y = pm.Normal("y", mu, 0.8, shape=3)
        dp.PrivateObservation("z", pt.exp(y), dp.UniformMechanism(0.25), observed=z)
        idata = dp.sample(draws=400, tune=400, chains=2, random_seed=1, progressbar=False)
        drawn = dp.recover(model, idata)
    recovered = drawn.posterior["y"].to_numpy().reshape(-1, 3)
    assert (np.abs(np.exp(recovered) - z) <= 0.25 + 1e-9).all()
    ends = np.log(z - 0.25), np.log(z + 0.25)
    mu = np.linspace(-4, 6, 2001)[:, None]
    chance = stats.norm(mu, 0.8).cdf(ends[1]) - stats.norm(mu, 0.8).cdf(ends[0])
    weights = stats.norm(0.7, 1).pdf(mu[:, 0]) * chance.prod(axis=1)
    expected = (mu[:, 0] * weights).sum() / weights.sum()
    assert abs(float(idata.posterior["mu"].mean()) - expected) < 0.1


@pytest.mark.parametrize("law", [pm.Normal, pm.Gamma, pm.Poisson])
def test_records_start_where_the_release_is_possible(law):
    parameters = {pm.Normal: (0.0, 1.0), pm.Gamma: (2.0, 1.0), pm.Poisson: (2.0,)}[law]
    with pm.Model() as model:
        y = law("y", *parameters, shape=3)
        dp.PrivateObservation("z", y, dp.UniformMechanism(1.2), observed=[9.0, 3.0, -0.9])
    assert np.isfinite(model.point_logps()["z"])
    assert np.isfinite(model.point_logps()["y"])
    with pm.Model() as model:  # what the user says stays
        y = law("y", *parameters, shape=3, initval=np.ones(3, dtype=y.dtype))
        dp.PrivateObservation("z", y, dp.UniformMechanism(1.2), observed=[9.0, 3.0, -0.9])
    assert not np.isfinite(model.point_logps()["z"])


def test_a_function_of_values_without_a_name():
    with pm.Model() as model:
        m = pm.Uniform("m", 0, 1, initval=0.7)
        y = pm.Beta.dist(6 * m, 6 * (1 - m), shape=3)
        dp.PrivateObservation("z", 2 * y - 1, dp.UniformMechanism(0.3), observed=[0.1, 0.9, -0.4])
    law, z = stats.beta(4.2, 1.8, loc=-1, scale=2), np.array([0.1, 0.9, -0.4])
    expected = np.log((law.cdf(z + 0.3) - law.cdf(z - 0.3)) / 0.6)
    assert model.point_logps(round_vals=10)["z"] == pytest.approx(expected.sum(), abs=1e-8)


def test_a_value_alone_that_cannot_be_solved_is_refused_where_it_is_released():
    with pm.Model():
        x = pm.Logistic.dist(pm.Normal("t"), 0.5, shape=3)
        with pytest.raises(NotImplementedError, match="'z': `mul` cannot be solved"):
            dp.PrivateObservation(
                "z", pt.ge(x, 1) * x, dp.LaplaceMechanism(1.0), observed=[0, 1, 2]
            )
