"""`collapse`: integrate the confidential records out of a model."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Literal

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.model.core import FrozenModel
from pymc.model.fgraph import (
    fgraph_from_model,
    model_deterministic,
    model_free_rv,
    model_from_fgraph,
    model_observed_rv,
)
from pytensor.gradient import NullTypeGradError
from pytensor.graph.basic import Constant
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable
from scipy.optimize import minimize

from pymc_dp.graphs.declined import Declined, once
from pymc_dp.graphs.shapes import known_shape
from pymc_dp.graphs.values import plain_function
from pymc_dp.laws.integrated import IntegratedReleaseRV, all_releases
from pymc_dp.laws.sum_law import (
    Approximation,
    Change,
    Rung,
    SumLaw,
    approximations,
    change,
    check_approximation,
    law_of,
    run_trials,
)
from pymc_dp.reading.bounds import feasible_start
from pymc_dp.reading.checks import check_values
from pymc_dp.reading.fits import check_fits
from pymc_dp.reading.frozen import in_order_of, read, set_starts, without_starts
from pymc_dp.reading.groups import Records, record_groups
from pymc_dp.reading.kept import frozen
from pymc_dp.reading.model import (
    Reading,
    children,
    privatized,
    release_statistic,
    releases,
    releases_of,
)
from pymc_dp.step_methods import choose_steps

_log = logging.getLogger("pymc.dp")


def collapse(
    model: pm.Model | None = None,
    to: Rung = "marginal",
    *,
    approximate: Literal["clt"] | None = None,
    moments: Any = None,
) -> pm.Model:
    r"""Integrate the confidential records out of a model; the posterior stays the same.

    Parameters
    ----------
    model : pm.Model, optional
        A model with `PrivateObservation` releases of records; the one of the context if None.
    to : {"marginal", "statistics"}
        "statistics" replaces the records by their sufficient statistics: Normal ones by
        ``<record>_mean`` and ``<record>_var``, :math:`\bar Y \sim N(m, v/n)`, :math:`S^2 \sim
        \mathrm{Gamma}((n-1)/2, (n-1)/(2v))`; Bernoulli and Categorical ones by ``<record>_count``
        :math:`\sim \mathrm{Binomial}(n, p)` and ``<record>_counts`` :math:`\sim
        \mathrm{Multinomial}(n, \pi)`; Bernoulli, Binomial and Poisson ones that differ by public
        covariates by the counts of their kinds, ``<record>_count``; rows of several Normal columns,
        those of a regression say, by their mean and covariance matrix ``<x>_<y>_mean`` and
        ``<x>_<y>_cov``. "marginal" integrates the statistics out, too, and counts that are released
        one by one. It leaves the parameters only, for NUTS. Nothing of size n is ever allocated for
        records.
    approximate : "clt", optional
        Replaces the exact law of the sums over rows by the Normal law with the same mean and
        covariance [1]_. The covariates then may follow other laws than the
        Normal, and to="marginal" integrates the sums out: under Laplace noise its scale-mixture
        variances stay, as ``<release>_noise_variance``. Tables of `LogLinear` become Normal as
        well, given cell probabilities, which are ``<rows>_probabilities``.
    moments : array or "released", optional
        With approximate="clt": moments of the covariates, in place of those of their law in the
        model. An array is :math:`E[x_i x_j x_k x_l]` of the features (1, x), of
        shape (d, d, d, d), or the first four moments of one covariate; "released" takes the
        published values of releases of sums of products of up to four covariates for them.

    Returns
    -------
    pm.Model
        A new model. `pm.Data` is copied: call `set_data` on the new one. Data and dims that decide
        how many records there are, or what is released, cannot be changed there.

    Raises
    ------
    NotImplementedError, ValueError
        Naming the variable and the reason: another child of the records, a statistic that is no
        function of the sufficient ones, two releases of the same statistic (marginal), no closed
        form (marginal), an improper posterior.

    References
    ----------
    .. [1] G. Bernstein, D. Sheldon (2019). Differentially private Bayesian linear regression.
       NeurIPS 32.

    Examples
    --------
    >>> import pymc as pm, pymc_dp as dp
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 30, 20)
    ...     lead = pm.Normal("lead", mu, 17, shape=43)
    ...     z = dp.PrivateObservation("z", lead.mean(), dp.LaplaceMechanism(9.3), observed=34.3)
    >>> dp.collapse(model).free_RVs  # the mean is integrated out
    [mu]
    >>> dp.collapse(model, to="statistics").free_RVs
    [mu, lead_mean]
    """
    reading = read(model, "dp.collapse(model, to=...)")
    if to not in ("statistics", "marginal"):
        raise ValueError(f"to={to!r}: write to='statistics' or to='marginal'")
    check_approximation(approximate, moments)
    check_fits(map(release_statistic, releases(reading.model)))
    check_values(reading.model)
    rung_reading = collapsed(reading, to, approximate, moments)
    if approximate is not None:
        _check_held(reading, approximate, moments)
    try_densities(rung_reading)
    _warn_of_what_is_left_out(rung_reading.model)
    for note in what_goes(reading, approximate=approximate):
        _log.info("%s", note)
    return rung_reading.model


def _check_held(reading: Reading, approximate: str, moments: Any) -> None:
    """Decline moments that may change: `collapse` reads them once, `sample` at each call."""
    for approximation, group in approximated(reading, approximate):
        for name, data in approximation.held(reading, group, moments).items():
            raise Declined(
                f"the moments of the covariates are read from {name!r}, which depends on {data!r}: "
                f"a collapsed model holds them as numbers, and pm.set_data would not reach them. "
                f"Write a number in the place of {data!r}, state moments= as an array, or call "
                f"dp.sample(approximate={approximate!r}), which reads them at each call"
            )


def collapsed(
    reading: Reading, to: Rung, approximate: str | None = None, moments: Any = None
) -> Reading:
    """Return the reading of the collapsed model; an exact rung is built once for each reading."""
    if approximate is None:
        return _exact(reading, to)
    pairs = approximated(reading, approximate)
    changes = ((group, by.change(reading, group, to, moments)) for by, group in pairs)
    return _collapsed(reading, to, changes)


def approximated(reading: Reading, approximate: str) -> list[tuple[Approximation, Records]]:
    """Return what an approximation integrates out: records, and variables of its own."""
    named = approximations(approximate)
    own = [(by, Records((rv,), 0, ())) for by in named for rv in by.variables(reading)]
    of_records = [by for by in named if by.of_records]
    if own and not (of_records and privatized(reading)):
        return own
    return [(by, group) for by in of_records for group in integrable(reading)] + own


@once
def _exact(reading: Reading, to: Rung) -> Reading:
    return _collapsed(reading, to, ((g, change(reading, g, to)) for g in integrable(reading)))


def _collapsed(reading: Reading, to: Rung, changes: Iterable[tuple[Records, Change]]) -> Reading:
    model, total = reading.model, Change()
    records: list[TensorVariable] = []
    for group, group_change in changes:
        records += group.records
        for name, part in vars(group_change).items():
            if name != "trials":
                getattr(total, name).update(part)
        total.trials += group_change.trials
    for taken in [*total.added, *total.deterministics]:
        if taken in model.named_vars:
            raise ValueError(f"the model already has a variable {taken!r}: rename it")
    rung_reading = Reading(rebuilt(reading, records, total), reading)
    rung_reading.trials = total.trials
    if to == "statistics":
        _prepare_sampling(reading, rung_reading, total.start)
    return rung_reading


@once
def try_densities(rung_reading: Reading) -> None:
    """Decline a rung where one of its densities cannot be evaluated; see `Change.trials`."""
    run_trials(rung_reading.trials)


LEFT_OUT = (
    "%s, and %s other numbers matter: the posterior is wrong there. Check the units, and the "
    "priors of the number and of the records"
)
_ASCENT = 20  # iterations of L-BFGS towards the mode


def left_out(marginal: pm.Model) -> list[tuple[TensorVariable, str]]:
    """Return, by density, whether values that it leaves out matter (a graph), and them in words."""
    judgements, values = [], {rv: marginal.rvs_to_values[rv] for rv in marginal.observed_RVs}
    for rv in values:
        if isinstance(op := rv.owner.op, IntegratedReleaseRV):
            mechanism, parameters = op.split(rv.owner.inputs)
            judgement = op.law.left_out(values[rv], mechanism, *parameters)
            judgements += [judgement] if judgement is not None else []
    graphs = graph_replace([graph for graph, _ in judgements], values, strict=False)
    return list(zip(graphs, (words for _, words in judgements), strict=True))


def _warn_of_what_is_left_out(model: pm.Model) -> None:
    """Warn where values that a density leaves out matter near its mode; `sample` checks draws."""
    judgements = left_out(model)
    free = [model.rvs_to_values[rv] for rv in model.free_RVs]
    if not judgements or not free or not all(value.dtype.startswith("float") for value in free):
        return
    logp = model.logp()
    try:
        density = plain_function(free, [logp, *pt.grad(logp, free)])
    except (NotImplementedError, NullTypeGradError):  # a law of the user has no gradient
        return
    first = model.initial_point(0)
    start = [np.asarray(first[value.name], dtype="float64") for value in free]
    ends = np.cumsum([value.size for value in start])[:-1]

    def split(q):
        parts = zip(np.split(q, ends), start, strict=True)
        return [x.reshape(initial.shape).astype(initial.dtype) for x, initial in parts]

    def negative_logp(q):
        try:
            value, *slopes = density(*split(q))
        except ValueError:  # the parameters of a law are not valid
            return np.inf, np.zeros_like(q)
        slope = -np.concatenate([np.ravel(part) for part in slopes])
        inside = np.isfinite(value) and np.isfinite(slope).all()
        return (-float(value), slope) if inside else (np.inf, np.zeros_like(q))

    with np.errstate(all="ignore"):
        q = np.concatenate([np.ravel(value) for value in start])
        mode = minimize(
            negative_logp, q, jac=True, method="L-BFGS-B", options={"maxiter": _ASCENT}
        ).x
        graphs, matters = model.replace_rvs_by_values([graph for graph, _ in judgements]), []
        with suppress(ValueError):
            matters = plain_function(free, graphs)(*split(mode))
    for (_, words), is_large in zip(judgements, matters, strict=False):
        if is_large:
            _log.warning(LEFT_OUT, words, "near the mode of the density")


def gone_names(reading: Reading, approximate: str | None = None) -> list[str]:
    """Return the names of the records, which no rung without records has."""
    if approximate is None:
        groups = integrable(reading)
    else:
        groups = [group for _, group in approximated(reading, approximate)]
    return [str(rv.name) for group in groups for rv in group.records]


def what_goes(
    reading: Reading, initvals: Any = None, *, approximate: str | None = None
) -> list[str]:
    """Say what is removed with the records: variables that only they depend on, starting values."""
    starts = reading.model.rvs_to_initial_values.items()
    started = {
        rv.name for rv, start in starts if start is not None and not hasattr(rv.tag, "dp_started")
    }
    started.update(*([initvals] if isinstance(initvals, Mapping) else initvals or ()))
    hidden = {*(gone_names(reading) if privatized(reading) else ())}
    hidden -= {rv.name for rv in privatized(reading)}
    notes = {
        "Integrated out with the records that depend on them": hidden,
        "Integrated out, so that its starting value is not used": started,
    }
    return [
        f"{sentence}: {', '.join(map(repr, gone))}"
        for sentence, names in notes.items()
        if (gone := [name for name in gone_names(reading, approximate) if name in names])
    ]


@once
def collapsible(reading: Reading) -> list[SumLaw]:
    """Return the laws of all privatized records; refuse by name what cannot be collapsed."""
    return [law_of(reading, group) for group in integrable(reading)]


@once
def integrable(reading: Reading) -> list[Records]:
    """Return the privatized records of a model; decline records with other children than releases.

    Columns of the same rows are one group, see `record_groups`.
    """
    model = reading.model
    if not privatized(reading):
        if not releases(model) and all_releases(model):
            raise ValueError(
                "there is nothing to collapse: the confidential values are integrated out in the "
                "model as it is. Call pm.sample or dp.sample on it"
            )
        raise ValueError(
            "there are no records to integrate out: the model has no release of a vector of "
            "unobserved records"
            if releases(model)
            else "there is nothing to collapse: declare a release with dp.PrivateObservation"
        )
    groups = record_groups(reading)
    for records, columns in ((rv, group.records) for group in groups for rv in group.records):
        known = releases_of(model, [records])
        for child in children(reading, records):
            if child not in columns and child in privatized(reading):
                shapes = " and ".join(str(tuple(known_shape(rv))) for rv in (records, child))
                raise Declined(
                    f"{records.name!r} and {child.name!r} are no columns of the same rows: they "
                    f"have the shapes {shapes}, and rows are counted along the first axis, each "
                    f"computed from its own. Write shape=(n, d) and x @ b, or sample on the records"
                )
            if child not in known and child not in columns:
                raise Declined(
                    f"the records {records.name!r} cannot be integrated out: {child.name!r} "
                    f"depends on them too. Release it with dp.PrivateObservation, or sample on "
                    f"the records"
                )
    return groups


@once
def dropped_deterministics(reading: Reading) -> list[TensorVariable]:
    """Return the deterministics that depend on records: a collapsed model has none of them."""
    records = {rv for group in record_groups(reading) for rv in group.records}
    return _computed_from(reading.model, records)


def _computed_from(model: pm.Model, records: set[TensorVariable]) -> list[TensorVariable]:
    return [
        d
        for d in model.deterministics
        if records & set(ancestors([d], blockers=set(model.basic_RVs)))
    ]


def _prepare_sampling(reading: Reading, rung_reading: Reading, start) -> None:
    """Tag the variables with their steps, and start bounded ones inside their region."""
    for rv, step in choose_steps(rung_reading).items():
        rv.tag.dp_step = step.__name__
    for name, value in {**feasible_start(reading), **start}.items():
        rv = rung_reading.model[name]
        rung_reading.model.rvs_to_initial_values[rv] = rv.type.filter(value)


def rebuilt(reading: Reading, records: list[TensorVariable], total: Change) -> pm.Model:
    """Build the collapsed model."""
    model = reading.model
    gone = {rv.name for rv in records}
    gone |= {d.name for d in _computed_from(model, set(records))}
    gone -= {old.name for old in total.replaced}
    gone |= total.dropped
    fgraph, memo = fgraph_from_model(without_starts(model))
    named = {v.name: v for v in fgraph.outputs}

    # New variables are written in variables of the model: translate them, innermost first. Frozen
    # data are not translated: they are in both graphs, and would become inputs of themselves.
    variables = [v for v in model.named_vars.values() if v in memo and not isinstance(v, Constant)]
    translation = {var: memo[var] for var in variables}

    def dims_of(name: str, new: TensorVariable) -> tuple:
        release = total.entries_of.get(name)
        if release is None or known_shape(new) != known_shape(release):
            return ()
        return named[release.name].owner.op.dims

    for name, (rv, transform) in {**total.transforms, **total.added}.items():
        new = _translate(rv, translation)
        value, value_name = new, name
        if transform is not None:  # it may have fewer entries
            value, value_name = (
                transform.forward(new, *new.owner.inputs),
                f"{name}_{transform.name}__",
            )
        value = value.type(name=value_name)
        dims = named[name].owner.op.dims if name in named else dims_of(name, new)
        model_var = model_free_rv(new, value, transform, name, *dims)
        if name in named:
            translation = {
                k: (model_var if v is named[name] else v) for k, v in translation.items()
            }
            fgraph.replace(named[name], model_var, import_missing=True)
        else:
            fgraph.add_output(model_var, import_missing=True)
        translation[rv] = model_var
    for name, expression in total.deterministics.items():
        new = _translate(expression, translation)
        fgraph.add_output(model_deterministic(new, name, *dims_of(name, new)), import_missing=True)
    for old, rv in total.replaced.items():
        node = named[old.name].owner
        new = _translate(rv, translation)
        if len(node.inputs) == 2 and old in model.observed_RVs:
            new_var = model_observed_rv(new, node.inputs[1], old.name, *node.op.dims)
        else:
            new_var = model_free_rv(new, node.inputs[1], node.op.transform, old.name, *node.op.dims)
        fgraph.replace(named[old.name], new_var, import_missing=True)
        translation[old] = new_var  # a later release may be computed from it
    for i in reversed(range(len(fgraph.outputs))):
        if fgraph.outputs[i].name in gone:
            fgraph.remove_output(i)
    collapsed = model_from_fgraph(fgraph, mutate_fgraph=True)
    in_order_of(collapsed, model)
    for rv in collapsed.basic_RVs:
        if hasattr(rv.tag, "dp_release"):
            del rv.tag.dp_release
    set_starts(collapsed, model)
    return frozen(collapsed, model) if isinstance(model, FrozenModel) else collapsed


def _translate(rv: TensorVariable, translation: dict) -> TensorVariable:
    """Rewrite a variable in variables of the fgraph; unlike a clone, this shares replacements."""
    return graph_replace([rv], translation, strict=False)[0]
