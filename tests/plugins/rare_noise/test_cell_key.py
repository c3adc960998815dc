"""Counts under a table of changes, against sums over all counts."""

from itertools import product

import cloudpickle
import numpy as np
import pymc as pm
import pytest
from scipy import special, stats

import pymc_dp as dp
from pymc_dp.graphs.values import PLAIN_MODE, plain_function
from tests.mechanisms.noise import evaluate

TABLE = np.array([
    [0, 0, 1, 0, 0],
    [0, 0.6, 0, 0.2, 0.2],
    [0.1, 0, 0.7, 0.2, 0],
    [0.05, 0.25, 0.4, 0.25, 0.05],
])  # fmt: skip
WIDE = np.vstack([np.eye(81)[40:41]] * 40 + [(np.eye(81)[:1] + np.eye(81)[80:]) / 2])  # by +-40
COUNTS = np.arange(400)


def enumerated(table, z, s):
    """P(z | s), looked up one by one."""
    most = table.shape[1] // 2
    p = np.zeros(np.broadcast_shapes(np.shape(z), np.shape(s)))
    for at, (a, b) in zip(np.ndindex(p.shape), np.broadcast(z, s), strict=True):
        if abs(a - b) <= most:
            p[at] = table[min(b, len(table) - 1)][a - b + most]
    return p


def test_law():
    noise, z, s = dp.CellKey(TABLE), np.arange(-2, 14)[:, None], np.arange(10)
    p = enumerated(TABLE, z, s)
    logp, cdf, middle = evaluate(
        noise.logp(z, s), noise.logcdf(z, s), noise.log_interval(z - 0.5, z + 2, s)
    )
    np.testing.assert_allclose(np.exp(logp), p, rtol=1e-14)
    np.testing.assert_allclose(np.exp(cdf), p.cumsum(axis=0), rtol=1e-14)
    three = p + np.vstack([p[1:], p[:1] * 0]) + np.vstack([p[2:], p[:2] * 0])
    np.testing.assert_allclose(np.exp(middle), three, rtol=1e-14)
    np.testing.assert_allclose(p.sum(axis=0), 1)
    for impossible in ([0.5, 3], [3, 2.5], [-1, 0], [0, -1], [np.inf, 3], [3, np.nan]):
        assert evaluate(noise.logp(*impossible)) == -np.inf


def test_what_can_be_published():
    noise, z = dp.CellKey(TABLE), np.arange(12)
    possible = enumerated(TABLE, z[:, None], COUNTS[:20]).max(axis=1)
    assert list(z[possible == 0]) == []
    typical = evaluate(noise.typical_statistic(z)).astype(int)
    np.testing.assert_allclose(enumerated(TABLE, z, typical), possible)
    no_ones = dp.CellKey([[0, 0, 1, 0, 0], [0, 0.6, 0, 0.4, 0], [0, 0, 1, 0, 0]])
    with pm.Model():
        y = pm.Poisson("y", 3.0, shape=2)
        with pytest.raises(ValueError, match=r"cannot publish 1\.0.*by its table"):
            dp.PrivateObservation("z", y, no_ones, observed=[3, 1])
        with pytest.raises(ValueError, match="counts, which are whole"):
            dp.PrivateObservation("z", y, no_ones, observed=[3, 2.5])


WRONG = [
    ([[0, 1, 0], [0.3, 0.4, 0.4]], "row 1 adds up to 1.1"),
    ([[0, 1, 0], [-0.1, 0.7, 0.4]], r"\[1, 0\] is -0\.1"),
    ([[0.1, 0.9, 0]], "a count of 0 changes by -1 .* counts from 0"),
    ([[0, 0, 1, 0, 0], [0.2, 0, 0.8, 0, 0], [0, 0, 1, 0, 0]], "a count of 1 changes by -2"),
    ([[0.5, 0.5], [0.5, 0.5]], "2 columns"),
    ([0, 1, 0], "write a matrix"),
]


@pytest.mark.parametrize(("table", "match"), WRONG)
def test_tables_are_checked(table, match):
    with pytest.raises(ValueError, match=match):
        dp.CellKey(table)


def test_draws_need_counts_and_files_keep_it():
    noise = dp.CellKey(TABLE)
    with pytest.raises(AssertionError, match="must be a count"):
        pm.draw(noise.dist(-1), mode=PLAIN_MODE)
    release = dp.Release([3, 0], noise)
    for again in (
        dp.Release.from_json(release.to_json()).mechanism,
        cloudpickle.loads(cloudpickle.dumps(noise)),
    ):
        np.testing.assert_array_equal(again.probabilities, TABLE)


LAWS = {
    "Poisson": (lambda **more: pm.Poisson.dist(4.2, **more), stats.poisson(4.2)),
    "NegativeBinomial": (
        lambda **more: pm.NegativeBinomial.dist(n=1.5, p=0.2, **more),
        stats.nbinom(1.5, 0.2),
    ),
    "Binomial": (lambda **more: pm.Binomial.dist(12, 0.3, **more), stats.binom(12, 0.3)),
}


@pytest.mark.parametrize("table", [TABLE, WIDE], ids=["small", "wide"])
@pytest.mark.parametrize("law", LAWS)
def test_counts_are_summed_out(law, table):
    """Of the wide table counts 80 apart lead to one release, and none between."""
    write, known = LAWS[law]
    z = np.array([0, 2, 3, 9, 12, 7]) if table is TABLE else np.array([0, 3, 12, 7])
    with pm.Model() as model:
        dp.PrivateObservation("z", write(shape=z.size), dp.CellKey(table), observed=z)
    function = plain_function([], model.logp(model["z"], sum=False))
    expected = enumerated(table, z[:, None], COUNTS) @ known.pmf(COUNTS)
    np.testing.assert_allclose(np.exp(function()[0]), expected, rtol=1e-12)


def test_named_counts_are_summed_out_and_recovered():
    z = np.array([0, 2, 3, 9])
    with pm.Model() as model:
        y = pm.Poisson("y", pm.Exponential("rate", 0.2), shape=4)
        dp.PrivateObservation("z", y, dp.CellKey(TABLE), observed=z)
    collapsed = dp.collapse(model)
    [rate] = collapsed.free_RVs
    assert rate.name == "rate"
    value = collapsed.rvs_to_values[rate]
    function = plain_function([value], collapsed.logp(collapsed["z"], sum=False))
    expected = enumerated(TABLE, z[:, None], COUNTS) @ stats.poisson(5.0).pmf(COUNTS)
    np.testing.assert_allclose(np.exp(function(np.log(5.0))[0]), expected, rtol=1e-12)


@pytest.mark.compiled
def test_tables_with_rates_of_their_own_begin_as_published():
    """No draw of rates and counts from their law is possible."""
    cells = np.array([[3, 0, 7], [12, 5, 3]])
    with pm.Model() as model:
        c = pm.Poisson("c", pm.Gamma("rate", 2, 0.2, shape=(2, 3)), shape=(2, 3))
        dp.PrivateObservation("cells", c, dp.CellKey(TABLE), observed=cells)
        dp.PrivateObservation("rows", c.sum(axis=1), dp.CellKey(TABLE), observed=[11, 19])
        dp.PrivateObservation("columns", c.sum(axis=0), dp.CellKey(TABLE), observed=[14, 5, 10])
    idata = dp.sample(model, draws=20, tune=20, chains=1, random_seed=1, quiet=True)
    assert np.all(np.isfinite(idata.posterior["rate"]))


@pytest.mark.compiled
@pytest.mark.nightly
def test_margins_that_are_perturbed_by_themselves():
    """The published table does not add up; against all tables that can have led to it."""
    cells, rows, columns = np.array([[3, 0], [10, 5]]), np.array([3, 15]), np.array([12, 6])
    with pm.Model() as model:
        rate = pm.Gamma("rate", 2, 0.2)
        c = pm.Poisson("c", rate, shape=(2, 2))
        dp.PrivateObservation("cells", c, dp.CellKey(TABLE), observed=cells)
        dp.PrivateObservation("rows", c.sum(axis=1), dp.CellKey(TABLE), observed=rows)
        dp.PrivateObservation("columns", c.sum(axis=0), dp.CellKey(TABLE), observed=columns)
    tables = np.array(list(product(range(6), range(4), range(7, 14), range(2, 9))))
    tables = tables.reshape(-1, 2, 2)
    weight = enumerated(TABLE, cells, tables).prod(axis=(1, 2))
    weight = weight * enumerated(TABLE, rows, tables.sum(axis=2)).prod(axis=1)
    weight = weight * enumerated(TABLE, columns, tables.sum(axis=1)).prod(axis=1)
    total = tables.sum(axis=(1, 2))  # the rate is integrated out
    log_law = special.gammaln(2 + total) - (2 + total) * np.log(4.2)
    weight = weight * np.exp(log_law - special.gammaln(tables + 1.0).sum(axis=(1, 2)))
    expected = (2 + total) / 4.2 @ (weight / weight.sum())
    idata = dp.sample(model, draws=4000, tune=500, chains=2, random_seed=1, quiet=True)
    assert abs(idata.posterior["rate"].mean().item() - expected) < 0.12
