"""Questions about a graph: what it is computed from, and in what way."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.abstract import MeasurableOp
from pytensor.compile.mode import Mode
from pytensor.compile.ops import ViewOp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace, graph_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors, walk
from pytensor.scalar import basic as ps
from pytensor.tensor.basic import Join, MakeVector
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.linalg import MatrixInverse
from pytensor.tensor.math import Dot
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import Subtensor
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


def keeps_values(cast: ps.Cast, source: str) -> bool:
    """Whether a cast from the dtype `source` is to a float, or from whole numbers to as many.

    To other integers it rounds or wraps around, and to truth values it compares with zero.
    """
    target, given = np.dtype(cast.o_type.dtype), np.dtype(source)
    if target.kind == "f" or np.can_cast(given, target):
        return True
    return given.kind in "iu" and target.kind == "i" and target.itemsize >= 4


def is_itself(expression: TensorVariable, rv: TensorVariable) -> bool:
    """Whether an expression is a variable as it is, but for its dtype."""
    while expression is not rv:
        node = expression.owner
        if node is None:
            return False
        match getattr(node.op, "scalar_op", node.op):
            case ViewOp():
                pass
            case ps.Cast() as cast if keeps_values(cast, node.inputs[0].type.dtype):
                pass
            case _:
                return False
        [expression] = node.inputs
    return True


def entry_of(variable: TensorVariable) -> tuple[TensorVariable, tuple[int, ...]] | None:
    """Return the variable and the index of which a scalar is an entry; None if not known."""
    source = variable
    moved = DimShuffle | Subtensor | SpecifyShape | ViewOp  # dims= and Deterministic leave these
    while source.owner is not None and isinstance(source.owner.op, moved):
        source, *index = source.owner.inputs
        if not all(isinstance(i, Constant) for i in index):
            return None
    shape = [n for n in known_shape(source) if n is not None]
    if variable.type.ndim or len(shape) < source.type.ndim:
        return None
    numbered = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(source.dtype)
    place = graph_replace(variable, {source: pt.constant(numbered)}, strict=False)
    found = np.unravel_index(int(place.eval(mode=PLAIN_MODE)), shape) if shape else ()
    return source, tuple(int(k) for k in found)


def varies_with(expression: TensorVariable, rv: TensorVariable) -> bool:
    """Whether an expression depends on a variable, and on more of it than its shape."""
    blockers = nearest_rvs([expression])
    above = list(ancestors([expression], blockers=blockers))
    shapes = [v for v in above if v.owner is not None and isinstance(v.owner.op, Shape | Shape_i)]
    return rv in ancestors([expression], blockers=[*blockers, *shapes])


def substitute(
    expression: TensorVariable, replace: dict[TensorVariable, TensorVariable]
) -> TensorVariable:
    """Replace variables of an expression; its other random variables stay those of the model.

    `clone_replace` would copy these, and a model does not know the copies: they would be drawn.
    """
    kept = {rv: rv for rv in nearest_rvs([expression])}
    return graph_replace(expression, kept | replace, strict=False)


def known_shape(variable: TensorVariable) -> tuple[int | None, ...]:
    """Shape of a variable; where only `dims` or `pm.Data` give it, as they stand now."""
    if None not in variable.type.shape:
        return variable.type.shape
    shape = rewrite_graph(variable.shape, include=("ShapeOpt", "canonicalize"))
    above = list(ancestors([shape]))
    computable = all(isinstance(v, Constant | SharedVariable) for v in above if v.owner is None)
    if not computable or any(is_random(v) for v in above):
        return variable.type.shape
    return tuple(int(length) for length in shape.eval(mode=PLAIN_MODE))


def is_linear(entry: TensorVariable, rv: TensorVariable) -> bool:
    """Decide linearity by the ops on the way: sums, and products and quotients with constants."""
    if entry is rv or not depends_on(entry, rv):
        return True
    node = entry.owner
    touched = [i for i in node.inputs if depends_on(i, rv)]
    if isinstance(node.op, DimShuffle | ViewOp):
        return is_linear(node.inputs[0], rv)
    if not isinstance(node.op, Elemwise) or not all(is_linear(i, rv) for i in touched):
        return False
    match node.op.scalar_op:
        case ps.Add() | ps.Sub() | ps.Neg() | ps.Identity():
            return True
        case ps.Cast() as cast:
            return keeps_values(cast, node.inputs[0].type.dtype)
        case ps.Mul():
            return len(touched) == 1
        case ps.TrueDiv():
            return touched == [node.inputs[0]]
    return False


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
    one = clone_replace(expression, {variable: pt.constant(unit)})
    c = np.squeeze(one.eval(mode=PLAIN_MODE))
    return (float(c), k) if c.ndim == 0 and np.isfinite(c) and c > 0 else None


def power(
    expression: TensorVariable, variable: TensorVariable, *, positive: bool = False
) -> float | None:
    """Return k where an expression is proportional to ``variable**k``, decided by its ops.

    Other variables may be part of the factor. None if it is no power, inf for an exponential.
    Absolute values and signs, which ``pm.Normal(tau=)`` takes, are powers of a variable that is
    known to be `positive`.
    """
    if expression is variable:
        return 1.0
    if not depends_on(expression, variable):
        return 0.0
    node = expression.owner
    whole = isinstance(node.op, DimShuffle | ViewOp | SpecifyShape)
    if whole or (isinstance(node.op, Subtensor) and all(variable.type.broadcastable)):
        return power(node.inputs[0], variable, positive=positive)
    if isinstance(getattr(node.op, "core_op", node.op), Dot):
        both = [power(i, variable, positive=positive) for i in node.inputs]
        return None if None in both or math.inf in both else sum(k for k in both if k is not None)
    if isinstance(getattr(node.op, "core_op", node.op), MatrixInverse):
        k = power(node.inputs[0], variable, positive=positive)
        return None if k is None else -k
    if isinstance(node.op, MakeVector | Join):  # of entries with factors of their own
        [k, *others] = {power(i, variable, positive=positive) for i in node.inputs}
        return None if others or k == math.inf else k
    if not isinstance(node.op, Elemwise):
        return None
    found = [power(i, variable, positive=positive) for i in node.inputs]
    exponents = [k for k in found if k is not None]
    if len(exponents) < len(found):
        return None
    match node.op.scalar_op:
        case ps.Cast() | ps.Identity():
            return exponents[0]
        case ps.Abs() if positive:
            return exponents[0]
        case ps.Sign() if positive:
            return 0.0
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
