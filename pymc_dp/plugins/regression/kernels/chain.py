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
from pymc_dp.kernels.linked import linked
from pymc_dp.kernels.moments.walk import random_size, turn
from pymc_dp.plugins.regression.kernels.density import draw_parameters, feasible, log_density
from pymc_dp.plugins.regression.kernels.statistics import scatter, unpack, write_scatter


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
