"""Warm-up of the chain of a regression: the shape and the size of its trajectories."""

import math

import numpy as np

from pymc_dp.plugins.regression.kernels.chain import Proposal, run_hamiltonian
from pymc_dp.plugins.regression.kernels.density import distances
from pymc_dp.plugins.regression.kernels.linear_algebra import factor, inverse
from pymc_dp.plugins.regression.kernels.statistics import products_of_features, scatter, unpack

# Target of the acceptance, most leaps of a trajectory, trajectories of a round with increased
# noise, width of the rounded edge of a Laplace law in sizes of a leap, length of a trajectory.
_ACCEPTANCE, _LEAPS, _COOLING, _BLUNT, _TURN = 0.7, 60.0, 20, 3.0, 2.0


def law_before_release(model, c):
    """Return a rough precision matrix of the coordinates before the release.

    It takes the sums of n rows to be near their expectation, which is enough for a proposal.
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
    u += 1e-12 * np.trace(u) * np.eye(len(u))  # equal rows do not determine a slope
    of_prior = model.basis @ np.linalg.inv(model.precision) @ model.basis.T
    of_theta = sigma2 * (np.linalg.inv(u) + of_prior)
    variances += [1.0] * (p + 1) + [2.0 / (n - p - 1.0) + 1.0 / model.shape]
    precision = np.diag(1.0 / np.array(variances))
    coefficients = slice(-p - 2, -1)
    turn = np.eye(p + 1)
    turn[0, 1:] = mean
    precision[coefficients, coefficients] = np.linalg.inv(turn @ of_theta @ turn.T)
    return precision


def proposal_shape(model, c):
    """Return a proposal with the Gauss-Newton covariance of the posterior near a point."""
    p = model.mean_x.size
    means = [*range(p), c.size - p - 2]
    precision = law_before_release(model, c)
    jacobian = np.empty((model.z.size, c.size))
    moved = np.empty(((p + 1) * (p + 2) // 2, c.size))  # derivatives of the scatter
    for i, step in enumerate(1e-4 / np.sqrt(np.diag(precision))):
        e = np.zeros(c.size)
        e[i] = step
        jacobian[:, i] = (distances(model, c + e) - distances(model, c - e)) / (2.0 * step)
        moved[:, i] = (scatter(c + e, p) - scatter(c - e, p)) / (2.0 * step)
    sharpness = (0.5 * model.lam**2 + model.tau)[:, None]

    # The expectation of the means given the scatter and the release is linear in the scatter.
    of_scatter = np.zeros((model.z.size, len(moved)))
    for k, (terms, weights) in enumerate(zip(model.terms, model.weights, strict=True)):
        products = terms > p
        np.subtract.at(of_scatter[k], terms[products] - p - 1, weights[products])
    of_means = jacobian[:, means]
    known = precision[np.ix_(means, means)] + of_means.T @ (sharpness * of_means)
    shear = -np.linalg.solve(known, of_means.T @ (sharpness * of_scatter))

    back = np.eye(c.size)  # Jacobian of the coordinates by those of `walked`
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

    The first rounds have noise as large as the distance to the released values, which is halved
    from round to round, and proposals by `proposal_shape`. Later rounds, each longer than the one
    before, use the covariance matrix of the draws of the round before. The size of leaps is steered
    towards the best acceptance. `check` is called before every trajectory, and may raise an error
    to end the tuning.
    """
    d = c.size
    length, done = max(2 * d, 50), 0
    precision = model.lam + np.sqrt(model.tau)
    cooling = 1.0 / max(float(np.max(precision * np.abs(distances(model, c)), initial=1.0)), 1.0)
    size = d**-0.25
    points = np.empty((0, d))
    while done < steps or cooling < 1.0:
        warm = model._replace(lam=model.lam * cooling, tau=model.tau * cooling**2)
        if len(points) < 4 * d:  # too few draws for their covariance matrix
            proposal = proposal_shape(warm, c)
        else:
            proposal = proposal._replace(factor=empirical_shape(points))
        trajectories = max(min(length, steps - done), _COOLING) if cooling == 1.0 else _COOLING
        points = np.empty((trajectories, d))
        for i in range(trajectories):
            check()
            c, theta, sigma2, share = run_hamiltonian(
                rng, c, theta, sigma2, warm, sized(proposal, size), 1
            )
            points[i] = walked(c, proposal.shear)
            size *= math.exp((share - _ACCEPTANCE) * 5.0 / (5.0 + 0.2 * i))
        if cooling == 1.0:
            length, done = int(1.5 * length), done + trajectories
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
    cov = np.cov(points.T).reshape(d, d)
    scale = np.sqrt(np.diag(cov) + 1e-300)
    shrink = min(0.5, d / len(points))
    correlation = (1.0 - shrink) * cov / np.outer(scale, scale) + shrink * np.eye(d)
    return scale[:, None] * np.linalg.cholesky(correlation)
