"""Which priors and children are conjugate, and the helpers with which families say so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.op import Op
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.powers import power
from pymc_dp.graphs.registry import Registry
from pymc_dp.graphs.substitution import substitute
from pymc_dp.graphs.values import depends_on, known_value, nearest_rvs
from pymc_dp.kernels import jit
from pymc_dp.mechanisms.arguments import as_float
from pymc_dp.mechanisms.release import FeasibleMoments


@dataclass(frozen=True)
class Contribution:
    """What a prior or child adds to the natural parameters of a parameter's conditional.

    Attributes
    ----------
    first, second : tensor_like
        Terms of the two natural parameters of the family.
    lower, upper : tensor_like, optional
        A range that it imposes on the parameter.
    """

    first: TensorVariable | float = 0.0
    second: TensorVariable | float = 0.0
    lower: TensorVariable | float | None = None
    upper: TensorVariable | float | None = None


FAMILIES: Registry[str, Callable] = Registry()
"""The compiled draw of a family: ``(rng, [*first, second, lower, upper])`` to a vector."""
PRIORS: Registry[tuple[str, type[Op]], Callable] = Registry()
"""The contribution of a prior's op to a family: a function of the prior's RV.

A prior may belong to several families; its children decide which of them is taken.
"""
CHILDREN: Registry[tuple[str, type[Op]], Callable] = Registry()
"""The contribution to a family of a child's op: of (parameter RV, child, child's value).

It is declined where the child depends on the parameter in another way.
"""


def find_families(op: Op) -> dict[str, Callable]:
    """Return the families of a prior with their contributions; empty for an unknown prior."""
    return {family: prior for (family, kind), prior in PRIORS.items() if kind is type(op)}


# --- What the families ask about a child ----------------------------------------------------------


def parameters(rv: TensorVariable) -> list[TensorVariable]:
    """Parameters of a variable's law; as they stand, powers of small integers would overflow."""
    return [as_float(p) for p in rv.owner.op.dist_params(rv.owner)]


def require_free(expression: TensorVariable, rv, child, role: str) -> None:
    """Refuse a child if another parameter of its law depends on the variable, too."""
    if depends_on(expression, rv):
        raise Declined(f"the {role} of {child.name!r} depends on it")


def require_itself(expression: TensorVariable, rv, child, role: str) -> None:
    """Refuse a child whose parameter is not the variable itself, repeated perhaps."""
    while expression is not rv and isinstance(getattr(expression.owner, "op", None), DimShuffle):
        expression = expression.owner.inputs[0]
    if expression is not rv:
        raise Declined(f"the {role} of {child.name!r} is not it, but a function of it")


def proportional_to(k: int) -> str:
    """Write the k-th power of a parameter for an error message."""
    return "it" if k == 1 else f"it**{k}"


def power_factor(expression: TensorVariable, rv, k: int, child, role: str) -> TensorVariable:
    """Return c where ``expression == c * rv**k``, c free of the positive parameter rv."""
    if power(expression, rv, positive=True) != k:
        raise Declined(f"the {role} of {child.name!r} is not proportional to {proportional_to(k)}")
    return at_value(expression, rv, 1.0)


def at_value(expression: TensorVariable, rv: TensorVariable, x: float) -> TensorVariable:
    """Return an expression with the parameter set to a number."""
    return substitute(expression, {rv: pt.constant(x, dtype=rv.dtype)})


def total(term: TensorVariable, value: TensorVariable) -> TensorVariable:
    """Sum a term over the entries of a value that it broadcasts against."""
    if all(term.type.broadcastable):
        return term.squeeze() * value.size
    return (term * pt.ones_like(value)).sum()


def constant_or_none(expression: TensorVariable) -> float | None:
    """Return the number that a scalar always is; None for a pm.Data, which can change."""
    value = known_value(expression, fixed=True)
    if value is None or not value.size or np.any(value != value.flat[0]):
        return None
    return float(value.flat[0])


def uniform_bounds(rv: TensorVariable) -> list[TensorVariable]:
    """Return the ends of a uniform prior."""
    bounds = parameters(rv)
    if nearest_rvs(bounds):  # its transform would depend on them
        raise Declined("the bounds of its prior are random")
    return bounds


def bounded_moments(
    rv: TensorVariable, child: TensorVariable
) -> tuple[FeasibleMoments, tuple[float, float]]:
    """Return the moments that a release ties to publicly known bounds, and the bounds."""
    op = child.owner.op
    _, statistic, moments = op.split(child.owner.inputs)
    if moments is None or depends_on(statistic, rv):
        raise Declined(f"the release {child.name!r} depends on it directly")
    if not isinstance(moments, FeasibleMoments):
        raise Declined(f"the bounds of {child.name!r} are those of a regression")
    return moments, op.bounds


# --- What the draws need --------------------------------------------------------------------------


@jit
def inside(x, lower, upper):
    """Keep a draw off the ends of its range, to which it may have been rounded.

    The transforms of the variables map the ends to infinity.
    """
    return min(max(x, np.nextafter(lower, upper)), np.nextafter(upper, lower))
