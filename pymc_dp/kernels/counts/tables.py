r"""Tables of counts whose cells, and sums of cells, were released with noise.

Release m has the value z_m, noise of rate lam_m and precision tau_m around :math:`S_m = \sum_i
a_{mi} y_i`, its log density being -lam |z - S| - tau (z - S)^2 / 2 up to a constant. As a function
of one cell, or of one of two cells with a fixed sum, the log density of every release has the same
form, so that the cell is drawn exactly by `kernels.counts.sums`.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numba.np.unsafe.ndarray import to_fixed_tuple

from pymc_dp.kernels import jit, part
from pymc_dp.kernels.counts.laws import BINOMIAL, POISSON, CountLaw
from pymc_dp.kernels.counts.noise import CountNoise
from pymc_dp.kernels.counts.sums import make_count_draw
from pymc_dp.kernels.draws.lines import make_line_draw


class Releases(NamedTuple):
    """Noisy sums over the cells of a table, and which cells are in them.

    Attributes
    ----------
    z, lam, tau : released value, rate and precision of every sum.
    first : the entries of cell i are first[i] ... first[i + 1] - 1.
    which, weight : for every entry, the sum, and the coefficient a of the cell in that sum.
    """

    z: np.ndarray
    lam: np.ndarray
    tau: np.ndarray
    first: np.ndarray
    which: np.ndarray
    weight: np.ndarray


class Gaps(NamedTuple):
    """Counts that are possible under whole-number noise, where statistics have fractions.

    Attributes
    ----------
    step, rest : the possible counts of cell i are rest[i] + step[i] k; step is 0 for a cell that is
        drawn with its sum.
    first, cells : the cells of sum g are cells[first[g]], ..., cells[first[g + 1] - 1].
    which : for every sum, the release of the sum alone. Its cells are in no other release.
    sum_step, sum_rest : the possible values of every sum.
    """

    step: np.ndarray
    rest: np.ndarray
    first: np.ndarray
    cells: np.ndarray
    which: np.ndarray
    sum_step: np.ndarray
    sum_rest: np.ndarray


# --- Several releases as the noise of one count; p = (tau, center, kinks, lam, decay, number) ----


@jit
def _center(z, p):
    tau, center, kinks, _, _, number = p
    if tau > 0.0 or number == 0:
        return center
    return kinks[0]


@jit
def _log_noise(z, y, p):
    tau, center, kinks, lam, _, number = p
    total = -0.5 * tau * (center - y) ** 2
    for k in range(number):
        total -= lam[k] * abs(kinks[k] - y)
    return total


@jit
def _begin(z, y, p):
    e, fall = p[0] * (p[1] - y), math.exp(-p[0])
    return (math.exp(e - 0.5 * p[0]), fall), (math.exp(-e - 0.5 * p[0]), fall)


@jit
def _advance(z, y, side, state, p):
    _, _, kinks, lam, decay, number = p
    normal, fall = state
    factor = normal
    for k in range(number):
        ahead = side * (kinks[k] - y)
        if ahead <= 0.0:
            factor *= decay[k]
        elif ahead >= 1.0:
            factor /= decay[k]
        else:
            factor *= math.exp(lam[k] * (2.0 * ahead - 1.0))
    return factor, (normal * fall, fall)


@jit
def _slope(z, y, p):
    return 0.0


SEVERAL = CountNoise.of(_center, _log_noise, _begin, _advance, _slope)

# --- The releases as noise of a cell --------------------------------------------------------------


@jit
def sums_of(y, releases):
    """Return S_m for every release."""
    sums = np.zeros(releases.z.size)
    for i in range(y.size):
        for e in range(releases.first[i], releases.first[i + 1]):
            sums[releases.which[e]] += releases.weight[e] * y[i]
    return sums


@jit
def _coefficient(releases, i, m):
    for e in range(releases.first[i], releases.first[i + 1]):
        if releases.which[e] == m:
            return releases.weight[e]
    return 0.0


@jit
def _gather(releases, sums, y, i, j, kinks, lam, decay):
    """Return the noise of cell i as p; where j >= 0, cell j moves the other way."""
    tau, weighted, number = 0.0, 0.0, 0
    for side in range(2):
        cell = i if side == 0 else j
        if cell < 0:
            break
        for e in range(releases.first[cell], releases.first[cell + 1]):
            m = releases.which[e]
            if side == 0:
                slope = releases.weight[e] - (_coefficient(releases, j, m) if j >= 0 else 0.0)
            elif _coefficient(releases, i, m) != 0.0:
                continue  # counted with the first cell
            else:
                slope = -releases.weight[e]
            if slope == 0.0:
                continue
            where = y[i] + (releases.z[m] - sums[m]) / slope
            if releases.tau[m] > 0.0:
                precision = releases.tau[m] * slope * slope
                tau += precision
                weighted += precision * (where - y[i])
            if releases.lam[m] > 0.0:
                kinks[number], lam[number] = where, releases.lam[m] * abs(slope)
                decay[number] = math.exp(-lam[number])
                number += 1
    center = y[i] + (weighted / tau if tau > 0.0 else 0.0)
    return tau, center, kinks, lam, decay, number


@jit
def _put(releases, sums, y, i, value):
    change = value - y[i]
    if change != 0.0:
        y[i] = value
        for e in range(releases.first[i], releases.first[i + 1]):
            sums[releases.which[e]] += releases.weight[e] * change


@jit
def most_releases(releases):
    """Return the largest number of releases that one cell is in."""
    return np.append(np.diff(releases.first), 0).max()


# --- Sweeps ---------------------------------------------------------------------------------------


@cache
def make_cell_sweep(law: CountLaw) -> Callable:
    """Make ``(rng, y, theta, releases, gaps)``, which draws every cell once given the others.

    Column i of `theta` holds the law's parameters for cell i. It returns whether every cell could
    be drawn.
    """
    draw = make_count_draw(law, SEVERAL)
    width = law.n_parameters

    @jit
    def cell_sweep(rng, y, theta, releases, gaps):
        sums, most = sums_of(y, releases), most_releases(releases)
        kinks, lam, decay = np.empty(most), np.empty(most), np.empty(most)
        for i in range(y.size):
            step, rest = gaps.step[i], gaps.rest[i]
            if step == 0.0:
                continue
            p = _gather(releases, sums, y, i, -1, kinks, lam, decay)
            drawn = draw(
                rng, 0.0, p, to_fixed_tuple(theta[:, i], width), -math.inf, math.inf, step, rest
            )
            if math.isnan(drawn):
                return False
            _put(releases, sums, y, i, drawn)
        return True

    return cell_sweep


_draw_binomial = make_count_draw(BINOMIAL, SEVERAL)
_draw_poisson = make_count_draw(POISSON, SEVERAL)


@jit
def _draw_pair(rng, y, rates, i, j, releases, gaps, sums, scratch):
    total, both = y[i] + y[j], rates[i] + rates[j]
    a, b = gaps.step[i], gaps.step[j]
    if total == 0.0 or i == j or a * b == 0.0:
        return True
    step = a * b / math.gcd(int(a), int(b))  # keeps both counts possible
    share = rates[i] / both
    if share == 0.0 or share == 1.0:
        if step > 1.0:  # one cell with all of the total may be impossible
            return True
        drawn = total * share
    else:
        p = _gather(releases, sums, y, i, j, scratch[0], scratch[1], scratch[2])
        drawn = _draw_binomial(rng, 0.0, p, (total, share), -math.inf, math.inf, step, y[i])
    if math.isnan(drawn):
        return False
    _put(releases, sums, y, i, drawn)
    _put(releases, sums, y, j, total - drawn)
    return True


@jit
def _cells_of(releases):
    """Return the cells of every sum: those of sum m are cells[first[m]:first[m + 1]]."""
    first = np.zeros(releases.z.size + 1, dtype=np.int64)
    for m in releases.which:
        first[m + 1] += 1
    first = np.cumsum(first)
    end, cells = first.copy(), np.empty(releases.which.size, dtype=np.int64)
    for i in range(releases.first.size - 1):
        for m in releases.which[releases.first[i] : releases.first[i + 1]]:
            cells[end[m]] = i
            end[m] += 1
    return first, cells


@jit
def _partner(rng, i, start, block, releases, first, cells):
    """Draw a cell of the block, from a sum with cell i or from all; -1 for one of another block.

    People so move within an area, between areas of one above it, and so on.
    """
    number = 0
    for m in releases.which[releases.first[i] : releases.first[i + 1]]:
        number += first[m + 1] - first[m] > 1
    chosen = int(rng.random() * (number + 1))
    for m in releases.which[releases.first[i] : releases.first[i + 1]]:
        size = first[m + 1] - first[m]
        if size > 1:
            if chosen == 0:
                j = cells[first[m] + int(rng.random() * size)]
                return j if start <= j < start + block else -1
            chosen -= 1
    return start + int(rng.random() * block)


@cache
def make_pair_sweep(law: CountLaw) -> Callable:
    """Make ``(rng, y, theta, block, releases, gaps)``, which draws pairs of cells given their sum.

    Blocks of `block` neighbouring cells keep their totals; within one the counts are those of the
    law given the total. Every cell is paired with its neighbour, which is often in the same sums,
    and with one that `_partner` draws. It returns whether every pair could be drawn.
    """
    log_mass, support, width = law.log_mass, law.support, law.n_parameters

    @part
    def log_density(c, start, total, left, right, p):
        """Log density of a pair that holds start + c and the rest of the total."""
        y = start + c
        return log_mass(y, left) + log_mass(total - y, right) + _log_noise(0.0, y, p)

    draw_line = make_line_draw(log_density)

    @part
    def draw_pair(rng, y, theta, i, j, releases, gaps, sums, scratch):
        if law is POISSON:
            return _draw_pair(rng, y, theta[0], i, j, releases, gaps, sums, scratch)
        total = y[i] + y[j]
        if i == j or gaps.step[i] != 1.0 or gaps.step[j] != 1.0:
            return True
        left: tuple = to_fixed_tuple(theta[:, i], width)
        right: tuple = to_fixed_tuple(theta[:, j], width)
        (least, most), (other_least, other_most) = support(left), support(right)
        low = max(least, total - other_most) - y[i]
        high = min(most, total - other_least) - y[i]
        if low >= high:
            return True
        p = _gather(releases, sums, y, i, j, scratch[0], scratch[1], scratch[2])
        precision = p[0]
        for k in range(p[-1]):
            precision += p[3][k] ** 2
        guess = high - low + 1.0
        if precision > 0.0:
            guess = min(guess, np.floor(3.0 / math.sqrt(precision)) + 1.0)
        c = draw_line(rng, low, high, guess, y[i], total, left, right, p)
        if math.isnan(c):
            return False
        _put(releases, sums, y, i, y[i] + c)
        _put(releases, sums, y, j, total - y[i])
        return True

    @jit
    def pair_sweep(rng, y, theta, block, releases, gaps):
        sums = sums_of(y, releases)
        first, cells = _cells_of(releases)
        scratch = np.empty((3, 2 * most_releases(releases)))
        good = True
        for start in range(0, y.size, block):
            for k in range(rng.integers(0, 2), block - 1, 2):
                i = start + k
                good &= draw_pair(rng, y, theta, i, i + 1, releases, gaps, sums, scratch)
            for i in range(start, start + block):
                j = _partner(rng, i, start, block, releases, first, cells)
                if j >= 0:
                    good &= draw_pair(rng, y, theta, i, j, releases, gaps, sums, scratch)
        return good

    return pair_sweep


@jit
def sum_sweep(rng, y, rates, releases, gaps):
    """Draw Poisson cells with the sum they are in.

    The sum of the cells is Poisson, and given the sum the cells are multinomial: that draws all of
    them from their joint conditional, in which moves of single cells are stuck. It returns whether
    every sum could be drawn.
    """
    kinks, lam, decay = np.empty(1), np.empty(1), np.empty(1)
    for g in range(gaps.which.size):
        cells = gaps.cells[gaps.first[g] : gaps.first[g + 1]]
        m, weight = gaps.which[g], releases.weight[releases.first[cells[0]]]
        where = releases.z[m] / weight
        precision = releases.tau[m] * weight * weight
        kinks[0], lam[0] = where, releases.lam[m] * abs(weight)
        decay[0] = math.exp(-lam[0])
        p = (precision, where, kinks, lam, decay, 1 if lam[0] > 0.0 else 0)
        rate = np.cumsum(rates[cells])  # rates of the sums of the first cells
        law, step, rest = (rate[-1],), gaps.sum_step[g], gaps.sum_rest[g]
        left = _draw_poisson(rng, 0.0, p, law, -math.inf, math.inf, step, rest)
        if math.isnan(left):
            return False
        for k in range(cells.size - 1, 0, -1):
            share = rates[cells[k]] / rate[k] if left > 0.0 else 0.0
            y[cells[k]] = rng.binomial(int(left), min(share, 1.0))
            left -= y[cells[k]]
        y[cells[0]] = left
    return True
