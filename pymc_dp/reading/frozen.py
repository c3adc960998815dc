"""The copy of a model that is read: its lengths are numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
from pymc.model.core import BaseModel
from pymc.model.transform.optimization import freeze_dims_and_data
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors, toposort

from pymc_dp.graphs.substitution import simplified
from pymc_dp.reading.model import (
    Reading,
    mechanism_of,
    privatized_variables,
    release_statistic,
    releases,
    releases_of,
)
from pymc_dp.reading.record_lengths import size_of

# Attributes in which `once`, PyMC and `kept` keep what they made of a model.
_KEPT = {"answers", "values", "_cache", "unobserved_value_vars"}


def read(model: pm.Model | None, call: str) -> Reading:
    """Read the model of an argument or of the context; see `with_known_lengths`."""
    return Reading(with_known_lengths(as_model(model, call)))


def as_model(model: pm.Model | None, call: str) -> pm.Model:
    """Return the model of the argument or of the context; `call` shows how to pass it."""
    if model is None:
        try:
            return pm.modelcontext(None)
        except TypeError:
            raise TypeError(f"no model: write {call}, or call it within `with model:`") from None
    if not isinstance(model, BaseModel):
        raise TypeError(f"a pm.Model is needed, not a {type(model).__name__}: write {call}")
    return model


def with_known_lengths(model: pm.Model) -> pm.Model:
    """Return the model, or a copy in which lengths of records and of releases are numbers.

    `dims` and `pm.Data` make lengths and indices variables, but a reading needs numbers. In the
    copy PyMC freezes the dims and data that decide a length, the data behind public whole numbers
    and truth values of a statistic, and the data in priors of unknown numbers of records;
    `pm.set_data` refuses to change them there. The copy's variables have the names of the model's.
    """
    dims, data = deciding(model)
    return copied(model, dims, data) if dims or data else model


def deciding(model: pm.Model) -> tuple[list[str], list[str]]:
    """Return the names of the dims and data that `with_known_lengths` freezes."""
    shaped = [v for v in (*privatized_variables(model), *releases(model)) if None in v.type.shape]
    deciding = set(ancestors(simplified([v.shape for v in shaped]))) if shaped else set()
    deciding |= set(ancestors(_on_unknown_numbers(model), blockers=model.basic_RVs))
    statistics = [release_statistic(release) for release in releases(model)]
    used, random = set(ancestors(statistics, blockers=model.basic_RVs)), set(model.basic_RVs)
    whole = [v for v in used - random if _counts(v) and v.owner is None]
    for node in toposort(statistics, blockers=model.basic_RVs):
        if random.isdisjoint(node.inputs):
            whole += filter(_counts, node.outputs)
        else:
            random.update(node.outputs)
    deciding |= set(ancestors(whole))
    dims = [name for name, length in model.dim_lengths.items() if length in deciding | used]
    return dims, [v.name for v in model.data_vars if v in deciding]


def copied(model: pm.Model, dims: Sequence[str], data: Sequence[str]) -> pm.Model:
    """Return a copy of a model in which some dims and data are constants."""
    copy = freeze_dims_and_data(without_starts(model), dims=dims, data=data)
    set_starts(copy, model)
    in_order_of(copy, model)
    for rv in model.basic_RVs:  # a variable of another type has lost its tags
        copy[rv.name].tag.__update__(rv.tag)
    return copy


def in_order_of(copy: pm.Model, model: pm.Model) -> None:
    """Put the variables of a copy in the order of the model; those that only it has come last."""
    for kind in ("free_RVs", "observed_RVs", "potentials", "deterministics"):
        order = {v.name: i for i, v in enumerate(getattr(model, kind))}
        getattr(copy, kind).sort(key=lambda v, order=order: order.get(v.name, len(order)))
    copy.check_bounds = model.check_bounds


def shallow(model: pm.Model, **changed: Any) -> pm.Model:
    """Return a copy that shares all variables with a model, for reading only."""
    copy = object.__new__(type(model))
    copy.__dict__.update(state_of(model), **changed)
    return copy


def state_of(model: pm.Model) -> dict[str, Any]:
    """Return the attributes of a model without the answers and the code that are kept with it."""
    return {name: value for name, value in vars(model).items() if name not in _KEPT}


def without_starts(model: pm.Model) -> pm.Model:
    """Return a model without `initval=`, with which PyMC refuses to make a graph of it.

    It shares all variables with the model, and must not be changed. The model itself stays as it
    is: another thread may read it.
    """
    return shallow(model, rvs_to_initial_values=dict.fromkeys(model.rvs_to_initial_values))


def set_starts(copy: pm.Model, model: pm.Model) -> None:
    """Set the `initval=` of a model on the free variables of a copy."""
    starts = {rv.name: start for rv, start in model.rvs_to_initial_values.items()}
    for rv in copy.free_RVs:
        copy.set_initval(rv, starts.get(rv.name))


def _counts(variable: Variable) -> bool:
    """Whether a variable holds whole numbers or truth values."""
    return np.dtype(getattr(variable.type, "dtype", "float64")).kind in "biu"


def _on_unknown_numbers(model: pm.Model) -> list[Variable]:
    """Return the priors of unknown numbers of records, and the values and noise of releases."""
    sizes = {rv: size for rv in model.free_RVs if (size := size_of(rv)) is not None}
    graphs = [graph for size in sizes.values() for graph in size.owner.inputs]
    for release in releases_of(model, {*sizes, *sizes.values()}):
        graphs += [model.rvs_to_values[release], *mechanism_of(release).parameters]
    return graphs
