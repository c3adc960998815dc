"""Which laws of records can be inverted: those whose density quadrature finds whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.distributions.distribution import SymbolicRandomVariable
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.questions import PLAIN_MODE, nearest_rvs
from pymc_dp.laws import is_registered, law_names
from pymc_dp.laws.inversion.quadrature import detail, law_of_sum, support
from pymc_dp.laws.inversion.summand import Summand
from pymc_dp.reading.bounds import starting_values
from pymc_dp.reading.model import is_component

_PANELS = 24
_LARGEST_ERROR = 1e-8  # of the mass that is found of a density


@dataclass(frozen=True)
class SymbolicLaw:
    """The law of a `SymbolicRandomVariable`, to be called as a `RandomVariable` is."""

    op: SymbolicRandomVariable

    def __call__(self, *parameters, rng, size=None, return_next_rng=True):
        """Return the next generator and a draw."""
        drawn = self.op.rebuild_rv(*parameters, rng=rng, size=size)
        [following] = (v for v in drawn.owner.outputs if isinstance(v.type, RandomType))
        return following, drawn


def readable_law(rv: TensorVariable) -> Any:
    """Return the law of some records, which draws by ``law(*parameters, rng=rng, ...)``.

    A law that is not known to be smooth is looked at: with the parameters that the model starts at,
    quadrature has to find all of its mass. Where it does not at others, the kernels say so by NaN.

    Raises
    ------
    Declined
        Naming the records: they are discrete, vectors or mixtures, or their density has jumps,
        kinks or several modes that quadrature does not find.
    """
    op, name = rv.owner.op, rv.name
    follow = f"the records {name!r} follow {law_names([type(op)])}"
    if rv.dtype.startswith(("int", "uint", "bool")):
        raise Declined(
            f"the records {name!r} are discrete: their marginal is a finite sum, not an inverted "
            f"characteristic function",
            near=1,
        )
    if is_registered(detail, op):
        return op
    symbolic = isinstance(op, SymbolicRandomVariable)
    if not (isinstance(op, RandomVariable) or (symbolic and hasattr(op, "rv_op"))):
        raise Declined(
            f"{follow}, which is made of other laws: its density cannot be looked at", near=1
        )
    parameters = op.dist_params(rv.owner)
    components = [v for v in nearest_rvs(parameters) if is_component(v)]
    if op.ndim_supp or any(op.ndims_params) or components:
        raise Declined(
            f"{follow}, a law of vectors, or with vectors or variables for parameters", near=1
        )
    law = SymbolicLaw(op) if symbolic else op
    values = starting_values([pt.as_tensor(p).ravel()[0].astype("float64") for p in parameters])
    mass, slopes = _mass(law, values, str(name))
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
    return law


def _mass(law: Any, values: list[np.ndarray], name: str) -> tuple[float, list[np.ndarray]]:
    """Return the mass that quadrature finds of a density, and its derivatives."""
    own = [pt.scalar(dtype="float64") for _ in values]
    _, one = law(*own, rng=pt.random.shared_rng(seed=None), return_next_rng=True)
    support(one, name)
    record, zero = pt.vector("record", dtype="float64"), pt.zeros(())
    itself = Summand(record, record)
    try:
        log_weight, *_ = law_of_sum(one, 1.0, (_PANELS,), itself, zero, zero, zero + 1)
        mass = pt.exp(pt.logsumexp(log_weight))
        slopes = pt.grad(mass, own, disconnected_inputs="ignore")
        inputs = {"mode": PLAIN_MODE, "on_unused_input": "ignore"}
        with np.errstate(all="ignore"):
            found, *of_parameters = pytensor.function(own, [mass, *slopes], **inputs)(*values)
            return float(found), of_parameters
    except NotImplementedError:
        raise Declined(f"the law of the records {name!r} has no density in PyMC") from None
