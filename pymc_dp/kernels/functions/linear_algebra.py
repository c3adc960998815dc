"""Small matrices: Cholesky factors and triangular systems."""

import math

import numpy as np

from pymc_dp.kernels import njit


@njit(cache=True, nogil=True, error_model="numpy")
def cholesky(a):
    """Lower Cholesky factor; NaN on the diagonal where the matrix is not positive definite."""
    d = a.shape[0]
    out = np.zeros((d, d))
    for i in range(d):
        for j in range(i + 1):
            total = a[i, j]
            for k in range(j):
                total -= out[i, k] * out[j, k]
            if i == j:
                out[i, i] = math.sqrt(total) if total > 0.0 else math.nan
            else:
                out[i, j] = total / out[j, j]
    return out


@njit(cache=True, nogil=True, error_model="numpy")
def forward_solve(lower, b):
    """Solve L x = b."""
    x = np.empty_like(b)
    for i in range(b.size):
        total = b[i]
        for k in range(i):
            total -= lower[i, k] * x[k]
        x[i] = total / lower[i, i]
    return x


@njit(cache=True, nogil=True, error_model="numpy")
def backward_solve(lower, b):
    """Solve L' x = b."""
    x = np.empty_like(b)
    for i in range(b.size - 1, -1, -1):
        total = b[i]
        for k in range(i + 1, b.size):
            total -= lower[k, i] * x[k]
        x[i] = total / lower[i, i]
    return x
