"""What graphs are, decided by their ops."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

import pymc_dp as dp
from pymc_dp.graphs.linear import is_linear, is_linear_in
from pymc_dp.graphs.questions import (
    is_itself,
    is_whole,
    keeps_values,
    known_value,
    power,
)
from pymc_dp.graphs.ranges import check_wraparound
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
@pytest.mark.parametrize("ask", ["is_itself", "is_linear", "is_linear_in", "power"])
def test_what_changes_a_number_is_not_read_as_the_number(ask, change):
    v = pm.HalfNormal.dist()
    for expression in (change(v), 2.0 * change(v) + 1.0, 3.0 * change(v)):
        if ask == "power":
            assert power(expression, v) is None
        elif ask == "is_itself":
            assert not is_itself(expression, v)
        else:
            assert not {"is_linear": is_linear, "is_linear_in": is_linear_in}[ask](expression, v)


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
