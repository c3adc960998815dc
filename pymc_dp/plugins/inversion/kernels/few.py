r"""Density of a noisy sum of few independent records from quadrature nodes of their law.

With few records Laplace noise leaves kinks in the density :math:`p_n`, and its characteristic
function falls off slowly. The density is computed record by record instead,

.. math:: p_n(z) = \int p_{n-1}(z - h(x)) \, dP(x),

over panels that are split where :math:`p_{n-1}` is not smooth: where it changes fast, and at the
kinks, the sums of atoms and of ends of the law. Between kinks :math:`\log p_n` is tabled as
Legendre series on cells that are as narrow as the accuracy needs; beyond all sums of n records it
is linear. All terms are positive, so that logs have all digits however far z is in a tail.
"""

import math

import numpy as np

from pymc_dp.kernels import jit
from pymc_dp.kernels.linked import M, V, linked
from pymc_dp.plugins.inversion.kernels.atoms import log_noise
from pymc_dp.plugins.inversion.kernels.nodes import NODES, RULE, WEIGHTS
from pymc_dp.plugins.inversion.kernels.release import gather, spread_out, unresolved

_LAW = f"Tuple((i8[::1], i8[:], {V}, {M}, {M}, {M}, {V}, {M}))"
_TABLE = f"Tuple(({V}, b1[::1], {M}, {M}))"

CELLS = 512  # most cells of a table
_TABLED = 1e-10  # largest coefficient of high degree of a log density on a cell
_FALL = 12.0  # largest fall of a log density across the nodes of a rule
_CLOSE = 1e-14  # distance, relative to the reach of the law, below which points are merged
_NOTHING = 45.0  # fall of a log density at which a panel is left out
_SLACK = 300.0  # most by which a log may exceed the reference that terms are scaled by
# Coefficients of the Legendre series through values at the nodes.
_SERIES = np.array([
    (2 * k + 1) / 2 * WEIGHTS * np.polynomial.legendre.Legendre.basis(k)(NODES)
    for k in range(RULE)
])  # fmt: skip
# Coefficients of the recurrence of the Legendre polynomials.
_UP = np.array([(2 * m + 1) / (m + 1) for m in range(RULE)])
_DOWN = np.array([m / (m + 1) for m in range(RULE)])


@jit
def _basis(x, basis):
    """Fill in the Legendre polynomials at points."""
    for j in range(x.size):
        basis[0, j], basis[1, j] = 1.0, x[j]
    for m in range(1, RULE - 1):
        for j in range(x.size):
            basis[m + 1, j] = _UP[m] * x[j] * basis[m, j] - _DOWN[m] * basis[m - 1, j]


@jit
def _sums(c, basis, out):
    """Fill in a Legendre series."""
    out[:] = c[0]
    for m in range(1, RULE):
        for j in range(out.size):
            out[j] += c[m] * basis[m, j]


@jit
def _series_at(c, x):
    """Return a Legendre series and its derivative."""
    value, slope = c[0] + c[1] * x, c[1]
    before, now, slope_before, slope_now = 1.0, x, 0.0, 1.0
    for m in range(1, RULE - 1):
        slope_before, slope_now = slope_now, slope_before + (2 * m + 1) * now
        before, now = now, _UP[m] * x * now - _DOWN[m] * before
        value += c[m + 1] * now
        slope += c[m + 1] * slope_now
    return value, slope


@jit
def _position(c, target, ends):
    """Return the point of a panel, in [-1, 1], at which a monotone series has a value."""
    sign = 1.0 if c[1] > 0.0 else -1.0
    low, high = -1.0, 1.0
    x = sign * (2.0 * (target - ends[0]) / (ends[1] - ends[0]) - 1.0)
    for _ in range(60):
        value, slope = _series_at(c, x)
        gap = target - value
        if gap * sign > 0.0:
            low = x
        else:
            high = x
        x += gap / slope
        if abs(gap) < 1e-15 * abs(slope):
            break
        if not low < x < high:
            x = 0.5 * (low + high)
    return min(max(x, -1.0), 1.0)


@jit
def _next(c):
    """Estimate the size of the next coefficients of a series."""
    before, after = np.abs(c[-4:-2]).max(), np.abs(c[-2:]).max()
    return after * min(after / before, 1.0) if before > 0.0 else after


@linked(f"{_LAW}({V}, {V}, {V}, f8)")
def _panels(mass, value, width, b):
    """Series on the panels of a gathered law, and the values at which the law is not smooth.

    Returns the indices of the atoms and of the panels' first nodes; the panels' largest log masses,
    series of log density and of value, and ends; the values at which the law is not smooth; and the
    relative errors of sums over a whole panel and over a split one.
    """
    [atoms] = np.nonzero(width == 0.0)
    firsts = np.nonzero(width != 0.0)[0][::RULE]
    top, ends = np.zeros(firsts.size), np.zeros((firsts.size, 2))
    density, series = np.zeros((firsts.size, RULE)), np.zeros((firsts.size, RULE))
    error = np.zeros((firsts.size, 2))
    for p in range(firsts.size):
        nodes = slice(firsts[p], firsts[p] + RULE)
        top[p] = mass[nodes].max()
        shape, offset = np.exp(mass[nodes] - top[p]) / WEIGHTS, value[nodes] - value[firsts[p]]
        density[p] = np.dot(_SERIES, mass[nodes] - np.log(WEIGHTS))
        series[p] = np.dot(_SERIES, value[nodes])
        error[p, 0] = unresolved(shape) + unresolved(offset) * width[firsts[p]] / b
        error[p, 1] = _next(density[p]) + _next(series[p]) / b
        right = series[p].sum()
        left = series[p, ::2].sum() - series[p, 1::2].sum()
        ends[p, 0], ends[p, 1] = min(left, right), max(left, right)
    # Ends that two panels share are no ends of the law; at an atom, the atom's value is exact.
    lone = np.ones((firsts.size, 2), dtype=np.bool_)
    for p in range(firsts.size):
        for i in range(2):
            end = ends[p, i]
            close = 1e-6 * (ends[p, 1] - ends[p, 0]) + 1e-14 * abs(end)
            other_points = np.concatenate((ends[:, 1 - i], value[atoms]))
            lone[p, i] = np.abs(other_points - end).min() > close
    points = np.concatenate((ends.ravel()[lone.ravel()], value[atoms]))
    return atoms, firsts, top, density, series, ends, np.sort(points), error


@linked(f"void({_TABLE}, f8, {V}, f8, {M}, {V}, {V}, b1)")
def _log_densities(table, y, h, b, basis, logs, slopes, full):
    """Fill in the logs of a tabled density at y - h, and their derivatives."""
    edges, _, series, outer = table
    close = 1e-15 * (abs(outer[0, 0]) + abs(outer[0, 1]))
    x, cells = np.zeros(h.size), np.full(h.size, -1)
    for j in range(h.size):
        d = y - h[j]
        if d <= outer[0, 0] + close:
            logs[j], slopes[j] = outer[1, 0] + (d - outer[0, 0]) / b, 1.0 / b
        elif d >= outer[0, 1] - close:
            logs[j], slopes[j] = outer[1, 1] - (d - outer[0, 1]) / b, -1.0 / b
        else:
            i = min(max(np.searchsorted(edges, d) - 1, 0), edges.size - 2)
            cells[j], x[j] = i, 2.0 * (d - edges[i]) / (edges[i + 1] - edges[i]) - 1.0
    if cells.max() < 0:
        return
    _basis(x, basis)
    for j in range(h.size):
        i = cells[j]
        if i >= 0:
            logs[j] = 0.0
            for m in range(RULE):
                logs[j] += series[i, m] * basis[m, j]
            if full:
                slopes[j] = _series_at(series[i], x[j])[1] * 2.0 / (edges[i + 1] - edges[i])


@jit
def _splits(table, y, b, ends, series, x):
    """Fill x with the points at which a panel has to be split; returns the number of pieces."""
    edges, kinks, _, outer = table
    low, high = ends
    count = 1
    x[0] = -1.0
    first = max(np.searchsorted(edges, y - high), 1)
    last = min(np.searchsorted(edges, y - low) + 1, edges.size - 1)
    for i in range(first - 12, last):
        if i < first - 10:
            point = y - outer[0, i - first + 12]
        elif i < first - 5:
            point = min(high, y - outer[0, 1]) - (first - 5 - i) * _FALL * b
        elif i < first:
            point = max(low, y - outer[0, 0]) + (first - i) * _FALL * b
        else:
            narrow = min(edges[i + 1] - edges[i], edges[i] - edges[i - 1]) < high - low
            point = y - edges[i] if narrow or kinks[i] else low
        if low < point < high:
            x[count] = _position(series, point, ends)
            count += 1
    x[count] = 1.0
    if count > 2:
        x[: count + 1].sort()
    return count


@linked(f"UniTuple(f8, 3)({V}, {V}, {_LAW}, {_TABLE}, f8, f8, {V}, b1)")
def _convolve(mass, value, law, table, y, b, grad, full):
    """Log density with one more record than tabled.

    With `full`, also returns its derivative by y and its relative error, and fills `grad` with the
    share of each node or atom.
    """
    atoms, firsts, top, density, series, ends, _, errors = law
    splits = np.zeros(CELLS + 16)
    reference, total, slope, error = -math.inf, 0.0, 0.0, 0.0
    grad[:] = 0.0
    size = max(RULE, atoms.size)
    basis, basis_h = np.zeros((RULE, size)), np.zeros((RULE, size))
    logs, slopes, x = np.zeros(size), np.zeros(size), np.zeros(RULE)
    h, log_mass, moments = np.zeros(RULE), np.zeros(RULE), np.zeros(RULE)
    outer = table[3]
    # First the atoms, then panels that meet the table, then the others, most of which are left out.
    for turn in range(-1 if atoms.size else 0, 2 * firsts.size):
        p = turn % firsts.size if turn >= 0 else -1
        pieces, points = 1, atoms.size if p < 0 else RULE
        if p >= 0:
            beyond = outer[0, 0] - (y - ends[p, 0]), (y - ends[p, 1]) - outer[0, 1]
            side = 0 if beyond[0] > beyond[1] else 1
            if (beyond[side] > 0.0) == (turn < firsts.size):
                continue
            nearest = outer[1, side] - beyond[side] / b + top[p]
            if beyond[side] > 0.0 and nearest < reference + math.log(total) - _NOTHING:
                continue
            pieces = _splits(table, y, b, ends[p], series[p], splits)
        moments[:] = 0.0
        for piece in range(pieces):
            half = 0.5 * (splits[piece + 1] - splits[piece]) if pieces > 1 else 1.0
            if pieces > 1:
                x[:] = splits[piece] + half * (1.0 + NODES)
                _basis(x, basis_h)
                _sums(series[p], basis_h, h)
                _sums(density[p], basis_h, log_mass)
                _log_densities(table, y, h, b, basis, logs, slopes, full)
            elif p < 0:
                _log_densities(table, y, value[atoms], b, basis, logs, slopes, full)
            else:
                panel_values = value[firsts[p] : firsts[p] + RULE]
                _log_densities(table, y, panel_values, b, basis, logs, slopes, full)
            for j in range(points):
                g = atoms[j] if p < 0 else firsts[p] + j
                log_term = logs[j] + (log_mass[j] if pieces > 1 else mass[g])
                if log_term > reference + _SLACK:
                    shrink = math.exp(reference - log_term)
                    total, slope, error = total * shrink, slope * shrink, error * shrink
                    grad *= shrink
                    moments *= shrink
                    reference = log_term
                term = math.exp(log_term - reference)
                if pieces > 1:
                    term *= half * WEIGHTS[j]
                    if full:
                        for m in range(RULE):
                            moments[m] += term * basis_h[m, j]
                else:
                    grad[g] = term
                total += term
                slope += term * slopes[j] if full else 0.0
        if full and p >= 0:
            for j in range(RULE if pieces > 1 else 0):
                grad[firsts[p] + j] = (_SERIES[:, j] * moments).sum()
            share = grad[firsts[p] : firsts[p] + RULE].sum()
            error += share * errors[p, min(pieces, 2) - 1]
    grad /= total
    return reference + math.log(total), slope / total, error / total


@linked(f"Tuple(({_TABLE}, f8))({V}, {V}, {_LAW}, {_TABLE}, f8, f8, f8, {V}, {V})")
def _tabled(mass, value, law, table, b, low, high, kinks, grad):
    """Table the density with one more record within [low, high], from kink to kink.

    Returns the table, and the largest coefficient by which a series on a cell fell short.
    """
    outer = np.zeros((2, 2))
    outer[0] = kinks[0], kinks[-1]
    for i in range(2):
        outer[1, i] = _convolve(mass, value, law, table, outer[0, i], b, grad, False)[0]
    edges, at_kink = np.zeros(CELLS + 1), np.ones(CELLS + 1, dtype=np.bool_)
    series, logs = np.zeros((CELLS, RULE)), np.zeros(RULE)
    count, short = 0, 0.0
    fall = _FALL if law[1].size else math.inf  # atoms need no quadrature
    edges[0] = max(low, kinks[0])
    for kink in kinks[1:]:
        start, stop = edges[count], min(kink, high)
        width = stop - start
        least = 1e-12 * width
        while stop > edges[count]:
            if count == CELLS:
                return (edges, at_kink, series, outer), math.inf
            left = edges[count]
            width = min(width, stop - left)
            for j in range(RULE):
                point = left + 0.5 * width * (1.0 + NODES[j])
                logs[j] = _convolve(mass, value, law, table, point, b, grad, False)[0]
            series[count] = np.dot(_SERIES, logs)
            missed = np.abs(series[count, RULE - 2 :]).max()
            # Nodes may miss a layer of width b at a kink.
            for side in range(2):
                point = left + b if side == 0 else left + width - b
                touches = left == start if side == 0 else width == stop - left
                if width > 16.0 * b and touches:
                    seen = _convolve(mass, value, law, table, point, b, grad, False)[0]
                    x = 2.0 * (point - left) / width - 1.0
                    missed = max(missed, abs(_series_at(series[count], x)[0] - seen))
            missed -= 1e-15 * np.abs(logs).max()
            if width > least and (missed > _TABLED or logs.max() - logs.min() > fall):
                width *= 0.5
                continue
            short = max(short, missed)
            count += 1
            edges[count] = left + width if stop - left - width > least else stop
            at_kink[count] = edges[count] == stop
            width *= 2.0 if missed < 1e-3 * _TABLED else 1.0
    return (edges[: count + 1], at_kink[: count + 1], series[:count], outer), short


@linked(f"Tuple(({V}, {V}, {M}, {V}))({V}, {V}, {V}, i8, f8, f8)")
def few_records(log_weight, h, cut, most, z, b):
    """Log densities of noisy sums of 0 to `most` records, with derivatives.

    Parameters
    ----------
    log_weight, h, cut : see `release.release_line`.
    most, z, b : largest number of records, release, Laplace scale.

    Returns
    -------
    For each number of records: log density, its derivative by z, those by the log weights, and the
    estimated relative error (infinite unless the values are monotone on each panel).
    """
    logp, slope, error = np.zeros(most + 1), np.zeros(most + 1), np.zeros(most + 1)
    grad = np.zeros((most + 1, h.size))
    logp[0], slope[0] = log_noise(z, b, 0.0)
    log_mass = log_weight.copy()
    for start in range(0, h.size, RULE):
        if log_mass[start : start + RULE].max() > -math.inf:
            log_mass[start : start + RULE] = np.maximum(log_mass[start : start + RULE], -1e5)
    group, mass, value, width, tail, log_total, _ = gather(log_mass, h, cut)
    law = _panels(mass, value, width, b)
    firsts, points = law[1], law[6]
    known = np.isfinite(value).all() and value.size > 0
    for p in range(firsts.size):
        steps = np.diff(value[firsts[p] : firsts[p] + RULE])
        known = known and (steps.max() < 0.0 or steps.min() > 0.0)
    if not known:
        logp[1:], slope[1:], error[1:], grad[1:] = math.nan, math.nan, math.inf, math.nan
        return logp, slope, grad, error
    share, nothing = np.zeros(value.size), np.zeros((0, RULE))
    outer = np.zeros((2, 2))
    outer[1] = -math.log(2.0 * b)
    table = np.zeros(2), np.ones(2, dtype=np.bool_), nothing, outer
    kinks, short = np.zeros(1), 0.0
    for n in range(1, most + 1):
        logp[n], slope[n], missed = _convolve(mass, value, law, table, z, b, share, True)
        error[n] = short + n * (missed + np.dot(share, tail)) + abs(log_total)
        grad[n] = spread_out(log_mass, log_total, group, mass, n * share)
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
