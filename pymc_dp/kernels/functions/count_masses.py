"""Masses of counts that keep their digits for large ones, by Loader's expansion around the mean.

Loader, C. (2000). Fast and accurate computation of binomial probabilities.
Devroye, L. (1987). A simple generator for discrete log-concave distributions. Computing 39, 87-91.
"""

import math

import numpy as np

from pymc_dp.kernels import jit

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_ERRORS = np.array(
    [
        math.inf,
        0.08106146679532726,
        0.0413406959554093,
        0.02767792568499834,
        0.020790672103765093,
        0.016644691189821193,
        0.013876128823070748,
        0.01189670994589177,
        0.010411265261972096,
        0.009255462182712733,
        0.00833056343336287,
        0.007573675487951841,
    ]
)  # Stirling errors of 0, 1, ...


@jit
def stirling_error(n):
    """Log of n! minus Stirling's formula (n + 1/2) log n - n + log(2 pi) / 2, n > 0."""
    if n < 12.0:
        if n == np.floor(n):
            return _ERRORS[int(n)]
        return math.lgamma(n + 1.0) - (n + 0.5) * math.log(n) + n - HALF_LOG_2PI
    q = 1.0 / (n * n)
    s = 1 / 1680 - q * (1 / 1188 - q * (691 / 360360))
    return (1 / 12 - q * (1 / 360 - q * (1 / 1260 - q * s))) / n


@jit
def deviance(d, mean):
    """Return y log(y / mean) - y + mean for y = mean + d >= 0, mean > 0, from the difference d."""
    ratio, y = d / mean, mean + d
    if abs(ratio) < 0.1:
        # By log(y / mean) = 2 (v + v^3 / 3 + ...), whose first terms make d v.
        v = d / (mean + y)
        s = v * v
        rest = 1 / 3 + s * (1 / 5 + s * (1 / 7 + s * (1 / 9 + s * (1 / 11 + s * (1 / 13)))))
        return d * v + 2.0 * y * v * s * rest
    return (y * math.log(y / mean) if y > 0.0 else 0.0) - d


@jit
def log_poisson(k, mean):
    """Log mass of a Poisson count at an integer k."""
    if k < 0.0:
        return -math.inf
    if mean <= 0.0:
        return 0.0 if k == 0.0 else -math.inf
    if k == 0.0:
        return -mean
    return -stirling_error(k) - deviance(k - mean, mean) - HALF_LOG_2PI - 0.5 * math.log(k)


@jit
def log_binomial(c, n, p, q):
    """Log mass of the Binomial(n, p) law at an integer c, q = 1 - p.

    Log gamma functions would leave 5 digits at n = 1e9; here the error is a few units in the last
    place of the largest term, 1e-11 near the mean.
    """
    if c < 0.0 or c > n:
        return -math.inf
    if c == 0.0:
        return 0.0 if n == 0.0 else n * (math.log1p(-p) if p < 0.5 else math.log(q))
    if c == n:
        return n * (math.log1p(-q) if q < 0.5 else math.log(p))
    if p <= 0.0 or q <= 0.0:
        return -math.inf
    d = n - c
    ways = stirling_error(n) - stirling_error(c) - stirling_error(d)
    ways += 0.5 * math.log(n / c / d) - HALF_LOG_2PI
    return ways - deviance(c - n * p, n * p) - deviance(d - n * q, n * q)


@jit
def log_sigmoid(x):
    """Log of 1 / (1 + exp(-x))."""
    return -math.log1p(math.exp(-x)) if x > 0.0 else x - math.log1p(math.exp(x))


@jit
def log_binomial_of_logs(c, n, log_p, log_q):
    """`log_binomial`, 0 <= c <= n, of the logs of p and q: accurate where p or q underflows."""
    if c == 0.0:
        return n * log_q
    if c == n:
        return n * log_p
    p, q = math.exp(log_p), math.exp(log_q)
    if n * p < 1e-290 or n * q < 1e-290:
        ways = math.lgamma(n + 1) - math.lgamma(c + 1) - math.lgamma(n - c + 1)
        return ways + c * log_p + (n - c) * log_q
    return log_binomial(c, n, p, q)


@jit
def propose_offset(rng, height):
    """Propose a distance from the mode of a log-concave mass on the integers (Devroye 1987).

    `height` is the mass at the mode; its inverse bounds the spread of any such law. Returns the
    offset and the log of the envelope there, relative to the height: accept where a uniform number
    times the envelope is at most the relative mass.
    """
    flat = 1.0 + 0.5 * height
    if rng.random() * (1.0 + flat) <= flat:
        distance, log_cap = rng.random() * flat / height, 0.0
    else:
        beyond = -math.log(1.0 - rng.random())
        distance, log_cap = (flat + beyond) / height, -beyond
    offset = math.floor(distance + 0.5)
    return (offset if rng.random() < 0.5 else -offset), log_cap
