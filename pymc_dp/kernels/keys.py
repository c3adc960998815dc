"""Keys of compiled functions: hashes of all that their code depends on.

The key of a function is made of its bytecode and of the keys of all values that it reads: the
functions that it calls, and the numbers that it takes from its module or its closure. So an edit of
a kernel changes its own key and those of its callers, and no other.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from hashlib import sha256
from inspect import getfile
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
from numba.core import types

# Objects of these packages are identified by name; Numba checks its own version.
_BY_NAME = {"builtins", "ctypes", "llvmlite", "math", "numba", "numpy", "pymc", "pytensor", "scipy"}
_KNOWN: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
_IN_CIRCLES: WeakSet[Any] = WeakSet()
_OURS = "pymc_dp."
# Modules that compile: their functions are no part of a kernel, and are identified by their files.
_COMPILERS = {
    "pymc_dp.graphs.compiled",
    "pymc_dp.kernels",
    "pymc_dp.kernels.deferred",
    "pymc_dp.kernels.keys",
}


class _Unnamed(ValueError):
    """A function reads an object that has no name which another process would know."""


def key_of(value: Any) -> str | None:
    """Return the key of a function, of numbers, or of tuples of these; None for anything else."""
    try:
        return sha256(repr(_key(value, ())).encode()).hexdigest()
    except (ValueError, TypeError, OSError):  # an empty cell, a class without a file
        return None


def joined(*parts: Any) -> str | None:
    """Return one key of several keys and numbers; None if a part has none."""
    return None if None in parts else sha256(repr(parts).encode()).hexdigest()


def version_of(function: Any) -> int:
    """Return the key of a function as an integer, as PyTensor wants the version of an Op."""
    key = key_of(function)
    if key is None:
        raise ValueError(f"{function} has no key: it reads what other processes cannot know")
    return int(key, 16)


def _key(value: Any, callers: tuple[Any, ...]) -> Any:
    """Return a description that is the same for the same code in any process.

    `callers` are the functions whose keys are being made, outermost first.
    """
    if isinstance(value, bool | int | float | complex | str | bytes | None | type(...) | Enum):
        return repr(value)
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.hasobject:
            raise _Unnamed
        return value.dtype.str, np.shape(value), np.asarray(value).tobytes()
    if isinstance(value, set | frozenset):
        return "set", sorted(repr(_key(v, callers)) for v in value)
    if isinstance(value, tuple | list):
        return type(value).__name__, tuple(_key(v, callers) for v in value)
    if isinstance(value, dict):
        return tuple((repr(k), _key(v, callers)) for k, v in value.items())
    if isinstance(value, types.Type | np.dtype):
        return repr(value)
    if isinstance(value, CodeType):
        return _code(value), tuple(_key(c, callers) for c in value.co_consts)
    if isinstance(value, ModuleType):  # reading its attributes might import lazy submodules
        if not _is_known_package(value):
            raise _Unnamed
        return value.__name__
    options = _key(dict(sorted(getattr(value, "targetoptions", {}).items())), callers)
    options = options, getattr(value, "signature", None)  # only linked kernels have a signature
    if isinstance(value, functools._lru_cache_wrapper):
        value = value.__wrapped__
    # Unwrap a compiled function (py_func) or an intrinsic (_defn).
    function = getattr(value, "py_func", getattr(value, "_defn", value))
    if isinstance(function, FunctionType) and function.__module__ in _COMPILERS:
        return function.__qualname__, _content(getfile(function))
    if isinstance(function, FunctionType) and not _is_by_name(function):
        return options, _function(function, callers)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__qualname__, tuple(
            _key(getattr(value, f.name), callers) for f in fields(value)
        )
    if isinstance(value, type) and not _is_by_name(value):
        return value.__qualname__, _content(getfile(value))
    if isinstance(function, type | FunctionType | BuiltinFunctionType | np.ufunc):
        return getattr(function, "__module__", None), getattr(function, "__qualname__", repr(value))
    raise _Unnamed


def _is_by_name(value: Any) -> bool:
    return (getattr(value, "__module__", None) or "").partition(".")[0] in _BY_NAME


def _code(code: CodeType) -> tuple[Any, ...]:
    """Return the content of a code object without its line numbers."""
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    counts = code.co_argcount, code.co_kwonlyargcount, code.co_flags
    return code.co_name, code.co_code, code.co_exceptiontable, names, counts


@functools.cache
def _content(file: str) -> str:
    return sha256(Path(file).read_bytes()).hexdigest()


def _function(function: FunctionType, callers: tuple[Any, ...]) -> Any:
    if function in callers:  # a circle of calls
        _IN_CIRCLES.update(callers[callers.index(function) + 1 :])
        return function.__qualname__
    if function in _KNOWN:
        return _KNOWN[function]
    if function.__code__.co_filename.startswith("<"):  # typed in: no file has its text
        raise _Unnamed
    inside = (*callers, function)
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    read = [(name, _key(v, inside)) for name, v in _read(function.__code__, function.__globals__)]
    parts: tuple[Any, ...] = (
        function.__module__,
        function.__qualname__,
        _key(function.__code__, inside),
    )
    parts += _key((held, function.__defaults__, function.__kwdefaults__), inside), tuple(read)
    key = sha256(repr(parts).encode()).hexdigest()
    # Keys are kept for functions of this package only, since the values that a user's function
    # reads may change; and not in a circle of calls, where a key depends on the function asked for
    # first.
    if function.__module__.startswith(_OURS) and (not callers or function not in _IN_CIRCLES):
        _KNOWN[function] = key
    return key


def _read(code: CodeType, module: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the globals that a function may read, with attributes of modules, by name."""
    for name in code.co_names:
        if name in module:
            yield from _with_attributes(name, module[name], code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _read(constant, module)


def _with_attributes(name: str, value: Any, names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Yield a value; of a module of ours the attributes that may be read, as `module.value`."""
    if not isinstance(value, ModuleType) or _is_known_package(value):
        yield name, value
        return
    for other in names:
        if hasattr(value, other):
            yield from _with_attributes(f"{name}.{other}", getattr(value, other), names)


def _is_known_package(module: ModuleType) -> bool:
    return module.__name__.partition(".")[0] in _BY_NAME
