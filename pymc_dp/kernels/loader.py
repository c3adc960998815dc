"""Poisson masses that keep their digits for large counts, by Loader's expansion around the mean.

Loader, C. (2000). Fast and accurate computation of binomial probabilities.
"""

import math

from numba import njit

_jit = njit(cache=True, nogil=True, error_model="numpy")
HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


@_jit
def stirling_error(n):
    """Log of n! minus Stirling's formula (n + 1/2) log n - n + log(2 pi) / 2, n > 0."""
    if n < 16.0:
        return math.lgamma(n + 1.0) - (n + 0.5) * math.log(n) + n - HALF_LOG_2PI
    q = 1.0 / (n * n)
    return (1 / 12 - q * (1 / 360 - q * (1 / 1260 - q * (1 / 1680 - q / 1188)))) / n


@_jit
def deviance(d, mean):
    """Return y log(y / mean) - y + mean for y = mean + d >= 0, mean > 0, from the difference d."""
    ratio = d / mean
    if abs(ratio) < 0.1:
        # mean {(1 + r) log(1 + r) - r} = mean sum_j (-r)^j / (j (j - 1)), j >= 2
        total, term = 0.0, ratio * ratio
        for j in range(2, 20):
            total += term / (j * (j - 1))
            term *= -ratio
        return mean * total
    y = mean + d
    return (y * math.log(y / mean) if y > 0.0 else 0.0) - d


@_jit
def log_poisson(k, mean):
    """Log mass of a Poisson count at an integer k."""
    if k < 0.0:
        return -math.inf
    if mean <= 0.0:
        return 0.0 if k == 0.0 else -math.inf
    if k == 0.0:
        return -mean
    return -stirling_error(k) - deviance(k - mean, mean) - HALF_LOG_2PI - 0.5 * math.log(k)
