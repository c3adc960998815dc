"""The reader of one column: statistics as functions of the sample mean and variance."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

import pymc_dp as dp
from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.values import PLAIN_MODE
from pymc_dp.reading.column_sums import LinearStatistic
from pymc_dp.reading.groups import Records, record_groups
from pymc_dp.reading.model import Reading, privatized
from pymc_dp.reading.normal_column import read_normal_column
from pymc_dp.reading.record_lengths import record_count

N = 43


def column_of(model, k=0):
    reading = Reading(model)
    return read_normal_column(reading, record_groups(reading)[k])


def read(statistic):
    """Return the statistic's graph, and its release as it was read."""
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, shape=N)
        dp.PrivateObservation("z", statistic(x), dp.LaplaceMechanism(1.0))
    [release] = column_of(model).releases
    return x, model["z"].owner.inputs[1], release


def deviations(x):
    return ((x - x.mean()) ** 2).sum()


# A statistic and its coefficients (constant, mean, variance) by entry.
READ = {
    "mean": (lambda x: x.mean(), [(0, 1, 0)]),
    "mean that keeps the axis": (lambda x: x.mean(keepdims=True), [(0, 1, 0)]),
    "sum": (lambda x: x.sum(), [(0, N, 0)]),
    "sum over the size": (lambda x: x.sum() / x.size, [(0, 1, 0)]),
    "sum of scaled records": (lambda x: (x / 10).sum(), [(0, N / 10, 0)]),
    "mean of shifted records": (lambda x: (2 * x + 3).mean(), [(3, 2, 0)]),
    "var(ddof=1)": (lambda x: x.var(ddof=1), [(0, 0, 1)]),
    "var(ddof=0)": (lambda x: x.var(), [(0, 0, (N - 1) / N)]),
    "sum of squared deviations": (deviations, [(0, 0, N - 1)]),
    "deviations by sqr": (lambda x: pt.sqr(x - x.mean()).sum(), [(0, 0, N - 1)]),
    "deviations by product": (
        lambda x: ((x - x.mean()) * (x - x.mean())).sum() / (N - 1),
        [(0, 0, 1)],
    ),
    "variance of scaled records": (lambda x: (x / 10 + 4).var(ddof=1), [(0, 0, 0.01)]),
    "affine": (lambda x: 5 - 2 * x.mean() + x.var(ddof=1) / 4, [(5, -2, 0.25)]),
    "negative": (lambda x: -x.mean(), [(0, -1, 0)]),
    "a product of constants": (lambda x: 2.0 * x.mean() * np.float32(0.5) * 3, [(0, 3, 0)]),
    "list": (lambda x: pt.stack([x.mean(), x.var(ddof=1)]), [(0, 1, 0), (0, 0, 1)]),
    "constant entry": (lambda x: pt.stack([x.mean(), pt.constant(7.0)]), [(0, 1, 0), (7, 0, 0)]),
    "stack of stacks": (
        lambda x: pt.stack([pt.stack([x.mean(), x.sum()]), pt.stack([x.var(), x.mean() + 1])]),
        [(0, 1, 0), (0, N, 0), (0, 0, (N - 1) / N), (1, 1, 0)],
    ),
    "concatenate": (
        lambda x: pt.concatenate([pt.stack([x.mean(), x.var(ddof=1)]), x.sum()[None]]),
        [(0, 1, 0), (0, 0, 1), (0, N, 0)],
    ),
    "scaled list": (
        lambda x: pt.stack([x.mean(), x.var(ddof=1)]) * np.array([2.0, 3.0]) + 1,
        [(1, 2, 0), (1, 0, 3)],
    ),
    "list over a list": (
        lambda x: pt.stack([x.sum(), deviations(x)]) / np.array([43.0, 42.0]),
        [(0, 1, 0), (0, 0, 1)],
    ),
    "concatenate one": (
        lambda x: pt.concatenate([pt.stack([x.mean(), x.sum()])]),
        [(0, 1, 0), (0, N, 0)],
    ),
    "shifted by a vector": (lambda x: (x + np.arange(N)).sum(), [(N * (N - 1) / 2, N, 0)]),
    "cast": (lambda x: x.astype("float32").mean().astype("float64"), [(0, 1, 0)]),
}


@pytest.mark.parametrize(("statistic", "expected"), READ.values(), ids=READ)
def test_reads(statistic, expected):
    x, graph, release = read(statistic)
    found = release.mean_and_variance()
    rtol = 1e-8 if graph.owner.inputs[0].dtype == "float32" else 1e-12
    np.testing.assert_allclose(
        [(c.constant, c.mean, c.variance) for c in found], expected, rtol=rtol, atol=1e-13
    )
    # And what was read is the statistic itself.
    data = np.random.default_rng(1).normal(3, 2, N)
    value = pytensor.function([x], graph, mode=PLAIN_MODE, on_unused_input="ignore")(data)
    written = [c.expression(data.mean(), data.var(ddof=1)) for c in found]
    written = [float(w.eval(mode=PLAIN_MODE) if hasattr(w, "eval") else w) for w in written]
    np.testing.assert_allclose(written, np.ravel(value), rtol=1e-5 if value.dtype == "f4" else 1e-6)


# Functions of the mean and the variance that are not linear in them.
FUNCTIONS = {
    "std": lambda x: x.std(),
    "mean of squares": lambda x: (x**2).mean(),
    "deviations from a number": lambda x: ((x - 3.0) ** 2).sum(),
    "ratio": lambda x: x.mean() / x.var(),
    "product": lambda x: x.mean() * x.var(),
    "squared variance": lambda x: x.var(ddof=1) ** 2,
    "standard deviation over the mean": lambda x: pt.stack([x.std(ddof=1) / x.mean(), x.sum()]),
    "a rounded mean": lambda x: x.mean().astype("int64").astype("float64"),
    "the larger of two": lambda x: pt.maximum(x.mean(), x.var()),
}


@pytest.mark.parametrize("statistic", FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_of_mean_and_variance(statistic):
    x, graph, release = read(statistic)
    with pytest.raises(Declined):
        release.mean_and_variance()
    data = np.random.default_rng(1).normal(3, 2, N)
    mean, scatter = np.array([data.mean()]), np.array([[(N - 1) * data.var(ddof=1)]])
    written = release.expression(pt.constant(mean), None, pt.constant(scatter))
    expected = pytensor.function([x], graph, mode=PLAIN_MODE)(data)
    np.testing.assert_allclose(written.eval(mode=PLAIN_MODE), expected, rtol=1e-10)


REFUSED = {
    "max": (lambda x: x.max(), "max"),
    "part of the records": (lambda x: x[:10].mean(), "switch"),
    "one record": (lambda x: x[0], "takes a single record by its position"),
    "log": (lambda x: pt.log(x).sum(), "log"),
    "count": (lambda x: (x > 3).sum(), "gt"),
    "clipped": (lambda x: pt.clip(x, 0, 1).mean(), "clip"),
    "weighted": (lambda x: (x * np.arange(N)).sum(), "differs from row to row"),
    "the records": (lambda x: x, "one value per record"),
    "rounded records": (lambda x: x.astype("int64").sum(), "convert_to_int64"),
}


@pytest.mark.parametrize(("statistic", "match"), REFUSED.values(), ids=REFUSED)
def test_refuses(statistic, match):
    with pytest.raises(Declined, match=rf"(?i)'z': .*({match})"):
        read(statistic)


def test_names_the_release_and_what_it_mixes():
    with pm.Model() as model:
        x, y = pm.Normal("x", 0, 1, shape=5), pm.Normal("y", 0, 1, shape=5)
        dp.PrivateObservation("both", x.mean() - y.mean(), dp.LaplaceMechanism(1.0), observed=0.0)
    assert privatized(Reading(model)) == [x, y]
    for k in (x, y):
        with pytest.raises(Declined, match=r"'both' mixes the records '[xy]' with '[xy]'"):
            read_normal_column(Reading(model), Records((k,), 5, ()))


def test_all_releases_of_the_records_are_read_together():
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu"), pm.HalfNormal("sigma")
        x = pm.Normal("x", mu, sigma, shape=5)
        one = dp.LaplaceMechanism(1.0)
        a = dp.PrivateObservation("a", x.sum(), one, observed=0.0)
        b = dp.PrivateObservation("b", [x.var(ddof=1)], one, observed=[1.0])
    group = column_of(model)
    assert [r.rv for r in group.releases] == [a, b]
    assert (group.n, group.mean, group.bounds) == (5, mu, None)
    assert group.uses("mean")
    assert group.uses("variance")
    assert group.variance.eval({sigma: 3.0}) == 9.0


@pytest.mark.parametrize(
    ("n", "how"),
    [
        (7, {"shape": 7}),
        (7, {"dims": "person"}),
        (7, {"shape": pytensor.shared(np.array(7))}),
        (10**9, {"shape": 10**9}),
    ],
    ids=str,
)
def test_count_of_records(n, how):
    with pm.Model(coords={"person": range(7)}) as model:
        x = pm.Normal("x", 0, 1, **how)
        both = [x.var(), x.sum()]
        dp.PrivateObservation("z", both, dp.LaplaceMechanism(1.0), observed=[1.0, 1.0])
    assert record_count(x) == n
    [release] = column_of(model).releases
    variance, total = release.mean_and_variance()
    np.testing.assert_allclose([variance.mean, variance.variance], [0.0, 1 - 1 / n], rtol=1e-12)
    assert total == LinearStatistic(mean=float(n))


def test_a_matrix_is_no_vector_of_records():
    with pytest.raises(ValueError, match="2 dimensions; a vector is needed: write shape=n"):
        record_count(pm.Normal.dist(0, 1, shape=(3, 2)))
