"""Which laws of records can be inverted: those whose whole mass quadrature finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.replace import graph_replace
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.values import PLAIN_MODE, nearest_rvs
from pymc_dp.laws import is_registered, law_names
from pymc_dp.laws.mixture import MixtureLaw
from pymc_dp.laws.parts import Part, law_of_record, parts_of
from pymc_dp.laws.real_line import support
from pymc_dp.plugins.inversion.quadrature import detail, law_of_sum
from pymc_dp.plugins.inversion.summand import Summand
from pymc_dp.reading.bounds import starting_values
from pymc_dp.reading.model import is_component

_PANELS = 24
_LARGEST_ERROR = 1e-8  # of the mass that quadrature finds of a density


def readable_law(rv: TensorVariable, name: str | None = None) -> tuple[Any, list[TensorVariable]]:
    """Return the law of some records and its parameters, see `law_of_record`.

    A law that is not known to be smooth is checked: with the parameters that the model starts at,
    quadrature has to find all of its mass. With others, the kernels return NaN where it does not.

    Raises
    ------
    Declined
        Naming the records: they are vectors, or their density has jumps, kinks or
        several modes that quadrature does not find.
    """
    op, name = rv.owner.op, name or str(rv.name)
    follow = f"the records {name!r} follow {law_names([type(op)])}"
    if not rv.dtype.startswith("float"):
        if op.ndim_supp:
            raise Declined(f"{follow}, a law of vectors", near=1)
        return law_of_record(rv)  # see `lattice`
    if is_registered(detail, op):
        return op, list(op.dist_params(rv.owner))
    try:
        law, parameters = law_of_record(rv)
    except Declined:
        raise Declined(
            f"{follow}, which is made of other laws: its density cannot be looked at", near=1
        ) from None
    components = [v for v in nearest_rvs(parameters) if is_component(v)]
    if op.ndim_supp or (any(op.ndims_params) and not isinstance(law, MixtureLaw)) or components:
        raise Declined(
            f"{follow}, a law of vectors, or with vectors or variables for parameters", near=1
        )
    first = [p.ravel()[0].astype("float64") for p in map(pt.as_tensor, parameters)]
    scalars = [pt.constant(value) for value in starting_values(first)]
    parts = [part for part in parts_of(law, scalars) if not part.is_atom]
    if not parts:
        raise Declined(f"{follow}, of which no part is continuous", near=1)
    for part in parts:
        _look(part.law, follow, name)
    return law, parameters


def _look(law: TensorVariable, follow: str, name: str) -> None:
    """Decline a law, its parameters being numbers, whose whole mass quadrature does not find."""
    if not law.dtype.startswith("float"):
        raise Declined(f"{follow}, of which a part is discrete", near=1)
    support(law, name)
    if is_registered(detail, law.owner.op):
        return
    mass, slopes = _mass(law, name)
    if not np.all(np.isfinite(slopes)):
        raise Declined(
            f"{follow}, whose density has no derivative far out, where the model starts. Sample "
            f"with rung='records'",
            near=1,
        )
    if not abs(mass - 1.0) < _LARGEST_ERROR:
        raise Declined(
            f"{follow}, of whose density quadrature finds a mass of {mass:.9g} where the model "
            f"starts: it has jumps, kinks or modes that are not found. Sample with rung='records', "
            f"or bound the parameters by their priors",
            near=1,
        )


def _mass(law: TensorVariable, name: str) -> tuple[float, list[np.ndarray]]:
    """Return the mass that quadrature finds of a density, and its derivatives."""
    numbers = [v for v in law.owner.inputs if isinstance(v, pt.TensorConstant) and not v.type.ndim]
    variables = [v.type() for v in numbers]
    [one] = graph_replace([law], dict(zip(numbers, variables, strict=True)), strict=False)
    record, zero = pt.vector("record", dtype="float64"), pt.zeros(())
    itself = Summand(record, record)
    try:
        [(log_weight, *_)] = law_of_sum([Part(one)], 1.0, (_PANELS,), itself, zero, zero, zero + 1)
        mass = pt.exp(pt.logsumexp(log_weight))
        slopes = pt.grad(mass, variables, disconnected_inputs="ignore")
        inputs = {"mode": PLAIN_MODE, "on_unused_input": "ignore"}
        with np.errstate(all="ignore"):
            values = [v.data for v in numbers]
            total, *of_parameters = pytensor.function(variables, [mass, *slopes], **inputs)(*values)
            return float(total), of_parameters
    except NotImplementedError:
        raise Declined(f"the law of the records {name!r} has no density in PyMC") from None
