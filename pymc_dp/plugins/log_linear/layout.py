"""Where the tables of a decomposable model lie in one vector; a start, and draws of the weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from pymc_dp.plugins.log_linear.cliques import Columns, JunctionTree

_MOST_TOGETHER = 4  # columns whose levels change in one move
_UNIFORM = 0.2  # part of the law of the rows that is uniform
_POWER = 0.1  # of the probabilities in that law: small cells need as many moves as large ones
_FIT_ROUNDS = 20
_LEAST = 0.5  # count that stands for a noisy one below it


class Layout(NamedTuple):
    """Where things are: tables of the cliques, then of the separators, then released margins.

    Attributes
    ----------
    first : first cell of every table; one more entry ends the last. A table of no columns has one
        cell, the number of rows.
    sign : of every cell, 1 in a clique, -1 in a separator, 0 in a released margin.
    stride : matrix (tables, columns), by how much a cell's number rises with the column's level.
    levels : number of levels of every column.
    holders_first, holders : the tables that have column c are holders[holders_first[c]], ...; where
        the number of rows varies, all tables follow, as those of one more column.
    targets_first, targets : the separators' and margins' cells that have clique cell i are
        targets[targets_first[i]], ...
    set_law, set_size, sets : sets of columns that are in one clique, rows of a matrix padded by -1;
        how many columns each has, and sums of their chances, by the cells of the cliques with it.
    separator : as `stride`, of the separator above every clique.
    group_first : cells of a clique with the same values on a separator are a group; the first group
        of every clique below its separator, then of every clique above one.
    cells_first, cells : the cells of group g are cells[cells_first[g]], ..., without `first`.
    value_first, value : cell i of those cliques is in the group value[value_first[side] + i].
    gates_first, gates : for every clique the rows of a matrix: itself among these sides, its
        neighbour among them, and the neighbour.
    """

    first: np.ndarray
    sign: np.ndarray
    stride: np.ndarray
    levels: np.ndarray
    holders_first: np.ndarray
    holders: np.ndarray
    targets_first: np.ndarray
    targets: np.ndarray
    set_law: np.ndarray
    set_size: np.ndarray
    sets: np.ndarray
    separator: np.ndarray
    group_first: np.ndarray
    cells_first: np.ndarray
    cells: np.ndarray
    value_first: np.ndarray
    value: np.ndarray
    gates_first: np.ndarray
    gates: np.ndarray


def make_layout(tree: JunctionTree, margins: Sequence[Columns], varies: bool = False) -> Layout:
    """Lay out the tables of a tree and of released margins, one table after the other.

    `varies` says whether the number of rows does: it is then the cell of the empty separators, that
    above the first clique too, and of a margin of no columns.
    """
    columns = list(tree.levels)
    separators = [s for s in tree.separators if s or varies]
    tables = [*tree.cliques, *separators, *margins]
    sizes = [tree.size(t) for t in tables]
    first = np.append(0, np.cumsum(sizes))
    signs = [1] * len(tree.cliques) + [-1] * len(separators) + [0] * len(margins)
    stride = np.array([_strides(tree, t) for t in tables])
    holders = [np.flatnonzero([c in t for t in tables]) for c in columns]
    holders += [np.arange(len(tables))] if varies else []
    met: list[tuple[Any, Any]] = []
    for i in range(len(tree.cliques), len(tables)):
        clique = tree.clique_of(tables[i])
        cells = tree.cells_of(tree.cliques[clique], tables[i])
        met += [(first[clique] + j, first[i] + c) for j, c in enumerate(cells)]
    pairs = np.array(sorted(met), dtype=np.int64).reshape(-1, 2)
    most = min(_MOST_TOGETHER, max(map(len, tree.cliques)))
    chances: dict[tuple[int, ...], int] = {}
    for t in tree.cliques:
        for k in range(1, most + 1):
            for s in combinations([columns.index(c) for c in t], k):
                chances[s] = chances.get(s, 0) + tree.size(t)
    sets, held = [*chances], np.array([*chances.values()])
    below = [*zip(tree.cliques, tree.separators, strict=True)]
    above = [(tree.cliques[p], s) for p, s in zip(tree.parents, tree.separators, strict=True)]
    values = [tree.cells_of(*side) for side in below + above]
    lengths = [np.bincount(v) for v in values]
    ways: list[tuple[int, int, int, int]] = []
    for i, (parent, separator) in enumerate(zip(tree.parents, tree.separators, strict=True)):
        if separator:
            other = len(tree.cliques) + i
            ways += [(i, i, other, parent), (parent, other, i, i)]
    gates = np.array(sorted(ways), dtype=np.int64).reshape(-1, 4)
    numbers = np.arange(len(tree.cliques) + 1)
    return Layout(
        first,
        np.repeat(signs, sizes),
        stride,
        np.array([*tree.levels.values()]),
        np.append(0, np.cumsum([h.size for h in holders])),
        np.concatenate(holders),
        np.searchsorted(pairs[:, 0], np.arange(first[len(tree.cliques)] + 1)),
        pairs[:, 1].copy(),
        np.cumsum(held / held.sum()),
        np.array([len(s) for s in sets]),
        np.array([[*s, *[-1] * (most - len(s))] for s in sets]),
        np.array([_strides(tree, s) for s in tree.separators]),
        np.append(0, np.cumsum([v.size for v in lengths])),
        np.append(0, np.cumsum(np.concatenate(lengths))),
        np.concatenate([np.argsort(v, kind="stable") for v in values]),
        np.append(0, np.cumsum([v.size for v in values])),
        np.concatenate(values),
        np.searchsorted(gates[:, 0], numbers),
        gates[:, 1:].copy(),
    )


def _strides(tree: JunctionTree, table: Columns) -> list[int]:
    steps = {c: tree.size(table[i + 1 :]) for i, c in enumerate(table)}
    return [steps.get(c, 0) for c in tree.levels]


def concentrations(layout: Layout, total: float) -> np.ndarray:
    """Return the weights of a hyper-Dirichlet law: each table shares the same total evenly."""
    sizes = np.diff(layout.first)
    return np.repeat(total / sizes, sizes)


# --- A start, and draws of the weights ------------------------------------------------------------


def fit_margins(tree: JunctionTree, margins: dict[Columns, np.ndarray]) -> list[np.ndarray]:
    """Return probabilities of the cliques' cells, near noisy margins, that agree on separators."""
    fitted: list[np.ndarray] = []
    for i, clique in enumerate(tree.cliques):
        inside = [
            (tree.cells_of(clique, m), np.maximum(np.ravel(z), _LEAST))
            for m, z in margins.items()
            if set(m) <= set(clique)
        ]
        p = np.full(tree.size(clique), 1.0 / tree.size(clique))
        for _ in range(_FIT_ROUNDS):
            for cells, z in inside:
                p *= (z / z.sum() / np.bincount(cells, p))[cells]
        fitted.append(_joint(tree, i, p, fitted))
    return fitted


def _joint(tree: JunctionTree, i: int, p: np.ndarray, above: list[np.ndarray]) -> np.ndarray:
    """Scale the table of a clique so that it agrees with that of its parent."""
    if not (separator := tree.separators[i]):
        return p / p.sum()
    parent = tree.parents[i]
    groups = tree.cells_of(tree.cliques[i], separator)
    of_parent = tree.cells_of(tree.cliques[parent], separator)
    return p * (np.bincount(of_parent, above[parent]) / np.bincount(groups, p))[groups]


def joint(tree: JunctionTree, conditional: np.ndarray) -> list[np.ndarray]:
    """Return the probabilities of the cliques' cells, from those given their separators."""
    found: list[np.ndarray] = []
    ends = np.cumsum([tree.size(c) for c in tree.cliques])
    for i, p in enumerate(np.split(conditional, ends[:-1])):
        found.append(_joint(tree, i, p, found))
    return found


def draw_tables(rng, tree: JunctionTree, probabilities: list[np.ndarray], n: int) -> np.ndarray:
    """Draw the tables of n rows of these probabilities, along the tree."""
    tables: list[np.ndarray] = []
    for i, clique in enumerate(tree.cliques):
        groups = tree.cells_of(clique, tree.separators[i])
        totals = np.array([n])
        if tree.separators[i]:
            of_parent = tree.cells_of(tree.cliques[tree.parents[i]], tree.separators[i])
            totals = np.bincount(of_parent, tables[tree.parents[i]]).astype(np.int64)
        table = np.zeros(tree.size(clique), dtype=np.int64)
        for s, total in enumerate(totals):
            if total == 0:  # its probabilities may be zero, too
                continue
            p = probabilities[i][groups == s]
            table[groups == s] = rng.multinomial(total, p / p.sum())
        tables.append(table)
    return np.concatenate(tables)


def draw_rows(
    rng, tree: JunctionTree, probabilities: list[np.ndarray], size: int
) -> dict[str, np.ndarray]:
    """Draw rows of these probabilities, along the tree; return the levels of every column."""
    rows: dict[str, np.ndarray] = {}
    for clique, separator, p in zip(tree.cliques, tree.separators, probabilities, strict=True):
        groups = tree.cells_of(clique, separator)
        order, ends = np.argsort(groups, kind="stable"), np.cumsum(np.bincount(groups))
        sums = np.append(0.0, np.cumsum(p[order]))
        group = np.zeros(size, dtype=np.int64)
        for c in separator:
            group = group * tree.levels[c] + rows[c]
        low, high = sums[np.append(0, ends[:-1])][group], sums[ends][group]
        place = np.searchsorted(sums[1:], low + (high - low) * rng.random(size), side="right")
        cells = order[np.minimum(place, ends[group] - 1)]  # a sum may be rounded up to the end
        for c, values in zip(clique, np.unravel_index(cells, tree.shape(clique)), strict=True):
            rows[c] = values.astype(np.int16)
    return rows


def draw_weights(
    rng, tree: JunctionTree, tables: np.ndarray, weights: np.ndarray
) -> list[np.ndarray]:
    """Draw the probabilities of the cliques' cells given the tables: rows are Dirichlet.

    `tables` and `weights` have the cliques' cells first; what follows is not used.
    """
    drawn: list[np.ndarray] = []
    start = 0
    for i, clique in enumerate(tree.cliques):
        groups = tree.cells_of(clique, tree.separators[i])
        shape = (tables[start : start + groups.size] + weights[start : start + groups.size]) * 1.0
        start += groups.size
        # Gamma(a) is Gamma(a + 1) u^(1 / a): its logarithm exists for small shapes, too.
        logs = np.log(rng.standard_gamma(shape + 1.0)) + np.log1p(-rng.random(shape.size)) / shape
        top = np.full(groups.max() + 1, -math.inf)
        np.maximum.at(top, groups, logs)
        drawn.append(_joint(tree, i, np.exp(logs - top[groups]), drawn))
    return drawn


def row_law(layout: Layout, probabilities: list[np.ndarray]) -> np.ndarray:
    """Return the law that rows are drawn from: sums of conditionals, in the order of `cells`."""
    sums = []
    for q, p in enumerate(probabilities):
        for g in range(layout.group_first[q], layout.group_first[q + 1]):
            cells = layout.cells[layout.cells_first[g] : layout.cells_first[g + 1]]
            share = p[cells] ** _POWER
            share = (1.0 - _UNIFORM) * share / share.sum() + _UNIFORM / cells.size
            sums.append(np.cumsum(share))
    return np.concatenate(sums)
