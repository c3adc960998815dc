"""Whether two models are the same: a digest of everything that they say."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any

import numpy as np
import pymc as pm
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import toposort
from pytensor.tensor.random.type import RandomType

# An address in memory, in the name of a function.
_ADDRESS = re.compile(r"0x[0-9a-f]+")


def fingerprint(model: pm.Model) -> str:
    """Return a digest of a model: its variables, their laws, its data and its observed values.

    It is the same in every process, and does not depend on random generators.
    """
    digest = sha256()

    def say(*parts: Any) -> None:
        digest.update(_ADDRESS.sub("", repr(parts)).encode())

    named = [*model.free_RVs, *model.observed_RVs, *model.deterministics, *model.potentials]
    for variable in named:
        transform = model.rvs_to_transforms.get(variable)
        say(variable.name, model.named_vars_to_dims.get(variable.name), type(transform).__name__)
    say({k: None if v is None else list(v) for k, v in model.coords.items()})
    values = [model.rvs_to_values[rv] for rv in model.observed_RVs]
    _graph([*named, *values], say)
    return digest.hexdigest()[:16]


def _graph(outputs: list[Variable], say) -> None:
    number: dict[Variable, int] = {}

    def place(variable: Variable) -> int:
        if variable not in number:
            number[variable] = len(number)
            if isinstance(variable.type, RandomType):
                say("generator")
            elif isinstance(variable, Constant):
                say("constant", _value(variable.data))
            elif isinstance(variable, SharedVariable):
                say("data", variable.name, _value(variable.get_value(borrow=True)))
            elif variable.owner is None:
                say("input", str(variable.type))
        return number[variable]

    for node in toposort(outputs):
        inner = getattr(node.op, "fgraph", None)
        mechanism = getattr(node.op, "mechanism", None)
        say(type(node.op).__name__, str(node.op) if inner is None else "", type(mechanism).__name__)
        say(getattr(node.op, "bounds", None), [place(v) for v in node.inputs])
        if inner is not None:
            _graph(list(inner.outputs), say)
        for variable in node.outputs:
            number[variable] = len(number)
    say([place(v) for v in outputs])


def _value(value: Any) -> tuple:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        return (type(value).__name__,)
    if array.dtype == object:
        return (type(value).__name__, str(value))
    return str(array.dtype), array.shape, sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
