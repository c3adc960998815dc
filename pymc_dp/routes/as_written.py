"""Models without records to integrate out: releases of latents, or models collapsed before."""

from __future__ import annotations

import math
from functools import partial

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.shapes import known_shape
from pymc_dp.laws.parts import refuse_points
from pymc_dp.reading.model import Reading
from pymc_dp.routes import AS_WRITTEN, ROUTES, Plan, Route, interrupted
from pymc_dp.routes.gibbs import with_steps
from pymc_dp.routes.nuts import nuts_plan
from pymc_dp.step_methods import choose_steps, refuse_stuck

_STEPS, _NUTS = "steps on the model as written", "NUTS on the model as written"
_PYMC = "PyMC's own steps on the model as written"


def not_for_nuts(reading: Reading) -> list[str]:
    """Return the names of the variables that are discrete, or have an exact draw."""
    free = reading.model.free_RVs
    return [str(rv.name) for rv in free if hasattr(rv.tag, "dp_step") or rv.dtype[:5] != "float"]


def _steps(reading: Reading) -> Plan:
    chosen = choose_steps(reading)
    if not chosen:
        raise Declined("no variable has a step of its own")
    free = reading.model.free_RVs
    refuse_points(rv for rv in free if rv not in chosen)
    entries = sum(math.prod(n or 1 for n in known_shape(rv)) for rv in chosen)
    name = _STEPS if len(chosen) == len(free) else f"{_STEPS}, and NUTS"
    return Plan.costing({name: 1.0, f"{name}, entry": entries}, partial(with_steps, reading))


def _nuts(reading: Reading) -> Plan:
    if names := not_for_nuts(reading):
        raise Declined(f"it cannot move {', '.join(map(repr, names))}")
    return nuts_plan(reading, reading, _NUTS)


def _pymc(reading: Reading) -> Plan:
    if not not_for_nuts(reading) or choose_steps(reading):
        raise Declined("other routes are for all variables")
    refuse_points(reading.model.free_RVs)
    refuse_stuck(reading, reading.model.free_RVs)
    return Plan.costing({_PYMC: 1.0}, partial(interrupted.sample, reading.model))


ROUTES.add(Route(_STEPS, AS_WRITTEN, _steps, steps=True))
ROUTES.add(Route(_NUTS, AS_WRITTEN, _nuts))
ROUTES.add(Route(_PYMC, AS_WRITTEN, _pymc, steps=True))
