"""The junction tree of a log-linear model of categorical columns.

Terms, sets of columns, make a graph: two columns are neighbours where a term has both. Its maximal
cliques, after edges are filled in where the graph is not chordal, form a tree in which the columns
that two cliques share are in all cliques between them. A cell of a table has a number: the table's
columns are in its order, and the last one changes fastest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations, product
from math import prod
from typing import NamedTuple

import numpy as np

MOST_CELLS = 10_000  # of one clique

Columns = tuple[str, ...]


class JunctionTree(NamedTuple):
    """Cliques in an order in which parents come first.

    Attributes
    ----------
    levels : number of levels of every column.
    cliques : columns of every clique, in the order of `levels`.
    parents : the number of every clique's parent, -1 for the first.
    separators : columns that a clique shares with its parent; none where parts are not connected.
    """

    levels: dict[str, int]
    cliques: list[Columns]
    parents: list[int]
    separators: list[Columns]

    @property
    def key(self) -> tuple:
        """What it is made of, to be hashed; see `tree_of`."""
        cliques, separators = tuple(self.cliques), tuple(self.separators)
        return tuple(self.levels.items()), cliques, tuple(self.parents), separators

    def shape(self, columns: Columns) -> tuple[int, ...]:
        """Return the shape of a table."""
        return tuple(self.levels[c] for c in columns)

    def size(self, columns: Columns) -> int:
        """Return the number of cells of a table."""
        return prod(self.shape(columns))

    def clique_of(self, margin: Columns) -> int:
        """Return the number of the first clique that holds a margin."""
        for i, clique in enumerate(self.cliques):
            if set(margin) <= set(clique):
                return i
        raise ValueError(f"no clique of the model has the columns {', '.join(margin)}")

    def cells_of(self, clique: Columns, margin: Columns) -> np.ndarray:
        """Return the cell of the margin that every cell of a clique is in."""
        values = dict(zip(clique, np.indices(self.shape(clique)), strict=True))
        cells = np.zeros(self.shape(clique), dtype=np.int64)
        for column in margin:
            cells = cells * self.levels[column] + values[column]
        return cells.ravel()


def tree_of(key: tuple) -> JunctionTree:
    """Return the tree with a `key`."""
    levels, *parts = key
    return JunctionTree(dict(levels), *map(list, parts))


def junction_tree(levels: Mapping[str, int], terms: Iterable[Columns]) -> JunctionTree:
    """Return the tree of the model that has these terms; a column in none is a clique alone.

    Parameters
    ----------
    levels : number of levels of every column.
    terms : the columns of every interaction of the model; margins that are to be in one clique.

    Raises
    ------
    ValueError
        A term has an unknown column, or a clique more than `MOST_CELLS` cells.
    """
    levels = dict(levels)
    cliques = _maximal_cliques(levels, _neighbours(levels, terms))
    for clique in cliques:
        if (cells := prod(levels[c] for c in clique)) > MOST_CELLS:
            raise ValueError(
                f"the clique {', '.join(clique)} has {cells:,} cells, more than {MOST_CELLS:,}: "
                f"leave out margins that connect its columns"
            )
    order, parents = [0], [-1]
    separators: list[Columns] = [()]
    numbers = range(len(cliques))
    shared = {(i, j): tuple(c for c in cliques[j] if c in cliques[i])
              for i, j in product(numbers, repeat=2)}  # fmt: skip
    while len(order) < len(cliques):  # the tree with the largest separators is a junction tree
        pairs = ((i, j) for i in order for j in numbers if j not in order)
        i, j = max(pairs, key=lambda pair: len(shared[pair]))
        parents.append(order.index(i))
        separators.append(shared[i, j])
        order.append(j)
    return JunctionTree(levels, [cliques[i] for i in order], parents, separators)


def _neighbours(levels: dict[str, int], terms: Iterable[Columns]) -> dict[str, set[str]]:
    neighbours: dict[str, set[str]] = {c: set() for c in levels}
    for term in terms:
        if unknown := [c for c in term if c not in levels]:
            raise ValueError(f"unknown columns {', '.join(map(str, unknown))}")
        for a, b in combinations(term, 2):
            if a == b:
                raise ValueError(f"a term has the column {a} twice")
            neighbours[a].add(b)
            neighbours[b].add(a)
    return neighbours


def _maximal_cliques(levels: dict[str, int], neighbours: dict[str, set[str]]) -> list[Columns]:
    """Eliminate columns one by one, the one that fills in the fewest edges first.

    Among equals, that of the smallest clique goes first.
    """
    left = {c: set(n) for c, n in neighbours.items()}

    def cost(column: str) -> tuple[int, int]:
        missing = sum(b not in left[a] for a, b in combinations(left[column], 2))
        return missing, prod(levels[c] for c in left[column]) * levels[column]

    found: list[set[str]] = []
    while left:
        column = min(left, key=cost)
        around = left.pop(column)
        for a in around:
            left[a] |= around
            left[a] -= {a, column}
        clique = around | {column}
        if not any(clique <= other for other in found):
            found.append(clique)
    return [tuple(c for c in levels if c in clique) for clique in found]
