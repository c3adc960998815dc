"""Arguments of `pm.sample` that routes complete: starting values, and the variables to keep."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.util import is_transformed_name
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.shapes import known_shape
from pymc_dp.graphs.values import known_value, nearest_rvs
from pymc_dp.reading.model import children, privatized, releases
from pymc_dp.reading.records import looked_up
from pymc_dp.reading.tags import is_tagged
from pymc_dp.step_methods.registry import exact_draw

_log = logging.getLogger("pymc.dp")


def initial_values(start, initvals, gone=()):
    """Merge the user's `initvals`, one mapping or one a chain, over those of `start`, by name.

    Variables in `gone`, which the rung has integrated out, are left out.
    """
    if initvals is None or isinstance(initvals, Mapping):
        by_name = {getattr(rv, "name", rv): value for rv, value in (initvals or {}).items()}
        return {name: value for name, value in {**start, **by_name}.items() if name not in gone}
    return [initial_values(start, chain_initvals, gone) for chain_initvals in initvals]


def check_initial_values(model: pm.Model, initvals) -> None:
    """Refuse starting values that name no variable, have another shape or lie outside the support.

    Raises
    ------
    ValueError
        Naming the variable, and what to write.
    """
    values = [value.name for value in model.rvs_to_values.values()]
    for chain_initvals in (
        [initvals] if initvals is None or isinstance(initvals, Mapping) else initvals
    ):
        for key, value in (chain_initvals or {}).items():
            name = getattr(key, "name", key)
            rv = next((rv for rv in model.free_RVs if rv.name == name), None)
            if rv is None and is_transformed_name(name) and name in values:
                continue  # PyMC takes values of transformed variables, too
            if rv is None:
                names = ", ".join(repr(rv.name) for rv in model.free_RVs)
                raise ValueError(
                    f"initvals={{{name!r}: ...}}: the model has no free variable {name!r}, it has "
                    f"{names}"
                )
            if isinstance(value, str) and value not in ("support_point", "prior"):
                raise ValueError(
                    f"initvals={{{name!r}: {value!r}}}: write numbers, 'support_point' or 'prior'"
                )
            if value is not None and not isinstance(value, str | Variable):
                _check_numbers(model, rv, np.asarray(value))


def _check_numbers(model: pm.Model, rv: TensorVariable, value: np.ndarray) -> None:
    argument, shape = f"initvals={{{rv.name!r}: ...}}", known_shape(rv)
    if value.dtype.kind not in "biuf" or np.isnan(value).any():
        raise ValueError(f"{argument} is not all numbers: {value}")
    fits = value.ndim == len(shape) and all(
        n in (None, m) for n, m in zip(shape, value.shape, strict=True)
    )
    if not fits:
        raise ValueError(f"{argument} has the shape {value.shape}, and {rv.name!r} has {shape}")
    transform = model.rvs_to_transforms[rv]
    if transform is None or nearest_rvs(rv.owner.inputs):  # the ends of the support are random
        return
    with np.errstate(all="ignore"):
        moved = known_value(
            transform.forward(pt.constant(value.astype(rv.dtype)), *rv.owner.inputs)
        )
    if moved is not None and not np.isfinite(moved).all():
        raise ValueError(f"{argument} is outside of what {rv.name!r} can be: {value}")


def public(reading):
    """Return the names of all variables but vectors of records; log those that are left out.

    If the model has records only, all are returned.
    """
    model = reading.model
    hidden = [rv for rv in model.free_RVs if is_tagged(rv)]
    hidden += [
        rv
        for rv in privatized(reading)
        if rv not in (*hidden, *looked_up(reading))
        and exact_draw(reading, rv) is None
        and set(children(reading, rv)) <= set(releases(model))
    ]
    public = [rv.name for rv in model.unobserved_RVs if rv not in hidden]
    if not public:
        return [rv.name for rv in model.unobserved_RVs]
    if hidden:
        names = ", ".join(repr(rv.name) for rv in hidden)
        _log.info("Left out of the result, unless var_names= names them: %s", names)
    return public


def width(block) -> int:
    """Return the number of columns of a record; steps of wide records mix slowly."""
    return sum(known_shape(rv)[1] or 1 if rv.type.ndim == 2 else 1 for rv in block.records)
