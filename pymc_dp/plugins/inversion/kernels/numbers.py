"""Density of a noisy sum over a number of records that is known, or has weights."""

import math

import numpy as np

from pymc_dp.kernels import jit
from pymc_dp.kernels.linked import M, V, linked
from pymc_dp.plugins.inversion.kernels.few import few_records
from pymc_dp.plugins.inversion.kernels.line import TOLERANCE
from pymc_dp.plugins.inversion.kernels.release import release_line

FEW = 5  # records, below which a sum under Laplace noise has kinks
PLAINLY = 1e-9  # largest error estimate of a density by few nodes
_NOTHING = 35.0  # fall of a log density below which nothing is added
_UNLIKELY = 27.0  # fall of a log weight from which on a number is left out, if that is nothing
_LEFT_OUT = 1e-10  # share of a density that may be left out
_AMONG = 14  # numbers of records among which densities are interpolated
_SMOOTH = 1e-10  # largest error of what is interpolated


@jit
def _join(total, of_total, log_density, part):
    """Add a density to a total; the derivatives of the total's log by those of both logs."""
    if math.isnan(total) or math.isnan(log_density):
        return math.nan
    top = max(total, log_density)
    if not top > -math.inf:
        return total
    before, own = math.exp(total - top), math.exp(log_density - top)
    for mine, added in zip(of_total, part):  # noqa: B905  (numba has no strict=)
        mine *= before / (before + own)
        mine += own / (before + own) * added
    return top + math.log(before + own)


@linked(f"Tuple((f8, {V}, {V}, {V}))({V}, {V}, {V}, i8, f8, {V}, f8, f8, f8)")
def _few(log_weight, h, cut, few, n, lp, z, b, least):
    """Log density of the numbers below FEW that may reach a level, and its derivatives.

    By the log weights of the nodes, by z, and by lp.
    """
    grad, slope, by_number = np.zeros(log_weight.size), np.zeros(1), np.zeros(lp.size)
    total, most = -math.inf, -1
    for k in range(min(lp.size, FEW - int(n))):
        if not lp[k] - math.log(2.0 * b) < least - _NOTHING and lp[k] > -math.inf:
            most = int(n) + k
    if most < 0:
        return total, grad, slope, by_number
    first, last = 0, few
    found = few_records(log_weight[:few], h[:few], cut[:few], most, z, b)
    if not found[3].max() < PLAINLY:
        first, last = few, h.size
        found = few_records(log_weight[few:], h[few:], cut[few:], most, z, b)
    logp, slopes, grads, error = found
    for k in range(most - int(n) + 1):
        own = int(n) + k
        if lp[k] == -math.inf:
            continue
        if not error[own] < TOLERANCE:
            return math.nan, grad, slope, by_number
        part = np.zeros(log_weight.size), np.full(1, slopes[own]), np.zeros(lp.size)
        part[0][first:last] = grads[own]
        part[2][k] = 1.0
        total = _join(total, (grad, slope, by_number), logp[own] + lp[k], part)
    return total, grad, slope, by_number


@linked(f"Tuple((f8, f8, {V}, {V}))({V}, {V}, {V}, i8, f8, {V}, f8, f8, f8)")
def tiers(log_weight, h, cut, few, n, lp, z, b, sg):
    """`release_line` by the first `few` nodes where these are plainly enough, or by the others.

    Of FEW records or more, where the noise is Laplace.
    """
    grad, rest = np.zeros(log_weight.size), (n, lp, z, b, sg)
    found = release_line(log_weight[:few], h[:few], cut[:few], *rest, PLAINLY)
    if not math.isnan(found[0]):
        grad[:few] = found[2]
    else:
        found = release_line(log_weight[few:], h[few:], cut[few:], *rest, TOLERANCE)
        grad[few:] = found[2]
    return found[0], found[1], grad, found[3]


@linked(f"Tuple((f8, f8, {V}, {V}))({V}, {V}, {V}, i8, f8, {V}, f8, f8, f8)")
def sparing_line(log_weight, h, cut, few, n, lp, z, b, sg):
    """`tiers` of any numbers of records.

    Fewer than FEW records under Laplace noise are added up by themselves. Numbers that are unlikely
    are left out where no sum could make them matter.
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
                log_weight, h, cut, few, n + begin, lp[begin:last], z, b, sg
            )
        if begin > first:
            own, by_node, by_z, of_numbers = _few(
                log_weight, h, cut, few, n + first, lp[first:last], z, b, logp
            )
            slopes = np.full(1, slope)
            of_total = grad, slopes, by_number[first:last]
            logp, slope = _join(logp, of_total, own, (by_node, by_z, of_numbers)), slopes[0]
        left_out = np.exp(lp[:first]).sum() + np.exp(lp[last:]).sum()
        left_out /= 2.0 * b if b > 0.0 else sg * math.sqrt(2.0 * math.pi)
        if left_out <= _LEFT_OUT * math.exp(logp) or last - first == lp.size:
            return logp, slope, grad, by_number
        first, last = 0, lp.size


@linked(f"Tuple((f8, {V}, {V}, {V}))({V}, {V}, {V}, i8, f8, {V}, {V}, {V}, {V})")
def release(log_weight, h, cut, few, n, lp, z, b, sg):
    """`sparing_line` of a release that depends on the number of records.

    Then z, b and sg have an entry for each number, and the derivatives by z, too.
    """
    slopes, by_number = np.zeros(lp.size), np.zeros(lp.size)
    most = np.where(b > 0.0, 0.5 / b, 1.0 / (sg * math.sqrt(2.0 * math.pi)))
    [likely] = np.nonzero((lp >= lp.max() - _UNLIKELY) & (lp > -math.inf))
    if not likely.size:
        return -math.inf, slopes, np.zeros(log_weight.size), by_number
    first, last = likely[0], likely[-1] + 1
    while True:
        own = n + first, lp[first:last], z[first:last], b[first:last], sg[first:last]
        logp, slopes[first:last], grad, by_number[first:last] = _each_number(
            log_weight, h, cut, few, *own
        )
        share = np.exp(lp) * most
        left_out = share[:first].sum() + share[last:].sum()
        if left_out <= _LEFT_OUT * math.exp(logp) or last - first == lp.size:
            return logp, slopes, grad, by_number
        first, last = 0, lp.size


@linked(f"Tuple((f8, {V}, {V}, {V}))({V}, {V}, {V}, i8, f8, {V}, {V}, {V}, {V})")
def _each_number(log_weight, h, cut, few, n, lp, z, b, sg):
    """`release` with z, b and sg of each number; of many numbers the densities are interpolated."""
    numbers = np.arange(lp.size)
    if n >= FEW and lp.size > 2 * _AMONG:
        x = np.log(n + numbers)
        places, tests = _chosen(x, n)
        to_all = _interpolation(x, places)
        if _fits(to_all, places, z) and _fits(to_all, places, b) and _fits(to_all, places, sg):
            looked = np.concatenate((places, tests))
            logp, slope, grads = _at(log_weight, h, cut, few, n, z, b, sg, looked)
            each = to_all @ logp[: places.size]
            if np.abs(each[tests] - logp[places.size :]).max() < _SMOOTH:
                return mixed(lp, each, slope, grads, places, to_all)
    logp, slope, grads = _at(log_weight, h, cut, few, n, z, b, sg, numbers)
    return mixed(lp, logp, slope, grads, numbers, np.zeros((0, 0)))


@linked(f"Tuple(({V}, {V}, {M}))({V}, {V}, {V}, i8, f8, {V}, {V}, {V}, i8[::1])")
def _at(log_weight, h, cut, few, n, z, b, sg, places):
    """Return the log densities of some numbers of records, and their derivatives."""
    logp, slope = np.empty(places.size), np.empty(places.size)
    grads = np.empty((places.size, log_weight.size))
    for i in range(places.size):
        k = places[i]
        logp[i], slope[i], grads[i], _ = sparing_line(
            log_weight, h, cut, few, n + k, np.zeros(1), z[k], b[k], sg[k]
        )
    return logp, slope, grads


@linked(f"Tuple((f8, {V}, {V}, {V}))({V}, {V}, {V}, {M}, i8[::1], {M})")
def mixed(lp, each, slope, grads, places, to_all):
    """Add up the densities of all numbers; derivatives are those at some places.

    `to_all` interpolates between these; it is empty where all numbers are places.
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
    """Return places of numbers whose logarithms are near Chebyshev's points, and two others.

    The others are where interpolation errs most, on each half.
    """
    middle, half = 0.5 * (x[-1] + x[0]), 0.5 * (x[-1] - x[0])
    at = np.exp(middle - half * np.cos(np.linspace(0.0, math.pi, _AMONG))) - n
    places = np.unique(np.round(at)).astype(np.int64)
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
        found = 0.0
        for i in range(places.size):
            found += to_all[k, i] * values[places[i]]
        worst = max(worst, abs(found - values[k]))
    return worst <= _SMOOTH * np.abs(values).max()


@jit
def _interpolation(x, places):
    """Return the matrix that interpolates values at some places of x to all, by polynomials."""
    found = np.ones((x.size, places.size))
    for i in range(places.size):
        for j in range(places.size):
            if i != j:
                found[:, i] *= (x - x[places[j]]) / (x[places[i]] - x[places[j]])
    return found
