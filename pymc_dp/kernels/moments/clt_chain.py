r"""Linear regression from noisy sums of products: a chain whose cost does not depend on n.

The target is the joint law of :math:`(\theta, \sigma^2)`, normal-inverse-gamma a priori, of the
sums s with their central-limit law (`regression_law`), and of their noise: Laplace as a scale
mixture with variances :math:`\omega^2`, Gaussian, or none where a sum was not released.

A sweep draws :math:`\omega^2`, then s, proposes :math:`(\theta, \sigma^2)` from the
normal-inverse-gamma posterior given s, and walks in :math:`(\theta, \log \sigma^2)` with the
standardised u and v held fixed, so that s follows, and :math:`\omega^2` integrated out. The
proposal mixes where the sampling error dominates, the walk where the noise does (interweaving: Yu &
Meng, 2011); steps along the ridges of what is known of y but not of its parts join modes that are
far apart.

With `hierarchical`, the covariates are Normal and their mean and covariance, normal-inverse-Wishart
a priori, are sampled too, by the same two moves. With `bounded`, x and y of a simple regression are
known to lie in the `box` (ax, bx, ay, by); the target is the joint density times the indicators of
the feasible sums and parameters (Kazan & Reiter, 2024), without a normalising constant.
"""

import math
from typing import NamedTuple

import numpy as np

from pymc_dp.kernels import jit
from pymc_dp.kernels.draws.scale_mixture import draw_precision
from pymc_dp.kernels.functions.linear_algebra import (
    factor,
    log_determinant,
    solve_transposed,
    solve_upper,
    times_transposed,
)
from pymc_dp.kernels.moments.bounds import central_point, feasible_parameters, feasible_sums
from pymc_dp.kernels.moments.walk import random_size, turn
from pymc_dp.plugins.regression.kernels.clt_law import (
    cross_products,
    draw_standard_products,
    from_noise,
    gaussian_moments,
    log_products,
    log_responses,
    map_products,
    n_products,
    row_law,
    sum_of_squares,
    to_noise,
)

_ACCEPTED = 0.3  # share of accepted steps that the random walks are tuned to
_STEPS = 3  # of a random walk in a sweep, besides one for every coefficient


class RegressionModel(NamedTuple):
    """Everything that a sweep conditions on.

    A statistic has Laplace noise of scale `laplace` or Gaussian noise of standard deviation
    `gaussian`; where both are 0.0 it was not released, and its `z` is ignored. `mu0`, `lambda0`,
    `a0`, `b0` are the prior of (theta, sigma2). The moments of x are `eta` and `xi`, with any
    `xi_root` A such that AA' = xi; with `hierarchical` they are ignored, and
    cov_x ~ InverseWishart(psi0, nu0), mean_x | cov_x ~ N(m0, cov_x / k0). `box` is read where
    `bounded` is true.
    """

    n: float
    z: np.ndarray
    laplace: np.ndarray
    gaussian: np.ndarray
    mu0: np.ndarray
    lambda0: np.ndarray
    a0: float
    b0: float
    eta: np.ndarray
    xi: np.ndarray
    xi_root: np.ndarray
    hierarchical: bool
    m0: np.ndarray
    k0: float
    psi0: np.ndarray
    nu0: float
    bounded: bool
    box: np.ndarray


class RegressionState(NamedTuple):
    """A point of the chain, and the factors of the random walks with the sweeps they were tuned in.

    `root` is the upper U with U'U = eta: with `hierarchical` its first row holds the mean of x, and
    the rest is the factor of the covariance.
    """

    theta: np.ndarray
    sigma2: float
    s: np.ndarray
    root: np.ndarray
    walk: np.ndarray
    walk_x: np.ndarray
    tuned: int


def initial_state(model: RegressionModel) -> RegressionState:
    """Start where the released sums point if they are all there, else at the prior's centre.

    With `bounded` it is a feasible point in the middle of the box.
    """
    d, p = model.mu0.size, model.m0.size
    theta, sigma2 = model.mu0.copy(), model.b0 / (model.a0 + 1.0) if model.b0 > 0.0 else 1.0
    eta, xi = model.eta, model.xi
    if model.hierarchical:
        eta, xi = gaussian_moments(model.m0, model.psi0 / (model.nu0 + p + 1.0))
    s = model.n * row_law(theta, sigma2, eta, xi)[0]
    if np.all((model.laplace > 0.0) | (model.gaussian > 0.0)):
        cone = onto_cone(cross_products(model.z, model.n, d))
        prior = model.mu0, model.lambda0, model.a0, model.b0
        mean, _, a, b, proper = nig_update(cone, model.n, *prior)
        if proper:
            theta, sigma2, s = mean, b / (a + 1.0), model.z.copy()
    if model.bounded:
        s, theta, sigma2 = central_point(model.n, model.box)
    root = factor(eta)[0]
    walk, walk_x = 0.1 * np.eye(d + 1), 0.1 * np.eye(p + (p * (p + 1)) // 2)
    walk[:d, :d] = 0.1 * factor(np.linalg.inv(eta))[0]
    return RegressionState(theta, sigma2, s, root, walk, walk_x, 0)


@jit
def covariate_law(root):
    """Return the mean and the covariance of x from the factor of eta."""
    inner = np.ascontiguousarray(root[1:, 1:])
    return root[0, 1:].copy(), inner.T @ inner


@jit
def nig_update(b, n, mu0, lambda0, a0, b0):
    """Update a normal-inverse-gamma prior by the cross products of n rows.

    Returns mu_n, the upper factor of Lambda_n, a_n, b_n, and whether the result is proper.
    """
    d = mu0.size
    u, ok = factor(b[:d, :d] + lambda0)
    half = solve_transposed(u, b[:d, d] + lambda0 @ mu0)
    a_n = a0 + 0.5 * n
    b_n = b0 + 0.5 * (b[d, d] + mu0 @ (lambda0 @ mu0) - half @ half)
    return solve_upper(u, half), u, a_n, b_n, ok and b_n > 0.0 and a_n > 0.0


@jit
def draw_nig(rng, mu, u, a, b):
    """Draw sigma2 ~ InverseGamma(a, b) and theta | sigma2 ~ N(mu, sigma2 (U'U)^-1)."""
    sigma2 = b / rng.standard_gamma(a)
    return mu + math.sqrt(sigma2) * solve_upper(u, rng.standard_normal(mu.size)), sigma2


@jit
def log_nig(theta, sigma2, mu, precision, a, b):
    """Return the log density, without its normalising constant: improper laws have one, too."""
    apart = theta - mu
    rate = b + 0.5 * (apart @ (precision @ apart))
    return -(a + 1.0 + 0.5 * theta.size) * math.log(sigma2) - rate / sigma2


@jit
def niw_update(b, n, m0, k0, psi0, nu0):
    """Update a normal-inverse-Wishart prior by the cross products of n rows."""
    p = m0.size
    total = b[0, 1 : p + 1]
    k_n = k0 + b[0, 0]
    m_n = (k0 * m0 + total) / k_n
    psi_n = psi0 + b[1 : p + 1, 1 : p + 1] + k0 * np.outer(m0, m0) - k_n * np.outer(m_n, m_n)
    return m_n, k_n, psi_n, nu0 + n


@jit
def draw_niw(rng, m, k, psi, nu):
    """Draw a mean and a covariance by Bartlett's decomposition; the flag says if psi is proper."""
    p = m.size
    u, ok = factor(psi)
    a = np.zeros((p, p))
    for i in range(p):
        # U'A^-T of an upper A with a chi-squared diagonal is a root of the inverse of a Wishart
        a[i, i] = math.sqrt(2.0 * rng.standard_gamma(0.5 * (nu - i)))
        for j in range(i):
            a[j, i] = rng.standard_normal()
    root = np.empty((p, p))
    for i in range(p):
        root[i] = solve_transposed(a, np.ascontiguousarray(u[:, i]))
    mean = m + root @ rng.standard_normal(p) / math.sqrt(k)
    return mean, root @ root.T, ok


@jit
def log_niw(root, m, k, psi, nu):
    """Return the log density of the mean and the covariance in `root`, without its constant."""
    p = m.size
    u = np.ascontiguousarray(root[1:, 1:])
    apart = solve_transposed(u, root[0, 1:] - m)
    trace = 0.0
    for i in range(p):  # tr(U^-1 U^-T psi) = the sum of w'psi w over the columns w of U^-1
        unit = np.zeros(p)
        unit[i] = 1.0
        column = solve_upper(u, unit)
        trace += column @ (psi @ column)
    return -(nu + p + 2.0) * log_determinant(u) - 0.5 * (trace + k * (apart @ apart))


@jit
def onto_cone(b):
    """Clip the eigenvalues of cross products that no data have, so that updates are proper."""
    if factor(b)[1]:
        return b
    values, vectors = np.linalg.eigh(b)
    return (vectors * np.maximum(values, 0.0)) @ vectors.T


@jit
def draw_statistics(rng, model, released, noise, theta, sigma2, root):
    """Draw s given z and the noise variances: a draw of (s, z) is moved to the observed z.

    So the covariance of s is never inverted. The flag says whether that of z could be.
    """
    n, d, k, r = model.n, theta.size, model.z.size, released.size
    products = n_products(d)
    s = np.empty(k)
    eta, xi = model.eta, model.xi
    if model.hierarchical:
        eta, xi = gaussian_moments(*covariate_law(root))
        draw_standard_products(rng, s, n, d)
        map_products(s, np.ascontiguousarray(root.T), n)
    mean, cov = row_law(theta, sigma2, eta, xi)
    if not model.hierarchical:
        around = model.xi_root @ rng.standard_normal(products)
        s[:products] = n * mean[:products] + math.sqrt(n) * around
    from_noise(s, rng.standard_normal(d + 1), theta, sigma2, n, root)
    total, apart = np.empty((r, r)), np.empty(r)
    for i in range(r):
        for j in range(r):
            total[i, j] = n * cov[released[i], released[j]]
        here = released[i]
        total[i, i] += noise[here]
        apart[i] = model.z[here] - s[here] - math.sqrt(noise[here]) * rng.standard_normal()
    u, ok = factor(total)
    apart = solve_upper(u, solve_transposed(u, apart))
    for i in range(r):
        s += n * apart[i] * cov[released[i]]
    return s, ok


@jit
def log_noise(model, s):
    """Return log p(z | s), up to a constant."""
    total = 0.0
    for j in range(s.size):
        if model.laplace[j] > 0.0:
            total -= abs(model.z[j] - s[j]) / model.laplace[j]
        elif model.gaussian[j] > 0.0:
            total -= 0.5 * ((model.z[j] - s[j]) / model.gaussian[j]) ** 2
    return total


@jit
def _probability(log_ratio):
    return math.exp(min(log_ratio, 0.0)) if log_ratio > -math.inf else 0.0  # NaN is refused, too


@jit
def _retuned(walk, direction, accepted, pace):
    """Stretch or shrink a walk along its last step (Vihola, 2012), to accept the share wanted."""
    if pace == 0.0:
        return walk
    step = times_transposed(walk, direction)
    weight = min(1.0, direction.size * pace) * (accepted - _ACCEPTED) / (direction @ direction)
    u, ok = factor(walk.T @ walk + weight * np.outer(step, step))
    return u if ok else walk


@jit
def _feasible(model, theta, sigma2, s):
    if not model.bounded:
        return True
    inside = feasible_parameters(theta, sigma2, model.box)
    return inside and feasible_sums(s, model.n, model.box)


@jit
def _settle(rng, model, point, new_point, log_ratio):
    """Accept or refuse a move; its log ratio lacks the noise and the prior of the parameters."""
    theta, sigma2, s, _ = point
    new_theta, new_sigma2, new_s, _ = new_point
    log_ratio += log_noise(model, new_s) - log_noise(model, s)
    log_ratio += log_nig(new_theta, new_sigma2, model.mu0, model.lambda0, model.a0, model.b0)
    log_ratio -= log_nig(theta, sigma2, model.mu0, model.lambda0, model.a0, model.b0)
    accepted = _probability(log_ratio) * _feasible(model, new_theta, new_sigma2, new_s)
    return (new_point if rng.random() < accepted else point), accepted


@jit
def _follow(rng, model, point, new_theta, new_sigma2, new_root, of_x, log_jacobian):
    """Move (theta, sigma2, s, root) with the standardised x, u and v held fixed, so that s follows.

    `of_x`: `new_root` is not the root of the point. The Jacobian is that of theta, log sigma2 and
    the product of the root with itself. Returns the point and the probability of acceptance.
    """
    theta, sigma2, s, root = point
    new_s = s.copy()
    if of_x:
        moved = np.empty(root.shape)
        for i in range(theta.size):  # U'new U'^-1
            moved[i] = solve_upper(root, np.ascontiguousarray(new_root[:, i]))
        map_products(new_s, moved, model.n)
        log_jacobian += log_niw(new_root, model.m0, model.k0, model.psi0, model.nu0)
        log_jacobian -= log_niw(root, model.m0, model.k0, model.psi0, model.nu0)
    g = to_noise(s, theta, sigma2, model.n, root)
    from_noise(new_s, g, new_theta, new_sigma2, model.n, new_root)
    log_jacobian += math.log(new_sigma2 / sigma2)
    return _settle(rng, model, point, (new_theta, new_sigma2, new_s, new_root), log_jacobian)


@jit
def _walk_parameters(rng, model, point, walk, pace):
    """Move (theta, log sigma2); X'y and y'y follow."""
    theta, sigma2, _, root = point
    d = theta.size
    direction = rng.standard_normal(d + 1)
    step = times_transposed(walk, direction)
    new_sigma2 = sigma2 * math.exp(step[d])
    point, accepted = _follow(rng, model, point, theta + step[:d], new_sigma2, root, False, 0.0)
    return point, _retuned(walk, direction, accepted, pace)


@jit
def _walk_covariates(rng, model, point, walk, pace):
    """Move the law of x; all of s follows.

    The intercept moves along so that the mean of y stays, which the release says most about.
    """
    theta, sigma2, _, root = point
    d = theta.size
    direction = rng.standard_normal(walk.shape[0])
    step = times_transposed(walk, direction)
    new_root, log_jacobian, at = root.copy(), 0.0, 0
    for i in range(d):
        for j in range(max(i, 1), d):
            if i == j:  # the diagonal moves on the log scale; the density is that of U'U
                new_root[i, i] *= math.exp(step[at])
                log_jacobian += (d - i + 1.0) * step[at]
            else:
                new_root[i, j] += step[at]
            at += 1
    new_theta = theta.copy()
    new_theta[0] -= theta[1:] @ (new_root[0, 1:] - root[0, 1:])
    point, accepted = _follow(rng, model, point, new_theta, sigma2, new_root, True, log_jacobian)
    return point, _retuned(walk, direction, accepted, pace)


@jit
def _turn_slopes(rng, model, point):
    """Move X'y along the ridge on which the sums of x, xx, y and yy stay; parameters follow.

    The parameters move as the least-squares slopes and residuals of the sums do.
    """
    theta, sigma2, s, root = point
    n, d = model.n, theta.size
    products = s.size - d - 1
    b = cross_products(s, n, d)
    outer, ok = factor(np.ascontiguousarray(b[:d, :d]))
    if not ok:
        return point
    half = solve_transposed(outer, b[:d, d])
    rss = b[d, d] - half @ half
    if rss <= 0.0:
        return point
    turned = np.append(half[1:], math.sqrt(rss))
    turn(rng, turned)
    new_half = half.copy()
    new_half[1:] = turned[:-1]
    new_s, new_sigma2 = s.copy(), sigma2 * turned[-1] ** 2 / rss
    new_s[products : products + d] = times_transposed(outer, new_half)
    new_theta = theta + solve_upper(outer, new_half - half)
    ratio = log_responses(new_s, new_theta, new_sigma2, n, root)
    ratio -= log_responses(s, theta, sigma2, n, root)
    ratio += 1.5 * math.log(new_sigma2 / sigma2)  # of log sigma2, and of y'y by the root of the RSS
    return _settle(rng, model, point, (new_theta, new_sigma2, new_s, root), ratio)[0]


@jit
def _stretch_covariates(rng, model, point):
    """Stretch x about its mean, and shrink the slopes by as much: the law of y stays."""
    theta, sigma2, _, root = point
    d = theta.size
    p = d - 1.0
    stretch = random_size(rng) * (1.0 if rng.random() < 0.5 else -1.0)
    new_theta, new_root = theta.copy(), root.copy()
    new_root[1:, 1:] *= math.exp(stretch)
    new_theta[1:] *= math.exp(-stretch)
    new_theta[0] -= root[0, 1:] @ (new_theta[1:] - theta[1:])
    log_jacobian = stretch * (p * (p + 1.0) - p)
    return _follow(rng, model, point, new_theta, sigma2, new_root, True, log_jacobian)[0]


@jit
def _propose_parameters(rng, model, theta, sigma2, s, cone, root):
    """Propose (theta, sigma2) from the conjugate update given s; not always accepted.

    The prior is in the proposal and cancels: what is left of the ratio is the law of s over the
    likelihood that the proposal was made of.
    """
    n = model.n
    mu_n, u, a_n, b_n, ok = nig_update(cone, n, model.mu0, model.lambda0, model.a0, model.b0)
    if not ok:
        return theta, sigma2
    new_theta, new_sigma2 = draw_nig(rng, mu_n, u, a_n, b_n)
    if model.bounded and not feasible_parameters(new_theta, new_sigma2, model.box):
        return theta, sigma2
    ratio = log_responses(s, new_theta, new_sigma2, n, root)
    ratio -= log_responses(s, theta, sigma2, n, root)
    ratio += 0.5 * n * math.log(new_sigma2 / sigma2)
    ratio += 0.5 * sum_of_squares(new_theta, cone) / new_sigma2
    ratio -= 0.5 * sum_of_squares(theta, cone) / sigma2
    return (new_theta, new_sigma2) if rng.random() < _probability(ratio) else (theta, sigma2)


@jit
def _log_covariates(model, theta, sigma2, s, root, m_n, k_n, psi_n, nu_n):
    """Return log p(s, law of x | theta, sigma2) - log q(law of x | s)."""
    return (
        log_products(s, model.n, root)
        + log_responses(s, theta, sigma2, model.n, root)
        + log_niw(root, model.m0, model.k0, model.psi0, model.nu0)
        - log_niw(root, m_n, k_n, psi_n, nu_n)
    )


@jit
def _propose_covariates(rng, model, theta, sigma2, s, cone, root):
    """Propose the law of x from the conjugate update given X'X, likewise."""
    m_n, k_n, psi_n, nu_n = niw_update(cone, model.n, model.m0, model.k0, model.psi0, model.nu0)
    mean, cov, ok = draw_niw(rng, m_n, k_n, psi_n, nu_n)
    new_root = np.eye(theta.size)
    new_root[0, 1:] = mean
    inner, ok_too = factor(cov)
    new_root[1:, 1:] = inner
    if not (ok and ok_too):
        return root
    ratio = _log_covariates(model, theta, sigma2, s, new_root, m_n, k_n, psi_n, nu_n)
    ratio -= _log_covariates(model, theta, sigma2, s, root, m_n, k_n, psi_n, nu_n)
    return new_root if rng.random() < _probability(ratio) else root


@jit
def sweep(rng, state, model, released, warm):
    """One sweep; returns the new state. `warm` tunes the random walks."""
    theta, sigma2, s, root, walk, walk_x, tuned = state
    d = theta.size
    pace = (tuned + 1.0) ** (-2.0 / 3.0) if warm else 0.0
    point = theta, sigma2, s, root
    for _ in range(_STEPS + d):
        point, walk = _walk_parameters(rng, model, point, walk, pace)
        if model.hierarchical:
            point, walk_x = _walk_covariates(rng, model, point, walk_x, pace)
    point = _turn_slopes(rng, model, point)
    if model.hierarchical:
        point = _stretch_covariates(rng, model, point)
    theta, sigma2, s, root = point
    noise = model.gaussian**2
    for j in released:
        if model.laplace[j] > 0.0:
            noise[j] = 1.0 / draw_precision(rng, abs(model.z[j] - s[j]), model.laplace[j])
    new_s, ok = draw_statistics(rng, model, released, noise, theta, sigma2, root)
    if ok and (not model.bounded or feasible_sums(new_s, model.n, model.box)):
        s = new_s
    cone = onto_cone(cross_products(s, model.n, d))
    theta, sigma2 = _propose_parameters(rng, model, theta, sigma2, s, cone, root)
    if model.hierarchical:
        root = _propose_covariates(rng, model, theta, sigma2, s, cone, root)
    return RegressionState(theta, sigma2, s, root, walk, walk_x, tuned + warm)


@jit
def run_sweeps(rng, state, model, warm, thin, out):
    """Fill rows of `out` with (theta, sigma2, s) every `thin` sweeps; hierarchical: with root.

    Returns the last state. Draws are valid where `warm` is False: the walks are then frozen.
    """
    released = np.nonzero((model.laplace > 0.0) | (model.gaussian > 0.0))[0]
    d, k = state.theta.size, state.s.size
    for i in range(out.shape[0]):
        for _ in range(thin):
            state = sweep(rng, state, model, released, warm)
        out[i, :d] = state.theta
        out[i, d] = state.sigma2
        out[i, d + 1 : d + 1 + k] = state.s
        if model.hierarchical:
            out[i, d + 1 + k :] = state.root.ravel()
    return state
