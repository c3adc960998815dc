"""Draws of a whole number along a line, by a slice sampler (Neal 2003)."""

import math
from collections.abc import Callable

import numpy as np

from pymc_dp.kernels import part


def make_line_draw(log_density: Callable) -> Callable:
    """Make ``(rng, low, high, guess, *line)``, which draws c on low, ..., high, among which is 0.

    The law is that of ``log_density(c, *line)``, and 0 the value before the draw; `guess` is about
    the width of a slice, a whole number of at least 1. The result is NaN where 0 is impossible.
    """

    @part
    def draw(rng, low, high, guess, *line):
        level = log_density(0.0, *line)
        if not level > -math.inf:
            return math.nan
        level += math.log(1.0 - rng.random())
        left = -np.floor(rng.random() * guess)
        right = left + guess - 1.0
        # Steps are whole: the next interval begins at left - 1 or right + 1, whose density decides.
        while left > low and log_density(left, *line) > level:
            left -= guess
        while right < high and log_density(right + 1.0, *line) > level:
            right += guess
        left, right = max(left, low), min(right, high)
        while True:
            c = left + np.floor(rng.random() * (right - left + 1.0))
            if c == 0.0 or log_density(c, *line) > level:
                return c
            if c < 0.0:
                left = c + 1.0
            else:
                right = c - 1.0

    return draw
