"""`sample`: the fastest exact route for a model, and the table it is chosen from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import pymc as pm
from xarray import DataTree

from pymc_dp.graphs.questions import known_shape
from pymc_dp.ladder.collapse import collapse
from pymc_dp.laws.moments.sums import read_moments
from pymc_dp.laws.one_value import IntegratedReleaseRV, all_releases
from pymc_dp.laws.rungs import notes, record_groups
from pymc_dp.mechanisms.base import check_attainable
from pymc_dp.mechanisms.release import FeasibleRegression
from pymc_dp.reading.bounds import feasible_start
from pymc_dp.reading.groups import blocks, read_block
from pymc_dp.reading.model import (
    as_model,
    as_published,
    check_values,
    children,
    is_tagged,
    privatized,
    releases,
    with_known_lengths,
)
from pymc_dp.reading.sums import NotAdditiveError
from pymc_dp.routes import clt as clt_regression
from pymc_dp.routes import gaussian as fused
from pymc_dp.routes import regression
from pymc_dp.routes.chain import ARGUMENTS
from pymc_dp.routes.clt import METHODS
from pymc_dp.routes.convergence import check_convergence
from pymc_dp.step_methods import CountGibbs, TableGibbs, TwoSidedGibbs, choose_steps, steps
from pymc_dp.step_methods.records import check_gaps

# Messages appear where PyMC's do.
_log = logging.getLogger("pymc.dp")

Rung = Literal["auto", "records", "statistics", "marginal"]

NEURAL = ("sppe", "sple")  # functions of pymc_dp.neural


@dataclass(frozen=True)
class Route:
    """One way to sample a model.

    Attributes
    ----------
    name, rung : str
        What it is called and the rung of the ladder on which it samples.
    rate : callable
        Model to expected effective draws a second of the slowest parameter, measured on two cores
        on the blood-lead example (`benchmarks/`); raises ValueError or NotImplementedError with
        the reason where the route is shut.
    run : callable
        ``(model, **pm.sample arguments)`` to the result.
    arguments : frozenset of str, optional
        The arguments of `pm.sample` that the route takes, where it does not take them all.
    approximate : str, optional
        The approximation that it samples; `rate` and `run` then take ``moments=``, too.
    steps : bool, optional
        Whether some variables get steps of ours, so that it is not for ``nuts_sampler=``.
    """

    name: str
    rung: str
    rate: Callable[..., float]
    run: Callable[..., DataTree]
    arguments: frozenset[str] | None = None
    approximate: str | None = None
    steps: bool = False


_ROUTES: list[Route] = []


def register_route(route: Route) -> None:
    """Add a route to the table."""
    _ROUTES.append(route)


def registered_routes() -> tuple[Route, ...]:
    """Return the table, in which the tests of conformance look for what has no test."""
    return tuple(_ROUTES)


def routes(
    model: pm.Model, approximate: str | None = None, **options: Any
) -> list[tuple[Route, float, str]]:
    """Return every route with its expected rate (0 where it is shut) and the reason why it is."""
    table = []
    for route in _ROUTES:
        if route.approximate != approximate:
            continue
        try:
            table.append((route, route.rate(model, **options), ""))
        except (ValueError, NotImplementedError) as error:
            table.append((route, 0.0, str(error)))
    return table


def sample(
    model: pm.Model | None = None,
    *,
    rung: Rung = "auto",
    method: Literal["sppe", "sple", "bernstein-sheldon", "naive"] | None = None,
    approximate: Literal["clt"] | None = None,
    moments: Any = None,
    **kwargs: Any,
) -> DataTree:
    """Sample the exact posterior of a model with private releases, by the fastest route.

    Parameters
    ----------
    model : pm.Model, optional
        The model of the context by default.
    rung : {"auto", "records", "statistics", "marginal"}
        Where to sample. "auto" takes the route with the most expected effective draws a second and
        says which; with ``step=``, or a vector of records in ``var_names``, it does not collapse.
    method : str, optional
        Another analysis. Of a linear regression with conjugate priors, for comparison:
        "bernstein-sheldon" is the published sampler, whose target is only near the posterior under
        the central limit theorem, and which needs many draws (its chains mix slowly where the noise
        is small); "naive" takes the published values for the confidential ones. "sppe" and "sple"
        are neural estimation from simulations, for data without a density: see `dp.neural.sppe`
        and `dp.neural.sple`, whose arguments are then taken.
    approximate, moments
        See `collapse`: approximate="clt" samples the central limit theorem's law of the sums over
        the rows of a regression, in the place of the exact one.
    **kwargs
        Arguments of `pm.sample` (draws, tune, chains, cores, random_seed, progressbar, ...). With
        two chains or more, parameters with R-hat above 1.01 or fewer than 100 effective draws a
        chain are named in a warning, unless ``compute_convergence_checks=False``.

    Returns
    -------
    xarray.DataTree
        The groups of `pm.sample`. Vectors of records are left out of it unless `var_names` names
        them; confidential statistics that were integrated out come back with `dp.recover`.
    """
    model = as_model(model, "dp.sample(model, draws=..., ...)")
    if method in NEURAL:
        stated = {"rung": rung != "auto", "approximate": approximate, "moments": moments}
        wrong = [name for name, value in stated.items() if value is not None and value is not False]
        if wrong:
            raise ValueError(f"method={method!r} does not take {', '.join(wrong)}: leave it out")
        return getattr(import_module("pymc_dp.neural"), method)(model, **kwargs)
    if method is not None and method not in METHODS:
        raise ValueError(f"method={method!r}: write {' or '.join(map(repr, (*METHODS, *NEURAL)))}")
    if approximate not in (None, "clt"):
        raise ValueError(f"approximate={approximate!r}: write 'clt', or leave it out: exact")
    if rung not in ("auto", "records", "statistics", "marginal"):
        raise ValueError(f"rung={rung!r}: write 'auto', 'records', 'statistics' or 'marginal'")
    for release in releases(model):
        if release not in model.observed_RVs:
            _log.warning("The release %r has no observed value: its prior is sampled", release.name)
    check_values(model)
    for rv in model.observed_RVs:
        if isinstance(rv.owner.op, IntegratedReleaseRV):
            published = as_published(model.rvs_to_values[rv])
            check_attainable(rv.name, rv.owner.op.mechanism, published)
    for note in notes(model):
        _log.warning("%s", note)
    if method is not None:
        wrong = [k for k in kwargs if k not in ARGUMENTS] + ["rung"] * (rung != "auto")
        wrong += ["approximate"] * (approximate is not None)
        if wrong:
            raise ValueError(f"method={method!r} does not take {', '.join(wrong)}: leave it out")
        return METHODS[method](model, moments=moments, **kwargs)
    # Those of PyMC name no parameter; of what is no tree they are all that there is.
    checks = kwargs.get("compute_convergence_checks", True) and not kwargs.get("quiet")
    if kwargs.get("return_inferencedata", True) and kwargs.get("trace") is None:
        kwargs["compute_convergence_checks"] = False
    tree, advice = _by_best_route(model, rung, approximate, moments, kwargs)
    if checks and isinstance(tree, DataTree):
        check_convergence(tree, [rv.name for rv in model.free_RVs], advice)
    return tree


def _by_best_route(
    model: pm.Model, rung: Rung, approximate: str | None, moments: Any, kwargs: dict[str, Any]
) -> tuple[DataTree, str]:
    """Sample; return the draws, and what is expected to do better if they have not mixed."""
    options: dict[str, Any] = {} if approximate is None else {"moments": moments}
    if approximate is None and moments is not None:
        raise ValueError("moments= is part of the approximation: write approximate='clt' with it")
    if moments is not None and not isinstance(moments, str):
        read_moments(moments)  # what is wrong with them is wrong on every route
    records = {rv.name for rv in privatized(model)}
    if rung == "auto" and not records:
        return _as_written(model, **kwargs), ""
    if rung == "auto" and (
        kwargs.get("step") is not None or records & set(kwargs.get("var_names") or ())
    ):
        _log.info("Route: the model as written, with the given steps or records")
        advice = "Without step= and records in var_names=, dp.sample takes the fastest route."
        return _records(model, **kwargs), advice
    if rung != "auto" and not records:
        raise ValueError(f"rung={rung!r}: the model has no released vector of records")

    model = with_known_lengths(model)
    if kwargs.get("initvals"):  # of variables of the model as it was given
        kwargs["initvals"] = _merged({}, kwargs["initvals"])
    nuts_sampler = kwargs.get("nuts_sampler") or "pymc"
    open_routes, better = [], []
    shut: dict[str, list[str]] = {}
    for route, rate, reason in routes(model, approximate, **options):
        if rung not in ("auto", route.rung):
            better += [] if reason else [(rate, route)]
            continue
        unsupported = [k for k in kwargs if route.arguments and k not in route.arguments]
        if not reason and route.steps and nuts_sampler != "pymc":
            reason = f"its steps are not for nuts_sampler={nuts_sampler!r}"
        if not reason and unsupported:
            reason = f"it does not take {', '.join(unsupported)}"
            _log.info("Not taken: %s, %s", route.name, reason)
        if reason:
            shut.setdefault(reason, []).append(route.name)
        else:
            open_routes.append((rate, route))
    if not open_routes:
        where = "" if rung == "auto" else f" on the rung {rung!r}"
        reasons = "; ".join(f"{', '.join(names)}: {why}" for why, names in shut.items())
        raise ValueError(f"no route{where} is open. {reasons}")
    rate, best = max(open_routes, key=lambda entry: entry[0])
    _log.info("Route: %s (rung: %s)", best.name, best.rung)
    faster, other = max(better, key=lambda entry: entry[0], default=(0.0, best))
    advice = f"Without rung={rung!r} it takes the route {other.name!r}." if faster > rate else ""
    return best.run(model, **options, **kwargs), advice


def _as_written(model, **kwargs):
    """Releases of latents or of integrated-out values: PyMC's samplers suit the model as it is."""
    if not all_releases(model):
        raise ValueError(
            "there is no private release in the model: declare one with dp.PrivateObservation, or "
            "call pm.sample"
        )
    _log.info("Route: the model as written")
    nuts_sampler = kwargs.get("nuts_sampler") or "pymc"
    stepped = [
        repr(rv.name)
        for rv in model.free_RVs
        if hasattr(rv.tag, "dp_step") or not rv.dtype.startswith("float")
    ]
    if nuts_sampler != "pymc" and stepped:
        raise ValueError(
            f"nuts_sampler={nuts_sampler!r} cannot move {', '.join(stepped)}, which have steps of "
            f'their own: write dp.sample(dp.collapse(model, "marginal"), '
            f"nuts_sampler={nuts_sampler!r}), or leave nuts_sampler= out"
        )
    try:
        return pm.sample(model=model, **kwargs)
    except NotImplementedError as error:
        raise NotImplementedError(
            f"{str(error).strip()}\nIf a part of the model has no density, but can be drawn from, "
            "dp.neural.sppe and dp.neural.sple take the model as it is"
        ) from error


def _marginal(model, **kwargs):
    return pm.sample(model=collapse(model, "marginal"), **kwargs)


def _statistics(model, **kwargs):
    collapsed = collapse(model, "statistics")
    with collapsed:
        if "step" not in kwargs:
            kwargs["step"] = steps(collapsed)
        return pm.sample(**kwargs)


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


def _records(model, **kwargs):
    if kwargs.get("var_names") is None:
        kwargs["var_names"] = _public(model)
    start = feasible_start(model)
    if start:
        kwargs["initvals"] = _merged(start, kwargs.get("initvals"))
    with model:
        if "step" not in kwargs:
            kwargs["step"] = steps(model)
        return pm.sample(**kwargs)


def _merged(start, initvals):
    """Put initial values by name, for all chains or for each, over those that are ours."""
    if initvals is None or isinstance(initvals, Mapping):
        own = {getattr(rv, "name", rv): value for rv, value in (initvals or {}).items()}
        return {**start, **own}
    return [_merged(start, of_chain) for of_chain in initvals]


def _nuts_on_records(model, **kwargs):
    if kwargs.get("var_names") is None:
        kwargs["var_names"] = _public(model)
    # PyMC starts every record at its mean, where the gradient of a spread does not exist.
    scattered = {rv.name: "prior" for rv in privatized(model)}
    kwargs["initvals"] = _merged(scattered, kwargs.get("initvals"))
    _log.warning("NUTS moves every single record here, which is slow: look at R-hat and ESS")
    with model:
        kwargs.setdefault("step", pm.NUTS(target_accept=kwargs.pop("target_accept", 0.9)))
        return pm.sample(**kwargs)


def _public(model):
    """Names of all variables but vectors of records, where there are others; says which are not."""
    hidden = [rv for rv in model.free_RVs if is_tagged(rv)]
    hidden += [
        rv
        for rv in privatized(model)
        if rv not in hidden and set(children(model, rv)) <= set(releases(model))
    ]
    public = [rv.name for rv in model.unobserved_RVs if rv not in hidden]
    if not public:
        return [rv.name for rv in model.unobserved_RVs]
    if hidden:
        names = ", ".join(repr(rv.name) for rv in hidden)
        _log.info("Left out of the result, unless var_names= names them: %s", names)
    return public


def _marginal_rate(model):
    return nuts_rate(collapse(model, "marginal"))


def nuts_rate(marginal: pm.Model) -> float:
    """Return the effective draws a second to be expected of NUTS without confidential values."""
    ops = [rv.owner.op for rv in marginal.basic_RVs]
    return min(op.nuts_rate for op in ops if isinstance(op, IntegratedReleaseRV))


def _statistics_rate(model):
    collapsed = collapse(model, "statistics")
    chosen = choose_steps(collapsed)
    if not chosen:
        raise ValueError("no variable has a step of its own there")
    if all(chosen.get(rv) is CountGibbs for rv in collapsed.free_RVs):
        return 8_000.0  # draws are nearly independent
    return 200.0  # without interweaving: where the noise dominates, much less


def _nuts_on_statistics_rate(model):
    collapsed = collapse(model, "statistics")
    if any(r.owner.op.region is FeasibleRegression for r in releases(collapsed)):
        raise ValueError("the walls of bounds= stop NUTS")
    if choose_steps(collapsed):
        raise ValueError("variables have steps of their own there")
    columns = max(_columns(group) for group in record_groups(model))
    return 800.0 / columns**2


def _records_rate(model):
    tagged = [rv for rv in model.free_RVs if is_tagged(rv)]
    if not tagged:
        raise ValueError("the confidential values are released one by one, not in sums of records")
    for rv in tagged:
        check_gaps(model, rv)
    seconds = 2e-4 if set(tagged) | set(choose_steps(model)) >= set(model.free_RVs) else 1e-3
    found = blocks(model, tagged)
    if any(_columns(block) > 1 for block in found):
        seconds = 7e-3  # the parameters of a regression follow its rows slowly
    for block in found:
        try:
            read_block(model, block)
            seconds += block.n * 5e-8
        except NotAdditiveError:
            seconds += block.n * 1e-6 + block.n**2 * 1e-8
        seconds *= _columns(block) ** 2
    return 1.0 / seconds


def _columns(block) -> int:
    """Return the number of columns of a record: the more, the slower are its steps."""
    return sum(known_shape(rv)[1] or 1 if rv.type.ndim == 2 else 1 for rv in block.records)


def _counts_rate(model):
    chosen = choose_steps(model)
    exact = (TwoSidedGibbs, TableGibbs)
    others = [rv.name for rv in privatized(model) if chosen.get(rv) not in exact]
    if others:
        raise ValueError(f"{others[0]!r} has no exact draw given its releases")
    return 1_000.0


def _nuts_on_records_rate(model):
    discrete = [rv.name for rv in model.free_RVs if rv.dtype.startswith(("int", "uint", "bool"))]
    if discrete:
        raise ValueError(f"{discrete[0]!r} is discrete")
    if any(r.owner.op.bounds is not None for r in releases(model)):
        raise ValueError("the walls of bounds= stop NUTS")
    return 1.0


register_route(Route("fused Gibbs", "statistics", fused.rate, fused.sample, ARGUMENTS))
register_route(
    Route("exact regression", "statistics", regression.rate, regression.sample, ARGUMENTS)
)
register_route(
    Route(
        "regression by the central limit theorem",
        "statistics",
        clt_regression.rate,
        clt_regression.sample,
        ARGUMENTS,
        approximate="clt",
    )
)
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
    Route("Gibbs on the statistics", "statistics", _statistics_rate, _statistics, steps=True)
)
register_route(
    Route("NUTS on the statistics", "statistics", _nuts_on_statistics_rate, _nuts_on_statistics)
)
register_route(Route("Metropolis on the records", "records", _records_rate, _records, steps=True))
register_route(Route("exact draws of the counts", "records", _counts_rate, _records, steps=True))
register_route(Route("NUTS on the records", "records", _nuts_on_records_rate, _nuts_on_records))
