"""Density of a noisy sum over a number of records that is known, or has weights."""

import math

import numpy as np

from pymc_dp.kernels import jit
from pymc_dp.kernels.inversion.few import few_records
from pymc_dp.kernels.inversion.line import TOLERANCE
from pymc_dp.kernels.inversion.release import release_line

FEW = 5  # records, below which a sum under Laplace noise has kinks
PLAINLY = 1e-9  # largest error estimate of a density by few nodes
_NOTHING = 35.0  # fall of a log density below which nothing is added
_UNLIKELY = 27.0  # fall of a log weight from which on a number is left out, if that is nothing
_LEFT_OUT = 1e-10  # share of a density that may be left out


@jit
def join(total, of_total, log_density, part):
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


@jit
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
        total = join(total, (grad, slope, by_number), logp[own] + lp[k], part)
    return total, grad, slope, by_number


@jit
def _of_range(log_weight, h, cut, few, n, lp, z, b, sg, grad, by_number):
    """`sparing_line` of some numbers, without those that follow; fills in the derivatives."""
    skipped = min(max(FEW - int(n), 0), lp.size) if b > 0.0 and sg == 0.0 else 0
    logp, slope = -math.inf, np.zeros(1)
    grad[:] = 0.0
    by_number[:] = 0.0
    if skipped < lp.size:
        rest = n + skipped, lp[skipped:], z, b, sg
        found = release_line(log_weight[:few], h[:few], cut[:few], *rest, PLAINLY)
        if not math.isnan(found[0]):
            grad[:few] = found[2]
        else:
            found = release_line(log_weight[few:], h[few:], cut[few:], *rest, TOLERANCE)
            grad[few:] = found[2]
        logp, slope[0] = found[0], found[1]
        by_number[skipped:] = found[3]
    if skipped:
        own, by_node, by_z, of_numbers = _few(log_weight, h, cut, few, n, lp, z, b, logp)
        logp = join(logp, (grad, slope, by_number), own, (by_node, by_z, of_numbers))
    return logp, slope[0]


@jit
def sparing_line(log_weight, h, cut, few, n, lp, z, b, sg):
    """`release_line` by the first `few` nodes where these are plainly enough, or by the others.

    Fewer than FEW records under Laplace noise are added up by themselves. Numbers that are unlikely
    are left out where no sum could make them matter.
    """
    grad, by_number = np.zeros(log_weight.size), np.zeros(lp.size)
    [likely] = np.nonzero(lp >= lp.max() - _UNLIKELY)
    first, last = (likely[0], likely[-1] + 1) if likely.size else (0, lp.size)
    own = n + first, lp[first:last], z, b, sg
    logp, slope = _of_range(log_weight, h, cut, few, *own, grad, by_number[first:last])
    if last - first < lp.size:
        left_out = np.exp(lp[:first]).sum() + np.exp(lp[last:]).sum()
        left_out /= 2.0 * b if b > 0.0 else sg * math.sqrt(2.0 * math.pi)
        if not left_out < _LEFT_OUT * math.exp(logp):
            logp, slope = _of_range(log_weight, h, cut, few, n, lp, z, b, sg, grad, by_number)
    return logp, slope, grad, by_number


@jit
def release(log_weight, h, cut, few, n, lp, z, b, sg):
    """`sparing_line`, also of a release that depends on the number of records.

    Then z, b and sg have an entry for each number, and the derivatives by z, too.
    """
    if z.size == 1:
        logp, slope, grad, by_number = sparing_line(
            log_weight, h, cut, few, n, lp, z[0], b[0], sg[0]
        )
        return logp, np.full(1, slope), grad, by_number
    total, slopes, by_number = -math.inf, np.zeros(lp.size), np.zeros(lp.size)
    grad, known = np.zeros(log_weight.size), np.zeros(1)
    for k in range(lp.size):
        if lp[k] == -math.inf:
            continue
        logp, slope, own, _ = sparing_line(log_weight, h, cut, few, n + k, known, z[k], b[k], sg[k])
        of_z, of_number = np.zeros(lp.size), np.zeros(lp.size)
        of_z[k], of_number[k] = slope, 1.0
        total = join(total, (grad, slopes, by_number), logp + lp[k], (own, of_z, of_number))
    return total, slopes, grad, by_number
