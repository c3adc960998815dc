"""Integers that can wrap around."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_dp as dp
from pymc_dp.graphs.ranges import check_wraparound


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
