"""The tables of a log-linear model's cliques as a random variable, and margins of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import prod

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.distribution import _support_point
from pymc.logprob.abstract import _logprob
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.values import known_value
from pymc_dp.plugins.log_linear.cliques import Columns, JunctionTree, tree_of
from pymc_dp.plugins.log_linear.layout import (
    concentrations,
    draw_tables,
    draw_weights,
    make_layout,
)


class CliqueTablesRV(RandomVariable):
    """Counts of the cells of all cliques, one table after the other, of n rows.

    The cell probabilities are integrated out of a hyper-Dirichlet law. Inputs are n and the total
    concentration.
    """

    name = "clique_tables"
    signature = "(),()->(t)"
    dtype = "int64"
    _print_name = ("LogLinear", "\\operatorname{LogLinear}")
    __props__ = (*RandomVariable.__props__, "key")

    def __init__(self, key: tuple, **kwargs):
        self.key, self.tree = key, tree_of(key)
        self.layout = make_layout(self.tree, [])
        super().__init__(**kwargs)

    def __str__(self):
        """Name it without its tree."""
        return self.name

    def _supp_shape_from_params(self, dist_params, param_shapes=None):
        return (pt.constant(sum(map(self.tree.size, self.tree.cliques)), dtype="int64"),)

    def rng_fn(self, rng, n, total, size):
        """Draw tables, each of probabilities of its own."""
        shape = np.broadcast_shapes(np.shape(n), np.shape(total)) if size is None else tuple(size)
        ns, totals = (np.broadcast_to(x, shape).ravel() for x in (n, total))
        drawn = []
        for rows, concentration in zip(ns, totals, strict=True):
            weights = concentrations(self.layout, concentration)
            nothing = np.zeros(weights.size, dtype=np.int64)
            probabilities = draw_weights(rng, self.tree, nothing, weights)
            drawn.append(draw_tables(rng, self.tree, probabilities, int(rows)))
        return np.reshape(drawn, (*shape, -1)).astype("int64")


@_logprob.register(CliqueTablesRV)
def _tables_logprob(op, values, rng, size, n, total, **kwargs):
    def cells(counts, columns):
        a = total / op.tree.size(columns)
        return pt.gammaln(counts + a) - pt.gammaln(a) - pt.gammaln(counts + 1.0)

    return log_counts(op.tree, values[0], n, cells)


def log_counts(tree: JunctionTree, value, n, cells: Callable) -> TensorVariable:
    """Log of the product of w over the cliques' cells, divided by that over the separators'.

    `cells(counts, columns)` are the logs of w of a table. An empty separator has one cell, n.
    """
    first = np.append(0, np.cumsum([tree.size(c) for c in tree.cliques]))
    tables = [value[a:b] for a, b in pairwise(first)]
    possible = pt.all(value >= 0) & pt.eq(pt.sum(tables[0]), n)
    logp = pt.zeros(())
    for i, (parent, separator) in enumerate(zip(tree.parents, tree.separators, strict=True)):
        logp = logp + pt.sum(cells(tables[i], tree.cliques[i]))
        if not separator:
            logp = logp - cells(n, ())
            possible &= pt.eq(pt.sum(tables[i]), n)
            continue
        own = _summed(tree, tables[i], tree.cliques[i], separator)
        above = _summed(tree, tables[parent], tree.cliques[parent], separator)
        logp, possible = logp - pt.sum(cells(own, separator)), possible & pt.all(pt.eq(own, above))
    return pt.switch(possible, logp, -np.inf)


def _summed(tree: JunctionTree, table, clique: Columns, separator: Columns) -> TensorVariable:
    gone = tuple(i for i, c in enumerate(clique) if c not in separator)
    return table.reshape(tree.shape(clique)).sum(axis=gone).ravel()


@_support_point.register(CliqueTablesRV)
def _tables_support_point(op, rv, rng, size, n, total):
    """Return tables with all rows in the first cell of each: they agree."""
    firsts = op.layout.first[: len(op.tree.cliques)]
    return pt.set_subtensor(pt.zeros(rv.shape, dtype="int64")[..., firsts], n[..., None])


class Margin(Op):
    """The counts of some columns, from the tables of all cliques."""

    __props__ = ("key", "columns")

    def __init__(self, key: tuple, columns: Columns):
        tree = tree_of(key)
        self.key, self.columns, self.shape = key, columns, tree.shape(columns)
        place = tree.clique_of(columns)
        clique = tree.cliques[place]
        self._first = sum(tree.size(c) for c in tree.cliques[:place])
        self._of = tree.shape(clique)
        kept = [c for c in clique if c in columns]
        self._gone = tuple(i - len(clique) for i, c in enumerate(clique) if c not in columns)
        self._order = [kept.index(c) - len(kept) for c in columns]

    def __str__(self):
        """Name it by its columns."""
        return f"Margin({', '.join(self.columns)})"

    def make_node(self, tables):
        """Apply to the tables."""
        return Apply(self, [tables], [pt.tensor(dtype="int64", shape=self.shape)])

    def of(self, tables: np.ndarray) -> np.ndarray:
        """Sum counts, or probabilities, of cells; leading axes are draws."""
        own = tables[..., self._first : self._first + prod(self._of)]
        summed = own.reshape(*own.shape[:-1], *self._of).sum(axis=self._gone)
        return summed.transpose(*range(summed.ndim - len(self._order)), *self._order)

    def perform(self, node, inputs, output_storage):
        """Compute the counts."""
        output_storage[0][0] = np.ascontiguousarray(self.of(inputs[0]))

    def infer_shape(self, node, shapes):
        """Return the numbers of levels."""
        return [tuple(pt.constant(n) for n in self.shape)]

    def connection_pattern(self, node):
        """Disconnect whole numbers."""
        return [[False]]

    def pullback(self, inputs, outputs, cotangents):
        """Return no gradient."""
        return [disconnected_type()]


def number_of_rows(tables: TensorVariable) -> TensorVariable | None:
    """Return the variable that is the number of rows of a `LogLinear`; None where it is public."""
    n, _ = tables.owner.op.dist_params(tables.owner)
    return n if known_value(n) is None else None


def cell_probabilities(name: str) -> str:
    """Return the name of the probabilities of the cells of tables, where they are variables."""
    return f"{name}_probabilities"
