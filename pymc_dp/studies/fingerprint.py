"""Whether two models are the same: a digest of variables, laws, data and functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import pymc as pm
from pymc.logprob.transforms import Transform
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import toposort
from pytensor.tensor.random.type import RandomType
from scipy.sparse import issparse

from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.reading.kept import content_digest


def without_addresses(text: str) -> str:
    """Drop memory addresses from a text."""
    return re.sub(r"0x[0-9a-f]+", "", text)


def fingerprint(model: pm.Model) -> str:
    """Return a digest of a model: its variables, their laws, its data and its observed values.

    It is the same in every process, and does not depend on random generators.
    """
    digest = sha256()

    def say(*parts: Any) -> None:
        digest.update(without_addresses(repr(parts)).encode())

    named = [*model.free_RVs, *model.observed_RVs, *model.deterministics, *model.potentials]
    for variable in named:
        say(variable.name, model.named_vars_to_dims.get(variable.name))
        _object(model.rvs_to_transforms.get(variable), say)
        _object(model.rvs_to_initial_values.get(variable), say)
    say({k: None if v is None else list(v) for k, v in model.coords.items()})
    values = [model.rvs_to_values[rv] for rv in model.observed_RVs]
    _graph([*named, *values], say)
    return digest.hexdigest()[:16]


def object_fingerprint(value: Any) -> str:
    """Return a digest of an object: the code of functions, all entries of arrays."""
    digest = sha256()

    def say(*parts: Any) -> None:
        digest.update(without_addresses(repr(parts)).encode())

    _object(value, say)
    return digest.hexdigest()[:16]


def study_fingerprint(
    model: pm.Model,
    cell: dict[str, Any],
    truth: Mapping[str, Any],
    simulate: Callable[..., Any] | None,
) -> str:
    """Return a digest of the model, the true values and the simulation of a cell.

    `simulate` counts by its result for one generator.
    """
    digest = sha256(fingerprint(model).encode())
    for name in sorted(truth):
        digest.update(repr((name, _value(truth[name]))).encode())
    if simulate is not None:
        try:
            returned = simulate(dict(cell), np.random.default_rng(0))
            parts = returned if isinstance(returned, Mapping) else {"": returned}
            said = [(name, _value(parts[name])) for name in sorted(parts)]
        except Exception as error:  # it will fail again, and be recorded
            said = [("", (type(error).__name__,))]
        digest.update(repr(said).encode())
    return digest.hexdigest()[:16]


# Types of attributes that distinguish two ops.
_TOLD = FunctionType | partial | np.ndarray | int | float | str | bytes | tuple | list | dict


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
        say(type(node.op).__name__, str(node.op) if inner is None else "")
        _object(getattr(node.op, "mechanism", None), say)
        say(getattr(node.op, "bounds", None), [place(v) for v in node.inputs])
        for owner in (vars(type(node.op)), vars(node.op)):
            for name, value in sorted(owner.items()):
                if isinstance(value, _TOLD) and not name.startswith("__"):
                    say(name)
                    _object(value, say)
        if inner is not None:
            _graph(list(inner.outputs), say)
        for variable in node.outputs:
            number[variable] = len(number)
    say([place(v) for v in outputs])


def _object(value: Any, say, depth: int = 4) -> None:
    """Put a function's code, or an object's contents, into the digest, without addresses."""
    say(type(value).__name__)
    if isinstance(value, partial):
        say(_value(np.asarray(value.args, dtype=object)), sorted(value.keywords))
        _object(value.func, say, depth - 1)
    elif isinstance(value, FunctionType):
        _code(value.__code__, say)
        held = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        for cell in value.__closure__ or ():
            try:
                held.append(cell.cell_contents)
            except ValueError:  # not assigned yet
                continue
        for item in held if depth > 0 else ():
            _object(item, say, depth - 1)
    elif isinstance(value, Mapping) and depth > 0:
        for name in sorted(value, key=str):
            say(name)
            _object(value[name], say, depth - 1)
    elif isinstance(value, tuple | list) and depth > 0:
        for item in value:
            _object(item, say, depth - 1)
    elif isinstance(value, int | float | str | bytes | np.ndarray | None):
        say(_value(value))
    elif isinstance(value, Transform | Mechanism) and depth > 0:
        for name, item in sorted(vars(value).items()):
            say(name)
            _object(item, say, depth - 1)


def _code(code: CodeType, say) -> None:
    say(code.co_code, code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _code(constant, say)
        else:
            say(constant if not isinstance(constant, frozenset) else sorted(map(repr, constant)))


def _value(value: Any) -> tuple:
    try:
        digest = content_digest(value if issparse(value) else np.asarray(value))
    except (TypeError, ValueError):
        return (type(value).__name__,)
    return digest or (type(value).__name__, str(value))
