"""Functions that compiled code is given as numbers, their addresses.

A function that takes another as an argument is compiled anew for each, and numba cannot keep it on
disk. What takes an address is compiled once for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from pymc_dp.kernels import jit

# Of a function that fills its second vector from its first, and returns a number. Vectors are
# addresses and lengths.
_VECTOR = types.CPointer(types.float64), types.intp
SIGNATURE = types.float64(*_VECTOR, *_VECTOR)


def pointer(function: Callable) -> Any:
    """Compile ``function(vector, out) -> number``; of what is returned, `address` is the number.

    The code lasts as long as what is returned. An error within it is a NaN.
    """

    def fill(q, size, out, length):
        try:
            return function(carray(q, size), carray(out, length))
        except Exception:
            return np.nan

    return numba.cfunc(SIGNATURE)(fill)


@intrinsic
def _call(context, address, q, out):
    """Call the function of `SIGNATURE` at an address."""

    def generate(context, builder, signature, args):
        vectors = []
        for kind, value in zip(signature.args[1:], args[1:], strict=True):
            array = context.make_array(kind)(context, builder, value)
            vectors += [array.data, array.nitems]
        number, size = ir.DoubleType(), vectors[1].type
        kind = ir.FunctionType(number, [number.as_pointer(), size] * 2)
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), vectors)

    return types.float64(address, q, out), generate


@jit
def call(address, q, out):
    """Fill `out` from q by the function at an address; return its number."""
    return _call(address, q, out)
