"""The contour along which a density is inverted: tilts of the law of a sum, and the saddlepoint.

See `line` for the law of a sum and for what a tilt is.
"""

import math

import numpy as np

from pymc_dp.kernels import jit

LOG_TINY = 35.0  # aliases are cut at exp(-LOG_TINY)
LARGEST_TAIL = 1e-15  # largest tilted mass at the ends where the law was cut


@jit
def log_mgf(lw, h, t):
    """Log of sum(exp(lw + t h)) for sum(exp(lw)) = 1, to relative accuracy for small t."""
    top = -math.inf
    spread = 0.0
    for j in range(h.size):
        spread = max(spread, abs(t * h[j]))
        top = max(top, lw[j] + t * h[j])
    total = 0.0
    if spread < 1.0:
        for j in range(h.size):
            total += math.exp(lw[j]) * math.expm1(t * h[j])
        return math.log1p(total)
    for j in range(h.size):
        total += math.exp(lw[j] + t * h[j] - top)
    return top + math.log(total)


@jit
def tilted(lw, h, t, pi):
    """Fill pi with the law tilted by t; returns its mean and variance."""
    top = -math.inf
    for j in range(h.size):
        top = max(top, lw[j] + t * h[j])
    total = mean = 0.0
    for j in range(h.size):
        pi[j] = math.exp(lw[j] + t * h[j] - top)
        total += pi[j]
    for j in range(h.size):
        pi[j] /= total
        mean += pi[j] * h[j]
    variance = 0.0
    for j in range(h.size):
        variance += pi[j] * (h[j] - mean) ** 2
    return mean, variance


@jit
def numbers(lp, a, omega):
    """Fill omega with the law of the number of records beyond n, weighted by exp(a) for each.

    Returns the log of its total, its mean and its variance.
    """
    if lp.size == 1:
        omega[0] = 1.0
        return lp[0], 0.0, 0.0
    top = -math.inf
    for k in range(lp.size):
        omega[k] = lp[k] + k * a
        top = max(top, omega[k])
    total = mean = square = 0.0
    for k in range(lp.size):
        omega[k] = math.exp(omega[k] - top)
        total += omega[k]
        mean += k * omega[k]
    mean /= total
    for k in range(lp.size):
        omega[k] /= total
        square += omega[k] * (k - mean) ** 2
    return top + math.log(total), mean, square


@jit
def saddlepoint(lw, h, center, n, lp, zeta, sg2, pi, omega):
    """Solve K'(t) + sg2 t = zeta, not to the last digit: any contour gives the same integral.

    K is the cumulant generating function of a sum of values h + center, less n center; see `line`.
    """
    mean, variance = tilted(lw, h, 0.0, pi)
    reach = h.max() - h.min()
    t, lo, hi = 0.0, -math.inf, math.inf
    for _ in range(60):
        extra = spread = 0.0
        if lp.size > 1:
            _, extra, spread = numbers(lp, log_mgf(lw, h, t) + center * t, omega)
        slope = (n + extra) * variance + spread * (mean + center) ** 2 + sg2
        gap = zeta - n * mean - extra * (mean + center) - sg2 * t
        if abs(gap) <= 1e-3 * math.sqrt(slope):
            break
        if gap > 0.0:
            lo = t
        else:
            hi = t
        # A longer step would change the weights by several e-folds, and the curvature with them.
        longest = (3.0 + abs(t) * reach) / reach
        step = min(max(gap / slope, -longest), longest) if slope > 0.0 else longest * np.sign(gap)
        t += step
        if not lo < t < hi:
            t = 0.5 * (lo + hi)
        mean, variance = tilted(lw, h, t, pi)
    return t


@jit
def within_tails(lw, h, tail, t, pi):
    """Take t back towards 0 until the ends, where the law was cut, carry no mass."""
    tilted(lw, h, t, pi)
    if np.dot(pi, tail) < LARGEST_TAIL:
        return t
    inside, outside = 0.0, t
    for _ in range(12):
        middle = 0.5 * (inside + outside)
        tilted(lw, h, middle, pi)
        if np.dot(pi, tail) < LARGEST_TAIL:
            inside = middle
        else:
            outside = middle
    return inside


@jit
def log_total(lw, h, center, n, lp, t, omega):
    """Log of the generating function of the sum at t; see `saddlepoint`. Fills omega."""
    log_m = log_mgf(lw, h, t)
    log_number, extra, spread = numbers(lp, log_m + center * t, omega)
    return n * log_m + log_number, extra, spread


@jit
def extent(lw, h, center, n, lp, zeta, sg2, t, base, start, sign, omega):
    """Distance that the tilted sum exceeds with probability e^-35, and Chernoff's exponent."""
    best, exponent = math.inf, 0.0
    for factor in (2.0, 0.5):
        # The distance is quasiconvex in c: walk up, and down if the first step up is no gain.
        c = start if factor == 2.0 else 0.5 * start
        while 1e-6 * start < c < 1e6 * start:
            s = t + sign * c
            bound = log_total(lw, h, center, n, lp, s, omega)[0] - base - sign * c * zeta
            bound += sg2 * (sign * t * c + 0.5 * c * c)
            distance = (max(bound, 0.0) + LOG_TINY) / c
            if distance >= best:
                break
            best, exponent = distance, c
            c *= factor
    return best, exponent
