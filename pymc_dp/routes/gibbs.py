"""The package's steps, on the records and on their statistics."""

from __future__ import annotations

import pymc as pm

from pymc_dp.graphs.declined import Declined
from pymc_dp.ladder.collapse import collapse
from pymc_dp.reading.bounds import feasible_start
from pymc_dp.reading.groups import blocks, read_block
from pymc_dp.reading.model import is_tagged, privatized
from pymc_dp.routes import Route, register_route
from pymc_dp.routes.given import initial_values, public, width
from pymc_dp.step_methods import CountGibbs, TableGibbs, TwoSidedGibbs, choose_steps, steps
from pymc_dp.step_methods.records import check_gaps


def _statistics_rate(model):
    collapsed = collapse(model, "statistics")
    chosen = choose_steps(collapsed)
    if not chosen:
        raise ValueError("no variable has a step of its own there")
    if all(chosen.get(rv) is CountGibbs for rv in collapsed.free_RVs):
        return 8_000.0  # draws are nearly independent
    return 200.0  # without interweaving: where the noise dominates, much less


def _statistics(model, **kwargs):
    collapsed = collapse(model, "statistics")
    with collapsed:
        if "step" not in kwargs:
            kwargs["step"] = steps(collapsed)
        return pm.sample(**kwargs)


def _records_rate(model):
    tagged = [rv for rv in model.free_RVs if is_tagged(rv)]
    if not tagged:
        raise ValueError("the confidential values are released one by one, not in sums of records")
    for rv in tagged:
        check_gaps(model, rv)
    seconds = 2e-4 if set(tagged) | set(choose_steps(model)) >= set(model.free_RVs) else 1e-3
    found = blocks(model, tagged)
    if any(width(block) > 1 for block in found):
        seconds = 7e-3  # the parameters of a regression follow its rows slowly
    for block in found:
        try:
            read_block(model, block)
            seconds += block.n * 5e-8
        except Declined:
            seconds += block.n * 1e-6 + block.n**2 * 1e-8
        seconds *= width(block) ** 2
    return 1.0 / seconds


def on_records(model, **kwargs):
    """Sample a model with its records, by the steps that suit it."""
    if kwargs.get("var_names") is None:
        kwargs["var_names"] = public(model)
    start = feasible_start(model)
    if start:
        kwargs["initvals"] = initial_values(start, kwargs.get("initvals"))
    with model:
        if "step" not in kwargs:
            kwargs["step"] = steps(model)
        return pm.sample(**kwargs)


def _counts_rate(model):
    chosen = choose_steps(model)
    exact = (TwoSidedGibbs, TableGibbs)
    others = [rv.name for rv in privatized(model) if chosen.get(rv) not in exact]
    if others:
        raise ValueError(f"{others[0]!r} has no exact draw given its releases")
    return 1_000.0


register_route(
    Route("Gibbs on the statistics", "statistics", _statistics_rate, _statistics, steps=True)
)
register_route(Route("Metropolis on the records", "records", _records_rate, on_records, steps=True))
register_route(Route("exact draws of the counts", "records", _counts_rate, on_records, steps=True))
