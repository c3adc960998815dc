"""Banded matrices of a time series, in time linear in its length.

Row k of an array holds the entries k places below the diagonal: ``a[k, i]`` is A_{i, i - k}. The
first k entries of row k are not used.
"""

import math

import numpy as np

from pymc_dp.kernels import jit


@jit
def factor_banded(a):
    """Return the lower L with LL' = a; NaN from the first pivot on that is not positive."""
    p, n = a.shape[0] - 1, a.shape[1]
    root = np.zeros_like(a)
    for i in range(n):
        for k in range(min(p, i), -1, -1):
            j = i - k
            left = a[k, i]
            for m in range(max(0, i - p), j):
                left -= root[i - m, i] * root[j - m, j]
            root[k, i] = math.sqrt(left) if k == 0 else left / root[0, j]
    return root


@jit
def pull_back_factor(root, by_root):
    """Return the derivatives by the matrix, from those by its factor."""
    p, n = root.shape[0] - 1, root.shape[1]
    left, by = by_root.copy(), np.zeros_like(root)
    for i in range(n - 1, -1, -1):
        for k in range(min(p, i) + 1):
            j = i - k
            if k == 0:
                by[0, i] = 0.5 * left[0, i] / root[0, i]
            else:
                by[k, i] = left[k, i] / root[0, j]
                left[0, j] -= by[k, i] * root[k, i]
            for m in range(max(0, i - p), j):
                left[i - m, i] -= by[k, i] * root[j - m, j]
                left[j - m, j] -= by[k, i] * root[i - m, i]
    return by


@jit
def solve_banded(lower, b):
    """Solve Lx = b for a lower L."""
    p, n = lower.shape[0] - 1, lower.shape[1]
    x = b.copy()
    for i in range(n):
        for k in range(1, min(p, i) + 1):
            x[i] -= lower[k, i] * x[i - k]
        x[i] /= lower[0, i]
    return x


@jit
def solve_banded_transposed(lower, b):
    """Solve L'x = b for a lower L."""
    p, n = lower.shape[0] - 1, lower.shape[1]
    x = b.copy()
    for i in range(n - 1, -1, -1):
        x[i] /= lower[0, i]
        for k in range(1, min(p, i) + 1):
            x[i - k] -= lower[k, i] * x[i]
    return x
