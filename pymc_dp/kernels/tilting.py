r"""Anchored tilted masses of the Normal and the Gamma law, as scalar numba functions.

Laplace noise with rate :math:`\lambda` is exponential on either side of the released value
:math:`z`, so everything that is asked about a confidential statistic :math:`s` with density
:math:`f` follows from one primitive,

.. math::

    L(t, z, l, h) = \log \int_l^h f(s) \, e^{t (s - z)} \, ds ,

with :math:`t = +\lambda` to the left of :math:`z` and :math:`t = -\lambda` to its right:

.. math::

    \log p(z) = \log\tfrac{\lambda}{2}
        + \operatorname{logaddexp}\{L(\lambda, z, l, \min(z, u)), L(-\lambda, z, \max(z, l), u)\} .

Both families below are closed under the tilt, so :math:`L` is "moment generating function times
interval probability". That product is never formed when it would cancel: a mass in a tail of the
tilted law is written as the integrand at the endpoint nearest to the mode, times a ratio of the
Mills kind, which is of order one. All such ratios are integrals of positive functions, and the
first moments that the gradients need are sums of the same positive terms.

The functions named ``*_tilted_parts`` return the mass and its exact partial derivatives together,
because they share all the work. In them the mass is *anchored* at the end of the interval where
the tilt is largest, :math:`z = h` for :math:`t > 0` and :math:`z = l` for :math:`t < 0`: the
derivative with respect to that end is a difference of two numbers of size :math:`|t|`, which
only a joint treatment gets right when the noise is small.
"""

import math

import numpy as np
from numba import njit

__all__ = [
    "gamma_log_tilted_mass",
    "gamma_lower_ratio",
    "gamma_lower_ratio_mean",
    "gamma_tilted_mean_log",
    "gamma_tilted_parts",
    "gamma_upper_ratio",
    "gamma_upper_ratio_mean",
    "laplace_log_marginal_gamma",
    "laplace_log_marginal_normal",
    "log_erfcx",
    "log_ndtr",
    "normal_log_tilted_mass",
    "normal_tilted_parts",
]

# No fastmath: infinite endpoints and compensated products both need IEEE arithmetic.
_jit = njit(cache=True, nogil=True, error_model="numpy")

_SQRT2 = math.sqrt(2.0)
_SQRT_HALF_PI = math.sqrt(0.5 * math.pi)
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


def _unit_rule(count):
    """Nodes and weights of Gauss-Legendre quadrature on [0, 1].

    The library's nodes on [-1, 1] leave relative errors of 1e-13 in the weights near the ends,
    where our integrands are largest. So the left half is polished in the distance u from the end,
    with Legendre's recurrence in differences, and reflected.
    """
    half = (count + 1) // 2
    u = 0.5 * (np.polynomial.legendre.leggauss(count)[0][:half] + 1.0)
    for _ in range(3):
        previous = np.ones(half)
        step = -2.0 * u
        current = previous + step
        for k in range(1, count):
            step = (k * step - (2 * k + 1) * 2.0 * u * current) / (k + 1)
            previous = current
            current = current + step
        square = 4.0 * u * (1.0 - u)
        slope = -2.0 * count * (previous - (1.0 - 2.0 * u) * current) / square
        u = u - current / slope
    weights = square / (count * previous) ** 2
    rest = count - half
    return (
        np.concatenate([u, 1.0 - u[:rest][::-1]]),
        np.concatenate([weights, weights[:rest][::-1]]),
    )


_SHORT_NODES, _SHORT_WEIGHTS = _unit_rule(16)
_LONG_NODES, _LONG_WEIGHTS = _unit_rule(48)
# Beyond this drop of the log integrand a tail is below the rounding of the whole.
_DROP = 37.0


# --------------------------------------------------------------------------------------
# Normal
# --------------------------------------------------------------------------------------


@_jit
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


@_jit
def log_erfcx(x):
    r"""Return log of the scaled complementary error function exp(x^2) erfc(x), for any x."""
    if x < 4.0 / _SQRT2:
        return x * x + math.log(math.erfc(x))
    k = _SQRT2 * x
    return -math.log(_SQRT_HALF_PI * (k + _mills_excess(k)))


@_jit
def log_ndtr(x):
    """Return the log of the standard normal distribution function, for any x."""
    if x > 0.0:
        return math.log1p(-0.5 * math.erfc(x / _SQRT2))
    if x > -1.0:
        return math.log(0.5 * math.erfc(-x / _SQRT2))
    return -0.5 * x * x + log_erfcx(-x / _SQRT2) - math.log(2.0)


@_jit
def _half_normal_parts(k, w):
    r"""Integrate exp(-k u - u^2/2) over [0, w], k >= 0, with its first two moments.

    Returns the integral, E[u], E[u^2] and the integrand at w.
    """
    end = math.exp(-w * (k + 0.5 * w))
    if w * (k + 0.5 * w) < 2.0:
        # A short interval: the difference of two tails would cancel.
        total = 0.0
        first = 0.0
        second = 0.0
        for i in range(_SHORT_NODES.size):
            u = w * _SHORT_NODES[i]
            weight = _SHORT_WEIGHTS[i] * math.exp(-u * (k + 0.5 * u))
            total += weight
            first += weight * u
            second += weight * u * u
        return w * total, first / total, second / total, end
    if k < 4.0:
        total = _SQRT_HALF_PI * math.exp(0.5 * k * k) * math.erfc(k / _SQRT2)
        first = 1.0 / total - k
    else:
        first = _mills_excess(k)
        total = 1.0 / (k + first)
    if end == 0.0:
        return total, first, 1.0 - k * first, end
    far = k + w
    if far < 4.0:
        total_far = _SQRT_HALF_PI * math.exp(0.5 * far * far) * math.erfc(far / _SQRT2)
        first_far = 1.0 / total_far - far
    else:
        first_far = _mills_excess(far)
        total_far = 1.0 / (far + first_far)
    beyond = end * total_far
    inside = total - beyond
    first = (total * first - beyond * (w + first_far)) / inside
    return inside, first, 1.0 - k * first - w * end / inside, end


@_jit
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
        total, first, second, end = _half_normal_parts(k, width)
        dev = near - m
        log_mass = t * (near - z) - 0.5 * (dev / sd) * (dev / sd) - _HALF_LOG_2PI + math.log(total)
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
        for i in range(_SHORT_NODES.size):
            y = below + width * _SHORT_NODES[i]
            weight = _SHORT_WEIGHTS[i] * math.exp(-0.5 * y * y)
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


@_jit
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


@_jit
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


# --------------------------------------------------------------------------------------
# Gamma: ratios of Mills' kind
# --------------------------------------------------------------------------------------


@_jit
def _expm1_minus(y):
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


@_jit
def _quadrature_g(a, gap, x, start, width):
    """Integrate exp(-gap y - x (y - 1 + e^-y)) over [start, start + width], gap = a - x."""
    total = 0.0
    first = 0.0
    drop = 0.0
    for i in range(_LONG_NODES.size):
        y = start + width * _LONG_NODES[i]
        curve = _expm1_minus(-y)
        weight = _LONG_WEIGHTS[i] * math.exp(-gap * y - x * curve)
        total += weight
        first += weight * y
        drop += weight * (y - curve)
    return width * total, width * first, width * drop


@_jit
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


@_jit
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


@_jit
def _full_g(a, x):
    """Return the integrals below for a < 30 and -60 <= x <= a, over all y."""
    if x >= 0.0:
        return _series_g(a, x)
    return _kummer_g(a, x)


@_jit
def _g_parts(a, gap, x, width):
    r"""Integrate :math:`w(y) = e^{-a y + x (1 - e^{-y})}` over [0, width], for x <= a.

    ``gap`` is a - x, passed separately because the caller knows it to more digits. Returns the
    integrals of w, y w and (1 - e^-y) w.
    """
    if a >= 30.0:
        if x > 0.0:
            r = _DROP / x
            reach = min(_DROP / gap, r + math.sqrt(2.0 * r))
        else:
            # 1 - e^-y >= .57 y as far as this reaches.
            reach = _DROP / (a - 0.57 * x)
        return _quadrature_g(a, gap, x, 0.0, min(reach, width))
    if x < -60.0:
        # In v = 1 - e^-y the integrand is almost a pure exponential.
        reach = 38.0 / -x
        if width < 1.0:
            reach = min(reach, -math.expm1(-width))
        total = 0.0
        first = 0.0
        drop = 0.0
        for i in range(_LONG_NODES.size):
            v = reach * _LONG_NODES[i]
            y = -math.log1p(-v)
            weight = _LONG_WEIGHTS[i] * math.exp(x * v - (a - 1.0) * y)
            total += weight
            first += weight * y
            drop += weight * v
        return reach * total, reach * first, reach * drop
    if width == math.inf:
        return _full_g(a, x)
    end = math.exp(-gap * width - x * _expm1_minus(-width))
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
        part = _quadrature_g(a, gap, x, start, piece)
        total += part[0]
        first += part[1]
        drop += part[2]
        start += piece
        if width - start < 1e-12 * width:
            break
    return total, first, drop


@_jit
def _h_parts(a, gap, x, width):
    r"""Integrate :math:`w(y) = e^{a y - x (e^y - 1)}` over [0, width], for x >= a, x > 0.

    ``gap`` is x - a. Returns the integrals of w, y w and (e^y - 1) w.
    """
    r = _DROP / x
    reach = min(math.log1p(r + math.sqrt(2.0 * r)), width)
    if gap > 0.0:
        reach = min(reach, _DROP / gap)
    total = 0.0
    first = 0.0
    rise = 0.0
    for i in range(_LONG_NODES.size):
        y = reach * _LONG_NODES[i]
        curve = _expm1_minus(y)
        weight = _LONG_WEIGHTS[i] * math.exp(-gap * y - x * curve)
        total += weight
        first += weight * y
        rise += weight * (y + curve)
    return reach * total, reach * first, reach * rise


@_jit
def gamma_lower_ratio(a, x):
    r"""Return the log of :math:`G(a, x) = \int_0^\infty e^{-a y + x (1 - e^{-y})} dy`, x <= a.

    The lower mass of a gamma kernel: :math:`\int_0^z s^{a-1} e^{-c s} ds = z^a e^{-c z} G(a, c z)`
    for c of either sign. :math:`a \, G(a, x) = {}_1F_1(1; a + 1; x)`.
    """
    return math.log(_g_parts(a, a - x, x, math.inf)[0])


@_jit
def gamma_lower_ratio_mean(a, x):
    """Return the mean of y under the weights of `gamma_lower_ratio`, minus its d/da."""
    total, first, _ = _g_parts(a, a - x, x, math.inf)
    return first / total


@_jit
def gamma_upper_ratio(a, x):
    r"""Return the log of :math:`H(a, x) = \int_0^\infty e^{a y - x (e^y - 1)} dy`, x >= a, x > 0.

    The upper mass of a gamma kernel:
    :math:`\int_z^\infty s^{a-1} e^{-c s} ds = z^a e^{-c z} H(a, c z)`.
    """
    return math.log(_h_parts(a, x - a, x, math.inf)[0])


@_jit
def gamma_upper_ratio_mean(a, x):
    """Return the mean of y under the weights of `gamma_upper_ratio`, which is its d/da."""
    total, first, _ = _h_parts(a, x - a, x, math.inf)
    return first / total


# --------------------------------------------------------------------------------------
# Gamma: masses
# --------------------------------------------------------------------------------------


@_jit
def _product_minus(x, y, b):
    """Return x y - b with the rounding error of the product added back (Dekker)."""
    p = x * y
    if not abs(p) < 1e150 or abs(x) > 1e150 or abs(y) > 1e150:
        return p - b
    c = 134217729.0 * x
    x_high = c - (c - x)
    x_low = x - x_high
    c = 134217729.0 * y
    y_high = c - (c - y)
    y_low = y - y_high
    error = ((x_high * y_high - p) + x_high * y_low + x_low * y_high) + x_low * y_low
    return (p - b) + error


@_jit
def _deviance(mu, ratio):
    """Return mu - log1p(mu) where ratio = 1 + mu is given to full relative precision."""
    if abs(mu) > 0.3:
        return mu - math.log(ratio)
    r = mu / (2.0 + mu)
    q = r * r
    s = 1.0 / 23.0
    for k in range(21, 1, -2):
        s = s * q + 1.0 / k
    return r * mu - 2.0 * r * q * s


@_jit
def _log_ratio(mu, ratio):
    """Return log1p(mu) where ratio = 1 + mu is given to full relative precision."""
    if abs(mu) > 0.3:
        return math.log(ratio)
    return math.log1p(mu)


@_jit
def _log_peak(a):
    """Return a log a - a - log Gamma(a), the log of s f(s) at its maximum for a Gamma law."""
    if a <= 10.0:
        return a * math.log(a) - a - math.lgamma(a)
    q = 1.0 / (a * a)
    s = -691.0 / 360360.0 + q * (1.0 / 156.0 - q * (3617.0 / 122400.0))
    s = 1.0 / 12.0 + q * (
        -1.0 / 360.0 + q * (1.0 / 1260.0 + q * (-1.0 / 1680.0 + q * (1.0 / 1188.0 + q * s)))
    )
    return 0.5 * math.log(a) - _HALF_LOG_2PI - s / a


@_jit
def _log_minus_digamma(a):
    """Return log a - digamma(a)."""
    shift = 0.0
    b = a
    while b < 10.0:
        shift += 1.0 / b
        b += 1.0
    q = 1.0 / (b * b)
    s = 691.0 / 32760.0 + q * (-1.0 / 12.0 + q * (3617.0 / 8160.0))
    s = 1.0 / 12.0 + q * (
        -1.0 / 120.0 + q * (1.0 / 252.0 + q * (-1.0 / 240.0 + q * (1.0 / 132.0 - q * s)))
    )
    return math.log(a / b) + 0.5 / b + q * s + shift


@_jit
def _gamma_core(t, z, lo, hi, a, beta):
    """Return L, E[s] - z, dL/da, dL/dbeta and the two relative densities at the ends."""
    if not (a > 0.0 and beta > 0.0 and beta < math.inf and t - t == 0.0 and not lo > hi):
        if lo > hi:
            return -math.inf, 0.0, 0.0, 0.0, 0.0, 0.0
        return math.nan, math.nan, math.nan, math.nan, math.nan, math.nan
    if math.isnan(lo) or math.isnan(hi):
        return math.nan, math.nan, math.nan, math.nan, math.nan, math.nan
    lo = max(lo, 0.0)
    if not hi > lo:
        return -math.inf, 0.0, 0.0, 0.0, 0.0, 0.0
    c = beta - t
    if hi == math.inf and c <= 0.0:
        return math.inf, math.nan, math.nan, math.nan, math.nan, math.nan
    lag = _log_minus_digamma(a)

    # The tilted law is Gamma(a, c), its mean (which is also the mode of s f(s)) s* = a / c.
    excess = math.inf
    if hi < math.inf:
        rise = _product_minus(beta, hi, a)
        excess = rise - _product_minus(t, hi, 0.0)  # c hi - a
        if excess <= 0.0:
            x = c * hi
            width = math.inf
            if lo > 0.0:
                width = math.log1p((hi - lo) / lo)
            total, first, drop = _g_parts(a, -excess, x, width)
            mu = rise / a
            ratio = beta * hi / a
            back = hi * (drop / total)
            log_mass = t * (hi - z) + _log_peak(a) - a * _deviance(mu, ratio) + math.log(total)
            low = 0.0
            if lo > 0.0:
                low = math.exp(excess * width - x * _expm1_minus(-width)) / (lo * total)
            return (
                log_mass,
                (hi - z) - back,
                _log_ratio(mu, ratio) + lag - first / total,
                back - rise / beta,
                low,
                1.0 / (hi * total),
            )
    if lo > 0.0:
        rise = _product_minus(beta, lo, a)
        gap = rise - _product_minus(t, lo, 0.0)  # c lo - a
        x = c * lo
        if gap >= 0.0:
            width = math.inf
            if hi < math.inf:
                width = math.log1p((hi - lo) / lo)
            total, first, up = _h_parts(a, gap, x, width)
            mu = rise / a
            ratio = beta * lo / a
            ahead = lo * (up / total)
            log_mass = t * (lo - z) + _log_peak(a) - a * _deviance(mu, ratio) + math.log(total)
            high = 0.0
            if hi < math.inf:
                high = math.exp(-gap * width - x * _expm1_minus(width)) / (hi * total)
            return (
                log_mass,
                (lo - z) + ahead,
                _log_ratio(mu, ratio) + lag + first / total,
                -ahead - rise / beta,
                1.0 / (lo * total),
                high,
            )

    # The mode lies inside: c > 0.
    s = a / c
    mu = t / c
    ratio = beta / c
    base = t * (s - z) - a * _deviance(mu, ratio)
    log_scale = _log_ratio(mu, ratio)
    share = 0.0
    moved = 0.0
    slope = 0.0
    low = 0.0
    high = 0.0
    whole = lo == 0.0 and hi == math.inf
    split = lo > 0.0 and hi < math.inf
    if lo == 0.0 and hi < math.inf:
        total, first, up = _h_parts(a, excess, c * hi, math.inf)
        rel = c * hi / a
        share = math.exp(_log_peak(a) - a * _deviance(excess / a, rel)) * total
        odds = share / (1.0 - share)
        moved = -odds * ((hi - s) + hi * (up / total))
        slope = -odds * (_log_ratio(excess / a, rel) + lag + first / total)
        high = odds / (hi * total)
    elif lo > 0.0 and hi == math.inf:
        gap = _product_minus(beta, lo, a) - _product_minus(t, lo, 0.0)
        total, first, drop = _g_parts(a, -gap, c * lo, math.inf)
        rel = c * lo / a
        share = math.exp(_log_peak(a) - a * _deviance(gap / a, rel)) * total
        if share > 0.9:
            # Small shapes only: nearly all mass is below the mean, so 1 - share cancels.
            split = True
        else:
            odds = share / (1.0 - share)
            moved = odds * ((s - lo) + lo * (drop / total))
            slope = -odds * (_log_ratio(gap / a, rel) + lag - first / total)
            low = odds / (lo * total)
    if split:
        width_low = math.log(s / lo) if s > 2.0 * lo else math.log1p((s - lo) / lo)
        width_high = math.inf
        if hi < math.inf:
            width_high = math.log(hi / s) if hi > 2.0 * s else math.log1p((hi - s) / s)
        left = (0.0, 0.0, 0.0)
        right = (0.0, 0.0, 0.0)
        if width_low > 0.0:
            left = _g_parts(a, 0.0, a, width_low)
        if width_high > 0.0:
            right = _h_parts(a, 0.0, a, width_high)
        total = left[0] + right[0]
        log_mass = base + _log_peak(a) + math.log(total)
        moved = s * ((right[2] - left[2]) / total)
        slope = lag + (right[1] - left[1]) / total
        low = math.exp(-a * _expm1_minus(-width_low)) / (lo * total)
        if hi < math.inf:
            high = math.exp(-a * _expm1_minus(width_high)) / (hi * total)
    elif whole:
        log_mass = base
    else:
        log_mass = base + math.log1p(-share)
    return log_mass, (s - z) + moved, log_scale + slope, -s * t / beta - moved, low, high


@_jit
def gamma_log_tilted_mass(t, z, lo, hi, a, beta):
    r"""Return :math:`\log \int_{lo}^{hi} \mathrm{Gamma}(s; a, \beta) e^{t (s - z)} ds`.

    The tilt may exceed the rate: to the left of a finite end the mass is finite for any t.

    Parameters
    ----------
    t, z : float
        Tilt and anchor, of any size.
    lo, hi : float
        Ends of the interval, which is cut at 0; an empty interval has mass 0.
    a, beta : float
        Shape and rate of the law.

    Returns
    -------
    float
        ``inf`` if ``hi`` is infinite and ``t >= beta``, where the integral diverges.
    """
    return _gamma_core(t, z, lo, hi, a, beta)[0]


@_jit
def gamma_tilted_mean_log(t, z, lo, hi, a, beta):
    """Return E[log s] under the tilted law cut to [lo, hi]; z plays no part."""
    slope = _gamma_core(t, 0.0, lo, hi, a, beta)[2]
    return slope + (math.log(a) - _log_minus_digamma(a)) - math.log(beta)


@_jit
def gamma_tilted_parts(t, lo, hi, a, beta):
    r"""Return the anchored mass of the Gamma law and its partial derivatives.

    The anchor is ``hi`` for ``t > 0`` and ``lo`` for ``t < 0`` (for ``t = 0`` it plays no part and
    counts as 0); that end must be finite. An end at or below 0 is outside the support: there the
    derivative of the mass itself is taken as 0, also at exactly 0.

    Returns
    -------
    tuple of float
        The log mass and its derivatives with respect to t, lo, hi, a and beta.
    """
    anchor = 0.0
    if t > 0.0:
        anchor = hi
    elif t < 0.0:
        anchor = lo
    log_mass, dt, da, dbeta, low, high = _gamma_core(t, anchor, lo, hi, a, beta)
    # A change of unit leaves the anchored mass alone, so that
    # beta dbeta + t dt - lo dlo - hi dhi = 0: this gives the derivative at the anchor (density
    # minus t) without a cancellation.
    dlo = -low
    dhi = high
    if t > 0.0:
        if hi > max(lo, 0.0):
            dhi = (beta * dbeta + t * dt + max(lo, 0.0) * low) / hi
    elif t < 0.0:
        if not hi > max(lo, 0.0):
            dlo = 0.0
        elif lo > 0.0:
            dlo = (beta * dbeta + t * dt - (hi * high if hi < math.inf else 0.0)) / lo
        else:
            dlo = -t
    return log_mass, dt, dlo, dhi, da, dbeta


# --------------------------------------------------------------------------------------
# Marginal densities of a release
# --------------------------------------------------------------------------------------


@_jit
def combine_sides(lam, left, right):
    """Return log(lam / 2) + logaddexp(left, right), -inf if both sides are empty."""
    big = max(left, right)
    if big == -math.inf:
        return -math.inf
    return math.log(0.5 * lam) + big + math.log1p(math.exp(-abs(left - right)))


@_jit
def laplace_log_marginal_normal(z, lam, m, v, lo, hi):
    """Return log p(z) for z = s + Laplace(rate lam), s ~ Normal(m, v) cut to [lo, hi].

    The cut law is not normalised again.
    """
    left = normal_log_tilted_mass(lam, z, lo, min(z, hi), m, v)
    right = normal_log_tilted_mass(-lam, z, max(z, lo), hi, m, v)
    return combine_sides(lam, left, right)


@_jit
def laplace_log_marginal_gamma(z, lam, a, beta, lo, hi):
    """Return log p(z) for z = s + Laplace(rate lam), s ~ Gamma(a, beta) cut to [lo, hi].

    The cut law is not normalised again.
    """
    left = gamma_log_tilted_mass(lam, z, lo, min(z, hi), a, beta)
    right = gamma_log_tilted_mass(-lam, z, max(z, lo), hi, a, beta)
    return combine_sides(lam, left, right)
