"""`collapse`: integrate the confidential records out of a model."""

from __future__ import annotations

import pymc as pm
from pymc.model.fgraph import (
    fgraph_from_model,
    model_free_rv,
    model_from_fgraph,
    model_observed_rv,
)
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

import pymc_dp.ladder.counts
import pymc_dp.ladder.gaussian
import pymc_dp.ladder.latent_counts  # noqa: F401 (these register their rules)
from pymc_dp.graphs import depends_on
from pymc_dp.ladder.rules import Change, Reading, Rung, change, read
from pymc_dp.records import as_model, children, privatized, release_statistic, releases
from pymc_dp.starting import feasible_start
from pymc_dp.steps import choose_steps


def collapse(model: pm.Model | None = None, to: Rung = "marginal") -> pm.Model:
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
        \mathrm{Multinomial}(n, \pi)`. "marginal" integrates these out too, and counts that are
        released one by one, and leaves the parameters only, for NUTS. Nothing of size n is ever
        allocated for records.

    Returns
    -------
    pm.Model
        A new model. `pm.Data` is copied: call `set_data` on the new one.

    Raises
    ------
    NotImplementedError, ValueError
        Naming the variable and the reason: another child of the records, an `initval`, a statistic
        that is no function of the sufficient ones, two releases of the same statistic
        (marginal), no closed form (marginal), an improper posterior.
    """
    model = as_model(model, "dp.collapse(model, to=...)")
    if to not in ("statistics", "marginal"):
        raise ValueError(f"to={to!r}: write to='statistics' or to='marginal'")
    records = integrable(model)
    total = Change()
    for rv in records:
        found = change(model, rv, to)
        total.replaced.update(found.replaced)
        total.added.update(found.added)
        total.transforms.update(found.transforms)
        total.start.update(found.start)
    for taken in total.added:
        if taken in model.named_vars:
            raise ValueError(f"the model already has a variable {taken!r}: rename it")
    collapsed = _rebuild(model, records, total)
    if to == "statistics":
        _prepare_sampling(model, collapsed, total.start)
    return collapsed


def collapsible(model: pm.Model) -> list[Reading]:
    """Read all privatized records of a model; refuse by name what cannot be collapsed."""
    return [read(model, rv) for rv in integrable(model)]


def integrable(model: pm.Model) -> list[TensorVariable]:
    """Return the privatized records of a model, which nothing but releases may depend on."""
    with_initval = [rv.name for rv, v in model.rvs_to_initial_values.items() if v is not None]
    if with_initval:
        raise NotImplementedError(
            f"a model with initval= cannot be collapsed: remove it from {', '.join(with_initval)}, "
            f"and pass initvals= to the sampler"
        )
    found = privatized(model)
    if not found:
        raise ValueError(
            "there are no records to integrate out: the model has no release of a vector of "
            "unobserved records"
            if releases(model)
            else "there is nothing to collapse: declare a release with dp.PrivateObservation"
        )
    for records in found:
        known = [r for r in releases(model) if depends_on(release_statistic(r), records)]
        for child in children(model, records):
            if child not in known:
                raise NotImplementedError(
                    f"the records {records.name!r} cannot be integrated out: {child.name!r} "
                    f"depends on them too. Release it with dp.PrivateObservation, or sample on "
                    f"the records"
                )
    return found


def dropped_deterministics(model: pm.Model) -> list[TensorVariable]:
    """Deterministics of records, which no collapsed model can carry."""
    records = set(privatized(model))
    return [
        d
        for d in model.deterministics
        if records & set(ancestors([d], blockers=set(model.basic_RVs)))
    ]


def _prepare_sampling(model: pm.Model, collapsed: pm.Model, start) -> None:
    """Tag the variables with their steps, and start bounded ones inside their region."""
    for rv, step in choose_steps(collapsed).items():
        rv.tag.dp_step = step.__name__
    for name, value in {**feasible_start(model), **start}.items():
        collapsed.set_initval(collapsed[name], value)


def _rebuild(model: pm.Model, records: list[TensorVariable], total: Change) -> pm.Model:
    """Build the collapsed model from what changes."""
    gone = {rv.name for rv in records} | {d.name for d in dropped_deterministics(model)}
    fgraph, memo = fgraph_from_model(model)
    named = {v.name: v for v in fgraph.outputs}

    # New variables are written in terms of the model's: translate, innermost first.
    translation = {var: memo[var] for var in model.named_vars.values() if var in memo}
    for name, (rv, transform) in {**total.transforms, **total.added}.items():
        new = _translate(rv, translation)
        value_name = name if transform is None else f"{name}_{transform.name}__"
        value = new.type(name=value_name)
        dims = named[name].owner.op.dims if name in named else ()
        model_var = model_free_rv(new, value, transform, name, *dims)
        if name in named:
            translation = {
                k: (model_var if v is named[name] else v) for k, v in translation.items()
            }
            fgraph.replace(named[name], model_var, import_missing=True)
        else:
            fgraph.add_output(model_var, import_missing=True)
        translation[rv] = model_var
    for old, rv in total.replaced.items():
        node = named[old.name].owner
        new = _translate(rv, translation)
        if len(node.inputs) == 2 and old in model.observed_RVs:
            new_var = model_observed_rv(new, node.inputs[1], old.name, *node.op.dims)
        else:
            new_var = model_free_rv(new, node.inputs[1], node.op.transform, old.name, *node.op.dims)
        fgraph.replace(named[old.name], new_var, import_missing=True)
    for i in reversed(range(len(fgraph.outputs))):
        if fgraph.outputs[i].name in gone:
            fgraph.remove_output(i)
    collapsed = model_from_fgraph(fgraph, mutate_fgraph=True)
    order = {v.name: i for i, v in enumerate(model.free_RVs)}
    collapsed.free_RVs.sort(key=lambda rv: order.get(rv.name, len(order)))
    for rv in collapsed.basic_RVs:
        if hasattr(rv.tag, "dp_release"):
            del rv.tag.dp_release
    return collapsed


def _translate(rv: TensorVariable, translation: dict) -> TensorVariable:
    """Rewrite a variable in terms of the fgraph's; unlike a clone, this shares the replacements."""
    return graph_replace([rv], translation, strict=False)[0]
