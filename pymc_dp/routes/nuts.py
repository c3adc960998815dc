"""PyMC's own sampler, on a model or on one that is collapsed."""

from __future__ import annotations

import logging

import pymc as pm

from pymc_dp.ladder.collapse import collapse
from pymc_dp.laws.integrated import IntegratedReleaseRV
from pymc_dp.laws.rungs import record_groups
from pymc_dp.mechanisms.release import FeasibleRegression
from pymc_dp.reading.model import privatized, releases
from pymc_dp.routes import Route, register_route
from pymc_dp.routes.given import initial_values, public, width
from pymc_dp.step_methods import choose_steps

_log = logging.getLogger("pymc.dp")


def _marginal_rate(model):
    return nuts_rate(collapse(model, "marginal"))


def nuts_rate(marginal: pm.Model) -> float:
    """Return the effective draws a second to be expected of NUTS without confidential values."""
    ops = [rv.owner.op for rv in marginal.basic_RVs]
    return min(op.law.rate for op in ops if isinstance(op, IntegratedReleaseRV))


def _marginal(model, **kwargs):
    return pm.sample(model=collapse(model, "marginal"), **kwargs)


def _nuts_on_statistics_rate(model):
    collapsed = collapse(model, "statistics")
    if any(r.owner.op.region is FeasibleRegression for r in releases(collapsed)):
        raise ValueError("the walls of bounds= stop NUTS")
    if choose_steps(collapsed):
        raise ValueError("variables have steps of their own there")
    columns = max(width(group) for group in record_groups(model))
    return 800.0 / columns**2


def _nuts_on_statistics(model, **kwargs):
    return pm.sample(model=collapse(model, "statistics"), **kwargs)


def _clt_statistics_rate(model, moments):
    collapse(model, "statistics", approximate="clt", moments=moments)
    if any(r.owner.op.bounds is not None for r in releases(model)):
        raise ValueError("the walls of bounds= stop NUTS")
    return 1_000.0


def _clt_statistics(model, moments, **kwargs):
    collapsed = collapse(model, "statistics", approximate="clt", moments=moments)
    return pm.sample(model=collapsed, **kwargs)


def _clt_marginal_rate(model, moments):
    collapse(model, "marginal", approximate="clt", moments=moments)
    return 500.0


def _clt_marginal(model, moments, **kwargs):
    collapsed = collapse(model, "marginal", approximate="clt", moments=moments)
    return pm.sample(model=collapsed, **kwargs)


def _nuts_on_records_rate(model):
    discrete = [rv.name for rv in model.free_RVs if rv.dtype.startswith(("int", "uint", "bool"))]
    if discrete:
        raise ValueError(f"{discrete[0]!r} is discrete")
    if any(r.owner.op.bounds is not None for r in releases(model)):
        raise ValueError("the walls of bounds= stop NUTS")
    return 1.0


def _nuts_on_records(model, **kwargs):
    if kwargs.get("var_names") is None:
        kwargs["var_names"] = public(model)
    # PyMC starts every record at its mean, where the gradient of a spread does not exist.
    scattered = {rv.name: "prior" for rv in privatized(model)}
    kwargs["initvals"] = initial_values(scattered, kwargs.get("initvals"))
    _log.warning("NUTS moves every single record here, which is slow: look at R-hat and ESS")
    with model:
        kwargs.setdefault("step", pm.NUTS(target_accept=kwargs.pop("target_accept", 0.9)))
        return pm.sample(**kwargs)


register_route(
    Route(
        "NUTS on the sums, Normal by the central limit theorem",
        "statistics",
        _clt_statistics_rate,
        _clt_statistics,
        approximate="clt",
    )
)
register_route(
    Route(
        "NUTS on the marginal, by the central limit theorem",
        "marginal",
        _clt_marginal_rate,
        _clt_marginal,
        approximate="clt",
    )
)
register_route(Route("NUTS on the marginal", "marginal", _marginal_rate, _marginal))
register_route(
    Route("NUTS on the statistics", "statistics", _nuts_on_statistics_rate, _nuts_on_statistics)
)
register_route(Route("NUTS on the records", "records", _nuts_on_records_rate, _nuts_on_records))
