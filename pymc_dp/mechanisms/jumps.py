"""Where a density jumps in the statistic: found on a grid, then halved."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytensor.tensor as pt

from pymc_dp.graphs.values import plain_function

_SEARCHED, _MOST_JUMPS = 1001, 6  # points at which jumps are looked for, and how many are kept
_AT_ONCE = 2_000  # values, whose densities on the grid are in memory


def find_jumps(
    logp_of: Callable, tried_at: Sequence[float], values: np.ndarray
) -> list[np.ndarray]:
    """Return statistics at which the density of values jumps; NaN where one has fewer jumps.

    `logp_of` takes a value and a statistic; `tried_at` are statistics that say where to look.
    """
    value, statistic = pt.dvector(), pt.dvector()
    logp = plain_function([value, statistic], logp_of(value, statistic))
    z = values.ravel()
    low, high = np.nanmin([*z, *tried_at]), np.nanmax([*z, *tried_at])
    grid = np.linspace(low - (high - low), high + (high - low), _SEARCHED)
    parts = [_jumps_on(grid, logp, part) for part in np.array_split(z, 1 + z.size // _AT_ONCE)]
    most = min(max(len(part) for part in parts), _MOST_JUMPS)
    rows = [np.pad(p[:most], ((0, most - len(p[:most])), (0, 0)), constant_values=np.nan)
            for p in parts]  # fmt: skip
    return [jump.reshape(values.shape) for jump in np.concatenate(rows, axis=1)]


def _jumps_on(grid: np.ndarray, logp: Callable, z: np.ndarray) -> np.ndarray:
    """Return jumps between neighbours on a grid, a row for the first of each value, and so on."""
    with np.errstate(all="ignore"):
        h = logp(np.repeat(z, grid.size), np.tile(grid, z.size)).reshape(z.size, -1)
        h = np.nan_to_num(h, nan=-1e300, neginf=-1e300)
        rise = np.abs(np.diff(h, axis=1))
        beside = np.pad(rise, ((0, 0), (2, 2)), mode="edge")
        jumped = rise > 1e-6 + 10.0 * np.maximum(beside[:, :-4], beside[:, 4:])
        rows, cells = np.nonzero(jumped)
        low, high = grid[cells], grid[cells + 1]
        at_low, at_high = h[rows, cells], h[rows, cells + 1]
        for _ in range(60):
            middle = 0.5 * (low + high)
            at = np.nan_to_num(logp(z[rows], middle), nan=-1e300, neginf=-1e300)
            is_left = np.abs(at - at_low) > np.abs(at_high - at)
            low, at_low = np.where(is_left, low, middle), np.where(is_left, at_low, at)
            high, at_high = np.where(is_left, middle, high), np.where(is_left, at, at_high)
    which = np.arange(rows.size) - np.searchsorted(rows, rows)  # of each value, from the first
    found = np.full((which.max(initial=-1) + 1, z.size), np.nan)
    found[which, rows] = 0.5 * (low + high)
    return found
