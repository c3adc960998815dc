"""Draws of many Poisson numbers with one rate."""

import math

import numpy as np

from pymc_dp.kernels import jit


@jit
def draw_poisson(rng, rate, n):
    """Draw n Poisson numbers by inversion, from a table with an index into it.

    The table leaves out less than 2^-53 of the mass on either side, less than the resolution of a
    uniform double. For few numbers, where a table does not pay, each is drawn on its own.
    """
    out = np.empty(n, dtype=np.int64)
    spread = 9.0 * math.sqrt(rate) + 30.0
    if not (rate > 0.0 and 2.0 * spread < n):
        for i in range(n):
            out[i] = rng.poisson(rate)
        return out
    low = max(0, int(rate - spread))
    size = int(rate + spread) + 1 - low
    mass = np.empty(size)
    mode = int(rate) - low
    mass[mode] = 1.0
    for k in range(mode + 1, size):
        mass[k] = mass[k - 1] * rate / (low + k)
    for k in range(mode - 1, -1, -1):
        mass[k] = mass[k + 1] * (low + k + 1) / rate
    below = np.cumsum(mass)
    below /= below[-1]
    first = np.empty(
        size, dtype=np.int64
    )  # where the search begins for u in [j / size, (j + 1) / size)
    k = 0
    for j in range(size):
        while below[k] * size <= j:
            k += 1
        first[j] = k
    for i in range(n):
        u = rng.random()
        k = first[min(int(u * size), size - 1)]
        while below[k] <= u:
            k += 1
        out[i] = low + k
    return out
