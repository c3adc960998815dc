r"""Ratios of Mills' kind for the Gamma law: tails relative to the integrand at their end.

The masses of a gamma kernel are, for c of either sign in the first,

.. math::

    \int_0^z s^{a-1} e^{-c s} ds = z^a e^{-c z} G(a, c z), \qquad
    \int_z^\infty s^{a-1} e^{-c s} ds = z^a e^{-c z} H(a, c z),

with :math:`G(a, x) = \int_0^\infty e^{-a y + x (1 - e^{-y})} dy = {}_1F_1(1; a + 1; x) / a` and
:math:`H(a, x) = \int_0^\infty e^{a y - x (e^y - 1)} dy`; the first moments of y are their
derivatives by a, up to the sign.
"""

import math

from pymc_dp.kernels import jit
from pymc_dp.kernels.functions.quadrature import DROP, LONG_NODES, LONG_WEIGHTS


@jit
def expm1_minus(y):
    """Return exp(y) - 1 - y without cancellation."""
    if abs(y) > 0.5:
        return math.expm1(y) - y
    s = 1.0 / 20922789888000.0
    s = s * y + 1.0 / 1307674368000.0
    s = s * y + 1.0 / 87178291200.0
    s = s * y + 1.0 / 6227020800.0
    s = s * y + 1.0 / 479001600.0
    s = s * y + 1.0 / 39916800.0
    s = s * y + 1.0 / 3628800.0
    s = s * y + 1.0 / 362880.0
    s = s * y + 1.0 / 40320.0
    s = s * y + 1.0 / 5040.0
    s = s * y + 1.0 / 720.0
    s = s * y + 1.0 / 120.0
    s = s * y + 1.0 / 24.0
    s = s * y + 1.0 / 6.0
    s = s * y + 0.5
    return s * y * y


@jit
def _quadrature(gap, x, sign, start, width):
    """Integrate exp(-gap y - x c), c = expm1(sign y) - sign y, over [start, start + width].

    Returns the integral, that of y and that of sign expm1(sign y).
    """
    total = 0.0
    first = 0.0
    moved = 0.0
    for i in range(LONG_NODES.size):
        y = start + width * LONG_NODES[i]
        curve = expm1_minus(sign * y)
        weight = LONG_WEIGHTS[i] * math.exp(-gap * y - x * curve)
        total += weight
        first += weight * y
        moved += weight * (y + sign * curve)
    return width * total, width * first, width * moved


@jit
def _series_g(a, x):
    """Sum x^k / (a)_{k+1}, 0 <= x <= a, with the sums for E[y] and E[1 - e^-y]."""
    inverse = 1.0 / a
    term = inverse
    harmonic = inverse
    total = term
    first = term * harmonic
    drop = 0.0
    k = 0.0
    while True:
        k += 1.0
        inverse = 1.0 / (a + k)
        drop += term * k * inverse
        term *= x * inverse
        harmonic += inverse
        total += term
        first += term * harmonic
        if term < 1e-18 * total:
            return total, first, drop


@jit
def _kummer_g(a, x):
    """Sum e^x |x|^k / ((a + k) k!), x <= 0, with the sums for E[y] and E[1 - e^-y]."""
    size = -x
    power = math.exp(x)
    total = 0.0
    first = 0.0
    drop = 0.0
    k = 0.0
    while True:
        term = power / (a + k)
        total += term
        first += term / (a + k)
        drop += term / (a + k + 1.0)
        k += 1.0
        power *= size / k
        if k > size and power < 1e-18 * total * (a + k):
            return total, first, drop


@jit
def _full_g(a, x):
    """Return the integrals below for a < 30 and -60 <= x <= a, over all y."""
    if x >= 0.0:
        return _series_g(a, x)
    return _kummer_g(a, x)


@jit
def g_parts(a, gap, x, width):
    r"""Integrate :math:`w(y) = e^{-a y + x (1 - e^{-y})}` over [0, width], for x <= a.

    ``gap`` is a - x, passed separately because the caller knows it to more digits. Returns the
    integrals of w, y w and (1 - e^-y) w.
    """
    if a >= 30.0:
        if x > 0.0:
            r = DROP / x
            reach = min(DROP / gap, r + math.sqrt(2.0 * r))
        else:
            # 1 - e^-y >= .57 y for all y up to this reach.
            reach = DROP / (a - 0.57 * x)
        return _quadrature(gap, x, -1.0, 0.0, min(reach, width))
    if x < -60.0:
        # In v = 1 - e^-y the integrand is almost a pure exponential.
        reach = 38.0 / -x
        if width < 1.0:
            reach = min(reach, -math.expm1(-width))
        total = 0.0
        first = 0.0
        drop = 0.0
        for i in range(LONG_NODES.size):
            v = reach * LONG_NODES[i]
            y = -math.log1p(-v)
            weight = LONG_WEIGHTS[i] * math.exp(x * v - (a - 1.0) * y)
            total += weight
            first += weight * y
            drop += weight * v
        return reach * total, reach * first, reach * drop
    if width == math.inf:
        return _full_g(a, x)
    end = math.exp(-gap * width - x * expm1_minus(-width))
    if width > 1e-3:
        total, first, drop = _full_g(a, x)
        if end == 0.0:
            return total, first, drop
        shrink = math.exp(-width)
        total_far, first_far, drop_far = _full_g(a, x * shrink)
        if end * total_far < 0.5 * total:
            total -= end * total_far
            first -= end * (width * total_far + first_far)
            drop -= end * (-math.expm1(-width) * total_far + shrink * drop_far)
            return total, first, drop
    # A short interval (in terms of its share of the mass): panels of doubling width follow the
    # e^-y in the exponent, which has scale one.
    start = 0.0
    total = 0.0
    first = 0.0
    drop = 0.0
    while start < width:
        piece = min(width - start, max(1.0, start))
        part = _quadrature(gap, x, -1.0, start, piece)
        total += part[0]
        first += part[1]
        drop += part[2]
        start += piece
        if width - start < 1e-12 * width:
            break
    return total, first, drop


@jit
def h_parts(a, gap, x, width):
    r"""Integrate :math:`w(y) = e^{a y - x (e^y - 1)}` over [0, width], for x >= a, x > 0.

    ``gap`` is x - a. Returns the integrals of w, y w and (e^y - 1) w.
    """
    r = DROP / x
    reach = min(math.log1p(r + math.sqrt(2.0 * r)), width)
    if gap > 0.0:
        reach = min(reach, DROP / gap)
    return _quadrature(gap, x, 1.0, 0.0, reach)
