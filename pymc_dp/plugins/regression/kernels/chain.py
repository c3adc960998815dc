r"""Exact inference for a linear regression from noisy sums over Normal rows, one compiled chain.

Rows :math:`(x_i, y_i)` with :math:`x \sim N_p(\mu_x, T)` and
:math:`y \mid x \sim N(\theta'\tilde x, \sigma^2)`, :math:`\tilde x = (1, x)`, have the sufficient
statistics :math:`U = \tilde X'\tilde X`, :math:`\tilde X'y` and :math:`y'y`. Under a
normal-inverse-gamma prior the parameters integrate out:

.. math::

    p(s) \propto p(U)\, |U|^{-1/2}\, \mathrm{RSS}^{\nu/2 - 1}\, |\Lambda_n|^{-1/2}\,
    b_n^{-a_n}, \qquad \nu = n - p - 1,

with p(U) a Normal mean times a Wishart scatter, or their marginal under a normal-inverse-Wishart
law of :math:`(\mu_x, T)`. What is left is a law of the statistics alone, times the noise;
Hamiltonian Monte Carlo explores it in the coordinates in which it is closest to Normal: the mean of
x, the Cholesky factor of its scatter matrix (logarithms on the diagonal), the mean of y, the
least-squares slopes and the logarithm of the residual sum of squares. With the mean of y in place
of the intercept, of which it differs by :math:`\hat\theta_1'\bar x`, all but the mean of x stays as
it is when x is shifted. The parameters are drawn exactly given the statistics.
The cost of a sweep does not depend on n.

Where a mean is far from zero, a released sum of squares tells more about that mean than about the
scatter: the two have to move together, along a line in the scatter matrix S of (x, y) itself, which
is a curve in the coordinates. So a step of the means is followed by :math:`K\,(S_{new} - S)`, with
a matrix K that stays as it is: the dynamics are those of the means less :math:`K S`, whose Jacobian
is one.

Where the noise hides X'y but not y'y, slopes and residuals share a known total, and slopes of both
signs are possible; where it hides X'X, slopes and the scatter of x share a known product. Each
draw has a step along either ridge (`write_turned`, `write_stretched`), besides the trajectories.
"""

import math
from typing import NamedTuple

import numpy as np

from pymc_dp.kernels import jit
from pymc_dp.kernels.functions.linear_algebra import (
    factor,
    inverse,
    log_determinant,
    solve_transposed,
    solve_upper,
)
from pymc_dp.kernels.linked import linked
from pymc_dp.kernels.moments.bounds import feasible_parameters, feasible_sums
from pymc_dp.kernels.moments.walk import random_size, turn

# How many leaps are accepted, how many there are at most, trajectories of a round with more noise,
# the width of the blunt edge of a Laplace law by the size of a leap, the length of a trajectory.
_ACCEPTANCE, _LEAPS, _COOLING, _BLUNT, _TURN = 0.7, 60.0, 20, 3.0, 2.0


class RegressionModel(NamedTuple):
    """What a sweep conditions on.

    Released entry k is ``offset[k] + weights[k] @ sums[terms[k]]`` with noise of Laplace rate
    ``lam[k]`` and Gaussian precision ``tau[k]`` (0 where it has none). The sums are those of the
    columns (x, y), then of the products of two of them, row by row of the upper triangle.
    `hierarchical`: the law of x is not N(mean_x, inverse of precision_x) but has the
    normal-inverse-Wishart prior (mean_x, kappa, psi, nu). `bounded`: the rows of a simple
    regression lie in the `box` (ax, bx, ay, by), and the density is cut to the feasible sums and
    parameters, without a normaliser. The coefficients, intercept first, are
    ``mean_theta + basis @ beta``, with beta ~ N(0, sigma2 inverse of `precision`): those that are
    numbers, such as an intercept of 0, have a row of zeros. Where none is, beta are the
    coefficients' own distances from their mean, and `basis` is the identity.
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


class Proposal(NamedTuple):
    """Trajectories: of the shape `factor`, and of the means `shear` @ change of the scatter.

    `leaps` is the mean number of leaps, whose size is part of the factor. Their force is that of a
    Laplace law whose edge is `blunt` for so many of its scales: across the edge itself, a leap
    changes the energy by as much as it is long. The edge is there when a point is accepted.
    """

    factor: np.ndarray
    shear: np.ndarray
    leaps: float
    blunt: float


@jit
def unpack(c, p):
    """Return the mean of x, the Cholesky factor of its scatter, the coefficients and the RSS."""
    lower = np.zeros((p, p))
    at = p
    for i in range(p):
        for j in range(i):
            lower[i, j] = c[at]
            at += 1
        lower[i, i] = math.exp(c[at])
        at += 1
    theta = c[at : at + p + 1].copy()
    for i in range(p):
        theta[0] -= theta[i + 1] * c[i]
    return c[:p], lower, theta, math.exp(c[at + p + 1])


@jit
def scatter(c, p):
    """Return the sums of products of deviations of (x, y), row by row of the upper triangle."""
    out = np.empty((p + 1) * (p + 2) // 2)
    write_scatter(c, p, out)
    return out


@jit
def write_scatter(c, p, out):
    """Write `scatter`; columns of the factor give their part one by one, and take no space."""
    out[:] = 0.0
    first_slope = p + p * (p + 1) // 2 + 1
    out[-1] = math.exp(c[-1])
    for k in range(p):
        diagonal = math.exp(c[p + k * (k + 1) // 2 + k])
        fitted = diagonal * c[first_slope + k]  # by the slopes, of y along column k
        for j in range(k + 1, p):
            fitted += c[p + j * (j + 1) // 2 + k] * c[first_slope + j]
        for i in range(k, p):
            own = diagonal if i == k else c[p + i * (i + 1) // 2 + k]
            row = i * (p + 1) - i * (i - 1) // 2 - i  # of the upper triangle, less i
            for j in range(i, p):
                other = diagonal if j == k else c[p + j * (j + 1) // 2 + k]
                out[row + j] += own * other
            out[row + p] += own * fitted
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
    at = q
    for i in range(d - 1):
        for j in range(i, d - 1):
            out[at] = u[i + 1, j + 1]
            at += 1
        out[at] = xy[i + 1]
        at += 1
    out[at] = yy
    return out


@jit
def log_law_of_x(model, mean, lower):
    """Log density of the mean and scatter matrix of x, but for powers of the latter's diagonal.

    Returns a precision and a weight, too: minus half the precision is the gradient by the scatter
    matrix, and by the mean it is minus the weighted precision times the distance from `mean_x`.
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

    Lambda_n is of beta; mu_n is the mean of the coefficients.
    """
    shift, basis = theta - model.mean_theta, model.basis
    crossed = basis.T @ u
    root, proper = factor(crossed @ basis + model.precision, 0.0)
    if not proper:
        root[:] = math.nan
    if len(root) == theta.size:  # the basis is the identity
        pull = model.precision @ shift
        half = solve_transposed(root, pull)
        # (U^-1 + Lambda_0^-1)^-1 = Lambda_0 - Lambda_0 Lambda_n^-1 Lambda_0, never negative
        quadratic = max(shift @ pull - half @ half, 0.0)
        away = solve_upper(root, half)
    else:
        beta = solve_upper(root, solve_transposed(root, crossed @ shift))
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
    """Log density of the statistics' coordinates, given what was released.

    Writes its gradient by the means less their shear and the other coordinates, with the edges of
    Laplace laws blunt, unless there is no density.
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
        apart = distance(model, s, k)
        total -= model.lam[k] * abs(apart) + 0.5 * model.tau[k] * apart * apart
        within = model.lam[k] * apart / blunt
        force = model.lam[k] * min(max(within, -1.0), 1.0) + model.tau[k] * apart
        for j in range(model.terms.shape[1]):
            by_sums[model.terms[k, j]] += force * model.weights[k, j]
    if not abs(total) < math.inf:
        return -math.inf

    # By the sums: of the noise, and of the prior of the coefficients and its U.
    d = p + 1
    by_means, by_products = n * by_sums[:d], np.empty((d, d))
    spread_out(by_sums[d:], by_products)
    apart_of_mean = theta - center
    of_beta = model.basis @ inverse(root) @ model.basis.T
    by_u = -0.5 * a / b * apart_of_mean.reshape(-1, 1) * apart_of_mean - 0.5 * of_beta
    by_theta = -a / b * (u @ apart_of_mean)
    by_means[:p] += 2.0 * n * by_u[0, 1:]
    by_products[:p, :p] += by_u[1:, 1:]
    means = np.append(mean, c[c.size - p - 2])
    by_means += 2.0 * n * (by_products @ means)
    # By the means and the scatter, of which the shear makes the means depend.
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
    at = p
    for i in range(p):
        for j in range(i + 1):
            gradient[at] = by_rows[i, j] + theta[i + 1] * by_rows[p, j]
            at += 1
        gradient[at - 1] = gradient[at - 1] * lower[i, i] + n - i
    gradient[at] = by_means[p]
    gradient[at + 1 : at + d] = by_theta[1:] - by_theta[0] * mean + lower @ by_rows[p]
    gradient[-1] = rss * (by_products[p, p] - 0.5 * a / b) + 0.5 * (n - p - 1.0)
    return total


@jit
def spread_out(upper, out):
    """Write a gradient by the upper triangle of a symmetric matrix as one by all its entries."""
    at = 0
    for i in range(len(out)):
        for j in range(i, len(out)):
            out[i, j] = out[j, i] = upper[at] if i == j else 0.5 * upper[at]
            at += 1


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


@linked()
def write_turned(rng, c, p, out):
    """Write c with its slopes and residuals turned; return the log of the Jacobian.

    The scatter of y is the squared length of (slopes of y along the columns of the factor of x's,
    root of the RSS), which stays, as all but the slopes and the RSS does.
    """
    _, lower, theta, rss = unpack(c, p)
    direction = np.empty(p + 1)
    for k in range(p):
        direction[k] = 0.0
        for j in range(k, p):
            direction[k] += lower[j, k] * theta[j + 1]
    direction[p] = math.sqrt(rss)
    turn(rng, direction)
    out[:] = c
    out[-1] = 2.0 * math.log(direction[p])
    for j in range(p - 1, -1, -1):
        slope = direction[j]
        for i in range(j + 1, p):
            slope -= lower[i, j] * out[c.size - p - 1 + i]
        out[c.size - p - 1 + j] = slope / lower[j, j]
    return 0.5 * (c[-1] - out[-1])


@jit
def write_stretched(rng, c, p, out):
    """Write c with x stretched about its mean; return the log of the Jacobian.

    The slopes shrink by as much, so that the scatter of y and the residuals stay.
    """
    stretch = random_size(rng) * (1.0 if rng.random() < 0.5 else -1.0)
    factor, at = math.exp(stretch), p
    out[:] = c
    for i in range(p):
        for j in range(i + 1):
            out[at] = out[at] + stretch if i == j else out[at] * factor
            at += 1
    out[at + 1 : at + 1 + p] /= factor
    return stretch * (0.5 * p * (p - 1) - p)


@jit
def shear_means(proposal, s, c, new_s):
    """Move the means with the scatter, which is written."""
    p = len(proposal.shear) - 1
    write_scatter(c, p, new_s)
    for i in range(p + 1):
        at = i if i < p else c.size - p - 2
        for j in range(s.size):
            c[at] += proposal.shear[i, j] * (new_s[j] - s[j])


@linked()
def run_trajectory(rng, model, proposal, across, c, s, new_s, gradient):
    """Leap from c, which is overwritten as the gradient is; return densities: Hamilton's dynamics.

    `across` is the transposed factor: rows of either make the inner loops vectorise. How many leaps
    there are is random, so that no direction comes back to where it was.
    """
    factor, there = proposal.factor, -math.inf
    v, last = np.empty(c.size), s.copy()
    for i in range(c.size):
        v[i] = rng.standard_normal()
    before = v @ v
    leaps = max(int(proposal.leaps * (0.5 + rng.random()) + rng.random()), 1)
    for leap in range(leaps + 1):
        half = 0.5 if leap == 0 or leap == leaps else 1.0
        for i in range(c.size):
            force = half * gradient[i]
            for j in range(i + 1):
                v[j] += factor[i, j] * force
        if leap == leaps:
            break
        for i in range(c.size):
            for j in range(i, c.size):
                c[j] += across[i, j] * v[i]
        shear_means(proposal, last, c, new_s)
        last[:] = new_s
        there = log_density(model, c, proposal, gradient)
        if there == -math.inf:
            break
    return there, 0.5 * (before - v @ v)


@linked()
def run_hamiltonian(rng, c, theta, sigma2, model, proposal, steps):
    """Run trajectories, a turn and a stretch; draw the parameters given the statistics.

    With `bounded` the parameters are proposed together with the statistics, from their exact law
    given them, which leaves the acceptance probability as it is but for the indicators. Returns the
    last point, its parameters and the mean probability of acceptance, but for the indicators.
    """
    p, across = model.mean_x.size, proposal.factor.T.copy()
    gradient, new_gradient = np.empty(c.size), np.empty(c.size)
    current, s = log_density(model, c, proposal, gradient), scatter(c, p)
    c, proposed, new_s = c.copy(), np.empty(c.size), np.empty(s.size)
    accepted = 0.0
    for step in range(steps + 2):
        if step < steps:
            proposed[:], new_gradient[:] = c, gradient
            there, log_jacobian = run_trajectory(
                rng, model, proposal, across, proposed, s, new_s, new_gradient
            )
        else:
            if step == steps:
                log_jacobian = write_turned(rng, c, p, proposed)
            else:
                log_jacobian = write_stretched(rng, c, p, proposed)
            shear_means(proposal, s, proposed, new_s)
            there = log_density(model, proposed, proposal, new_gradient)
        ratio = there - current + log_jacobian
        accepted += math.exp(min(ratio, 0.0)) if step < steps and ratio == ratio else 0.0
        if math.log(rng.random()) < ratio:
            if model.bounded:
                new_theta, new_sigma2 = draw_parameters(rng, model, proposed)
                if not feasible(model, proposed, new_theta, new_sigma2):
                    continue
                theta, sigma2 = new_theta, new_sigma2
            c, proposed, s, new_s, current = proposed, c, new_s, s, there
            gradient, new_gradient = new_gradient, gradient
    if not model.bounded:
        theta, sigma2 = draw_parameters(rng, model, c)
    return c, theta, sigma2, accepted / max(steps, 1)


@jit
def run_sweeps(rng, c, theta, sigma2, model, proposal, steps, out):
    """Fill rows with (theta, sigma2, c), each `steps` trajectories after the one before.

    Returns the last point and its parameters.
    """
    d = theta.size
    for row in range(out.shape[0]):
        c, theta, sigma2, _ = run_hamiltonian(rng, c, theta, sigma2, model, proposal, steps)
        out[row, :d] = theta
        out[row, d] = sigma2
        out[row, d + 1 :] = c
    return c, theta, sigma2


def law_before_release(model, c):
    """Return a rough precision matrix of the coordinates by their law.

    The sums of n rows are near what the parameters say they are: a proposal's shape needs no more.
    """
    n, p = model.n, model.mean_x.size
    mean, lower, _, rss = unpack(c, p)
    spread = (lower @ lower.T / n).diagonal()
    weak = 1.0 / model.kappa if model.hierarchical else 0.0
    degrees = 1.0 / model.nu if model.hierarchical else 0.0
    variances = list(spread * (1.0 / n + weak))
    for i in range(p):
        variances += [spread[i] * (1.0 + n * degrees)] * i + [0.5 / n + 0.5 * degrees]
    u = products_of_features(n, mean, lower)
    sigma2 = (2.0 * model.rate + rss) / (2.0 * model.shape + n)
    u += 1e-12 * np.trace(u) * np.eye(len(u))  # rows that are all alike tell of no slope
    of_prior = model.basis @ np.linalg.inv(model.precision) @ model.basis.T
    of_theta = sigma2 * (np.linalg.inv(u) + of_prior)
    variances += [1.0] * (p + 1) + [2.0 / (n - p - 1.0) + 1.0 / model.shape]
    precision = np.diag(1.0 / np.array(variances))
    at = slice(-p - 2, -1)
    turn = np.eye(p + 1)
    turn[0, 1:] = mean
    precision[at, at] = np.linalg.inv(turn @ of_theta @ turn.T)
    return precision


def proposal_shape(model, c):
    """Return a proposal that suits the posterior near a point: Gauss-Newton."""
    p = model.mean_x.size
    means = [*range(p), c.size - p - 2]
    precision = law_before_release(model, c)
    jacobian = np.empty((model.z.size, c.size))
    moved = np.empty(((p + 1) * (p + 2) // 2, c.size))  # of the scatter
    for i, step in enumerate(1e-4 / np.sqrt(np.diag(precision))):
        e = np.zeros(c.size)
        e[i] = step
        jacobian[:, i] = (distances(model, c + e) - distances(model, c - e)) / (2.0 * step)
        moved[:, i] = (scatter(c + e, p) - scatter(c - e, p)) / (2.0 * step)
    sharpness = (0.5 * model.lam**2 + model.tau)[:, None]

    # What the means are expected to be, given the scatter and the release, is linear in the scatter
    of_scatter = np.zeros((model.z.size, len(moved)))
    for k, (terms, weights) in enumerate(zip(model.terms, model.weights, strict=True)):
        products = terms > p
        np.subtract.at(of_scatter[k], terms[products] - p - 1, weights[products])
    of_means = jacobian[:, means]
    known = precision[np.ix_(means, means)] + of_means.T @ (sharpness * of_means)
    shear = -np.linalg.solve(known, of_means.T @ (sharpness * of_scatter))

    back = np.eye(c.size)  # from the coordinates of the walk
    back[means] += shear @ moved
    jacobian = jacobian @ back
    precision = back.T @ precision @ back + jacobian.T @ (sharpness * jacobian)
    scale = np.sqrt(np.diag(precision))
    scaled = precision / np.outer(scale, scale)
    root, proper = factor(scaled, 1e-13)
    if not proper:
        values, vectors = np.linalg.eigh(scaled)
        scaled = (vectors * np.maximum(values, 1e-12 * values[-1])) @ vectors.T
        root, _ = factor(scaled, 0.0)
    cov = inverse(root) / np.outer(scale, scale)
    upper, _ = factor(cov + 1e-300 * np.eye(c.size), 0.0)
    return Proposal(np.ascontiguousarray(upper.T), shear, 1.0, 1.0)


def tune_proposal(rng, c, theta, sigma2, model, steps, check=lambda: None):
    """Adapt the proposal; return the point, its parameters and the proposal.

    What was released is approached from afar: the first rounds have a noise as large as the
    distance to it, a little less from round to round, with proposals of the shape that
    `proposal_shape` expects. The rounds after these take the covariance matrix of their own draws,
    each longer than the one before. The size of leaps is steered towards the acceptance that suits
    them best. After every trajectory `check` is called, which may raise an error to end it.
    """
    d = c.size
    length, done = max(2 * d, 50), 0
    precision = model.lam + np.sqrt(model.tau)
    cooling = 1.0 / max(float(np.max(precision * np.abs(distances(model, c)), initial=1.0)), 1.0)
    size = d**-0.25
    points = np.empty((0, d))
    while done < steps or cooling < 1.0:
        warm = model._replace(lam=model.lam * cooling, tau=model.tau * cooling**2)
        if len(points) < 4 * d:  # by the shape that the law gives, for want of draws
            proposal = proposal_shape(warm, c)
        else:
            proposal = proposal._replace(factor=empirical_shape(points))
        rest = max(min(length, steps - done), _COOLING) if cooling == 1.0 else _COOLING
        points = np.empty((rest, d))
        for i in range(rest):
            check()
            c, theta, sigma2, share = run_hamiltonian(
                rng, c, theta, sigma2, warm, sized(proposal, size), 1
            )
            points[i] = walked(c, proposal.shear)
            size *= math.exp((share - _ACCEPTANCE) * 5.0 / (5.0 + 0.2 * i))
        if cooling == 1.0:
            length, done = int(1.5 * length), done + rest
        cooling = min(2.0 * cooling, 1.0)
    return c, theta, sigma2, sized(proposal, size)


def sized(proposal, size):
    """Return a proposal with leaps of a size."""
    leaps = min(_TURN / size, _LEAPS)
    return proposal._replace(factor=size * proposal.factor, leaps=leaps, blunt=_BLUNT * size)


def walked(c, shear):
    """Return the coordinates of the walk: the means less their shear."""
    out, p = c.copy(), len(shear) - 1
    out[[*range(p), c.size - p - 2]] -= shear @ scatter(c, p)
    return out


def empirical_shape(points):
    """Return a factor of the covariance matrix of draws, its correlations shrunk."""
    d = points.shape[1]
    own = np.cov(points.T).reshape(d, d)
    scale = np.sqrt(np.diag(own) + 1e-300)
    shrink = min(0.5, d / len(points))
    correlation = (1.0 - shrink) * own / np.outer(scale, scale) + shrink * np.eye(d)
    return scale[:, None] * np.linalg.cholesky(correlation)
