import itertools
from functools import cache

import mpmath
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.logprob.utils import ParameterValueError
from scipy import stats
from scipy.special import logsumexp

import pymc_dp as dp
from pymc_dp.kernels.functions import reported_counts as kernels
from pymc_dp.mechanisms import LaplaceMechanism, RandomizedResponse, RandomizedResponseCount
from tests.mechanisms.noise import PYTHON, assert_law_of_draws, evaluate

DESIGNS = [(0.75, 2), (0.1, 2), (0.6, 3), (1 / 3, 3), (0.02, 5), (0.9, 5)]


def table(t, categories):
    """P(report | truth), one row for each truth."""
    return np.where(np.eye(categories) == 1, t, (1 - t) / (categories - 1))


# --- Reports ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("t", "categories"), DESIGNS)
def test_masses_intervals_and_quantiles_against_the_table(t, categories):
    mechanism, expected = RandomizedResponse(t, categories), table(t, categories)
    codes = np.arange(categories)
    logp = evaluate(mechanism.logp(codes, codes[:, None]))
    np.testing.assert_allclose(logp, np.log(expected), rtol=1e-13)
    ends = np.array([-np.inf, -0.5, *(codes + 0.0), *(codes + 0.3), np.inf])
    lower, upper = (x.ravel()[:, None, None] for x in np.meshgrid(ends, ends))
    interval = evaluate(mechanism.log_interval(lower, upper, codes[:, None]))[..., 0]
    inside = (codes >= lower) & (codes <= upper)
    with np.errstate(divide="ignore"):
        brute = np.log(np.where(inside, expected, 0.0).sum(axis=-1))
    np.testing.assert_allclose(interval, brute, rtol=1e-12, atol=3e-16)
    cumulative = expected.cumsum(axis=1)
    p = np.concatenate([[0.0, 1e-9, 1.0], np.linspace(0.0137, 0.99, 41)])
    quantiles = evaluate(mechanism.icdf(p, codes[:, None]))
    by_count = (cumulative[:, None, :-1] < p[:, None]).sum(axis=-1)
    np.testing.assert_array_equal(quantiles, by_count)
    at_steps = evaluate(mechanism.icdf(cumulative[:, :-1], codes[:, None]))
    np.testing.assert_array_equal(at_steps, np.tile(codes[:-1], (categories, 1)))


@pytest.mark.parametrize("lie", [1e-12, 1e-15])
def test_nearly_always_the_truth(lie):
    t = 1 - lie
    mpmath.mp.dps = 40
    exact = mpmath.log((1 - mpmath.mpf(t)) / 2)
    logp = evaluate(RandomizedResponse(t, 3).logp([0, 1], 0))
    np.testing.assert_allclose(logp, [np.log1p(-(1 - t)), float(exact)], rtol=1e-14)
    below = evaluate(RandomizedResponse(t, 3).log_interval([0, 0], [1, 1], [0, 2]))
    np.testing.assert_allclose(below, [np.log1p(-(1 - t) / 2), np.log(1 - t)], rtol=1e-13)


def test_nothing_outside_the_categories():
    mechanism = RandomizedResponse(0.6, 3)
    bad = np.array([-1.0, 3.0, 0.5, np.nan, np.inf, -np.inf])
    for value, statistic in [(bad, 1.0), (1.0, bad), (bad, bad)]:
        assert np.all(np.isneginf(evaluate(mechanism.logp(value, statistic))))
    assert np.all(np.isneginf(evaluate(mechanism.log_interval(0, 2, bad))))
    assert np.all(np.isnan(evaluate(mechanism.icdf(0.3, bad))))
    assert list(evaluate(mechanism.attainable([0, 1, 2, 3, -1, 0.5]))) == [True] * 3 + [False] * 3
    for statistic in ([0, 3], [0.5], [-1], [np.nan]):
        rng = pytensor.shared(np.random.default_rng(1))
        with pytest.raises(AssertionError, match=r"statistic must be one of 0, \.\.\., 2"):
            evaluate(mechanism.noise_sample(rng, statistic)[1])


@pytest.mark.parametrize(("t", "categories"), [(0.75, 2), (0.4, 4), (0.05, 3)])
def test_reports_have_the_right_frequencies(t, categories):
    n = 20_000
    truth = np.repeat(np.arange(categories), n)
    draws = pm.draw(RandomizedResponse(t, categories).dist(truth), random_seed=11)
    assert draws.dtype == "int64"
    counts = np.stack([np.bincount(d, minlength=categories) for d in draws.reshape(categories, n)])
    expected = n * table(t, categories)
    chi2 = ((counts - expected) ** 2 / expected).sum()
    assert stats.chi2.sf(chi2, categories * (categories - 1)) > 1e-3
    # Neighbouring records of equal truth are reported independently of each other.
    same = draws.reshape(categories, n)[0] == 0
    assert abs(np.corrcoef(same[1:], same[:-1])[0, 1]) < 4 / np.sqrt(n)


@pytest.mark.parametrize("categories", [2, 3, 50])
def test_privacy_loss(categories):
    losses = np.array([0.0, 1e-300, 1e-8, 0.1, 1.0, 20.0, 50.0, 800.0])
    mechanism = RandomizedResponse.from_epsilon(losses, categories)
    np.testing.assert_array_equal(mechanism.epsilon(), losses)
    moderate = losses < 100
    t = np.exp(losses[moderate]) / (np.exp(losses[moderate]) + categories - 1)
    np.testing.assert_allclose(evaluate(mechanism.truth_probability)[moderate], t, rtol=1e-14)
    # The loss is the log ratio of the masses of one report, whatever rounds to 1.
    truth, other = evaluate(mechanism.logp(0, 0)), evaluate(mechanism.logp(0, 1))
    np.testing.assert_allclose(truth - other, losses, rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(np.exp(truth) + (categories - 1) * np.exp(other), 1, rtol=1e-14)
    np.testing.assert_allclose(other[-1], -800, rtol=1e-14)
    # From the probability instead, as far as that has digits.
    some = losses[3:6]
    again = RandomizedResponse(np.exp(some) / (np.exp(some) + categories - 1), categories)
    np.testing.assert_allclose(again.epsilon(), some, rtol=1e-7)
    assert RandomizedResponse(1 / categories, categories).epsilon() < 1e-15


def test_privacy_loss_of_known_designs():
    np.testing.assert_allclose(RandomizedResponse(0.75).epsilon(), np.log(3), rtol=1e-15)
    np.testing.assert_allclose(RandomizedResponse(0.1).epsilon(), np.log(9), rtol=1e-15)
    # Less likely the truth than any other category: the worst ratio is the other way around.
    np.testing.assert_allclose(RandomizedResponse(0.2, 3).epsilon(), np.log(2), rtol=1e-14)
    # "Truth with probability 1/2, else a category drawn from all four."
    mechanism = RandomizedResponse(0.5 + 0.5 / 4, 4)
    np.testing.assert_allclose(evaluate(mechanism.logp(2, 1)), np.log(0.5 / 4), rtol=1e-14)
    with pytest.raises(ValueError, match="number, but truth_probability is symbolic"):
        RandomizedResponse(pt.scalar("t")).epsilon()


@pytest.mark.parametrize("bad", [0.0, 1.0, -0.1, 1.5, np.nan, np.inf])
def test_bad_probability(bad):
    message = r"RandomizedResponse: truth_probability must be > 0 and < 1, got .* at index 1.*from_"
    for t in ([0.5, bad], pytensor.shared(np.array([0.5, bad]))):
        with pytest.raises(ValueError, match=message):
            RandomizedResponse(t)


def test_bad_arguments():
    with pytest.raises(ValueError, match="categories must be >= 2, got 1"):
        RandomizedResponse(0.5, 1)
    with pytest.raises(TypeError, match=r"categories must be an integer, got 2\.5"):
        RandomizedResponse(0.5, 2.5)
    with pytest.raises(TypeError, match="truth_probability must be a number"):
        RandomizedResponse("often")
    with pytest.raises(TypeError, match="public and known, never estimated"):
        RandomizedResponse(pm.Beta.dist(1, 1))
    for epsilon in (-1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="epsilon must be finite and >= 0"):
            RandomizedResponse.from_epsilon(epsilon)
    with pytest.raises(ValueError, match="categories must be >= 2, got 0"):
        RandomizedResponse.from_epsilon(1.0, 0)


def test_data_probability_can_change():
    with pm.Model() as model:
        t = pm.Data("t", 0.75)
        mechanism = RandomizedResponse(t, 3)
        assert "truth_probability=0.75" in repr(mechanism)
        for m in (mechanism, RandomizedResponse(t).counted(1)):
            f = pytensor.function([], m.logp(0, 0), mode=PYTHON)
            for probability in (0.75, 0.3):
                pm.set_data({"t": probability}, model=model)
                np.testing.assert_allclose(f(), np.log(probability), rtol=1e-14)
            for bad in (1.5, -0.5, 0.0, 1.0, np.nan):
                pm.set_data({"t": bad}, model=model)
                with pytest.raises(ParameterValueError, match="0 < truth_probability < 1"):
                    f()


def test_repr_builds_it_again():
    for mechanism in (
        RandomizedResponse(0.75),
        RandomizedResponse([0.6, 0.2], 7),
        RandomizedResponse.from_epsilon(50.0, 3),
        RandomizedResponse.from_epsilon([1.0, 45.0], 3),
        RandomizedResponse(0.9).counted(12),
    ):
        again = eval(repr(mechanism).replace("array", "np.array"))
        for a, b in zip(again.parameters, mechanism.parameters, strict=True):
            np.testing.assert_allclose(a.data, b.data, rtol=1e-13)
    assert repr(RandomizedResponse(0.75)) == (
        "RandomizedResponse(truth_probability=0.75, categories=2)"
    )
    assert "<symbolic>" in repr(RandomizedResponse(pt.scalar("t")))


# --- Counts -------------------------------------------------------------------------------------


def test_count_is_the_count_of_the_reports():
    """All reports of six records, one by one, against the mass of their number."""
    records = np.array([1, 0, 1, 1, 0, 0])
    for t in (0.8, 0.35):
        mechanism = RandomizedResponse(t)
        reports = np.array(list(itertools.product([0, 1], repeat=6)))
        each = evaluate(mechanism.logp(reports, records)).sum(axis=1)
        by_count = [logsumexp(each[reports.sum(axis=1) == z]) for z in range(7)]
        counted = evaluate(mechanism.counted(6).logp(np.arange(7), records.sum()))
        np.testing.assert_allclose(counted, by_count, rtol=1e-13)


@pytest.mark.parametrize("n", [1, 2, 17, 150])
@pytest.mark.parametrize("t", [0.75, 0.5, 0.03])
def test_count_against_convolution(n, t):
    z = np.arange(n + 1)
    mechanism = RandomizedResponse(t).counted(n)
    for ones in {0, 1, n // 3, n - 1, n}:
        kept = stats.binom.pmf(np.arange(ones + 1), ones, t)
        replaced = stats.binom.pmf(np.arange(n - ones + 1), n - ones, 1 - t)
        expected = np.convolve(kept, replaced)
        logp = evaluate(mechanism.logp(z, ones))
        np.testing.assert_allclose(np.exp(logp), expected, rtol=1e-11)
        np.testing.assert_allclose(logsumexp(logp), 0.0, atol=1e-13)


@cache
def exact_count(z, ones, n, log_odds):
    """Log mass and its derivative in the log odds, summed over every term in 40 digits."""
    mpmath.mp.dps = 40
    odds = mpmath.exp(mpmath.mpf(log_odds))
    p, q = odds / (1 + odds), 1 / (1 + odds)
    k = max(0, z - n + ones)
    term = mpmath.binomial(ones, k) * mpmath.binomial(n - ones, z - k)
    term *= p ** (n - ones - z + 2 * k) * q ** (ones + z - 2 * k)
    total, first = term, k * term
    while k < min(ones, z):
        term *= (ones - k) * (z - k) * odds**2 / ((k + 1) * (n - ones - z + k + 1))
        k += 1
        total += term
        first += k * term
    return float(mpmath.log(total)), float(n - ones - z + 2 * first / total - n * p)


@pytest.mark.parametrize(
    ("z", "ones", "n", "log_odds"),
    [
        (50_000, 50_000, 100_000, 1.1),
        (62_000, 60_000, 100_000, 1.1),  # far out
        (44_990, 30_000, 100_000, 0.5),
        (10, 99_990, 100_000, 1.0),
        (99_999, 3, 100_000, 0.3),
        (50_100, 50_000, 100_000, 0.0),
        (50_100, 50_000, 100_000, -0.02),
        (40_000, 50_000, 100_000, 30.0),
        (50_001, 50_000, 100_000, 9.0),
        (60_000, 50_000, 100_000, 700.0),  # the square of the odds overflows
        (100_000, 100_000, 100_000, 27.0),
        (3, 5, 9, 800.0),  # 1 - t underflows
        (5, 5, 9, -800.0),
        (0, 0, 0, 1.0),
    ],
)
@pytest.mark.by_day(
    "62000-60000-100000-1.1",
    "44990-30000-100000-0.5",
    "10-99990-100000-1.0",
    "99999-3-100000-0.3",
    "60000-50000-100000-700.0",
    "100000-100000-100000-27.0",
    "3-5-9-800.0",
    "5-5-9--800.0",
    "0-0-0-1.0",
)
def test_count_against_mpmath(z, ones, n, log_odds):
    logp, slope = kernels.log_count_interval(*map(float, (z, z, ones, n)), log_odds)
    expected, expected_slope = exact_count(z, ones, n, log_odds)
    np.testing.assert_allclose(logp, expected, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(slope, expected_slope, rtol=1e-11, atol=1e-10)


@pytest.mark.parametrize(("ones", "t"), [(130, 0.75), (400, 0.6), (0, 0.9), (200, 0.5), (30, 0.04)])
def test_count_intervals(ones, t):
    n, rng = 400, np.random.default_rng(5)
    mechanism = RandomizedResponse(t).counted(n)
    masses = np.exp(evaluate(mechanism.logp(np.arange(n + 1), ones)))
    middle, sd = t * ones + (1 - t) * (n - ones), np.sqrt(n * t * (1 - t))
    ends = np.floor(middle + sd * rng.uniform(-9, 9, size=(60, 2)))
    # Either side of half the mass, around the mean and beside it.
    ends = np.vstack([ends, np.floor(middle) + np.array([[0, 1], [-1, 0], [-400, 0], [1, 400]])])
    lower, upper = np.sort(ends, axis=1).T
    inside = (np.arange(n + 1) >= lower[:, None]) & (np.arange(n + 1) <= upper[:, None])
    # The smallest first, so that the sum keeps its digits; near 1, what is outside.
    parts, rest = np.where(inside, masses, 0.0), np.where(inside, 0.0, masses)
    total, outside = np.sort(parts).sum(axis=1), np.sort(rest).sum(axis=1)
    with np.errstate(divide="ignore"):
        expected = np.where(outside < 0.5, np.log1p(-outside), np.log(total))
    actual = evaluate(mechanism.log_interval(lower, upper, ones))
    np.testing.assert_allclose(actual, expected, rtol=2e-12, atol=1e-300)
    assert np.all(actual <= 0)


def test_count_interval_at_scale():
    """A window of 1e5 records against the sum of its masses."""
    ones, n, log_odds = 61_234.0, 100_000.0, 1.0986
    each = [kernels.log_count_interval(z, z, ones, n, log_odds)[0] for z in np.arange(55e3, 57e3)]
    actual = kernels.log_count_interval(55_000.0, 56_999.0, ones, n, log_odds)[0]
    np.testing.assert_allclose(actual, logsumexp(each), atol=1e-11)
    # Two values in the middle: most of the mass is outside, and less it from 1 would cancel.
    middle = kernels.log_count_interval(55_616.0, 55_617.0, ones, n, log_odds)[0]
    np.testing.assert_allclose(middle, logsumexp(each[616:618]), rtol=1e-14)
    tail = kernels.log_count_interval(-np.inf, 54_999.5, ones, n, log_odds)[0]
    below = [kernels.log_count_interval(z, z, ones, n, log_odds)[0] for z in np.arange(53e3, 55e3)]
    np.testing.assert_allclose(tail, logsumexp(below), rtol=1e-12)


def test_count_quantiles_are_those_of_the_masses():
    mechanism = RandomizedResponse(0.7).counted(60)
    cdf = np.exp(evaluate(mechanism.logp(np.arange(61), 22))).cumsum()
    p = np.array([0.0, 1e-12, 0.01, 0.3, 0.5, 0.9, 0.9999])
    expected = np.maximum(np.searchsorted(cdf, p), 0)
    np.testing.assert_array_equal(evaluate(mechanism.icdf(p, 22)), expected)
    z = np.arange(10, 45)
    at_steps = mechanism.icdf(pt.exp(mechanism.logcdf(z, 22)), 22)
    np.testing.assert_array_equal(evaluate(at_steps), z)
    bad = evaluate(mechanism.icdf([-0.1, 1.1, 0.5, 0.5, 0.5], [22, 22, 61, -1, 0.5]))
    assert np.all(np.isnan(bad))


def test_count_outside_its_range():
    mechanism = RandomizedResponse(0.7).counted(10)
    bad = np.array([-1.0, 11.0, 2.5, np.nan, np.inf, -np.inf])
    for value, statistic in [(bad, 3), (3, bad), (bad, bad)]:
        assert np.all(np.isneginf(evaluate(mechanism.logp(value, statistic))))
    assert np.all(np.isneginf(evaluate(mechanism.log_interval(-np.inf, np.inf, bad))))
    assert list(evaluate(mechanism.attainable([0, 10, 11, 0.5]))) == [True, True, False, False]
    rng = pytensor.shared(np.random.default_rng(1))
    for statistic in (11, -1, 2.5):
        with pytest.raises(AssertionError, match="whole number in 0"):
            evaluate(mechanism.noise_sample(rng, statistic)[1])


def test_count_compiles_with_its_gradient_and_broadcasts():
    z, ones, n, t = pt.vector("z"), pt.vector("ones"), pt.lscalar("n"), pt.scalar("t")
    mechanism = RandomizedResponse(t).counted(n)
    logp = mechanism.logp(z[:, None], ones)
    f = pytensor.function([z, ones, n, t], [logp, *pt.grad(logp.sum(), [t, ones, z])])
    logp, slope, by_ones, by_z = f([10.0, 12.0], [8.0, 9.0, 30.0], 30, 0.8)
    expected = evaluate(RandomizedResponse(0.8).counted(30).logp([[10], [12]], [8, 9, 30]))
    np.testing.assert_allclose(logp, expected, rtol=1e-14)
    up, down = (f([10.0, 12.0], [8.0, 9.0, 30.0], 30, 0.8 + h)[0].sum() for h in (1e-6, -1e-6))
    np.testing.assert_allclose(slope, (up - down) / 2e-6, rtol=1e-7)
    assert not np.any(by_ones)
    assert not np.any(by_z)
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        pt.grad(pt.grad(mechanism.logp(3, 2), t), t)


def test_counts_have_the_right_frequencies():
    n, ones, t = 40, 28, 0.8
    draws = pm.draw(RandomizedResponse(t).counted(n).dist(np.full(40_000, ones)), random_seed=12)
    assert draws.dtype == "int64"
    kept = stats.binom.pmf(np.arange(ones + 1), ones, t)
    expected = np.convolve(kept, stats.binom.pmf(np.arange(n - ones + 1), n - ones, 1 - t))
    assert_law_of_draws(draws, np.arange(n + 1), expected.cumsum())


def test_count_arguments():
    with pytest.raises(NotImplementedError, match=r"2 categories only, got 3.*record by record"):
        RandomizedResponse(0.6, 3).counted(10)
    with pytest.raises(TypeError, match="must be a RandomizedResponse, got Laplace"):
        RandomizedResponseCount(LaplaceMechanism(1.0), 10)
    for bad in (-1, 2.5, np.nan, np.inf):
        with pytest.raises(
            ValueError, match=r"population must be a whole number >= 0, got .*index 1"
        ):
            RandomizedResponse(0.6).counted([3, bad])
    assert RandomizedResponse.from_epsilon(1.5).counted(8).inner.epsilon() == 1.5


# --- Models -------------------------------------------------------------------------------------

REPORTS = np.repeat([1, 0], [62, 38])


@pytest.mark.parametrize("observed", [REPORTS, REPORTS.astype(float), list(REPORTS), REPORTS == 1])
def test_binary_records(observed):
    with pm.Model() as model:
        p = pm.Beta("p", 1, 1)
        x = pm.Bernoulli("x", p, shape=100)
        z = dp.PrivateObservation("z", x, dp.RandomizedResponse(0.75), observed=observed)
    records = np.repeat([1, 0], 50)
    logp = model.compile_logp(vars=[z])({**model.initial_point(), "x": records})
    np.testing.assert_allclose(logp, 88 * np.log(0.75) + 12 * np.log(0.25), rtol=1e-13)


def test_predictive_draws():
    with pm.Model() as model:
        x = pm.Bernoulli("x", 0.9, shape=100)
        count = dp.PrivateObservation("count", x.sum(), dp.RandomizedResponse(0.75).counted(100))
        z = dp.PrivateObservation("z", x, dp.RandomizedResponse(0.75), observed=REPORTS)
        assert z.dtype == count.dtype == "int64"
        prior = pm.sample_prior_predictive(400, random_seed=1).prior
        assert set(np.unique(prior["x"])) == {0, 1}
        assert abs(prior["count"].mean() - 70) < 1
        predictive = pm.sample_posterior_predictive(
            prior.to_dataset()[["x"]], var_names=["z"], random_seed=2, progressbar=False
        ).posterior_predictive["z"]
    assert predictive.dtype == "int64"
    agree = (predictive.values == prior["x"].values).mean()
    assert abs(agree - 0.75) < 0.01
    assert model.observed_RVs == [z]


def test_categorical_records():
    with pm.Model() as model:
        p = pm.Dirichlet("p", np.ones(3))
        x = pm.Categorical("x", p, shape=4)
        mechanism = dp.RandomizedResponse(0.6, categories=3)
        z = dp.PrivateObservation("z", x, mechanism, observed=[0, 1, 2, 2])
        prior = pm.sample_prior_predictive(50, random_seed=1)
    logp = model.compile_logp(vars=[z])
    point = {**model.initial_point(), "x": np.array([0, 1, 1, 2])}
    np.testing.assert_allclose(logp(point), 3 * np.log(0.6) + np.log(0.2), rtol=1e-13)
    assert np.isneginf(logp({**point, "x": np.array([0, 1, 3, 2])}))
    assert set(np.unique(prior.prior_predictive["z"])) == {0, 1, 2}
    free = pm.Model()
    with free:
        x = pm.Categorical("x", p=[0.2, 0.3, 0.5], shape=4)
        dp.PrivateObservation("z", x, mechanism)
    assert np.isfinite(pm.observe(free, {"z": [0, 1, 2, 2]}).point_logps()["z"])


def test_impossible_observations_are_refused():
    with pm.Model():
        x = pm.Categorical("x", p=[0.2, 0.3, 0.5], shape=3)
        for observed, bad in [([0, 1, 3], 3), ([-1, 0, 0], -1), ([0, 0.5, 0], 0.5)]:
            with pytest.raises(ValueError, match=rf"'z'.*categories=3\) cannot publish {bad}"):
                dp.PrivateObservation("z", x, dp.RandomizedResponse(0.6, 3), observed=observed)
        count = dp.RandomizedResponse(0.75).counted(3)
        with pytest.raises(ValueError, match=r"'z'.*cannot publish 4"):
            dp.PrivateObservation("z", x.sum(), count, observed=4)
        # What the published value cannot be confused with: additive noise reaches everything.
        dp.PrivateObservation("z", x.sum(), LaplaceMechanism(1.0), observed=-7.5)


def test_reference_posterior():
    """Beta(1, 1) prior, 62 ones among 100 reports kept with probability 3/4; by quadrature over p.

    From the reports with the records summed out one by one, and from the count of the reports
    with the true count summed out.
    """
    mechanism = RandomizedResponse(0.75)
    nodes, weights = np.polynomial.legendre.leggauss(400)
    p, weights = 0.5 * (nodes + 1), 0.5 * weights
    ones = np.arange(101)
    report = evaluate(mechanism.logp(REPORTS[:, None], [0, 1]))
    prior = np.log(np.stack([1 - p, p], axis=1))[:, None, :]
    by_records = logsumexp(report + prior, axis=-1).sum(axis=1)
    counted = evaluate(mechanism.counted(100).logp(62, ones))
    by_count = logsumexp(counted + stats.binom.logpmf(ones, 100, p[:, None]), axis=1)
    choices = float(mpmath.log(mpmath.binomial(100, 62)))
    for log_likelihood, order in [(by_records, 0.0), (by_count, choices)]:
        joint = weights * np.exp(log_likelihood)
        evidence = joint.sum()
        mean = (joint * p).sum() / evidence
        sd = np.sqrt((joint * (p - mean) ** 2).sum() / evidence)
        np.testing.assert_allclose([mean, sd], [0.734793, 0.0950895], rtol=2e-6)
        np.testing.assert_allclose(np.log(evidence) - order, -67.8287, atol=1e-4)


@pytest.mark.parametrize("truth_probability", [0.05, 0.5, 0.8])
def test_reports_are_shown_and_are_not_log_concave(truth_probability):
    assert not RandomizedResponse(truth_probability, 3).log_concave
    counted = RandomizedResponse(truth_probability).counted(30)
    table = counted._repr_html_()
    assert "RandomizedResponseCount" in table
    assert f"{truth_probability}" in table
