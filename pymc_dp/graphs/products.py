"""Products of matrices whose code is compiled once, not once for each graph.

PyTensor compiles the preparation of a BLAS call anew for each layout of the factors, which takes
five seconds. Here graphs call one linked kernel, which does small products faster, without BLAS.
"""

from __future__ import annotations

import numpy as np
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.link.numba.dispatch.basic import (
    numba_njit,
    register_funcify_default_op_cache_key,
)
from pytensor.link.numba.dispatch.linalg.products import _gemm
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.math import Dot

from pymc_dp.kernels import version_of
from pymc_dp.kernels.linked import linked

_SMALL = 4096  # multiplications: smaller products do not call BLAS
_ANY = "Array(f8, 2, 'A')"


@linked(f"void({_ANY}, {_ANY}, {_ANY})")
def _large(a, b, out):
    _gemm(a, b, out)


@linked(f"void({_ANY}, {_ANY}, {_ANY})", fastmath={"reassoc", "contract"})
def multiply(a, b, out):
    """Fill the third matrix with the product of the others."""
    rows, inner = a.shape
    columns = b.shape[1]
    if b.shape[0] != inner or out.shape != (rows, columns):
        raise ValueError("the shapes of the factors of a product do not match")
    if rows * inner * columns > _SMALL:
        _large(a, b, out)
        return
    for i in range(rows):
        for j in range(columns):
            total = 0.0
            for k in range(inner):
                total += a[i, k] * b[k, j]
            out[i, j] = total


class Product(Dot):
    """`Dot` of double matrices by `multiply`."""


class BatchedProduct(BatchedDot):
    """`BatchedDot` of doubles by `multiply`."""


@register_funcify_default_op_cache_key(Product)
def _product(op, node, **kwargs):
    @numba_njit
    def product(x, y):
        out = np.empty((x.shape[0], y.shape[1]))
        multiply(x, y, out)
        return out

    return product, version_of(product)


@register_funcify_default_op_cache_key(BatchedProduct)
def _batched_product(op, node, **kwargs):
    @numba_njit
    def batched_product(x, y):
        if x.shape[0] != y.shape[0]:
            raise ValueError("the numbers of matrices in a product do not match")
        out = np.empty((x.shape[0], x.shape[1], y.shape[2]))
        for i in range(x.shape[0]):
            multiply(x[i], y[i], out[i])
        return out

    return batched_product, version_of(batched_product)


@node_rewriter([Dot, BatchedDot])
def _compiled_once(fgraph, node):
    if any(v.type.dtype != "float64" for v in (*node.inputs, *node.outputs)):
        return None
    known: dict[type, type] = {Dot: Product, BatchedDot: BatchedProduct}
    replacement = known.get(type(node.op))
    return None if replacement is None else [replacement()(*node.inputs)]


PRODUCTS = in2out(_compiled_once, name="products_compiled_once")
