"""Density of the statistics of a regression given their release, and draws of its parameters."""

import math
from typing import NamedTuple

import numpy as np

from pymc_dp.kernels import jit
from pymc_dp.kernels.linked import linked
from pymc_dp.plugins.regression.kernels.bounds import feasible_parameters, feasible_sums
from pymc_dp.plugins.regression.kernels.linear_algebra import (
    factor,
    inverse,
    log_determinant,
    solve_transposed,
    solve_upper,
)
from pymc_dp.plugins.regression.kernels.statistics import (
    products_of_features,
    spread_out,
    sums,
    unpack,
)


class RegressionModel(NamedTuple):
    """The numbers that a sweep conditions on.

    Released entry k is ``offset[k] + weights[k] @ sums[terms[k]]`` with noise of Laplace rate
    ``lam[k]`` and Gaussian precision ``tau[k]`` (0 where it has none). The sums are those of the
    columns (x, y), then of the products of two of them, row by row of the upper triangle.
    `hierarchical`: the law of x is not N(mean_x, inverse of precision_x) but has the
    normal-inverse-Wishart prior (mean_x, kappa, psi, nu). `bounded`: the rows of a simple
    regression lie in the `box` (ax, bx, ay, by), and the density is cut to the feasible sums and
    parameters, without a normaliser. The coefficients, intercept first, are
    ``mean_theta + basis @ beta``, with beta ~ N(0, sigma2 inverse of `precision`). A coefficient
    that is a number, such as an intercept of 0, has a row of zeros. If none is, beta are the
    coefficients less their means, and `basis` is the identity.
    """

    n: float
    z: np.ndarray
    lam: np.ndarray
    tau: np.ndarray
    offset: np.ndarray
    terms: np.ndarray
    weights: np.ndarray
    mean_x: np.ndarray
    precision_x: np.ndarray
    hierarchical: bool
    kappa: float
    psi: np.ndarray
    nu: float
    mean_theta: np.ndarray
    basis: np.ndarray
    precision: np.ndarray
    shape: float
    rate: float
    bounded: bool
    box: np.ndarray


@jit
def log_law_of_x(model, mean, lower):
    """Log density of the mean and scatter matrix of x, without powers of the factor's diagonal.

    Also returns a precision and a weight. The gradient by the scatter matrix is minus half the
    precision; that by the mean is minus weight times precision times the distance from `mean_x`.
    """
    p, n, shift = mean.size, model.n, mean - model.mean_x
    weight = model.kappa * n / (model.kappa + n) if model.hierarchical else n
    second = weight * shift.reshape(-1, 1) * shift
    for i in range(p):
        for j in range(p):
            for k in range(min(i, j) + 1):
                second[i, j] += lower[i, k] * lower[j, k]
    if not model.hierarchical:
        return -0.5 * np.sum(model.precision_x * second), model.precision_x, weight
    root, proper = factor(model.psi + second, 0.0)
    if not proper:
        return -math.inf, second, weight
    degrees = model.nu + n
    return -degrees * log_determinant(root), degrees * inverse(root), weight


@linked()
def posterior(model, u, theta, rss):
    """Return the upper factor of Lambda_n, mu_n, a_n and b_n of the normal-inverse-gamma law.

    Lambda_n is the precision of beta; mu_n is the mean of the coefficients.
    """
    shift, basis = theta - model.mean_theta, model.basis
    whole = len(model.precision) == theta.size  # the basis is the identity
    of_beta = u if whole else np.ascontiguousarray(basis.T) @ (u @ basis)
    root, proper = factor(of_beta + model.precision, 0.0)
    if not proper:
        root[:] = math.nan
    if whole:
        pull = model.precision @ shift
        half = solve_transposed(root, pull)
        # (U^-1 + Lambda_0^-1)^-1 = Lambda_0 - Lambda_0 Lambda_n^-1 Lambda_0, never negative
        quadratic = max(shift @ pull - half @ half, 0.0)
        away = solve_upper(root, half)
    else:
        beta = solve_upper(root, solve_transposed(root, basis.T @ (u @ shift)))
        away = shift - basis @ beta
        quadratic = away @ (u @ away) + beta @ (model.precision @ beta)
    return root, theta - away, model.shape + 0.5 * model.n, model.rate + 0.5 * (rss + quadratic)


@jit
def distance(model, s, k):
    """Return the distance of a released value from its statistic of the sums."""
    released = model.offset[k]
    for j in range(model.terms.shape[1]):
        released += model.weights[k, j] * s[model.terms[k, j]]
    return model.z[k] - released


@jit
def distances(model, c):
    """Return the distance of every released value from its statistic."""
    mean, lower, theta, rss = unpack(c, model.mean_x.size)
    s = sums(products_of_features(model.n, mean, lower), theta, rss)
    out = np.empty(model.z.size)
    for k in range(out.size):
        out[k] = distance(model, s, k)
    return out


@linked()
def log_density(model, c, proposal, gradient):
    """Log density of the statistics' coordinates, given the release.

    Writes the gradient by the sheared means and the other coordinates, with the edges of Laplace
    laws rounded off, unless the density is zero.
    """
    n, p, shear, blunt = model.n, model.mean_x.size, proposal.shear, proposal.blunt
    mean, lower, theta, rss = unpack(c, p)
    if not (rss > 0.0 and rss < math.inf):
        return -math.inf
    u = products_of_features(n, mean, lower)
    root, center, a, b = posterior(model, u, theta, rss)
    total, precision, weight = log_law_of_x(model, mean, lower)
    total -= a * math.log(b) + log_determinant(root)
    total += 0.5 * (n - p - 1.0) * math.log(rss)  # density and logarithm
    for i in range(p):  # Wishart density, |U|^(1/2), and the change of variables
        total += (n - i) * math.log(lower[i, i])
    s = sums(u, theta, rss)
    by_sums = np.zeros(s.size)
    for k in range(model.z.size):
        distance_k = distance(model, s, k)
        total -= model.lam[k] * abs(distance_k) + 0.5 * model.tau[k] * distance_k * distance_k
        within = model.lam[k] * distance_k / blunt
        force = model.lam[k] * min(max(within, -1.0), 1.0) + model.tau[k] * distance_k
        for j in range(model.terms.shape[1]):
            by_sums[model.terms[k, j]] += force * model.weights[k, j]
    if not abs(total) < math.inf:
        return -math.inf

    # Derivatives by the sums, by U and by the least-squares coefficients.
    d = p + 1
    by_means, by_products = n * by_sums[:d], np.empty((d, d))
    spread_out(by_sums[d:], by_products)
    apart_of_mean = theta - center
    of_beta = inverse(root)
    if len(of_beta) < d:
        of_beta = model.basis @ (of_beta @ np.ascontiguousarray(model.basis.T))
    by_u = -0.5 * a / b * apart_of_mean.reshape(-1, 1) * apart_of_mean - 0.5 * of_beta
    by_theta = -a / b * (u @ apart_of_mean)
    by_means[:p] += 2.0 * n * by_u[0, 1:]
    by_products[:p, :p] += by_u[1:, 1:]
    means = np.append(mean, c[c.size - p - 2])
    by_means += 2.0 * n * (by_products @ means)
    # Derivatives by the means and by the scatter, on which the means depend through the shear.
    by_means[:p] -= weight * (precision @ (mean - model.mean_x)) + by_theta[0] * theta[1:]
    by_means[p] += by_theta[0]
    by_products[:p, :p] -= 0.5 * precision
    sheared, by_scatter = np.empty((d, d)), np.zeros(s.size - d)
    for i in range(d):
        for j in range(by_scatter.size):
            by_scatter[j] += by_means[i] * shear[i, j]
    spread_out(by_scatter, sheared)
    by_products += sheared
    # The scatter is R R', with the columns of x's factor, and (slopes @ factor, root of RSS) last.
    rows = np.zeros((d, p))
    rows[:p] = lower
    rows[p] = theta[1:] @ lower
    by_rows = 2.0 * (by_products @ rows)
    gradient[:p] = by_means[:p]
    place = p
    for i in range(p):
        for j in range(i + 1):
            gradient[place] = by_rows[i, j] + theta[i + 1] * by_rows[p, j]
            place += 1
        gradient[place - 1] = gradient[place - 1] * lower[i, i] + n - i
    gradient[place] = by_means[p]
    gradient[place + 1 : place + d] = by_theta[1:] - by_theta[0] * mean + lower @ by_rows[p]
    gradient[-1] = rss * (by_products[p, p] - 0.5 * a / b) + 0.5 * (n - p - 1.0)
    return total


@linked()
def draw_parameters(rng, model, c):
    """Draw the coefficients and the error variance given the statistics' coordinates."""
    mean_x, lower, theta, rss = unpack(c, model.mean_x.size)
    u = products_of_features(model.n, mean_x, lower)
    root, mean, a, b = posterior(model, u, theta, rss)
    sigma2 = b / rng.standard_gamma(a)
    e = np.empty(len(root))
    for i in range(e.size):
        e[i] = rng.standard_normal()
    return mean + math.sqrt(sigma2) * (model.basis @ solve_upper(root, e)), sigma2


@jit
def feasible(model, c, theta, sigma2):
    """Say whether statistics and parameters are possible for rows in the box."""
    mean, lower, estimate, rss = unpack(c, 1)
    total = sums(products_of_features(model.n, mean, lower), estimate, rss)
    s = np.array([total[0], total[2], total[1], total[3], total[4]])
    return feasible_sums(s, model.n, model.box) and feasible_parameters(theta, sigma2, model.box)
