"""Expressions at draws."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr

from pymc_dp.graphs.draws import each_draw, per_draw


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
