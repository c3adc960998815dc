"""Graphs read as polynomials: exact, by the ops that they are made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
from pytensor import scalar as ps
from pytensor.graph.basic import Variable
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.subtensor import Subtensor

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.values import depends_on, keeps_values, known_value
from pymc_dp.reading.sums.forms import refusal

type Coefficient = Any  # a number or a scalar graph
Monomial = tuple[int, ...]  # the numbers of its variables, in order
Polynomial = dict[Monomial, Coefficient]

_MOST_EXPONENT = 4


def constant(value: Coefficient) -> Polynomial:
    """Return a polynomial of degree 0."""
    return {(): value}


def added(a: Polynomial, b: Polynomial) -> Polynomial:
    """Return a sum, without terms that cancel exactly."""
    total = dict(a)
    for monomial, coefficient in b.items():
        total[monomial] = total[monomial] + coefficient if monomial in total else coefficient
    return {m: c for m, c in total.items() if not (isinstance(c, float) and c == 0.0)}


def multiplied(a: Polynomial, b: Polynomial) -> Polynomial:
    """Return a product."""
    total: Polynomial = {}
    for left, c in a.items():
        for right, d in b.items():
            total = added(total, {tuple(sorted((*left, *right))): c * d})
    return total


def degree(polynomial: Polynomial) -> int:
    """Return the highest number of factors of a term."""
    return max((len(monomial) for monomial in polynomial), default=0)


def is_linear(graph: Variable, rv: Variable) -> bool:
    """Whether a graph is linear in a variable, elementwise; terms are not assumed to cancel."""

    def leaf(variable: Variable) -> Polynomial | None:
        if variable is rv:
            return {(0,): math.nan}
        return None if depends_on(variable, rv) else constant(math.nan)

    try:
        return degree(read_polynomial(graph, leaf)) <= 1
    except Declined:
        return False


def read_polynomial(graph: Variable, leaf: Callable[[Variable], Polynomial | None]) -> Polynomial:
    """Read a graph as a polynomial, elementwise.

    Parameters
    ----------
    graph : Variable
        Scalar or tensor graph of elementwise ops.
    leaf : callable
        Returns a leaf as a polynomial; None for a variable whose inputs are to be read.

    Raises
    ------
    Declined
        Naming an op that no polynomial has.
    """
    memo: dict[Variable, Polynomial] = {}

    def read(variable: Variable) -> Polynomial:
        if variable not in memo:
            known = leaf(variable)
            memo[variable] = _node(variable) if known is None else known
        return memo[variable]

    def _node(variable: Variable) -> Polynomial:
        node = variable.owner
        if node is None:
            raise Declined(f"{variable} is no part of a polynomial")
        op = node.op.scalar_op if isinstance(node.op, Elemwise) else node.op
        match op:
            case DimShuffle():
                return read(node.inputs[0])
            case _ if keeps_values(op, node.inputs[0]):
                return read(node.inputs[0])
            case Subtensor() if all(node.inputs[0].type.broadcastable):  # its only entry
                return read(node.inputs[0])
            case ps.Second():
                return read(node.inputs[1])
            case ps.Add():
                return reduce(added, map(read, node.inputs))
            case ps.Sub():
                left, right = map(read, node.inputs)
                return added(left, multiplied(constant(-1.0), right))
            case ps.Neg():
                return multiplied(constant(-1.0), read(node.inputs[0]))
            case ps.Mul():
                return reduce(multiplied, map(read, node.inputs))
            case ps.TrueDiv():
                left, right = map(read, node.inputs)
                if set(right) == {()} and not (isinstance(right[()], float) and right[()] == 0.0):
                    return multiplied(left, constant(1.0 / right[()]))
            case ps.Sqr():
                return _power(node.inputs[0], 2)
            case ps.Pow():
                power = known_value(node.inputs[1], fixed=True)
                if power is not None and np.all(power == power.flat[0]):
                    k = float(power.flat[0])
                    if k in range(1, _MOST_EXPONENT + 1):
                        return _power(node.inputs[0], int(k))
        raise Declined(f"{refusal(node.op)} of the records and their products")

    def _power(variable: Variable, k: int) -> Polynomial:
        root = variable.owner
        if k == 2 and root is not None and isinstance(root.op, ps.Sqrt):
            return read(root.inputs[0])  # a variance from its standard deviation
        return reduce(multiplied, [read(variable)] * k)

    return read(graph)
