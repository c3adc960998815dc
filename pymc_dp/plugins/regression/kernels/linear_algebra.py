"""Upper Cholesky factors of small matrices, and solutions, inverses and determinants by them."""

import math

import numpy as np

from pymc_dp.kernels import jit


@jit
def factor(a, singular=1e-14):
    """Return the upper U with U'U = a, and whether there is one.

    A pivot of the relative size `singular` counts as zero. NumPy's routine raises, which compiled
    code cannot handle. Rows are updated whole, so that the innermost loop vectorises.
    """
    k = a.shape[0]
    u = a.copy()
    for j in range(k):
        if not u[j, j] > singular * a[j, j]:  # NaN fails, too
            return u, False
        root = math.sqrt(u[j, j])
        for i in range(j, k):
            u[j, i] /= root
        for i in range(j + 1, k):
            c = u[j, i]
            u[i, j] = 0.0
            for m in range(i, k):
                u[i, m] -= c * u[j, m]
    return u, True


@jit
def solve_transposed(u, b):
    """Solve U'x = b for an upper U."""
    x = b.copy()
    for i in range(x.size):
        x[i] /= u[i, i]
        for m in range(i + 1, x.size):
            x[m] -= u[i, m] * x[i]
    return x


@jit
def solve_upper(u, b):
    """Solve Ux = b for an upper U."""
    x = b.copy()
    for i in range(x.size - 1, -1, -1):
        for m in range(i + 1, x.size):
            x[i] -= u[i, m] * x[m]
        x[i] /= u[i, i]
    return x


@jit
def inverse(u):
    """Return the inverse of U'U for an upper U."""
    k = u.shape[0]
    upper_inverse = np.zeros((k, k))
    for i in range(k - 1, -1, -1):
        upper_inverse[i, i] = 1.0 / u[i, i]
        for m in range(i + 1, k):
            c = u[i, m] / u[i, i]
            for j in range(m, k):
                upper_inverse[i, j] -= c * upper_inverse[m, j]
    return upper_inverse @ upper_inverse.T


@jit
def log_determinant(u):
    """Return half of log|U'U|."""
    total = 0.0
    for i in range(u.shape[0]):
        total += math.log(u[i, i])
    return total
