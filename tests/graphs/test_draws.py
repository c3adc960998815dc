"""Expressions at draws."""

import arviz_base
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from pytensor.raise_op import Assert

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.draws import each_draw, per_draw, try_deterministics, with_deterministics


@pytest.mark.compiled
@pytest.mark.parametrize("evaluate", [per_draw, lambda p, g: np.array(list(each_draw(p, [g])))])
def test_constants_do_not_gather_stack_traces(evaluate):
    """PyTensor adds to the trace of a constant whenever it simplifies a switch to it."""
    with pm.Model():
        x, zero = pm.Normal("x"), pt.constant(0.0)
        zero.tag.trace = [[(__file__, 1, "written", "zero = 0.0")]]
        graph = pt.stack([x + pt.switch(x > k, zero, zero) for k in range(8)])
    posterior = xr.Dataset({"x": (("chain", "draw"), np.ones((1, 2)))})
    for _ in range(2):
        np.testing.assert_array_equal(np.squeeze(evaluate(posterior, graph)), np.ones((2, 8)))
    assert len(getattr(zero.tag, "trace", [])) < 8


assert_op = Assert("too large")


def test_what_fails_after_sampling_leaves_the_draws(caplog):
    """It is tried on one draw before; a failure later is said, and loses nothing."""
    with pm.Model() as model:
        a, gone = pm.Normal("a"), pm.Normal("gone")
        pm.Deterministic("of a", 2 * a)
        pm.Deterministic("of gone", gone + a)
        pm.Deterministic("refused", assert_op(a, pt.lt(a, 5.0)))
    draws = arviz_base.dict_to_dataset({"a": np.arange(8.0).reshape(2, 4)})
    kept = with_deterministics(draws, model, model.deterministics)
    assert [*kept.data_vars] == ["a", "of a"]
    np.testing.assert_array_equal(kept["of a"], 2 * kept["a"])
    for missing in ("'of gone'. the posterior has no gone", "'refused'. too large"):
        assert f"Missing in the result: {missing}" in caplog.text
    for name, value in (("of gone", 0.0), ("refused", 7.0)):
        with pytest.raises(Declined, match=f"'{name}' cannot be computed from its draws"):
            try_deterministics({"a": np.full((1, 1), value)}, [model["of a"], model[name]])
