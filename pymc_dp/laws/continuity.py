"""Whether the law of a variable is continuous, read off its graph."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pytensor import scalar as ps
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

_WITH_ATOMS = (
    ps.Clip, ps.Maximum, ps.Minimum, ps.Floor, ps.Ceil, ps.Trunc,
    ps.RoundHalfToEven, ps.RoundHalfAwayFromZero,
)  # fmt: skip


def is_continuous(rv: TensorVariable) -> bool:
    """Whether no single value of a variable has positive probability, as its op shows."""
    graphs = getattr(rv.owner.op, "inner_outputs", ())
    return rv.dtype.startswith("float") and not has_atoms(graphs)


def has_atoms(graphs: Sequence[Variable], blockers: Collection[Variable] = ()) -> bool:
    """Whether graphs of continuous inputs may take single values with positive probability."""
    for node in {v.owner for v in ancestors(graphs, blockers=blockers) if v not in blockers}:
        match node and node.op:
            case None:
                atomic = False
            case Elemwise():
                atomic = isinstance(node.op.scalar_op, _WITH_ATOMS)
            case RandomVariable():
                atomic = not node.outputs[-1].dtype.startswith("float")
            case op:
                atomic = has_atoms(getattr(op, "inner_outputs", ()))
        if atomic:
            return True
    return False
