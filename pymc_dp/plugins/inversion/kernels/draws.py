r"""Exact draws of a sum of n independent records given its noisy release.

A record's contribution has masses :math:`w_j` on the values :math:`h_j` of quadrature nodes, see
`line`. With a tilt t, sums :math:`s` of n draws from :math:`w_j e^{t \cdot h_j} / M(t)` have the
density :math:`f(s) e^{t \cdot s} / M(t)^n`. A sum that is kept with the probability

.. math::

    \eta(z \mid s) e^{-t \cdot s} / \max_r \eta(z \mid r) e^{-t \cdot r}

is a draw from :math:`p(s \mid z) \propto f(s)\, \eta(z \mid s)`. The maximum is at
:math:`r = z - \sigma^2 t`, under Laplace noise of scale b at z as long as :math:`|t| \le 1/b`.
With t at the saddlepoint the sums lie around it, however far out z is: about one in
:math:`\sqrt{1 + V / \sigma^2}` is kept, V the variance of the tilted sum. The numbers of records at
each node are multinomial, so that the cost of a trial grows with the nodes, not with n.
"""

import math

import numpy as np

from pymc_dp.kernels import jit
from pymc_dp.plugins.inversion.kernels.contour import LARGEST_TAIL, saddlepoint, tilted
from pymc_dp.plugins.inversion.kernels.line import TOLERANCE
from pymc_dp.plugins.inversion.kernels.release import missed

_MOST_TRIALS = 100_000


@jit
def _tilt(lw, h, n, z, sg2, limit, pi):
    """Solve n K'(t) + sg2 t = z for a tilt within the limit, roughly: draws are exact for any t."""
    if h.max() == h.min():
        return 0.0
    if limit < math.inf:
        for end in (-limit, limit):
            mean, _ = tilted(lw, h, end, pi)
            if (z - n * mean - sg2 * end) * end >= 0.0:
                return end
    return saddlepoint(lw, h, 0.0, n, np.zeros(1), z, sg2, pi, np.empty(1))


@jit
def _log_kept(s, z, t, b, sg):
    """Log probability of keeping a sum."""
    if b > 0.0:
        return -abs(z - s) / b - t * (s - z)
    return -0.5 * ((s - z) / sg + sg * t) ** 2


@jit
def draw_sum(rng, log_weight, h, cut, n, z, b, sg):
    """Draw the sum of n records given its release, with noise b or sg; NaN if none is found.

    Parameters
    ----------
    log_weight, h, cut : log masses of quadrature nodes, their values, and which of them lie where
        the law was cut.
    n, z, b, sg : number of records, release, Laplace scale and Gaussian standard deviation.
    """
    size = len(h)
    pi = np.empty(size)
    log_total = log_weight.max()
    log_total += math.log(np.exp(log_weight - log_total).sum())
    lw = log_weight - log_total
    limit = 1.0 / b if b > 0.0 else math.inf
    t = _tilt(lw, h, n, z, sg * sg, limit, pi)
    for _ in range(60):
        log_tilted = lw + t * h
        pi[:] = np.exp(log_tilted - log_tilted.max())
        pi /= pi.sum()
        if np.dot(pi, cut) < LARGEST_TAIL:
            break
        t *= 0.5
    if not missed(log_weight, h, np.full(1, t), n, log_total) < TOLERANCE:
        return math.nan
    order = np.argsort(-pi)
    order = order[: np.count_nonzero(pi > 0.0)]
    # The share of each node in the mass of the nodes from it on, added up from the smallest.
    share = np.empty(order.size)
    left = 0.0
    for j in range(order.size - 1, -1, -1):
        left += pi[order[j]]
        share[j] = pi[order[j]] / left
    for _ in range(_MOST_TRIALS):
        total, records = 0.0, int(n)
        for j in range(order.size):
            if records == 0:
                break
            k = records if j == order.size - 1 else rng.binomial(records, min(share[j], 1.0))
            records -= k
            total += k * h[order[j]]
        if rng.standard_exponential() > -_log_kept(total, z, t, b, sg):
            return total
    return math.nan
