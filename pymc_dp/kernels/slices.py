r"""Slice moves of a few parameters, and proposals for many entries at once, in one compiled loop.

One function of a vector q returns the log density and, for each entry of a level, the sum of the
terms of the log density that contain this entry. A level is a group of entries that are independent
of each other given all else, so that one evaluation judges a proposal for each entry.

Parameters move by slice sampling with stepping out and shrinkage (Neal, 2003) along directions in
which they were uncorrelated in the warm-up, and along each parameter alone. Widths are tuned until
steps out are as many as steps in (Tibbits et al., 2014). Where a ridge is bent, so is the line
along it: the bend is a function of the coordinate c along the direction alone, so that the same
line goes through each of its points, and volume is preserved. Entries of levels move by two
Metropolis proposals: from a Normal law with the mean and spread of the warm-up, and by a
random-walk step. For releases with Laplace noise around Normal statistics, the variances of the
scale mixture are drawn (`draws.scale_mixture`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pymc_dp.kernels import jit
from pymc_dp.kernels.draws.scale_mixture import draw_precision
from pymc_dp.kernels.linked import linked
from pymc_dp.kernels.pointers import call

_MOST_STEPS = 60  # steps out, or in, of one slice
_WIDER = 1.2  # spread of an independent proposal, relative to that of the warm-up
_STEP = 2.0  # size of a random-walk step, in spreads
_FARTHEST = 3.0  # distance, in spreads, beyond which a line is straight


class Tuned(NamedTuple):
    """Tuned parts of the moves.

    Attributes
    ----------
    directions : directions in the space of the parameters, one a row.
    bends : for each direction, vectors orthogonal to it that are added c, c^2 and c^3 times.
    widths : widths of the slices along the directions.
    means, spreads : means and spreads of all entries of q; used for entries of levels.
    """

    directions: np.ndarray
    bends: np.ndarray
    widths: np.ndarray
    means: np.ndarray
    spreads: np.ndarray


class Mixed(NamedTuple):
    """Laplace noise that is Normal given variances w, whose logs are part of q.

    Attributes
    ----------
    first : for each release, the place in q where the logs of its variances begin.
    sizes : the number of its variances.
    columns : the number of columns of a factor F of the covariance matrix of its statistics; 0
        where the statistics are independent.
    """

    first: np.ndarray
    sizes: np.ndarray
    columns: np.ndarray


@jit
def along(q, start, direction, bend, c, t):
    """Set q to the point at c + t on the line that has `start` at c."""
    old, new = max(-_FARTHEST, min(c, _FARTHEST)), max(-_FARTHEST, min(c + t, _FARTHEST))
    for i in range(direction.size):
        q[i] = start[i] + t * direction[i]
    for power in range(bend.shape[0]):
        by = new ** (power + 1) - old ** (power + 1)
        for i in range(direction.size):
            q[i] += by * bend[power, i]


@linked()
def slice_move(rng, density, q, now, terms, center, direction, bend, width):
    """Move q in place along a line; return its log density, and the numbers of steps out and in."""
    size = direction.size
    level = now - rng.standard_exponential()
    start = q[:size].copy()
    c = np.sum((start - center[:size]) * direction) / np.sum(direction * direction)
    low = -width * rng.random()
    high = low + width
    out, inside = 0, 0
    # A fixed number of steps is split between both ends at random, independently of q.
    left = int(_MOST_STEPS * rng.random())
    right = _MOST_STEPS - 1 - left
    while left > 0:
        along(q, start, direction, bend, c, low)
        if not call(density, q, terms) > level:
            break
        low -= width
        left -= 1
        out += 1
    while right > 0:
        along(q, start, direction, bend, c, high)
        if not call(density, q, terms) > level:
            break
        high += width
        right -= 1
        out += 1
    for _ in range(_MOST_STEPS):
        t = low + (high - low) * rng.random()
        along(q, start, direction, bend, c, t)
        height = call(density, q, terms)
        if height > level:
            return height, out, inside
        inside += 1
        if t < 0.0:
            low = t
        else:
            high = t
    q[:size] = start
    return now, out, inside


@linked()
def level_move(rng, density, q, terms, first, last, means, spreads, independent):
    """Propose entries of a level, independently or by steps; accept each of them in place."""
    call(density, q, terms)
    proposed, new = np.empty_like(terms), q.copy()
    for j in range(first, last):
        center, by = means[j], _WIDER * spreads[j]
        if not independent:
            center, by = q[j], _STEP * spreads[j]
        new[j] = center + by * rng.standard_normal()
    call(density, new, proposed)
    for j in range(first, last):
        ratio = proposed[j] - terms[j]
        if independent:
            old, to = q[j] - means[j], new[j] - means[j]
            ratio += 0.5 * (to * to - old * old) / (_WIDER * spreads[j]) ** 2
        if ratio >= 0.0 or rng.random() < math.exp(ratio):  # NaN is refused
            q[j] = new[j]


@jit
def draw_each(rng, z, w, mean, variance):
    """Draw independent Normal statistics, given their release under Normal noise of variances w."""
    drawn = np.empty_like(z)
    for j in range(z.size):
        share = variance[j] / (variance[j] + w[j])
        drawn[j] = mean[j] + share * (z[j] - mean[j])
        drawn[j] += math.sqrt(share * w[j]) * rng.standard_normal()
    return drawn


@linked()
def draw_jointly(rng, z, w, mean, factor):
    """Draw jointly Normal statistics of covariance FF', given their release (Matheron's rule)."""
    without_release = mean + factor @ rng.standard_normal(factor.shape[1])
    gap = z - without_release - np.sqrt(w) * rng.standard_normal(z.size)
    covariance = factor @ factor.T
    least = 1e-15 * np.max(
        np.diag(covariance)
    )  # a smaller w is lost in rounding, and the sum may be singular
    return without_release + covariance @ np.linalg.solve(covariance + np.diag(w + least), gap)


@linked()
def draw_noise(rng, noise, q, inputs, mixed):
    """Draw the variances of Laplace noise.

    `noise` fills `inputs`, release by release: z, the scales of the noise, the means of the
    statistics, and the variances of the statistics or the rows of F.
    """
    if math.isnan(call(noise, q, inputs)):
        return
    place = 0
    for i in range(mixed.first.size):
        k, columns, first = mixed.sizes[i], mixed.columns[i], mixed.first[i]
        z, scale, mean = inputs[place : place + 3 * k].reshape(3, k)
        place += 3 * k
        w = np.exp(q[first : first + k])
        if columns:
            factor = inputs[place : place + k * columns].reshape(k, columns)
            drawn = draw_jointly(rng, z, w, mean, factor)
        else:
            drawn = draw_each(rng, z, w, mean, inputs[place : place + k])
        place += k * max(columns, 1)
        for j in range(k):
            q[first + j] = -math.log(draw_precision(rng, abs(z[j] - drawn[j]), scale[j]))


@linked()
def sweep(rng, density, noise, q, inputs, levels, anew, mixed, tuned, adapt, forth):
    """Make every move once, in place: forth (noise, parameters, levels) or back.

    Last, `anew` entries that are standard Normal given all others are redrawn: the other moves have
    them integrated out (van Dyk & Park, 2008). This last move is not reversible, and is left out of
    reversible proposals.
    """
    terms = np.empty_like(q)
    slices, halves = tuned.widths.size, 2 * (levels.size - 1)
    now = math.nan
    for place in range(1 + slices + halves):
        k = place if forth else slices + halves - place
        if k == 0:
            if inputs.size:
                draw_noise(rng, noise, q, inputs, mixed)
        elif k <= slices:
            if now != now:
                now = call(density, q, terms)
            line = tuned.directions[k - 1], tuned.bends[k - 1], tuned.widths[k - 1]
            now, out, inside = slice_move(rng, density, q, now, terms, tuned.means, *line)
            share = (out + 0.5) / (out + inside + 1.0)
            tuned.widths[k - 1] *= (2.0 * share) ** adapt
        else:
            i, half = divmod(k - 1 - slices, 2)
            first, last = levels[i], levels[i + 1]
            level_move(rng, density, q, terms, first, last, tuned.means, tuned.spreads, half == 0)
            now = math.nan
    for j in range(levels[-1], levels[-1] + anew):
        q[j] = rng.standard_normal()


@jit
def advance(
    rng, density, noise, correction, q, levels, anew, mixed, tuned, adapt, thin, inner, out
):
    """Fill a row of `out` after every `thin` steps; return the numbers of steps accepted and lost.

    A step is a sweep. With `inner` > 0 a step is one proposal that consists of `inner` sweeps, and
    is accepted for the density times exp(correction): the surrogate transition method (Liu, 2001).
    All sweeps of a step go in one order, forth or back at random, which makes the step reversible.
    A step is lost where the correction is NaN. The surrogate alone may lead to such a point: from
    there each step to another one is accepted.

    Parameters
    ----------
    density, noise, correction : functions, see `kernels.pointers`
        The log density, with the sums of terms for entries of levels; the inputs of `draw_noise`;
        the correction of the log density, see above.
    q : array
        Changed in place, and with `adapt` so are widths.
    levels : array of int
        The ends of the parameters and of each level in q.
    anew : int
        The number of entries after the levels that are redrawn; 0 with `inner`.
    adapt : float
        How strongly widths are tuned, 0 to 1.
    """
    inputs = np.empty(np.sum(mixed.sizes * (3 + np.maximum(mixed.columns, 1))))
    accepted, lost, unused = 0, 0, np.empty_like(q)
    current = call(correction, q, unused) if inner else 0.0
    for i in range(out.shape[0]):
        for _ in range(thin):
            before = q.copy()
            forth = not inner or rng.random() < 0.5
            for _ in range(max(inner, 1)):
                sweep(rng, density, noise, q, inputs, levels, anew, mixed, tuned, adapt, forth)
            proposed = call(correction, q, unused) if inner else 0.0
            lost += proposed != proposed
            lead_on = current != current and proposed == proposed
            if lead_on or proposed >= current or rng.random() < math.exp(proposed - current):
                current = proposed
                accepted += 1
            else:
                q[:] = before
        out[i] = q
    return accepted, lost


@jit
def fill_rows(values, q, out):
    """Fill a row of `out` for each row of q; with NaN where `values` raises an error."""
    for i in range(q.shape[0]):
        call(values, q[i], out[i])
