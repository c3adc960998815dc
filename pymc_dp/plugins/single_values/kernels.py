r"""Integrals and sums over one confidential value, with their slopes, and exact draws of it.

The integrand is :math:`e^{h(y)}`, its slopes are :math:`\int e^h\, \partial h / \partial\theta`.
Between knots, modes and points where h bends or jumps, panels are cut at steps, and halved until
the two rules of Gauss and Kronrod agree, the half with the larger values first, so that panels are
judged by most of the integral. Beyond the last knot they grow, until what they add is lost in
rounding.
"""

import math
from collections.abc import Callable

import numpy as np

from pymc_dp.kernels import jit, part
from pymc_dp.kernels.functions.quadrature import DROP

# Nodes and weights of the rule of Kronrod with 15 points, and weights of that of Gauss with 7.
_X = np.array([
    0.9914553711208126, 0.9491079123427585, 0.8648644233597691, 0.7415311855993945,
    0.5860872354676911, 0.4058451513773972, 0.2077849550078985, 0.0,
])  # fmt: skip
_K = np.array([
    0.0229353220105292, 0.0630920926299786, 0.1047900103222502, 0.1406532597159259,
    0.1690047266392679, 0.1903505780647854, 0.2044329400752989, 0.2094821410847278,
])  # fmt: skip
_G = np.array([0.0, 0.1294849661688697, 0.0, 0.2797053914892767,
               0.0, 0.3818300505051189, 0.0, 0.4179591836734694])  # fmt: skip
NODES = np.concatenate([-_X, _X[-2::-1]])
KRONROD = np.concatenate([_K, _K[-2::-1]])
GAUSS = np.concatenate([_G, _G[-2::-1]])

TOLERANCE = 1e-8
"""Share of the integral by which the rules may differ in a panel."""
_REST = 1e-16  # share of the integral that an outermost panel may add at the end
_STEEP = 2.0  # rise of h between the last node and the end of a panel that needs narrower ones
_BESIDE = 1e-13  # distance from an end of a panel at which h is looked at, relative to the ends
_MOST_PANELS, _MOST_HELD = 20_000, 200
_CHUNK = 16.0  # terms of a sum that are evaluated at once


def _make_state(n_slopes: int) -> Callable:
    """Make the update of a sum of e^h, kept relative to its largest term."""

    @part
    def add(state, slopes, rows, weights):
        """Add weighted values of `rows`, h and its slopes; return what the sum grew by."""
        h, top = rows[0], state[0]
        high = top
        for value in h:
            if value > high:
                high = value
        if high == -math.inf:
            return 0.0
        if high > top:
            factor = math.exp(top - high) if top > -math.inf else 0.0
            state[0] = high
            state[1] *= factor
            for j in range(n_slopes):
                slopes[j] *= factor
        added = 0.0
        for i in range(h.size):
            if h[i] > high - 700.0:
                term = weights[i] * math.exp(h[i] - high)
                added += term
                for j in range(n_slopes):
                    slopes[j] += term * rows[1 + j, i]
        state[1] += added
        return added

    return add


@part
def no_edges(y, args):
    """Return no ends: h jumps nowhere."""
    return y[:0]


def make_walk(density: Callable, n_slopes: int, rough: bool, edges: Callable) -> Callable:
    """Make the walk over the real line that integrates e^h.

    Parameters
    ----------
    density : ``(y, args)`` to a matrix with the rows h and its slopes, at a vector of values.
    n_slopes : number of slopes.
    rough : whether h may jump where no knot is: the difference of the rules then is the error.
    edges : ``(y, args)`` to the values next to one at which h jumps: no panel has one inside.

    Returns
    -------
    callable
        ``(knots, args, state, slopes, floor, goal)`` adds to `state`, [log scale, sum], and to
        `slopes`. Once the sum reaches `goal` it returns the panel, and how much of it is below the
        goal; NaN where the number of panels is too large. `floor` is a lower bound of the sum.
    """
    add, has_steps = _make_state(n_slopes), edges is not no_edges

    @part
    def once(knots, args, state, slopes, floor, goal, cutting):
        count = knots.size + 1
        panels = np.empty((_MOST_HELD + count, 3))  # low, high, and -1 or 1 for an outermost one
        at_knots = density(knots, args)[0]
        at_knots[np.isnan(at_knots)] = -math.inf
        order = np.empty(count)
        for k in range(count):
            low, high, side = knots[max(k - 1, 0)], knots[min(k, count - 2)], 0.0
            order[k] = max(at_knots[max(k - 1, 0)], at_knots[min(k, count - 2)])
            if k == 0:
                low, side = high - 1.0, -1.0
            elif k == count - 1:
                high, side = low + 1.0, 1.0
            panels[k] = low, high, side
        panels[:count] = panels[np.argsort(order)]
        used, points, weights = 0, np.empty(17), np.zeros(17)
        while count > 0:
            count, used = count - 1, used + 1
            if used > _MOST_PANELS:
                return math.nan, math.nan, math.nan
            low, high, side = panels[count]
            half, middle = 0.5 * (high - low), 0.5 * (high + low)
            # A jump at an end is none inside.
            beside = _BESIDE * max(abs(low), abs(high))
            points[0], points[1:16], points[16] = low + beside, middle + half * NODES, high - beside
            rows = density(points, args)
            h = rows[0]
            h[np.isnan(h)] = -math.inf  # no such value
            error, integral, top = _errors(h[1:16], state[0], rough)
            total = max(floor, state[1]) * _scale(state[0], top) + half * integral
            # A peak at an end that is too narrow for the nodes shows at the end alone.
            hidden = (h[0] - h[1] > _STEEP and h[0] > top - DROP) or (
                h[16] - h[15] > _STEEP and h[16] > top - DROP
            )
            # Where h is large, its last digits are more.
            allowed = (TOLERANCE + 1e-15 * abs(top)) * total if top > -math.inf else 0.0
            is_point = not low + beside < middle < high - beside
            cut = math.inf
            if cutting and h.max() > state[0] - DROP:
                for edge in edges(points[8:9], args):
                    inside = low + beside < edge < high - beside
                    if inside and abs(edge - middle) < abs(cut - middle):
                        cut = edge
            jumped = cut < math.inf
            middle = cut if jumped else middle
            if (jumped or hidden or not half * error <= allowed) and not is_point:
                if count + 2 > len(panels):
                    return math.nan, math.nan, math.nan
                larger = h[1:8].max() > h[9:16].max()  # of the halves, to be met first
                first, second = count + 1 if larger else count, count if larger else count + 1
                panels[first] = low, middle, min(side, 0.0)
                panels[second] = middle, high, max(side, 0.0)
                count += 2
                continue
            before = state[1]
            weights[1:16] = half * KRONROD
            added = add(state, slopes, rows, weights)
            if state[1] >= goal:
                return low, high, goal - before
            end = h[16] if side > 0.0 else h[0]
            if side != 0.0 and (end > state[0] - DROP or added > _REST * max(floor, state[1])):
                width = (8.0 if half * error <= 1e-3 * allowed else 4.0) * half
                panels[count] = (
                    (high, high + width, side) if side > 0.0 else (low - width, low, side)
                )
                count += 1
        return math.inf, math.inf, 0.0

    @part
    def walk(knots, args, state, slopes, floor, goal):
        before, slopes_before = state.copy(), slopes.copy()
        found = once(knots, args, state, slopes, floor, goal, has_steps)
        if has_steps and math.isnan(
            found[0]
        ):  # steps that are so many are narrow: the rules see through them
            state[:], slopes[:] = before, slopes_before
            found = once(knots, args, state, slopes, floor, goal, False)
        return found

    return walk


@part
def _scale(log_scale, top):
    return math.exp(log_scale - top) if log_scale > -math.inf else 0.0


@part
def _errors(h, log_scale, rough):
    """Return error and integral of e^h over [-1, 1], and the log of their scale."""
    top = max(log_scale, h.max())
    if not top > -math.inf:
        return 0.0, 0.0, top
    kronrod, gauss, f = 0.0, 0.0, np.exp(h - top)
    for i in range(f.size):
        kronrod += KRONROD[i] * f[i]
        gauss += GAUSS[i] * f[i]
    spread, error = 0.0, abs(kronrod - gauss)
    for i in range(f.size):
        spread += KRONROD[i] * abs(f[i] - 0.5 * kronrod)
    if (
        spread > 0.0 and not rough
    ):  # as in QUADPACK: the better rule is far better than the difference
        error = spread * min(1.0, (200.0 * error / spread) ** 1.5)
    return error, kronrod, top


def make_sum(density: Callable, n_slopes: int) -> Callable:
    """Make the walk over whole numbers that sums e^h, as `make_walk`."""
    add = _make_state(n_slopes)
    ones = np.ones(int(_CHUNK))

    @part
    def walk(knots, args, state, slopes, floor, goal):
        whole = np.append(np.floor(knots), np.ceil(knots))
        low, high = whole.min(), whole.max()
        start, top, heights = low, -math.inf, density(whole, args)[0]
        for k in range(whole.size):
            if heights[k] > top:
                start, top = whole[k], heights[k]
        for side in (1.0, -1.0):
            at, chunks = start if side > 0.0 else start - 1.0, 0
            while True:
                chunks += 1
                if chunks > 50 * _MOST_PANELS:
                    return math.nan, math.nan, math.nan
                counts = at + side * np.arange(_CHUNK)
                rows = density(counts, args)
                h, before = rows[0], state[1]
                h[np.isnan(h)] = -math.inf
                added = add(state, slopes, rows, ones)
                if state[1] >= goal:
                    rest = goal - before
                    for i in range(h.size):
                        rest -= math.exp(h[i] - state[0])
                        if rest <= 0.0 or i == h.size - 1:
                            return counts[i], counts[i], 0.0
                at += side * _CHUNK
                beyond = at > high if side > 0.0 else at < low
                falls = not h[h.size - 1] > h[0] or h[0] == -math.inf
                if beyond and falls and not added > _REST * max(floor, state[1]):
                    break
        return math.inf, math.inf, 0.0

    return walk


def make_integral(walk: Callable, n_slopes: int) -> Callable:
    """Make ``(knots, args)`` to the log of the integral of e^h, and its slopes."""

    @part
    def integral(knots, args):
        knots = np.unique(knots)
        state, slopes = np.array([-math.inf, 0.0]), np.zeros(n_slopes)
        stopped = walk(knots, args, state, slopes, 0.0, math.inf)[0]
        if math.isnan(stopped) or math.isnan(state[1]):
            return math.nan, slopes
        if not state[1] > 0.0:
            return -math.inf, np.zeros(n_slopes)
        return state[0] + math.log(state[1]), slopes / state[1]

    return integral


def make_draw(walk: Callable, density: Callable, whole: bool) -> Callable:
    """Make ``(rng, knots, args)`` to a draw with density proportional to e^h."""

    @part
    def mass(low, high, top, args):
        half, middle = 0.5 * (high - low), 0.5 * (high + low)
        h = density(middle + half * NODES, args)[0]
        return half * np.sum(KRONROD * np.exp(h - top))

    @part
    def draw(rng, knots, args):
        knots = np.unique(knots)
        state, slopes = np.array([-math.inf, 0.0]), np.zeros(0)
        walk(knots, args, state, slopes, 0.0, math.inf)
        total, top = state[1], state[0]
        if not total > 0.0:
            return math.nan
        low, high, rest = math.inf, math.inf, 0.0
        while low == math.inf:  # but for rounding, the same panels come again
            state[:] = top, 0.0
            low, high, rest = walk(knots, args, state, slopes, 0.0, total * rng.random())
        if whole or not high > low:
            return low
        for _ in range(60):
            middle = 0.5 * (low + high)
            if not low < middle < high:
                break
            left = mass(low, middle, top, args)
            right = mass(middle, high, top, args)
            # The rule on the whole panel and those on its halves differ in the last digits.
            if rest < left or not right > 0.0:
                high = middle
            else:
                low, rest = middle, rest - left
        return low + (high - low) * rng.random()

    return draw


@jit
def gather(at_nodes, first, weights):
    """Return weighted sums of consecutive values, from `first` on."""
    out = np.empty(first.size)
    for i in range(first.size):
        total, start = 0.0, int(first[i])
        for k in range(weights.shape[1]):
            total += weights[i, k] * at_nodes[start + k]
        out[i] = total
    return out


@jit
def scatter(gradient, first, weights, count):
    """Return what `gather` does to a gradient: its transpose."""
    out = np.zeros(count)
    for i in range(first.size):
        start = int(first[i])
        for k in range(weights.shape[1]):
            out[start + k] += weights[i, k] * gradient[i]
    return out
