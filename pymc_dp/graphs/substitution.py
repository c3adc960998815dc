"""Variables replaced in a graph, graphs simplified, and graphs compared."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cache

from pytensor.compile import optdb
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.graph.traversal import toposort
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.values import nearest_rvs


def computation(graph: Variable, variable: Variable) -> Hashable:
    """Return a key that two graphs share if they compute the same from a variable."""
    numbers: dict[Variable, Hashable] = {variable: 0}

    def known(operand: Variable) -> Hashable:
        identity = operand.signature() if isinstance(operand, Constant) else operand
        return numbers.setdefault(operand, (operand.type, identity))

    steps = []
    for node in toposort([graph], blockers=[variable]):
        steps.append((node.op, *map(known, node.inputs)))
        numbers |= {output: (len(numbers), k) for k, output in enumerate(node.outputs)}
    return (*steps, known(graph))


def substitute(
    expression: TensorVariable, replace: dict[TensorVariable, TensorVariable]
) -> TensorVariable:
    """Replace variables of an expression; its other random variables stay those of the model.

    `clone_replace` would copy them: the model does not know the copies, and would draw them anew.
    """
    kept = {rv: rv for rv in nearest_rvs([expression])}
    return graph_replace(expression, kept | replace, strict=False)


@cache
def _simplifier() -> GraphRewriter:
    return optdb.query(RewriteDatabaseQuery(include=("ShapeOpt", "canonicalize")))


def simplified(graphs: Sequence[Variable]) -> list[Variable]:
    """Return copies of graphs that PyTensor has simplified, with shapes that are known."""
    copy = FunctionGraph(outputs=graphs, clone=True, copy_inputs=False)
    _simplifier().rewrite(copy)
    return copy.outputs
