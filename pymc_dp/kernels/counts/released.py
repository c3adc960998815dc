"""Draws of one Poisson count given its release, for the sweep of `kernels.counts.factorization`."""

import math

import numpy as np

from pymc_dp.kernels import njit
from pymc_dp.kernels.counts.poisson import draw_poisson_two_sided
from pymc_dp.kernels.functions.bessel import draw_bessel

_jit = njit(cache=True, nogil=True, error_model="numpy")

_LISTED_MODE = 150.0  # up to which adding up the masses around the mode beats rejection
LISTED = 512  # masses on either side of such a mode above 1e-17 of their sum, and more
_ALL_BUT = 1e-17
_STEEP = 30.0  # rate of the noise up to which exponentials of it cannot overflow in products


@_jit
def draw_count(rng, z, lam, down, up, mu, masses):
    r"""Draw y with mass proportional to Poisson(y | mu) exp(-lam abs(z - y)).

    Parameters
    ----------
    rng : numpy Generator
    z : float
        Release.
    lam, down, up : float
        Rate of the noise, :math:`e^{-\lambda}` and :math:`e^{\lambda}`.
    mu : float
        Rate of the count.
    masses : float array (2, 512)
        Room to work in.

    Returns
    -------
    float
        The count; NaN if mu or z is NaN or above 9e15.
    """
    if not (mu >= 0.0 and mu < 9e15 and abs(z) < 9e15):  # floor gives an integer
        return math.nan
    k = float(math.floor(z))
    delta = z - k
    if mu == 0.0:
        return 0.0
    right = mu * down
    if z <= 0.0:  # every count is on the far side: the law is tilted, not cut
        return float(rng.poisson(right))
    left = mu * up
    mode = max(k, 0.0)
    if left < k:
        mode = float(math.floor(left))
    elif right > k + 1.0:
        mode = float(math.floor(right))
    if mode > _LISTED_MODE or lam > _STEEP:
        return draw_poisson_two_sided(rng, z, 1.0 / lam, 0.0, math.inf, mu)
    # Masses relative to that at the mode, upwards and downwards until nothing is left.
    bridge = right if delta == 0.0 else mu * math.exp(lam * (2.0 * delta - 1.0))  # from k to k + 1
    above, below = 0.0, 0.0
    n_above, n_below = 0, 0
    term, y = 1.0, mode
    while n_above < LISTED and term > _ALL_BUT * above:
        ratio = left if y < k else bridge if y == k else right
        y += 1.0
        term *= ratio / y
        masses[0, n_above] = term
        above += term
        n_above += 1
    inverse_left, inverse_right = 1.0 / left, 1.0 / right
    term, y = 1.0, mode
    while y > 0.0 and term > _ALL_BUT * below:
        term *= y * (inverse_left if y <= k else inverse_right) if y != k + 1.0 else y / bridge
        y -= 1.0
        masses[1, n_below] = term
        below += term
        n_below += 1
    u = rng.random() * (1.0 + above + below) - 1.0
    if u < 0.0:
        return mode
    if u < above:
        j = 0
        while j < n_above - 1 and u >= masses[0, j]:
            u -= masses[0, j]
            j += 1
        return mode + 1.0 + j
    u -= above
    j = 0
    while j < n_below - 1 and u >= masses[1, j]:
        u -= masses[1, j]
        j += 1
    return mode - 1.0 - j if n_below else mode


@_jit
def draw_count_augmented(rng, z, down, mu, augmentation):
    """Draw a count by the published augmentation; see `kernels.counts.factorization`.

    `augmentation` holds the two latent rates, which are drawn anew given everything else.
    """
    rate = mu + augmentation[0]
    m = draw_bessel(rng, abs(z), 2.0 * math.sqrt(rate) * math.sqrt(augmentation[1]))
    if not (rate < math.inf and m < 9e15):
        return math.nan
    both = m + max(z, 0.0)
    y = float(rng.binomial(int(both), mu / rate)) if both > 0.0 and mu > 0.0 else 0.0
    augmentation[0] = down * rng.standard_gamma(1.0 + both - y)
    augmentation[1] = down * rng.standard_gamma(1.0 + m + max(-z, 0.0))
    return y


@_jit
def start_augmentation(rng, z, noise, mu, augmentation):
    """Draw the latent rates of every cell exactly given its release and rate."""
    masses = np.empty((2, LISTED))
    for d in range(z.shape[0]):
        for v in range(z.shape[1]):
            lam = 1.0 / noise[d, v]
            down = math.exp(-lam)
            y = draw_count(rng, z[d, v], lam, down, math.exp(lam), mu[d, v], masses)
            difference = z[d, v] - y
            # The smaller of two geometric numbers does not depend on their difference.
            smaller = math.floor(rng.standard_exponential() / (2.0 * lam))
            for i, more in enumerate((max(difference, 0.0), max(-difference, 0.0))):
                augmentation[d, v, i] = down * rng.standard_gamma(1.0 + smaller + more)
