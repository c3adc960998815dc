r"""Sums over a count: the law of its noisy release, its derivatives, and exact draws of the count.

With a law f of the count y and noise :math:`\eta(z \mid y)`, both unimodal in y, the terms
:math:`f(y)\, \eta(z \mid y)` are summed outwards from a mode, each term from the one before by a
ratio. If there are two modes, either will do, and so does a point near a mode, since the ends of
the sum do not depend on where it began. A side ends where the remaining terms are less than `REST`
of the sum. With r the last ratio, they are at most :math:`t\, r / (1 - r)` after a term t, since
ratios of log-concave terms fall; where f is not log-concave they are at most :math:`\eta(z \mid y)`
on the way down, since f sums to one. Sums of more than `_MOST_TERMS` terms on a side, and counts
beyond 2**53, are NaN.
"""

import math
from collections.abc import Callable

import numpy as np

from pymc_dp.kernels import jit, part
from pymc_dp.kernels.counts.laws import CountLaw, zero
from pymc_dp.kernels.counts.noise import CountNoise, no_slope

REST = 1e-16
"""Share of a sum that may be left out."""
_LARGE = 1e200  # terms this large are scaled down
_WHOLE = 2.0**53  # beyond, y + 1 is y
_MOST_TERMS = 20_000_000.0  # of a sum, on a side: they take seconds
_BLOCK = 8.0  # terms between tests whether a sum ends, a branch that processors mispredict
_WIDE = 256.0  # if a law hardly bends within so many counts, a sum may take every k-th count
_FINENESS = 4.0  # steps in a width
_LEVELS, _POINTS = 4, 2000  # halvings of a step, and terms, at most
_OUT = -45.0  # log of a term, relative to the largest, that is left out
_NEAR, _LEVEL = (
    32.0,
    0.5,
)  # distance in counts, and log of a ratio, up to which no mode is searched for


def _make_mode(law: CountLaw, noise: CountNoise) -> Callable:
    """Make ``(z, p, theta, lo, hi)`` to the count of about the largest term in [lo, hi]."""
    odds, law_mode, log_noise, find_center = law.odds, law.mode, noise.log_noise, noise.center

    @part
    def rise(y, z, center, p, theta):
        here, ahead = log_noise(z, y, p), log_noise(z, y + 1.0, p)
        if here == -math.inf:  # z cannot have come from y: walk to the center
            return math.inf if y < center else -math.inf
        more, less = odds(y, theta)
        return math.log(more / less) + ahead - here

    @part
    def rises(y, z, center, p, theta):
        return rise(y, z, center, p, theta) > 0.0

    @part
    def find_mode(z, p, theta, lo, hi):
        center, lo, hi = find_center(z, p), max(lo, -_WHOLE), min(hi, _WHOLE)
        first = min(max(law_mode(theta), lo), hi)
        second = min(max(np.floor(center), lo), hi)
        low, high = min(first, second), max(first, second)
        middle = low + np.floor(0.5 * (high - low))
        if high - low < _NEAR and abs(rise(middle, z, center, p, theta)) < _LEVEL:
            return middle
        # The largest term y is the first that does not rise: low - 1 rises, high does not.
        step = 1.0
        while high < hi and rises(high, z, center, p, theta):
            low, high, step = high + 1.0, min(high + step, hi), 2.0 * step
        step = 1.0
        while low > lo and not rises(low - 1.0, z, center, p, theta):
            high, low, step = low - 1.0, max(low - step, lo), 2.0 * step
        while low < high:
            middle = low + np.floor(0.5 * (high - low))
            if rises(middle, z, center, p, theta):
                low = middle + 1.0
            else:
                high = middle
        return low

    return find_mode


def _make_walk(law: CountLaw, noise: CountNoise) -> tuple[Callable, Callable]:
    """Make one step of a walk from the mode, upwards (`side` 1) or down (-1), and its end."""
    odds, growth, advance = law.odds, law.growth, noise.advance

    @part
    def leap(z, y, side, state, p, theta):
        """Return the next count, the ratios of law and noise on the way, and the next state."""
        factor, state = advance(z, y, side, state, p)
        more, less = odds(y if side > 0.0 else y - 1.0, theta)
        return y + side, more / less if side > 0.0 else less / more, factor, state

    @part
    def ends(y, side, term, ratio, factor, total, law_there, concave, theta):
        """Whether the remaining terms are less than `REST` of the sum; NaN ends it, too."""
        if side > 0.0:
            ratio *= growth(y - 1.0, theta)
        elif not concave:
            return factor <= 1.0 and not term > REST * total * law_there
        return not term * ratio > REST * total * (1.0 - ratio)

    return leap, ends


def _make_wide_sum(law: CountLaw, noise: CountNoise) -> tuple[Callable, Callable]:
    """Make the sum over every k-th count, for terms that hardly change between neighbours.

    For smooth terms the trapezoidal rule has all digits once its step is half a standard deviation.
    Two steps have to agree; where they do not, as at most kinks, all terms are summed.
    """
    odds, log_mass, log_noise, start = law.odds, law.log_mass, noise.log_noise, law.start
    bent, smooth, slope = law.change is not zero, noise.slope is not no_slope, noise.slope

    @part
    def is_wide(mode, lo, hi, theta):
        if not lo <= mode - _WIDE < mode + _WIDE <= hi:
            return False
        (more, less), (more_on, less_on) = odds(mode, theta), odds(mode + _WIDE, theta)
        return abs(more_on * less - more * less_on) < more * less_on / _WIDE

    @part
    def fall(y, z, p, theta, top):
        return log_mass(y, theta) + log_noise(z, y, p) - top

    @part
    def climb(mode, lo, hi, z, p, theta, top):
        """Return the count of the largest term, which rounding hides from small steps far out."""
        here, w = 0.0, _WIDE
        while w >= _WIDE:
            moved = False
            for side in (1.0, -1.0):
                y = min(max(mode + side * w, lo), hi)
                there = fall(y, z, p, theta, top)
                if there > here:
                    mode, here, moved = y, there, True
            w *= 2.0 if moved else 0.5
        return mode

    @part
    def width(side, mode, end, z, p, theta, top):
        w = _WIDE
        while side * (mode + side * w) < side * end:
            if not fall(mode + side * w, z, p, theta, top) > -1.0:
                break
            w *= 2.0
        return w

    @part
    def wide_sum(mode, lo, hi, z, p, theta, top):
        """Return the log of the sum, and the means of y, T and the slope.

        The first is NaN where the steps do not agree, and infinite where the sum is too wide for a
        sum term by term, too.
        """
        mode = climb(mode, lo, hi, z, p, theta, top)
        top = log_mass(mode, theta) + log_noise(z, mode, p)
        up = width(1.0, mode, hi, z, p, theta, top)
        down = width(-1.0, mode, lo, z, p, theta, top)
        step = max(1.0, np.floor(min(up, down) / _FINENESS))
        t_mode = start(mode, theta) if bent else 0.0
        slack, before = 1e-13 + 1e-14 * abs(top), math.nan
        for _ in range(_LEVELS):
            total, first, extra, slopes, count = 1.0, 0.0, 0.0, slope(z, mode, p), 0
            for side, end in ((1.0, hi), (-1.0, lo)):
                y, log_term = mode + side * step, 0.0
                while log_term > _OUT and side * y <= side * end and count < _POINTS:
                    log_term = fall(y, z, p, theta, top)
                    term = math.exp(log_term)
                    total += term
                    first += term * (y - mode)
                    if bent:
                        extra += term * (start(y, theta) - t_mode)
                    if smooth:
                        slopes += term * slope(z, y, p)
                    y += side * step
                    count += 1
            if count == _POINTS:
                break
            if abs(total * step - before) <= slack * before or step == 1.0:
                log_p = top + math.log(total * step)
                return log_p, mode + first / total, t_mode + extra / total, slopes / total
            before, step = total * step, max(1.0, np.floor(0.5 * step))
        too_wide = min(up, down) > _MOST_TERMS / 8.0  # for a sum term by term
        return math.inf if too_wide else math.nan, math.nan, math.nan, math.nan

    return is_wide, wide_sum


def make_count_sum(law: CountLaw, noise: CountNoise) -> Callable:
    """Make ``(z, p, theta)`` to log p(z), its derivative by z and those by theta."""
    valid, support, log_mass, growth = law.valid, law.support, law.log_mass, law.growth
    change, start, score, edge = law.change, law.start, law.score, law.edge
    log_noise, begin, slope = noise.log_noise, noise.begin, noise.slope
    find_center = noise.center
    find_mode, (leap, ends) = _make_mode(law, noise), _make_walk(law, noise)
    bent, smooth = law.change is not zero, noise.slope is not no_slope
    is_wide, wide_sum = _make_wide_sum(law, noise)

    @jit
    def count_sum(z, p, theta):
        if not valid(theta) or math.isnan(find_center(z, p)):
            return (math.nan, math.nan, *score(math.nan, math.nan, theta))
        lo, hi = support(theta)
        mode = find_mode(z, p, theta, lo, hi)
        log_top, log_law = log_noise(z, mode, p), log_mass(mode, theta)
        if not log_top + log_law > -math.inf or abs(mode) == _WHOLE:
            log_p = math.nan if abs(mode) == _WHOLE else log_top + log_law
            return (log_p, math.nan, *score(math.nan, math.nan, theta))
        if lo == hi:
            above = math.exp(log_noise(z, lo + 1.0, p) - log_top)
            below = math.exp(log_noise(z, lo - 1.0, p) - log_top)
            return (log_top + log_law, slope(z, lo, p), *edge(above, below, theta))
        concave = growth(lo, theta) == 1.0
        # If the law is not log-concave, steps may miss a spike apart from the mode.
        if concave and is_wide(mode, lo, hi, theta):
            log_p, mean, t_mean, slopes = wide_sum(mode, lo, hi, z, p, theta, log_top + log_law)
            if log_p == math.inf:
                return (math.nan, math.nan, *score(math.nan, math.nan, theta))
            if not math.isnan(log_p):
                return (log_p, slopes, *score(mean, t_mean, theta))
        # The term at the mode is `scale`, 1 at first; moments of y and T around their values there.
        total, first, extra, slopes, scale = 1.0, 0.0, 0.0, slope(z, mode, p), 1.0
        block = _BLOCK if concave else 1.0
        above, below = begin(z, mode, p)
        for side in (1.0, -1.0):
            y, t, term, law_there = mode, 0.0, scale, math.exp(log_law)
            state, end = (above, hi) if side > 0.0 else (below, lo)
            while y != end:
                if abs(y - mode) > _MOST_TERMS:
                    total = math.nan
                    break
                stop = side * min(side * end, side * y + block)
                while y != stop:
                    before = y
                    y, law_ratio, factor, state = leap(z, y, side, state, p, theta)
                    law_there *= law_ratio
                    ratio = law_ratio * factor
                    term *= ratio
                    total += term
                    first += term * (y - mode)
                    if bent:
                        t += side * change(min(before, y), theta)
                        extra += term * t
                    if smooth:
                        slopes += term * slope(z, y, p)
                if ends(y, side, term, ratio, factor, total, law_there, concave, theta):
                    break
                if total > _LARGE:
                    total, first, extra, slopes, term, scale = (
                        total / _LARGE,
                        first / _LARGE,
                        extra / _LARGE,
                        slopes / _LARGE,
                        term / _LARGE,
                        scale / _LARGE,
                    )
                    log_top += math.log(_LARGE)
        mean, t_mean = mode + first / total, start(mode, theta) + extra / total
        log_p = log_top + log_law + math.log(total)
        return (log_p, slopes / total, *score(mean, t_mean, theta))

    return count_sum


def make_count_draw(law: CountLaw, noise: CountNoise) -> Callable:
    """Make ``(rng, z, p, theta, lo, hi, step, rest)`` to an exact draw of the count, in [lo, hi].

    The count is one of `rest` + `step` k, k whole; all counts by default. Another release may leave
    only these possible; law and noise are walked through count by count, and the others skipped.
    """
    valid, support, log_mass, growth = law.valid, law.support, law.log_mass, law.growth
    log_noise, begin, find_center = noise.log_noise, noise.begin, noise.center
    find_mode, (leap, ends) = _make_mode(law, noise), _make_walk(law, noise)

    @jit
    def count_draw(rng, z, p, theta, lo, hi, step=1.0, rest=0.0):
        if not valid(theta) or math.isnan(find_center(z, p)):
            return math.nan
        low, high = support(theta)
        lo, hi = max(lo, low), min(hi, high)
        if not lo <= hi:
            return math.nan
        mode = find_mode(z, p, theta, lo, hi)
        log_law = log_mass(mode, theta)
        if not log_noise(z, mode, p) + log_law > -math.inf or abs(mode) == _WHOLE:
            return math.nan
        concave = growth(lo, theta) == 1.0
        starts = begin(z, mode, p)
        # Two rounds of the same walk: the first finds the sum, the second where it is exceeded.
        target, last = math.inf, math.nan
        for _ in range(2):
            total = 0.0
            if step == 1.0 or (mode - rest) % step == 0.0:
                total, last = 1.0, mode
            if total > target:
                return mode
            for side in (1.0, -1.0):
                y, term, law_there = mode, 1.0, math.exp(log_law)
                state, end = (starts[0], hi) if side > 0.0 else (starts[1], lo)
                while y != end:
                    if abs(y - mode) > _MOST_TERMS:
                        return math.nan
                    y, law_ratio, factor, state = leap(z, y, side, state, p, theta)
                    law_there *= law_ratio
                    ratio = law_ratio * factor
                    term *= ratio
                    if step == 1.0 or (y - rest) % step == 0.0:
                        total, last = total + term, y
                        if total > target:
                            return y
                    if ends(y, side, term, ratio, factor, total, law_there, concave, theta):
                        break
            if total == 0.0:
                return math.nan
            target = total * rng.random()
        return last  # target equals the sum, but for rounding

    return count_draw
