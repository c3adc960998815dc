r"""Linear regression from noisy sums of products: a chain whose cost does not depend on n.

The target is the joint law of :math:`(\theta, \sigma^2)`, normal-inverse-gamma a priori, of the
sums s with their central-limit law (`regression_law`), and of their noise: Laplace as a scale
mixture with variances :math:`\omega^2`, Gaussian, or none where a sum was not released.

`corrected` samples exactly that. A sweep draws :math:`\omega^2`, moves :math:`(\theta, \log
\sigma^2)` by a random walk with s integrated out, draws s, and proposes :math:`(\theta, \sigma^2)`
from the normal-inverse-gamma posterior given s. The walk mixes where the noise dominates, the
proposal where the sampling error does. Otherwise the chain is the published one (Bernstein &
Sheldon, 2019), which accepts every proposal; its target is not the posterior of any model.

With `hierarchical`, the covariates are Normal and their mean and covariance, normal-inverse-Wishart
a priori, are sampled too, by the same two moves. With `bounded`, x and y of a simple regression are
known to lie in [0, 1]; the target is the joint density times the indicators of the feasible sums
and parameters (Kazan & Reiter, 2024), without a normalising constant.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from pymc_dp.kernels.regression_law import (
    cross_products,
    factor,
    gaussian_moments,
    log_determinant,
    log_residuals,
    n_products,
    regress,
    row_law,
    solve_transposed,
    solve_upper,
    sum_of_squares,
    times_transposed,
)
from pymc_dp.kernels.scale_mixture import draw_precision

_TRIES = 10_000  # of the published sampler, to find a feasible draw
_ACCEPTED = 0.3  # share of accepted steps that the random walks are tuned to


class RegressionModel(NamedTuple):
    """Everything that a sweep conditions on.

    A statistic has Laplace noise of scale `laplace` or Gaussian noise of standard deviation
    `gaussian`; where both are 0.0 it was not released, and its `z` is ignored. `mu0`, `lambda0`,
    `a0`, `b0` are the prior of (theta, sigma2). The moments of x are `eta` and `xi`, with any
    `xi_root` A such that AA' = xi; with `hierarchical` they are ignored, and
    cov_x ~ InverseWishart(psi0, nu0), mean_x | cov_x ~ N(m0, cov_x / k0).
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
    corrected: bool


class RegressionState(NamedTuple):
    """A point of the chain, and the factors of the random walks with the steps they are tuned by."""

    theta: np.ndarray
    sigma2: float
    s: np.ndarray
    mean_x: np.ndarray
    cov_x: np.ndarray
    walk: np.ndarray
    walk_x: np.ndarray
    tuned: int


class _Moments(NamedTuple):
    """Moments of x; `xi_root` A has AA' = xi, `eta_factor` U has U'U = eta."""

    eta: np.ndarray
    eta_factor: np.ndarray
    xi: np.ndarray
    xi_root: np.ndarray


class _Collapsed(NamedTuple):
    """Log density of z given the parameters and the noise variances, and what it was made of."""

    logp: float
    mean: np.ndarray
    cov: np.ndarray
    factor: np.ndarray


def initial_state(model: RegressionModel) -> RegressionState:
    """Start at the prior's centre, or at a feasible point of the unit square."""
    d, p = model.mu0.size, model.m0.size
    theta, sigma2 = model.mu0.copy(), model.b0 / (model.a0 + 1.0)
    mean_x, cov_x = model.m0.copy(), model.psi0 / (model.nu0 + p + 1.0)
    if model.bounded:
        theta, sigma2 = np.array([0.5, 0.0]), 0.05
        s = model.n * np.array([0.5, 0.3, 0.5, 0.25, 0.3])
    else:
        eta, xi = gaussian_moments(mean_x, cov_x) if model.hierarchical else (model.eta, model.xi)
        s = model.n * row_law(theta, sigma2, eta, xi)[0]
    walk, walk_x = 0.1 * np.eye(d + 1), 0.1 * np.eye(p + (p * (p + 1)) // 2)
    return RegressionState(theta, sigma2, s, mean_x, cov_x, walk, walk_x, 0)


@njit(cache=True, nogil=True, error_model="numpy")
def _gaussian_law(mean_x, cov_x):
    """Return the moments of Normal covariates, and whether they have a density."""
    eta, xi = gaussian_moments(mean_x, cov_x)
    eta_factor, ok = factor(eta)
    xi_factor, ok_too = factor(xi)
    return _Moments(eta, eta_factor, xi, np.ascontiguousarray(xi_factor.T)), ok and ok_too


@njit(cache=True, nogil=True, error_model="numpy")
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


@njit(cache=True, nogil=True, error_model="numpy")
def draw_nig(rng, mu, u, a, b):
    """Draw (theta, sigma2) with sigma2 ~ InverseGamma(a, b), theta | sigma2 ~ N(mu, sigma2 / U'U)."""
    sigma2 = b / rng.standard_gamma(a)
    return mu + math.sqrt(sigma2) * solve_upper(u, rng.standard_normal(mu.size)), sigma2


@njit(cache=True, nogil=True, error_model="numpy")
def log_nig(theta, sigma2, mu, precision, a, b):
    """Return the log density, without its normalising constant: improper laws have one, too."""
    apart = theta - mu
    rate = b + 0.5 * (apart @ (precision @ apart))
    return -(a + 1.0 + 0.5 * theta.size) * math.log(sigma2) - rate / sigma2


@njit(cache=True, nogil=True, error_model="numpy")
def niw_update(b, n, m0, k0, psi0, nu0):
    """Update a normal-inverse-Wishart prior by the cross products of n rows."""
    p = m0.size
    total = b[0, 1 : p + 1]
    k_n = k0 + b[0, 0]
    m_n = (k0 * m0 + total) / k_n
    psi_n = psi0 + b[1 : p + 1, 1 : p + 1] + k0 * np.outer(m0, m0) - k_n * np.outer(m_n, m_n)
    return m_n, k_n, psi_n, nu0 + n


@njit(cache=True, nogil=True, error_model="numpy")
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


@njit(cache=True, nogil=True, error_model="numpy")
def log_niw(mean, u, m, k, psi, nu):
    """Return the log density of a mean and of the covariance U'U, without its constant."""
    p = m.size
    apart = solve_transposed(u, mean - m)
    trace = 0.0
    for i in range(p):  # tr(U^-1 U^-T psi) = the sum of w'psi w over the columns w of U^-1
        unit = np.zeros(p)
        unit[i] = 1.0
        column = solve_upper(u, unit)
        trace += column @ (psi @ column)
    return -(nu + p + 2.0) * log_determinant(u) - 0.5 * (trace + k * (apart @ apart))


@njit(cache=True, nogil=True, error_model="numpy")
def onto_cone(b):
    """Clip the eigenvalues of cross products that no data have, so that updates are proper."""
    if factor(b)[1]:
        return b
    values, vectors = np.linalg.eigh(b)
    return (vectors * np.maximum(values, 0.0)) @ vectors.T


@njit(cache=True, nogil=True, error_model="numpy")
def feasible_sums(s, n):
    """Say whether sums of a simple regression can come from n rows in the unit square."""
    sx, sxx, sy, sxy, syy = s
    return (
        0.0 <= sxx <= sx <= n
        and 0.0 <= syy <= sy <= n
        and max(0.0, sx + sy - n) <= sxy <= min(sx, sy)
        and factor(cross_products(s, n, 2))[1]
    )


@njit(cache=True, nogil=True, error_model="numpy")
def feasible_parameters(theta, sigma2):
    """Say whether the line meets the unit square, and the variance is one of [0, 1]."""
    left, right = theta[0], theta[0] + theta[1]
    return sigma2 <= 0.25 and max(left, right) >= 0.0 and min(left, right) <= 1.0


@njit(cache=True, nogil=True, error_model="numpy")
def collapse(model, released, noise, theta, sigma2, law):
    """Return the density of z with the statistics integrated out, given the noise variances."""
    k, r = model.z.size, released.size
    mean, cov = row_law(theta, sigma2, law.eta, law.xi)
    mean, cov = model.n * mean, model.n * cov
    total, apart = np.empty((r, r)), np.empty(r)
    for i in range(r):
        for j in range(r):
            total[i, j] = cov[released[i], released[j]]
        total[i, i] += noise[released[i]]
        apart[i] = model.z[released[i]] - mean[released[i]]
    u, ok = factor(total)
    logp = -math.inf
    if ok:
        apart = solve_transposed(u, apart)
        logp = -0.5 * (apart @ apart) - log_determinant(u)
    return _Collapsed(logp, mean, cov, u)


@njit(cache=True, nogil=True, error_model="numpy")
def draw_statistics(rng, model, released, noise, theta, sigma2, law, collapsed):
    """Draw s given z: a draw of (s, z) from the joint law is moved to the observed z."""
    n, d, k = model.n, theta.size, model.z.size
    products = n_products(d)
    s = np.empty(k)
    root_n = math.sqrt(n)
    s[:products] = collapsed.mean[:products]
    s[:products] += root_n * (law.xi_root @ rng.standard_normal(products))
    u = math.sqrt(n * sigma2) * times_transposed(law.eta_factor, rng.standard_normal(d))
    s[products:] = regress(theta, s[:products], n)
    s[products : k - 1] += u
    s[k - 1] += 2.0 * (theta @ u) + sigma2 * (n + math.sqrt(2.0 * n) * rng.standard_normal())
    apart = np.empty(released.size)
    for i in range(released.size):
        j = released[i]
        apart[i] = model.z[j] - s[j] - math.sqrt(noise[j]) * rng.standard_normal()
    apart = solve_upper(collapsed.factor, solve_transposed(collapsed.factor, apart))
    for i in range(released.size):
        s += apart[i] * collapsed.cov[released[i]]
    return s


@njit(cache=True, nogil=True, error_model="numpy")
def _retuned(walk, direction, accepted, pace):
    """Stretch or shrink a walk along its last step (Vihola, 2012), to accept the share wanted."""
    if pace == 0.0:
        return walk
    step = times_transposed(walk, direction)
    weight = min(1.0, direction.size * pace) * (accepted - _ACCEPTED) / (direction @ direction)
    u, ok = factor(walk.T @ walk + weight * np.outer(step, step))
    return u if ok else walk


@njit(cache=True, nogil=True, error_model="numpy")
def _probability(log_ratio):
    return math.exp(min(log_ratio, 0.0)) if log_ratio > -math.inf else 0.0  # NaN is refused, too


@njit(cache=True, nogil=True, error_model="numpy")
def _walk_parameters(rng, model, released, noise, theta, sigma2, s, law, here, walk, pace):
    """Move (theta, log sigma2) with s integrated out; s comes along where bounds need it to."""
    d = theta.size
    direction = rng.standard_normal(d + 1)
    step = times_transposed(walk, direction)
    new_theta, new_sigma2, new_s = theta + step[:d], sigma2 * math.exp(step[d]), s
    there = collapse(model, released, noise, new_theta, new_sigma2, law)
    ratio = there.logp - here.logp + step[d]
    ratio += log_nig(new_theta, new_sigma2, model.mu0, model.lambda0, model.a0, model.b0)
    ratio -= log_nig(theta, sigma2, model.mu0, model.lambda0, model.a0, model.b0)
    accepted = _probability(ratio)
    if model.bounded and accepted > 0.0:
        new_s = draw_statistics(rng, model, released, noise, new_theta, new_sigma2, law, there)
        if not (feasible_parameters(new_theta, new_sigma2) and feasible_sums(new_s, model.n)):
            accepted = 0.0
    walk = _retuned(walk, direction, accepted, pace)
    if rng.random() < accepted:
        return new_theta, new_sigma2, new_s, there, walk
    return theta, sigma2, s, here, walk


@njit(cache=True, nogil=True, error_model="numpy")
def _walk_moments(rng, model, released, noise, theta, sigma2, s, mean_x, cov_x, law, here, walk, pace):
    """Move the mean of x and the log-Cholesky factor of its covariance, with s integrated out."""
    p = mean_x.size
    direction = rng.standard_normal(walk.shape[0])
    step = times_transposed(walk, direction)
    u, _ = factor(cov_x)
    new_u, new_mean, log_jacobian, at = u.copy(), mean_x + step[:p], 0.0, p
    for i in range(p):
        new_u[i, i] *= math.exp(step[at])
        log_jacobian += (p - i + 1.0) * step[at]
        at += 1
        for j in range(i + 1, p):
            new_u[i, j] += step[at]
            at += 1
    new_cov, new_s = new_u.T @ new_u, s
    new_law, ok = _gaussian_law(new_mean, new_cov)
    if not ok:
        return s, mean_x, cov_x, law, here, _retuned(walk, direction, 0.0, pace)
    there = collapse(model, released, noise, theta, sigma2, new_law)
    ratio = there.logp - here.logp + log_jacobian
    ratio += log_niw(new_mean, new_u, model.m0, model.k0, model.psi0, model.nu0)
    ratio -= log_niw(mean_x, u, model.m0, model.k0, model.psi0, model.nu0)
    accepted = _probability(ratio)
    if model.bounded and accepted > 0.0:
        new_s = draw_statistics(rng, model, released, noise, theta, sigma2, new_law, there)
        accepted *= feasible_sums(new_s, model.n)
    walk = _retuned(walk, direction, accepted, pace)
    if rng.random() < accepted:
        return new_s, new_mean, new_cov, new_law, there, walk
    return s, mean_x, cov_x, law, here, walk


@njit(cache=True, nogil=True, error_model="numpy")
def _propose_parameters(rng, model, theta, sigma2, b, cone, law):
    """Propose (theta, sigma2) from the conjugate update given s; not always accepted if corrected.

    The prior is in the proposal and cancels: what is left of the ratio is the law of s over the
    likelihood that the proposal was made of.
    """
    n = model.n
    mu_n, u, a_n, b_n, ok = nig_update(cone, n, model.mu0, model.lambda0, model.a0, model.b0)
    if not ok:
        return theta, sigma2
    for _ in range(1 if model.corrected else _TRIES):
        new_theta, new_sigma2 = draw_nig(rng, mu_n, u, a_n, b_n)
        if model.bounded and not feasible_parameters(new_theta, new_sigma2):
            continue
        ratio = math.inf
        if model.corrected:
            ratio = log_residuals(new_theta, new_sigma2, b, n, law.eta_factor)
            ratio -= log_residuals(theta, sigma2, b, n, law.eta_factor)
            ratio += 0.5 * n * math.log(new_sigma2 / sigma2)
            ratio += 0.5 * sum_of_squares(new_theta, cone) / new_sigma2
            ratio -= 0.5 * sum_of_squares(theta, cone) / sigma2
        if rng.random() < _probability(ratio):
            return new_theta, new_sigma2
    return theta, sigma2


@njit(cache=True, nogil=True, error_model="numpy")
def _log_moments(model, theta, sigma2, s, b, mean_x, cov_x, law, m_n, k_n, psi_n, nu_n):
    """Return log p(s, mean_x, cov_x | theta, sigma2) - log q(mean_x, cov_x | s)."""
    products = law.xi.shape[0]
    apart = s[:products].copy()
    at = 0
    for i in range(law.eta.shape[0]):
        for j in range(max(i, 1), law.eta.shape[0]):
            apart[at] -= model.n * law.eta[i, j]
            at += 1
    xi_factor = np.ascontiguousarray(law.xi_root.T)
    apart = solve_transposed(xi_factor, apart)
    u, _ = factor(cov_x)
    return (
        log_residuals(theta, sigma2, b, model.n, law.eta_factor)
        - 0.5 * (apart @ apart) / model.n
        - log_determinant(xi_factor)
        + log_niw(mean_x, u, model.m0, model.k0, model.psi0, model.nu0)
        - log_niw(mean_x, u, m_n, k_n, psi_n, nu_n)
    )


@njit(cache=True, nogil=True, error_model="numpy")
def _propose_moments(rng, model, theta, sigma2, s, b, cone, mean_x, cov_x, law):
    """Propose the mean and covariance of x from the conjugate update given X'X."""
    m_n, k_n, psi_n, nu_n = niw_update(cone, model.n, model.m0, model.k0, model.psi0, model.nu0)
    new_mean, new_cov, ok = draw_niw(rng, m_n, k_n, psi_n, nu_n)
    if not ok:
        return mean_x, cov_x, law
    new_law, ok = _gaussian_law(new_mean, new_cov)
    if ok and model.corrected:
        q = (m_n, k_n, psi_n, nu_n)
        ratio = _log_moments(model, theta, sigma2, s, b, new_mean, new_cov, new_law, *q)
        ratio -= _log_moments(model, theta, sigma2, s, b, mean_x, cov_x, law, *q)
        ok = rng.random() < _probability(ratio)
    if ok:
        return new_mean, new_cov, new_law
    return mean_x, cov_x, law


@njit(cache=True, nogil=True, error_model="numpy")
def sweep(rng, state, model, released, law, warm):
    """One sweep; returns the new state and moments of x. `warm` tunes the random walks."""
    theta, sigma2, s, mean_x, cov_x, walk, walk_x, tuned = state
    pace = (tuned + 1.0) ** (-2.0 / 3.0) if warm else 0.0
    noise = model.gaussian**2
    for j in released:
        if model.laplace[j] > 0.0:
            noise[j] = 1.0 / draw_precision(rng, abs(model.z[j] - s[j]), model.laplace[j])
    here = collapse(model, released, noise, theta, sigma2, law)
    if model.corrected:
        theta, sigma2, s, here, walk = _walk_parameters(
            rng, model, released, noise, theta, sigma2, s, law, here, walk, pace
        )
        if model.hierarchical:
            s, mean_x, cov_x, law, here, walk_x = _walk_moments(
                rng, model, released, noise, theta, sigma2, s, mean_x, cov_x, law, here, walk_x, pace
            )
    if here.logp > -math.inf:
        for _ in range(1 if model.corrected else _TRIES):
            new_s = draw_statistics(rng, model, released, noise, theta, sigma2, law, here)
            if not model.bounded or feasible_sums(new_s, model.n):
                s = new_s
                break
    b = cross_products(s, model.n, theta.size)
    cone = onto_cone(b)
    theta, sigma2 = _propose_parameters(rng, model, theta, sigma2, b, cone, law)
    if model.hierarchical:
        mean_x, cov_x, law = _propose_moments(
            rng, model, theta, sigma2, s, b, cone, mean_x, cov_x, law
        )
    return RegressionState(theta, sigma2, s, mean_x, cov_x, walk, walk_x, tuned + warm), law


@njit(cache=True, nogil=True, error_model="numpy")
def run_sweeps(rng, state, model, warm, thin, out):
    """Fill rows of `out` with (theta, sigma2, s, mean_x, cov_x) after every `thin` sweeps.

    Returns the last state. Draws are valid where `warm` is False.
    """
    released = np.nonzero((model.laplace > 0.0) | (model.gaussian > 0.0))[0]
    law = _Moments(model.eta, factor(model.eta)[0], model.xi, model.xi_root)
    if model.hierarchical:
        law, _ = _gaussian_law(state.mean_x, state.cov_x)
    d, k, p = state.theta.size, state.s.size, state.mean_x.size
    for i in range(out.shape[0]):
        for _ in range(thin):
            state, law = sweep(rng, state, model, released, law, warm)
        row = out[i]
        row[:d] = state.theta
        row[d] = state.sigma2
        row[d + 1 : d + 1 + k] = state.s
        if model.hierarchical:
            row[d + 1 + k : d + 1 + k + p] = state.mean_x
            row[d + 1 + k + p :] = state.cov_x.ravel()
    return state
