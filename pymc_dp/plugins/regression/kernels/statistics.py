"""Sufficient statistics of a regression as functions of the coordinates of the chain.

The coordinates c are the mean of x, the Cholesky factor of its scatter matrix row by row (with
logarithms on the diagonal), the mean of y, the least-squares slopes and the logarithm of the
residual sum of squares (RSS).
"""

import math

import numpy as np

from pymc_dp.kernels import jit


@jit
def unpack(c, p):
    """Return the mean of x, the Cholesky factor of its scatter, the coefficients and the RSS."""
    lower = np.zeros((p, p))
    place = p
    for i in range(p):
        for j in range(i):
            lower[i, j] = c[place]
            place += 1
        lower[i, i] = math.exp(c[place])
        place += 1
    theta = c[place : place + p + 1].copy()
    for i in range(p):
        theta[0] -= theta[i + 1] * c[i]
    return c[:p], lower, theta, math.exp(c[place + p + 1])


@jit
def scatter(c, p):
    """Return the sums of products of deviations of (x, y), row by row of the upper triangle."""
    out = np.empty((p + 1) * (p + 2) // 2)
    write_scatter(c, p, out)
    return out


@jit
def write_scatter(c, p, out):
    """Write `scatter`, one column of the factor after the other, without allocating memory."""
    out[:] = 0.0
    first_slope = p + p * (p + 1) // 2 + 1
    out[-1] = math.exp(c[-1])
    for k in range(p):
        diagonal = math.exp(c[p + k * (k + 1) // 2 + k])
        fitted = diagonal * c[first_slope + k]  # the part of y that the slopes explain by column k
        for j in range(k + 1, p):
            fitted += c[p + j * (j + 1) // 2 + k] * c[first_slope + j]
        for i in range(k, p):
            entry_i = diagonal if i == k else c[p + i * (i + 1) // 2 + k]
            row = (
                i * (p + 1) - i * (i - 1) // 2 - i
            )  # start of the row in the upper triangle, less i
            for j in range(i, p):
                entry_j = diagonal if j == k else c[p + j * (j + 1) // 2 + k]
                out[row + j] += entry_i * entry_j
            out[row + p] += entry_i * fitted
        out[-1] += fitted * fitted


@jit
def products_of_features(n, mean, lower):
    """Return U, the sums of products of (1, x)."""
    p = mean.size
    u = np.empty((p + 1, p + 1))
    u[0, 0] = n
    for i in range(p):
        u[0, i + 1] = u[i + 1, 0] = n * mean[i]
        for j in range(i + 1):
            total = n * mean[i] * mean[j]
            for k in range(j + 1):
                total += lower[i, k] * lower[j, k]
            u[i + 1, j + 1] = u[j + 1, i + 1] = total
    return u


@jit
def sums(u, theta, rss):
    """Return the sums of the columns and of their products, as a vector."""
    d = theta.size
    xy = u @ theta
    yy = rss + theta @ xy
    q = d
    out = np.empty(q + q * (q + 1) // 2)
    for i in range(d - 1):
        out[i] = u[0, i + 1]
    out[d - 1] = xy[0]
    place = q
    for i in range(d - 1):
        for j in range(i, d - 1):
            out[place] = u[i + 1, j + 1]
            place += 1
        out[place] = xy[i + 1]
        place += 1
    out[place] = yy
    return out


@jit
def spread_out(upper, out):
    """Write a gradient by the upper triangle of a symmetric matrix as one by all its entries."""
    place = 0
    for i in range(len(out)):
        for j in range(i, len(out)):
            out[i, j] = out[j, i] = upper[place] if i == j else 0.5 * upper[place]
            place += 1
