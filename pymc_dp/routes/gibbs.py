"""Routes of the package's steps: on the records, and on their statistics."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.shapes import known_shape
from pymc_dp.ladder.collapse import collapsed
from pymc_dp.laws.sum_law import law_of
from pymc_dp.reading.bounds import feasible_start
from pymc_dp.reading.factors import read_block
from pymc_dp.reading.groups import Records, blocks, record_groups
from pymc_dp.reading.model import Reading, behind_ratios, privatized, releases
from pymc_dp.reading.tags import is_tagged
from pymc_dp.routes import ROUTES, Plan, Route, interrupted
from pymc_dp.routes.given import initial_values, public, width
from pymc_dp.step_methods import (
    CellGibbs,
    CountGibbs,
    TableGibbs,
    TwoSidedGibbs,
    choose_steps,
    kept_steps,
)
from pymc_dp.step_methods.base import DIVIDED
from pymc_dp.step_methods.records.checks import check_gaps
from pymc_dp.step_methods.registry import exact_draw, no_exact_draw

_STEPS = "Gibbs on the statistics"


def _statistics(reading: Reading) -> Plan:
    statistics = collapsed(reading, "statistics")
    chosen = choose_steps(statistics)
    if not chosen:
        raise Declined("no variable has a step of its own there")
    # Draws of counts are nearly independent. Other latents mix slowly where the noise dominates, as
    # no step moves them together with their parameters.
    suffix = "" if chosen.keys() >= {*statistics.model.free_RVs} else ", and NUTS"
    cost = {f"{_STEPS}{suffix}": 1.0}
    if suffix:  # with several counts behind a released entry, the parameters mix slowly
        kinds = sum(_size(rv) for rv in chosen if not rv.dtype.startswith("float"))
        cost = {
            f"{_STEPS}{suffix}": max(1.0, kinds / sum(map(_size, releases(statistics.model)))) ** 2
        }
    if all(chosen.get(rv) is CountGibbs for rv in statistics.model.free_RVs):
        cost = {"Gibbs on counts": 1.0}
    elif CellGibbs in chosen.values():
        cost = {f"Gibbs on cells{suffix}": _entries(statistics, set())}
    return Plan.costing(cost, partial(with_steps, statistics))


def with_steps(reading: Reading, **kwargs):
    """Sample a model by the steps that claim its variables, or by those of `step`."""
    with reading.model:
        if kwargs.get("step") is None:
            kwargs["step"] = kept_steps(reading)
        return interrupted.sample(reading.model, **kwargs)


def _records(reading: Reading) -> Plan:
    model = reading.model
    tagged = tuple(rv for rv in model.free_RVs if is_tagged(rv))
    if not tagged:
        raise Declined("the confidential values are released one by one, not in sums of records")
    for rv in tagged:
        check_gaps(model, rv)
        if rv in behind_ratios(reading):
            raise Declined(
                f"a release of {rv.name!r} is divided by a noisy number, and so is its noise. "
                f"{DIVIDED}",
                near=2,
            )
    all_stepped = {*tagged} | {*choose_steps(reading)} >= {*model.free_RVs}
    record_blocks = blocks(reading, tagged)
    records = {rv for block in record_blocks for rv in block.records}
    # Hyperparameters, and parameters of many groups, mix slowly given the records.
    times = _entries(reading, records) * math.prod(width(block) ** 2 for block in record_blocks)
    draw = "records, draw" if all_stepped else "records, draw beside NUTS"
    if any(width(block) > 1 for block in record_blocks):
        draw = "records, draw of rows"  # the parameters of a regression mix slowly given its rows
    cost = Counter({draw: float(len(record_blocks))})
    for block in record_blocks:
        cost.update(sweep(reading, block))
    total_cost: dict[str, float] = {k: times * x for k, x in cost.items()}
    if draw.endswith("NUTS"):
        total_cost["records, NUTS"] = 1.0  # NUTS takes as long for few parameters
    return Plan.costing(total_cost, partial(on_records, reading))


def sweep(reading: Reading, block: Records) -> dict[str, float]:
    """Return the cost of a sweep over some records: their number times the sums that each changes.

    If a law reads the releases, the number of released entries stands for that of the sums: reading
    the sums themselves takes long for many groups.
    """
    try:
        for group in record_groups(reading):
            if {*block.records} & {*group.records}:
                law_of(reading, group)
        sums = sum(_size(r) for r in releases(reading.model) if r in block.factors)
    except (Declined, ValueError):
        try:
            sums = len(read_block(reading, block).maps)
        except Declined:
            return {"records, afresh": block.n + block.n**2 / 100.0}
    return {"records, sum": block.n * sums}


def _size(rv) -> int:
    return math.prod(int(n or 1) for n in known_shape(rv))


def _entries(reading: Reading, latents: set) -> int:
    """Return the number of continuous parameters, at least 1; `latents` do not count."""
    free = reading.model.free_RVs
    above = [rv for rv in free if rv not in latents and rv.dtype.startswith("float")]
    return max(1, sum(map(_size, above)))


def on_records(reading: Reading, **kwargs):
    """Sample a model with its records, by the steps that claim its variables."""
    if kwargs.get("var_names") is None:
        kwargs["var_names"] = public(reading)
    start = feasible_start(reading)
    if start:
        kwargs["initvals"] = initial_values(start, kwargs.get("initvals"))
    return with_steps(reading, **kwargs)


def _counts(reading: Reading) -> Plan:
    chosen = choose_steps(reading)
    for rv in privatized(reading):
        if (
            chosen.get(rv) not in (TwoSidedGibbs, TableGibbs, CellGibbs)
            and exact_draw(reading, rv) is None
        ):
            why = no_exact_draw(reading, rv)
            raise Declined(f"{rv.name!r} has no exact draw given its releases{why}")
    cost = {"exact counts": sum(map(_size, privatized(reading))) ** 0.75}
    return Plan.costing(cost, partial(on_records, reading))


ROUTES.add(Route(_STEPS, "statistics", _statistics, steps=True, usual={_STEPS: 1}))
# Parameters mix slowly given records that noise or clamps leave uncertain.
ROUTES.add(Route("Metropolis on the records", "records", _records, steps=True, handicap=10.0))
ROUTES.add(Route("exact draws of the counts", "records", _counts, steps=True))
