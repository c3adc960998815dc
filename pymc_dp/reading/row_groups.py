r"""Rows of several columns that differ between public groups, and releases of sums over them.

In group g the rows are alike: each variable has mean :math:`a_g + B_g r_{<}` and an error with
covariance :math:`R_g R_g'`. The rows of a group have equal parameters, and equal weights in every
released sum. Groups are in the order of the sums; rows that are in no sum are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, about, once
from pymc_dp.graphs.signs import nonnegative
from pymc_dp.graphs.values import depends_on, known_value
from pymc_dp.mechanisms.arguments import as_float
from pymc_dp.reading.cells import at_rows, partition, require_numbers, row_keys
from pymc_dp.reading.checks import check_transform
from pymc_dp.reading.column_sums import Leaves, RowRelease, read_release
from pymc_dp.reading.columns import (
    Link,
    Rows,
    affine_means,
    columns_of,
    law_name,
    normal_parameters,
    width_of,
)
from pymc_dp.reading.groups import Records
from pymc_dp.reading.model import Reading, releases_of
from pymc_dp.reading.sums.polynomials import Coefficient, Polynomial, constant


@once
def read_row_groups(reading: Reading, block: Records) -> Rows:
    """Read the rows of a block by groups, and their releases; decline other laws by name."""
    records, n, model = block.records, block.n, reading.model
    columns = columns_of(records)
    row_releases = [read_release(r, columns, n, _Weights) for r in releases_of(model, records)]
    for rv in records:
        check_transform(model, rv)
    with about(f"groups of the rows {', '.join(repr(rv.name) for rv in records)}"):
        laws = [read_row_law(rv, records[:k], n) for k, rv in enumerate(records)]
    weights = [_numbers(r, c) for r in row_releases for p in r.maps for c in p.values()]
    every = np.array([np.broadcast_to(w, n) for w in weights]).reshape(len(weights), n)
    keys = [key for law in laws for key in law.keys(n)]
    cells = partition([*np.unique(every, axis=0), *keys], n)
    used = every[:, cells.first] != 0
    # Groups are in the order in which they are released.
    order = np.lexsort((cells.first, used.argmax(axis=0)))
    kept = order[used.any(axis=0)[order]]
    first = cells.first[kept]

    sizes = cells.sizes[kept]

    def by_group(coefficient) -> np.ndarray:
        return np.broadcast_to(coefficient, n)[first]

    releases = tuple(
        replace(r, n=sizes, maps=tuple({m: by_group(c) for m, c in p.items()} for p in r.maps))
        for r in row_releases
    )
    return Rows(records, n, tuple(law.link(first) for law in laws), releases, sizes)


def _numbers(release: RowRelease, coefficient: Coefficient) -> np.ndarray | float:
    if isinstance(coefficient, Variable):
        raise Declined(
            f"the statistic of the release {release.name!r} has coefficients that are no fixed "
            f"numbers, pm.Data say: write numbers in their place"
        )
    return coefficient


class _Weights(Leaves):
    """The leaves of a summed expression: public numbers may differ from row to row."""

    def public(self, variable: TensorVariable) -> Polynomial | None:
        """See `Leaves.public`."""
        value = known_value(variable, fixed=True)
        if value is None or value.ndim != 1 or value.size == 1:
            return super().public(variable)
        return constant(value.astype("float64"))


class Rowwise(Leaves):
    """The leaves of a mean: public values may differ from row to row."""

    def public(self, variable: TensorVariable) -> Polynomial:
        """See `Leaves.public`."""
        return constant(variable)


@dataclass(frozen=True, eq=False)
class _RowLaw:
    """One variable of a row given those before it: vectors with an entry for each row, or scalars.

    Attributes
    ----------
    means : the intercept and the slopes of each column.
    spread : the standard deviation of each column, or its row of the covariance matrix.
    """

    rv: TensorVariable
    means: list[list[TensorVariable]]
    spread: list[list[TensorVariable]]

    def keys(self, n: int) -> list[np.ndarray]:
        """Return keys of the rows: where they are equal, the law is equal."""
        entries = [entry for row in (*self.means, *self.spread) for entry in row]
        return [key for entry in entries for key in row_keys(entry, n)]

    def link(self, rows: np.ndarray) -> Link:
        """Return the law of some rows."""
        means, spread = (
            pt.stack([pt.stack([at_rows(e, rows) for e in row], axis=-1) for row in table], axis=1)
            for table in (self.means, self.spread)
        )
        width = len(self.means)
        if isinstance(self.rv.owner.op, NormalRV):
            root = pt.eye(width) * nonnegative(spread)
        else:
            root = pt.linalg.cholesky(spread)
        return Link(self.rv, width, means[..., 0], means[..., 1:], root)


def read_row_law(rv: TensorVariable, before: Sequence[TensorVariable], n: int) -> _RowLaw:
    """Read the law of a variable given those before it, row by row."""
    parameters, width = normal_parameters(rv, before), width_of(rv)
    if parameters is None:
        raise Declined(
            f"{rv.name!r} follows {law_name(rv)}, and only rows that are jointly Normal have an "
            f"exact law. Sample with rung='records'",
            near=1,
        )
    mu, spread = parameters
    require_numbers(rv, parameters)
    columns = columns_of(before)
    if any(depends_on(mu, other) for other in before):
        means = affine_means(rv, mu, before, n, Rowwise(columns, None))
    else:
        zeros = [0.0] * len(columns)
        means = [[_entry(mu, index), *zeros] for _, index in columns_of([rv])]
    single = isinstance(rv.owner.op, NormalRV)
    across = [()] if single else [(j,) for j in range(width)]
    spreads = [[_entry(spread, (*index, *j)) for j in across] for _, index in columns_of([rv])]
    means = [[as_float(pt.as_tensor(c)) for c in row] for row in means]
    return _RowLaw(rv, means, spreads)


def _entry(parameter: TensorVariable, index: tuple[int, ...]) -> TensorVariable:
    """Return an entry of a parameter: a vector of the rows, or a scalar for all of them."""
    rows = max(parameter.type.ndim - len(index), 0)
    index = index[len(index) + rows - parameter.type.ndim :]
    ones = parameter.type.broadcastable[rows:]
    last = tuple(0 if repeated else i for i, repeated in zip(index, ones, strict=True))
    return as_float(parameter[(*[slice(None)] * rows, *last)])
