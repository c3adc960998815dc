"""A log-linear model of categorical columns, as a variable of a PyMC model: its cliques' tables."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from pymc.distributions.distribution import support_point
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.values import known_value
from pymc_dp.ladder.predict import NEW_ROWS
from pymc_dp.plugins.log_linear.cliques import Columns, junction_tree
from pymc_dp.plugins.log_linear.layout import concentrations, draw_rows, draw_weights
from pymc_dp.plugins.log_linear.tables import (
    CliqueTablesRV,
    Margin,
    cell_probabilities,
    number_of_rows,
)
from pymc_dp.plugins.log_linear.weights import (
    WeightedTablesRV,
    conditionals,
    given_probabilities,
)

if TYPE_CHECKING:
    from xarray import DataTree


_log = logging.getLogger("pymc.dp")


def _labels(name: str, column: str, levels: Any) -> Sequence[Any]:
    if isinstance(levels, int | np.integer):
        levels = range(levels)
    if isinstance(levels, str) or not len(levels) or len({*levels}) < len(levels):
        raise ValueError(
            f"{name!r}: the levels of {column!r} are a number of at least 1, or different labels; "
            f"got {levels!r}"
        )
    return levels if isinstance(levels, range) else list(levels)


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
        A, the total concentration of the table: by default the square root of K, the number of
        cells of the largest clique, whose cells have 1 / sqrt(K) each. It counts as A rows that are
        spread evenly: a column of two levels has a Beta(A / 2, A / 2) prior. Beside noise that is
        wide, a person a cell draws small cells far up; much less than 1 / sqrt(K) mixes slowly.
    weights : dict of tuple of str to array or expression, optional
        Finite weights of terms, of the shape of their columns' levels, with any prior: the
        probability of a row is proportional to :math:`\exp \sum_t \lambda_t(\text{levels})`. They
        take the place of the Dirichlet law; a term without weights has none. Given the tables NUTS
        draws them, so that wide noise beside the counts makes for slow chains.

    Raises
    ------
    ValueError
        A term with an unknown column, a clique of more than 10,000 cells, n that is neither a whole
        number of at least 0 nor a variable with whole values, a concentration that is not positive,
        weights of no clique's columns, of another shape, or beside a concentration.

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

    Weights with a prior of their own:

    >>> with pm.Model() as model:
    ...     both = pm.Normal("both", 0, 0.5, shape=(2, 2))
    ...     weights = {"income": pm.Normal("income", shape=2), ("job", "income"): both}
    ...     rows = dp.LogLinear(
    ...         "rows", {"job": 2, "income": 2}, [("job", "income")], 90, weights=weights
    ...     )
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
        weights: Mapping[Sequence[str], Any] | None = None,
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
        if weights is not None:
            if concentration is not None:
                raise ValueError(f"{name!r}: concentration= is for rows without weights=")
            self._register(WeightedTablesRV, name, n, self._conditionals(name, weights))
            return
        total = concentration
        if total is None:
            total = max(map(self.tree.size, self.tree.cliques)) ** 0.5
        if not (isinstance(total, int | float | np.number) and np.isfinite(total) and total > 0):
            raise ValueError(f"{name!r}: concentration={total!r} is no finite number > 0")
        if near is not None and total > 0.1 * near > 0:
            _log.warning(
                "%r: the prior counts as much as %g rows beside n=%s, and draws each column to "
                "equal shares. State concentration=, or leave columns out of the largest clique",
                name, total, near,
            )  # fmt: skip
        self._register(CliqueTablesRV, name, n, pt.constant(float(total), dtype="float64"))

    def _register(self, op: type[CliqueTablesRV], name: str, n, law: TensorVariable) -> None:
        rng = pt.random.shared_rng(seed=None)
        rv = op(self.tree.key)(n, law, rng=rng, return_next_rng=True)[1]
        rv.tag.dp_labels = self.labels  # for `dp.predict_records`; copies of the model have it, too
        self.rv = pm.modelcontext(None).register_rv(rv, name)
        if (varying := number_of_rows(rv)) is not None:
            varying.tag.dp_step = "CliqueGibbs"  # draws it along; its releases may have been read

    def _conditionals(self, name: str, weights: Mapping[Sequence[str], Any]) -> TensorVariable:
        known = {}
        for columns, lam in weights.items():
            term = (columns,) if isinstance(columns, str) else tuple(columns)
            if not term or len({*term}) < len(term):
                raise ValueError(
                    f"{name!r}: weights= has the term {columns!r}: name each column once"
                )
            if unknown := [c for c in term if c not in self.tree.levels]:
                raise ValueError(f"{name!r}: unknown columns {', '.join(map(str, unknown))}")
            known[term] = lam
        try:
            return conditionals(self.tree, known)
        except ValueError as error:
            raise ValueError(f"{name!r}: {error}") from None

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
    if isinstance(op, WeightedTablesRV):
        yield from given_probabilities(rv, posterior)
        return
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
@NEW_ROWS.register(WeightedTablesRV)
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
