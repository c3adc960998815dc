r"""Sums and sums of squares of Normal records with a public design.

Records :math:`x \sim N(\mu, \sigma^2 I)` have means :math:`\mu = D \beta`, with public columns D
and any expressions as coefficients. Linear functions :math:`A x` and sums of squares are released.
With an orthonormal basis Q of the rows of A and the columns of D,

.. math::

    u = Q x \sim N(Q \mu, \sigma^2 I_r), \qquad
    R = |x|^2 - |u|^2 \sim \sigma^2 \chi^2_{n - r}, \qquad A x = A Q' u,

and u and R are independent: R is the residual sum of squares of the regression on Q, which explains
the means. The records are split into parts of one sigma and of the same sums of squares: each part
has its u and its R.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.variable import TensorVariable
from scipy import linalg, sparse

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.shapes import known_shape
from pymc_dp.graphs.signs import nonnegative
from pymc_dp.graphs.values import public_data
from pymc_dp.laws.moments.latents import Linearised, observed_noise, row_latents
from pymc_dp.laws.shown import as_released
from pymc_dp.laws.sums import FAMILIES, Family, Placed
from pymc_dp.reading.bounds import starting_values
from pymc_dp.reading.cells import (
    at_records,
    cells_of,
    column_keys,
    combined,
    multiplied,
    partition,
    parts_of,
)
from pymc_dp.reading.model import mechanism_of

_MOST_DENSE_NUMBERS = 30_000_000  # in the matrix whose basis is computed
_MOST_WHITENED_LATENTS = 500  # their precision matrix is factorised for every gradient
_DEPENDENT = 1e-10  # remainder of a row of length 1 that depends on other rows


@FAMILIES.register(order=40)
class Designs(Family):
    """Normal records with a public design: linear functions and sums of squares."""

    takes = (NormalRV,)
    joint = True
    alone = True

    @property
    def places(self) -> list[tuple[TensorVariable, slice]]:
        """The releases, and the slice of each among the entries of all."""
        statistics = self.sums.statistics
        ends = np.cumsum([0, *(s.offset.size for s in statistics)])
        spans = map(slice, ends[:-1], ends[1:])
        return list(zip((s.rv for s in statistics), spans, strict=True))

    def describe(self, statistic):
        """See `Family.describe`."""
        squares = int(((np.diff(statistic.squares.indptr) > 0) | (statistic.squared != 0)).sum())
        counts = ((statistic.offset.size - squares, "sum"), (squares, "sum of squares"))
        kinds = [f"{k} {name.replace('sum', 'sums', k > 1)}" for k, name in counts if k]
        return f"{' and '.join(kinds)} of {self.rv.name}"

    def statistics(self, change):
        """Keep the coordinates and the residual sums of squares as latent variables."""
        rv, form, index = self.rv, self._form(), self.sums.statistics[0].index
        mu, sigma = (p.astype("float64") for p in rv.owner.op.dist_params(rv.owner))
        mean = combined(form.rows, mu, index)
        spread = nonnegative(at_records(index, sigma, form.record))
        spread = pt.broadcast_to(spread, form.record.shape)
        size = form.part.size + form.alpha.size
        linearised = self._linearised(form, mean, spread) if size <= _MOST_WHITENED_LATENTS else []
        latents, transform = row_latents(size, form.alpha, linearised)
        u = mean + spread[form.part] * latents[: form.part.size]
        expected = 2.0 * form.alpha * spread[form.free] ** 2
        residual = expected * pt.exp(latents[form.part.size :] / np.sqrt(form.alpha))
        change.added[f"{rv.name}_latents"] = latents, transform
        entries = form.entries(u, residual)
        placed = {}
        for statistic, (release, place) in zip(self.sums.statistics, self.places, strict=True):
            name, factor, constant = self.shown(statistic)
            shown = (entries[place] - constant) / factor
            change.deterministics[name] = shown.reshape(known_shape(release))
            change.entries_of[name] = release
            placed[release] = Placed(np.arange(statistic.offset.size), entries[place])
        return placed

    def marginal(self, statistic, change):
        """See `Family.marginal`."""
        raise Declined(
            f"what is released of the records {self.rv.name!r} uses their squares, or the same "
            f"records in several releases, and has no marginal in closed form: use to='statistics'"
        )

    def shown(self, statistic):
        """See `Family.shown`."""
        if not statistic.is_linear:
            return as_released(statistic.rv, statistic.offset.size)
        return super().shown(statistic)

    def _form(self) -> QuadraticForm:
        """Return the releases as functions of u and R."""
        statistics, rv = self.sums.statistics, self.rv
        index, times, n = statistics[0].index, statistics[0].times, statistics[0].times.size
        root = sparse.diags_array(np.sqrt(times))  # like records are one of this weight
        mu, sigma = rv.owner.op.dist_params(rv.owner)
        squares = sparse.vstack([s.squares for s in statistics], format="csr")
        # A square of a sum needs the sum as a linear function.
        forms = [s.weights for s in statistics]
        forms += [s.members[np.flatnonzero(s.squared)] for s in statistics]
        linear = sparse.vstack(forms, format="csr") @ root
        offset, squared = (
            np.concatenate(x)
            for x in zip(*((s.offset, s.squared) for s in statistics), strict=True)
        )
        cells = partition([cells_of(index, [sigma]).of, *column_keys(sparse.csc_array(squares))], n)
        columns = [sparse.csr_array(part.columns) for part in parts_of(mu, index)]
        design = root @ sparse.hstack(columns, format="csr")
        order = np.argsort(cells.of, kind="stable")
        ends = np.cumsum(cells.sizes)
        linear_parts, design = linear.tocsc()[:, order], design[order]
        is_squared = np.diff(squares.tocsc().indptr)[cells.first] > 0
        rows, part, freedom = [], [], []
        for p, (size, end) in enumerate(zip(cells.sizes, ends, strict=True)):
            block = slice(end - size, end)
            spanned = _filled(linear_parts[:, block].tocsr().T)
            if is_squared[p]:
                spanned = np.hstack([spanned, _filled(design[block], public_data([mu]))])
            basis = _orthonormal(spanned, rv.name)
            rank = basis.shape[1]
            rows += [(order[block], row) for row in basis.T]
            part += [p] * rank
            freedom.append(times[order[block]].sum() - rank if is_squared[p] else 0)
        q = _matrix(rows, n)
        at_q = sparse.csr_array(linear @ q.T)
        return QuadraticForm(
            q @ root,
            np.array(part, dtype=int),
            cells.first,
            np.array(freedom),
            offset,
            at_q[: offset.size],
            sparse.csr_array(squares[:, cells.first]),
            at_q[offset.size :],
            squared,
        )

    def _linearised(self, form: QuadraticForm, mean, spread) -> list[Linearised]:
        """Return the observed releases, linearised in the latents near the observed values."""
        model, value, variance = self.sums.reading.model, [], []
        rows: list[int] = []
        for release, place in self.places:
            noise = observed_noise(model, release, mechanism_of(release))
            if noise is not None:
                rows += range(place.start, place.stop)
                value.append(noise[0])
                variance.append(noise[1])
        if not rows:
            return []
        observed = map(pt.concatenate, (value, variance))
        return [form.linearised(rows, *observed, mean, spread)]


@dataclass(frozen=True, eq=False)
class QuadraticForm:
    """Entries of releases, in terms of coordinates u and residual sums of squares R.

    Attributes
    ----------
    rows : sparse matrix Q, coordinates times records.
    part : the part of the records that each coordinate belongs to.
    record : one of the records of each part.
    freedom : degrees of freedom of R of each part, 0 where the part has no R.
    constant, linear, squares : for each entry, its constant, its weights of u, and its weights of
        the sums of squares of the parts.
    squared : for each entry, the factor of the square of a sum in it, 0 where there is none.
    sums : for each entry with such a factor, in order, the weights of u in the sum.
    """

    rows: sparse.csr_array
    part: np.ndarray
    record: np.ndarray
    freedom: np.ndarray
    constant: np.ndarray
    linear: sparse.csr_array
    squares: sparse.csr_array
    sums: sparse.csr_array
    squared: np.ndarray

    @property
    def free(self) -> np.ndarray:
        """The parts with a residual sum of squares."""
        return np.flatnonzero(self.freedom)

    @property
    def alpha(self) -> np.ndarray:
        """The shapes of the Gamma laws of R of the parts in `free`."""
        return self.freedom[self.free] / 2.0

    def entries(self, u: TensorVariable, residual: TensorVariable) -> TensorVariable:
        """Return the entries of all releases, given u and R."""
        value = self.constant + multiplied(self.linear, u)
        if self.squares.nnz:
            of_u = sparse.csr_array(self.squares[:, self.part])
            value = value + multiplied(of_u, u**2)
            value = value + multiplied(self.squares[:, self.free], residual)
        if self.squared.any():
            where = np.flatnonzero(self.squared)
            squared_sums = self.squared[where] * multiplied(self.sums, u) ** 2
            value = pt.inc_subtensor(value[where], squared_sums)
        return value

    def linearised(self, rows: Sequence[int], value, variance, mean, spread) -> Linearised:
        """Return some entries, linearised in the latents of u and R near the published values."""
        linear, squares = (m[rows].toarray() for m in (self.linear, self.squares))
        of_squared = np.zeros((self.squared.size, self.part.size))
        of_squared[np.flatnonzero(self.squared)] = self.sums.toarray()
        constant, of_squared, times = (x[rows] for x in (self.constant, of_squared, self.squared))
        squares_of_u, squares = squares[:, self.part], squares[:, self.free]
        z, w, m, s = starting_values([value, variance, mean, spread])
        # Given the entries that are linear, u is Normal: this is its mean.
        is_linear = ~(squares_of_u.any(axis=1) | (times != 0))
        scaled = linear[is_linear] * s[self.part]
        remainder = z[is_linear] - constant[is_linear] - linear[is_linear] @ m
        covariance = scaled @ scaled.T + np.diag(w[is_linear])
        u = m + s[self.part] * (scaled.T @ np.linalg.lstsq(covariance, remainder)[0])
        of_u = constant + linear @ u + squares_of_u @ u**2 + times * (of_squared @ u) ** 2
        least = 0.2 * self.alpha * s[self.free] ** 2
        residual = np.maximum(np.linalg.pinv(squares) @ (z - of_u), least)
        slope = (
            linear + 2.0 * squares_of_u * u + 2.0 * (times * (of_squared @ u))[:, None] * of_squared
        )
        by_log = squares * residual / np.sqrt(self.alpha)
        sd, expected = spread[self.part], 2.0 * self.alpha * spread[self.free] ** 2
        jacobian = pt.concatenate([slope * sd, pt.constant(by_log)], axis=1)
        log_residual = np.sqrt(self.alpha) * pt.log(residual / expected)
        expansion_point = pt.concatenate([(u - mean) / sd, log_residual])
        target = value - (of_u + squares @ residual) + jacobian @ expansion_point
        return Linearised(jacobian, target, variance)


def _matrix(rows: Sequence[tuple[np.ndarray, np.ndarray]], n: int) -> sparse.csr_array:
    """Return a sparse matrix with n columns; each row is given as (columns, numbers)."""
    ends = np.cumsum([0, *(columns.size for columns, _ in rows)])
    columns, data = (np.concatenate([*(row[k] for row in rows), np.zeros(0)]) for k in range(2))
    matrix = sparse.csr_array((data, columns.astype(int), ends), shape=(len(rows), n))
    matrix.eliminate_zeros()
    return matrix


def _filled(matrix: sparse.csr_array, data: Sequence = ()) -> np.ndarray:
    """Return the nonzero columns of a sparse matrix; errors name the `data` behind means."""
    matrix = matrix.tocsc()
    filled = np.flatnonzero(np.diff(matrix.indptr))
    if filled.size * matrix.shape[0] > _MOST_DENSE_NUMBERS:
        why = f"the means are computed from {data[0].name!r}, which may change: " if data else ""
        instead = ". Write numbers in its place" if data else ""
        raise Declined(
            f"{why}{filled.size} sums over the same {matrix.shape[0]} records are too many to tell "
            f"which of them depend on each other{instead}"
        )
    return matrix[:, filled].toarray()


def _orthonormal(columns: np.ndarray, name: str) -> np.ndarray:
    """Return an orthonormal basis of the span of columns."""
    if not np.all(np.isfinite(columns)):
        raise Declined(f"numbers in the sums or means of {name!r} are not finite")
    lengths = np.linalg.norm(columns, axis=0)
    columns = columns[:, lengths > 0] / lengths[lengths > 0]
    if not columns.size:
        return np.zeros((columns.shape[0], 0))
    q, r, _ = linalg.qr(columns, mode="economic", pivoting=True)
    return q[:, np.abs(np.diag(r)) > _DEPENDENT]
