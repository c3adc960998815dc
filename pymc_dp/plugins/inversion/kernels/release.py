"""Density of a noisy sum of iid records from quadrature nodes of the records' law."""

import math

import numpy as np

from pymc_dp.kernels import jit
from pymc_dp.kernels.linked import V, linked
from pymc_dp.plugins.inversion.kernels.atoms import few_values
from pymc_dp.plugins.inversion.kernels.line import line
from pymc_dp.plugins.inversion.kernels.nodes import NODES, RULE, WEIGHTS

_SPAN = 0.5 * (NODES[-1] - NODES[0])  # distance of the outer nodes of a panel of length one
_ROUNDING = 4e-16  # relative difference up to which values count as equal
# The last four Legendre coefficients of a function given at the nodes of a panel.
_LAST = np.array([
    (2 * k + 1) / 2 * WEIGHTS * np.polynomial.legendre.Legendre.basis(k)(NODES)
    for k in range(RULE - 4, RULE)
])  # fmt: skip


@jit
def unresolved(value):
    """Estimate the quadrature error of a function on a panel, relative to its largest value.

    The rule is exact to degree 2 RULE - 1: the last coefficients are extrapolated to there by the
    ratio in which they fall off.
    """
    c = np.zeros(4)
    largest = 0.0
    for j in range(RULE):
        largest = max(largest, abs(value[j]))
        for k in range(4):
            c[k] += _LAST[k, j] * value[j]
    if largest == 0.0:
        return 0.0
    before, after = max(abs(c[0]), abs(c[1])), max(abs(c[2]), abs(c[3]))
    ratio = min(after / before, 1.0) if before > 0.0 else 1.0
    return after / largest * ratio ** (RULE // 2)


@jit
def _resolution(log_weight, h, used):
    """Estimate the error of the quadrature of the tilted laws that a density was computed from."""
    size = h.size
    lw, value = np.empty(size), np.empty(RULE)
    error = 0.0
    for tilt in used:
        if math.isnan(tilt):
            continue
        top = -math.inf
        for j in range(size):
            lw[j] = log_weight[j] + tilt * h[j]
            if lw[j] > top:
                top = lw[j]
        total = 0.0
        for j in range(size):
            lw[j] = math.exp(lw[j] - top) if lw[j] > -math.inf else 0.0
            total += lw[j]
        for start in range(0, size, RULE):
            share = lw[start : start + RULE].sum() / total
            if share < 1e-16:
                continue
            for j in range(RULE):
                value[j] = lw[start + j] / WEIGHTS[j]
            worst = unresolved(value)
            if h[start + RULE - 1] != h[start]:
                for j in range(RULE):
                    value[j] *= h[start + j] - h[start]
                worst = max(worst, unresolved(value))
            error += share * worst
    return error


@linked(f"Tuple((i8[::1], {V}, {V}, {V}, {V}, f8, i8))({V}, {V}, {V})")
def gather(log_weight, h, cut):
    """Normalise the law, and merge nodes with equal values, as where h clips, into one atom.

    Returns the group of each node, -1 without mass, the groups' log masses, values, panel widths
    and shares of mass where the law was cut, the log of the total mass, and the number of atoms.
    """
    size = h.size
    group = np.full(size, -1)
    value, width = np.empty(size), np.empty(size)
    mass, tail = np.empty(size), np.empty(size)
    atoms = np.empty(size, dtype=np.int64)
    count = n_atoms = 0
    top, total = -math.inf, 0.0
    for start in range(0, size, RULE):
        end = start + RULE
        most = log_weight[start:end].max()
        if not most > -math.inf:
            continue
        of_panel = cut_off = 0.0
        for j in range(start, end):
            if log_weight[j] > -math.inf:
                share = math.exp(log_weight[j] - most)
                of_panel += share
                cut_off += share * cut[j]
        if most > top:
            total = total * math.exp(top - most) + of_panel
            top = most
        else:
            total += of_panel * math.exp(most - top)
        low, high = h[start:end].min(), h[start:end].max()
        # Just beyond the bound of a clamp, values may be rounded to the other side of it.
        if high - low <= _ROUNDING * max(abs(low), abs(high)):
            g, log_mass = -1, most + math.log(of_panel)
            for a in range(n_atoms):
                if abs(value[atoms[a]] - low) <= _ROUNDING * abs(low):
                    g = atoms[a]
            if g < 0:
                g = count
                value[g], width[g], mass[g], tail[g] = low, 0.0, -math.inf, 0.0
                atoms[n_atoms] = g
                n_atoms += 1
                count += 1
            both = max(mass[g], log_mass) + math.log1p(math.exp(-abs(mass[g] - log_mass)))
            tail[g] *= math.exp(mass[g] - both)
            tail[g] += cut_off / of_panel * math.exp(log_mass - both)
            mass[g] = both
            for j in range(start, end):
                if log_weight[j] > -math.inf:
                    group[j] = g
            continue
        for j in range(start, end):
            if log_weight[j] > -math.inf:
                group[j] = count
                value[count], width[count] = h[j], (high - low) / _SPAN
                mass[count], tail[count] = log_weight[j], cut[j]
                count += 1
    log_total = top + math.log(total) if abs(top) < math.inf else math.nan
    mass -= log_total
    return (
        group, mass[:count], value[:count], width[:count], tail[:count], log_total, n_atoms,
    )  # fmt: skip


@jit
def spread_out(log_weight, log_total, group, mass, grad):
    """Pass the derivatives by the groups on to the nodes of the normalised law."""
    result, n = np.zeros(log_weight.size), grad.sum()
    for j in range(log_weight.size):
        if group[j] >= 0:
            log_share = log_weight[j] - log_total
            result[j] = math.exp(log_share - mass[group[j]]) * grad[group[j]] - n * math.exp(
                log_share
            )
    return result


@jit
def missed(log_weight, h, used, n, log_total):
    """Estimate the relative error of a density that is due to the quadrature of the law.

    The error of the quadrature shifts the mean of the sum in proportion. A constant factor of the
    density does no harm: the total mass only tells whether nodes have missed mass.
    """
    return _resolution(log_weight, h, used) * (1.0 + math.sqrt(n)) + abs(log_total)


@linked(f"Tuple((f8, f8, {V}, {V}))({V}, {V}, {V}, f8, {V}, f8, f8, f8, f8, b1)")
def release_line(log_weight, h, cut, n, lp, z, b, sg, tolerance, full):
    """Log density of one sum; if `full`, its derivatives by z, by the log weights, and by lp.

    Parameters
    ----------
    log_weight, h, cut : log masses of the nodes, their values, and which of them lie where the law
        was cut. RULE nodes in a row are a panel.
    n, lp : the least number of records, and log weights of n, n + 1, ... records.
    z, b, sg : release, Laplace scale and Gaussian standard deviation.

    Returns
    -------
    Two numbers and two vectors; NaN where the relative error may exceed the tolerance.
    """
    group, mass, value, width, tail, log_total, n_atoms = gather(log_weight, h, cut)
    two = n_atoms == mass.size == 2
    grad, by_number = np.zeros(mass.size if full or two else 0), np.zeros(lp.size)
    logp, slope, error, used = math.nan, 0.0, 0.0, np.zeros(3)
    if two:
        logp, slope = few_values(mass, value, 0.0, n, lp, z, b, sg, grad, by_number)
    elif mass.size > 0 and np.isfinite(value).all():
        logp, slope, error = line(
            mass, value, width, tail, n, lp, z, b, sg, grad, by_number, used
        )  # fmt: skip
    most = n + lp.size - 1.0
    if not error + missed(log_weight, h, used, most, log_total) < tolerance:
        logp = math.nan
    if math.isnan(logp):
        slope = math.nan
        grad[:] = math.nan
        by_number[:] = math.nan
    by_node = np.zeros(log_weight.size)
    if full:
        by_node = spread_out(log_weight, log_total, group, mass, grad)
    return logp, slope, by_node, by_number
