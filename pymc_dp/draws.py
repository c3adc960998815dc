"""Evaluate expressions of a model at the draws of a result."""

from __future__ import annotations

import numpy as np
import pymc as pm
import xarray as xr
from pytensor.graph.replace import vectorize_graph
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs import nearest_rvs


def per_draw(posterior: xr.Dataset, graph: TensorVariable) -> np.ndarray:
    """Evaluate a graph of a model's free variables at every posterior draw, in one call.

    Returns an array with one leading dimension for chains and draws together.
    """
    needed = nearest_rvs([graph])
    missing = [rv.name for rv in needed if rv.name not in posterior]
    if missing:
        raise ValueError(
            f"the posterior has no {', '.join(missing)}: every free variable of the model is "
            f"needed (was var_names= given to the sampler?)"
        )
    values, batched = [], {}
    for rv in needed:
        data = posterior[rv.name].to_numpy()
        values.append(data.reshape(-1, *data.shape[2:]).astype(rv.dtype))
        batched[rv] = rv.type.clone(shape=(None, *rv.type.shape))(name=rv.name)
    [output] = vectorize_graph([graph], batched)
    found = pm.compile(list(batched.values()), output, on_unused_input="ignore")(*values)
    draws = posterior.sizes["chain"] * posterior.sizes["draw"]
    shape = found.shape[found.ndim - graph.type.ndim :]
    return np.ascontiguousarray(np.broadcast_to(found, (draws, *shape)))
