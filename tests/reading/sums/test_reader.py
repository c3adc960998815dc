"""Statistics as functions of sums over the records."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.sparse import as_sparse_or_tensor_variable
from pytensor.sparse import structured_dot as sparse_dot
from scipy import stats
from scipy.sparse import csr_matrix
from scipy.special import logsumexp

import pymc_dp as dp
from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.values import nearest_rvs
from pymc_dp.reading.sums import additive, is_rowwise

N = 11
PLAIN = Mode(linker="py", optimizer=None)
RNG = np.random.default_rng(1)


def named(rv, name):
    rv.name = name
    return rv


# Records: numbers, numbers given the first, vectors, codes, pairs of truth values, and counts.
x = named(pm.Normal.dist(3.0, 1.0, shape=N), "x")
y = named(pm.Normal.dist(2.0 * x, 1.0, shape=N), "y")
X = named(pm.Normal.dist(0.0, 1.0, shape=(N, 3)), "X")
k = named(pm.Categorical.dist(np.ones(4) / 4, shape=N), "k")
b = named(pm.Bernoulli.dist(0.3, shape=N), "b")
c = named(pm.Poisson.dist(5.0, shape=N), "c")
# Parameters, and data that can change.
theta = named(pm.Normal.dist(0.0, 1.0), "theta")
beta = named(pm.Normal.dist(0.0, 1.0, shape=3), "beta")
w = pytensor.shared(RNG.normal(size=N), "w", shape=(None,))
W = pytensor.shared(RNG.normal(size=(N, 2)), "W", shape=(None, None))
half = pytensor.shared(np.arange(N) % 2, "half", shape=(N,))
prices = pytensor.shared(np.array([1.0, 4.0, 9.0, 16.0]), "prices")

VALUES = {
    x: RNG.normal(3.0, 1.0, N),
    y: RNG.normal(6.0, 2.0, N),
    X: RNG.normal(1.0, 1.0, (N, 3)),
    k: np.array([0, 1, 3, 2, 1, 1, 3, 0, 0, 2, 1]),
    b: np.array([0, 1, 1, 0, 0, 0, 1, 0, 1, 0, 1]),
    c: RNG.poisson(5.0, N),
    theta: np.array(0.7),
    beta: np.array([0.3, -1.0, 2.0]),
}
RECORDS = (x, y, X, k, b, c)
GROUP = np.array([0, 1, 1, 0, 2, 2, 2, 0, 1, 0, 2])
HALF = np.array([0, 0, 1, 1, 0, 1, 1, 0, 0, 1, 0])
SPARSE = as_sparse_or_tensor_variable(csr_matrix(np.eye(3)[:, GROUP] * np.linspace(0.5, 1.5, N)))


def centred(v):
    return v - v.mean(0)


def slope(v, u):
    return (centred(v) * centred(u)).sum() / (centred(v) ** 2).sum()


def least_squares_slope():
    s = (w * y).sum() / (w**2).sum()
    return ((y - s * w) ** 2).sum()


def group_effects():
    means = pt.stack([pt.eq(k, j).astype(float).dot(x) / pt.eq(k, j).sum() for j in range(4)])
    return ((x - means[k]) ** 2).sum()


# A statistic, and how many sums it takes.
STATISTICS = {
    "sum": (lambda: x.sum(), 1),
    "mean": (lambda: x.mean(), 1),
    "dot with itself": (lambda: x.dot(x), 1),
    "norm": (lambda: pt.linalg.norm(x), 1),
    "count": (lambda: (x > 3).sum(), 1),
    "proportion": (lambda: (x > 2.5).mean(), 1),
    "proportion between": (lambda: ((x > 2.5) & (x <= 3.5)).mean(), 1),
    "clipped mean": (lambda: pt.clip(x, 2, 3.5).mean(), 1),
    "winsorized variance": (lambda: pt.clip(x, 2, 3.5).var(ddof=1), 2),
    "absolute deviation from a number": (lambda: abs(x - 2).mean(), 1),
    "log of a sum": (lambda: pt.log(pt.exp(x).sum()), 1),
    "geometric mean": (lambda: pt.exp(pt.log(pt.maximum(x, 1e-3)).mean()), 1),
    "harmonic mean": (lambda: 1 / (1 / x).mean(), 1),
    "var": (lambda: x.var(), 2),
    "var ddof": (lambda: x.var(ddof=1), 2),
    "std": (lambda: x.std(), 2),
    "mean and variance": (lambda: pt.stack([x.mean(), x.var(ddof=1)]), 2),
    "variance by raw moments": (lambda: (x**2).mean() - x.mean() ** 2, 2),
    "third central moment": (lambda: (centred(x) ** 3).mean(), 3),
    "fourth central moment": (lambda: (centred(x) ** 4).mean(), 4),
    "skewness": (lambda: (centred(x) ** 3).mean() / x.std() ** 3, 3),
    "kurtosis": (lambda: (((x - x.mean()) / x.std()) ** 4).mean(), 4),
    "covariance": (lambda: (centred(x) * centred(y)).sum() / (N - 1), 3),
    "covariance matrix": (lambda: pt.cov(pt.stack([x, y])), 5),
    "correlation": (lambda: slope(x, y) * x.std() / y.std(), 5),
    "least squares": (lambda: pt.stack([slope(x, y), y.mean() - slope(x, y) * x.mean()]), 4),
    "residuals": (lambda: ((y - y.mean() - slope(x, y) * centred(x)) ** 2).sum(), 5),
    "X'X": (lambda: X.T @ X, 6),
    "X'y": (lambda: X.T @ y, 3),
    "Gram matrix with ones": (
        lambda: (lambda Z: Z.T @ Z)(pt.concatenate([pt.ones((N, 1)), X], axis=1)),
        9,
    ),
    "Gram matrix of columns": (
        lambda: (lambda Z: Z.T @ Z)(pt.stack([pt.ones_like(x), x, y], axis=1)),
        5,
    ),
    "X'X centred": (lambda: centred(X).T @ centred(X) / (N - 1), 9),
    "X'X by tensordot": (lambda: pt.tensordot(X, X, [[0], [0]]), 6),
    "X'X by einsum": (lambda: pt.einsum("ni,nj->ij", X, X), 6),
    "sum of squares by einsum": (lambda: pt.einsum("ij,ij->", X, X), 3),
    "an entry of X'X": (lambda: (X.T @ X)[0, 1], 1),
    "means of columns": (lambda: X.mean(axis=0), 3),
    "a column": (lambda: X[:, 1].mean(), 1),
    "columns by a list": (lambda: X[:, [0, 2]].mean(axis=0), 2),
    "no columns": (lambda: X[:, np.array([], dtype=int)].sum(axis=1).sum() + x.sum(), 1),
    "all entries": (lambda: X.mean(), 1),
    "ravel": (lambda: X.ravel().sum(), 3),
    "variance of all entries": (lambda: X.reshape((-1,)).var(), 6),
    "raveled transpose": (lambda: (X.T.ravel() ** 2).sum(), 3),
    "repeated": (lambda: pt.repeat(x, 2).mean() + pt.tile(x, 3).sum(), 1),
    "reshaped": (lambda: X.reshape((N, 1, 3)).sum(axis=(0, 1)), 3),
    "largest of a row": (lambda: X.max(axis=1).mean(), 1),
    "product of a row": (lambda: pt.prod(X, axis=1).sum(), 1),
    "count of a row": (lambda: (X > 0).sum(axis=1).mean(), 1),
    "sorted rows": (lambda: pt.sort(X, axis=1).mean(axis=0), 3),
    "largest of each row": (lambda: pt.eq(pt.argmax(X, axis=1)[:, None], np.arange(3)).mean(0), 3),
    "cumulative rows": (lambda: pt.cumsum(X, axis=1)[:, 2].mean(), 1),
    "cumulative histogram": (lambda: pt.cumsum(pt.bincount(k, minlength=4)), 4),
    "softmax": (lambda: pt.special.softmax(X, axis=1).mean(0), 3),
    "logsumexp": (lambda: pt.logsumexp(X, axis=1).sum(), 1),
    "norms of rows": (lambda: pt.linalg.norm(X, axis=1).mean(), 1),
    "clipped norms": (
        lambda: (X / pt.maximum(pt.sqrt((X**2).sum(1, keepdims=True)), 1.0)).sum(0),
        3,
    ),
    "determinants of rows": (
        lambda: pt.linalg.det(X[:, :, None] * X[:, None, :] + np.eye(3)).sum(),
        1,
    ),
    "gradient": (lambda: ((pt.sigmoid(X @ beta) - b)[:, None] * X).sum(0), 3),
    "one-hot histogram": (lambda: pt.eq(k[:, None], np.arange(4)).sum(0), 4),
    "stacked histogram": (lambda: pt.stack([pt.eq(k, j).sum() for j in range(4)]), 4),
    "bincount": (lambda: pt.bincount(k, minlength=4), 4),
    "bincount of a table": (lambda: pt.bincount(2 * (k > 1) + b, minlength=4), 4),
    "weighted bincount": (lambda: pt.bincount(k, weights=x, minlength=4), 4),
    "incremented zeros": (lambda: pt.zeros(4)[k].inc(1.0), 4),
    "histogram": (
        lambda: pt.eq(pt.searchsorted(np.array([2.0, 3.0]), x)[:, None], np.arange(3)).sum(0),
        3,
    ),
    "two-way table": (
        lambda: (
            pt.eq(k[:, None, None], np.arange(4)[:, None]) * pt.eq(b[:, None, None], [0, 1])
        ).sum(0),
        8,
    ),
    "cumulative counts": (lambda: (x[:, None] <= np.array([2.0, 3.0, 4.0])).sum(axis=0), 3),
    "either of": (lambda: (pt.eq(k, 1) | pt.eq(k, 3)).sum(), 1),
    "values of codes": (lambda: prices[k].sum(), 1),
    "constant values of codes": (lambda: pt.as_tensor(np.arange(4.0) ** 2)[k].mean(), 1),
    "parameters of codes": (lambda: pt.stack([0.0, theta, 1.0, 2 * theta])[k].sum(), 1),
    "sum of counts": (lambda: c.sum(), 1),
    "variance of counts": (lambda: c.var(ddof=1), 2),
    "zeros": (lambda: pt.eq(c, 0).sum() + pt.invert(pt.ge(c, 3)).sum(), 2),
    "remainder": (lambda: (c % 2).sum() + (c // 3).sum() + (c & 1).sum(), 3),
    "all": (lambda: pt.stack([pt.all(x > 0), pt.all(x > 2.9), pt.all(X < 9)]), 3),
    "any": (lambda: pt.stack([pt.any(x > 4), pt.any(x > 9), pt.any(b)]), 3),
    "groups by a mask": (lambda: pt.stack([x[j == GROUP].mean() for j in range(3)]), 3),
    "groups by integers": (lambda: x[np.flatnonzero(GROUP == 1)].std(), 2),
    "groups by a slice": (lambda: pt.stack([x[:4].mean(), x[4:].mean(), x[::2].mean()]), 3),
    "record taken twice": (lambda: x[[0, 0, 1]].sum(), 1),
    "groups of rows": (lambda: X[GROUP == 2, 1].mean() + X[GROUP == 2][:, 0].mean(), 2),
    "groups and weights": (lambda: (x[GROUP == 1] * w[GROUP == 1]).sum(), 1),
    "groups by a confidential code": (lambda: x[pt.eq(k, 1)].mean(), 2),
    "variance in a confidential group": (lambda: x[pt.eq(k, 1)].var(), 3),
    "logs of the positive": (lambda: pt.log(X[:, 0][X[:, 0] > 0]).mean(), 2),
    "rows of a confidential group": (lambda: X[b > 0].mean(0), 4),
    "column of a confidential group": (lambda: X[b > 0, 1].sum() + w[b > 0].sum(), 3),
    "size of a confidential group": (lambda: x[x > 3].shape[0], 1),
    "within groups": (group_effects, 20),
    "concatenated": (lambda: pt.concatenate([x, y]).mean(), 2),
    "variance of concatenated": (lambda: pt.concatenate([x[:3], y]).var(), 4),
    "weighted": (lambda: (x * w).sum(), 1),
    "weighted variance": (lambda: (w * (x - (w * x).sum() / w.sum()) ** 2).sum(), 2),
    "by a matrix": (lambda: W.T @ x, 2),
    "residuals from data": (lambda: ((x - 0.3 * w - W @ np.array([1.0, 2.0])) ** 2).sum(), 1),
    "residuals of least squares on data": (least_squares_slope, 3),
    "statistics of data, too": (lambda: (x - x.mean() + w - w.mean()).var(), 3),
    "mean written out": (lambda: ((x - pt.full((N,), x.mean())) ** 2).sum(), 2),
    "a parameter": (lambda: ((x - theta) ** 2).sum(), 1),
    "coefficients": (lambda: ((y - X @ beta) ** 2).sum(), 1),
    "scores": (lambda: X.T @ (y - pt.exp(X @ beta)), 3),
    "laplace": (lambda: -abs(0.3 - x.mean()) / pt.exp(theta), 1),
    "switch": (lambda: pt.switch(x.mean() > 2.9, x.var(), -np.inf), 2),
    "impossible": (lambda: pt.switch(x.mean() > 9, x.var(), -np.inf), 2),
    "mean of the large": (lambda: pt.where(x > 3, x, 0).sum() / pt.maximum((x > 3).sum(), 1), 2),
    "shares": (lambda: (x / x.sum() * x).sum(), 2),
    "rounded mean": (lambda: pt.round(x.mean()) + pt.floor(x.sum()), 1),
    "integer mean": (lambda: pt.clip(x, 0, 5).mean().astype("int64"), 1),
    "size": (lambda: x.shape[0] + x.size + 0 * x.sum(), 0),
    "truth of sums": (
        lambda: ((x.mean() > 2) + (y.mean() > 2)).astype(float) + (x.mean() > 2) * (y.mean() > 9),
        2,
    ),
    "truth of records": (
        lambda: ((x > 3) * (x - x.mean())).sum() + ((x > 3) + (x > 2.5)).sum(),
        4,
    ),
    "truth of records or of sums": (
        lambda: (
            ((x > 3) + (x.mean() > 2)).sum() * 1e3
            + ((x > 3) + (x.mean() > 9)).sum()
            + ((x > 3) + (x > 2.5) + (y.mean() > 9)).sum() * 1e-3
        ),
        5,
    ),
    "truth of records and of sums": (
        lambda: ((x > 3) * (x.mean() > 2)).sum() + ((x > 3) * (x.mean() > 9)).sum() * 1e3,
        2,
    ),
    "truth in a row": (lambda: pt.any(X > 1, axis=1).sum() + pt.all(X > 0, axis=1).sum(), 2),
    "truth counted in a row": (lambda: ((X > 1).sum(axis=1) + (x.mean() > 2)).sum(), 2),
    "last record": (lambda: X[-1].sum(), 3),
    "entries of records": (lambda: X[[0, 1], [0, 1]].sum(), 2),
    "appended": (lambda: pt.concatenate([x, [0.0]]).mean(), 1),
    "rows of a table": (lambda: x[1:].reshape((5, 2)).sum(axis=1), 5),
    "two indices": (lambda: pt.zeros((3, 2))[GROUP, HALF].inc(x), 6),
    "two indices onto a parameter": (lambda: (pt.zeros((3, 2)) + theta)[GROUP, HALF].inc(x), 6),
    "two indices of functions": (
        lambda: pt.zeros((3, 2))[GROUP, HALF].inc(pt.clip(x, 2, 4) * y - theta)[:, 1],
        3,
    ),
    "index of an axis": (lambda: pt.zeros((1, 3))[:, GROUP].inc(x), 3),
    "index of two axes": (
        lambda: pt.zeros(3)[GROUP[:10].reshape(2, 5)].inc(x[:10].reshape((2, 5))),
        3,
    ),
    "one by one": (lambda: pt.zeros(3)[1].inc(x.sum())[2].inc(x[:4].sum() - y.mean()), 3),
    "running totals": (lambda: pt.cumsum(x), N),
    "as many combinations of running totals as records": (
        lambda: pt.dot(np.tri(N) + np.eye(N), pt.cumsum(x)) - w,
        N,
    ),
    "a running total": (lambda: pt.cumsum(c)[3], 1),
    "sparse weights": (lambda: sparse_dot(SPARSE, x[:, None])[:, 0], 3),
    "sparse weights of truth": (lambda: sparse_dot(SPARSE, (X > 1).astype(float)), 9),
    "two columns in a table": (lambda: pt.stack([x, y])[:, 1:].reshape((2, 2, 5)).sum(axis=2), 4),
    "a vector and its double, in a table": (
        lambda: (x[1:].reshape((5, 2)) + (2 * x)[1:].reshape((5, 2))).sum(axis=0),
        2,
    ),
    "a vector and a function of it": (
        lambda: (x[1:].reshape((5, 2)) - pt.clip(x, 2, 4)[1:].reshape((5, 2))).sum(axis=0),
        4,
    ),
    "variance where there is none": (lambda: x[x > 99].var(ddof=1), 3),
    "deviations where there are none": (lambda: (x[x > 99] - x[x > 99].mean()).sum() + 1.0, 2),
    "variance of a condition": (lambda: (x > 3).astype(float).var(), 1),
    "nothing": (lambda: x.sum() - x.sum(), 0),
    "log density": (
        lambda: pm.logp(pm.Normal.dist(pt.stack([x.mean(), y.mean()]), pt.exp(theta)), [3.0, 6.0]),
        2,
    ),
    "log density of each": (lambda: pm.logp(pm.Normal.dist(x, 2.0), w).sum(), 1),
    "log density by a design": (lambda: pm.logp(pm.Poisson.dist(pt.exp(X @ beta)), c).sum(), 1),
    "multivariate log density": (
        lambda: pm.logp(pm.MvNormal.dist(np.zeros(3), np.eye(3) + 0.5), X).sum(),
        1,
    ),
}


def evaluate(graph, given):
    return np.asarray(clone_replace(graph, given, rebuild_strict=False).eval(mode=PLAIN))


def used_records(graph):
    return [rv for rv in nearest_rvs([graph]) if rv in RECORDS]


def reassemble(reading, values, centers, n=N):
    """Evaluate the entries of a reading from its sums."""
    given = {rv: pt.as_tensor(value) for rv, value in values.items()}
    given[reading.centers] = pt.as_tensor(np.asarray(centers, dtype="float64"))
    maps = [np.broadcast_to(evaluate(m, given), n).sum() for m in reading.maps]
    public = [evaluate(g, given) for _, g in reading.public]
    scalars = [*reading.sums, *(s for s, _ in reading.public)]
    graphs = [e for e in reading.entries.flat if isinstance(e, Variable)]
    outer = pytensor.function(
        scalars, [pt.as_tensor(g) for g in graphs], mode=PLAIN, on_unused_input="ignore"
    )
    found = iter(outer(*maps, *public))
    flat = [next(found) if isinstance(e, Variable) else e for e in reading.entries.flat]
    return np.array(flat, dtype="float64").reshape(reading.entries.shape)


def near_means(reading, values):
    return [np.round(values[rv][(slice(None), *i)].mean(), 2) for rv, i in reading.columns]


@pytest.mark.parametrize(("statistic", "sums"), STATISTICS.values(), ids=STATISTICS)
def test_is_what_it_reads(statistic, sums):
    graph = statistic()
    reading = additive(graph, dict.fromkeys(used_records(graph), N))
    with np.errstate(invalid="ignore"):  # a mean of nothing
        direct = evaluate(graph, {rv: pt.as_tensor(value) for rv, value in VALUES.items()})
        found = reassemble(reading, VALUES, near_means(reading, VALUES))
    np.testing.assert_allclose(found, direct, rtol=1e-12, atol=1e-12)
    assert len(reading.maps) == len(reading.sums) == sums


@pytest.mark.parametrize("column", range(2))
def test_centers_make_no_difference(column):
    """The reading is the same function wherever the constants are."""
    graph = pt.stack([y.var(), slope(x, y), (x * y).mean(), (centred(x) ** 3).mean()])
    reading = additive(graph, {x: N, y: N})
    centers = near_means(reading, VALUES)
    expected = reassemble(reading, VALUES, centers)
    centers[column] += 2.0
    np.testing.assert_allclose(reassemble(reading, VALUES, centers), expected, rtol=1e-11)


def test_parts_of_one_release_share_their_sums():
    statistics = [x.mean(), x.var(ddof=1), (x**2).sum(), (x * y).sum(), y.sum(), x.std() / y.mean()]
    assert len(additive(pt.stack(statistics), {x: N, y: N}).sums) == 4  # of x, x², xy and y


def test_groups_are_one_operation():
    """However many they are, of each function of the records that is added up."""
    sums = [v[j == GROUP].sum() for j in range(3) for v in (x, x**2)]
    reading = additive(pt.stack([x.mean(), *sums]), {x: N})
    graphs, order = reading.rows()
    assert len(graphs) == 3
    given = {x: pt.as_tensor(VALUES[x]), reading.centers: pt.as_tensor([3.0])}
    rows = np.vstack([evaluate(graph, given) for graph in graphs])
    maps = [evaluate(reading.maps[reading.sums.index(s)], given) for s in order]
    np.testing.assert_array_equal(rows, maps)
    assert set(order) == set(reading.sums)


def test_maps_are_of_the_records_and_of_parameters():
    reading = additive(((x - theta) ** 2).sum() + pt.exp(theta) * w.sum(), {x: N})
    given = set(nearest_rvs(list(reading.maps)))
    assert given <= {x, theta}
    assert all(x not in nearest_rvs([graph]) for _, graph in reading.public)
    assert [rv for rv, _ in reading.columns] == [x]


REFUSED = {
    "max": (lambda: x.max(), "`Max`"),
    "range": (lambda: x.max() - x.min(), "`Max`|`Min`"),
    "product": (lambda: pt.prod(x), "`Prod`"),
    "or by a product": (lambda: pt.dot(x > 3, x > 2), "`Dot`"),
    "accumulated truth": (lambda: pt.cumsum(X > 1, axis=1).sum(), "`CumOp`"),
    "sort": (lambda: pt.sort(x)[3], "`SortOp`"),
    "median": (lambda: pt.median(x), "`SortOp`"),
    "argmax": (lambda: pt.argmax(x), "`Argmax`"),
    "one record": (lambda: x[0], "a single record by its position"),
    "exp of deviations": (lambda: pt.exp(x - x.mean()).sum(), "`exp`"),
    "absolute deviations": (lambda: abs(x - x.mean()).mean(), "`abs`"),
    "clipped at a statistic": (lambda: pt.clip(x, 0, x.mean()).sum(), "`clip`"),
    "above the mean": (lambda: (x > x.mean()).sum(), "`gt`"),
    "products of all pairs": (lambda: (x[:, None] * y[None, :]).sum(), "two unrelated axes"),
    "distances": (lambda: abs(x[:, None] - x[None, :]).sum(), "two unrelated axes"),
    "lagged products": (lambda: (x[1:] * x[:-1]).sum(), "different selections"),
    "reversed": (lambda: (x * x[::-1]).sum(), "different selections"),
    "two conditions": (lambda: (x[b > 0] - y[pt.eq(b, 0)]).sum(), "different selections"),
    "selected and data": (lambda: (x[b > 0] * w).sum(), "select from both"),
    "taken twice and data": (lambda: (x[[0, 0]] * w[:2]).sum(), "select from both"),
    "bincount": (lambda: pt.bincount(k)[1], "minlength="),
    "short bincount": (lambda: pt.bincount(k, minlength=3)[1], "minlength="),
    "bincount of sums of codes": (lambda: pt.bincount(k + b, minlength=4)[1], "minlength="),
    "bincount of counts": (lambda: pt.bincount(c, minlength=50)[1], "minlength="),
    "index by a statistic": (lambda: prices[x.mean().astype(int)], "decide on"),
    "records": (lambda: x, "one value per record"),
    "indices that may change": (lambda: pt.zeros((3, 2))[GROUP, half].inc(x), "AdvancedInc"),
    "one entry for each record": (lambda: pt.zeros((N, 1))[np.arange(N), 0].inc(x), "AdvancedInc"),
    "the last of each group": (
        lambda: pt.inc_subtensor(pt.zeros(3)[GROUP], x, ignore_duplicates=True),
        "AdvancedInc",
    ),
    "into whole numbers": (lambda: pt.zeros(3, dtype="int64")[GROUP].inc(x), "AdvancedInc"),
    "a parameter's weights": (
        lambda: pt.dot(pt.ones((2, 5)) * theta, x[1:].reshape((5, 2))).sum(),
        "it reshapes the records",
    ),
    "solve": (lambda: pt.linalg.solve(X.T @ X, X.T @ y).sum(), "`Solve`"),
    "seventy terms": (lambda: ((X @ beta - x.mean() * X.sum(1) - y.mean()) ** 8).sum(), "`pow`"),
    "statistics and records": (
        lambda: (X[:N] * pt.stack([x.mean()] * N)[:, None]).sum(),
        "a vector of statistics",
    ),
}


@pytest.mark.parametrize(("statistic", "match"), REFUSED.values(), ids=REFUSED)
def test_refuses(statistic, match):
    graph = statistic()
    with pytest.raises(Declined, match=match):
        additive(graph, dict.fromkeys(used_records(graph), N))


def test_refuses_records_of_unknown_width():
    width = pt.lscalar("width")
    wide = named(pm.Normal.dist(0.0, size=(N, width)), "wide")
    with pytest.raises(Declined, match=r"width of the records 'wide'.*shape="):
        additive(wide.mean(), {wide: N})


def test_refuses_what_is_too_wide():
    with pytest.raises(Declined, match="too many entries"):
        additive(pt.eq(k[:, None], np.arange(5000)).sum(0), {k: N})


@pytest.mark.nightly
def test_wide_and_deep_statistics():
    reading = additive(pt.eq(c[:, None], np.arange(500)).sum(0), {c: N})
    assert len(reading.sums) == 500
    total = x.mean()
    for i in range(300):
        total = pt.sin(total) + x.var() * i
    assert len(additive(total, {x: N}).sums) == 2


MOMENTS = {
    "variance": (lambda v: v.var(ddof=1), 1.0),
    "covariance": (lambda v: (centred(v) * centred(2 * v + 3)).sum() / 999, 2.0),
    "written out": (lambda v: ((v - v.sum() / 1000) ** 2).sum() / 999, 1.0),
    "fourth": (lambda v: (centred(v) ** 4).mean(), 3.0),
}


@pytest.mark.parametrize("mean", [0.0, 1e6, 1e9, -1e9])
@pytest.mark.parametrize(("statistic", "scale"), MOMENTS.values(), ids=MOMENTS)
def test_does_not_cancel(statistic, scale, mean):
    n = 1000
    v = pm.Normal.dist(mean, 1.0, shape=n)
    # On a grid that numbers near the mean have, so that deviations are known exactly.
    z = np.round(np.random.default_rng(2).normal(size=n) * 2**20) / 2**20
    reading = additive(statistic(v), {v: n})
    found = reassemble(reading, {v: z + mean}, [mean + 0.125], n)
    exact = evaluate(statistic(v), {v: pt.as_tensor(z)})
    np.testing.assert_allclose(found, exact, rtol=1e-9, atol=1e-9 * scale)


def test_a_large_mean_of_counts_stays_whole():
    v = named(pm.Poisson.dist(1e9, shape=N), "v")
    reading = additive(pt.eq(v.sum(), 11_000_000_000), {v: N})
    assert reassemble(reading, {v: np.full(N, 10**9)}, [1e9 + 0.37]) == 1.0
    assert reassemble(reading, {v: np.full(N, 10**9) + np.eye(N, dtype=int)[0]}, [1e9]) == 0.0


@pytest.mark.parametrize(
    "statistic",
    [
        lambda v: pt.stack([v.sum(), v.mean(), v[0], (v**2).max(), v.var()]),
        lambda v: v - np.array([1.0, 2.0, 5.0]),
        lambda v: pt.clip(v, 0, 3).sum() + pt.sort(v)[0] * 0,
    ],
)
def test_a_single_record(statistic):
    v = named(pm.Normal.dist(0, 1, shape=1), "v")
    value = np.array([3.7])
    try:
        reading = additive(statistic(v), {v: 1})
    except Declined as error:
        assert "SortOp" in str(error)  # noqa: PT017
        return
    found = reassemble(reading, {v: value}, [2.0], 1)
    expected = evaluate(statistic(v), {v: pt.as_tensor(value)})
    np.testing.assert_allclose(np.reshape(found, expected.shape), expected, rtol=1e-12, atol=1e-12)
    assert is_rowwise(2 * v, v, 1, 1)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (lambda: 2 * x + 1, True),
        (lambda: pt.exp(theta) * x + w, True),
        (lambda: x - x.mean(), False),
        (lambda: x[::-1], False),
        (lambda: x[np.arange(N)[::-1]], False),
        (lambda: pt.sort(x), False),
        (lambda: pt.cumsum(x), False),
        (lambda: pt.full((N,), x.mean()), False),
        (lambda: w, False),
        (lambda: x.mean(), False),
    ],
)
def test_is_rowwise(expression, expected):
    assert is_rowwise(expression(), x, N, 1) is expected


def test_is_rowwise_of_vectors():
    assert is_rowwise(X @ beta, X, N, 1)
    assert is_rowwise(pt.special.softmax(X, axis=1), X, N, 2)
    assert not is_rowwise(pt.special.softmax(X, axis=0), X, N, 2)
    assert not is_rowwise(X.T, X, N, 2)
    assert not is_rowwise(X @ beta, X, N, 2)


@pytest.mark.parametrize(
    "count",
    [
        lambda h: pt.bincount(np.zeros(5, int), weights=h, minlength=1),
        lambda h: (h @ h)[None],
        lambda h: pt.zeros(1, dtype="bool")[np.zeros(5, int)].inc(h),
    ],
)
def test_truth_values_that_are_added_up_mean_or(count):
    """PyTensor adds them up to True: no rung may read a count there."""
    with pm.Model() as model:
        x = pm.Normal("x", pm.Normal("mu", 0, 1), 1, shape=5)
        either = count(x > 0)
        dp.PrivateObservation("z", either, dp.GaussianMechanism(2.0), observed=np.array([4.0]))
    assert either.dtype == "bool"
    with pytest.raises(NotImplementedError, match=r"'z'.*means or.*astype\('int64'\)"):
        dp.collapse(model, "marginal")


@pytest.mark.parametrize(
    "count",
    [lambda h: pt.bincount(np.zeros(5, int), weights=h, minlength=1), lambda h: (h @ h)[None]],
)
def test_truth_values_as_numbers_are_counted(count):
    with pm.Model() as model:
        x = pm.Normal("x", pm.Normal("mu", 0, 1), 1, shape=5)
        number = count((x > 0).astype("int64"))
        dp.PrivateObservation("z", number, dp.GaussianMechanism(2.0), observed=np.array([4.0]))
    found = dp.collapse(model, "marginal").compile_logp()({"mu": 0.0})
    counts = stats.binom.logpmf(np.arange(6), 5, 0.5) + stats.norm.logpdf(4.0, np.arange(6), 2.0)
    np.testing.assert_allclose(found, logsumexp(counts) + stats.norm.logpdf(0.0), rtol=1e-10)
