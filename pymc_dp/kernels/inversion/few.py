r"""Density of a noisy sum of few independent records from quadrature nodes of their law.

With few records Laplace noise leaves kinks in the density :math:`p_n`, and its inversion from the
characteristic function falls off slowly. It is found record by record instead,

.. math:: p_n(z) = \int p_{n-1}(z - h(x)) \, dP(x),

over panels that are split where :math:`p_{n-1}` is not smooth: where it changes fast, and at the
sums of atoms and of ends of the law. Between these :math:`\log p_n` is kept as Legendre series on
cells as narrow as it takes; beyond all sums of n records it is linear. All terms are positive, so
that their logs have their digits however far z is in a tail.
"""

import math

import numpy as np

from pymc_dp.kernels import jit
from pymc_dp.kernels.inversion.atoms import log_noise
from pymc_dp.kernels.inversion.nodes import NODES, RULE, WEIGHTS
from pymc_dp.kernels.inversion.release import _gather, _spread_out, _unresolved

CELLS = 512  # most cells of a table
_TABLED = 1e-11  # largest coefficient of high degree of a log density on a cell
_FALL = 12.0  # largest fall of a log density across the nodes of a rule
_CLOSE = 1e-12  # points at this distance, relative to the reach of the law, are one
_SLACK = 300.0  # logs may exceed their reference by this
# Coefficients of the Legendre series through values at the nodes.
_SERIES = np.array([
    (2 * k + 1) / 2 * WEIGHTS * np.polynomial.legendre.Legendre.basis(k)(NODES)
    for k in range(RULE)
])  # fmt: skip


@jit
def _basis(x, values, slopes):
    """Fill in the Legendre polynomials at x, and their derivatives."""
    values[0], values[1], slopes[0], slopes[1] = 1.0, x, 0.0, 1.0
    for m in range(1, RULE - 1):
        values[m + 1] = ((2 * m + 1) * x * values[m] - m * values[m - 1]) / (m + 1)
        slopes[m + 1] = slopes[m - 1] + (2 * m + 1) * values[m]


@jit
def _sum(c, basis):
    total = 0.0
    for m in range(RULE):
        total += c[m] * basis[m]
    return total


@jit
def _position(c, target, values, slopes):
    """Where on its panel a monotone series has a value."""
    rising = c[1] > 0.0
    low, high, x = -1.0, 1.0, 0.0
    for _ in range(60):
        _basis(x, values, slopes)
        gap = target - _sum(c, values)
        if (gap > 0.0) == rising:
            low = x
        else:
            high = x
        step = gap / _sum(c, slopes)
        x += step
        if abs(step) < 1e-15:
            break
        if not low < x < high:
            x = 0.5 * (low + high)
    return min(max(x, -1.0), 1.0)


@jit
def _panels(mass, value, width, b):
    """Series on the panels of a gathered law, and the values at which the law is not smooth.

    Returns the places of the atoms and of the first nodes of the panels, the logs of the scales of
    these, the series of density and value, the ends, those values, and the relative errors of sums
    over a panel that is whole and over one that is split.
    """
    [atoms] = np.nonzero(width == 0.0)
    firsts = np.nonzero(width != 0.0)[0][::RULE]
    top, ends = np.empty(firsts.size), np.empty((firsts.size, 2))
    density, series = np.empty((firsts.size, RULE)), np.empty((firsts.size, RULE))
    error = np.empty((firsts.size, 2))
    for p in range(firsts.size):
        own = slice(firsts[p], firsts[p] + RULE)
        top[p] = mass[own].max()
        shape, offset = np.exp(mass[own] - top[p]) / WEIGHTS, value[own] - value[firsts[p]]
        density[p], series[p] = np.dot(_SERIES, shape), np.dot(_SERIES, value[own])
        error[p, 0] = _unresolved(shape) + _unresolved(offset) * width[firsts[p]] / b
        error[p, 1] = np.abs(density[p, -3:]).max() / shape.max()
        error[p, 1] += np.abs(series[p, -3:]).max() / b
        right = series[p].sum()
        left = series[p, ::2].sum() - series[p, 1::2].sum()
        ends[p, 0], ends[p, 1] = min(left, right), max(left, right)
    # Ends that panels share are none of the law.
    flat = np.sort(ends.ravel())
    points = np.concatenate((flat, value[atoms]))
    close = _CLOSE * (points.max() - points.min())
    lone = np.ones(points.size, dtype=np.bool_)
    for i in range(flat.size - 1):
        if flat[i + 1] - flat[i] <= close:
            lone[i] = lone[i + 1] = False
    for i in range(flat.size):  # ends at an atom are taken from there
        for a in atoms:
            lone[i] = lone[i] and not abs(flat[i] - value[a]) <= close
    return atoms, firsts, top, density, series, ends, np.sort(points[lone]), error


@jit
def _log_density(table, y, b, values, slopes):
    """Log of a tabled density, and its derivative."""
    edges, _, series, outer = table
    close = 1e-15 * (abs(outer[0, 0]) + abs(outer[0, 1]))
    if y <= outer[0, 0] + close:
        return outer[1, 0] + (y - outer[0, 0]) / b, 1.0 / b
    if y >= outer[0, 1] - close:
        return outer[1, 1] - (y - outer[0, 1]) / b, -1.0 / b
    i = min(max(np.searchsorted(edges, y) - 1, 0), edges.size - 2)
    half = 0.5 * (edges[i + 1] - edges[i])
    _basis((y - edges[i]) / half - 1.0, values, slopes)
    return _sum(series[i], values), _sum(series[i], slopes) / half


@jit
def _splits(table, y, b, ends, series, x, values, slopes):
    """Fill x with the points at which a panel has to be split; returns their number."""
    edges, kinks, _, outer = table
    low, high = ends
    points = [y - outer[0, 0], y - outer[0, 1]]
    for i in range(1, edges.size - 1):
        narrow = min(edges[i + 1] - edges[i], edges[i] - edges[i - 1]) < high - low
        if narrow or kinks[i]:
            points.append(y - edges[i])
    for i in range(1, 6):
        points.append(min(high, y - outer[0, 1]) - i * _FALL * b)
        points.append(max(low, y - outer[0, 0]) + i * _FALL * b)
    count = 1
    x[0] = -1.0
    for point in points:
        if low < point < high:
            x[count] = _position(series, point, values, slopes)
            count += 1
    x[count] = 1.0
    x[: count + 1].sort()
    return count


@jit
def _convolve(mass, value, law, table, y, b, grad):
    """Log density with one more record than tabled, its derivative by y, and its relative error.

    `grad` is filled with the share of each node or atom.
    """
    atoms, firsts, top, density, series, ends, _, errors = law
    values, slopes, x = np.empty(RULE), np.empty(RULE), np.empty(CELLS + 16)
    basis, unused, moments = np.empty(RULE), np.empty(RULE), np.empty(RULE)
    reference = -math.inf
    total = slope = error = 0.0
    grad[:] = 0.0
    for p in range(-1, firsts.size):  # first the atoms
        pieces, points = 1, atoms.size if p < 0 else RULE
        if p >= 0:
            pieces = _splits(table, y, b, ends[p], series[p], x, values, slopes)
        moments[:] = 0.0
        for i in range(pieces * points):
            piece, j = i // points, i % points
            g = atoms[j] if p < 0 else firsts[p] + j
            h, log_mass, weight, rule = value[g], mass[g], 1.0, 1.0
            if pieces > 1:
                half = 0.5 * (x[piece + 1] - x[piece])
                _basis(x[piece] + half * (1.0 + NODES[j]), basis, unused)
                h, log_mass = _sum(series[p], basis), top[p]
                weight, rule = _sum(density[p], basis), half * WEIGHTS[j]
            found, derivative = _log_density(table, y - h, b, values, slopes)
            found += log_mass
            if found > reference + _SLACK:
                shrink = math.exp(reference - found)
                total, slope, error = total * shrink, slope * shrink, error * shrink
                reference = found
                grad *= shrink
                moments *= shrink
            term = rule * math.exp(found - reference)
            total += term * weight
            slope += term * weight * derivative
            if pieces > 1:
                for m in range(RULE):
                    moments[m] += term * basis[m]
            else:
                grad[g] = term
        if pieces > 1:
            for g in range(firsts[p], firsts[p] + RULE):
                own = math.exp(mass[g] - top[p]) / WEIGHTS[g - firsts[p]]
                grad[g] = own * _sum(_SERIES[:, g - firsts[p]], moments)
        if p >= 0:
            error += grad[firsts[p] : firsts[p] + RULE].sum() * errors[p, min(pieces, 2) - 1]
    grad /= total
    return reference + math.log(total), slope / total, error / total


@jit
def _tabled(mass, value, law, table, b, low, high, kinks, grad):
    """Table the density with one more record within [low, high], from kink to kink.

    Returns the table, and the largest coefficient by which a series on a cell fell short.
    """
    outer = np.empty((2, 2))
    outer[0] = kinks[0], kinks[-1]
    for i in range(2):
        outer[1, i], _, _ = _convolve(mass, value, law, table, outer[0, i], b, grad)
    edges, at_kink = np.empty(CELLS + 1), np.ones(CELLS + 1, dtype=np.bool_)
    series, logs = np.empty((CELLS, RULE)), np.empty(RULE)
    count, short = 0, 0.0
    edges[0] = max(low, kinks[0])
    for kink in kinks[1:]:
        stop = min(kink, high)
        width = stop - edges[count]
        least = 1e-12 * width
        while stop > edges[count]:
            if count == CELLS:
                return (edges, at_kink, series, outer), math.inf
            left = edges[count]
            width = min(width, stop - left)
            for j in range(RULE):
                point = left + 0.5 * width * (1.0 + NODES[j])
                logs[j], _, _ = _convolve(mass, value, law, table, point, b, grad)
            for m in range(RULE):
                series[count, m] = _sum(_SERIES[m], logs)
            missed = np.abs(series[count, RULE - 3 :]).max() - 1e-15 * np.abs(logs).max()
            if width > least and (missed > _TABLED or logs.max() - logs.min() > _FALL):
                width *= 0.5
                continue
            short = max(short, missed)
            count += 1
            edges[count] = left + width if stop - left - width > least else stop
            at_kink[count] = edges[count] == stop
            width *= 2.0
    return (edges[: count + 1], at_kink[: count + 1], series[:count], outer), short


@jit
def few_records(log_weight, h, cut, most, z, b):
    """Log densities of noisy sums of 0 to `most` records, with derivatives.

    Parameters
    ----------
    log_weight, h, cut : see `release.release_line`.
    most, z, b : largest number of records, release, Laplace scale.

    Returns
    -------
    For each number of records: log density, its derivative by z, those by the log weights, and the
    estimated relative error (infinite where the nodes are none of a law on monotone panels).
    """
    logp, slope, error = np.empty(most + 1), np.empty(most + 1), np.zeros(most + 1)
    grad = np.zeros((most + 1, h.size))
    logp[0], slope[0] = log_noise(z, b, 0.0)
    own = log_weight.copy()
    for start in range(0, h.size, RULE):
        if own[start : start + RULE].max() > -math.inf:
            own[start : start + RULE] = np.maximum(own[start : start + RULE], -1e5)
    group, mass, value, width, tail, log_total, _ = _gather(own, h, cut)
    law = _panels(mass, value, width, b)
    firsts, points = law[1], law[6]
    known = np.isfinite(value).all() and value.size > 0
    for p in range(firsts.size):
        steps = np.diff(value[firsts[p] : firsts[p] + RULE])
        known = known and (steps.max() < 0.0 or steps.min() > 0.0)
    if not known:
        logp[1:], slope[1:], error[1:], grad[1:] = math.nan, math.nan, math.inf, math.nan
        return logp, slope, grad, error
    share, nothing = np.empty(value.size), np.empty((0, RULE))
    outer = np.zeros((2, 2))
    outer[1] = -math.log(2.0 * b)
    table = np.zeros(2), np.ones(2, dtype=np.bool_), nothing, outer
    kinks, short = np.zeros(1), 0.0
    for n in range(1, most + 1):
        logp[n], slope[n], missed = _convolve(mass, value, law, table, z, b, share)
        error[n] = short + n * (missed + np.dot(share, tail)) + abs(log_total)
        grad[n] = _spread_out(own, log_total, group, mass, n * share, n)
        if n < most:
            sums = np.sort((kinks.reshape(-1, 1) + points).ravel())
            far = np.diff(sums) > _CLOSE * (points[-1] - points[0])
            kinks = np.concatenate((sums[:1], sums[1:][far]))
            reach = most - n
            low = z - max(points[-1], reach * points[-1])
            high = z - min(points[0], reach * points[0])
            table, missed = _tabled(mass, value, law, table, b, low, high, kinks, share)
            short += (n + 1) * missed
    return logp, slope, grad, error
