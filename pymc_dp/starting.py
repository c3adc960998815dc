"""Starting values inside the feasible region of bounded records."""

from __future__ import annotations

import numpy as np
import pymc as pm
from pymc.initial_point import make_initial_point_fn

from pymc_dp.propriety import power_law
from pymc_dp.records import nearest_rvs, privatized, read_records


def feasible_start(model: pm.Model) -> dict[str, np.ndarray]:
    """Return starting values of the mean and spread of bounded records, where they are free."""
    start: dict[str, np.ndarray] = {}
    for records in privatized(model):
        try:
            group = read_records(model, records)
        except (ValueError, NotImplementedError):
            continue
        if group.bounds is None:
            continue
        lower, upper = group.bounds
        if group.mean in model.free_RVs:
            start[group.mean.name] = np.array((lower + upper) / 2)
        sources = nearest_rvs([group.variance])
        power = power_law(group.variance, sources[0]) if len(sources) == 1 else None
        if power is not None and np.isfinite(power[1]) and power[1] != 0:
            variance = (upper - lower) ** 2 / 16
            start[sources[0].name] = np.array((variance / power[0]) ** (1 / power[1]))
    return start


def feasible_point(model: pm.Model) -> dict[str, np.ndarray]:
    """Return the model's initial point, with bounded records' parameters moved inside."""
    start = {model[name]: value for name, value in feasible_start(model).items()}
    if not start:
        return model.initial_point()
    return make_initial_point_fn(model=model, overrides=start, return_transformed=True)(0)
