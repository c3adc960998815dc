"""Which ops keep values, and which values are known."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.inner_function import HasInnerFunction

import pymc_dp as dp
from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.linear import linear_map
from pymc_dp.graphs.powers import power
from pymc_dp.graphs.values import (
    is_itself,
    is_whole,
    keeps_values,
    known_value,
    plain_function,
    read_cast,
    uncast,
)
from pymc_dp.reading.sums.polynomials import is_linear
from tests.models import random_exponent, random_half, random_shape

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
    "set twice": lambda v: pt.set_subtensor(pt.zeros(2)[[0, 0]], pt.stack([v, 2.0 * v]))[0],
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


def test_casts_to_no_real_number_are_refused():
    with pytest.raises(Declined, match="complex128 is no real number"):
        read_cast(pt.scalar().astype("complex128").owner.op.scalar_op, "float64")


@pytest.mark.parametrize(
    ("dtype", "target", "same"),
    [("int64", "int32", False), ("float64", "float32", True), ("float64", "int64", False)],
)
def test_what_is_behind_casts(dtype, target, same):
    x = pt.vector(dtype=dtype)
    assert (uncast(x.astype(target)) is x) == same


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


def test_a_graph_in_another_is_computed_without_a_compiler(monkeypatch):
    monkeypatch.setattr(HasInnerFunction, "compile_fn", None)
    x, y = pt.dvectors("x", "y")
    inner = OpFromGraph([x, y], [x.sum(), x * y])
    outer = OpFromGraph([x], [x + inner(x, 2.0 * x)[1]])
    three = pt.constant([3.0])
    assert known_value(outer(three)) == 21.0
    assert plain_function([x], [outer(x), inner(x, x)[0]])([3.0]) == [21.0, 3.0]
