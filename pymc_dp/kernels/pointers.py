"""Functions that are passed to compiled code as numbers: their addresses.

Numba compiles a function that takes another function anew for each argument, and cannot keep it on
disk. A function that takes an address is compiled once.
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

# The signature of a function (q, data, out) that fills the vector `out` and returns a number; each
# vector is an address and a length. No exception may pass this border: where the function raises
# one, the number and `out` are NaN.
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
    """Call a function, given as (address, data), on q: fill `out`, and return its number."""
    address, data = function
    return _call(address, q, data, out)


@cache
def make_nutpie_functions() -> tuple[Any, Any]:
    """Compile the log density and the expansion of any model, as nutpie calls them.

    They are passed two rows, for the density and for the expansion: the address of a function, the
    address of its data and the length of the data.
    """
    numbers = types.CPointer(types.float64)
    before = types.uint64, numbers, numbers, numbers, types.voidptr

    def density(size, x, gradient, log_density, rows):
        row, out = carray(rows, (2, 3), np.int64)[0], carray(gradient, (size,))
        value: float = _call(row[0], carray(x, (size,)), carray(_pointer(row[1]), (row[2],)), out)
        log_density[0] = value
        for i in range(out.size):
            if not math.isfinite(out[i]):
                return 3
        return 0 if math.isfinite(value) else 4

    def expand(size, expanded, x, out, rows):
        row, out = carray(rows, (2, 3), np.int64)[1], carray(out, (expanded,))
        value: float = _call(row[0], carray(x, (size,)), carray(_pointer(row[1]), (row[2],)), out)
        return -2 if math.isnan(value) else 0

    after = types.uint64, *before[:3], types.voidptr
    return callback(types.int64(*before), density), callback(types.int64(*after), expand)
