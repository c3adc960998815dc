"""Noise of a released count: its log density, and its ratios from one count to the next."""

import math
from collections.abc import Callable
from typing import NamedTuple

from pymc_dp.kernels import jit, joined, key_of, part

_STRAIGHT = 4e-15  # relative change of a log density that is taken for rounding
_SHORT, _LONG = 8.0, 64.0  # lengths, in counts, of the steps along which it is tried as straight


class CountNoise(NamedTuple):
    """Noise of a release, log-concave in the count; p is the tuple of its parameters.

    Attributes
    ----------
    key : the key of the compiled code; None if the code cannot be kept on disk.
    center : ``(z, p)`` to a count from which z might have come.
    log_noise : ``(z, y, p)`` to log eta(z | y).
    begin : ``(z, y, p)`` to two states, for steps from y upwards (side 1) and downwards (side -1).
    advance : ``(z, y, side, state, p)`` to eta(z | y + side) / eta(z | y) and the next state.
    slope : ``(z, y, p)`` to the derivative of log eta by z; 0 where z is discrete.
    """

    key: str | None
    center: Callable
    log_noise: Callable
    begin: Callable
    advance: Callable
    slope: Callable

    @classmethod
    def of(cls, *functions: Callable) -> "CountNoise":
        """Return noise whose functions have keys themselves."""
        return cls(key_of(functions), *functions)


# --- exp(-lam |z - y| - tau (z - y)^2 / 2), p = (lam, tau) ----------------------------------------


@jit
def _itself(z, p):
    return z


@jit
def _additive_log_noise(z, y, p):
    e = z - y
    return -p[0] * abs(e) - 0.5 * p[1] * e * e


@jit
def _additive_begin(z, y, p):
    up = down = fall = decay = 1.0
    if p[1] != 0.0:
        e, fall = p[1] * (z - y), math.exp(-p[1])
        up, down = math.exp(e - 0.5 * p[1]), math.exp(-e - 0.5 * p[1])
    if p[0] != 0.0:
        decay = math.exp(-p[0])
    return (up, fall, decay, 1.0 / decay), (down, fall, decay, 1.0 / decay)


@jit
def _additive_advance(z, y, side, state, p):
    normal, fall, decay, rise = state
    if p[0] == 0.0:
        return normal, (normal * fall, fall, decay, rise)
    ahead = side * (z - y)
    if ahead <= 0.0:
        factor = decay
    elif ahead >= 1.0:
        factor = rise
    else:
        factor = math.exp(p[0] * (2.0 * ahead - 1.0))
    return normal * factor, (normal * fall, fall, decay, rise)


@jit
def _additive_slope(z, y, p):
    e = z - y
    return -p[1] * e - (p[0] if e >= 0.0 else -p[0])  # at the kink, the derivative from the right


@jit
def no_slope(z, y, p):
    """Return 0: z is discrete."""
    return 0.0


ADDITIVE = CountNoise.of(
    _itself, _additive_log_noise, _additive_begin, _additive_advance, _additive_slope
)
ADDITIVE_ON_LATTICE = CountNoise.of(*ADDITIVE[1:-1], no_slope)


def stepwise(
    center: Callable, log_noise: Callable, slope: Callable | None, key: str | None
) -> CountNoise:
    """Return noise whose ratios follow from log_noise; the functions take p unpacked."""
    key = joined(key_of(stepwise), key)

    @part
    def find_center(z, p):
        count = center(z, *p)
        return z if math.isnan(count) else count

    @part
    def log_density(z, y, p):
        return log_noise(z, y, *p)

    @part
    def begin(z, y, p):
        state = log_noise(z, y, *p), math.nan, 1.0, 0.0, _SHORT
        return state, state

    @part
    def advance(z, y, side, state, p):
        here, rise, factor, left, leap = state
        if left > 0.0:
            return factor, (here + rise, rise, factor, left - 1.0, leap)
        ahead = log_noise(z, y + side, *p)
        if ahead == -math.inf:  # beyond the support of the noise, as the next count may be
            return 0.0, (ahead, math.nan, 0.0, 0.0, _SHORT)
        before, rise = rise, ahead - here
        factor = math.exp(rise)
        slack = _STRAIGHT * (1.0 + abs(here))
        if not abs(rise - before) <= slack:
            return factor, (ahead, rise, factor, 0.0, _SHORT)
        # A log-concave function whose end lies on the line is straight in between.
        all_the_way = log_noise(z, y + side * leap, *p) - here
        if not abs(all_the_way - leap * rise) <= leap * slack:
            return factor, (ahead, rise, factor, 0.0, _SHORT)
        rise = all_the_way / leap
        factor = math.exp(rise)
        return factor, (here + rise, rise, factor, leap - 1.0, min(2.0 * leap, _LONG))

    if slope is None:
        return CountNoise(key, find_center, log_density, begin, advance, no_slope)

    @part
    def by_z(z, y, p):
        return slope(z, y, *p)

    return CountNoise(key, find_center, log_density, begin, advance, by_z)
