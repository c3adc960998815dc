"""Places where a function of one number has a value."""

import math
from collections.abc import Callable

import numpy as np

from pymc_dp.kernels import part

_GRID = np.concatenate([-(10.0 ** np.arange(15.0, -13.0, -0.25)), np.zeros(1),
                        10.0 ** np.arange(-12.75, 15.25, 0.25)])  # fmt: skip


def make_roots(function: Callable) -> Callable:
    """Make ``(value, args)`` to the first and the last place where a function has a value.

    ``function(x, args)`` takes a vector. A place is looked for where the function passes the value
    between two numbers of a wide grid; NaN where it does not.
    """

    @part
    def bisect(low, high, rises, value, args):
        x = np.empty(1)
        for _ in range(120):
            x[0] = 0.5 * (low + high)
            if not low < x[0] < high:
                break
            if (function(x, args)[0] < value) == rises:
                low = x[0]
            else:
                high = x[0]
        return x[0]

    @part
    def roots(value, args):
        at = function(_GRID, args)
        first, last = math.nan, math.nan
        for i in range(1, at.size):
            below, above = at[i - 1] < value, at[i] < value
            if at[i - 1] == at[i - 1] and at[i] == at[i] and below != above:
                last = bisect(_GRID[i - 1], _GRID[i], below, value, args)
                if math.isnan(first):
                    first = last
        return first, last

    return roots
