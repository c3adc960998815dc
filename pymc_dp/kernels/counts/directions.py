r"""Draws of a table of counts along directions in which several cells move at once.

Where cells share noisy sums, :math:`X'y` of a regression say, a cell alone cannot move by more than
the noise lets its sums move. A direction v, whole numbers one for each cell, moves the counts y to
y + c v. Given all directions but one, c has a log-concave law for independent counts f_i that have
one, and log-concave noise,

.. math::

    p(c \mid \ldots) \propto \prod_i f_i(y_i + c v_i) \prod_m \eta_m(z_m \mid S_m + c\, (A v)_m),

which is drawn from exactly, by a walk outwards from its mode. `short_directions` chooses which:
the vectors of a reduced basis of the lattice of counts (Lenstra, Lenstra and Lovász 1982), in the
metric of their spread given the releases. Those that leave all sums as they are come out as the
shortest ones where there is little noise, and single cells where there is much.
"""

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from numba.np.unsafe.ndarray import to_fixed_tuple

from pymc_dp.kernels import jit
from pymc_dp.kernels.counts.laws import CountLaw
from pymc_dp.kernels.counts.sums import REST
from pymc_dp.kernels.counts.tables import sums_of

_LOVASZ = 0.75
_MOST_STEPS = 100_000  # of a reduction, whose basis is as good as it then is


@jit
def short_directions(metric):
    """Return a reduced basis of the whole numbers, one vector a row; `metric` is Q of v'Qv."""
    size = metric.shape[0]
    basis = np.eye(size)
    # Of Gram-Schmidt vectors: coefficients, and squared lengths.
    mu, length = np.eye(size), np.zeros(size)
    for i in range(size):
        for j in range(i):
            inner = metric[i, j]
            for k in range(j):
                inner -= mu[i, k] * mu[j, k] * length[k]
            mu[i, j] = inner / length[j]
        length[i] = metric[i, i]
        for k in range(i):
            length[i] -= mu[i, k] ** 2 * length[k]
    k = 1
    for _ in range(_MOST_STEPS):
        if k >= size:
            break
        for j in range(k - 1, -1, -1):
            times = np.round(mu[k, j])
            if times != 0.0:
                basis[k] -= times * basis[j]
                mu[k, : j + 1] -= times * mu[j, : j + 1]
        m = mu[k, k - 1]
        new = length[k] + m * m * length[k - 1]
        if new >= _LOVASZ * length[k - 1]:
            k += 1
            continue
        for j in range(size):
            basis[k - 1, j], basis[k, j] = basis[k, j], basis[k - 1, j]
        mu[k, k - 1] = m * length[k - 1] / new
        length[k] *= length[k - 1] / new
        length[k - 1] = new
        for j in range(k - 1):
            mu[k - 1, j], mu[k, j] = mu[k, j], mu[k - 1, j]
        for i in range(k + 1, size):
            above = mu[i, k]
            mu[i, k] = mu[i, k - 1] - m * above
            mu[i, k - 1] = above + mu[k, k - 1] * mu[i, k]
        k = max(k - 1, 1)
    return basis


@cache
def make_direction_sweep(law: CountLaw) -> Callable:
    """Make ``(rng, y, theta, directions, releases)``, which draws along each direction once.

    The law is log-concave; column i of `theta` holds its parameters for cell i. It returns whether
    every draw could be made.
    """
    up, support, width = law.up, law.support, law.n_parameters

    @jit
    def log_change(y, theta, cells, steps, c, to):
        """Return the change of the log law from c steps along a direction to `to`, c +- 1."""
        total = 0.0
        for i, step in zip(cells, steps):  # noqa: B905  (numba has no strict=)
            low, high = y[i] + step * min(c, to), y[i] + step * max(c, to)
            sign = 1.0 if (to > c) == (step > 0.0) else -1.0
            column: tuple = to_fixed_tuple(theta[:, i], width)
            for k in range(int(abs(step))):
                total += sign * math.log(up(min(low, high) + k, column))
        return total

    @jit
    def log_noise(releases, sums, moved, slopes, c):
        total = 0.0
        for m, slope in zip(moved, slopes):  # noqa: B905
            e = releases.z[m] - sums[m] - slope * c
            total -= releases.lam[m] * abs(e) + 0.5 * releases.tau[m] * e * e
        return total

    @jit
    def change(y, theta, cells, steps, releases, sums, moved, slopes, c, to):
        noise = log_noise(releases, sums, moved, slopes, to)
        noise -= log_noise(releases, sums, moved, slopes, c)
        return log_change(y, theta, cells, steps, c, to) + noise

    @jit
    def mode(y, theta, cells, steps, releases, sums, moved, slopes, lo, hi):
        """Return the c in [lo, hi] with the largest mass, from 0 on."""
        given = y, theta, cells, steps, releases, sums, moved, slopes
        low, high, step = 0.0, 0.0, 1.0  # the first c that does not rise is in [low, high]
        while high < hi and change(*given, high, high + 1.0) > 0.0:
            low, high, step = high + 1.0, min(high + step, hi), 2.0 * step
        step = 1.0
        while low > lo and not change(*given, low - 1.0, low) > 0.0:
            high, low, step = low - 1.0, max(low - step, lo), 2.0 * step
        while low < high:
            middle = low + np.floor(0.5 * (high - low))
            if change(*given, middle, middle + 1.0) > 0.0:
                low = middle + 1.0
            else:
                high = middle
        return low

    @jit
    def draw(rng, y, theta, cells, steps, releases, sums, moved, slopes):
        """Return a draw of the number of steps along a direction; NaN where there is none."""
        lo, hi = -math.inf, math.inf
        for i, step in zip(cells, steps):  # noqa: B905
            first, last = support(to_fixed_tuple(theta[:, i], width))
            ends = (first - y[i]) / step, (last - y[i]) / step
            lo, hi = max(lo, min(ends[0], ends[1])), min(hi, max(ends[0], ends[1]))
        lo, hi = np.ceil(lo), np.floor(hi)
        if not lo <= 0.0 <= hi:
            return math.nan
        given = y, theta, cells, steps, releases, sums, moved, slopes
        top = mode(*given, lo, hi)
        # Two rounds of the same walk: the first finds the sum, the second where it is exceeded.
        target = math.inf
        for _ in range(2):
            total = 1.0
            if total > target:
                return top
            for side in (1.0, -1.0):
                c, term = top, 1.0
                while (c < hi) if side > 0.0 else (c > lo):
                    ratio = math.exp(change(*given, c, c + side))
                    c += side
                    term *= ratio
                    total += term
                    if total > target:
                        return c
                    if not term * ratio > REST * total * (1.0 - ratio):  # NaN ends it, too
                        break
            if math.isnan(total):
                return math.nan
            target = total * rng.random()
        return top  # the sum itself, but for rounding

    @jit
    def direction_sweep(rng, y, theta, directions, releases):
        sums = sums_of(y, releases)
        for d in range(directions.shape[0]):
            cells = np.flatnonzero(directions[d])
            steps = directions[d][cells]
            slopes = np.zeros(sums.size)
            for i, step in zip(cells, steps):  # noqa: B905
                for e in range(releases.first[i], releases.first[i + 1]):
                    slopes[releases.which[e]] += releases.weight[e] * step
            moved = np.flatnonzero(slopes)
            c = draw(rng, y, theta, cells, steps, releases, sums, moved, slopes[moved])
            if math.isnan(c):
                return False
            for i, step in zip(cells, steps):  # noqa: B905
                y[i] += c * step
            sums += c * slopes
        return True

    return direction_sweep
