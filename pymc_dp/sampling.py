"""`sample`: draws of the posterior by the fastest exact route."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any, Literal

import numpy as np
import pymc as pm
import xarray as xr
from pymc.distributions.continuous import FlatRV, HalfFlatRV
from xarray import DataTree

from pymc_dp.graphs.compiled import said_when_compiling
from pymc_dp.graphs.declined import Declined, nearest
from pymc_dp.graphs.draws import draws_stay
from pymc_dp.graphs.interrupts import interruptible
from pymc_dp.graphs.stages import Stages
from pymc_dp.ladder.collapse import collapsed, dropped_deterministics, gone_names, what_goes
from pymc_dp.laws.integrated import IntegratedReleaseRV, all_releases
from pymc_dp.laws.sum_law import approximations, check_approximation, notes
from pymc_dp.mechanisms.checks import check_attainable, check_double
from pymc_dp.reading.checks import check_transform, check_values
from pymc_dp.reading.fits import check_fits
from pymc_dp.reading.frozen import as_model
from pymc_dp.reading.kept import kept
from pymc_dp.reading.model import (
    Reading,
    as_published,
    mechanism_of,
    privatized,
    release_statistic,
    releases,
)
from pymc_dp.reading.tags import is_tagged
from pymc_dp.routes import Plan, Route, interrupted, routes
from pymc_dp.routes.as_written import not_for_nuts
from pymc_dp.routes.chain import ARGUMENTS
from pymc_dp.routes.compiling import by_preference, run
from pymc_dp.routes.convergence import check_convergence, rewrite
from pymc_dp.routes.gibbs import on_records
from pymc_dp.routes.given import check_initial_values, initial_values, public
from pymc_dp.routes.latent_gaussian import unnormalised
from pymc_dp.step_methods import with_present_tags

# A child of PyMC's logger: its handlers show the messages.
_log = logging.getLogger("pymc.dp")

Open = list[tuple[Plan, Route]]
Rung = Literal["auto", "records", "statistics", "marginal"]

_MUCH_FASTER = 10  # times faster than the route that is taken: the user is told of it

NEURAL = ("sppe", "sple")  # values of method=, which are functions of pymc_dp.neural

_INSTEAD = (
    "gone from dp.sample: write approximate='clt', which samples the law of Bernstein & Sheldon; "
    "the naive analysis is in notebooks/05_private_regression.md, in a few lines of NumPy"
)


def sample(
    model: pm.Model | None = None,
    *,
    rung: Rung = "auto",
    method: Literal["sppe", "sple"] | None = None,
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
        Another analysis: "sppe" and "sple" are neural estimation from simulations, for data without
        a density. See `dp.neural.sppe` and `dp.neural.sple`, whose arguments are then taken.
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
        Interrupted by Ctrl-C, it has the draws so far, if there are any.

    Raises
    ------
    ValueError
        An argument with an unknown value, or one that no open route takes; no private release in
        the model; no open route, with the reasons.
    NotImplementedError
        A variable without a density, which is named; an improper prior of a model without data.

    Notes
    -----
    On the records the sampler is that of [1]_; ``approximate="clt"`` takes the law of [2]_. On the
    other rungs the records are integrated out, and the posterior is the same.

    Chains of this package that have not mixed are drawn on, and thinned to the draws asked for, as
    long as that takes less than a minute of CPU time. Where the minute decides, draws of one seed
    depend on the speed of the machine.

    References
    ----------
    .. [1] N. Ju, J. Awan, R. Gong, V. Rao (2022). Data augmentation MCMC for Bayesian inference
       from privatized data. NeurIPS 35.
    .. [2] G. Bernstein, D. Sheldon (2019). Differentially private Bayesian linear regression.
       NeurIPS 32.

    Examples
    --------
    >>> import pymc as pm, pymc_dp as dp
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 30, 20)
    ...     lead = pm.Normal("lead", mu, 17, shape=43)
    ...     z = dp.PrivateObservation("z", lead.mean(), dp.GaussianMechanism(9.3), observed=34.3)
    >>> short = {"draws": 100, "tune": 100, "chains": 2, "progressbar": False}
    >>> idata = dp.sample(model, random_seed=1, **short)
    >>> dict(idata["posterior"]["mu"].sizes)
    {'chain': 2, 'draw': 100}
    """
    model = with_present_tags(as_model(model, "dp.sample(model, draws=..., ...)"))
    if method not in (None, *NEURAL):
        instead = _INSTEAD if method in ("bernstein-sheldon", "naive") else "write 'sppe' or 'sple'"
        raise ValueError(f"method={method!r}: {instead}")
    if method is not None:
        stated = {"rung": rung != "auto", "approximate": approximate is not None}
        stated["moments"] = moments is not None
        wrong = [k for k, is_stated in stated.items() if is_stated]
        if wrong:
            raise ValueError(f"method={method!r} does not take {', '.join(wrong)}: leave it out")
        return getattr(import_module("pymc_dp.neural"), method)(model, **kwargs)
    check_approximation(approximate, moments)
    if rung not in ("auto", "records", "statistics", "marginal"):
        raise ValueError(f"rung={rung!r}: write 'auto', 'records', 'statistics' or 'marginal'")
    check_double(model.free_RVs)
    for release in releases(model):
        if release not in model.observed_RVs:
            _log.warning("The release %r has no observed value: it is drawn, too", release.name)
    check_fits(map(release_statistic, releases(model)))
    check_values(model)
    for rv in model.observed_RVs:
        if isinstance(rv.owner.op, IntegratedReleaseRV):
            check_attainable(rv.name, mechanism_of(rv), as_published(model.rvs_to_values[rv]))
    check_initial_values(model, kwargs.get("initvals"))
    line = Stages(progressbar=kwargs.get("progressbar", True), quiet=kwargs.get("quiet", False))
    with interruptible(), line, kept(model) as reading:
        return _sampled(reading, model, rung, approximate, moments, kwargs)


def _sampled(
    reading: Reading,
    model: pm.Model,
    rung: Rung,
    approximate: str | None,
    moments: Any,
    kwargs: dict[str, Any],
) -> DataTree:
    """Sample with checked arguments; `model` is the user's, `reading` may be of a copy."""
    for note in (*notes(reading), *unnormalised(reading)):
        _log.warning("%s", note)
    if rung == "auto" and approximate is None and _is_prior_alone(reading, kwargs):
        try:
            return _from_the_prior(reading, **kwargs)
        except Declined:
            raise
        except NotImplementedError as why:  # a distribution without random draws
            _log.info("Not taken: independent draws from the prior, %s", str(why).strip())
    # PyMC's warnings name no parameter: ours replace them, unless the result is no DataTree.
    checks = kwargs.get("compute_convergence_checks", True) and not kwargs.get("quiet")
    if kwargs.get("return_inferencedata", True) and kwargs.get("trace") is None:
        kwargs["compute_convergence_checks"] = False
    with said_when_compiling():
        tree, advice = _by_best_route(model, reading, rung, approximate, moments, kwargs)
    if checks and isinstance(tree, DataTree):
        names = [rv.name for rv in model.free_RVs]
        with draws_stay("the convergence checks"):
            check_convergence(tree, names, f"{advice} {rewrite(reading)}".strip(), model)
    return tree


def _by_best_route(
    model: pm.Model,
    reading: Reading,
    rung: Rung,
    approximate: str | None,
    moments: Any,
    kwargs: dict[str, Any],
) -> tuple[DataTree, str]:
    """Sample; return the draws, and advice in case that the chains have not mixed."""
    options: dict[str, Any] = {} if approximate is None else {"moments": moments}
    records = {rv.name for rv in privatized(reading)}
    for approximation in approximations(approximate) if approximate is not None else ():
        records |= {rv.name for rv in approximation.variables(reading)}
    wanted = records & set(kwargs.get("var_names") or ())
    with_records = wanted or rung == "records" or kwargs.get("step") is not None
    if approximate is not None and (with_records or not records):
        raise ValueError(
            f"approximate={approximate!r} integrates rows of several columns out, or tables of "
            f"dp.LogLinear: it is for models that have them, without step=, rung='records' and "
            f"records in var_names="
        )
    if kwargs.get("step") is not None:
        reading = Reading(model)  # the steps refer to variables of the user's model, not of a copy
    elif kwargs.get("initvals"):  # keys may be variables of the user's model: use names
        kwargs["initvals"] = initial_values({}, kwargs["initvals"])
    integrated = _check_names(reading, rung, kwargs.get("var_names") or (), records)
    if rung == "auto" and not records:
        return _as_written(reading, **kwargs), ""
    by_nuts = not any(is_tagged(rv) for rv in privatized(reading) if rv.name in wanted)
    if rung == "auto" and wanted and by_nuts and kwargs.get("step") is None:
        rung = "records"  # values released one by one are moved as parameters
    if rung == "auto" and (kwargs.get("step") is not None or wanted):
        why = "records in var_names=" if kwargs.get("step") is None else "step="
        _log.info("Route: the model as written, because of %s", why)
        advice = f"Without {why}, dp.sample takes the fastest route."
        return on_records(Reading(model), **kwargs), advice
    if rung != "auto" and not records:
        raise ValueError(f"rung={rung!r}: the model has no released vector of records")
    rung = "records" if rung == "auto" and integrated else rung

    named = kwargs.get("var_names") or ()
    # `var_names` is applied below: it shuts a route only if it names records.
    asked = {k: v for k, v in kwargs.items() if k != "var_names" or records & {*named}}
    table = routes(reading, approximate, **options)
    here = [(route, plan) for route, plan in table if rung in ("auto", route.rung)]
    better = [
        (route.priority(plan.rate), route)
        for route, plan in table
        if rung not in ("auto", route.rung) and not isinstance(plan, Declined)
    ]
    nearly_open = [
        (route.usual_rate, route.name, str(plan))
        for route, plan in here
        if isinstance(plan, Declined) and plan.near > 1
    ]

    def sampled(plan: Plan, best: Route, open_routes: Open) -> tuple[DataTree, str]:
        usual, name, reason = max(nearly_open, default=(0.0, "", ""))
        if usual >= _MUCH_FASTER * plan.rate:
            _log.warning(
                "The route %r is usually %.0f times faster, and opens if the model is written in "
                "another way. It is shut now: %s", name, usual / plan.rate, reason,
            )  # fmt: skip
        faster, other = max(better, key=lambda entry: entry[0], default=(0.0, best))
        elsewhere = [(p, route) for p, route in open_routes if route.rung != best.rung]
        instead = ""
        if faster > best.priority(plan.rate):
            instead = f"Without rung={rung!r} it takes the route {other.name!r}."
        elif best.handicap > 1.0 and elsewhere:
            _, other = max(elsewhere, key=lambda pair: pair[1].priority(pair[0].rate))
            instead = f"Draw more, or try rung={other.rung!r}, the route {other.name!r}."
        arguments = kwargs | _starts(reading, best, kwargs.get("initvals"))
        if best.arguments:
            arguments.pop("var_names", None)
        tree = run(best, plan, **arguments)
        if best.arguments and named:
            dataset = tree["posterior"].to_dataset()
            tree["posterior"] = DataTree(dataset[[name for name in named if name in dataset]])
        return tree, instead

    where = "" if rung == "auto" else f" on the rung {rung!r}"
    try:
        return _first_that_runs(here, asked, sampled, where)
    except Declined as none:
        raise ValueError(str(none)) from None


def _check_names(reading: Reading, rung: Rung, names: Sequence[str], records: set[str]) -> bool:
    """Return whether `var_names` has a deterministic that the records are needed for.

    Raises
    ------
    ValueError
        A name that the result will not have.
    """
    lacks = {*names} - {rv.name for rv in reading.model.unobserved_RVs}
    if lacks and rung == "statistics":
        lacks -= {rv.name for rv in collapsed(reading, rung).model.unobserved_RVs}
    if lacks:
        raise ValueError(
            f"var_names: the posterior cannot have {min(lacks)!r}. Write names of unobserved "
            f"variables of the model; statistics that were integrated out are added by "
            f"dp.recover(model, idata), and with rung='statistics' those are sampled that it has"
        )
    dropped = dropped_deterministics(reading) if names and records else []
    computed = {str(d.name) for d in dropped}
    needed = [name for name in names if name in records | computed]
    if needed and rung in ("statistics", "marginal"):
        raise ValueError(
            f"var_names: rung={rung!r} integrates out what {needed[0]!r} is, or is computed from: "
            f"leave rung= out, or write rung='records'"
        )
    return not computed.isdisjoint(names)


def _first_that_runs(
    plans: Iterable[tuple[Route, Plan | Declined]],
    kwargs: dict[str, Any],
    sampled: Callable[[Plan, Route, Open], Any],
    where: str = "",
) -> Any:
    """Sample by the best route that takes these arguments; say why the nearest one cannot."""
    open_routes: Open = []
    shut: list[tuple[str, Declined]] = []
    nuts_sampler = kwargs.get("nuts_sampler") or "pymc"
    for route, plan in plans:
        unsupported = [k for k in kwargs if route.arguments and k not in route.arguments]
        if isinstance(plan, Plan) and route.steps and nuts_sampler != "pymc":
            plan = Declined(f"its steps are not for nuts_sampler={nuts_sampler!r}", near=2)
        elif isinstance(plan, Plan) and unsupported:
            plan = Declined(f"it does not take {', '.join(unsupported)}", near=2)
            _log.info("Not taken: %s, %s", route.name, plan)
        if isinstance(plan, Declined):
            shut.append((route.name, plan))
        else:
            open_routes.append((plan, route))
    for plan, route in by_preference(open_routes):
        _log.info("Route: %s (rung: %s)", route.name, route.rung)
        try:
            return sampled(plan, route, open_routes)
        except Declined as why:  # compiling may find a reason to decline
            _log.warning("Not taken: %s, %s", route.name, why)
            shut.append((route.name, Declined(str(why), near=2)))
    first = str(nearest(why for _, why in shut))
    names = [name for name, why in shut if str(why) == first]
    unnamed = len(shut) - len(names)
    hint = f". dp.explain(model, details=True) says why the other {unnamed} are shut"
    raise Declined(f"no route{where} is open. {', '.join(names)}: {first}{hint * bool(unnamed)}")


def _starts(reading: Reading, route: Route, initvals: Any) -> dict[str, Any]:
    """Return the initvals= of a route; log which starting values it does not use."""
    starts = reading.model.rvs_to_initial_values
    if route.arguments and any(value is not None for value in starts.values()):
        _log.info("This route chooses its own starting values: initval= of variables is not used")
    if route.rung == "records":
        return {}
    for note in what_goes(reading, initvals, approximate=route.approximate):
        _log.info("%s", note)
    gone = gone_names(reading, route.approximate)
    return {"initvals": initial_values({}, initvals, gone)} if initvals else {}


def _is_prior_alone(reading: Reading, kwargs: dict[str, Any]) -> bool:
    """Whether forward draws have the posterior, as nothing conditions the model.

    Data, potentials, bounds and transforms that cut a support condition it.
    """
    model = reading.model
    try:
        for rv in model.free_RVs:
            check_transform(model, rv)
    except Declined:
        return False
    return (
        not model.observed_RVs
        and not model.potentials
        and bool(all_releases(model))
        and not any(release.owner.op.bounds for release in releases(model))
        and kwargs.keys() <= {*ARGUMENTS, "var_names"}
    )


def _from_the_prior(reading: Reading, **kwargs: Any) -> DataTree:
    """Draw independently from the prior of a model without observed variables."""
    for rv in reading.model.free_RVs:
        if isinstance(rv.owner.op, FlatRV | HalfFlatRV):
            raise Declined(f"nothing is observed, and the prior of {rv.name!r} is improper")
    draws, chains = kwargs.get("draws", 1000), kwargs.get("chains") or 4
    prior_draws = pm.sample_prior_predictive(
        draws * chains,
        model=reading.model,
        var_names=kwargs.get("var_names") or public(reading),
        random_seed=kwargs.get("random_seed"),
    )["prior"].to_dataset()
    _log.info("Route: independent draws from the prior, as nothing is observed")
    parts = [
        prior_draws.isel(draw=slice(c * draws, (c + 1) * draws)).assign_coords(
            chain=[c], draw=np.arange(draws)
        )
        for c in range(chains)
    ]
    return DataTree.from_dict({"posterior": xr.concat(parts, "chain")})


def _as_written(reading: Reading, **kwargs):
    """Sample a model without records: releases of latents, or of values integrated out before."""
    model = reading.model
    if not all_releases(model):
        raise ValueError(
            "there is no private release in the model: declare one with dp.PrivateObservation, or "
            "call pm.sample"
        )
    nuts_sampler = kwargs.get("nuts_sampler") or "pymc"
    stepped = ", ".join(map(repr, not_for_nuts(reading)))
    if nuts_sampler != "pymc" and stepped:
        raise ValueError(
            f"nuts_sampler={nuts_sampler!r} cannot move {stepped}, which are discrete or have an "
            f'exact draw: write dp.sample(dp.collapse(model, "marginal"), '
            f"nuts_sampler={nuts_sampler!r}), or leave nuts_sampler= out"
        )
    try:
        if kwargs.get("step") is not None:
            return interrupted.sample(model, **kwargs)
        plans = routes(reading)
        return _first_that_runs(plans, kwargs, lambda plan, route, _: run(route, plan, **kwargs))
    except NotImplementedError as error:
        raise Declined(
            f"{str(error).strip()}\nIf a part of the model can be drawn from but has no density, "
            "dp.neural.sppe and dp.neural.sple take the model as it is"
        ) from error
