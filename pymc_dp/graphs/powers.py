"""Whether an expression is a power of a variable."""

from __future__ import annotations

import math

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.replace import clone_replace
from pytensor.scalar import basic as ps
from pytensor.tensor.basic import Join, MakeVector
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.linalg import MatrixInverse
from pytensor.tensor.math import Dot
from pytensor.tensor.subtensor import Subtensor
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.values import core_op, depends_on, keeps_values, known_value, nearest_rvs


def power_law(
    expression: TensorVariable, variable: TensorVariable, *, positive: bool = False
) -> tuple[float, float] | None:
    """Return (c, k) with ``expression == c * variable**k``, c > 0; None if it is not such a power.

    k = inf stands for an exponential, ``log(expression)`` linear. See `power` for `positive`.
    """
    if nearest_rvs([expression]) != [variable]:
        return None
    k = power(expression, variable, positive=positive)
    if k is None:
        return None
    unit = np.ones([1] * variable.type.ndim, variable.dtype)
    if any(length not in (None, 1) for length in variable.type.shape):
        return None
    at_one = known_value(clone_replace(expression, {variable: pt.constant(unit)}))
    c = np.squeeze(math.nan if at_one is None else at_one)
    return (float(c), k) if c.ndim == 0 and np.isfinite(c) and c > 0 else None


def power(
    expression: TensorVariable, variable: TensorVariable, *, positive: bool = False
) -> float | None:
    """Return k where an expression is proportional to ``variable**k``, decided by its ops.

    The factor may contain other variables. Returns None if the expression is no power, and inf if
    it is an exponential. If the variable is known to be `positive`, its absolute value and its
    sign, which ``pm.Normal(tau=)`` introduces, are powers too.
    """
    if expression is variable:
        return 1.0
    if not depends_on(expression, variable):
        return 0.0
    node = expression.owner
    whole = isinstance(node.op, DimShuffle) or keeps_values(node.op, node.inputs[0])
    if whole or (isinstance(node.op, Subtensor) and all(variable.type.broadcastable)):
        return power(node.inputs[0], variable, positive=positive)
    scalar_op = node.op.scalar_op if isinstance(node.op, Elemwise) else None
    if isinstance(scalar_op, ps.Exp):
        of_log = _power_of_exp(node.inputs[0], variable, positive=positive)
        if of_log is not None:
            return of_log
    powers = [power(i, variable, positive=positive) for i in node.inputs]
    exponents = [k for k in powers if k is not None]
    if len(exponents) < len(powers):
        return None
    match scalar_op or core_op(node.op):
        case Dot():
            return None if math.inf in exponents else sum(exponents)
        case MatrixInverse():
            return -exponents[0]
        case MakeVector() | Join():  # each entry may have its own factor
            [k, *rest] = {*exponents}
            return None if rest or k == math.inf else k
        case ps.Abs() if positive:
            return exponents[0]
        case ps.Sign() if positive:
            return 0.0
        case ps.Mul():
            other = any(k not in (0, math.inf) for k in exponents)
            return None if other and math.inf in exponents else sum(exponents)
        case ps.TrueDiv():
            return None if math.inf in exponents else exponents[0] - exponents[1]
        case ps.Sqr():
            return 2 * exponents[0]
        case ps.Sqrt():
            return exponents[0] / 2
        case ps.Reciprocal():
            return exponents[0] if exponents[0] == math.inf else -exponents[0]
        case ps.Pow() if exponents[1] == 0:
            exponent = known_value(node.inputs[1], fixed=True)
            if exponent is None or exponent.size != 1:
                return None
            k = float(exponent.item())
            return exponents[0] if exponents[0] == math.inf and k else exponents[0] * k
        case ps.Exp() if exponents[0] == 1:
            return math.inf
    return None


def _power_of_exp(
    logarithm: TensorVariable, variable: TensorVariable, *, positive: bool
) -> float | None:
    """Return `power` of the exponential of a sum of logarithms, None where it is none."""
    if not depends_on(logarithm, variable):
        return 0.0
    match getattr(getattr(logarithm.owner, "op", None), "scalar_op", None):
        case ps.Log() if positive:
            return power(logarithm.owner.inputs[0], variable, positive=positive)
        case ps.Add():
            terms = logarithm.owner.inputs
            powers = [_power_of_exp(x, variable, positive=positive) for x in terms]
            exponents = [k for k in powers if k is not None and k != math.inf]
            return sum(exponents) if len(exponents) == len(powers) else None
    return None
