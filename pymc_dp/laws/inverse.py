"""Where an elementwise function of one number has a value: its inverse, branch by branch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytensor
import pytensor.scalar as ps
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.substitution import simplified

COMPARISONS = (ps.LT, ps.LE, ps.GT, ps.GE, ps.EQ, ps.NEQ)
STEPS = (ps.Floor, ps.Ceil, ps.RoundHalfToEven, ps.RoundHalfAwayFromZero, ps.Trunc, ps.Sign)
"""Functions that jump, beside comparisons."""


def solved(expression: Variable, x: Variable, level: TensorVariable) -> list[TensorVariable]:
    """Solve ``expression = level`` for x; points beyond those where they are equal do no harm.

    Of a function that is constant in pieces they are the ends of the piece.

    Raises
    ------
    Declined
        If x stands in more than one place, or in a function whose inverse is not known.
    """
    if expression is x:
        return [level.squeeze().astype("float64")]
    node = expression.owner
    if isinstance(node.op, DimShuffle):
        return solved(node.inputs[0], x, level)
    op = node.op.scalar_op
    touched = [k for k, i in enumerate(node.inputs) if x in ancestors([i])]
    if isinstance(op, ps.Switch):
        return [root for k in touched for root in solved(node.inputs[k], x, level)]
    if len(touched) == 1:
        [k] = touched
        operands = [i for j, i in enumerate(node.inputs) if j != k]
        inverse = _inverse(op, k, operands)
        if inverse is not None:
            return [root for value in inverse(level) for root in solved(node.inputs[k], x, value)]
    if isinstance(op, ps.TrueDiv) and touched == [0, 1]:
        above, below = node.inputs
        return _polynomial_roots(above - level * below, x, op)
    if x.type.ndim == 0:
        return _polynomial_roots(expression - level, x, op)
    raise _unsolved(op)


def _unsolved(op) -> Declined:
    return Declined(
        f"`{getattr(op, 'name', None) or type(op).__name__.lower()}` cannot be solved for its "
        f"argument: write a polynomial of degree two, or a function in which it stands once, such "
        f"as exp(x) or clip",
        near=1,
    )


def _polynomial_roots(f: TensorVariable, x: Variable, op) -> list[TensorVariable]:
    """Return the roots of a polynomial of degree one or two."""
    try:
        [slope] = simplified([pytensor.grad(f, x)])
        [bend] = simplified([pytensor.grad(slope, x, disconnected_inputs="ignore")])
    except (NotImplementedError, ValueError):
        bend = x
    if x in ancestors([bend]) or jumps(f):
        raise _unsolved(op)
    b, c = graph_replace([slope, f], {x: pt.zeros((), dtype=x.type.dtype)}, strict=False)
    q = -0.5 * (b + pt.switch(b < 0, -1.0, 1.0) * pt.sqrt(b**2 - 2.0 * bend * c))
    return [2.0 * q / bend, c / q]


def _inverse(op, k: int, operands: Sequence[Variable]) -> Callable | None:
    """Return the inverse of an operation in argument k, as a function to a list of values."""
    match op:
        case ps.Add():
            return lambda c: [c - sum(operands)]
        case ps.Sub():
            return (lambda c: [c + operands[0]]) if k == 0 else lambda c: [operands[0] - c]
        case ps.Neg():
            return lambda c: [-c]
        case ps.Mul():
            return lambda c: [c / pt.prod(pt.stack([o.squeeze() for o in operands]))]
        case ps.TrueDiv():
            return (lambda c: [c * operands[0]]) if k == 0 else lambda c: [operands[0] / c]
        case ps.Reciprocal():
            return lambda c: [1.0 / c]
        case ps.Sqr():
            return lambda c: [pt.sqrt(c), -pt.sqrt(c)]
        case ps.Pow() if k == 0:
            # The root of the wrong parity is a point too many.
            return lambda c: [s * pt.abs(c) ** (1.0 / operands[0].squeeze()) for s in (1, -1)]
        case ps.Abs():
            return lambda c: [c, -c]
        case ps.Floor():
            return lambda c: [c, c + 1.0]
        case ps.Ceil():
            return lambda c: [c - 1.0, c]
        case ps.RoundHalfToEven() | ps.RoundHalfAwayFromZero():
            return lambda c: [c - 0.5, c + 0.5]
        case ps.IntDiv() if k == 0:
            return lambda c: [c * operands[0], (c + 1.0) * operands[0]]
        case ps.Trunc():
            return lambda c: [c - 1.0, c + 1.0]
        case ps.Sign():
            return lambda c: [pt.zeros_like(c)]
        case ps.Cast() | ps.Identity() | ps.Clip() | ps.Maximum() | ps.Minimum():
            return lambda c: [c]
        case _ if isinstance(op, COMPARISONS):
            return lambda c: [operands[0] + pt.zeros_like(c)]
        case _ if type(op) in _INVERSES:
            return lambda c: [_INVERSES[type(op)](c)]
    return None


_INVERSES = {
    ps.Exp: pt.log,
    ps.Expm1: pt.log1p,
    ps.Log: pt.exp,
    ps.Log1p: pt.expm1,
    ps.Log2: lambda c: 2.0**c,
    ps.Log10: lambda c: 10.0**c,
    ps.Exp2: pt.log2,
    ps.Sigmoid: lambda c: pt.log(c) - pt.log1p(-c),
    ps.Softplus: lambda c: pt.log(pt.expm1(c)),
    ps.Sqrt: pt.sqr,
    ps.Tanh: pt.arctanh,
}


def jumps(graph: Variable) -> bool:
    """Whether a function may jump."""
    nodes = (v.owner for v in ancestors([graph]) if v.owner is not None)
    ops = (getattr(node.op, "scalar_op", None) for node in nodes)
    return any(isinstance(op, (*STEPS, *COMPARISONS, ps.IntDiv, ps.Mod, ps.Switch)) for op in ops)


def bending(graph: Variable, x: Variable) -> list[TensorVariable]:
    """Return where an elementwise function of x bends or jumps between numbers that it meets."""
    points: list[TensorVariable] = []
    for node in {v.owner: None for v in ancestors([graph]) if v.owner is not None}:
        op = getattr(node.op, "scalar_op", None)
        touched = [i for i in node.inputs if x in ancestors([i])]
        if isinstance(op, ps.Abs | ps.Sign) and touched:
            points += solved(node.inputs[0], x, pt.zeros(()))
        elif isinstance(op, (ps.Clip, ps.Maximum, ps.Minimum, *COMPARISONS)) and len(touched) == 1:
            ends = [i for i in node.inputs if i is not touched[0]]
            points += [root for end in ends for root in solved(touched[0], x, end)]
    return points


def edges(graph: Variable, x: Variable) -> list[TensorVariable]:
    """Return, as functions of x, the ends of the cell around x between which steps are constant."""
    points: list[TensorVariable] = []
    for node in {v.owner: None for v in ancestors([graph]) if v.owner is not None}:
        op = getattr(node.op, "scalar_op", None)
        steps = isinstance(op, (*STEPS, ps.IntDiv)) and not isinstance(op, ps.Sign)
        if not steps or x not in ancestors([node.inputs[0]]):
            continue
        [argument, *by] = node.inputs
        u = argument / by[0] if by else argument
        shift = 0.5 if isinstance(op, ps.RoundHalfToEven | ps.RoundHalfAwayFromZero) else 0.0
        below, level = pt.floor(u - shift) + shift, pt.scalar(dtype="float64")
        for root in solved(u, x, level):
            points += [graph_replace(root, {level: below + k}, strict=False) for k in (0.0, 1.0)]
    return points
