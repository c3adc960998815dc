"""Compiling graphs to functions that other compiled code can call, kept on disk by PyTensor."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from hashlib import sha256
from math import nan
from textwrap import indent
from typing import Any, NamedTuple

import pytensor
from numba import carray, cfunc
from numba.core.event import Listener, install_listener
from pytensor import scalar as ps
from pytensor.compile.io import In
from pytensor.compile.mode import Mode, get_mode
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import graph_inputs
from pytensor.link.numba.cache import compile_numba_function_src
from pytensor.link.numba.dispatch.basic import numba_funcify_and_cache_key, numba_njit
from pytensor.link.numba.linker import NumbaLinker
from pytensor.tensor.random.type import RandomType

from pymc_dp.kernels import version_of
from pymc_dp.kernels.pointers import SIGNATURE

_log = logging.getLogger("pymc.dp")

# Numba keeps no code on disk that holds more bytes of data than this.
_LARGE = 1_000_000


# See `kernels.pointers` for what becomes of errors.
_FILL = """
filled = carray(out, length)
try:
    number, vector = inner(carray(x, size))
    filled[:] = vector
    return number.item()
except Exception:
    filled[:] = nan
    return nan
"""


class _Said(Listener):
    """Says once that something is compiled, which is not so where it is loaded from disk."""

    said = False

    def on_start(self, event):
        if not self.said:
            self.said = True
            _log.info("Compiling, which takes some seconds")

    def on_end(self, event):
        pass


def said_when_compiling(*, quiet: bool) -> AbstractContextManager:
    """Say that Numba compiles as soon as it does, so that the wait is no riddle."""
    return nullcontext() if quiet else install_listener("numba:compile", _Said())


class Piece(NamedTuple):
    """A compiled function, with the key of its code (None if it cannot be kept)."""

    function: Any
    key: str | None


def from_source(name: str, arguments: str, body: str, **names: Piece | Any) -> Piece:
    """Compile ``def name(arguments): return body``, where `names` are pieces or plain values."""
    plain, key = _function(name, arguments, f"return {body}", **names)
    return Piece(numba_njit(plain, cache=key is not None, final_function=True, nogil=True), key)


def _function(name: str, arguments: str, body: str, **names: Piece | Any) -> tuple[Any, str | None]:
    """Return a function that is to be compiled, and its key."""
    source = f"def {name}({arguments}):\n" + indent(body, "    ")
    keys = [value.key if isinstance(value, Piece) else repr(value) for value in names.values()]
    key = None
    if None not in keys:
        key = sha256(repr((source, keys, version_of(__file__))).encode()).hexdigest()
    env = globals() | {k: v.function if isinstance(v, Piece) else v for k, v in names.items()}
    return compile_numba_function_src(source, name, global_env=env, cache_key=key), key


class _Linker(NumbaLinker):
    """Keeps what it makes of a graph: making it once more takes as long as all else."""

    def fgraph_convert(self, fgraph, **kwargs):
        self.made = super().fgraph_convert(fgraph, **kwargs)
        return self.made


def from_graph(inputs: Sequence[Variable], outputs: Sequence[Variable], rng: bool = False) -> Piece:
    """Compile ``f(*inputs) -> tuple of outputs``, or ``f(rng, *inputs)``.

    All the random variables in the outputs draw from the one generator.
    """
    shared = [v for v in graph_inputs(outputs) if isinstance(v.type, RandomType)]
    own = [v.type() for v in shared]
    if shared:
        outputs = graph_replace(list(outputs), dict(zip(shared, own, strict=True)), strict=False)
    compiled = pytensor.function(
        [In(r, mutable=True, borrow=True) for r in own] + list(inputs),
        list(outputs),
        # Parameters outside of their domain have no density; they raise no error.
        mode=Mode(_Linker(), get_mode("NUMBA").provided_optimizer).including(
            "local_check_parameter_to_ninf_switch"
        ),
        trust_input=True,
        on_unused_input="ignore",
    )
    function, key = compiled.maker.linker.made
    constants = [v.data for v in graph_inputs(outputs) if isinstance(v, Constant)]
    large = any(getattr(data, "nbytes", 0) > _LARGE for data in constants)
    inner = Piece(function, None if large else key)
    if not rng:
        return inner
    generators = ", ".join(["rng"] * len(own) + ["*rest"])
    return from_source("draw", "rng, *rest", f"inner({generators})", inner=inner)


def filling(x: Variable, number: Variable, vector: Variable) -> Any:
    """Compile ``f(x, out) -> number``, which writes a vector into `out`, as `kernels.pointers` do.

    Return what has its address, and is to be kept as long as this is used.
    """
    inner = from_graph([x], [number.astype("float64"), vector.astype("float64")])
    # In one function: each one around another is optimised by LLVM with all that it calls.
    known = {"carray": Piece(carray, "carray"), "nan": Piece(nan, "nan")}
    plain, key = _function("fill", "x, size, out, length", _FILL, inner=inner, **known)
    return cfunc(SIGNATURE, cache=key is not None)(plain)


def from_scalars(groups: Sequence[Sequence[ps.ScalarVariable]], output) -> Piece:
    """Compile a scalar expression; each group of scalars is one vector argument."""
    scalars = [s for group in groups for s in group]
    if not isinstance(output, Variable):
        output = ps.constant(float(output), dtype="float64")
    names = [chr(ord("a") + i) for i in range(len(groups))]
    entries = ", ".join(f"{n}[{i}]" for n, group in zip(names, groups, strict=True) for i in range(len(group)))  # fmt: skip  # noqa: E501
    if not scalars:
        return from_source("density", ", ".join(names), repr(float(output.data)))
    if output in scalars:
        output = ps.identity(output)
    op = ps.Composite(list(scalars), [ps.cast(output, "float64")])
    inner = Piece(*numba_funcify_and_cache_key(op, node=op.make_node(*scalars)))
    return from_source("density", ", ".join(names), f"inner({entries})", inner=inner)
