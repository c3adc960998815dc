"""Density of a noisy sum over a number of records that is known, or has a law."""

import math

import numpy as np

from pymc_dp.kernels import jit
from pymc_dp.kernels.linked import M, V, linked
from pymc_dp.plugins.inversion.kernels.few import few_records
from pymc_dp.plugins.inversion.kernels.line import TOLERANCE
from pymc_dp.plugins.inversion.kernels.release import release_line

FEW = 5  # number of records below which a density under Laplace noise has kinks
PLAINLY = 1e-9  # largest error estimate up to which a density by few nodes is taken
_NOTHING = 35.0  # fall of a log density at which a number of records is left out
_UNLIKELY = 27.0  # fall of a log weight at which a number is left out, if it cannot matter
_LEFT_OUT = 1e-10  # share of a density that may be left out
_PLACES = 14  # numbers of records between which densities are interpolated
_SMOOTH = 1e-10  # largest error of an interpolation


@jit
def _join(total, of_total, log_density, part):
    """Return the log of a total plus a density; update the derivatives of the total's log."""
    if math.isnan(total) or math.isnan(log_density):
        return math.nan
    top = max(total, log_density)
    if not top > -math.inf:
        return total
    before, added_density = math.exp(total - top), math.exp(log_density - top)
    for derivative, added in zip(of_total, part):  # noqa: B905  (numba has no strict=)
        derivative *= before / (before + added_density)
        derivative += added_density / (before + added_density) * added
    return top + math.log(before + added_density)


@linked(f"Tuple((f8, {V}, {V}, {V}))({V}, {V}, {V}, i8, f8, {V}, f8, f8, f8)")
def _few(log_weight, h, cut, few, n, lp, z, b, least):
    """Log density over numbers of records below FEW, and its derivatives.

    Numbers that cannot matter beside the log density `least` are left out. The derivatives are by
    the log weights of the nodes, by z, and by lp.
    """
    grad, slope, by_number = np.zeros(log_weight.size), np.zeros(1), np.zeros(lp.size)
    total, most = -math.inf, -1
    for k in range(min(lp.size, FEW - int(n))):
        if not lp[k] - math.log(2.0 * b) < least - _NOTHING and lp[k] > -math.inf:
            most = int(n) + k
    if most < 0:
        return total, grad, slope, by_number
    first, last = 0, few
    densities = few_records(log_weight[:few], h[:few], cut[:few], most, z, b)
    if not densities[3].max() < PLAINLY:
        first, last = few, h.size
        densities = few_records(log_weight[few:], h[few:], cut[few:], most, z, b)
    logp, slopes, grads, error = densities
    for k in range(most - int(n) + 1):
        number = int(n) + k
        if lp[k] == -math.inf:
            continue
        if not error[number] < TOLERANCE:
            return math.nan, grad, slope, by_number
        part = np.zeros(log_weight.size), np.full(1, slopes[number]), np.zeros(lp.size)
        part[0][first:last] = grads[number]
        part[2][k] = 1.0
        total = _join(total, (grad, slope, by_number), logp[number] + lp[k], part)
    return total, grad, slope, by_number


@linked(f"Tuple((f8, f8, {V}, {V}))({V}, {V}, {V}, i8, f8, {V}, f8, f8, f8, b1)")
def tiers(log_weight, h, cut, few, n, lp, z, b, sg, full):
    """`release_line` by the first `few` nodes if they are accurate enough, else by the other nodes.

    With Laplace noise it is for FEW records or more. Derivatives are those of `release_line`.
    """
    grad, rest = np.zeros(log_weight.size), (n, lp, z, b, sg)
    result = release_line(log_weight[:few], h[:few], cut[:few], *rest, PLAINLY, full)
    if not math.isnan(result[0]):
        grad[:few] = result[2]
    else:
        result = release_line(log_weight[few:], h[few:], cut[few:], *rest, TOLERANCE, full)
        grad[few:] = result[2]
    return result[0], result[1], grad, result[3]


@linked(f"Tuple((f8, f8, {V}, {V}))({V}, {V}, {V}, i8, f8, {V}, f8, f8, f8, b1)")
def sparing_line(log_weight, h, cut, few, n, lp, z, b, sg, full):
    """`tiers` for any numbers of records.

    Numbers below FEW under Laplace noise are computed by `few_records`. Unlikely numbers are left
    out if no sum of so many records could make them matter.
    """
    [likely] = np.nonzero(lp >= lp.max() - _UNLIKELY)
    first, last = (likely[0], likely[-1] + 1) if likely.size else (0, lp.size)
    while True:
        logp, slope, grad, by_number = -math.inf, 0.0, np.zeros(log_weight.size), np.zeros(lp.size)
        begin = first
        if b > 0.0 and sg == 0.0:
            begin = min(max(FEW - int(n), first), last)
        if begin < last:
            logp, slope, grad, by_number[begin:last] = tiers(
                log_weight, h, cut, few, n + begin, lp[begin:last], z, b, sg, full
            )
        if begin > first:
            log_few, by_node, by_z, of_numbers = _few(
                log_weight, h, cut, few, n + first, lp[first:last], z, b, logp
            )
            slopes = np.full(1, slope)
            of_total = grad, slopes, by_number[first:last]
            logp, slope = _join(logp, of_total, log_few, (by_node, by_z, of_numbers)), slopes[0]
        left_out = np.exp(lp[:first]).sum() + np.exp(lp[last:]).sum()
        left_out /= 2.0 * b if b > 0.0 else sg * math.sqrt(2.0 * math.pi)
        if left_out <= _LEFT_OUT * math.exp(logp) or last - first == lp.size:
            return logp, slope, grad, by_number
        first, last = 0, lp.size


@linked(f"Tuple((f8, {V}, {V}, {V}))({V}, {V}, {V}, i8, f8, {V}, {V}, {V}, {V})")
def release(log_weight, h, cut, few, n, lp, z, b, sg):
    """`sparing_line` for a release that depends on the number of records.

    z, b, sg and the derivatives by z have an entry for each number.
    """
    slopes, by_number = np.zeros(lp.size), np.zeros(lp.size)
    most = np.where(b > 0.0, 0.5 / b, 1.0 / (sg * math.sqrt(2.0 * math.pi)))
    [likely] = np.nonzero((lp >= lp.max() - _UNLIKELY) & (lp > -math.inf))
    if not likely.size:
        return -math.inf, slopes, np.zeros(log_weight.size), by_number
    first, last = likely[0], likely[-1] + 1
    while True:
        window = n + first, lp[first:last], z[first:last], b[first:last], sg[first:last]
        logp, slopes[first:last], grad, by_number[first:last] = _each_number(
            log_weight, h, cut, few, *window
        )
        share = np.exp(lp) * most
        left_out = share[:first].sum() + share[last:].sum()
        if left_out <= _LEFT_OUT * math.exp(logp) or last - first == lp.size:
            return logp, slopes, grad, by_number
        first, last = 0, lp.size


@linked(f"Tuple((f8, {V}, {V}, {V}))({V}, {V}, {V}, i8, f8, {V}, {V}, {V}, {V})")
def _each_number(log_weight, h, cut, few, n, lp, z, b, sg):
    """`release` over all numbers; densities of many numbers are interpolated."""
    numbers = np.arange(lp.size)
    if n >= FEW and lp.size > 2 * _PLACES:
        x = np.log(n + numbers)
        places, tests = _chosen(x, n)
        to_all = _interpolation(x, places)
        if _fits(to_all, places, z) and _fits(to_all, places, b) and _fits(to_all, places, sg):
            computed = np.concatenate((places, tests))
            logp, slope, grads = _densities_at(log_weight, h, cut, few, n, z, b, sg, computed)
            each = to_all @ logp[: places.size]
            if np.abs(each[tests] - logp[places.size :]).max() < _SMOOTH:
                return mixed(lp, each, slope, grads, places, to_all)
    logp, slope, grads = _densities_at(log_weight, h, cut, few, n, z, b, sg, numbers)
    return mixed(lp, logp, slope, grads, numbers, np.zeros((0, 0)))


@linked(f"Tuple(({V}, {V}, {M}))({V}, {V}, {V}, i8, f8, {V}, {V}, {V}, i8[::1])")
def _densities_at(log_weight, h, cut, few, n, z, b, sg, places):
    """Return the log densities of some numbers of records, and their derivatives."""
    logp, slope = np.empty(places.size), np.empty(places.size)
    grads = np.empty((places.size, log_weight.size))
    for i in range(places.size):
        k = places[i]
        logp[i], slope[i], grads[i], _ = sparing_line(
            log_weight, h, cut, few, n + k, np.zeros(1), z[k], b[k], sg[k], True
        )
    return logp, slope, grads


@linked(f"Tuple((f8, {V}, {V}, {V}))({V}, {V}, {V}, {M}, i8[::1], {M})")
def mixed(lp, each, slope, grads, places, to_all):
    """Add up the densities of all numbers, with derivatives at some places.

    `to_all` interpolates from these places to all numbers; it is empty if all numbers are places.
    """
    joint = each + lp
    top = joint.max()
    chance = np.exp(joint - top) if top > -math.inf else np.zeros(lp.size)
    total = chance.sum()
    chance /= max(total, 1.0)  # the largest is 1
    of_place = chance @ to_all if to_all.size else chance
    slopes, grad = np.zeros(lp.size), np.zeros(grads.shape[1])
    for i in range(places.size):
        slopes[places[i]] += of_place[i] * slope[i]
        grad += of_place[i] * grads[i]
    return top + math.log(max(total, 1.0)), slopes, grad, chance


@jit
def _chosen(x, n):
    """Return places of numbers whose logarithms are near Chebyshev's points, and two test places.

    The test places are those of the largest interpolation error on either half.
    """
    middle, half = 0.5 * (x[-1] + x[0]), 0.5 * (x[-1] - x[0])
    points = np.exp(middle - half * np.cos(np.linspace(0.0, math.pi, _PLACES))) - n
    places = np.unique(np.round(points)).astype(np.int64)
    distance = np.ones(x.size)
    for k in places:
        distance *= np.abs(x - x[k]) / half
    split = x.size // 2
    tests = np.array([np.argmax(distance[:split]), split + np.argmax(distance[split:])])
    return places, tests


@jit
def _fits(to_all, places, values):
    """Whether values are smooth enough to be interpolated."""
    worst = 0.0
    for k in range(values.size):
        interpolated = 0.0
        for i in range(places.size):
            interpolated += to_all[k, i] * values[places[i]]
        worst = max(worst, abs(interpolated - values[k]))
    return worst <= _SMOOTH * np.abs(values).max()


@jit
def _interpolation(x, places):
    """Return the matrix that interpolates values at some places of x to all, by polynomials."""
    matrix = np.ones((x.size, places.size))
    for i in range(places.size):
        for j in range(places.size):
            if i != j:
                matrix[:, i] *= (x - x[places[j]]) / (x[places[i]] - x[places[j]])
    return matrix
