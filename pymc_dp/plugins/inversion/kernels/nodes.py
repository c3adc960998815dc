"""Quadrature nodes for a law with a smooth unimodal density, placed by evaluating the density.

The real line (on which the support was mapped) is cut into pieces at the breakpoints of a statistic
h. Every piece has a center, the point of it nearest to an inner point of the law, and two sides.
First each side is scouted at distances that double; then panels of a Gauss-Legendre rule are laid
over the part that carries mass, under the law itself or under a tilt exp(t h) that may be needed.
Nodes only choose where to evaluate the law, so that none of this is differentiated.
"""

import math

import numpy as np

from pymc_dp.kernels import jit
from pymc_dp.kernels.linked import V, linked

RULE = 16
NODES, WEIGHTS = np.polynomial.legendre.leggauss(RULE)
# Scouted distances, relative to max(1, |center|): for scales from 1e-9 to 1e12.
DISTANCES = np.concatenate([[0.0], 1e-10 * 2.0 ** np.arange(74)])
# Where a side is sampled, relative to its length: equidistant, and halving towards the center.
SAMPLES = np.unique(np.concatenate([np.linspace(0.0, 1.0, 25), 0.5 ** np.arange(5, 40)]))
DROP = 42.0  # fall of the log density at which a piece is cut
# Records are not tilted beyond this fall, 60 standard deviations of a normal law.
FARTHEST = 2000.0


@jit
def _reach(distance, g, top):
    """Distance from which on g is below top - DROP, interpolated by a power law."""
    last = -1
    for k in range(g.size):
        if g[k] >= top - DROP:
            last = k
    if last < 0:
        return 0.0
    if last == g.size - 1:
        return distance[last]
    far, near = distance[last + 1], distance[last]
    before, after = top - g[last], top - g[last + 1]
    if not (near > 0.0 and before > 0.0 and after < math.inf):
        return far
    power = math.log(DROP / before) / math.log(after / before)
    return min(1.05 * near * (far / near) ** power, far)


_SIDES = "f8[:, :, ::1]"  # array over pieces, both sides and points


@linked(f"f8[:, ::1]({_SIDES}, {_SIDES}, {_SIDES}, f8, f8)")
def reaches(y, g, h, target, tilt):
    """Return the distance up to which each side of each piece carries mass.

    Parameters
    ----------
    y, g, h : (pieces, 2, points) scouted points, log densities, and values of the statistic; the
        first point of a side is the center.
    target, tilt : the value of h that a tilt has for its mean, and a bound of the tilt.
    """
    pieces, _, points = y.shape
    result = np.zeros((pieces, 2))
    for piece in range(pieces):
        top = -math.inf
        for side in range(2):
            for k in range(points):
                # By rounding, a point may hit a pole at the end of the support.
                if top < g[piece, side, k] < math.inf:
                    top = g[piece, side, k]
        if top == -math.inf:
            continue
        for side in range(2):
            distance = np.abs(y[piece, side] - y[piece, side, 0])
            density = np.where(np.isfinite(g[piece, side]), g[piece, side], -math.inf)
            values = h[piece, side]
            untilted = _reach(distance, density, top)
            tilted = shift = 0.0
            for sign in (-1.0, 1.0):
                exponent = density + sign * tilt * values
                exponent = np.where(np.isnan(exponent), -math.inf, exponent)
                highest = exponent.max()
                unbounded = highest == math.inf
                tilted = max(
                    tilted, distance[-1] if unbounded else _reach(distance, exponent, highest)
                )
            low, high = min(values[0], target), max(values[0], target)
            for k in range(1, points):
                inside = low <= values[k] <= high and values[k] != values[0]
                if (inside or k == 1) and density[k] > top - FARTHEST:
                    shift = max(shift, distance[min(k + 1, points - 1)])
            result[piece, side] = max(untilted, min(tilted, untilted + shift))
    return result


@linked(f"UniTuple({V}, 3)({V}, f8[:, ::1], f8[:, ::1], {_SIDES}, {_SIDES}, i8, f8)")
def panels(center, limit, reach, g, h, count, safe):
    """Lay `count` panels over each side of each piece.

    Panels are short where the density or the statistic changes fast, longer where there is less
    mass.

    Parameters
    ----------
    center, limit, reach : (pieces,), (pieces, 2), (pieces, 2) centers, distances to the ends of the
        pieces and distances to cover.
    g, h : log densities and values of the statistic at the `SAMPLES` of every side.
    safe : the position of nodes without weight.

    Returns
    -------
    nodes, log weights, and 1 for nodes at an end where the law was cut, else 0.
    """
    pieces = reach.shape[0]
    size = pieces * 2 * count * RULE
    y = np.full(size, safe)
    log_weight = np.full(size, -math.inf)
    cut = np.zeros(size)
    place = 0
    cumulated = np.empty(SAMPLES.size)
    for piece in range(pieces):
        top = -math.inf
        for value in g[piece].ravel():
            if value > top:
                top = value
        for side in range(2):
            length = reach[piece, side]
            if not length > 0.0:
                place += count * RULE
                continue
            _monitor(g[piece, side], h[piece, side], top, cumulated)
            sign = -1.0 if side == 0 else 1.0
            start, k = 0.0, 0
            for panel in range(count):
                level = (panel + 1.0) / count
                while k < SAMPLES.size - 2 and cumulated[k + 1] < level:
                    k += 1
                part = (level - cumulated[k]) / (cumulated[k + 1] - cumulated[k])
                end = SAMPLES[k] + min(part, 1.0) * (SAMPLES[k + 1] - SAMPLES[k])
                end = length if panel == count - 1 else length * end
                for j in range(RULE):
                    distance = start + 0.5 * (end - start) * (1.0 + NODES[j])
                    y[place] = center[piece] + sign * distance
                    log_weight[place] = math.log(0.5 * WEIGHTS[j] * (end - start))
                    if panel == count - 1 and j >= RULE - 4 and length < limit[piece, side]:
                        cut[place] = 1.0
                    place += 1
                start = end
    return y, log_weight, cut


@jit
def _monitor(g, h, top, cumulated):
    """Cumulated share of panels, by length, fall of the density and change of the statistic."""
    last = cumulated.size - 1
    cumulated[:] = SAMPLES
    _add_changes(g, np.maximum(g, top - DROP), 1e300, cumulated)
    # A panel of mass e^-x may be longer, see `inversion.resolved`.
    _add_changes(top - g, h, 15.0, cumulated)
    cumulated /= cumulated[last]


@jit
def _add_changes(fall, values, scale, cumulated):
    """Add cumulated absolute changes of values, damped by a fall, as a share of their total."""
    change = np.zeros(cumulated.size)
    for k in range(cumulated.size - 1):
        damping = 1.0 + min(max(min(fall[k], fall[k + 1]), 0.0), 1e3) / scale
        change[k + 1] = change[k] + abs(values[k + 1] - values[k]) / damping
    if 0.0 < change[-1] < math.inf:
        cumulated += change / change[-1]
