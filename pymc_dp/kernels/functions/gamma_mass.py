r"""Anchored tilted masses of the Gamma law; see `kernels.functions.tilting`."""

import math

from pymc_dp.kernels import jit
from pymc_dp.kernels.functions.count_masses import HALF_LOG_2PI, stirling_error
from pymc_dp.kernels.functions.gamma_ratio import expm1_minus, g_parts, h_parts


@jit
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


@jit
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


@jit
def _log_ratio(mu, ratio):
    """Return log1p(mu) where ratio = 1 + mu is given to full relative precision."""
    if abs(mu) > 0.3:
        return math.log(ratio)
    return math.log1p(mu)


@jit
def _log_peak(a):
    """Return a log a - a - log Gamma(a), the log of s f(s) at its maximum for a Gamma law."""
    return 0.5 * math.log(a) - HALF_LOG_2PI - stirling_error(a)


@jit
def log_minus_digamma(a):
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


@jit
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
    lag = log_minus_digamma(a)

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
            total, first, drop = g_parts(a, abs(excess), x, width)  # abs: never -0.0
            mu = rise / a
            ratio = beta * hi / a
            back = hi * (drop / total)
            log_mass = t * (hi - z) + _log_peak(a) - a * _deviance(mu, ratio) + math.log(total)
            low = 0.0
            if lo > 0.0:
                low = math.exp(excess * width - x * expm1_minus(-width)) / (lo * total)
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
            total, first, up = h_parts(a, abs(gap), x, width)
            mu = rise / a
            ratio = beta * lo / a
            ahead = lo * (up / total)
            log_mass = t * (lo - z) + _log_peak(a) - a * _deviance(mu, ratio) + math.log(total)
            high = 0.0
            if hi < math.inf:
                high = math.exp(-gap * width - x * expm1_minus(width)) / (hi * total)
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
        total, first, up = h_parts(a, excess, c * hi, math.inf)
        rel = c * hi / a
        share = math.exp(_log_peak(a) - a * _deviance(excess / a, rel)) * total
        odds = share / (1.0 - share)
        moved = -odds * ((hi - s) + hi * (up / total))
        slope = -odds * (_log_ratio(excess / a, rel) + lag + first / total)
        high = odds / (hi * total)
    elif lo > 0.0 and hi == math.inf:
        gap = _product_minus(beta, lo, a) - _product_minus(t, lo, 0.0)
        total, first, drop = g_parts(a, -gap, c * lo, math.inf)
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
            left = g_parts(a, 0.0, a, width_low)
        if width_high > 0.0:
            right = h_parts(a, 0.0, a, width_high)
        total = left[0] + right[0]
        log_mass = base + _log_peak(a) + math.log(total)
        moved = s * ((right[2] - left[2]) / total)
        slope = lag + (right[1] - left[1]) / total
        low = math.exp(-a * expm1_minus(-width_low)) / (lo * total)
        if hi < math.inf:
            high = math.exp(-a * expm1_minus(width_high)) / (hi * total)
    elif whole:
        log_mass = base
    else:
        log_mass = base + math.log1p(-share)
    return log_mass, (s - z) + moved, log_scale + slope, -s * t / beta - moved, low, high


@jit
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


@jit
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
