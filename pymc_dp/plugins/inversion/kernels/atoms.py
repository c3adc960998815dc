"""Density of a noisy sum of records each of which contributes one of one or two values."""

import math

import numpy as np

from pymc_dp.kernels import jit
from pymc_dp.kernels.functions.count_masses import log_binomial_of_logs
from pymc_dp.kernels.linked import V, linked

_FALL = 40.0  # fall of the log of a term at which a sum is cut off


@jit
def log_noise(e, b, sg):
    """Log density of noise of one kind, and its derivative."""
    if b > 0.0:
        return -abs(e) / b - math.log(2.0 * b), -np.sign(e) / b
    r = e / sg
    return -0.5 * r * r - math.log(sg * math.sqrt(2.0 * math.pi)), -r / sg


@jit
def two_values(lw, h, n, z, b, sg, grad):
    """Log density where a record contributes one of two values, and its derivative by z.

    It is a sum over the number of records with the second value. Fills `grad` with the derivatives
    by lw.
    """
    # Logs keep the digits of the smaller mass.
    lq, lp = lw[0], lw[1]
    jump = h[1] - h[0]
    at_zero = z - n * h[0]
    lo, hi = 0.0, n
    while lo < hi:  # the terms are log-concave: bisect for the largest
        k = math.floor(0.5 * (lo + hi))
        change = math.log((n - k) / (k + 1.0)) + lp - lq
        e = at_zero - k * jump
        change += log_noise(e - jump, b, sg)[0] - log_noise(e, b, sg)[0]
        if change > 0.0:
            lo = k + 1.0
        else:
            hi = k
    mode = lo
    log_mode = log_binomial_of_logs(mode, n, lp, lq)
    total = mean = slope = reference = 0.0
    for direction in (1.0, -1.0):
        k = mode if direction > 0 else mode - 1.0
        log_mass = 0.0 if direction > 0 else math.log(mode / (n - mode + 1.0)) + lq - lp
        if direction < 0 and mode == 0.0:
            break
        while 0.0 <= k <= n:
            log_density, derivative = log_noise(at_zero - k * jump, b, sg)
            term = log_mass + log_density
            if k == mode:
                reference = term
            if term < reference - _FALL:
                break
            weight = math.exp(term - reference)
            total += weight
            mean += weight * (k - mode)
            slope += weight * derivative
            if direction > 0:
                log_mass += math.log((n - k) / (k + 1.0)) + lp - lq if k < n else 0.0
            else:
                log_mass += math.log(k / (n - k + 1.0)) + lq - lp if k > 0 else 0.0
            k += direction
    grad[1] = mode + mean / total
    grad[0] = n - grad[1]
    return log_mode + reference + math.log(total), slope / total


@linked(f"UniTuple(f8, 2)({V}, {V}, f8, f8, {V}, f8, f8, f8, {V}, {V})")
def few_values(lw, h, center, n, lp, z, b, sg, grad, by_number):
    """Log density, and its derivative by z, for one or two values.

    The masses need not add up to 1. A sum of n + k records is that of their values h + center, less
    n center. `line.line` describes n and lp, and the derivatives that fill `grad` and `by_number`.
    """
    log_mass = lw[0]
    if h.size > 1:
        log_mass = max(lw[0], lw[1]) + math.log1p(math.exp(-abs(lw[1] - lw[0])))
    by_mass, total, slope = np.zeros(2)[: h.size], -math.inf, 0.0
    grad[:] = 0.0
    for k in range(lp.size):
        by_number[k] = 0.0
        value, size = z - k * center, n + k
        if lp[k] == -math.inf:
            continue
        if h.size == 1:
            log_density, by_z = log_noise(value - size * h[0], b, sg)
            by_mass[0] = size
        else:
            log_density, by_z = two_values(lw - log_mass, h, size, value, b, sg, by_mass)
        log_density += lp[k] + size * log_mass
        top = max(total, log_density)
        old = math.exp(total - top)
        share = math.exp(log_density - top)
        total = top + math.log(old + share)
        old, share = old / (old + share), share / (old + share)
        by_number *= old
        by_number[k] = share
        grad[:] = old * grad + share * by_mass
        slope = old * slope + share * by_z
    return total, slope
