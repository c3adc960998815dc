"""Linear maps, read from graphs."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.replace import graph_replace

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.linear import linear_map
from pymc_dp.reading.sums.polynomials import is_linear


@pytest.mark.parametrize(
    ("expression", "linear"),
    [
        (lambda s: s, True),
        (lambda s: 3 - 2 * s / 7, True),
        (lambda s: -s + s, True),
        (lambda s: s.astype("float32"), True),
        (lambda s: s * s, False),
        (lambda s: 1 / s, False),
        (pt.abs, False),
        (pt.exp, False),
    ],
)
def test_is_linear(expression, linear):
    s = pm.Normal.dist(0, 1)
    assert is_linear(expression(s), s) == linear


MATRIX = np.random.default_rng(0).normal(size=(5, 12))


GROUP = np.tile([0, 1, 2], 4)


LINEAR = {
    "itself": lambda y: y,
    "sum": lambda y: y.sum(),
    "sum over an axis": lambda y: y.sum(axis=1, keepdims=True),
    "mean": lambda y: y.mean(axis=1),
    "over its length": lambda y: y.sum() / y.shape[0],
    "an entry": lambda y: y[1, 2],
    "a slice": lambda y: y[:, 1:3],
    "entries": lambda y: y[[0, 2, 2], [1, 1, 3]],
    "rows": lambda y: y[np.array([2, 0])],
    "reshaped": lambda y: y.reshape((2, 6)),
    "reshaped by its own shape": lambda y: y.reshape((*y.shape[:-1], -1, 2)).sum(axis=-1),
    "transposed": lambda y: y.T,
    "list": lambda y: pt.stack([y[0, 0], y.sum(), y[2, 1] * 3]),
    "joined": lambda y: pt.concatenate([y, 2 * y], axis=1),
    "matrix times vector": lambda y: MATRIX @ y.ravel(),
    "vector times matrix": lambda y: pt.dot(y.ravel(), MATRIX.T),
    "matrix times rows": lambda y: pt.dot(MATRIX[:, :3], y),
    "rows times matrix": lambda y: pt.dot(y, MATRIX[:, :4].T),
    "by an index": lambda y: pt.zeros(3)[GROUP].inc(y.ravel()),
    "onto itself": lambda y: pt.inc_subtensor(y.ravel()[np.array([0, 0, 1])], y[0, :3]),
    "by a number": lambda y: pt.zeros(3)[1].inc(y.sum())[:2].inc(y[0, :2]),
    "running totals": lambda y: pt.cumsum(y),
    "running totals of rows": lambda y: pt.cumsum(y, axis=1),
    "running totals of columns": lambda y: pt.cumsum(y, axis=0)[::-1],
    "differences": lambda y: pt.diff(y, axis=1),
    "second differences": lambda y: pt.diff(y, n=2, axis=1),
    "from the end": lambda y: pt.cumsum(y[:, ::-1], axis=-1)[:, ::-1],
    "totals of totals": lambda y: pt.cumsum(pt.cumsum(y, axis=1), axis=0),
    "turned round": lambda y: pt.flip(y, axis=0) - pt.roll(y, 1, axis=1),
    "an upper triangle": lambda y: pt.triu(pt.ones((3, 3))) @ y,
    "its triangle": lambda y: pt.tril(y) + pt.triu(y, 1),
    "its diagonal": lambda y: pt.diagonal(y) - pt.trace(y[:, 1:]),
    "repeated": lambda y: pt.tile(y, (2, 1)) - pt.repeat(y, 2, axis=0),
    "a leading zero": lambda y: pt.zeros((3, 5), dtype="int64")[:, 1:].set(pt.cumsum(y, axis=1)),
    "set by an index": lambda y: y[[0, 2]].set(2 * y[[1, 2]]),
    "a triangle": lambda y: pt.tril(pt.ones((3, 3))) @ y,
    "affine": lambda y: (3 - 2 * y / 7 + np.arange(12).reshape(3, 4)) * MATRIX[:3, :4],
    "broadcast": lambda y: y + y.sum(axis=0),
    "negative": lambda y: -y[0] - y[1],
    "chosen by whole numbers": lambda y: pt.where(np.arange(12).reshape(3, 4) % 3, y, 2 * y),
}


@pytest.mark.parametrize("expression", LINEAR.values(), ids=LINEAR)
def test_linear_map(expression):
    y = pm.Poisson.dist(3, shape=(3, 4))
    graph, given = expression(y), pt.lmatrix("given")
    value = pytensor.function([given], graph_replace([graph], {y: given}, strict=False)[0])
    at = np.random.default_rng(1).integers(0, 9, (3, 4))
    difference = np.asarray(value(at), float) - value(np.zeros((3, 4), int))
    np.testing.assert_allclose(linear_map(graph, y) @ at.ravel(), difference.ravel(), rtol=1e-10)


@pytest.mark.parametrize(
    "expression",
    [
        lambda y: pt.zeros(2, dtype="int64")[[0, 1, 1]].inc(y),
        lambda y: ((y > 0) + (y > 1)).reshape((1, 3)).sum(axis=1),
        lambda y: pt.dot(y > 0, np.array([True, True, True])),
        lambda y: pt.inc_subtensor(pt.zeros(2)[[0, 1, 1]], y, ignore_duplicates=True),
    ],
    ids=["put into whole numbers", "or", "or by a product", "the last one of each index"],
)
def test_what_is_not_added_up_is_not_linear(expression):
    y = pm.Normal.dist(shape=3)
    with pytest.raises(Declined, match="not linear"):
        linear_map(expression(y), y)


def test_an_unknown_coefficient_is_no_number():
    y, theta = pm.Poisson.dist(3, shape=4), pm.Normal.dist()
    assert np.isnan(linear_map(theta * y.sum(), y).toarray()).all()


def test_the_square_matrix_of_many_running_totals_is_not_built():
    y = pm.Poisson.dist(3, shape=200_000)
    with pytest.raises(Declined, match="200,000 running totals"):
        linear_map(pt.cumsum(y), y)


def test_too_many_entries_are_refused_before_memory_is_full():
    x = pm.Poisson.dist(0.3, shape=10**9)
    with pytest.raises(ValueError, match=r"1,000,000,000 entries.*dp.RecordSums\('total'"):
        linear_map(x.sum(), x)
