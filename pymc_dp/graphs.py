"""Questions about a graph: what it is computed from, and in what way."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.abstract import MeasurableOp
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import walk
from pytensor.scalar import basic as ps
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_dp.mechanisms.base import known_value

# Evaluates scalars while a model is being read: nothing worth compiling.
PLAIN_MODE = Mode(linker="py", optimizer=None)


def is_random(variable: Variable) -> bool:
    """Whether a variable is the direct output of a random variable's op."""
    return variable.owner is not None and isinstance(
        variable.owner.op, RandomVariable | MeasurableOp
    )


def nearest_rvs(expressions: Sequence[Variable]) -> list[Variable]:
    """Return the random variables that the expressions are computed from, not looking past them."""

    def expand(variable):
        if is_random(variable) or variable.owner is None:
            return None
        return variable.owner.inputs

    found = [v for v in walk(expressions, expand, bfs=False) if is_random(v)]
    return list(dict.fromkeys(found))


def depends_on(expression: Variable, variable: Variable) -> bool:
    """Whether `expression` is computed from `variable`, not looking past other RVs."""
    return variable in nearest_rvs([expression])


def is_linear(entry: TensorVariable, rv: TensorVariable) -> bool:
    """Decide linearity by the ops on the way: sums, and products and quotients with constants."""
    if entry is rv or not depends_on(entry, rv):
        return True
    node = entry.owner
    touched = [i for i in node.inputs if depends_on(i, rv)]
    if isinstance(node.op, DimShuffle):
        return is_linear(node.inputs[0], rv)
    if not isinstance(node.op, Elemwise) or not all(is_linear(i, rv) for i in touched):
        return False
    match node.op.scalar_op:
        case ps.Add() | ps.Sub() | ps.Neg() | ps.Identity() | ps.Cast():
            return True
        case ps.Mul():
            return len(touched) == 1
        case ps.TrueDiv():
            return touched == [node.inputs[0]]
    return False


def power_law(expression: TensorVariable, variable: TensorVariable) -> tuple[float, float] | None:
    """Return (c, k) with ``expression == c * variable**k``, c > 0; None if it is not such a power.

    k = inf stands for an exponential, ``log(expression)`` linear.
    """
    if nearest_rvs([expression]) != [variable]:
        return None
    k = power(expression, variable)
    if k is None:
        return None
    one = clone_replace(expression, {variable: pt.ones((), dtype=variable.dtype)})
    c = np.squeeze(one.eval(mode=PLAIN_MODE))
    return (float(c), k) if c.ndim == 0 and np.isfinite(c) and c > 0 else None


def power(expression: TensorVariable, variable: TensorVariable) -> float | None:
    """Return k where an expression is proportional to ``variable**k``, decided by its ops.

    Other variables may be part of the factor. None if it is no power, inf for an exponential.
    """
    if expression is variable:
        return 1.0
    if not depends_on(expression, variable):
        return 0.0
    node = expression.owner
    if isinstance(node.op, DimShuffle):
        return power(node.inputs[0], variable)
    if not isinstance(node.op, Elemwise):
        return None
    found = [power(i, variable) for i in node.inputs]
    exponents = [k for k in found if k is not None]
    if len(exponents) < len(found):
        return None
    match node.op.scalar_op:
        case ps.Cast() | ps.Identity():
            return exponents[0]
        case ps.Mul():
            return sum(exponents)
        case ps.TrueDiv():
            return None if math.inf in exponents else exponents[0] - exponents[1]
        case ps.Sqr():
            return 2 * exponents[0]
        case ps.Sqrt():
            return exponents[0] / 2
        case ps.Reciprocal():
            return -exponents[0]
        case ps.Pow() if exponents[1] == 0:
            exponent = known_value(node.inputs[1])
            return None if exponent is None else exponents[0] * float(np.squeeze(exponent))
        case ps.Exp() if exponents[0] == 1:
            return math.inf
    return None
