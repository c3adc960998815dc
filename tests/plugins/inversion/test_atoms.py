"""Noisy sums of records that have mass at two values: against sums over how many have them."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate, special

from pymc_dp.plugins.inversion.kernels.line import line

N, PANELS = 5, 48


def by_counts(low, high, z, b):
    """Log density for masses at 0 and 1, and uniform records between them."""
    total = 0.0
    for k in range(N + 1):  # of the uniform ones, whose sum is Irwin and Hall's
        for j in range(N - k + 1):  # at 1
            ways = special.comb(N, k) * special.comb(N - k, j)
            mass = ways * (1 - low - high) ** k * high**j * low ** (N - k - j)
            at = z - j
            noise = [math.exp(-abs(at) / b) / (2 * b)]
            if k:
                ends = sorted({*map(float, range(k + 1)), min(max(at, 0.0), float(k))})
                noise = [
                    integrate.quad(_noisy, *pair, args=(k, at, b), epsabs=1e-14, epsrel=1e-12)[0]
                    for pair in pairwise(ends)
                ]
            total += mass * sum(noise)
    return math.log(total)


def _noisy(u, k, at, b):
    ways = [(-1) ** i * special.comb(k, i) * (u - i) ** (k - 1) for i in range(int(u) + 1)]
    return sum(ways) / math.factorial(k - 1) * math.exp(-abs(at - u) / b) / (2 * b)


def nodes(low, high):
    x, weights = np.polynomial.legendre.leggauss(16)
    h = ((np.arange(PANELS)[:, None] + (x + 1) / 2) / PANELS).ravel()
    mass = np.tile(weights / 2 / PANELS * (1 - low - high), PANELS)
    width = np.full(h.size, 1 / PANELS)
    for value, own in ((0.0, low), (1.0, high)):
        if own:
            h, mass, width = np.append(h, value), np.append(mass, own), np.append(width, 0.0)
    return np.log(mass), h, width


def density(log_mass, h, width, z, b):
    grad, total = np.zeros(h.size), special.logsumexp(log_mass)
    given = log_mass - total, h, width, np.zeros(h.size), float(N), np.zeros(1), z, b, 0.0
    value, slope, _ = line(*given, grad, np.zeros(1), np.zeros(3))
    return value + N * total, slope, grad


@pytest.mark.parametrize("z", [-0.2, 0.5, 1.0, 1.03, 4.9, 6.0])
@pytest.mark.parametrize("masses", [(0.3, 0.3), (0.9, 0.05), (0.02, 0.97), (0.4, 0.0), (0.0, 0.6)])
@pytest.mark.parametrize("b", [0.2, 3.0])
def test_density_and_derivatives(masses, z, b):
    law = nodes(*masses)
    value, slope, grad = density(*law, z, b)
    assert value == pytest.approx(by_counts(*masses, z, b), abs=3e-6)
    step = 1e-6
    moved = [density(*law, z + sign * step, b)[0] for sign in (1, -1)]
    if z not in (1.0,):  # a corner
        assert slope == pytest.approx((moved[0] - moved[1]) / (2 * step), abs=2e-4)
    for j in (3, law[0].size - 1):
        change = np.zeros(law[0].size)
        change[j] = step
        moved = [density(law[0] + sign * change, *law[1:], z, b)[0] for sign in (1, -1)]
        assert grad[j] == pytest.approx((moved[0] - moved[1]) / (2 * step), abs=2e-5)
