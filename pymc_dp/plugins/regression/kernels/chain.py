r"""Exact inference for a linear regression from noisy sums over Normal rows, one compiled chain.

Rows :math:`(x_i, y_i)` with :math:`x \sim N_p(\mu_x, T)` and
:math:`y \mid x \sim N(\theta'\tilde x, \sigma^2)`, :math:`\tilde x = (1, x)`, have the sufficient
statistics :math:`U = \tilde X'\tilde X`, :math:`\tilde X'y` and :math:`y'y`. Under a
normal-inverse-gamma prior the parameters integrate out:

.. math::

    p(s) \propto p(U)\, |U|^{-1/2}\, \mathrm{RSS}^{\nu/2 - 1}\, |\Lambda_n|^{-1/2}\,
    b_n^{-a_n}, \qquad \nu = n - p - 1,

with p(U) a Normal mean times a Wishart scatter, or their marginal under a normal-inverse-Wishart
law of :math:`(\mu_x, T)`. The result is a law of the statistics alone, times the noise. Hamiltonian
Monte Carlo explores it in the coordinates in which it is closest to Normal: the mean of x, the
Cholesky factor of its scatter matrix (logarithms on the diagonal), the mean of y, the least-squares
slopes and the logarithm of the residual sum of squares. The mean of y takes the place of the
intercept, which is less by :math:`\hat\theta_1'\bar x`: so a shift of x changes the mean of x
alone. The parameters are drawn exactly given the statistics. The cost of a sweep does not depend on
n.

Where a mean is far from zero, a released sum of squares tells more about that mean than about the
scatter. The two have to move together, along a line in the scatter matrix S of (x, y), which is a
curve in the coordinates. So a step moves the means by a further :math:`K\,(S_{new} - S)`, with a
fixed matrix K: the dynamics are those of the means less :math:`K S`, a map of Jacobian one.

If the noise hides X'y but not y'y, slopes and residuals have a known total, and slopes of both
signs are possible; if it hides X'X, slopes and the scatter of x have a known product. Besides the
trajectories, each draw has a step along either ridge (`write_turned`, `write_stretched`).
"""

import math
from typing import NamedTuple

import numpy as np

from pymc_dp.kernels import jit
from pymc_dp.kernels.linked import linked
from pymc_dp.plugins.regression.kernels.density import draw_parameters, feasible, log_density
from pymc_dp.plugins.regression.kernels.statistics import scatter, unpack, write_scatter
from pymc_dp.plugins.regression.kernels.walk import random_size, turn


class Proposal(NamedTuple):
    """Shape and length of trajectories.

    `factor` is a factor of the covariance matrix of their steps, and `shear` times the change of
    the scatter is added to steps of the means. `leaps` is the mean number of leaps, whose size is
    part of the factor. The force on a leap is that of Laplace laws whose edge is rounded off within
    `blunt` scales: a leap across a sharp edge would change the energy by as much as the leap is
    long. Points are accepted by the law with its edge.
    """

    factor: np.ndarray
    shear: np.ndarray
    leaps: float
    blunt: float


@linked()
def write_turned(rng, c, p, out):
    """Write c with its slopes and residuals turned; return the log of the Jacobian.

    The scatter of y is the squared length of a vector: the slopes of y along the columns of the
    factor of x's scatter, and the root of the RSS. This vector is turned: its length, and all
    coordinates but slopes and RSS, stay.
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
    factor, place = math.exp(stretch), p
    out[:] = c
    for i in range(p):
        for j in range(i + 1):
            out[place] = out[place] + stretch if i == j else out[place] * factor
            place += 1
    out[place + 1 : place + 1 + p] /= factor
    return stretch * (0.5 * p * (p - 1) - p)


@jit
def shear_means(proposal, s, c, new_s):
    """Move the means with the scatter; write the new scatter to `new_s`."""
    p = len(proposal.shear) - 1
    write_scatter(c, p, new_s)
    for i in range(p + 1):
        place = i if i < p else c.size - p - 2
        for j in range(s.size):
            c[place] += proposal.shear[i, j] * (new_s[j] - s[j])


@linked()
def run_trajectory(rng, model, proposal, across, c, s, new_s, gradient):
    """Leap from c by Hamilton's dynamics; return the log density, and the loss of kinetic energy.

    c and the gradient are overwritten. `across` is the transposed factor: inner loops over rows of
    both vectorise. The number of leaps is random, so that no direction returns to its start.
    """
    factor, log_density_there = proposal.factor, -math.inf
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
        log_density_there = log_density(model, c, proposal, gradient)
        if log_density_there == -math.inf:
            break
    return log_density_there, 0.5 * (before - v @ v)


@linked()
def run_hamiltonian(rng, c, theta, sigma2, model, proposal, steps):
    """Run trajectories, a turn and a stretch; draw the parameters given the statistics.

    With `bounded`, parameters are proposed together with the statistics, from their exact law given
    the statistics: the acceptance probability is the same, times the indicator of the bounds.
    Returns the last point, its parameters and the mean acceptance probability without indicators.
    """
    p, across = model.mean_x.size, proposal.factor.T.copy()
    gradient, new_gradient = np.empty(c.size), np.empty(c.size)
    current, s = log_density(model, c, proposal, gradient), scatter(c, p)
    c, proposed, new_s = c.copy(), np.empty(c.size), np.empty(s.size)
    accepted = 0.0
    for step in range(steps + 2):
        if step < steps:
            proposed[:], new_gradient[:] = c, gradient
            new_density, log_jacobian = run_trajectory(
                rng, model, proposal, across, proposed, s, new_s, new_gradient
            )
        else:
            if step == steps:
                log_jacobian = write_turned(rng, c, p, proposed)
            else:
                log_jacobian = write_stretched(rng, c, p, proposed)
            shear_means(proposal, s, proposed, new_s)
            new_density = log_density(model, proposed, proposal, new_gradient)
        ratio = new_density - current + log_jacobian
        accepted += math.exp(min(ratio, 0.0)) if step < steps and ratio == ratio else 0.0
        if math.log(rng.random()) < ratio:
            if model.bounded:
                new_theta, new_sigma2 = draw_parameters(rng, model, proposed)
                if not feasible(model, proposed, new_theta, new_sigma2):
                    continue
                theta, sigma2 = new_theta, new_sigma2
            c, proposed, s, new_s, current = proposed, c, new_s, s, new_density
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
