r"""The Normal law of noisy margins of a decomposable model, with its gradient.

The indicators s(x) of the released cells that a row x is in have the mean :math:`\mu` and the
covariance :math:`\Sigma`; by the central limit theorem the margins of n rows with noise of the
variances D are about

.. math::

    z \sim N(n \mu, V), \qquad V = n \Sigma + \mathrm{diag}(D).

Both follow from the chances J that a row is in two cells of cliques. Clique i has the conditional
law r_i of its cells c given the value s(c) of its separator, so that along the tree

.. math::

    J(b, c) = r_i(c) \sum_{c' \in s(c)} J(b, c')

for the cells b of earlier cliques, with the sum over the cells c' of its parent. The gradient goes
the same way back, from :math:`\partial \log p / \partial V = (a a' - V^{-1}) / 2` with
:math:`a = V^{-1}(z - n \mu)`.

The same law, with log-linear weights: Räisä, Jälkö, Kaski & Honkela (2023), Noise-aware statistical
inference with differentially private synthetic data, AISTATS.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pymc_dp.kernels import jit
from pymc_dp.plugins.log_linear.cliques import Columns, JunctionTree


class Cells(NamedTuple):
    """How cells of cliques, one clique after the other, hang together.

    Attributes
    ----------
    first : first cell of every clique; one more entry ends the last.
    parent : first cell of every clique's parent, the end of it, and the number of values of the
        separator between them: a matrix of three columns. The root has no cells above.
    group : value of the clique's separator in each cell.
    above_first, above : cell k of the parent of clique i has the value above[above_first[i] + k].
    cell, target : all pairs of a cell of a clique and a released cell that holds it.
    """

    first: np.ndarray
    parent: np.ndarray
    group: np.ndarray
    above_first: np.ndarray
    above: np.ndarray
    cell: np.ndarray
    target: np.ndarray


def cells_of_tree(tree: JunctionTree, margins: Sequence[Columns]) -> Cells:
    """Return the cells of a tree, and of released margins one after the other."""
    sizes = [tree.size(c) for c in tree.cliques]
    first = np.append(0, np.cumsum(sizes))
    group = [tree.cells_of(c, s) for c, s in zip(tree.cliques, tree.separators, strict=True)]
    parent, above = [(0, 0, 1)], [np.empty(0, dtype=np.int64)]
    for p, separator in zip(tree.parents[1:], tree.separators[1:], strict=True):
        parent.append((int(first[p]), int(first[p + 1]), tree.size(separator)))
        above.append(tree.cells_of(tree.cliques[p], separator))
    cell, target, start = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)], 0
    for margin in margins:
        place = tree.clique_of(margin)
        cell.append(first[place] + np.arange(sizes[place]))
        target.append(start + tree.cells_of(tree.cliques[place], margin))
        start += tree.size(margin)
    return Cells(
        first,
        np.array(parent, dtype=np.int64),
        np.concatenate(group),
        np.append(0, np.cumsum([a.size for a in above])),
        np.concatenate(above),
        np.concatenate(cell),
        np.concatenate(target),
    )


@jit
def _of_separator(joint, i, cells):
    """Chances that a row is in a cell of a clique before i, and has a value of i's separator."""
    begin, end, values = cells.parent[i]
    found = np.zeros((cells.first[i], values))
    for b in range(cells.first[i]):
        for k in range(end - begin):
            found[b, cells.above[cells.above_first[i] + k]] += joint[b, begin + k]
    return found


@jit
def _values(joint, i, cells):
    """Chances of the values of the separator of i."""
    begin, end, values = cells.parent[i]
    found = np.zeros(values)
    if begin == end:
        found[0] = 1.0
    for k in range(end - begin):
        found[cells.above[cells.above_first[i] + k]] += joint[begin + k, begin + k]
    return found


@jit
def joint_chances(rows, cells):
    """Return J, the chances that a row is in two cells of cliques."""
    joint = np.zeros((rows.size, rows.size))
    for i in range(cells.first.size - 1):
        found, values = _of_separator(joint, i, cells), _values(joint, i, cells)
        for c in range(cells.first[i], cells.first[i + 1]):
            g = cells.group[c]
            joint[c, c] = rows[c] * values[g]
            for b in range(cells.first[i]):
                joint[b, c] = joint[c, b] = rows[c] * found[b, g]
    return joint


@jit
def mean_covariance(joint, cells, count):
    """Return the mean and the covariance of the indicators of `count` released cells."""
    mean, half = np.zeros(count), np.zeros((count, joint.shape[0]))
    covariance = np.zeros((count, count))
    for k in range(cells.cell.size):
        mean[cells.target[k]] += joint[cells.cell[k], cells.cell[k]]
        half[cells.target[k]] += joint[cells.cell[k]]
    for t in range(count):
        for k in range(cells.cell.size):
            covariance[t, cells.target[k]] += half[t, cells.cell[k]]
    return mean, covariance - np.outer(mean, mean)


@jit
def pull_back_joint(joint, rows, by_joint, cells):
    """Return the gradient in the rows, given that in J as a matrix; it is used up."""
    gradient = np.zeros(rows.size)
    for i in range(cells.first.size - 2, -1, -1):
        found, values = _of_separator(joint, i, cells), _values(joint, i, cells)
        by_found, by_values = np.zeros(found.shape), np.zeros(values.size)
        for c in range(cells.first[i], cells.first[i + 1]):
            g = cells.group[c]
            gradient[c] += by_joint[c, c] * values[g]
            by_values[g] += by_joint[c, c] * rows[c]
            for b in range(cells.first[i]):
                slope = by_joint[b, c] + by_joint[c, b]
                gradient[c] += slope * found[b, g]
                by_found[b, g] += slope * rows[c]
        begin, end, _ = cells.parent[i]
        for k in range(end - begin):
            g = cells.above[cells.above_first[i] + k]
            by_joint[begin + k, begin + k] += by_values[g]
            for b in range(cells.first[i]):  # within the parent all but the diagonal is zero
                if b == begin + k or not begin <= b < end:
                    by_joint[b, begin + k] += by_found[b, g]
    return gradient


@jit
def log_normal(rows, z, n, variances, cells):
    """Log density of noisy margins, with its gradient in rows, z and variances.

    Parameters
    ----------
    rows : vector
        Conditional law of the cells of every clique given its separator.
    z, variances : vectors
        Released cells, and the variances of their noise.
    n : float
        Number of rows.
    cells : Cells

    Returns
    -------
    float, vector, vector, vector
        The gradient in the rows is that of the density as a function of any numbers: where they
        sum to one, differences within a group count.
    """
    joint = joint_chances(rows, cells)
    mean, covariance = mean_covariance(joint, cells, z.size)
    total = n * covariance + np.diag(variances)
    if not np.isfinite(total).all():
        return -math.inf, np.zeros(rows.size), np.zeros(z.size), np.zeros(z.size)
    root = np.zeros_like(total)
    try:
        root[:] = np.linalg.cholesky(total)
    except Exception:  # numba knows no other; the noise is too small to be told beside n
        return -math.inf, np.zeros(rows.size), np.zeros(z.size), np.zeros(z.size)
    inverse = np.linalg.inv(total)
    residual = z - n * mean
    a = inverse @ residual
    log_det = 2.0 * np.log(np.diag(root)).sum()
    logp = -0.5 * (residual @ a + log_det + z.size * math.log(2.0 * math.pi))
    by_total = 0.5 * (np.outer(a, a) - inverse)
    by_mean = n * (a - 2.0 * (by_total @ mean))
    half, by_joint = np.zeros((z.size, rows.size)), np.zeros((rows.size, rows.size))
    for t in range(z.size):
        for k in range(cells.cell.size):
            half[t, cells.cell[k]] += n * by_total[t, cells.target[k]]
    for k in range(cells.cell.size):
        by_joint[cells.cell[k]] += half[cells.target[k]]
        by_joint[cells.cell[k], cells.cell[k]] += by_mean[cells.target[k]]
    return logp, pull_back_joint(joint, rows, by_joint, cells), -a, np.diag(by_total).copy()
