"""Functions that compiled code is given as numbers, their addresses.

A function that takes another as an argument is compiled anew for each, and numba cannot keep it on
disk. What takes an address is compiled once for all.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from pymc_dp.kernels import jit

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


@jit
def call(function, q, out):
    """Fill `out` from q by a function, which is its address and its data; return its number."""
    address, data = function
    return _call(address, q, data, out)
