"""Which collapse rules exist: by the law of the records and the rung."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pymc.logprob.transforms import Transform
from pytensor.graph.op import Op
from pytensor.tensor.variable import TensorVariable

from pymc_dp.records import PrivatizedRecords


@dataclass
class Change:
    """What a rung changes in a model, written in the model's own variables.

    Attributes
    ----------
    replaced : releases and what they become.
    added : new free variables by name, with their transforms.
    transforms : existing free variables that become others, with their transforms, in order.
    """

    replaced: dict[TensorVariable, TensorVariable] = field(default_factory=dict)
    added: dict[str, tuple[TensorVariable, Transform | None]] = field(default_factory=dict)
    transforms: dict[str, tuple[TensorVariable, Transform | None]] = field(default_factory=dict)


_RULES: dict[type[Op], dict[str, Callable]] = {}


def register_rungs(law: type[Op], **rules: Callable) -> None:
    """Register the rules ``(model, group) -> Change`` of a record law by the rung's name."""
    _RULES[law] = rules


def rungs(group: PrivatizedRecords) -> dict[str, Callable]:
    """Return the rules for some records; the error names the laws that have any."""
    law = type(group.rv.owner.op)
    if law not in _RULES:
        known = ", ".join(op.__name__.removesuffix("RV") for op in _RULES)
        raise NotImplementedError(
            f"the records {group.name!r} follow {group.rv.owner.op}: there are collapse rules for "
            f"{known} records"
        )
    return _RULES[law]
