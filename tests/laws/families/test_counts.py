"""Counts by cells of public groups and covariates, against every count written out."""

import itertools

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import special, stats

import pymc_dp as dp
from pymc_dp.graphs.values import PLAIN_MODE as PLAIN
from pymc_dp.laws.families.counts import Counts
from pymc_dp.laws.sum_law import law_of
from pymc_dp.reading.groups import record_groups
from pymc_dp.reading.model import Reading
from tests.models import as_model, refuses, route_table

LAPLACE, GAUSSIAN, GEOMETRIC = dp.LaplaceMechanism, dp.GaussianMechanism, dp.GeometricMechanism
N = 12
GROUP = np.array([0, 0, 1, 1, 0, 1, 2, 2, 0, 1, 2, 2])  # decides the probability
ENTRY = np.repeat([0, 1, 2], [4, 3, 5])  # decides where a record is added
INCIDENCE = (np.arange(3)[:, None] == ENTRY).astype(int)
P = np.array([0.2, 0.55, 0.9])
TRIALS = np.array([1, 2, 1, 3, 1, 1, 2, 1, 1, 1, 2, 1])


@as_model
def grouped(mechanism, z, statistic=lambda x: pt.dot(INCIDENCE, x), trials=None):
    p = pm.Beta("p", 1, 1, shape=3)
    if trials is None:
        x = pm.Bernoulli("x", p[GROUP], shape=N)
    else:
        x = pm.Binomial("x", trials, p[GROUP], shape=N)
    dp.PrivateObservation("z", statistic(x), mechanism, observed=z)


def entry_law(members, trials):
    """Masses of the sum over some records."""
    law = np.ones(1)
    for i in members:
        law = np.convolve(law, stats.binom(trials[i], P[GROUP[i]]).pmf(np.arange(trials[i] + 1)))
    return law


def density_of(model, to="marginal", **point):
    """Return the log densities of the entries of z and the gradient of their sum by the point."""
    collapsed = dp.collapse(model, to)
    release = collapsed["z"]
    logp = pm.logp(release, collapsed.rvs_to_values[release])
    inputs = [collapsed[name] for name in point]
    function = pm.compile(inputs, [logp, *pt.grad(logp.sum(), inputs)], mode=PLAIN)
    return function(*point.values())


MECHANISMS = {
    "geometric": (GEOMETRIC(2.0), [1, -3, 11]),
    "Laplace": (LAPLACE([0.2, 1.0, 8.0]), [1.5, 40.0, -7.0]),
    "Gaussian": (GAUSSIAN(0.7), [9.0, 1.0, 1.0]),
    "discrete Gaussian": (dp.DiscreteGaussianMechanism(1.3), [-2, 4, 1]),
    "clipped": (LAPLACE(1.0).clipped(0, 4), [0.0, 4.0, 2.2]),
    "rounded": (GAUSSIAN(1.0).rounded(0), [1.0, 9.0, 3.0]),
}


@pytest.mark.parametrize("trials", [None, TRIALS], ids=["Bernoulli", "Binomial"])
@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.by_day("geometric-Bernoulli", "Laplace-Binomial", "clipped-Bernoulli")
def test_each_entry_is_a_sum_over_cells(name, trials):
    mechanism, z = MECHANISMS[name]
    found, slopes = density_of(grouped(mechanism, z, trials=trials), p=P)
    own = np.ones(N, int) if trials is None else trials
    laws = [entry_law(np.flatnonzero(i == ENTRY), own) for i in range(3)]
    longest = max(law.size for law in laws)
    noise = mechanism.logp(np.array(z), np.arange(longest)[:, None]).eval()
    expected = [special.logsumexp(noise[: law.size, i], b=law) for i, law in enumerate(laws)]
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    # The score of p is the sum of those of its records, whose counts are weighed by the release.
    score = np.zeros(3)
    for i in range(3):
        members = np.flatnonzero(i == ENTRY)
        for states in itertools.product(*(range(own[j] + 1) for j in members)):
            chances = [stats.binom(own[j], P[GROUP[j]]).pmf(c) for j, c in zip(members, states, strict=True)]  # fmt: skip  # noqa: E501
            weight = np.prod(chances) * np.exp(noise[sum(states), i] - expected[i])
            for j, c in zip(members, states, strict=True):
                p = P[GROUP[j]]
                score[GROUP[j]] += weight * (c / p - (own[j] - c) / (1 - p))
    np.testing.assert_allclose(slopes, score, rtol=1e-9)


def test_two_releases_of_different_records():
    with pm.Model() as model:
        p = pm.Beta("p", 1, 1, shape=3)
        x = pm.Bernoulli("x", p[GROUP], shape=N)
        dp.PrivateObservation("z", x[:4].sum(), GEOMETRIC(1.0), observed=2)
        dp.PrivateObservation("rest", x[4:].sum(), LAPLACE(2.0), observed=3.5)
    found, _ = density_of(model, p=P)
    law, s = entry_law(range(4), np.ones(N, int)), np.arange(5)
    expected = special.logsumexp(GEOMETRIC(1.0).logp(2, s).eval(), b=law)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    names = {n for r in dp.collapse(model).observed_RVs for n in r.owner.op.law.names}
    assert names == {"x_z_sum", "x_rest_sum"}


def test_a_logistic_regression_of_a_hundred_thousand_different_rows():
    """Only the sum over each half is released: the marginal is read, and its gradient right."""
    rng, n = np.random.default_rng(3), 100_000
    rows, half = rng.normal(size=(n, 2)), np.arange(n) % 2
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=2)
        x = pm.Bernoulli("x", logit_p=pt.dot(rows, b), shape=n)
        sums = pt.inc_subtensor(pt.zeros(2, dtype="int64")[half], x)
        dp.PrivateObservation("z", sums, GEOMETRIC(1.0), observed=[25_100, 24_800])
    at = np.array([0.3, -0.2])
    found, slopes = density_of(model, b=at)
    p = special.expit(rows @ at)
    for i, z in enumerate([25_100, 24_800]):
        mean, variance = p[half == i].sum(), (p * (1 - p))[half == i].sum()
        normal = stats.norm(mean, np.sqrt(variance)).logpdf(z)
        np.testing.assert_allclose(found[i], normal, atol=1e-3)  # Edgeworth's next term
    assert np.isfinite(slopes).all()
    refuses(model, "records of 'x' in 'z' are of 100000 kinds", "statistics")


# --- X'y of few kinds of records ------------------------------------------------------------------

ROWS = np.column_stack([np.ones(6, int), [0, 1, 1, 0, 1, 1]])


@as_model
def logistic(mechanism, z, rows=ROWS):
    b = pm.Normal("b", 0, 1, shape=2)
    y = pm.Bernoulli("y", logit_p=pt.dot(rows, b), shape=len(rows))
    dp.PrivateObservation("z", pt.dot(rows.T, y), mechanism, observed=z)


def of_records(mechanism, z, b, rows=ROWS):
    """Log density of z, a sum over all values of the records."""
    p = special.expit(rows @ b)
    values = np.array(list(itertools.product([0, 1], repeat=len(rows))))
    log_law = stats.bernoulli(p).logpmf(values).sum(axis=1)
    noise = mechanism.logp(np.array(z), values @ rows).eval().sum(axis=1)
    return special.logsumexp(log_law + noise)


@pytest.mark.parametrize(
    ("mechanism", "z"),
    [
        (LAPLACE(0.5), [3.2, 1.9]),
        (GEOMETRIC(3.0), [4, -1]),
        (GAUSSIAN(1.0).rounded(0), [2.0, 2.0]),
    ],
)
@pytest.mark.parametrize("b", [[0.0, 0.0], [1.0, -2.5]])
def test_counts_of_kinds_are_integrated_out(mechanism, z, b):
    found, slopes = density_of(logistic(mechanism, z), b=np.array(b))
    np.testing.assert_allclose(found, of_records(mechanism, z, b), rtol=1e-9)
    for j in range(2):
        h = 1e-5 * (np.arange(2) == j)
        ends = [of_records(mechanism, z, b + sign * h) for sign in (1, -1)]
        np.testing.assert_allclose(slopes[j], (ends[0] - ends[1]) / 2e-5, rtol=1e-5, atol=1e-8)


def test_the_statistics_have_the_density_of_the_records():
    """The counts are added up by hand, for weights that are no whole numbers, too."""
    rows = ROWS * np.array([1.0, 0.25])
    collapsed = dp.collapse(logistic(LAPLACE(0.5), [3.2, 0.6], rows), "statistics")
    assert [rv.name for rv in collapsed.free_RVs] == ["b", "y_count"]
    logp = collapsed.compile_logp()
    b = np.array([0.3, -0.4])
    total = [logp({"b": b, "y_count": np.array(c)}) for c in itertools.product(range(3), range(5))]
    prior = stats.norm.logpdf(b).sum()
    expected = of_records(LAPLACE(0.5), [3.2, 0.6], b, rows)
    np.testing.assert_allclose(special.logsumexp(total) - prior, expected, rtol=1e-9)


@as_model
def rates():
    b = pm.Normal("b", 0, 1, shape=2)
    y = pm.Poisson("y", pt.exp(pt.dot(ROWS, b)), shape=6)
    dp.PrivateObservation("z", pt.dot(ROWS.T, y), GEOMETRIC(1.0), observed=[9, 5])


def test_poisson_records():
    model = rates()
    refuses(model, "Poisson records 'y' have no marginal", "marginal")
    collapsed = dp.collapse(model, "statistics")
    b, counts = np.array([0.2, 0.1]), np.array([3, 5])
    found = collapsed.compile_logp()({"b": b, "y_count": counts})
    expected = stats.norm.logpdf(b).sum()
    expected += stats.poisson(np.exp([0.2, 0.3]) * [2, 4]).logpmf(counts).sum()
    expected += GEOMETRIC(1.0).logp(np.array([9, 5]), np.array([8, 5])).eval().sum()
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_releases_that_share_records():
    """Marginal totals of a table: rows in one release, columns in another."""
    row, column = np.repeat([0, 1], 6), np.tile([0, 1, 2], 4)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=5)
        y = pm.Bernoulli("y", logit_p=b[row] + b[2 + column], shape=12)
        rows = pt.inc_subtensor(pt.zeros(2)[row], y)
        columns = pt.inc_subtensor(pt.zeros(3)[column], y)
        dp.PrivateObservation("rows", rows, LAPLACE(1.0), observed=[3.0, 2.0])
        dp.PrivateObservation("columns", columns, LAPLACE(1.0), observed=[1.0, 2.0, 2.0])
    refuses(model, "are in several releases .*'rows', 'columns'", "marginal")
    collapsed = dp.collapse(model, "statistics")
    counts = np.arange(6) % 3
    chance = special.expit(np.add.outer([0.1, 0.2], [0.3, 0.4, 0.5])).ravel()
    expected = stats.binom(2, chance).logpmf(counts).sum()
    expected += stats.norm.logpdf([0.1, 0.2, 0.3, 0.4, 0.5]).sum()
    table = counts.reshape(2, 3)
    expected += stats.laplace.logpdf(table.sum(1) - [3.0, 2.0]).sum()
    expected += stats.laplace.logpdf(table.sum(0) - [1.0, 2.0, 2.0]).sum()
    point = {"b": np.array([0.1, 0.2, 0.3, 0.4, 0.5]), "y_count": counts}
    np.testing.assert_allclose(collapsed.compile_logp()(point), expected, rtol=1e-10)


def beside_others():
    with pm.Model() as model:
        chance = pm.Beta("p", 1, 1, shape=3)[np.tile([0, 1, 2], 4)]
        x, y = pm.Bernoulli("x", chance), pm.Poisson("y", 3.0, shape=5)
        parts = pt.stack([x[:8].sum(), x[8:].sum(), y.sum()])
        dp.PrivateObservation("z", parts, LAPLACE(1.0), observed=np.ones(3))
    return model


def test_what_explain_says():
    for model, expected in [
        (grouped(LAPLACE(1.0), [1.0, 2.0, 3.0]), "sum of each of 3 groups of 3 to 5 of x"),
        (logistic(LAPLACE(1.0), [1.0, 2.0]), "linear in the counts of 2 kinds of y"),
        (beside_others(), "sum of each of 2 groups of 4 to 8 of x, sum of 5 of y"),
    ]:
        reading = Reading(model)
        law = law_of(reading, record_groups(reading)[0])
        assert isinstance(law.families[0], Counts)
        assert law.describe(model["z"]) == expected


def test_the_marginal_goes_first_then_the_counts():
    # Of 1,200 records both give 493 effective draws a second: beyond, the counts.
    few, many = (np.repeat(ROWS, k, axis=0) for k in (1, 2000))
    rates_of = {
        len(rows): {
            r.name: rate for r, rate, _ in route_table(logistic(LAPLACE(1.0), [1, 2], rows))
        }
        for rows in (few, many)
    }
    assert max(rates_of[6], key=rates_of[6].get) == "NUTS on the marginal"
    assert max(rates_of[12_000], key=rates_of[12_000].get) == "Gibbs on the statistics"
