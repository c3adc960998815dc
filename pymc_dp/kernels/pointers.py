"""Functions that compiled code is given as numbers, their addresses.

A function that takes another as an argument is compiled anew for each, and numba cannot keep it on
disk. What takes an address is compiled once for all.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from pymc_dp.kernels import jit
from pymc_dp.kernels.deferred import callback

# Of a function that fills its last vector from its first and from data, and returns a number.
# Vectors are addresses and lengths. Where it raises an error, all of that is NaN: none passes this
# border.
_POINTER = types.CPointer(types.float64), types.intp
SIGNATURE = types.float64(*_POINTER, *_POINTER, *_POINTER)
_VECTOR = types.Array(types.float64, 1, "C")


@intrinsic
def _call(context, address, q, data, out):
    """Call the function of `SIGNATURE` at an address."""
    if (q, data, out) != (_VECTOR,) * 3:
        raise TypingError(f"vectors of float64 are needed that lie in one piece, not {q} and {out}")

    def generate(context, builder, signature, args):
        vectors = []
        for kind, value in zip(signature.args[1:], args[1:], strict=True):
            array = context.make_array(kind)(context, builder, value)
            vectors += [array.data, array.nitems]
        number, size = ir.DoubleType(), vectors[1].type
        kind = ir.FunctionType(number, [number.as_pointer(), size] * 3)
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), vectors)

    return types.float64(address, q, data, out), generate


@intrinsic
def _pointer(context, address):
    """Return an address as a pointer to doubles."""

    def generate(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.float64)(address), generate


@jit
def call(function, q, out):
    """Fill `out` from q by a function, which is its address and its data; return its number."""
    address, data = function
    return _call(address, q, data, out)


@cache
def make_nutpie_functions() -> tuple[Any, Any]:
    """Compile the log density and the expansion of any model, as nutpie calls them.

    They are given two rows, of the density and of the expansion: the address of a function, that of
    its data, and how many these are.
    """
    numbers = types.CPointer(types.float64)
    before = types.uint64, numbers, numbers, numbers, types.voidptr

    def density(size, x, gradient, log_density, given):
        own, out = carray(given, (2, 3), np.int64)[0], carray(gradient, (size,))
        found: float = _call(own[0], carray(x, (size,)), carray(_pointer(own[1]), (own[2],)), out)
        log_density[0] = found
        for i in range(out.size):
            if not math.isfinite(out[i]):
                return 3
        return 0 if math.isfinite(found) else 4

    def expand(size, expanded, x, out, given):
        own, out = carray(given, (2, 3), np.int64)[1], carray(out, (expanded,))
        found: float = _call(own[0], carray(x, (size,)), carray(_pointer(own[1]), (own[2],)), out)
        return -2 if math.isnan(found) else 0

    after = types.uint64, *before[:3], types.voidptr
    return callback(types.int64(*before), density), callback(types.int64(*after), expand)
