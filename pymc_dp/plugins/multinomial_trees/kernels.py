r"""Draws of Multinomial counts of which each may be split further, given noisy sums of them.

Counts lie in rows. A row r is the Multinomial split of n_r people, and n_r the sum of some counts
of rows above it: the law of all counts is

.. math::

    \prod_r n_r! \prod_{i \in r} p_i^{y_i} / y_i!
    \qquad\text{or}\qquad
    \prod_r \frac{n_r!}{\Gamma(n_r + A_r)} \prod_{i \in r} \frac{\Gamma(y_i + a_i)}{y_i!}

where probabilities are integrated out of a Dirichlet law, :math:`A_r = \sum_i a_i`. A *path* goes
down from a count: in each row whose number of trials has the count it takes one count, and goes on
from there. People move from one path to another of the same row. How many is drawn from its law on
the whole line of what is possible, by a slice. Counts of a first row without a total are Poisson,
and people also come and leave along one path.

Where a count is spread thin over what is below, few paths can give people away. So people also
*resettle*: k of them leave a count, each along a path of people as they are, and come to another
one, along paths that are drawn from the law of one more person given all others. Below the two
counts the law cancels against the proposal: what is left is their own ratio, and that of the noise.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pymc_dp.kernels import jit, part
from pymc_dp.kernels.counts.exchanges import log_rising
from pymc_dp.kernels.draws.lines import make_line_draw

_EVERY = 2  # line from counts that are split further is a move that resettles people
_RESETTLED = 2.0  # how many at most, in standard deviations of the noise
_MOST_RESETTLED = 1000.0  # one after the other; lines move more


class Rows(NamedTuple):
    """How counts are split, and what they add to.

    Things have numbers: the counts, row by row, then the totals of the rows, then released sums.

    Attributes
    ----------
    first : the counts of row r are first[r], ..., first[r + 1] - 1.
    below_first, below : the rows whose total has count i are below[below_first[i]], ...
    targets_first, targets, slopes : the totals and sums that have count i, and how often, are those
        of targets_first[i], ...
    begin : the rows where lines begin, one for each line of a sweep.
    alone : whether counts of a row have no total; they are Poisson.
    """

    first: np.ndarray
    below_first: np.ndarray
    below: np.ndarray
    targets_first: np.ndarray
    targets: np.ndarray
    slopes: np.ndarray
    begin: np.ndarray
    alone: np.ndarray


class Noise(NamedTuple):
    """Released sums, with rates and precisions of their noise: -lam |z - S| - tau (z - S)^2 / 2."""

    z: np.ndarray
    lam: np.ndarray
    tau: np.ndarray


class Weights(NamedTuple):
    """The law of the counts: logs of their probabilities, or parameters of a Dirichlet law.

    Attributes
    ----------
    log_p : of every count; of a Poisson count that of its mean.
    a : of every count, and A of every row, where probabilities are integrated out; 0 elsewhere.
    """

    log_p: np.ndarray
    a: np.ndarray


@jit
def extend(y, rows, sums):
    """Return the counts, the totals of rows below a count, and the released sums."""
    values = np.zeros(y.size + rows.alone.size + sums)
    values[: y.size] = y
    for i in range(y.size):
        for t in range(rows.targets_first[i], rows.targets_first[i + 1]):
            values[rows.targets[t]] += rows.slopes[t] * y[i]
    return values


@jit
def _log_weight(value, j, weights):
    """Log weight of a count, or of a row's total."""
    if j >= weights.log_p.size:
        a = weights.a[j]
        return -log_rising(value, a) if a > 0.0 else math.lgamma(value + 1.0)
    if weights.a[j] > 0.0:
        return log_rising(value, weights.a[j])
    return value * weights.log_p[j] - math.lgamma(value + 1.0) if value > 0.0 else 0.0


@jit
def _log_noise(value, m, noise):
    e = noise.z[m] - value
    return -noise.lam[m] * abs(e) - 0.5 * noise.tau[m] * e * e


@part
def _log_density(k, values, line, steps, weights, noise):
    """Log density k steps along a line, which has the things `line`."""
    total = 0.0
    for i in range(line.size):
        value, j = values[line[i]] + k * steps[i], line[i]
        if j >= weights.a.size:
            total += _log_noise(value, j - weights.a.size, noise)
        elif value < 0.0:
            return -math.inf
        else:
            total += _log_weight(value, j, weights)
    return total


_draw_steps = make_line_draw(_log_density)


@jit
def _follow(rng, cell, sign, rows, taken, path, size, change):
    """Add a path that begins at a count; return how many counts there are.

    A row that the other path has entered is entered at the same count: from there on nothing
    changes.
    """
    at = size
    path[size] = cell
    size += 1
    while at < size:
        change[path[at]] += sign
        for b in range(rows.below_first[path[at]], rows.below_first[path[at] + 1]):
            r = rows.below[b]
            if taken[r] < 0:
                taken[r] = rng.integers(rows.first[r], rows.first[r + 1])
            path[size] = taken[r]
            size += 1
        at += 1
    return size


@jit
def _line(path, rows, taken, change, line, steps):
    """Write what changes along two paths, and by how much; return how much that is."""
    size = 0
    for cell in path:
        for b in range(rows.below_first[cell], rows.below_first[cell + 1]):
            taken[rows.below[b]] = -1
        if change[cell] != 0.0:
            line[size], steps[size] = cell, change[cell]
            change[cell] = 0.0
            size += 1
    counts = size
    for i in range(counts):
        for t in range(rows.targets_first[line[i]], rows.targets_first[line[i] + 1]):
            j = rows.targets[t]
            if change[j] == 0.0:
                line[size] = j
                size += 1
            change[j] += rows.slopes[t] * steps[i]
    kept = counts
    for i in range(counts, size):  # something may be listed twice, or not change
        j = line[i]
        if change[j] != 0.0:
            line[kept], steps[kept] = j, change[j]
            change[j] = 0.0
            kept += 1
    return kept


class Changes(NamedTuple):
    """What a proposal changes: things, how many of them, which are listed, and values before."""

    things: np.ndarray
    number: np.ndarray
    listed: np.ndarray
    before: np.ndarray


@jit
def _add(j, step, values, changes):
    """Change a value, and remember what it was."""
    if not changes.listed[j]:
        changes.listed[j] = True
        changes.before[j] = values[j]
        changes.things[changes.number[0]] = j
        changes.number[0] += 1
    values[j] += step


@jit
def _settle(rng, cell, side, rows, values, weights, path, changes):
    """Take a person out of a count and of what is below (side -1), or add one (side 1).

    Who leaves is any person of the row; who comes is drawn from the law given all others.
    """
    at, size, counts = 0, 1, weights.log_p.size
    path[0] = cell
    while at < size:
        for b in range(rows.below_first[path[at]], rows.below_first[path[at] + 1]):
            r = rows.below[b]
            a, total, last = weights.a[counts + r], values[counts + r], -1
            if side > 0.0:
                total = total + a if a > 0.0 else 1.0
            u = rng.random() * total
            for c in range(rows.first[r], rows.first[r + 1]):
                mass = values[c]
                if side > 0.0:
                    mass = mass + weights.a[c] if a > 0.0 else math.exp(weights.log_p[c])
                if mass > 0.0:
                    last = c
                    if u < mass:
                        break
                u -= mass
            path[size] = last
            size += 1
        at += 1
    for i in range(size):
        _add(path[i], side, values, changes)
        for t in range(rows.targets_first[path[i]], rows.targets_first[path[i] + 1]):
            _add(rows.targets[t], side * rows.slopes[t], values, changes)


@jit
def _resettle(rng, a, b, k, rows, values, weights, noise, path, changes):
    """Propose that k people leave count a for count b, and settle anew in what is below."""
    if a == b or values[a] < k:
        return
    ratio = 0.0
    for cell, step in ((a, -k), (b, k)):
        ratio += _log_weight(values[cell] + step, cell, weights)
        ratio -= _log_weight(values[cell], cell, weights)
    for cell, side in ((a, -1.0), (b, 1.0)):
        for _ in range(k):
            _settle(rng, cell, side, rows, values, weights, path, changes)
    changed = changes.things[: changes.number[0]]
    for j in changed:
        if j >= weights.a.size:
            m = j - weights.a.size
            ratio += _log_noise(values[j], m, noise) - _log_noise(changes.before[j], m, noise)
    accepted = math.log(1.0 - rng.random()) <= ratio
    for j in changed:
        changes.listed[j] = False
        if not accepted:
            values[j] = changes.before[j]
    changes.number[0] = 0


@jit
def sweep(rng, y, weights, rows, noise):
    """Move people along lines, in place; return False where the counts are impossible.

    Parameters
    ----------
    rng : numpy Generator
    y : float array, the counts, updated in place; they agree with the totals of rows.
    weights : Weights
    rows : Rows
    noise : Noise
    """
    values, counts = extend(y, rows, noise.z.size), y.size
    taken, path = np.full(rows.alone.size, -1), np.empty(2 * (1 + rows.alone.size), dtype=np.int64)
    most = path.size + 2 * rows.targets.size
    line, steps = np.empty(most, dtype=np.int64), np.empty(most)
    change = np.zeros(values.size)
    none = np.zeros(values.size, dtype=np.int64), np.zeros(1, dtype=np.int64)
    changes = Changes(*none, np.zeros(values.size, dtype=np.bool_), np.empty(values.size))
    widest = 1.0
    for m in range(noise.z.size):
        widest = max(widest, _RESETTLED / math.sqrt(noise.tau[m] + 0.5 * noise.lam[m] ** 2))
    for turn in range(rows.begin.size):
        r = rows.begin[turn]
        is_split = rows.below_first[rows.first[r]] < rows.below_first[rows.first[r + 1]]
        if is_split and turn % _EVERY == 0:
            a = rng.integers(rows.first[r], rows.first[r + 1])
            b = rng.integers(rows.first[r], rows.first[r + 1])
            k = int(min(widest, _MOST_RESETTLED) ** rng.random())
            _resettle(rng, a, b, k, rows, values, weights, noise, path, changes)
            continue
        size = _follow(
            rng, rng.integers(rows.first[r], rows.first[r + 1]), -1.0, rows, taken, path, 0, change
        )
        if not rows.alone[r] or rng.random() < 0.5:
            cell = rng.integers(rows.first[r], rows.first[r + 1])
            size = _follow(rng, cell, 1.0, rows, taken, path, size, change)
        size = _line(path[:size], rows, taken, change, line, steps)
        low, high, precision = -math.inf, math.inf, 0.0
        for i in range(size):
            j = line[i]
            if j >= weights.a.size:
                m = j - weights.a.size
                precision += (noise.tau[m] + noise.lam[m] ** 2) * steps[i] ** 2
            elif j < counts and steps[i] < 0.0:
                high = min(high, -values[j] / steps[i])
            elif j < counts:
                low = max(low, -values[j] / steps[i])
        if size == 0 or not low < high:
            continue
        guess = 1.0 + math.floor(min(high - low, 3.0 / math.sqrt(precision + 1e-12)))
        k = _draw_steps(rng, low, high, guess, values, line[:size], steps[:size], weights, noise)
        if math.isnan(k):
            return False
        for i in range(size):
            values[line[i]] += k * steps[i]
    y[:] = values[:counts]
    return True
