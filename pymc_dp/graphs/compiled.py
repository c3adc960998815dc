"""Compiling graphs to functions that other compiled code can call, kept on disk by PyTensor."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from math import nan, prod
from textwrap import indent
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from numba import carray
from numba.core.event import Listener, install_listener
from numba.core.registry import CPUDispatcher
from pytensor import scalar as ps
from pytensor.compile.io import In
from pytensor.compile.mode import Mode, get_mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, graph_inputs, toposort
from pytensor.link.numba.cache import compile_numba_function_src
from pytensor.link.numba.dispatch.basic import numba_funcify_and_cache_key, numba_njit
from pytensor.link.numba.linker import NumbaLinker
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import TensorType

from pymc_dp.graphs.products import PRODUCTS
from pymc_dp.graphs.shapes import lengths, with_shapes
from pymc_dp.graphs.stages import stage
from pymc_dp.graphs.values import plain_function
from pymc_dp.kernels import joined
from pymc_dp.kernels.deferred import DeferringDispatcher, callback
from pymc_dp.kernels.pointers import SIGNATURE

# Code that embeds more bytes of constants than this is not kept on disk.
_MAX_CACHED_BYTES = 1_000_000


# See `kernels.pointers` for how errors are reported.
_FILL = """
filled = carray(out, length)
try:
    number, vector = inner(carray(x, size), carray(data, count))
    if vector.size != length:
        raise ValueError
    for i in range(length):  # an assignment to a slice takes half a second to compile
        filled[i] = vector[i]
    return number.item()
except Exception:
    for i in range(length):
        filled[i] = nan
    return nan
"""


class _Said(Listener):
    """Announces that Numba compiles; to load code from disk is no such event."""

    def on_start(self, event):
        stage("Compiling")

    def on_end(self, event):
        pass


def said_when_compiling() -> AbstractContextManager:
    """Announce each compilation by Numba when it starts."""
    return install_listener("numba:compile", _Said())


class Piece(NamedTuple):
    """A compiled function, with the key of its code (None if it cannot be kept)."""

    function: Any
    key: str | None


def from_source(name: str, arguments: str, body: str, **names: Piece | Any) -> Piece:
    """Compile ``def name(arguments): return body``, where `names` are pieces or plain values."""
    return from_code(name, arguments, f"return {body}", **names)


def from_code(name: str, arguments: str, code: str, **names: Piece | Any) -> Piece:
    """Compile ``def name(arguments):`` and lines of code, as `from_source` does."""
    plain, key = _function(name, arguments, code, **names)
    options = {"final_function": True, "nogil": True, "no_cfunc_wrapper": True}
    function = numba_njit(plain, cache=key is not None, **options)
    if isinstance(function, CPUDispatcher):  # not under NUMBA_DISABLE_JIT
        function.__class__ = DeferringDispatcher
    return Piece(function, key)


def _function(name: str, arguments: str, body: str, **names: Piece | Any) -> tuple[Any, str | None]:
    """Return a function that is to be compiled, and its key."""
    source = f"def {name}({arguments}):\n" + indent(body, "    ")
    keys = [value.key if isinstance(value, Piece) else repr(value) for value in names.values()]
    key = joined(source, *keys)
    env = globals() | {k: v.function if isinstance(v, Piece) else v for k, v in names.items()}
    return compile_numba_function_src(source, name, global_env=env, cache_key=key), key


class _Linker(NumbaLinker):
    """Keeps the function that it makes of a graph: to make it again would double the time."""

    def fgraph_convert(self, fgraph, **kwargs):
        self.made = super().fgraph_convert(fgraph, **kwargs)
        return self.made


def from_graph(inputs: Sequence[Variable], outputs: Sequence[Variable], rng: bool = False) -> Piece:
    """Compile ``f(*inputs) -> tuple of outputs``, or ``f(rng, *inputs)``.

    All random variables in the outputs draw from the generator `rng`.
    """
    if not outputs:
        return from_source("nothing", "*rest", "()")
    shared = [v for v in graph_inputs(outputs) if isinstance(v.type, RandomType)]
    rngs = [v.type() for v in shared]
    if shared:
        outputs = graph_replace(list(outputs), dict(zip(shared, rngs, strict=True)), strict=False)
    compiled = pytensor.function(
        [In(r, mutable=True, borrow=True) for r in rngs] + list(inputs),
        list(outputs),
        # Parameters outside of their domain have no density; they raise no error.
        mode=Mode(_Linker(), get_mode("NUMBA").provided_optimizer)
        .including("local_check_parameter_to_ninf_switch")
        .register((PRODUCTS, 49.0)),
        trust_input=True,
        on_unused_input="ignore",
    )
    function, key = compiled.maker.linker.made
    constants = [v.data for v in graph_inputs(outputs) if isinstance(v, Constant)]
    large = any(getattr(data, "nbytes", 0) > _MAX_CACHED_BYTES for data in constants)
    inner = Piece(function, None if large else key)
    if not rng:
        return inner
    generators = ", ".join(["rng"] * len(rngs) + ["*rest"])
    return from_source("draw", "rng, *rest", f"inner({generators})", inner=inner)


def arrays(names: Sequence[str]) -> str:
    """Return the source of a tuple of arrays of these numbers, as compiled graphs take them."""
    return f"({''.join(f'np.asarray({name}), ' for name in names)})"


def from_numbers(inputs: Sequence[Variable], graph: Variable) -> Piece:
    """Compile a number as a function of numbers."""
    names = [f"a{i}" for i in range(len(inputs))]
    inner, numpy = from_graph(inputs, [graph]), Piece(np, "numpy")
    body = f"inner(*{arrays(names)})[0].item()"
    return from_source("of_numbers", ", ".join(names), body, inner=inner, np=numpy)


class Filling:
    """``f(x, data, out) -> number``, which writes a vector into `out`, as `kernels.pointers` do.

    Parts of the graphs that depend on data or constant arrays, but not on x, are evaluated outside
    the compiled code, whenever `function` is asked for, and passed to it. The compiled code, and so
    its copy on disk, is the same for other data.
    """

    def __init__(self, x: Variable, number: Variable, vector: Variable):
        graphs = [with_shapes(g.astype("float64")) for g in (number, vector)]
        parts = _data_parts(x, graphs)
        row = [pt.as_tensor(v).astype("float64").ravel() for v in parts]
        rows = [pt.concatenate(row)] if row else [pt.zeros(0)]
        self._values = plain_function([], rows)
        data, first, inner_of = pt.vector("data", dtype="float64"), 0, {}
        for v in parts:
            shape = lengths(v)
            end = first + prod(shape)
            inner_of[v] = data[first:end].reshape(shape).astype(v.dtype)
            first = end
        inner = from_graph([x, data], graph_replace(graphs, inner_of, strict=False))
        # One function, none nested: LLVM would optimise each wrapper with all that it calls.
        known = {"carray": Piece(carray, "carray"), "nan": Piece(nan, "nan")}
        arguments = "x, size, data, count, out, length"
        plain, key = _function("fill", arguments, _FILL, inner=inner, **known)
        self._compiled = callback(SIGNATURE, plain, cache=key is not None)

    @property
    def function(self) -> tuple[int, np.ndarray]:
        """The address of the compiled code, valid while this object lives, and the current data."""
        [values] = self._values()
        return int(self._compiled.address or 0), values


def _data_parts(x: Variable, graphs: Sequence[Variable]) -> list[Variable]:
    """Return the largest parts of graphs that are computed from data or arrays, and not from x."""
    uses_data = {v: False for v in ancestors(graphs) if v.owner is None}  # whether it uses data
    for v in uses_data:
        uses_data[v] = _is_data(v)
    depends_on_x = {x}
    parts: dict[Variable, None] = {}
    for node in toposort(graphs):
        if depends_on_x.isdisjoint(node.inputs) and all(map(_is_array, node.outputs)):
            uses_data |= dict.fromkeys(node.outputs, any(map(uses_data.__getitem__, node.inputs)))
        else:
            depends_on_x.update(node.outputs)
            parts |= {
                v: None
                for v in node.inputs
                if v not in depends_on_x and uses_data[v] and _is_array(v)
            }
    parts |= {v: None for v in graphs if v not in depends_on_x and uses_data[v]}
    return list(parts)


def _is_array(v: Variable) -> bool:
    return isinstance(v.type, TensorType) and v.type.numpy_dtype.kind in "fiub"


def _is_data(v: Variable) -> bool:
    """Whether a variable holds data, or an array that is not one number repeated."""
    if isinstance(v, Constant):
        array = isinstance(v.type, TensorType) and v.dtype.startswith("float") and v.data.size > 1
        return array and not np.all(v.data == v.data.flat[0])
    return isinstance(v, SharedVariable) and isinstance(v.type, TensorType)


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
