"""Starting values inside the feasible region of bounded records."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.distribution import support_point
from pymc.initial_point import make_initial_point_fn
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, once
from pymc_dp.graphs.shapes import lengths
from pymc_dp.graphs.values import known_value, nearest_rvs
from pymc_dp.reading.groups import record_groups
from pymc_dp.reading.model import Reading
from pymc_dp.reading.normal_column import normal_columns


@once
def feasible_start(reading: Reading) -> dict[str, np.ndarray]:
    """Return starting values for the mean and spread of bounded records that start outside.

    PyMC's starting values are kept where they are feasible, and `initval=` always: the mean is
    moved off the ends of the bounds, the spread shrunk until the variance is at most half of the
    largest possible one.
    """
    start: dict[str, np.ndarray] = {}
    model = reading.model
    initvals = {rv: value for rv, value in model.rvs_to_initial_values.items() if value is not None}
    numbers = {rv: pt.as_tensor(v) for rv, v in initvals.items() if not isinstance(v, str)}

    def own_start(variable: TensorVariable) -> float:
        [graph] = graph_replace([variable], numbers, strict=False)
        return float(np.squeeze(starting_values([graph])[0]))

    for group in normal_columns(reading, record_groups(reading)):
        if group.bounds is None or group.spread is None:
            continue
        spread, c, k = group.spread
        if not 0 < k < np.inf:
            continue
        lower, upper = group.bounds
        margin = 0.1 * (upper - lower)
        mean = own_start(group.mean)
        moved = float(np.clip(mean, lower + margin, upper - margin))
        if moved != mean and group.mean in model.free_RVs:
            start[group.mean.name] = np.array(moved)
        cap = 0.5 * (moved - lower) * (upper - moved)
        if c * own_start(spread) ** k > cap:
            start[spread.name] = np.array((cap / c) ** (1 / k))
    return {name: value for name, value in start.items() if model[name] not in initvals}


def at_start(graphs: list[TensorVariable], times: float = 1.0) -> list[TensorVariable]:
    """Return graphs in which variables are `times` the values at which PyMC starts them."""
    while above := nearest_rvs(graphs):
        starts = {rv: (times * _start(rv)).astype(rv.dtype) for rv in above}
        graphs = graph_replace(graphs, starts, strict=False)
    return graphs


def _start(rv: TensorVariable) -> TensorVariable:
    """Return the value at which PyMC starts a variable; it may depend on the variable's shape."""
    start = support_point(rv)
    if rv not in ancestors([start]):
        return start
    zeros = pt.zeros(lengths(rv), dtype=rv.dtype)
    return graph_replace([start], {rv: zeros}, strict=False)[0]


def starting_values(graphs: list[TensorVariable]) -> list[np.ndarray]:
    """Evaluate graphs at the values at which PyMC starts their variables."""
    graphs = at_start(graphs)
    values = [known_value(graph) for graph in graphs]
    for graph, value in zip(graphs, values, strict=True):
        if value is None:
            raise Declined(f"where `{graph}` starts is not known: give initvals=")
    return [value for value in values if value is not None]


def feasible_point(model: pm.Model, seed: int = 0) -> dict[str, np.ndarray]:
    """Return the model's initial point, with bounded records' parameters moved inside.

    The seed matters to variables with ``initval="prior"``.
    """
    start = {model[name]: value for name, value in feasible_start(Reading(model)).items()}
    return make_initial_point_fn(model=model, overrides=start, return_transformed=True)(seed)
