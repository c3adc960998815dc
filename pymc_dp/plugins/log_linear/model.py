"""A log-linear model of categorical columns, as a variable of a PyMC model: its cliques' tables."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from pymc.distributions.distribution import _support_point, support_point
from pymc.logprob.abstract import _logprob
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.values import known_value
from pymc_dp.ladder.predict import NEW_ROWS
from pymc_dp.plugins.log_linear.cliques import Columns, JunctionTree, junction_tree, tree_of
from pymc_dp.plugins.log_linear.layout import (
    concentrations,
    draw_rows,
    draw_tables,
    draw_weights,
    make_layout,
)

if TYPE_CHECKING:
    from xarray import DataTree


_log = logging.getLogger("pymc.dp")


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
    [value] = values
    tree, first = op.tree, op.layout.first
    tables = [value[a:b] for a, b in pairwise(first[: len(tree.cliques) + 1])]
    possible = pt.all(value >= 0) & pt.eq(pt.sum(tables[0]), n)

    def cells(counts, columns):
        a = total / tree.size(columns)
        return pt.sum(pt.gammaln(counts + a) - pt.gammaln(a) - pt.gammaln(counts + 1.0))

    whole = pt.gammaln(n + 1.0) + pt.gammaln(total) - pt.gammaln(n + total)
    logp = pt.zeros(())
    for i, (parent, separator) in enumerate(zip(tree.parents, tree.separators, strict=True)):
        logp = logp + cells(tables[i], tree.cliques[i])
        if not separator:
            logp = logp + whole
            possible &= pt.eq(pt.sum(tables[i]), n)
            continue
        own = _summed(tree, tables[i], tree.cliques[i], separator)
        above = _summed(tree, tables[parent], tree.cliques[parent], separator)
        logp, possible = logp - cells(own, separator), possible & pt.all(pt.eq(own, above))
    return pt.switch(possible, logp, -np.inf)


def _summed(tree: JunctionTree, table, clique: Columns, separator: Columns) -> TensorVariable:
    gone = tuple(i for i, c in enumerate(clique) if c not in separator)
    return table.reshape(tree.shape(clique)).sum(axis=gone).ravel()


@_support_point.register(CliqueTablesRV)
def _tables_support_point(op, rv, rng, size, n, total):
    """Return tables with all rows in the first cell of each: they agree."""
    firsts = op.layout.first[: len(op.tree.cliques)]
    return pt.set_subtensor(pt.zeros(rv.shape, dtype="int64")[..., firsts], n[..., None])


def _labels(name: str, column: str, levels: Any) -> Sequence[Any]:
    if isinstance(levels, int | np.integer):
        levels = range(levels)
    if isinstance(levels, str) or not len(levels) or len({*levels}) < len(levels):
        raise ValueError(
            f"{name!r}: the levels of {column!r} are a number of at least 1, or different labels; "
            f"got {levels!r}"
        )
    return levels if isinstance(levels, range) else list(levels)


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


class LogLinear:
    r"""The rows of a table of categorical columns, with a decomposable log-linear law.

    Rows are independent. Columns that no term connects are independent given those between them.
    Each clique of the graph of the terms has a table of counts, :math:`n_C`, and tables agree on
    what cliques share, their separators S. With :math:`a_C = A / |C|` for the cells of a clique and
    a hyper-Dirichlet law of the cell probabilities [1]_, which is integrated out,

    .. math::

        p(n_C) = \frac{n!\, \Gamma(A)}{\Gamma(n + A)}
            \prod_C \prod_c \frac{\Gamma(n_C(c) + a_C)}{\Gamma(a_C)\, n_C(c)!} \Big/
            \prod_S \prod_s \frac{\Gamma(n_S(s) + a_S)}{\Gamma(a_S)\, n_S(s)!} .

    The table of all columns never appears. `probabilities` draws those of a margin's cells, and
    `predict_records` files of rows.

    Parameters
    ----------
    name : str
        Name of the variable in the model: the counts of all cliques' cells, one after the other.
    levels : dict of str to int, or to a sequence of labels
        The columns, and how many levels each has, or which.
    terms : sequence of tuple of str
        Columns that interact, such as ``("age", "income")``. Where their graph has a cycle, columns
        are joined until it is triangulated: three terms that close a triangle are one clique.
    n : int, or a variable of the model
        Number of rows, where it is public. Else a variable such as ``pm.Poisson("n", 50_000)``,
        whose law has numbers as parameters, random ones too. It may be released itself; nothing
        else may depend on it. Where noise hides one row more or less, as in OpenDP, n is not
        public.
    concentration : float, optional
        A, the total concentration of the table: by default the number of cells of the largest
        clique, so that no cell has less than 1. It counts as A rows that are spread evenly: a
        column of two levels has a Beta(A / 2, A / 2) prior. A cell with less than a half mixes
        slowly.

    Raises
    ------
    ValueError
        A term with an unknown column, a clique of more than 10,000 cells, n that is neither a whole
        number of at least 0 nor a variable with whole values, a concentration that is not positive.

    References
    ----------
    .. [1] A. P. Dawid, S. L. Lauritzen (1993). Hyper Markov laws in the statistical analysis of
       decomposable graphical models. Annals of Statistics 21(3), 1272-1317.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_dp as dp
    >>> with pm.Model() as model:
    ...     rows = dp.LogLinear(
    ...         "rows", {"age": 3, "job": 2, "income": 2}, [("age", "job"), ("job", "income")], 90
    ...     )
    ...     noise = dp.GaussianMechanism(4.0)
    ...     jobs = [[20.0, 11.0], [30.0, 8.0], [5.0, 14.0]]
    ...     z = dp.PrivateObservation("z", rows.margin("age", "job"), noise, observed=jobs)
    >>> rows.margin("income").type.shape
    (2,)
    >>> rows.tree.cliques  # in this order, the last column fastest
    [('job', 'income'), ('age', 'job')]

    The number of rows is released, too:

    >>> with pm.Model() as model:
    ...     n = pm.DiscreteUniform("n", 0, 1_000)
    ...     rows = dp.LogLinear("rows", {"job": 2, "income": 2}, [("job", "income")], n)
    ...     noise = dp.GeometricMechanism(2.0)
    ...     n_z = dp.PrivateObservation("n_z", n, noise, observed=92)
    ...     z = dp.PrivateObservation("z", rows.margin("job"), noise, observed=[51, 38])
    """

    def __init__(
        self,
        name: str,
        levels: Mapping[str, int | Sequence[Any]],
        terms: Iterable[Sequence[str]],
        n: int | TensorVariable,
        *,
        concentration: float | None = None,
    ):
        if not levels:
            raise ValueError(f"{name!r}: levels= has no columns")
        self.labels = {c: _labels(name, c, x) for c, x in levels.items()}
        counts = {c: len(labels) for c, labels in self.labels.items()}
        terms = list(terms)
        if any(isinstance(term, str) for term in terms):
            raise ValueError(
                f'{name!r}: terms={terms!r} is no list of tuples of columns: write [("a", "b")]'
            )
        try:
            self.tree = junction_tree(counts, [tuple(t) for t in terms])
        except ValueError as error:
            raise ValueError(f"{name!r}: {error}") from None
        model = pm.modelcontext(None)
        near: Any
        if (
            isinstance(n, TensorVariable)
            and n in model.free_RVs
            and n.type.ndim == 0
            and n.dtype.startswith("int")
        ):
            near = known_value(support_point(n))  # None where the parameters are random
        elif isinstance(n, int | np.integer) and n >= 0:
            near, n = int(n), pt.constant(int(n), dtype="int64")
        else:
            raise ValueError(
                f"{name!r}: n={n!r} is no whole number of rows: write an int, or a variable of the "
                f"model that is one, pm.Poisson('n', ...) say, without observed="
            )
        total = concentration
        if total is None:
            total = max(map(self.tree.size, self.tree.cliques))
        if not (isinstance(total, int | float | np.number) and np.isfinite(total) and total > 0):
            raise ValueError(f"{name!r}: concentration={total!r} is no finite number > 0")
        if near is not None and total > 0.1 * near > 0:
            _log.warning(
                "%r: the prior counts as much as %g rows beside n=%s, and draws each column to "
                "equal shares. State concentration=, or leave columns out of the largest clique",
                name, total, near,
            )  # fmt: skip
        rv = CliqueTablesRV(self.tree.key)(
            n, pt.constant(float(total), dtype="float64"),
            rng=pt.random.shared_rng(seed=None), return_next_rng=True,
        )[1]  # fmt: skip
        rv.tag.dp_labels = self.labels  # for `dp.predict_records`; copies of the model have it, too
        self.rv = model.register_rv(rv, name)
        if (varying := number_of_rows(rv)) is not None:
            varying.tag.dp_step = (
                "CliqueGibbs"  # draws it along; its releases may have been read before
            )

    def margin(self, *columns: str) -> TensorVariable:
        """Return the counts of some columns of one clique, an axis for each.

        Raises
        ------
        ValueError
            Columns that are in no clique together.
        """
        return self._margin(columns)(self.rv)

    def _margin(self, columns: Columns) -> Margin:
        unknown = [c for c in columns if c not in self.tree.levels]
        together = any({*columns} <= {*clique} for clique in self.tree.cliques)
        if unknown or not together or not columns or len({*columns}) < len(columns):
            raise ValueError(
                f"{self.rv.name!r}: {', '.join(map(repr, columns)) or 'nothing'} is no margin of a "
                f"clique. Cliques are {'; '.join(', '.join(c) for c in self.tree.cliques)}: add a "
                f"term with these columns"
            )
        return Margin(self.tree.key, columns)

    def probabilities(self, idata: DataTree, *columns: str, random_seed=None) -> xr.DataArray:
        """Draw the probabilities of the cells of a margin, one table for each posterior draw.

        The same seed draws the same probabilities of all columns: margins of one seed agree.

        Parameters
        ----------
        idata : DataTree
            A result with this variable in its posterior, or with its probabilities, as
            ``dp.sample(approximate="clt")`` returns it.
        *columns : str
            Columns of one clique.
        random_seed : optional
            Seed or generator.

        Raises
        ------
        ValueError
            Columns that are in no clique together, or a result without this variable.
        """
        margin, rng = self._margin(columns), np.random.default_rng(random_seed)
        posterior = idata["posterior"].to_dataset()
        drawn = [np.concatenate(p) for p in _probabilities(self.rv, posterior, rng)]
        shape = posterior.sizes["chain"], posterior.sizes["draw"], -1
        names = ("chain", "draw", *columns)
        cells = margin.of(np.reshape(drawn, shape))
        return xr.DataArray(cells, {c: self.labels[c] for c in columns}, names)


def _probabilities(
    rv: TensorVariable, posterior: xr.Dataset, rng: np.random.Generator
) -> Iterator[list[np.ndarray]]:
    """Draw the probabilities of all cliques' cells, for one posterior draw after the other."""
    op, given = rv.owner.op, cell_probabilities(str(rv.name))
    if rv.name not in posterior and given in posterior:  # the tables were integrated out
        first = op.layout.first[1 : len(op.tree.cliques)]
        for cells in posterior[given].stack(one=("chain", "draw")).to_numpy().T:
            yield np.split(cells, first)
        return
    if rv.name not in posterior:
        raise ValueError(f"{rv.name!r}: the result has no draws of it; was var_names= given?")
    tables = posterior[rv.name].to_numpy()
    _, total = map(known_value, op.dist_params(rv.owner))
    weights = concentrations(op.layout, float(np.asarray(total)))
    for table in tables.reshape(-1, tables.shape[-1]):
        yield draw_weights(rng, op.tree, table, weights)


@NEW_ROWS.register(CliqueTablesRV)
def new_rows(
    rv: TensorVariable, posterior: xr.Dataset, size: int | None, rng: np.random.Generator
) -> xr.Dataset:
    """Draw rows from the population of a `LogLinear`, an array (chain, draw, row) a column."""
    op, dims = rv.owner.op, (posterior.sizes["chain"], posterior.sizes["draw"])
    if size is None and (varying := number_of_rows(rv)) is not None:
        raise ValueError(
            f"{rv.name!r}: the number of rows, {varying.name!r}, is another one in each draw: "
            f"write size="
        )
    n, _ = map(known_value, op.dist_params(rv.owner))
    tree, size = op.tree, int(np.asarray(n)) if size is None else size
    drawn = {c: np.empty((np.prod(dims), size), dtype=np.int16) for c in tree.levels}
    for i, p in enumerate(_probabilities(rv, posterior, rng)):
        for c, values in draw_rows(rng, tree, p, size).items():
            drawn[c][i] = values
    names, labels = ("chain", "draw", "new_record"), rv.tag.dp_labels
    columns = {
        c: (names, levels.reshape(*dims, size), {"levels": [*labels[c]]})
        for c, levels in drawn.items()
    }
    return xr.Dataset(columns, {"chain": posterior["chain"], "draw": posterior["draw"]})
