r"""Anchored tilted masses of the Normal law; see `kernels.functions.tilting`."""

import math

from pymc_dp.kernels import jit
from pymc_dp.kernels.functions.count_masses import HALF_LOG_2PI
from pymc_dp.kernels.functions.quadrature import SHORT_NODES, SHORT_WEIGHTS

_SQRT2 = math.sqrt(2.0)
_SQRT_HALF_PI = math.sqrt(0.5 * math.pi)


@jit
def _mills_excess(k):
    """Return 1/M(k) - k for Mills' ratio M(k) = (1 - Phi(k)) / phi(k), where k >= 4.

    The continued fraction has positive terms only, so the small difference that remains when
    k is large keeps all its digits.
    """
    depth = 8 + int(400.0 / (k * k))
    f = k
    for j in range(depth, 1, -1):
        f = k + j / f
    return 1.0 / f


@jit
def _tail(k):
    """Integrate exp(-k u - u^2/2) over u > 0, k >= 0; returns E[u], too."""
    if k < 4.0:
        total = _SQRT_HALF_PI * math.exp(0.5 * k * k) * math.erfc(k / _SQRT2)
        return total, 1.0 / total - k
    first = _mills_excess(k)
    return 1.0 / (k + first), first


@jit
def half_normal_parts(k, w):
    r"""Integrate exp(-k u - u^2/2) over [0, w], k >= 0, with its first two moments.

    Returns the integral, E[u], E[u^2] and the integrand at w.
    """
    end = math.exp(-w * (k + 0.5 * w))
    if w * (k + 0.5 * w) < 2.0:
        # A short interval: the difference of two tails would cancel.
        total = 0.0
        first = 0.0
        second = 0.0
        for i in range(SHORT_NODES.size):
            u = w * SHORT_NODES[i]
            weight = SHORT_WEIGHTS[i] * math.exp(-u * (k + 0.5 * u))
            total += weight
            first += weight * u
            second += weight * u * u
        return w * total, first / total, second / total, end
    total, first = _tail(k)
    if end == 0.0:
        return total, first, 1.0 - k * first, end
    total_far, first_far = _tail(k + w)
    beyond = end * total_far
    inside = total - beyond
    first = (total * first - beyond * (w + first_far)) / inside
    return inside, first, 1.0 - k * first - w * end / inside, end


@jit
def _normal_core(t, z, lo, hi, m, v):
    """Return L, E[s] - z, E[s] - m, dL/dv and the two relative densities at the ends."""
    if not (v > 0.0 and lo <= hi):
        if v > 0.0 and lo > hi:
            return -math.inf, 0.0, 0.0, 0.0, 0.0, 0.0
        return math.nan, math.nan, math.nan, math.nan, math.nan, math.nan
    if lo == hi:
        return -math.inf, 0.0, 0.0, 0.0, 0.0, 0.0
    sd = math.sqrt(v)
    shift = t * v
    below = ((lo - m) - shift) / sd
    above = ((hi - m) - shift) / sd
    if above <= 0.0 or below >= 0.0:
        width = (hi - lo) / sd
        if above <= 0.0:
            near = hi
            k = -above
            sign = -1.0
        else:
            near = lo
            k = below
            sign = 1.0
        total, first, second, end = half_normal_parts(k, width)
        dev = near - m
        log_mass = t * (near - z) - 0.5 * (dev / sd) * (dev / sd) - HALF_LOG_2PI + math.log(total)
        step = sign * sd * first
        square = dev * dev + 2.0 * dev * step + v * second
        dv = 0.5 * (square / v - 1.0) / v
        near_density = 1.0 / (sd * total)
        far_density = end / (sd * total)
        if sign < 0.0:
            return log_mass, (near - z) + step, dev + step, dv, far_density, near_density
        return log_mass, (near - z) + step, dev + step, dv, near_density, far_density
    base = t * ((m - z) + shift) - 0.5 * t * shift
    low_density = math.exp(-0.5 * below * below)
    high_density = math.exp(-0.5 * above * above)
    root = 2.0 * _SQRT_HALF_PI
    if above - below < 1.0:
        width = (hi - lo) / sd
        total = 0.0
        first = 0.0
        second = 0.0
        for i in range(SHORT_NODES.size):
            y = below + width * SHORT_NODES[i]
            weight = SHORT_WEIGHTS[i] * math.exp(-0.5 * y * y)
            total += weight
            first += weight * y
            second += weight * y * y
        first /= total
        second /= total
        mass = width * total / root
        log_mass = base + math.log(mass)
    else:
        outside = 0.5 * (math.erfc(above / _SQRT2) + math.erfc(-below / _SQRT2))
        mass = 0.5 * (math.erf(above / _SQRT2) - math.erf(below / _SQRT2))
        log_mass = base + (math.log1p(-outside) if outside < 0.5 else math.log(mass))
        first = (low_density - high_density) / (root * mass)
        second = 1.0
        if low_density > 0.0:
            second += below * low_density / (root * mass)
        if high_density > 0.0:
            second -= above * high_density / (root * mass)
    square = shift * shift + 2.0 * shift * sd * first + v * second
    scale = sd * root * mass
    return (
        log_mass,
        (m - z) + shift + sd * first,
        shift + sd * first,
        0.5 * (square / v - 1.0) / v,
        low_density / scale,
        high_density / scale,
    )


@jit
def normal_log_tilted_mass(t, z, lo, hi, m, v):
    r"""Return :math:`\log \int_{lo}^{hi} N(s; m, v) e^{t (s - z)} ds`.

    Parameters
    ----------
    t, z : float
        Tilt and anchor.
    lo, hi : float
        Ends of the interval, infinite ones allowed; an empty interval has mass 0.
    m, v : float
        Mean and variance of the law.

    Returns
    -------
    float
    """
    return _normal_core(t, z, lo, hi, m, v)[0]


@jit
def normal_tilted_parts(t, lo, hi, m, v):
    r"""Return the anchored mass of the Normal law and its partial derivatives.

    The anchor is ``hi`` for ``t > 0`` and ``lo`` for ``t < 0`` (for ``t = 0`` it plays no part and
    counts as 0); that end must be finite.

    Returns
    -------
    tuple of float
        The log mass and its derivatives with respect to t, lo, hi, m and v.
    """
    anchor = 0.0
    if t > 0.0:
        anchor = hi
    elif t < 0.0:
        anchor = lo
    log_mass, dt, centred, dv, low, high = _normal_core(t, anchor, lo, hi, m, v)
    dm = centred / v
    # A common shift of both ends and of m changes nothing, which gives the delicate derivative
    # (density at the anchor minus t) without a cancellation.
    dlo = -low
    dhi = high
    if t > 0.0:
        dhi = low - dm
    elif t < 0.0:
        dlo = -high - dm
    if not hi > lo:
        dlo = 0.0
        dhi = 0.0
    return log_mass, dt, dlo, dhi, dm, dv
