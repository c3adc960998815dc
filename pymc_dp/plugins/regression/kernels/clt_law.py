r"""The central-limit law of a linear regression's sums, and the moments of x that it needs.

The features x have :math:`x_0 = 1`, and :math:`y \mid x \sim N(\theta'x, \sigma^2)`. The
statistics of one row, in this order everywhere, are :math:`x_i x_j` for i <= j (lexicographic,
without the constant (0, 0)), :math:`x_i y` and :math:`y^2`; s is their sum over n rows, and
N(n m, n V) is its law. With X = :math:`X'X` and the residual sums

.. math::

    u = X'y - X'X\theta, \qquad v = y'y - 2\theta'X'y + \theta'X'X\theta

(a linear map of s with determinant 1) the law falls apart into three independent Normals,

.. math::

    X'X \sim N(n\eta, n\Xi), \qquad u \sim N(0, n\sigma^2\eta), \qquad
    v \sim N(n\sigma^2, 2n\sigma^4),

where :math:`\eta = E xx'` and :math:`\Xi` is the covariance of the products :math:`x_i x_j`. So V
is positive semi-definite whenever :math:`\eta` and :math:`\Xi` are, and only u and v tell about
:math:`(\theta, \sigma^2)` once s is known.
"""

import math

import numpy as np

from pymc_dp.kernels import jit
from pymc_dp.kernels.functions.linear_algebra import (
    log_determinant,
    solve_transposed,
    times_transposed,
)


@jit
def position(i, j, d):
    """Return where the product of x_i and x_j stands among the statistics; (0, 0) is at -1."""
    if i > j:
        i, j = j, i
    return i * d - (i * (i - 1)) // 2 + (j - i) - 1


@jit
def n_products(d):
    """Return the number of products of features, without the constant one."""
    return (d * (d + 1)) // 2 - 1


@jit
def cross_products(s, n, d):
    """Return the matrix (X, y)'(X, y) of the statistics."""
    products = n_products(d)
    b = np.empty((d + 1, d + 1))
    for i in range(d):
        for j in range(i, d):
            b[i, j] = b[j, i] = s[position(i, j, d)] if j > 0 else n
        b[i, d] = b[d, i] = s[products + i]
    b[d, d] = s[products + d]
    return b


@jit
def regress(theta, products, unit):
    """Return X'X theta, with theta'X'X theta behind it, for products whose (0, 0) is `unit`."""
    d = theta.size
    out = np.empty(d + 1)
    out[d] = 0.0
    for i in range(d):
        total = unit * theta[0] if i == 0 else 0.0
        for j in range(d):
            if i + j > 0:
                total += theta[j] * products[position(i, j, d)]
        out[i] = total
        out[d] += theta[i] * total
    return out


@jit
def row_law(theta, sigma2, eta, xi):
    """Return the mean m and the covariance V of the statistics of one row."""
    d, products = theta.size, xi.shape[0]
    k = products + d + 1
    mean, cov = np.empty(k), np.empty((k, k))
    for i in range(d):
        for j in range(max(i, 1), d):
            mean[position(i, j, d)] = eta[i, j]
    explained = regress(theta, mean[:products], 1.0)
    mean[products:] = explained
    mean[k - 1] += sigma2

    cov[:products, :products] = xi
    cov[products:, :products] = 0.0
    for i in range(d):
        row = cov[products + i]
        for j in range(d):
            if i + j > 0:
                source = xi[position(i, j, d)]
                for c in range(products):
                    row[c] += theta[j] * source[c]
        for c in range(products):
            cov[k - 1, c] += theta[i] * row[c]
    for i in range(d + 1):
        row = cov[products + i]
        row[products:] = regress(theta, row[:products], 0.0)
        for c in range(products):
            cov[c, products + i] = row[c]
    for i in range(d):
        for j in range(d):
            cov[products + i, products + j] += sigma2 * eta[i, j]
        both = 2.0 * sigma2 * explained[i]
        cov[products + i, k - 1] += both
        cov[k - 1, products + i] += both
    cov[k - 1, k - 1] += 2.0 * sigma2 * (sigma2 + 2.0 * explained[d])
    return mean, cov


@jit
def sum_of_squares(theta, b):
    """Return v, the residual sum of squares at theta, from the cross products."""
    d = theta.size
    total = b[d, d]
    for i in range(d):
        inner = -2.0 * b[i, d]
        for j in range(d):
            inner += b[i, j] * theta[j]
        total += theta[i] * inner
    return total


@jit
def to_noise(s, theta, sigma2, n, root):
    """Return u and v, standardised: independent standard Normal by the law of s given X'X."""
    d, products = theta.size, n_products(theta.size)
    explained = regress(theta, s[:products], n)
    g = np.empty(d + 1)
    v = s[products + d] - explained[d]
    for i in range(d):
        g[i] = s[products + i] - explained[i]
        v -= 2.0 * theta[i] * g[i]
    g[:d] = solve_transposed(root, g[:d]) / math.sqrt(n * sigma2)
    g[d] = (v / sigma2 - n) / math.sqrt(2.0 * n)
    return g


@jit
def from_noise(s, g, theta, sigma2, n, root):
    """Write X'y and y'y into s, given its X'X and standardised u and v."""
    d, products = theta.size, n_products(theta.size)
    u = math.sqrt(n * sigma2) * times_transposed(root, g[:d])
    s[products:] = regress(theta, s[:products], n)
    s[products : products + d] += u
    s[products + d] += 2.0 * (theta @ u) + sigma2 * (n + math.sqrt(2.0 * n) * g[d])


@jit
def log_responses(s, theta, sigma2, n, root):
    """Return log p(X'y, y'y | X'X, theta, sigma2), up to a constant."""
    g = to_noise(s, theta, sigma2, n, root)
    return -0.5 * (g @ g) - 0.5 * (theta.size + 2.0) * math.log(sigma2) - log_determinant(root)


@jit
def map_products(s, a, n):
    """Replace X'X in s by the products AX'XA' of the features Ax; A keeps the constant feature."""
    d = a.shape[0]
    mapped = a @ np.ascontiguousarray(cross_products(s, n, d)[:d, :d]) @ a.T
    for i in range(d):
        for j in range(max(i, 1), d):
            s[position(i, j, d)] = mapped[i, j]


@jit
def draw_standard_products(rng, s, n, d):
    """Write X'X of independent standard Normal covariates into s, by its central-limit law."""
    for i in range(d):
        for j in range(max(i, 1), d):
            g = math.sqrt(n) * rng.standard_normal()
            s[position(i, j, d)] = n + math.sqrt(2.0) * g if i == j else g


@jit
def log_products(s, n, root):
    """Return log p(X'X | eta) for Normal covariates, up to a constant; U'U = eta.

    The features are U' times standard ones, and so are all their products: Xi is never needed.
    """
    d = root.shape[0]
    inverse = np.empty((d, d))
    for i in range(d):
        unit = np.zeros(d)
        unit[i] = 1.0
        inverse[:, i] = solve_transposed(root, unit)
    standard = s.copy()
    map_products(standard, inverse, n)
    total = 0.0
    for i in range(d):
        for j in range(max(i, 1), d):
            x = standard[position(i, j, d)]
            total += 0.5 * (x - n) ** 2 if i == j else x * x
    return -0.5 * total / n - (d + 1.0) * log_determinant(root)


@jit
def gaussian_moments(mean, cov):
    """Return eta and Xi for covariates (without the constant) that are jointly Normal: Isserlis."""
    d = mean.size + 1
    m, t = np.ones(d), np.zeros((d, d))
    m[1:] = mean
    t[1:, 1:] = cov
    eta = t + np.outer(m, m)
    xi = np.empty((n_products(d), n_products(d)))
    for i in range(d):
        for j in range(max(i, 1), d):
            row = xi[position(i, j, d)]
            for k in range(d):
                for l in range(max(k, 1), d):  # noqa: E741
                    row[position(k, l, d)] = (
                        t[i, k] * eta[j, l]
                        + t[i, l] * eta[j, k]
                        + m[i] * (m[k] * t[j, l] + m[l] * t[j, k])
                    )
    return eta, xi
