r"""Starting points of NUTS: near the released values, as widely spread as the density is there.

Far out in the tails of Laplace noise the gradient is constant, and a chain that starts there learns
nothing of the scales: its steps collapse. So an ascent (L-BFGS) goes from PyMC's initial point
towards the release. Among the points on its path the one with the largest mass is taken: that of a
Normal law as wide as the density, its log density plus the logs of the widths, as in Pathfinder
(Zhang et al., 2022). A mode in a narrow funnel has little mass. Chains start around the point, two
standard deviations wide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from pymc_dp.graphs.declined import Declined

Density = Callable[[np.ndarray], tuple[float, np.ndarray]]  # the log density and its gradient

_ROUNDS, _MOST_ASCENTS = 6, 50  # ascents, and L-BFGS iterations of each
_WORTH = 1.0  # gain in log mass after which there is one more ascent
_DEEPEST = 2.0  # by which the logarithm of a spread falls at most
_HELD = 8  # values of spreads, a factor e apart, that are tried if they would fall farther
_FARTHER = 2.0 ** (np.arange(25) / 3.0)  # lengths of jumps, in widths
_GAIN = 10.0  # in log mass, for which a jump is made
_LOST = 1e3  # fall of the log density after which longer jumps are tried only if it rises
_NARROWEST = 1e-12  # width of a mode, below which it has no mass
_WALL = 1e10  # objective of L-BFGS where the density is NaN
_LOOKED_AT = 6  # points on the path of an ascent
_FALL = 2.0  # of the log density of a Normal entry, two standard deviations away
_DOUBLINGS = 40  # of a width, or halvings
_HALVINGS = 60  # of the distance of a start from its center
_CHECKED = 20  # points around a center
_SHOWN = 4  # entries of a point in a message


class NotFinite(Declined):
    """A density or its gradient is NaN in the bulk of the posterior."""


class SearchOver(Exception):
    """Raised by a density to end the search for a start."""


class Center(NamedTuple):
    """A point in the bulk of a density; the widths are two standard deviations of each entry."""

    point: np.ndarray
    log_density: float
    widths: np.ndarray


def find_centers(
    density: Density, start: np.ndarray, sizes: Sequence[int], spreads: np.ndarray | None = None
) -> list[Center]:
    """Return centers of the density, the best first: several if there are several modes.

    Centers with much less mass than the best are traps of the ascent, and left out. The search
    takes three ascents of up to 50 evaluations of the density each, two or more a variable for each
    of up to six points on a path, up to six rounds more, and jumps of up to 50 evaluations a
    variable. A density that raises `SearchOver` ends the search at the best center so far.

    Parameters
    ----------
    density : takes a vector, returns the log density and its gradient.
    start : PyMC's initial point.
    sizes : numbers of entries of the variables in the vector; entries of one share a width.
    spreads : which entries are logarithms of positive parameters of vectors, spreads mostly. As
        their funnel would trap an ascent, they fall by `_DEEPEST` at most. If that is where the
        best center is, they are held at several values, and all else ascends.
    """
    free = np.full(start.size, np.inf)
    spreads = np.zeros(start.size, dtype=bool) if spreads is None else spreads
    box = np.where(spreads, start - _DEEPEST, -free), free
    jitter = np.random.default_rng(0).uniform(-1.0, 1.0, start.size)
    centers: list[Center] = []
    near = np.ones(start.size)
    best: Center | None = None
    # Threads of BLAS cost more than they give in so few dimensions.
    with suppress(SearchOver), threadpool_limits(1, "blas"):
        for q in (start, start + jitter, start - jitter):
            first = _center(density, q, sizes, near)
            centers += [first]
            centers[-1:] = _climb(density, first, sizes, box, centers[:-1])
            near = first.widths
        best = max(centers, key=_mass)
        # The ascents are in units of the widths, so that scales do not matter.
        for _ in range(_ROUNDS):
            [climbed] = _climb(density, best, sizes, box)
            ended, best = not _mass(climbed) > _mass(best) + _WORTH, climbed
            if ended and (best := _jump(density, climbed, sizes)) is climbed:
                break
        if (spreads & (best.point < box[0] + best.widths)).any():
            for k in range(_HELD):
                held = _center(density, start - k * spreads, sizes, near)
                box = np.where(spreads, held.point, -free), np.where(spreads, held.point, free)
                centers += _climb(density, held, sizes, box)
            best = max(best, *centers, key=_mass)
    if best is None:
        best = max(centers, key=_mass, default=Center(start, -np.inf, near))
    elsewhere = [center for center in centers if not _is_at(best, center.point)]
    return [best, *(center for center in elsewhere if _mass(center) >= _mass(best) - _GAIN)]


def _is_at(center: Center, point: np.ndarray) -> bool:
    return bool((abs(point - center.point) <= center.widths).all())


def _climb(
    density: Density,
    start: Center,
    sizes: Sequence[int],
    box: tuple[np.ndarray, np.ndarray],
    known: Sequence[Center] = (),
) -> list[Center]:
    """Return the best center on an ascent from one in a box; none if it ends at a known one."""
    path, best, near = _ascent(density, start, box), start, start.widths
    if path and any(_is_at(known_center, path[-1]) for known_center in known):
        return []
    looked_at = np.linspace(len(path) - 1, 0, _LOOKED_AT).astype(int) if path else ()
    # From the end back: each point takes several evaluations a variable.
    for i in dict.fromkeys(looked_at):
        center = _center(density, path[i], sizes, near)
        best, near = max(best, center, key=_mass), center.widths
        if center is not best is not start:  # the path has left the bulk
            break
    return [best]


def _mass(center: Center) -> float:
    """Return the log mass of a Normal law as wide as the density at a center, up to a constant."""
    if not np.isfinite(center.log_density) or center.widths.min(initial=1.0) < _NARROWEST:
        return -np.inf
    return center.log_density + np.log(center.widths).sum()


def _jump(density: Density, center: Center, sizes: Sequence[int]) -> Center:
    """Jump from a center along one variable after the other, wherever that gains mass.

    Far from the release the prior may outweigh the tail of the noise, and an ascent does not move.
    """
    first = 0
    for size in sizes:
        jumps = np.zeros((2 * _FARTHER.size, center.point.size))
        entries = slice(first, first + size)
        jumps[:, entries] = np.outer(np.r_[_FARTHER, -_FARTHER], center.widths[entries])
        values = []
        for side in np.split(jumps, 2):
            values += _until_lost(density, center, center.point + side)
        k = int(np.argmax(np.nan_to_num(values, nan=-np.inf, posinf=-np.inf)))
        if values[k] > center.log_density:
            landing = _center(density, center.point + jumps[k], sizes, center.widths)
            if _mass(landing) > _mass(center) + _GAIN:
                center = landing
        first += size
    return center


def _until_lost(density: Density, center: Center, points: np.ndarray) -> list[float]:
    """Return log densities of points farther and farther out; NaN after `_LOST`, once they fall."""
    log_densities, before = [math.nan] * len(points), center.log_density
    for k, q in enumerate(points):
        log_densities[k] = density(q)[0]
        if not (log_densities[k] > center.log_density - _LOST or log_densities[k] > before):
            break
        before = log_densities[k]
    return log_densities


def _ascent(
    density: Density, center: Center, box: tuple[np.ndarray, np.ndarray]
) -> list[np.ndarray]:
    """Return the path of an ascent from a center, with L-BFGS in units of its widths."""
    path: list[np.ndarray] = []

    def fall(u):
        value, slope = density(center.point + center.widths * u)
        if np.isfinite(value) and np.isfinite(slope).all():
            return center.log_density - value, -slope * center.widths
        return _WALL, np.zeros_like(u)

    if np.isfinite(center.log_density):
        low, high = ((end - center.point) / center.widths for end in box)
        minimize(
            fall,
            np.zeros(center.point.size),
            jac=True,
            method="L-BFGS-B",
            bounds=np.transpose([np.minimum(low, 0.0), np.maximum(high, 0.0)]),
            callback=lambda u: path.append(center.point + center.widths * u),
            options={"maxiter": _MOST_ASCENTS, "gtol": 1e-2},
        )
    return path


def _center(density: Density, q: np.ndarray, sizes: Sequence[int], near: np.ndarray) -> Center:
    """Return the center at a point: search its widths from those nearby, by doubling or halving."""
    level = density(q)[0]
    widths, first = near.copy(), 0
    for size in sizes:
        direction = np.zeros(q.size)
        direction[first : first + size] = 1.0

        def fits(width, direction=direction, size=size):
            falls = (level - density(q + side * width * direction)[0] for side in (-1.0, 1.0))
            return all(fall <= _FALL * size for fall in falls)  # false for NaN

        width = near[first]
        factor = 2.0 if fits(width) else 0.5
        for _ in range(_DOUBLINGS):
            if fits(width * factor) != (factor > 1.0):
                width *= 1.0 if factor > 1.0 else factor
                break
            width *= factor
        widths[first : first + size] = width
        first += size
    return Center(q, level, widths)


def draw_start(density: Density, center: Center, rng: np.random.Generator) -> np.ndarray:
    """Draw a point around a center; halve its distance until the density is not too low."""
    deviation = center.widths * rng.standard_normal(center.point.size)
    # A Normal log density falls by 2 an entry on average, at two standard deviations.
    most = _FALL * center.point.size + 10.0
    for _ in range(_HALVINGS):
        q = center.point + deviation
        value, slope = density(q)
        if center.log_density - value <= most and np.isfinite(slope).all():
            return q
        deviation *= 0.5
    return center.point.copy()


def check_finite(density: Density, center: Center, names: Sequence[str]) -> None:
    """Raise `NotFinite` if a density is NaN at the center or at points around it.

    Parameters
    ----------
    names : names of the entries, for the message.
    """
    rng = np.random.default_rng(0)
    around = center.widths * rng.standard_normal((_CHECKED, center.point.size))
    around *= np.resize([0.25, 0.5, 1.0], (_CHECKED, 1))  # half a standard deviation to two
    for q in (center.point, *(center.point + around)):
        value, slope = density(q)
        if value == -np.inf or (np.isfinite(value) and np.isfinite(slope).all()):
            continue  # -inf: outside of the support
        quantity = "the gradient of its log density" if np.isfinite(value) else "its log density"
        point = ", ".join(f"{n} = {x:.4g}" for n, x in zip(names[:_SHOWN], q, strict=False))
        raise NotFinite(f"{quantity} has no value at {point}{', ...' * (q.size > _SHOWN)}")
