"""What routes give to `pm.sample`: starting values, and which variables to keep."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pymc_dp.graphs.questions import known_shape
from pymc_dp.reading.groups import looked_up
from pymc_dp.reading.model import children, is_tagged, privatized, releases

_log = logging.getLogger("pymc.dp")


def initial_values(start, initvals, gone=()):
    """Put initial values by name, for all chains or for each, over those that are ours.

    Those of variables that are `gone` from the model are left out.
    """
    if initvals is None or isinstance(initvals, Mapping):
        own = {getattr(rv, "name", rv): value for rv, value in (initvals or {}).items()}
        return {name: value for name, value in {**start, **own}.items() if name not in gone}
    return [initial_values(start, of_chain, gone) for of_chain in initvals]


def public(reading):
    """Names of all variables but vectors of records, where there are others; says which are not."""
    model = reading.model
    hidden = [rv for rv in model.free_RVs if is_tagged(rv)]
    hidden += [
        rv
        for rv in privatized(reading)
        if rv not in (*hidden, *looked_up(reading))
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
    """Return the number of columns of a record: the more, the slower are its steps."""
    return sum(known_shape(rv)[1] or 1 if rv.type.ndim == 2 else 1 for rv in block.records)
