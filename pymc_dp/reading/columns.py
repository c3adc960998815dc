r"""Records that are rows of several columns: their joint law and their releases.

Row i holds the columns :math:`r_i = (x_i, y_i)` of the variables of a block, parents first. Each
variable has mean :math:`a + B r_{<}`, affine in the columns before it, and an error with
covariance :math:`R R'` that is the same for all rows: a chain of linear regressions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.multivariate import MvNormalRV
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, once
from pymc_dp.graphs.shapes import known_shape
from pymc_dp.graphs.values import depends_on
from pymc_dp.mechanisms.arguments import as_float
from pymc_dp.reading.checks import check_transform
from pymc_dp.reading.column_sums import Leaves, RowRelease, read_release
from pymc_dp.reading.groups import Records
from pymc_dp.reading.model import Reading, release_statistic, releases_of
from pymc_dp.reading.record_lengths import record_length
from pymc_dp.reading.sums import additive, column_vectors, row_vectors
from pymc_dp.reading.sums.polynomials import Coefficient, degree, read_polynomial


@dataclass(frozen=True)
class Link:
    """One variable of a row, given those before it.

    Attributes
    ----------
    rv : the variable, n rows of `width` columns.
    intercept : vector a.
    slope : matrix B of shape (width, columns before); None for a law that is not Gaussian.
    root : matrix R; None for a law that is not Gaussian.
    coefficients : the scalars a and B of a single column whose mean depends on columns before it.
    sigma : the standard deviation of a single Normal column.
    """

    rv: TensorVariable
    width: int
    intercept: TensorVariable | None = None
    slope: TensorVariable | None = None
    root: TensorVariable | None = None
    coefficients: tuple[Coefficient, ...] | None = None
    sigma: TensorVariable | None = None


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of confidential records: their law and all of their releases.

    If rows are read by groups, the parameters of `links` have a leading axis of groups.

    Attributes
    ----------
    records : the variables, parents before children.
    n : the number of rows.
    links : the law of each variable given those before it.
    releases : the releases of any of them.
    sizes : the number of rows of each group; a scalar where all rows are alike.
    """

    records: tuple[TensorVariable, ...]
    n: int
    links: tuple[Link, ...]
    releases: tuple[RowRelease, ...]
    sizes: np.ndarray

    @property
    def rv(self) -> TensorVariable:
        """The last of the variables."""
        return self.records[-1]

    @property
    def name(self) -> str:
        """Names of the variables, joined."""
        return "_".join(rv.name for rv in self.records)

    @property
    def width(self) -> int:
        """Number of columns."""
        return sum(link.width for link in self.links)

    @property
    def labels(self) -> list[str]:
        """A name for each column."""
        return [
            link.rv.name if link.rv.type.ndim == 1 else f"{link.rv.name}[{j}]"
            for link in self.links
            for j in range(link.width)
        ]

    def law(self, links: Sequence[Link] | None = None) -> tuple[TensorVariable, TensorVariable]:
        """Mean of the columns, and a lower triangular L with covariance LL'.

        Raises
        ------
        NotImplementedError
            If some variable is not Gaussian.
        """
        groups = self.sizes.shape
        mean, root = pt.zeros((*groups, 0)), pt.zeros((*groups, 0, 0))
        for link in self.links if links is None else links:
            if link.intercept is None or link.slope is None or link.root is None:
                raise Declined(
                    f"the records {link.rv.name!r} follow {law_name(link.rv)}: rows have an exact "
                    f"law if they are jointly Normal. Sample with rung='records', or ask for an "
                    f"approximation, see approximate= of dp.sample"
                )
            corner = pt.zeros_like(pt.matrix_transpose(link.slope))
            above = pt.concatenate([root, corner], axis=-1)
            below = pt.concatenate([link.slope @ root, link.root], axis=-1)
            root = pt.concatenate([above, below], axis=-2)
            link_mean = link.intercept + pt.matvec(link.slope, mean)
            mean = pt.concatenate([mean, link_mean], axis=-1)
        return mean, root


def read_links(block: Records) -> tuple[Link, ...]:
    """Read the law of each variable of a row given those before it; decline others by name."""
    records = block.records
    return tuple(_link(rv, records[:k], block.n) for k, rv in enumerate(records))


@once
def read_rows(reading: Reading, block: Records) -> Rows:
    """Read the rows of a block and their releases; decline by name what cannot be read."""
    records, model = block.records, reading.model
    for rv in records:
        check_transform(model, rv)
    links = read_links(block)
    columns = columns_of(records)
    row_releases = tuple(read_release(r, columns, block.n) for r in releases_of(model, records))
    return Rows(records, block.n, links, row_releases, np.array(block.n))


def simple_regression(x: TensorVariable, y: TensorVariable) -> tuple:
    """Return the number of rows, the intercept, the slope and the error variance of y given x."""
    n = record_length(x)
    link = _link(y, [x], n)
    if link.coefficients is None or link.sigma is None:
        raise Declined(f"{y.name!r} has to be Normal with a mean that is affine in {x.name!r}")
    return (n, *(pt.as_tensor(c) for c in link.coefficients), link.sigma**2)


# --- The law ------------------------------------------------------------------------------------


def width_of(rv: TensorVariable) -> int:
    """Return the number of columns of a variable."""
    if rv.type.ndim > 2:
        raise Declined(
            f"the records {rv.name!r} have {rv.type.ndim} dimensions: rows have one or two, "
            f"shape=n or shape=(n, d)"
        )
    width = known_shape(rv)[1] if rv.type.ndim == 2 else 1
    if width is None:
        raise Declined(f"the width of the records {rv.name!r} is not known: give shape=")
    return width


def columns_of(records: Sequence[TensorVariable]) -> list[tuple[TensorVariable, tuple[int, ...]]]:
    """Return the columns of a row: the variable and the index in it."""
    return [(rv, (j,) if rv.type.ndim > 1 else ()) for rv in records for j in range(width_of(rv))]


def normal_parameters(
    rv: TensorVariable, before: Sequence[TensorVariable]
) -> tuple[TensorVariable, TensorVariable] | None:
    """Return the mean and the spread of a variable given those before; None if it is not Normal."""
    node = rv.owner

    def depends(parameter) -> bool:
        return any(depends_on(parameter, other) for other in before)

    if not isinstance(node.op, NormalRV | MvNormalRV):
        if any(map(depends, node.inputs)):
            raise Declined(
                f"the records {rv.name!r} follow {law_name(rv)} and depend on other records: "
                f"only Normal records may. Sample with rung='records'"
            )
        return None
    # As doubles: squares of small integers would overflow.
    mu, spread = (p.astype("float64") for p in node.op.dist_params(node))
    if depends(spread):
        raise Declined(
            f"the spread of the records {rv.name!r} depends on other records: rows have a known "
            f"law if it is the same in every row. Sample with rung='records'"
        )
    return mu, spread


def _link(rv: TensorVariable, before: Sequence[TensorVariable], n: int) -> Link:
    width, parameters = width_of(rv), normal_parameters(rv, before)
    if parameters is None:
        return Link(rv, width)
    mu, spread = parameters
    single, sigma = rv.type.ndim == 1, None
    if isinstance(rv.owner.op, NormalRV):
        spread = same_for_all(rv, spread)
        root = pt.diag(pt.broadcast_to(spread, (width,)))
        sigma = pt.as_tensor(spread).squeeze() if single else None
    else:
        root = pt.linalg.cholesky(same_for_all(rv, spread, core=2))
    columns = columns_of(before)
    if not any(depends_on(mu, other) for other in before):
        intercept = pt.broadcast_to(same_for_all(rv, mu), (width,))
        return Link(rv, width, intercept, pt.zeros((width, len(columns))), root, sigma=sigma)
    means = affine_means(rv, mu, before, n, Leaves(columns, None))
    table = pt.stack([pt.stack([as_float(pt.as_tensor(c)) for c in row]) for row in means])
    coefficients = tuple(means[0]) if single else None
    return Link(rv, width, table[:, 0], table[:, 1:], root, coefficients, sigma)


def affine_means(
    rv: TensorVariable, mu: TensorVariable, before: Sequence[TensorVariable], n: int, leaves: Leaves
) -> list[list[Coefficient]]:
    """Return the intercept and the slopes of the mean of each column, by the columns before it."""
    try:
        vectors = row_vectors(mu, dict.fromkeys(before, n))
        polynomials = [read_polynomial(v, leaves) for v in vectors.flat]
    except Declined as error:
        raise Declined(
            f"the mean of the records {rv.name!r}: {error}. Rows have a known law if it is the "
            f"same affine function of the other columns in every row; sample with rung='records'"
        ) from None
    for polynomial in polynomials:
        if degree(polynomial) > 1:
            raise Declined(
                f"the mean of the records {rv.name!r} is a polynomial of degree "
                f"{degree(polynomial)} in other records: rows have a known law if it is affine. "
                f"Sample with rung='records'"
            )
    q = len(leaves.columns)
    table = [[p.get((), 0.0), *(p.get((j,), 0.0) for j in range(q))] for p in polynomials]
    return table * (width_of(rv) // len(polynomials))


def column_parameters(
    rv: TensorVariable, j: int, parameters: Sequence[TensorVariable] | None = None
) -> list[TensorVariable]:
    """Return the parameters of a record's entry in a column, for a law of single entries."""

    def of_column(parameter: TensorVariable) -> TensorVariable:
        if all(parameter.type.broadcastable):
            node = parameter.owner
            if node is not None and isinstance(node.op, DimShuffle):
                [source] = node.inputs
                parameter = parameter if source.type.ndim else source  # a scalar, repeated
            # Integer parameters are small integers in the graph, whose powers overflow.
            return as_float(parameter.squeeze() if parameter.type.ndim else parameter)
        shared = same_for_all(rv, parameter)
        return shared.squeeze() if all(shared.type.broadcastable) else shared[j]

    graphs = rv.owner.op.dist_params(rv.owner) if parameters is None else parameters
    return [of_column(p) for p in graphs]


def only_column(rv: TensorVariable, declared: Sequence[TensorVariable]) -> tuple[int, str]:
    """Return the number of the one column that is released of some records, and its name.

    Raises
    ------
    Declined
        If several columns are released, or the law is not one of single entries.
    """
    if rv.type.ndim == 1:
        return 0, str(rv.name)
    if rv.type.ndim != 2 or rv.owner.op.ndim_supp > 0:
        raise Declined(f"the records {rv.name!r} are no columns of single entries")
    n, used = record_length(rv), set[int]()
    for release in declared:
        try:
            form = additive(release_statistic(release), {rv: n})
            used |= {*column_vectors(form.maps, rv).values()}
        except Declined as error:
            raise Declined(f"the statistic of the release {release.name!r}: {error}") from None
    if len(used) > 1:
        raise Declined(f"the releases of {rv.name!r} are of several of its columns")
    [j] = used or {0}
    return j, str(rv.name) if width_of(rv) == 1 else f"{rv.name}_{j}"


def same_for_all(rv: TensorVariable, parameter, *, core: int | None = None) -> TensorVariable:
    """Return the parameter of one row, which has `core` axes (default: those of a row of `rv`)."""
    parameter = as_float(parameter)
    if parameter.type.ndim > (rv.type.ndim - 1 if core is None else core):
        if not parameter.type.broadcastable[0]:
            raise Declined(
                f"the records {rv.name!r} are not identically distributed: a parameter has "
                f"{parameter.type.ndim} dimensions, the first of them for the rows. Sample with "
                f"rung='records'; or, where the records differ by covariates that are confidential "
                f"too, declare these as records",
                near=-1,
            )
        parameter = parameter.squeeze(axis=0)
    return parameter


def law_name(rv: TensorVariable) -> str:
    """Return the name of a variable's law."""
    return type(rv.owner.op).__name__.removesuffix("RV")
