"""Kernels that are compiled once, by themselves, and called at their address.

Compiled code contains the code of all functions that it calls, and LLVM optimises all of it again
for each caller. A caller of a linked kernel contains three instructions instead, so that callers,
and the graphs that they are part of, stay small. A linked kernel is compiled, or loaded from disk,
at its first call: never, on a branch that no model takes. A call costs some nanoseconds.
"""

from __future__ import annotations

import ctypes
import logging
from base64 import b64decode, b64encode
from collections.abc import Callable
from functools import cached_property
from hashlib import sha256
from pickle import dumps, loads
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.core.imputils import impl_ret_new_ref
from numba.core.registry import cpu_target
from numba.core.sigutils import normalize_signature
from numba.core.typing import Signature, make_concrete_template
from numba.np.numpy_support import as_dtype

from pymc_dp.kernels import njit
from pymc_dp.kernels.deferred import Kernel

# Parts of signatures: contiguous arrays of doubles.
V, M = "f8[::1]", "f8[:, ::1]"

_log = logging.getLogger("pymc.dp")
_FIND = "pymc_dp_find_kernel"
_KNOWN: dict[str, Linked] = {}
_FAILED: set[bytes] = set()
_Types = tuple[types.Type, ...]


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)
def _find(asked: bytes) -> int | None:
    """Return the address of a kernel; None if it cannot be compiled."""
    if asked in _FAILED:
        return None
    name, _, kinds = asked.decode().partition(" ")
    try:
        return _KNOWN[name].address(*loads(b64decode(kinds)))
    except Exception:  # no exception may pass into compiled code
        _FAILED.add(asked)
        _log.exception("The kernel %s cannot be compiled", name)
    except BaseException:
        _log.warning("Interrupted: the kernel %s is not compiled", name)
    return None


binding.add_symbol(_FIND, ctypes.cast(_find, ctypes.c_void_p).value)


class Linked(Kernel):
    """A compiled function that compiled code calls at its address."""

    signature: str | None
    _compiler: Any

    def __call__(self, *args):
        """Call it from Python; arrays are copied if read-only or not contiguous, if need be."""
        if self.declared is not None:
            args = tuple(map(_as_declared, self.declared.args, args))
        return self._from_python(*args)

    @cached_property
    def _from_python(self) -> Any:
        """Compile a function that only calls the kernel: the kernel itself is compiled once."""
        kernel = self

        @njit(cache=True, nogil=True)
        def call(*args):
            return kernel(*args)

        return call

    @cached_property
    def declared(self) -> Signature | None:
        """The signature, parsed on first use: parsing makes numba load its compiler."""
        if self.signature is None:
            return None
        args, result = normalize_signature(self.signature)
        return Signature(result, args, None)

    @cached_property
    def _calls(self) -> dict[_Types, object]:
        """The object by which numba looks up the code of a call, by argument types."""
        return {}

    def get_call_template(self, args, kws):
        """Return the type of a call; with a declared signature, this compiles nothing."""
        pysig, kinds = self._compiler.fold_argument_types(args, kws)
        taken = tuple(kinds)
        if self.declared is None:
            self.inside.compile(taken)
            signature = self.inside.overloads[taken].signature
        else:
            # Read-only arrays, such as constants of a graph, have the same layout in memory.
            declared: Any = zip(kinds, self.declared.args, strict=True)
            taken = tuple(
                wanted.copy(readonly=True) if _is_array(kind) and not kind.mutable else wanted
                for kind, wanted in declared
            )
            pairs: Any = zip(kinds, taken, strict=True)
            if not all(a.can_convert_to(None, b) for a, b in pairs if _is_array(a)):
                # Arrays that are not contiguous: compile for their types.
                return super().get_call_template(args, kws)
            signature = self.declared
        if taken not in self._calls:
            self._calls[taken] = object()
            entry = self._lowered(signature), self._calls[taken], taken
            cpu_target.target_context.insert_func_defn([entry])
        call, name = Signature(signature.return_type, taken, None), self.py_func.__name__
        return make_concrete_template(name, key=name, signatures=[call]), pysig, kinds, {}

    def get_overload(self, sig):
        """Return the object by which numba looks up how a call is lowered."""
        return self._calls.get(sig) or super().get_overload(sig)

    def _lowered(self, signature: Signature) -> Callable[..., Any]:
        result, args = signature.return_type, signature.args
        name = f"{_name(self.py_func)} {b64encode(dumps((args, result))).decode()}"

        def call(context, builder, _, values):
            stub = _stub(context, builder.module, name, signature)
            status, value = context.call_conv.call_function(builder, stub, result, args, values)
            with cgutils.if_unlikely(builder, status.is_error):
                context.call_conv.return_status_propagate(builder, status)
            return impl_ret_new_ref(context, builder, result, value)

        return call

    def address(self, args: _Types, result: types.Type) -> int:
        """Compile or load the code for some argument types; return its address."""
        self.inside.compile(args)
        made: Any = self.inside.overloads[args]
        if result != made.signature.return_type:
            raise TypeError(f"it returns {made.signature.return_type}, not {result}")
        return made.library.get_pointer_to_function(made.fndesc.llvm_func_name)


def _name(function: Callable) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def _is_array(kind: Any) -> bool:
    return isinstance(kind, types.Array)


def _as_declared(kind: types.Type, value: Any) -> Any:
    if isinstance(kind, types.Array):
        return np.require(value, as_dtype(kind.dtype), ["W", "C"] if kind.layout == "C" else ["W"])
    if isinstance(kind, types.Float):
        return float(value)
    return int(value) if isinstance(kind, types.Integer) else value


def linked(signature: str | None = None, **options) -> Callable[[Callable], Any]:
    """Compile a function of a module, as `jit` does, to be called at its address.

    Parameters
    ----------
    signature : str, optional
        In Numba's notation: ``"float64(float64[::1], int64)"``. Arguments are converted to these
        types, and the kernel is compiled at its first call. Arrays that the kernel does not fill
        may be read-only. Without a signature, the kernel is compiled for each combination of
        argument types along with its first caller.
    **options
        Options of `numba.njit`, beside those of `jit`.
    """

    def decorate(function: Callable) -> Any:
        made = njit(cache=True, nogil=True, error_model="numpy", **options)(function)
        if not isinstance(made, Kernel):  # NUMBA_DISABLE_JIT
            return made
        compiled: Any = made
        compiled.__class__ = Linked
        compiled.signature = signature
        if compiled.inside_cache is not None:
            compiled.inside_cache.is_called_apart = True
        _KNOWN[_name(function)] = compiled
        return compiled

    return decorate


def _stub(context, module: ir.Module, name: str, declared: Signature) -> ir.Function:
    """Return the LLVM function that looks up a kernel's address once, and calls the kernel."""
    kind = context.call_conv.get_function_type(declared.return_type, declared.args)
    mangled = "pymc_dp_stub_" + sha256(name.encode()).hexdigest()
    stub = cgutils.get_or_insert_function(module, kind, mangled)
    if not stub.is_declaration:
        return stub
    stub.linkage = "internal"
    builder = ir.IRBuilder(stub.append_basic_block())
    context.call_conv.init_call_helper(builder)
    pointer = ir.IntType(8).as_pointer()
    slot = cgutils.add_global_variable(module, pointer, mangled + "_address")
    slot.linkage, slot.initializer, slot.align = "internal", pointer(None), 8
    known = builder.load_atomic(slot, "acquire", 8)
    place = cgutils.alloca_once_value(builder, known)
    with builder.if_then(cgutils.is_null(builder, known), likely=False):
        find = cgutils.get_or_insert_function(module, ir.FunctionType(pointer, [pointer]), _FIND)
        text = context.insert_const_string(module, name)
        address = builder.call(find, [text])
        with builder.if_then(cgutils.is_null(builder, address), likely=False):
            text = f"the kernel {name.partition(' ')[0]} cannot be compiled: see the log"
            context.call_conv.return_user_exc(builder, RuntimeError, (text,))
        builder.store_atomic(address, slot, "release", 8)
        builder.store(address, place)
    function = builder.bitcast(builder.load(place), kind.as_pointer())
    builder.ret(builder.call(function, stub.args))
    return stub
