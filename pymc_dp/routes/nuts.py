"""Routes of NUTS: on the records, on the statistics, on the marginal."""

from __future__ import annotations

import logging
import math
from collections import Counter
from functools import partial

import numpy as np
import pymc as pm
from pymc.distributions.timeseries import AutoRegressiveRV, RandomWalkRV
from pytensor.graph.traversal import ancestors
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor
from pytensor.tensor.variable import TensorVariable
from xarray import DataTree

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.draws import draws_stay, each_draw, with_deterministics
from pymc_dp.graphs.shapes import known_shape, lengths
from pymc_dp.graphs.values import nearest_rvs
from pymc_dp.ladder.collapse import LEFT_OUT, collapsed, left_out, try_densities
from pymc_dp.laws import law_names
from pymc_dp.laws.integrated import IntegratedReleaseRV
from pymc_dp.laws.moments.latents import RowLatentsRV
from pymc_dp.laws.parts import refuse_points
from pymc_dp.mechanisms.release import FeasibleRegression
from pymc_dp.reading.checks import require_possible
from pymc_dp.reading.groups import blocks, record_groups
from pymc_dp.reading.model import Reading, privatized, releases
from pymc_dp.reading.records import record_variables
from pymc_dp.reading.tags import is_tagged
from pymc_dp.routes import ROUTES, Plan, Route, interrupted
from pymc_dp.routes.coordinates import standardised
from pymc_dp.routes.costs import expected_rate
from pymc_dp.routes.gibbs import sweep
from pymc_dp.routes.given import initial_values, public, width
from pymc_dp.routes.nuts_chains import sample_nuts
from pymc_dp.step_methods import choose_steps

_log = logging.getLogger("pymc.dp")

# PyMC's 0.8 gives divergences where the data say little of the spread of a level, as is usual under
# noise, or of how many records there are.
_ACCEPT, _PLAIN = 0.9, 0.8
_MARGINAL, _STATISTICS = "NUTS on the marginal", "NUTS on the statistics"
_CHECKS = CheckAndRaise, Subtensor, AdvancedSubtensor
_CHECKED = 50  # draws of a chain at which omitted terms of the density are computed


def density_cost(model: pm.Model) -> Counter[str]:
    """Return the cost of the log density of a model without records."""
    shapes = [[n or 1 for n in known_shape(rv)] for rv in model.free_RVs]
    cost = Counter({"entry": sum(map(math.prod, shapes))})
    for rv, shape in zip(model.free_RVs, shapes, strict=True):
        if isinstance(rv.owner.op, RandomWalkRV | AutoRegressiveRV):
            continue  # its precision has bands: its entries are all of its cost
        if (ndim := getattr(rv.owner.op, "ndim_supp", 0)) and rv.dtype.startswith("float"):
            # Each vector, of several perhaps, has a full matrix as precision.
            cost["vector"] += math.prod(shape) * math.prod(shape[-ndim:])
        elif shape and nearest_rvs(rv.owner.inputs) and not isinstance(rv.owner.op, NormalRV):
            cost[f"{law_names([type(rv.owner.op)])} entry"] += math.prod(shape)  # of a hierarchy
    for rv in model.basic_RVs:
        if isinstance(op := rv.owner.op, IntegratedReleaseRV):
            cost.update(op.law.cost(math.prod(lengths(rv))))
    return cost


def nuts_cost(model: pm.Model, name: str, times: float = 1.0) -> dict[str, float]:
    """Return the cost of NUTS: its own, and that of the terms of the density.

    With more entries a gradient takes longer, and a draw takes more gradients.
    """
    cost = {f"NUTS, {part}": float(x) for part, x in density_cost(model).items()}
    return cost | {name: times, "NUTS, entry": cost["NUTS, entry"] ** 1.5}


def marginal_rate(marginal: pm.Model) -> float:
    """Return the expected effective draws a second of NUTS on a marginal model."""
    return expected_rate(nuts_cost(marginal, _MARGINAL))


def nuts_plan(
    reading: Reading, target: Reading, name: str, times: float = 1.0, *, correlated: bool = False
) -> Plan:
    """Return the plan of NUTS on the model of a rung, in coordinates that suit the data.

    Where variables stay `correlated` in these, NUTS adapts to that, see `sample_nuts`.
    """
    refuse_points(target.model.free_RVs)
    cost = nuts_cost(target.model, name, times)
    for rv in target.model.free_RVs:
        if rv.name not in reading.model.named_vars:  # a statistic
            law = law_names([type(rv.owner.op)])
            entries = math.prod(n or 1 for n in known_shape(rv))
            cost.pop(f"NUTS, {law} entry", None)
            for term, x in ((f"NUTS, latents of {law}", 1.0), (f"NUTS, {law} latent", entries)):
                cost[term] = cost.get(term, 0.0) + x
    moved = lambda: standardised(reading, target)[1]  # noqa: E731
    return Plan.costing(cost, partial(_sample, reading, target, correlated), moved)


def _sample(reading: Reading, target: Reading, correlated: bool = False, **kwargs):
    try_densities(target)
    model, moved = standardised(reading, target)
    if moved:
        names = ", ".join(map(repr, moved))
        where = "docs/reference/latent_gaussian.md"
        _log.info(
            "The variables stay as they are written; NUTS moves %s in other coordinates that suit "
            "the data, see %s", names, where,
        )  # fmt: skip
    chosen = kwargs.get("var_names") or not kwargs.get("return_inferencedata", True)
    late = [] if chosen else [d for d in model.deterministics if _may_raise(d)]
    if late:
        kwargs["var_names"] = [v.name for v in model.unobserved_RVs if v not in late]
    tree = sample_nuts(
        model, usual_accept=_accept(reading, target), correlated=correlated, **kwargs
    )
    if isinstance(tree, DataTree):  # not with return_inferencedata=False
        if late:
            posterior = tree["posterior"].to_dataset()
            tree["posterior"] = DataTree(with_deterministics(posterior, model, late))
        with draws_stay("a check of the terms that the density leaves out"):
            _check_left_out(target.model, tree)
    return tree


def _may_raise(deterministic: TensorVariable) -> bool:
    """Whether an expression checks variables: an error in one draw ends nutpie, and PyMC's NUTS."""
    return any(
        v.owner and isinstance(v.owner.op, _CHECKS) and nearest_rvs(v.owner.inputs[1:])
        for v in ancestors([deterministic], blockers=nearest_rvs([deterministic]))
    )


def _accept(reading: Reading, target: Reading) -> float:
    """Return the usual `target_accept`: PyMC's where parameters are independent a priori."""
    free = {*target.model.free_RVs}
    has_levels = any(free & {*nearest_rvs(rv.owner.inputs)} for rv in free)
    has_unknown_number = any(None in known_shape(rv) for rv in reading.model.free_RVs)
    return _ACCEPT if has_levels or has_unknown_number else _PLAIN


def _check_left_out(marginal: pm.Model, tree: DataTree) -> None:
    """Warn where a term that the density leaves out matters at some of the draws."""
    omissions, posterior = left_out(marginal), tree["posterior"].to_dataset()
    if not omissions or any(rv.name not in posterior for rv in marginal.free_RVs):
        return
    thinned = posterior.isel(draw=slice(None, None, max(1, posterior.sizes["draw"] // _CHECKED)))
    matters = np.array(list(each_draw(thinned, [graph for graph, _ in omissions])), dtype=bool)
    for (_, omitted), share in zip(omissions, matters.mean(axis=0), strict=True):
        if share:
            _log.warning(LEFT_OUT, omitted, f"at {100 * share:.0f}% of the draws")


def _marginal_plan(reading: Reading) -> Plan:
    marginal = collapsed(reading, "marginal")
    return nuts_plan(reading, marginal, _MARGINAL)


def _statistics_plan(reading: Reading) -> Plan:
    statistics = collapsed(reading, "statistics")
    if any(r.owner.op.region is FeasibleRegression for r in releases(statistics.model)):
        raise Declined("the walls of bounds= stop NUTS")
    if choose_steps(statistics):
        raise Declined("variables have steps of their own there")
    columns = max(width(group) for group in record_groups(reading))
    of_rows = any(isinstance(rv.owner.op, RowLatentsRV) for rv in statistics.model.free_RVs)
    return nuts_plan(reading, statistics, _STATISTICS, columns**2, correlated=of_rows)


def _records(reading: Reading) -> Plan:
    model = reading.model
    discrete = [rv.name for rv in model.free_RVs if rv.dtype.startswith(("int", "uint", "bool"))]
    if discrete:
        raise Declined(f"{discrete[0]!r} is discrete")
    refuse_points(model.free_RVs)
    require_possible(releases(model))
    if any(r.owner.op.bounds is not None for r in releases(model)):
        raise Declined("the walls of bounds= stop NUTS")
    n = sum(known_shape(group.records[0])[0] or group.n for group in record_groups(reading))
    cost = {"NUTS on the records": 1.0, "NUTS on the records, record": n}
    record_blocks = blocks(reading, tuple(record_variables(reading)))
    if any("records, afresh" in sweep(reading, block) for block in record_blocks):
        cost["NUTS on the records, no sums"] = n  # kinks, as those of a median, slow NUTS down
    moved = lambda: standardised(reading, reading)[1] if _is_singly(reading) else []  # noqa: E731
    return Plan.costing(cost, partial(_sample_records, reading), moved)


def _is_singly(reading: Reading) -> bool:
    """Whether all records are released one by one, so that NUTS moves them as parameters."""
    return not any(map(is_tagged, reading.model.free_RVs))


def _sample_records(reading: Reading, **kwargs):
    if kwargs.get("var_names") is None:
        kwargs["var_names"] = public(reading)
    if _is_singly(reading):
        return _sample(reading, reading, **kwargs)
    _log.warning("NUTS moves every single record here, which is slow: check R-hat and ESS")
    # PyMC starts all records at their mean, where the sample sd is 0 and has no gradient.
    starts = reading.model.rvs_to_initial_values
    scattered = {rv.name: "prior" for rv in privatized(reading) if starts[rv] is None}
    kwargs["initvals"] = initial_values(scattered, kwargs.get("initvals"))
    with reading.model:
        kwargs.setdefault("step", pm.NUTS(target_accept=kwargs.pop("target_accept", _ACCEPT)))
        return interrupted.sample(reading.model, **kwargs)


ROUTES.add(Route(_MARGINAL, "marginal", _marginal_plan, usual={_MARGINAL: 1}))
# Parameters mix slowly given latent sums where the released value is far in the tails.
ROUTES.add(Route(_STATISTICS, "statistics", _statistics_plan, usual={_STATISTICS: 1}, handicap=3.0))
ROUTES.add(Route("NUTS on the records", "records", _records, steps=True, handicap=10.0))
