r"""Exact draws by rejection from flat-topped exponential envelopes.

Every conditional of a statistic with a Normal or Gamma law, seen through Laplace or Gaussian
noise, with or without a finite range, is one member of the family

.. math::

    h(s) = p \log s - \beta s - \tfrac{1}{2} \tau (s - m)^2 - \lambda |z - s|,
    \qquad s \in [l, u],

which is log-concave for :math:`p \ge 0`. Its mode is known in closed form, so that draws need no
special function: the envelope is flat around the mode, and a tangent of h beyond on either side
(Devroye, 1986, chapter VII.2). Everything is evaluated relative to the mode, so that nothing
cancels when :math:`p` is :math:`10^9` or :math:`z` lies a thousand noise scales away.
"""

import math

from pymc_dp.kernels import jit
from pymc_dp.kernels.functions.gamma_mass import gamma_log_tilted_mass
from pymc_dp.kernels.functions.gamma_ratio import expm1_minus

TINY = 1e-300


@jit
def _draw_envelope(rng, mode, left, h_left, s_left, right, h_right, s_right, lo, hi):
    """Draw from the envelope of a log-concave density whose log is 0 at `mode`.

    `left <= mode <= right` are tangent points with heights `h <= 0` and slopes `s`
    (`s_left >= 0 >= s_right`). Returns the draw and the log height of the envelope there.
    A slope of zero means that the envelope is flat up to the end of the range, which is finite.
    """
    flat_left = lo
    area_left = 0.0
    if s_left > 0.0:
        flat_left = max(left + (0.0 - h_left) / s_left, lo)
        flat_left = min(flat_left, mode)
        area_left = (
            -math.expm1(-s_left * (flat_left - lo)) / s_left if lo > -math.inf else 1.0 / s_left
        )
    flat_right = hi
    area_right = 0.0
    if s_right < 0.0:
        flat_right = min(right + (0.0 - h_right) / s_right, hi)
        flat_right = max(flat_right, mode)
        area_right = (
            -math.expm1(s_right * (hi - flat_right)) / -s_right if hi < math.inf else -1.0 / s_right
        )
    u = rng.random() * (area_left + (flat_right - flat_left) + area_right)
    if u < area_left:
        # distance from the flat part, an exponential cut at `lo`
        distance = (
            -math.log1p(-s_left * u) / s_left
            if lo > -math.inf
            else -math.log1p(-u * s_left) / s_left
        )
        return max(flat_left - distance, lo), -s_left * distance
    u -= area_left
    if u < flat_right - flat_left:
        return flat_left + u, 0.0
    u = min(max(u - (flat_right - flat_left), 0.0), area_right)
    distance = -math.log1p(s_right * u) / -s_right
    return min(flat_right + distance, hi), s_right * distance


@jit
def _unit_drop(slope, curvature):
    """Distance at which `slope * d + curvature * d**2 / 2` reaches one."""
    return 2.0 / (slope + math.sqrt(slope * slope + 2.0 * curvature) + TINY)


@jit
def _stationary(p, rate, tau):
    """Positive root of ``p / s - rate - tau * s`` (the signed one when p is 0); inf if none."""
    if tau > 0.0:
        if p == 0.0:
            return -rate / tau
        root = math.sqrt(rate * rate + 4.0 * tau * p)
        return 2.0 * p / (rate + root) if rate > 0.0 else (root - rate) / (2.0 * tau)
    if rate > 0.0:
        return p / rate if p > 0.0 else -math.inf
    if rate < 0.0 or p > 0.0:
        return math.inf
    return math.nan  # flat on this side: any point is a mode


@jit
def draw_log_concave(rng, p, beta, tau, m, lam, z, lo, hi):
    """Draw s from exp{p log s - beta s - tau (s - m)^2 / 2 - lam |z - s|} on [lo, hi], p >= 0.

    The range must make the density proper. With p > 0 the support is s > 0 (`lo >= 0`).
    """
    if p > 0.0 and lo < 0.0:
        lo = 0.0
    # The mode is a stationary point left or right of z, or the kink at z. Stationary points are
    # roots of p/s - (beta -+ lam - tau m) - tau s.
    if p == 0.0 and tau > 0.0:
        mode_left = m - (beta - lam) / tau
        mode_right = m - (beta + lam) / tau
    else:
        mode_left = _stationary(p, beta - lam - tau * m, tau)
        mode_right = _stationary(p, beta + lam - tau * m, tau)
    mode = z
    if mode_left < z:
        mode = mode_left
    elif mode_right > z:
        mode = mode_right
    mode = min(max(mode, lo), hi)

    # One-sided slopes and the curvature at the mode set the tangent points.
    slope = -beta - tau * (mode - m)
    curvature = tau
    if p > 0.0:
        slope += p / mode
        curvature += p / (mode * mode)
    slope_down = slope + (lam if mode <= z else -lam)  # slope of h just left of the mode
    slope_up = slope + (lam if mode < z else -lam)  # slope of h just right of the mode
    right = mode + _unit_drop(max(-slope_up, 0.0), curvature)
    left = mode - _unit_drop(max(slope_down, 0.0), curvature)
    if left <= lo:
        left = 0.5 * (mode + lo)
    if right >= hi:
        right = 0.5 * (mode + hi)
    # A side that is narrower than the spacing of doubles at the mode is empty.
    if left >= mode:
        lo = mode
    if right <= mode:
        hi = mode
    if lo >= hi:
        return mode

    offset = abs(z - mode)
    h_left = _relative(left - mode, mode, p, beta, tau, m, lam, z, offset)
    h_right = _relative(right - mode, mode, p, beta, tau, m, lam, z, offset)
    s_left = -beta - tau * (left - m) + (lam if left <= z else -lam)
    s_right = -beta - tau * (right - m) - (lam if right >= z else -lam)
    if p > 0.0:
        s_left += p / left if left > 0.0 else 0.0
        s_right += p / right
    if left >= mode or s_left <= 0.0:  # nothing to the left, or flat there
        s_left, left, h_left = (
            (0.0, lo, 0.0) if lo > -math.inf else (max(s_left, TINY), left, h_left)
        )
    if right <= mode or s_right >= 0.0:
        s_right, right, h_right = (
            (0.0, hi, 0.0) if hi < math.inf else (min(s_right, -TINY), right, h_right)
        )

    while True:
        s, height = _draw_envelope(rng, mode, left, h_left, s_left, right, h_right, s_right, lo, hi)
        if p > 0.0 and s <= 0.0:
            continue
        if math.log(1.0 - rng.random()) + height <= _relative(
            s - mode, mode, p, beta, tau, m, lam, z, offset
        ):
            return s


@jit
def _relative(d, mode, p, beta, tau, m, lam, z, offset):
    """h(mode + d) - h(mode), without cancellation."""
    value = -(beta + tau * (mode - m)) * d - 0.5 * tau * d * d
    if p > 0.0:
        ratio = d / mode
        value += p * math.log1p(ratio) if ratio > -1.0 else -math.inf
    if lam > 0.0:
        s = mode + d
        if s <= z and mode <= z:
            value += lam * d
        elif s >= z and mode >= z:
            value -= lam * d
        else:
            value -= lam * (abs(z - s) - offset)
    return value


@jit
def draw_log_gamma(rng, a, rate, log_lo, log_hi):
    """Draw u = log g for g ~ Gamma(a, rate) restricted to log_lo <= u <= log_hi, a >= 0.

    In log space the density exp(a u - rate e^u) is log-concave for every shape, the improper
    a = 0 included when it is cut from below. Ends may be infinite where the law stays proper.
    """
    mode = math.log(a / rate) if a > 0.0 else -math.inf
    mode = min(max(mode, log_lo), log_hi)
    x = rate * math.exp(mode)
    slope = a - x
    drop = math.log1p(1.0 / x + math.sqrt(2.0 / x))
    right = mode + (min(drop, 1.0 / -slope) if slope < 0.0 else drop)
    left = mode
    if a > 0.0:
        wide = 1.0 / x + math.sqrt(2.0 / x)
        left = mode - (min(wide, 1.0 / slope) if slope > 0.0 else wide)
    if left <= log_lo:
        left = 0.5 * (mode + log_lo)
    if right >= log_hi:
        right = 0.5 * (mode + log_hi)
    if left >= mode and a > 0.0:
        log_lo = mode
    if right <= mode:
        log_hi = mode
    if log_lo >= log_hi:
        return mode
    h_left, s_left = (
        slope * (left - mode) - x * expm1_minus(left - mode),
        a - x * math.exp(left - mode),
    )
    h_right, s_right = (
        slope * (right - mode) - x * expm1_minus(right - mode),
        a - x * math.exp(right - mode),
    )
    if left >= mode or s_left <= 0.0:
        s_left, left, h_left = 0.0, log_lo, 0.0
    if right <= mode or s_right >= 0.0:
        s_right, right, h_right = 0.0, log_hi, 0.0
    while True:
        u, height = _draw_envelope(
            rng, mode, left, h_left, s_left, right, h_right, s_right, log_lo, log_hi
        )
        d = u - mode
        if math.log(1.0 - rng.random()) + height <= slope * d - x * expm1_minus(d):
            return u


@jit
def _draw_power_exponential(rng, a, c, lo, hi):
    """Draw s from s^(a-1) e^(-c s) on [lo, hi], 0 < a < 1, any sign of c (hi finite if c <= 0)."""
    if c >= 0.0:
        # q = s^a has the decreasing, log-concave density exp(-c q^(1/a)).
        q_lo = lo**a
        q_hi = hi**a
        if c == 0.0:
            return (q_lo + (q_hi - q_lo) * rng.random()) ** (1.0 / a)
        tangent = lo + 1.0 / c
        if tangent >= hi:
            tangent = 0.5 * (lo + hi)
        q = tangent**a
        slope = -c / a * tangent ** (1.0 - a)
        height = -c * (tangent - lo)
        while True:
            x, envelope = _draw_envelope(rng, q_lo, q_lo, 0.0, 0.0, q, height, slope, q_lo, q_hi)
            s = min(max(x ** (1.0 / a), lo), hi)
            if math.log(1.0 - rng.random()) + envelope <= -c * (s - lo):
                return s
    # Increasing exponential: bound e^{|c| s} by a constant below the middle, s^(a-1) above it.
    middle = max(0.5 * hi, lo)
    k = -c
    below = math.exp(k * (middle - hi)) * (middle**a - lo**a) / a
    above = middle ** (a - 1.0) * -math.expm1(k * (middle - hi)) / k
    while True:
        if rng.random() * (below + above) < below:
            s = (lo**a + (middle**a - lo**a) * rng.random()) ** (1.0 / a)
            if rng.random() <= math.exp(k * (s - middle)):
                return s
        else:
            s = hi + math.log1p(rng.random() * math.expm1(k * (middle - hi))) / k
            if rng.random() <= (s / middle) ** (a - 1.0):
                return s


@jit
def draw_tilted_gamma(rng, a, beta, lam, z, lo, hi):
    """Draw s from Gamma(s | a, rate beta) exp(-lam |z - s|) on [lo, hi]: no limit on beta - lam."""
    lo = max(lo, 0.0)
    if a >= 1.0:
        return draw_log_concave(rng, a - 1.0, beta, 0.0, 0.0, lam, z, lo, hi)
    split = min(max(z, lo), hi)
    log_left = gamma_log_tilted_mass(lam, z, lo, split, a, beta) if split > lo else -math.inf
    log_right = gamma_log_tilted_mass(-lam, z, split, hi, a, beta) if split < hi else -math.inf
    if math.log(1.0 - rng.random()) <= -math.log1p(math.exp(min(log_right - log_left, 700.0))):
        return _draw_power_exponential(rng, a, beta - lam, lo, split)
    return _draw_power_exponential(rng, a, beta + lam, split, hi)


@jit
def draw_tilted_normal(rng, m, v, lam, z, lo, hi):
    """Draw s from Normal(s | m, variance v) exp(-lam |z - s|) on [lo, hi]."""
    return draw_log_concave(rng, 0.0, 0.0, 1.0 / v, m, lam, z, lo, hi)
