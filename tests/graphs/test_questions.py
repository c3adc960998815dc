"""What graphs are, decided by their ops."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.inner_function import HasInnerFunction
from pytensor.graph.replace import graph_replace

import pymc_dp as dp
from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.linear import linear_map
from pymc_dp.graphs.questions import (
    is_itself,
    is_nonnegative,
    is_whole,
    keeps_values,
    known_value,
    plain_function,
    power,
    power_law,
)
from pymc_dp.graphs.ranges import check_wraparound
from pymc_dp.reading.sums.polynomials import is_linear
from tests.models import random_exponent, random_half, random_shape


@pytest.mark.parametrize("join", [pt.stack, lambda e: pt.concatenate([i[None] for i in e])])
def test_every_entry_of_a_join_counts(join):
    v = pm.HalfNormal.dist()
    five, root = pt.constant(5.0), 3 * pt.sqrt(v)
    assert power(join([root, 2 * pt.sqrt(v)]), v) == 0.5
    assert power(join([five, five]), v) == 0.0
    assert power(join([five, root]), v) is None
    assert power(join([root, five]), v) is None
    assert power(join([root, five, five]), v) is None


def test_several_exponents_and_exponentials_are_no_power():
    v = pm.HalfNormal.dist()
    assert power(v ** np.array([0.5, 1.0]), v) is None
    assert power(pt.exp(v) * v, v) is None
    assert power(pt.reciprocal(pt.exp(v)), v) == np.inf
    assert power(pt.exp(v) ** -0.5, v) == np.inf
    assert power(pt.exp(v) * pt.exp(2 * v), v) == np.inf


# The factor and the exponent of expressions; those that are cut look like powers at a few points.
POWER_LAWS = [
    (lambda w: w, (1.0, 1.0)),
    (lambda w: 3 * w, (3.0, 1.0)),
    (lambda w: w**2, (1.0, 2.0)),
    (lambda w: (2 * w) ** 2, (4.0, 2.0)),
    (lambda w: 5 / w, (5.0, -1.0)),
    (lambda w: 3 / pt.sqrt(w), (3.0, -0.5)),
    (lambda w: pt.sqrt(w) ** 2, (1.0, 1.0)),
    (lambda w: w**0.25, (1.0, 0.25)),
    (lambda w: w + 1, None),
    (lambda w: -w, None),
    (lambda w: pt.log(w), None),
    (lambda w: w**2 + w, None),
    (lambda w: w * pm.Flat.dist(), None),
    (lambda w: pt.clip(w, 0, 9) ** 2, None),
    (lambda w: pt.maximum(w, 0.01), None),
    (pt.round, None),
]


@pytest.mark.parametrize(("expression", "expected"), POWER_LAWS)
def test_power_law(expression, expected):
    w = pm.HalfFlat.dist()
    found = power_law(expression(w), w)
    assert found is expected or found == pytest.approx(expected, rel=1e-12)


def test_power_law_marks_exponentials():
    w = pm.Flat.dist()
    assert power_law(pt.exp(2 * w), w)[1] == np.inf


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


# --- Ops that keep values -------------------------------------------------------------------------

CHANGED = {
    "to int64": lambda v: v.astype("int64"),
    "to int8": lambda v: v.astype("int8"),
    "to bool": lambda v: v.astype("bool"),
    "floor": pt.floor,
    "ceil": pt.ceil,
    "round": pt.round,
    "trunc": pt.trunc,
    "whole quotient": lambda v: v // 1,
    "compared and back": lambda v: (v > 0).astype("float64"),
    "switch": lambda v: pt.switch(v > 1, v, 1.0),
    "clip": lambda v: pt.clip(v, 0, 1),
    "power of zero": lambda v: v + 0 ** (v - v),
    "counted": lambda v: pt.bincount(v.astype("int64")[None], minlength=3)[1],
    "set": lambda v: pt.set_subtensor(pt.zeros(2)[0], v)[0],
}


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
@pytest.mark.parametrize("ask", ["is_itself", "is_linear", "linear_map", "power"])
def test_what_changes_a_number_is_not_read_as_the_number(ask, change):
    v = pm.HalfNormal.dist()
    for expression in (change(v), 2.0 * change(v) + 1.0, 3.0 * change(v)):
        if ask == "power":
            assert power(expression, v) is None
        elif ask == "is_itself":
            assert not is_itself(expression, v)
        elif ask == "is_linear":
            assert not is_linear(expression, v)
        else:
            with pytest.raises(Declined):
                linear_map(expression, v)


@pytest.mark.parametrize(
    ("dtype", "target", "kept"),
    [
        ("int64", "float64", True),
        ("bool", "int8", True),
        ("int8", "int64", True),
        ("int32", "float64", True),
        ("float32", "float64", True),
        ("float64", "float32", True),
        ("int64", "float32", True),
        ("int64", "int32", False),
        ("int64", "uint64", False),
        ("uint64", "int64", False),
        ("float64", "int64", False),
        ("int64", "bool", False),
    ],
)
def test_casts_keep_values_where_every_value_fits(dtype, target, kept):
    node = pt.scalar(dtype=dtype).astype(target).owner
    assert keeps_values(node.op, dtype) == kept
    if target.startswith("float"):  # but for rounding
        return
    extremes = np.array([0, 1] if dtype == "bool" else _extremes(dtype), dtype)
    with np.errstate(all="ignore"):
        same = bool(np.all(extremes.astype(target).astype(dtype) == extremes))
    assert same or not kept


def _extremes(dtype):
    info = np.finfo(dtype) if dtype.startswith("f") else np.iinfo(dtype)
    largest = int(info.max) // 2**12 if dtype == "int64" else info.max  # doubles have 53 bits
    return [info.min if dtype != "int64" else -largest, 0, 1, largest]


@pytest.mark.parametrize("rounding", [pt.floor, pt.ceil, pt.trunc])
def test_whole_numbers_stay_when_rounded(rounding):
    node = rounding(pt.lscalar()).owner
    assert keeps_values(node.op, "int64")
    assert not keeps_values(node.op, "float64")


@pytest.mark.parametrize(
    ("graph", "whole"),
    [
        (lambda k: pt.dot(np.eye(3), k), True),
        (lambda k: np.kron(np.eye(3), np.ones((2, 1))) @ k, True),
        (lambda k: pt.dot(0.5 * np.eye(3), k), False),
        (lambda k: pt.switch(k > 1, k, 0.0), True),
        (lambda k: pt.switch(k > 1, k, 0.5), False),
        (lambda k: pt.inc_subtensor(pt.zeros(3)[[0, 0, 1]], k), True),
        (lambda k: (1.0 * k)[[0, 0, 1]].sum(), True),
        (lambda k: k.mean(), False),
        (lambda k: pt.round(k.mean()), True),
    ],
)
def test_what_is_whole_for_every_count(graph, whole):
    k = pm.Poisson.dist(2.0, shape=3)
    assert is_whole(graph(k)) == whole


# --- Signs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("graph", "nonnegative"),
    [
        (lambda a, s, u: s, True),
        (lambda a, s, u: a, False),
        (lambda a, s, u: u, False),
        (lambda a, s, u: u + 2, False),  # not read, though true
        (lambda a, s, u: pm.Uniform("v", 0.0, 3.0), True),
        (lambda a, s, u: pm.Uniform("v", s, 3.0), False),
        (lambda a, s, u: pm.TruncatedNormal("v", 0, 1, lower=0.5), True),
        (lambda a, s, u: pm.TruncatedNormal("v", 0, 1, upper=0.5), False),
        (lambda a, s, u: pt.exp(a) + a**2 + abs(a), True),
        (lambda a, s, u: s - 1, False),
        (lambda a, s, u: s**a, True),
        (lambda a, s, u: pt.abs(s) ** -0.5 * pt.sign(s), True),  # as pm.Normal writes tau
        (lambda a, s, u: pt.sign(a), False),
        (lambda a, s, u: a**s, False),
        (lambda a, s, u: pt.maximum(a, 0.1), True),
        (lambda a, s, u: pt.minimum(s, a), False),
        (lambda a, s, u: pt.stack([s, s]).sum() * 0.5, True),
        (lambda a, s, u: pt.stack([s, a]), False),
        (lambda a, s, u: pt.concatenate([s[None], a[None]]), False),
        (lambda a, s, u: pt.concatenate([s[None], s[None] / 2])[1:], True),
        (lambda a, s, u: pt.as_tensor([0.5, -0.5]), False),
    ],
)
def test_what_has_no_negative_entry(graph, nonnegative):
    with pm.Model():
        built = graph(pm.Normal("a"), pm.HalfNormal("s"), pm.Uniform("u", -1.0, 1.0))
    assert is_nonnegative(pt.as_tensor(built)) == nonnegative


# --- Constants of the model -----------------------------------------------------------------------


def test_a_constant_depends_on_nothing_random():
    with pm.Model():
        theta = pm.Normal("theta")
        data, number = pm.Data("data", 2.0), pt.constant(3.0)
        steps = pytensor.scan(lambda: pm.Normal.dist(), n_steps=3, return_updates=False)
    for random in (theta, theta + 1, pm.Normal.dist(), steps.sum()):
        assert known_value(random) is None
        assert known_value(random * number) is None
    assert known_value(data * number) == 6.0
    assert known_value(data * number, fixed=True) is None
    assert known_value(number**2, fixed=True) == 9.0
    assert known_value(pt.dscalar()) is None
    data.set_value(5.0)
    assert known_value(data * number) == 15.0


@pytest.mark.parametrize(
    ("build", "step", "latent"),
    [
        (random_shape, dp.TwoSidedGibbs, "s"),
        (random_half, dp.TwoSidedGibbs, "y"),
        (random_exponent, dp.ConjugateGibbs, "v"),
    ],
)
def test_nothing_is_decided_by_a_draw(build, step, latent):
    model = build()
    for _ in range(12):
        with model, pytest.raises(ValueError, match=repr(latent)):
            step([model[latent]])


# --- Integers that wrap around --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statistic", "what"),
    [
        (lambda k: (k.astype("int8") * 60 * 3).sum(), "a cast to int8"),
        (lambda k: (k.astype("int32") * np.int32(1_000)).sum(), "`mul` in int32"),
        (lambda k: (k.astype("int32") * k.astype("int32")).sum(), "`mul` in int32"),
        (lambda k: (k > 1).astype("int8").sum(dtype="int8"), None),
        (lambda k: pt.sum(pt.switch(k > 1, 100, -100), dtype="int8"), "`add` in int8"),
        (lambda k: pt.sum(pt.switch(k > 1, 100, 50) * 2), "`mul` in int8"),
        (lambda k: (k > 1).astype("uint8").sum(dtype="uint8") - np.uint8(9), "`sub` in uint8"),
        (lambda k: pt.dot(pt.constant(np.full(5, 30, "int8")), (k > 1).astype("int8")), "in int8"),
        (lambda k: (k > 1).astype("int8").prod(dtype="int8") * np.int8(100) * np.int8(2), "int8"),
        (lambda k: k.astype("int32")[0] + k.astype("int32")[1], None),
        (lambda k: pt.switch(k > 1, 1, 0).cumsum()[-1], None),
        (lambda k: pt.switch(k > 1, 2, 1) ** 2, None),
        (lambda k: pm.DiscreteUniform.dist(0, 5).astype("int8") + 0 * k.sum(), None),
        (lambda k: (1 - (k > 1)).sum(), None),
        (lambda k: pt.switch(k > 1, 100, -100).sum(), None),
        (lambda k: pt.clip(k, 0, 100).sum() * 2, None),
        (lambda k: (k * np.int8(3)).sum(), None),
        (lambda k: pt.stack([k.sum(), (k > 0).sum()]), None),
    ],
)
def test_integers_that_can_wrap_around_are_refused_by_name(statistic, what):
    with pm.Model() as model:
        k = pm.Poisson("k", 3.0, shape=5)
        graph = statistic(k)
        if what is None:
            check_wraparound("z", graph)
            return
        with pytest.raises(ValueError, match=r"'z'.*can wrap around.*Write") as error:
            dp.PrivateObservation("z", graph, dp.GeometricMechanism(1.0), observed=3)
    assert what in str(error.value)
    assert model.observed_RVs == []


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


def test_a_graph_in_another_is_computed_without_a_compiler(monkeypatch):
    monkeypatch.setattr(HasInnerFunction, "compile_fn", None)
    x, y = pt.dvectors("x", "y")
    inner = OpFromGraph([x, y], [x.sum(), x * y])
    outer = OpFromGraph([x], [x + inner(x, 2.0 * x)[1]])
    three = pt.constant([3.0])
    assert known_value(outer(three)) == 21.0
    assert plain_function([x], [outer(x), inner(x, x)[0]])([3.0]) == [21.0, 3.0]


def test_the_square_matrix_of_many_running_totals_is_not_built():
    y = pm.Poisson.dist(3, shape=200_000)
    with pytest.raises(Declined, match="200,000 running totals"):
        linear_map(pt.cumsum(y), y)
