r"""Slice moves of a few parameters, and proposals for many entries at once, in one compiled loop.

The density is known through one function of a vector q: its log, and for each entry of a level the
sum of the terms of that log which this entry is part of. A level is a group of entries that are
independent of each other given all else, so that one evaluation judges a proposal for each.

Parameters move by slice sampling with stepping out and shrinkage (Neal, 2003) along directions in
which they were uncorrelated in the warm-up, and along each alone; widths are tuned so that steps
out are as many as steps in (Tibbits et al., 2014). Where a ridge is bent, so is the line: with a
coordinate c that grows along it, what is added is a function of c alone, so that the line through
each of its points is the same, and volume is kept. Entries of levels move by two Metropolis
proposals: from a Normal law with the mean and spread of the warm-up, and by a step from where they
are. Of releases with Laplace noise around Normal statistics, the scale mixture's variances are
drawn (`draws.scale_mixture`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pymc_dp.kernels import jit
from pymc_dp.kernels.draws.scale_mixture import draw_precision
from pymc_dp.kernels.linked import linked
from pymc_dp.kernels.pointers import call

_MOST_STEPS = 60  # out, or in, of one slice
_WIDER = 1.2  # than the warm-up, an independent proposal
_STEP = 2.0  # spreads, a step
_FARTHEST = 3.0  # spreads, from where on a line is straight


class Tuned(NamedTuple):
    """What is tuned.

    Attributes
    ----------
    directions : a row for each, in the space of the parameters.
    bends : for each, what is added for c, its square and its cube, orthogonal to it.
    widths : of the slices along them.
    means, spreads : of all entries of q; used for those of levels.
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
    first : where the logs of a release's variances begin in q.
    sizes : how many there are.
    columns : of a factor F of the covariance of the statistics; 0 where these are independent.
    """

    first: np.ndarray
    sizes: np.ndarray
    columns: np.ndarray


@jit
def along(q, start, direction, bend, c, t):
    """Put q where a line through `start`, which is at c, is at c + t."""
    old, new = max(-_FARTHEST, min(c, _FARTHEST)), max(-_FARTHEST, min(c + t, _FARTHEST))
    for i in range(direction.size):
        q[i] = start[i] + t * direction[i]
    for power in range(bend.shape[0]):
        by = new ** (power + 1) - old ** (power + 1)
        for i in range(direction.size):
            q[i] += by * bend[power, i]


@linked()
def slice_move(rng, density, q, now, terms, center, direction, bend, width):
    """Move q in place along a line; return its log density, and steps out and in."""
    size = direction.size
    level = now - rng.standard_exponential()
    start = q[:size].copy()
    c = np.sum((start - center[:size]) * direction) / np.sum(direction * direction)
    low = -width * rng.random()
    high = low + width
    out, inside = 0, 0
    # Both ends share a number of steps, whose parts must not depend on where q is.
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
        found = call(density, q, terms)
        if found > level:
            return found, out, inside
        inside += 1
        if t < 0.0:
            low = t
        else:
            high = t
    q[:size] = start
    return now, out, inside


@linked()
def level_move(rng, density, q, terms, first, last, means, spreads, independent):
    """Propose all entries of a level, in place: independently of where they are, or from there."""
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
    """Draw jointly Normal statistics of covariance FF' likewise (by Matheron's rule)."""
    own = mean + factor @ rng.standard_normal(factor.shape[1])
    gap = z - own - np.sqrt(w) * rng.standard_normal(z.size)
    covariance = factor @ factor.T
    least = 1e-15 * np.max(np.diag(covariance))  # below it w is lost, and all may be singular
    return own + covariance @ np.linalg.solve(covariance + np.diag(w + least), gap)


@linked()
def draw_noise(rng, noise, q, given, mixed):
    """Draw the variances of Laplace noise.

    `noise` fills `given`, for each release: z, the scales of its noise, the means of its
    statistics, and their variances, or the rows of F.
    """
    if math.isnan(call(noise, q, given)):
        return
    place = 0
    for i in range(mixed.first.size):
        k, columns, first = mixed.sizes[i], mixed.columns[i], mixed.first[i]
        z, scale, mean = given[place : place + 3 * k].reshape(3, k)
        place += 3 * k
        w = np.exp(q[first : first + k])
        if columns:
            factor = given[place : place + k * columns].reshape(k, columns)
            drawn = draw_jointly(rng, z, w, mean, factor)
        else:
            drawn = draw_each(rng, z, w, mean, given[place : place + k])
        place += k * max(columns, 1)
        for j in range(k):
            q[first + j] = -math.log(draw_precision(rng, abs(z[j] - drawn[j]), scale[j]))


@linked()
def sweep(rng, density, noise, q, given, levels, anew, mixed, tuned, adapt, forth):
    """Make every move once, in place, in order or in the opposite one.

    The order is noise, parameters, levels; and last what is standard Normal given all of these,
    so that it is integrated out for the others (van Dyk & Park, 2008). This last move cannot be
    reversed, so it is not part of reversible proposals.
    """
    terms = np.empty_like(q)
    slices, halves = tuned.widths.size, 2 * (levels.size - 1)
    now = math.nan
    for place in range(1 + slices + halves):
        k = place if forth else slices + halves - place
        if k == 0:
            if given.size:
                draw_noise(rng, noise, q, given, mixed)
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
    """Fill `out`, a row after every `thin` steps; return how many were accepted, and how many lost.

    A step is a sweep; or with `inner`, so many of these as one proposal, for the density times
    exp(correction), of which each step then takes one: the surrogate transition method (Liu, 2001).
    All sweeps of a step go in one order, forth or back at random, which makes it reversible. A step
    is lost where the correction is not known, NaN.

    Parameters
    ----------
    density, noise, correction : functions, see `kernels.pointers`
        The log density, with the sums of terms for entries of levels; see `draw_noise`; what is
        added to the log density, see above.
    q : array
        Changed in place, and with `adapt` so are widths.
    levels : array of int
        The ends of the parameters and of each level in q.
    anew : int
        How many entries after these are drawn anew; 0 with `inner`.
    adapt : float
        How strongly widths are tuned, 0 to 1.
    """
    given = np.empty(np.sum(mixed.sizes * (3 + np.maximum(mixed.columns, 1))))
    accepted, lost, unused = 0, 0, np.empty_like(q)
    known = call(correction, q, unused) if inner else 0.0
    for i in range(out.shape[0]):
        for _ in range(thin):
            before = q.copy()
            forth = not inner or rng.random() < 0.5
            for _ in range(max(inner, 1)):
                sweep(rng, density, noise, q, given, levels, anew, mixed, tuned, adapt, forth)
            found = call(correction, q, unused) if inner else 0.0
            lost += found != found
            if found >= known or rng.random() < math.exp(found - known):
                known = found
                accepted += 1
            else:
                q[:] = before
        out[i] = q
    return accepted, lost


@jit
def fill_rows(values, q, out):
    """Fill a row of `out` for each row of q; of errors with NaN."""
    for i in range(q.shape[0]):
        call(values, q[i], out[i])
