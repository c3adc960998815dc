r"""Where chains of NUTS begin: near what was released, as wide as the density is there.

Far out in the tails of Laplace noise the gradient is the same at all points, and a chain that
begins there learns nothing of the scales: its steps collapse. So an ascent goes from PyMC's initial
point towards the release (L-BFGS). Of the points on its way the one is taken where a Normal law as
wide as the density would hold most, its log density plus the logs of the widths, as in Pathfinder
(Zhang et al., 2022): a mode in a narrow funnel holds little. Chains begin around it, two spreads
wide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from pymc_dp.graphs.declined import Declined

Density = Callable[[np.ndarray], tuple[float, np.ndarray]]  # its log and the gradient of that

_ROUNDS, _MOST_ASCENTS = 6, 50  # ascents, and iterations of one
_WORTH = 1.0  # of the log of the mass, for which there is one more
_FARTHER = 2.0 ** (np.arange(25) / 3.0)  # widths of a jump
_GAIN = 10.0  # of the log of the mass, for which it is made
_LOST = 1e3  # fall of the log density, behind which no jump looks where it falls on
_NARROWEST = 1e-12  # width: what is narrower is a mode that holds nothing
_WALL = 1e10  # in the place of a fall that has no value
_LOOKED_AT = 6  # points on the way
_FALL = 2.0  # of the log density at two spreads, for each entry
_DOUBLINGS = 40  # of a width, up or down
_HALVINGS = 60
_CHECKED = 20  # points around
_SHOWN = 4  # entries of a point


class NotFinite(Declined):
    """A density or its gradient has no value where the posterior is."""


class SearchOver(Exception):
    """A density ends the search for a start."""


class Center(NamedTuple):
    """A point in the bulk of a density; and around it, two spreads of each entry."""

    point: np.ndarray
    log_density: float
    widths: np.ndarray


def find_centers(density: Density, start: np.ndarray, sizes: Sequence[int]) -> list[Center]:
    """Return the centers found from PyMC's start and around it: more than one of several modes.

    Those that hold much less than the best are traps of the ascent, and left out. What the search
    asks for is three ascents of up to 50 densities each, two densities or more a variable for each
    of up to six points on the way, up to six rounds more, and jumps of up to 50 densities a
    variable. A density that raises `SearchOver` ends it at the best so far.

    Parameters
    ----------
    density : the log density and its gradient, of a vector.
    start : where to begin.
    sizes : how many entries each variable has in the vector; they share a width.
    """
    jitter = np.random.default_rng(0).uniform(-1.0, 1.0, start.size)
    found: list[Center] = []
    near = np.ones(start.size)
    best: Center | None = None
    with suppress(SearchOver):
        for q in (start, start + jitter, start - jitter):
            first = _center(density, q, sizes, near)
            found += [first]
            found[-1:] = _climb(density, first, sizes, found[:-1])
            near = first.widths
        best = max(found, key=_mass)
        # In widths, so that units do not matter, nor how steep the tails are.
        for _ in range(_ROUNDS):
            [climbed] = _climb(density, best, sizes)
            ended, best = not _mass(climbed) > _mass(best) + _WORTH, climbed
            if ended and (best := _jump(density, climbed, sizes)) is climbed:
                break
    if best is None:
        best = max(found, key=_mass, default=Center(start, -np.inf, near))
    others = [center for center in found if not _is_at(best, center.point)]
    return [best, *(center for center in others if _mass(center) >= _mass(best) - _GAIN)]


def _is_at(center: Center, point: np.ndarray) -> bool:
    return bool((abs(point - center.point) <= center.widths).all())


def _climb(
    density: Density, start: Center, sizes: Sequence[int], known: Sequence[Center] = ()
) -> list[Center]:
    """Return the best center on an ascent from one; none if it ends at one that is known."""
    path, best, near = _ascent(density, start), start, start.widths
    if path and any(_is_at(own, path[-1]) for own in known):
        return []
    looked_at = np.linspace(len(path) - 1, 0, _LOOKED_AT).astype(int) if path else ()
    for i in dict.fromkeys(looked_at):  # back from its end: each costs several densities a variable
        center = _center(density, path[i], sizes, near)
        best, near = max(best, center, key=_mass), center.widths
        if center is not best is not start:  # behind the bulk
            break
    return [best]


def _mass(center: Center) -> float:
    """Log of what a Normal law as wide as the density there holds, but for a constant."""
    if not np.isfinite(center.log_density) or center.widths.min(initial=1.0) < _NARROWEST:
        return -np.inf
    return center.log_density + np.log(center.widths).sum()


def _jump(density: Density, center: Center, sizes: Sequence[int]) -> Center:
    """Return the best point that is a jump of one variable after the other from a center.

    Far from the release the prior may outweigh the noise's tail, and an ascent stay where it is.
    """
    first = 0
    for size in sizes:
        jumps = np.zeros((2 * _FARTHER.size, center.point.size))
        own = slice(first, first + size)
        jumps[:, own] = np.outer(np.r_[_FARTHER, -_FARTHER], center.widths[own])
        values = []
        for side in np.split(jumps, 2):
            values += _until_lost(density, center, center.point + side)
        k = int(np.argmax(np.nan_to_num(values, nan=-np.inf, posinf=-np.inf)))
        if values[k] > center.log_density:
            there = _center(density, center.point + jumps[k], sizes, center.widths)
            if _mass(there) > _mass(center) + _GAIN:
                center = there
        first += size
    return center


def _until_lost(density: Density, center: Center, points: np.ndarray) -> list[float]:
    """Return log densities of points farther and farther out; NaN behind where they are lost."""
    found, before = [math.nan] * len(points), center.log_density
    for k, q in enumerate(points):
        found[k] = density(q)[0]
        if not (found[k] > center.log_density - _LOST or found[k] > before):
            break
        before = found[k]
    return found


def _ascent(density: Density, center: Center) -> list[np.ndarray]:
    """Return the points of an ascent from a center, in its widths."""
    path: list[np.ndarray] = []

    def fall(u):
        value, slope = density(center.point + center.widths * u)
        if np.isfinite(value) and np.isfinite(slope).all():
            return center.log_density - value, -slope * center.widths
        return _WALL, np.zeros_like(u)

    if np.isfinite(center.log_density):
        minimize(
            fall,
            np.zeros(center.point.size),
            jac=True,
            method="L-BFGS-B",
            callback=lambda u: path.append(center.point + center.widths * u),
            options={"maxiter": _MOST_ASCENTS, "gtol": 1e-2},
        )
    return path


def _center(density: Density, q: np.ndarray, sizes: Sequence[int], near: np.ndarray) -> Center:
    """Look for the widths from those at a point nearby: each costs two densities or more."""
    here = density(q)[0]
    widths, first = near.copy(), 0
    for size in sizes:
        own = np.zeros(q.size)
        own[first : first + size] = 1.0

        def fits(width, own=own, size=size):
            falls = (here - density(q + side * width * own)[0] for side in (-1.0, 1.0))
            return all(fall <= _FALL * size for fall in falls)  # NaN does not

        width = near[first]
        by = 2.0 if fits(width) else 0.5
        for _ in range(_DOUBLINGS):
            if fits(width * by) != (by > 1.0):
                width *= 1.0 if by > 1.0 else by
                break
            width *= by
        widths[first : first + size] = width
        first += size
    return Center(q, here, widths)


def draw_start(density: Density, center: Center, rng: np.random.Generator) -> np.ndarray:
    """Return a point around a center, nearer where the density is too low there."""
    deviation = center.widths * rng.standard_normal(center.point.size)
    # Of a Normal law the fall is 2 for each entry on average.
    most = _FALL * center.point.size + 10.0
    for _ in range(_HALVINGS):
        q = center.point + deviation
        value, slope = density(q)
        if center.log_density - value <= most and np.isfinite(slope).all():
            return q
        deviation *= 0.5
    return center.point.copy()


def check_finite(density: Density, center: Center, names: Sequence[str]) -> None:
    """Raise `NotFinite` where a density has no value, at the center and at points around it.

    Parameters
    ----------
    names : of the entries, for the message.
    """
    rng = np.random.default_rng(0)
    around = center.widths * rng.standard_normal((_CHECKED, center.point.size))
    around *= np.resize([0.25, 0.5, 1.0], (_CHECKED, 1))  # half a spread to two
    for q in (center.point, *(center.point + around)):
        value, slope = density(q)
        if value == -np.inf or (np.isfinite(value) and np.isfinite(slope).all()):
            continue  # the model does not allow -inf
        what = "the gradient of its log density" if np.isfinite(value) else "its log density"
        point = ", ".join(f"{n} = {x:.4g}" for n, x in zip(names[:_SHOWN], q, strict=False))
        raise NotFinite(f"{what} has no value at {point}{', ...' * (q.size > _SHOWN)}")
