"""Releases of columns of records, as polynomials of the columns' sums of products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytensor.scalar as ps
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import ScalarVariable
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.shape import SpecifyShape
from pytensor.tensor.subtensor import Subtensor
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, once
from pymc_dp.graphs.values import depends_on, known_value, nearest_rvs
from pymc_dp.mechanisms.arguments import as_float
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.mechanisms.release import PrivateReleaseRV
from pymc_dp.reading.model import mechanism_of, release_statistic
from pymc_dp.reading.sums import Additive, additive
from pymc_dp.reading.sums.polynomials import (
    Coefficient,
    Monomial,
    Polynomial,
    added,
    constant,
    multiplied,
    read_polynomial,
)


@dataclass(frozen=True)
class LinearStatistic:
    """``constant + mean * (sample mean) + variance * (sample variance, ddof=1)``."""

    constant: float = 0.0
    mean: float = 0.0
    variance: float = 0.0

    def expression(self, mean, variance) -> TensorVariable:
        """Write it in terms of a sample mean and a sample variance."""
        terms = [
            term if factor == 1.0 else factor * term
            for factor, term in ((self.mean, mean), (self.variance, variance))
            if factor != 0.0
        ]
        if self.constant != 0.0 or not terms:
            terms.append(pt.constant(self.constant))
        return sum(terms[1:], start=terms[0])


@dataclass(frozen=True)
class RowRelease:
    """A release of rows: a function of sums of products of columns.

    Attributes
    ----------
    rv : the release.
    n : the number of rows; by groups it is a vector, and so are the coefficients in `maps`.
    additive : the statistic as a function of sums.
    columns : the number of the row's column for each column of `additive`.
    maps : each summed map as a polynomial in deviations d_j = r_j - c_j (numbered j) and centers
        c_j (numbered -1 - j).
    """

    rv: TensorVariable
    n: int | np.ndarray
    additive: Additive
    columns: tuple[int, ...]
    maps: tuple[Polynomial, ...]

    @property
    def name(self) -> str:
        """The release's name."""
        return self.rv.name

    @property
    def op(self) -> PrivateReleaseRV:
        """The release's op."""
        return self.rv.owner.op

    @property
    def used(self) -> set[int]:
        """The columns that it depends on."""
        return {j for p in self.maps for m in p for j in _deviations(m)}

    def of_column(self, j: int) -> RowRelease:
        """Return a release that depends on column j alone as one of a single column."""
        maps = tuple(
            {tuple(sorted(0 if k >= 0 else -1 for k in m)): c for m, c in p.items()}
            for p in self.maps
        )
        return replace(self, columns=(0,) * len(self.columns), maps=maps)

    @property
    def mechanism(self) -> Mechanism:
        """The noise, with the parameters of this graph."""
        return mechanism_of(self.rv)

    @property
    def degree(self) -> int:
        """The largest number of columns in a product."""
        return max((len(_deviations(m)) for p in self.maps for m in p), default=0)

    def expression(
        self,
        center: TensorVariable,
        first: TensorVariable | None,
        second: TensorVariable,
    ) -> TensorVariable:
        """Return the statistic of n rows in terms of the sums of their deviations from a center.

        Parameters
        ----------
        center : vector
            A number for each column. With the columns' means, deviations are small, and large means
            do not cancel.
        first : vector or None
            Sums of the deviations; None for a center at the mean, where they are zero.
        second : matrix
            Sums of the products of two deviations.
        """
        values: dict[ScalarVariable, TensorVariable] = {}
        for symbol, polynomial in zip(self.additive.sums, self.maps, strict=True):
            total = pt.zeros(())
            for monomial, coefficient in polynomial.items():
                match _deviations(monomial):
                    case ():
                        moment = self.n
                    case (j,):
                        if first is None:
                            continue
                        moment = first[j]
                    case (i, j):
                        moment = second[i, j]
                    case _:
                        raise Declined(
                            f"the release {self.name!r} is of products of {self.degree} columns: "
                            f"sums of single columns and of products of two have a known law"
                        )
                total += math.prod(
                    [center[-1 - k] for k in monomial if k < 0], start=coefficient * moment
                )
            values[symbol] = total
        for symbol, graph in self.additive.public:
            values[symbol] = _at_center(graph, self.additive.centers, center[list(self.columns)])
        return pt.stack(self.additive.at(values)).reshape(self.additive.entries.shape)

    @once
    def linear(self) -> list[Polynomial]:
        """Return `linear_graphs` with the current values of `pm.Data`."""
        return as_numbers(self.linear_graphs())

    @once
    def linear_graphs(self) -> list[Polynomial]:
        """Return each entry as a constant and multiples of sums of products of columns.

        Coefficients that depend on `pm.Data` are graphs, the others numbers.

        Raises
        ------
        Declined
            If an entry is not a linear function of sums.
        """
        return self.linear_around(None)

    def linear_around(self, center: np.ndarray | None) -> list[Polynomial]:
        """Return `linear_graphs` in sums of deviations from a center; see `public`."""
        polynomials = dict(zip(self.additive.sums, self.of_sums(center), strict=True))
        entries = []
        for offset, sums in self.additive.affine(self.public(center)):
            total = constant(_coefficient(offset))
            for symbol, factor in sums.items():
                term = multiplied(constant(_coefficient(factor)), polynomials[symbol])
                total = added(total, term)
            entries.append(total)
        return entries

    def of_sums(self, center: np.ndarray | None = None) -> list[Polynomial]:
        """Return each sum of the release in the form of the entries of `linear_around`."""
        polynomials = []
        for symbol in self.additive.sums:
            polynomial = {m: _coefficient(c) for m, c in self.of_deviations(symbol, center).items()}
            if () in polynomial:
                polynomial[()] = (
                    polynomial[()] @ self.n if np.ndim(self.n) else polynomial[()] * float(self.n)
                )
            polynomials.append(polynomial)
        return polynomials

    @once
    def mean_and_variance(self) -> list[LinearStatistic]:
        """Return each entry of one column's release as a linear function of its moments.

        Raises
        ------
        Declined
            If an entry is not such a function, or its coefficients are not numbers.
        """
        return [_in_moments(p, int(self.n)) for p in self.in_means()]

    def in_means(self) -> list[Polynomial]:
        """Return each entry of one column's release as a polynomial of its mean and mean square.

        The mean is numbered 0, the mean square 1: a variance is a multiple of (1) - (0, 0).
        """
        n, y, q = self.n, (0,), (1,)
        moments: dict[Monomial, Polynomial] = {
            (): {(): float(n)},
            (0,): {y: float(n)},
            (0, 0): {q: float(n)},
        }
        leaves = {symbol: constant(value) for symbol, value in self.public().items()}
        for symbol in self.additive.sums:
            total: Polynomial = {}
            for monomial, c in self.of_deviations(symbol).items():
                if monomial not in moments:
                    raise Declined(f"it is of products of {len(monomial)} columns")
                total = added(total, multiplied(constant(c), moments[monomial]))
            leaves[symbol] = total
        return self.additive.polynomials(leaves)

    def public(self, center: np.ndarray | None = None) -> dict[ScalarVariable, Coefficient]:
        """Return the public scalars for records around a center: zero, or one for each column."""
        columns = [*self.columns]
        centers = pt.zeros(len(columns)) if center is None else pt.constant(center)[columns]
        return {
            symbol: _coefficient(_at_center(graph, self.additive.centers, centers))
            for symbol, graph in self.additive.public
        }

    def of_deviations(self, symbol: ScalarVariable, center: np.ndarray | None = None) -> Polynomial:
        """Return the summand of a sum, for records around a center; see `public`."""
        total: Polynomial = {}
        for monomial, c in self.maps[self.additive.sums.index(symbol)].items():
            around = [-1 - k for k in monomial if k < 0]
            if center is not None:
                c = math.prod(center[around], start=c)
            elif around:
                continue
            total = added(total, {_deviations(monomial): c})
        return total


def _in_moments(polynomial: Polynomial, n: int) -> LinearStatistic:
    """Return a polynomial of mean and mean square as a linear function of mean and variance."""
    y, q, square = (0,), (1,), (0, 0)
    numbers = {m: c for m, c in polynomial.items() if not isinstance(c, Variable)}
    a, b = numbers.get(q, 0.0), numbers.get(square, 0.0)
    left = {*numbers} - {(), y, q, square}
    if len(numbers) < len(polynomial):
        raise Declined("a coefficient of it is no number: it is of pm.Data, or random")
    if left or abs(a + b) > 1e-12 * max(abs(a), abs(b)):
        raise Declined("it is no linear function of the mean and the variance of the records")
    return LinearStatistic(numbers.get((), 0.0), numbers.get(y, 0.0), a * (n - 1) / n)


def read_release(rv: TensorVariable, columns, n: int, leaves: type[Leaves] | None = None):
    """Read a release of columns of n records as a `RowRelease`; see `read_sums`."""
    statistic = release_statistic(rv)
    records = {record: n for record, _ in columns}
    foreign = [v for v in nearest_rvs([statistic]) if v not in records]
    if foreign:
        names = [", ".join(repr(v.name) for v in group) for group in (records, foreign)]
        raise Declined(f"the release {rv.name!r} mixes the records {' with '.join(names)}")
    used = {record: n for record in records if depends_on(statistic, record)}
    try:
        return read_sums(rv, statistic, columns, used, n, leaves)
    except Declined as error:
        hint = ". Rows have a known law for sums and products of their columns"
        raise Declined(
            f"the statistic of the release {rv.name!r}: {error}{hint * (len(columns) > 1)}"
        ) from None


def read_sums(
    rv: TensorVariable,
    statistic: TensorVariable,
    columns,
    used: dict[TensorVariable, int],
    n: int,
    leaves: type[Leaves] | None = None,
) -> RowRelease:
    """Read a statistic of columns of n records, of which some are `used`, for a release.

    With `leaves` that may differ from row to row, the coefficients of the maps are vectors.
    """
    read = additive(statistic, used)
    column_numbers = tuple(columns.index(column) for column in read.columns)
    leaf = (leaves or Leaves)(columns, read.centers, column_numbers)
    maps = []
    for symbol, graph in zip(read.sums, read.maps, strict=True):
        weight: Coefficient = 1.0
        if leaves and (weighted := read.weighted.get(symbol)):
            graph, weight = weighted.vector, weighted.weights
        maps.append(multiplied(constant(weight), read_polynomial(graph, leaf)))
    return RowRelease(rv, n, read, column_numbers, tuple(maps))


class Leaves:
    """The leaves of an elementwise graph over rows: columns, their centers, and numbers."""

    def __init__(self, columns, centers, column_numbers: Sequence[int] = ()):
        self.columns, self.centers, self.column_numbers = columns, centers, column_numbers
        self.records = {record for record, _ in columns}

    def __call__(self, variable: Variable) -> Polynomial | None:
        """Return a leaf as a polynomial; None for a variable whose inputs are to be read."""
        column = self._column(variable)
        if column is not None:
            j = self.columns.index(column)
            return {(j,): 1.0} if self.centers is None else {(j,): 1.0, (-1 - j,): 1.0}
        center = self._center(variable)
        if center is not None:
            return {(-1 - self.column_numbers[center],): 1.0}
        above = set(ancestors([variable], blockers=list(self.records)))
        if self.records & above or self.centers in above:
            return None
        return self.public(variable)

    def public(self, variable: TensorVariable) -> Polynomial | None:
        """Return a public variable as a polynomial; None if its inputs are to be read."""
        return _same_in_every_row(variable)

    def _column(self, variable: Variable):
        index: list[Variable] = []
        node = variable.owner
        if node is not None and isinstance(node.op, Subtensor):
            variable, *index = node.inputs
            first, *_ = node.op.idx_list
        if variable.owner is not None and isinstance(variable.owner.op, SpecifyShape):
            variable = variable.owner.inputs[0]  # a length from dims= or pm.Data
        if variable not in self.records:
            return None
        if index and first != slice(None, None, None):
            raise Declined("it selects some of the rows")
        return variable, tuple(int(i.data) for i in index)

    def _center(self, variable: Variable) -> int | None:
        """Return the number of a center; centers of counts are rounded, but zero here."""
        node = variable.owner
        if node is not None and isinstance(getattr(node.op, "scalar_op", None), ps.RoundHalfToEven):
            node = node.inputs[0].owner
        if node is None or node.inputs[0] is not self.centers:
            return None
        return int(node.inputs[1].data)


def _same_in_every_row(variable: TensorVariable) -> Polynomial | None:
    """Return a public value that is the same in every row; None if its inputs are to be read.

    `pm.Data` may change: a scalar stays a graph, and a vector of equal numbers is declined.
    """
    node = variable.owner
    if all(variable.type.broadcastable):
        return constant(_coefficient(variable))
    if node is not None and isinstance(node.op, Elemwise):
        return None
    source = node.inputs[0] if node is not None and isinstance(node.op, Subtensor) else variable
    if source.owner is not None and isinstance(source.owner.op, Alloc):
        # It is never evaluated: n may be large.
        [filled, *_] = source.owner.inputs
        if all(filled.type.broadcastable):
            return _same_in_every_row(filled)
    value = known_value(variable, fixed=True)
    if value is not None and value.size and np.all(value == value.flat[0]):
        return constant(float(value.flat[0]))
    raise Declined("a public vector differs from row to row, or may do so (pm.Data)")


def _coefficient(value: Coefficient) -> Coefficient:
    """Return a number, or its graph if it may change; a vector with an entry by group stays."""
    if not isinstance(value, Variable):
        return value if np.ndim(value) else float(value)
    known = known_value(value, fixed=True)
    if known is None:
        return as_float(value.squeeze() if value.type.ndim else value)
    return float(np.squeeze(known))


def as_numbers(polynomials: list[Polynomial]) -> list[Polynomial]:
    """Return polynomials with the current values of `pm.Data`."""
    numbered = [{m: _number(c) for m, c in p.items()} for p in polynomials]
    return [{m: c for m, c in p.items() if np.any(c)} for p in numbered]


def _number(coefficient: Coefficient) -> Coefficient:
    """Return the current value of a coefficient."""
    if not isinstance(coefficient, Variable):
        return coefficient
    value = known_value(coefficient)
    if value is None:
        raise Declined("a coefficient of it is random")
    return float(np.squeeze(value))


def _deviations(monomial: Monomial) -> Monomial:
    return tuple(k for k in monomial if k >= 0)


def _at_center(graph: TensorVariable, centers: TensorVariable, value) -> TensorVariable:
    return graph_replace([graph], {centers: value}, strict=False)[0]
