r"""A Poisson count seen through noise that is exponential on both sides of the release.

With :math:`a = e^{-\lambda}`, :math:`k = \lfloor z \rfloor`, :math:`\delta = z - k`,

.. math::

    \sum_s \mathrm{Poisson}(s \mid \mu)\, e^{-\lambda |z - s|}
        = e^{-\lambda \delta} A + e^{\lambda \delta} B, \qquad
    A = \sum_{s \le k} \mathrm{Poisson}(s \mid \mu)\, a^{k - s}, \quad
    B = \sum_{s > k} \mathrm{Poisson}(s \mid \mu)\, a^{s - k} .

Both are Poisson masses of intervals, with the rates :math:`\mu / a` and :math:`\mu a`. If the
interval is a tail, its mass is :math:`\mathrm{Poisson}(k \mid \mu)` times a sum of falling positive
terms, in which :math:`e^{\mu / a}` cancels; else it is one minus a tail. All terms are computed
from :math:`\lambda = -\log a`, since a itself underflows.
"""

import math

import numpy as np

from pymc_dp.kernels import jit
from pymc_dp.kernels.counts.laws import POISSON
from pymc_dp.kernels.counts.noise import ADDITIVE
from pymc_dp.kernels.counts.sums import make_count_sum
from pymc_dp.kernels.functions.count_masses import log_poisson, propose_offset
from pymc_dp.kernels.functions.gamma_ratio import g_parts, h_parts

_sum = make_count_sum(POISSON, ADDITIVE)
_STEEP, _MILD = 0.2, 0.04  # noise rates beyond which sums are short: of many counts, of few
_STEEPEST = 100.0  # noise rate beyond which a sum on one side of z underflows against the other
_FEW = 400.0  # counts up to which sums are shorter than quadrature
_LISTED_MODE = 150.0  # largest mode for which listing the masses around it beats rejection
LISTED = 512  # room for the masses on either side of that mode above 1e-17 of their sum
_ALL_BUT = 1e-17


@jit
def _below(k, rate):
    """Sum of (k - 1) ... (k - j) / rate^j over j >= 0, for k >= 1 and rate >= k."""
    if k > _FEW and rate < 2.0 * k:
        # By the upper incomplete gamma function, which gives the sum for k + 1.
        total = rate * h_parts(k + 1.0, rate - k - 1.0, rate, math.inf)[0]
        return (total - 1.0) * rate / k
    total = term = 1.0
    inverse = 1.0 / rate
    j = k - 1.0
    while j > 0.0 and term > 1e-17 * total:
        term *= j * inverse
        total += term
        j -= 1.0
    return total


@jit
def _above(k, rate):
    """Sum of rate^j / ((k + 1) ... (k + j)) over j >= 1, for 0 <= rate <= k + 1."""
    if k > _FEW and rate > 0.5 * k:
        return rate * g_parts(k + 1.0, k + 1.0 - rate, rate, math.inf)[0]
    total, term, j = 0.0, 1.0, k
    while True:
        j += 1.0
        term *= rate / j
        total += term
        if term <= 1e-17 * total:
            return total


@jit
def poisson_two_sided(k, lam, delta, mu):
    """Log of the sum of the module for a whole k, 0 <= delta < 1; its derivatives by delta, mu."""
    if not (mu >= 0.0 and lam > 0.0) or math.isinf(mu) or math.isnan(k):
        return math.nan, math.nan, math.nan
    if k < 0.0 or (mu == 0.0 and k == 0.0 and delta == 0.0):
        # All of the law lies to the right (s >= 0 > z), or is 0 itself.
        slope = math.expm1(-lam)
        side = lam if k < 0.0 else -lam
        return side * (k + delta) + mu * slope, side, slope
    if mu == 0.0:
        # Only the count 0 is left; the derivative by mu compares it with the count 1.
        slope = math.exp(-lam * (abs(k + delta - 1.0) - (k + delta))) - 1.0
        return -lam * (k + delta), -lam, slope
    few = max(k, mu) <= _FEW
    if lam > (_MILD if few else _STEEP if k > _FEW else _STEEPEST):
        return _sum(k + delta, (lam, 0.0), (mu,))
    # Masses relative to exp(top), and derivatives by mu relative to it.
    here = log_poisson(k, mu)
    log_left, log_right = here, here
    log_up = math.log(mu) + lam  # log of the rate mu / a
    if k == 0.0 or log_up >= math.log(k + 1.0):
        # A / Poisson(k) = 1 + (k / rate) M, and its derivative in units of Poisson(k).
        m = _below(k, math.exp(min(log_up, 700.0))) if k > 0.0 else 0.0
        left = 1.0 + k * math.exp(-log_up) * m
        left_slope = k / mu * m - left
    else:
        up = math.exp(log_up)
        tail = math.exp(log_poisson(k, up) + math.log(_above(k, up)))
        log_left = mu * math.expm1(lam) - lam * k
        left = 1.0 - tail
        left_slope = left * math.expm1(lam) - math.exp(here - log_left + lam)
    down = mu * math.exp(-lam)
    if down <= k + 1.0:
        right = _above(k, down)
        right_slope = right * math.expm1(-lam) + math.exp(-lam)
    else:
        tail = math.exp(log_poisson(k, down))
        tail *= 1.0 + k / down * _below(k, down) if k > 0.0 else 1.0
        log_right = mu * math.expm1(-lam) + lam * k
        right = 1.0 - tail
        right_slope = right * math.expm1(-lam) + math.exp(here - log_right - lam)
    log_left -= lam * delta
    log_right += lam * delta
    top = max(log_left, log_right)
    wl, wr = math.exp(log_left - top), math.exp(log_right - top)
    total = wl * left + wr * right
    by_delta = lam * (wr * right - wl * left) / total
    return top + math.log(total), by_delta, (wl * left_slope + wr * right_slope) / total


@jit
def _draw_by_rejection(rng, z, lam, mu):
    """Draw as `draw_count`, at a cost that does not grow with the count.

    The conditional is log-concave, and a draw is accepted or rejected from the envelope of Devroye
    (1987), flat around the mode and exponential beyond.
    """
    # np.floor returns a double; math.floor would return an integer here, which overflows.
    k = np.floor(z)
    left = min(k, np.floor(mu * math.exp(min(lam, 700.0))))
    right = max(k + 1.0, np.floor(mu * math.exp(-lam)))
    top_left = log_poisson(left, mu) - lam * abs(z - left)
    mode, top = right, log_poisson(right, mu) - lam * abs(z - right)
    if top_left >= top:
        mode, top = left, top_left
    height = math.exp(top - poisson_two_sided(k, lam, z - k, mu)[0])
    while True:
        offset, log_cap = propose_offset(rng, height)
        s = mode + offset
        log_mass = log_poisson(s, mu) - lam * abs(z - s)
        if s >= 0.0 and math.log(1.0 - rng.random()) + log_cap <= log_mass - top:
            return s


@jit
def draw_count(rng, z, lam, down, up, mu, masses=None):
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
    masses : float array (2, 512), optional
        Scratch space.

    Returns
    -------
    float
        The count; NaN if mu or z is NaN or above 9e15.
    """
    if not (
        mu >= 0.0 and mu < 9e15 and abs(z) < 9e15 and lam >= 0.0
    ):  # math.floor returns an integer
        return math.nan
    k = float(math.floor(z))
    delta = z - k
    if mu == 0.0:
        return 0.0
    right = mu * down
    if z <= 0.0:  # every count is on the far side: the law is tilted, not cut
        return float(rng.poisson(right))
    left = mu * up
    # (k + 1) times the ratio of the masses at k + 1 and k.
    bridge = right if delta == 0.0 else mu * math.exp(lam * (2.0 * delta - 1.0))
    mode = k
    if left < k:
        mode = float(math.floor(left))
    elif right > k + 1.0:
        mode = float(math.floor(right))
    elif bridge > k + 1.0:
        mode = k + 1.0
    if mode > _LISTED_MODE:
        return _draw_by_rejection(rng, z, lam, mu)
    if masses is None:
        masses = np.empty((2, LISTED))
    # Masses relative to that at the mode, upwards and downwards until nothing is left.
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


@jit
def draw_poisson_two_sided(rng, z, noise, lo, hi, mu):
    """Draw a Poisson count given its release z with noise of scale `noise` on both sides.

    lo and hi are not used, since a Poisson count has no other range than [0, inf); draws of other
    counts take them.
    """
    lam = 1.0 / noise
    return draw_count(rng, z, lam, math.exp(-lam), math.exp(lam), mu)
