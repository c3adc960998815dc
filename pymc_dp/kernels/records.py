"""One sweep of record-additive Metropolis within Gibbs for Normal records."""

import math

import numpy as np
from numba import njit


@njit(cache=True, nogil=True, error_model="numpy")
def _log_noise(factors_mean, factors_var, constants, lam, tau, z, mean, var):
    """Log density of the releases, up to a constant, given the sample moments."""
    value = 0.0
    for j in range(z.size):
        d = z[j] - constants[j] - factors_mean[j] * mean - factors_var[j] * var
        value -= lam[j] * abs(d) + 0.5 * tau[j] * d * d
    return value


@njit(cache=True, nogil=True, error_model="numpy")
def sweep_records(
    rng, x, m, sd, factors_mean, factors_var, constants, lam, tau, z, bounded, lo, hi
):
    """Propose every record from Normal(m, sd), accept on the releases; changes x in place.

    The sums are kept centred at m, so that nothing cancels, and computed afresh in every sweep.
    Returns the number of accepted proposals.
    """
    n = x.size
    first = 0.0
    second = 0.0
    for i in range(n):
        d = x[i] - m
        first += d
        second += d * d
    mean, var = _moments(n, m, first, second)
    current = _log_noise(factors_mean, factors_var, constants, lam, tau, z, mean, var)
    accepted = 0
    for i in range(n):
        old = x[i] - m
        new = sd * rng.standard_normal()
        new_first = first + new - old
        new_second = second + new * new - old * old
        mean, var = _moments(n, m, new_first, new_second)
        if bounded and not (lo <= mean <= hi and (n - 1.0) / n * var <= (mean - lo) * (hi - mean)):
            continue
        proposed = _log_noise(factors_mean, factors_var, constants, lam, tau, z, mean, var)
        if proposed >= current or rng.random() < math.exp(proposed - current):
            x[i] = m + new
            first, second, current = new_first, new_second, proposed
            accepted += 1
    return accepted


@njit(cache=True, nogil=True, error_model="numpy")
def _moments(n, center, first, second):
    """Sample mean and variance from sums centred at `center`."""
    mean = first / n
    var = (second - first * mean) / (n - 1.0) if n > 1 else 0.0
    return center + mean, max(var, 0.0)


@njit(cache=True, nogil=True, error_model="numpy")
def draw_records(rng, n, m, sd, bounded, lo, hi):
    """Draw records from Normal(m, sd), shrunk to their mean until their moments are feasible."""
    x = m + sd * rng.standard_normal(n)
    if bounded:
        mean = x.mean()
        middle = min(max(mean, lo + 1e-6 * (hi - lo)), hi - 1e-6 * (hi - lo))
        x += middle - mean
        spread = np.mean((x - middle) ** 2)
        cap = (middle - lo) * (hi - middle)
        if spread > 0.99 * cap:
            x = middle + (x - middle) * math.sqrt(0.99 * cap / spread)
    return x
