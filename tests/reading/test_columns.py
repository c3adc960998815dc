"""Rows of several columns: what is read of their law and of the statistics released of them."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.replace import graph_replace

import pymc_dp as dp
from pymc_dp.graphs.declined import Declined
from pymc_dp.ladder.collapse import integrable
from pymc_dp.reading.columns import read_rows
from pymc_dp.reading.model import Reading, release_statistic

N = 30
PLAIN = Mode(linker="py", optimizer=None)


def evaluated(graph, **values):
    """Evaluate a graph with values for random variables of these names."""
    found = {v: v for v in pytensor.graph.traversal.ancestors([graph]) if v.name in values}
    replaced = graph_replace(
        [graph], {v: pt.constant(values[v.name]) for v in found}, strict=False
    )[0]
    return np.asarray(pytensor.function([], replaced, mode=PLAIN)())


def regression(*statistics, n=N):
    """Return a model of a chain x, w | x, y | x, w, with releases."""
    with pm.Model() as model:
        theta = pm.Normal("theta", shape=3)
        sigma = pm.HalfNormal("sigma")
        x = pm.MvNormal("x", [1.0, -2.0], [[2.0, 0.5], [0.5, 1.0]], shape=(n, 2))
        w = pm.Normal("w", 3.0 + x[:, 0] - x[:, 1] / 2, 0.5, shape=n)
        features = pt.concatenate([pt.ones((n, 1)), x], axis=1)
        y = pm.Normal("y", features @ theta + 2 * w, sigma, shape=n)
        for k, statistic in enumerate(statistics):
            own = statistic(x, w, y)
            dp.PrivateObservation(
                f"z{k}", own, dp.LaplaceMechanism(1.0), observed=np.ones(own.type.shape)
            )
    return model


def read(model):
    [block] = integrable(Reading(model))
    return read_rows(Reading(model), block)


STATISTICS = {
    "X'X": lambda x, w, y: pt.concatenate([x.T @ x, (x.T @ y)[None]]),
    "sums": lambda x, w, y: pt.concatenate([x.sum(axis=0), x.T @ y, [y.sum(), (y * w).mean()]]),
    "squares": lambda x, w, y: ((x[:, 0] * w) + y**2).sum(),
    "variance": lambda x, w, y: pt.stack([y.var(ddof=1), x[:, 1].var()]),
    "covariance": lambda x, w, y: ((w - w.mean()) * (y - y.mean())).sum() / (N - 1),
    "slope": lambda x, w, y: ((w - w.mean()) * y).sum() / ((w - w.mean()) ** 2).sum(),
    "shifted": lambda x, w, y: ((y - 2 * w + 7) ** 2).sum() / 3,
}


@pytest.mark.parametrize("name", STATISTICS)
@pytest.mark.parametrize("mean", [0.0, 1e6])
def test_statistics_are_functions_of_mean_and_scatter(name, mean):
    model = regression(STATISTICS[name])
    [release] = read(model).releases
    rng = np.random.default_rng(1)
    data = mean + rng.normal(size=(N, 4))
    direct = evaluated(release_statistic(release.rv), x=data[:, :2], w=data[:, 2], y=data[:, 3])
    center = data.mean(axis=0)
    scatter = (data - center).T @ (data - center)
    ours = evaluated(release.expression(pt.constant(center), None, pt.constant(scatter)))
    assert ours.shape == direct.shape
    spread = 1e-5 if mean else 0.0  # what numpy's own raw sums lose
    np.testing.assert_allclose(ours, direct, rtol=1e-9, atol=spread)
    zero = np.zeros(4)
    raw = release.expression(*map(pt.constant, (zero, data.sum(axis=0), data.T @ data)))
    if not mean:
        np.testing.assert_allclose(evaluated(raw), direct, rtol=1e-9)


def test_linear_entries_are_read():
    model = regression(lambda x, w, y: pt.stack([2 * (y - 1).sum(), (x[:, 1] * w).mean()]))
    [release] = read(model).releases
    first, second = release.linear()
    assert first == {(): -2.0 * N, (3,): 2.0}
    assert second == {(1, 2): pytest.approx(1 / N)} | ({(): 0.0} if () in second else {})
    [shifted] = read(regression(STATISTICS["shifted"])).releases
    [found] = shifted.linear()
    expected = {(): 49.0 * N, (2,): -28.0, (3,): 14.0, (2, 2): 4.0, (2, 3): -4.0, (3, 3): 1.0}
    assert found == pytest.approx({monomial: c / 3 for monomial, c in expected.items()})
    [curved] = read(regression(STATISTICS["slope"])).releases
    with pytest.raises(Declined):
        curved.linear()


def test_law_of_a_chain_of_regressions():
    rows = read(regression(STATISTICS["squares"], STATISTICS["sums"]))
    theta, sigma = np.array([0.5, 1.5, -1.0]), 0.7
    mean, root = (evaluated(v, theta=theta, sigma=sigma) for v in rows.law())
    cov_x = np.array([[2.0, 0.5], [0.5, 1.0]])
    mean_x = np.array([1.0, -2.0])
    to_w = np.array([1.0, -0.5])
    slope = np.array([1.5, -1.0]) + 2 * to_w  # of y in x, the error of w aside
    cov_w = to_w @ cov_x @ to_w + 0.25
    expected = np.zeros((4, 4))
    expected[:2, :2] = cov_x
    expected[:2, 2] = expected[2, :2] = cov_x @ to_w
    expected[:2, 3] = expected[3, :2] = cov_x @ slope
    expected[2, 2] = cov_w
    expected[2, 3] = expected[3, 2] = to_w @ cov_x @ slope + 2 * 0.25
    expected[3, 3] = slope @ cov_x @ slope + 4 * 0.25 + sigma**2
    mean_w = 3.0 + to_w @ mean_x
    np.testing.assert_allclose(
        mean, [*mean_x, mean_w, 0.5 + np.array([1.5, -1.0]) @ mean_x + 2 * mean_w]
    )
    np.testing.assert_allclose(root @ root.T, expected, atol=1e-13)
    np.testing.assert_allclose(root, np.tril(root))
    assert rows.labels == ["x[0]", "x[1]", "w", "y"]


def refused(build, match, error=NotImplementedError):
    with pm.Model() as model:
        x = pm.Normal("x", shape=N)
        y = build(x)
        dp.PrivateObservation("z", (x * y).sum(), dp.LaplaceMechanism(1.0), observed=1.0)
    with pytest.raises(error, match=match):
        dp.collapse(model, "statistics")


def test_rows_without_a_known_law_are_refused_by_name():
    line = np.linspace(0, 1, N)
    refused(lambda x: pm.Normal("y", x**2, 1, shape=N), "'y' is a polynomial of degree 2")
    refused(lambda x: pm.Normal("y", x * line, 1, shape=N), "'y': a public vector differs")
    refused(lambda x: pm.Normal("y", x + line, 1, shape=N), "'y': a public vector differs")
    refused(lambda x: pm.Normal("y", x, 1 + line, shape=N), "'y' are not identically distributed")
    refused(lambda x: pm.Normal("y", x, pt.exp(x), shape=N), "spread of the records 'y' depends")
    refused(lambda x: pm.Normal("y", x, 1 + abs(x[0]), shape=N), "spread of the records 'y'")
    refused(lambda x: pm.Normal("y", pt.exp(x), 1, shape=N), "'y': `exp`")
    refused(lambda x: pm.Laplace("y", x, 1, shape=N), "'y' follow Laplace and depend on")
    refused(lambda x: pm.Laplace("y", 0, 1, shape=N), "'y' follow Laplace: rows have an exact law")


def test_clipped_rows_are_refused():
    model = regression(lambda x, w, y: pt.clip(x[:, 0] * y, -1, 1).sum())
    with pytest.raises(NotImplementedError, match="'z0': `clip`"):
        dp.collapse(model, "statistics")
    third = regression(lambda x, w, y: (w**2 * y).sum())
    with pytest.raises(NotImplementedError, match="products of 3 columns"):
        dp.collapse(third, "statistics")


def test_too_few_rows_are_refused():
    with pytest.raises(NotImplementedError, match="4 rows of 4 columns"):
        dp.collapse(regression(STATISTICS["sums"], n=4), "statistics")


def test_nothing_of_the_size_of_the_rows_is_evaluated():
    model = regression(lambda x, w, y: x.T @ y, n=10**9)
    collapsed = dp.collapse(model, "statistics")
    assert {rv.name for rv in collapsed.free_RVs} == {"theta", "sigma", "x_w_y_sums_standard"}
    assert "Σ x[0]·y, Σ x[1]·y (n = 1000000000)" in str(
        dp.explain(model, details=True).tables[0][2]
    )
