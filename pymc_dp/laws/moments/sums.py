r"""Sums over n rows and sums of products of their columns, as functions of standard latents.

For jointly Normal rows with mean m and covariance LL' the sample mean :math:`m + L e/\sqrt n` and
the scatter matrix :math:`L A A' L'` are exact (Bartlett, 1933), with standard Normal e and a lower
triangular A: :math:`A_{ij} \sim N(0, 1)` below the diagonal and
:math:`A_{ii}^2 \sim \chi^2_{n-1-i}`, i from 0.

The central limit theorem replaces the sums by Normal variables with the same means and covariances
(Bernstein & Sheldon, 2019). They are written as linear functions of standard Normal latents, so
that their covariance matrix is positive semidefinite by construction and need not be factorised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable
from scipy import optimize

from pymc_dp.laws.moments.latents import are_small_blocks, matvec, solve_lower
from pymc_dp.mechanisms.arguments import as_float

# The relative difference of E x^4 and (E x)^4, about 6 var(x) / (E x)^2. Below this, rounding
# leaves less than three digits of the fourth central moment.
LEAST_SPREAD = 2e-6
_FARTHEST = 30.0  # bound on |log(spread / spread at the start of a search)|


@dataclass(frozen=True)
class RowSums:
    """The sums over n rows.

    Attributes
    ----------
    center : vector around which the deviations are summed.
    first : sums of deviations; None at the sample mean, where they are zero.
    second : matrix of the sums of products of deviations.
    """

    center: TensorVariable
    first: TensorVariable | None
    second: TensorVariable

    def moments(self, n: int | np.ndarray) -> tuple[TensorVariable, TensorVariable]:
        """Return the sample mean and the sample covariance matrix (ddof=1), NaN of one row."""
        if self.first is None:
            return self.center, self.second / np.where(n > 1, n - 1.0, np.nan)[..., None, None]
        shift = self.first / n
        scatter = self.second - n * pt.outer(shift, shift)
        return self.center + shift, scatter / (n - 1)


@dataclass(frozen=True)
class ExactLatents:
    """The latents of jointly Normal rows: e, the entries of A below its diagonal, and those on it.

    The diagonal is given by standardised logarithms of Gamma variables, see `row_latents`. A has at
    most n - 1 columns: the latents of further columns are not used. With several groups of rows,
    all results have a leading axis.

    Attributes
    ----------
    width : number of columns.
    n : number of rows; a vector for several groups.
    """

    width: int
    n: int | np.ndarray

    @property
    def below(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns of the entries below the diagonal."""
        return np.tril_indices(self.width, -1)

    @property
    def size(self) -> int:
        """Number of latents."""
        return self.width + self.width * (self.width + 1) // 2

    @property
    def alpha(self) -> np.ndarray:
        """Shapes of the Gamma variables, of which the diagonal of A is sqrt(2 g)."""
        return np.maximum(self._freedom, 1.0) / 2

    @property
    def _freedom(self) -> np.ndarray:
        """Degrees of freedom of the squared diagonal of A; at most 0 where a column is not used."""
        return np.asarray(self.n)[..., None] - 1.0 - np.arange(self.width)

    def sums(self, mean, root, z) -> RowSums:
        """Return the sums for latents z."""
        e, below, log = self.split(z)
        diagonal = np.sqrt(2 * self.alpha) * pt.exp(log / (2 * np.sqrt(self.alpha)))
        # The entries of A are put in place by a product with a 0-1 matrix.
        w, (i, j) = self.width, self.below
        put = np.eye(w * w)[np.concatenate([i, np.arange(w)]) * w + [*j, *range(w)]]
        lower = pt.concatenate([below, diagonal], axis=-1) @ put
        lower = lower.reshape((*np.shape(self.n), w, w)) * (self._freedom > 0)[..., None, :]
        factor = _product(root, lower)
        center = mean + matvec(root, e) / np.sqrt(np.asarray(self.n)[..., None])
        return RowSums(center, None, _product(factor, pt.matrix_transpose(factor)))

    def split(self, z) -> tuple:
        """Return e, the entries below the diagonal, and the logarithms."""
        w = self.width
        return z[..., :w], z[..., w:-w], z[..., -w:]

    def at(self, mean, root, sample_mean, factor) -> TensorVariable:
        """Return the latents of a sample: its mean, and the Cholesky factor of its scatter."""
        factor = pt.as_tensor(factor)
        if are_small_blocks(root):
            columns = [solve_lower(root, factor[..., j]) for j in range(self.width)]
            lower = pt.stack(columns, axis=-1)
        else:
            lower = pt.linalg.solve_triangular(root, factor, lower=True)
        shift = solve_lower(root, sample_mean - mean)
        diagonal = pt.diagonal(lower, axis1=-2, axis2=-1)
        log = 2 * np.sqrt(self.alpha) * (pt.log(diagonal) - 0.5 * np.log(2 * self.alpha))
        i, j = self.below
        entries = pt.concatenate([lower[..., i, j], log], axis=-1)
        used = (self._freedom > 0)[..., [*j, *range(self.width)]]
        center = np.sqrt(np.asarray(self.n)[..., None]) * shift
        return pt.concatenate([center, pt.switch(used, entries, 0.0)], axis=-1)

    def tangent(self, mean: np.ndarray, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and factor of a `RowLaw`: the sums, linearised in the latents at a sample.

        Parameters
        ----------
        mean, factor : vector and lower triangular matrix
            Mean of the sample, and the Cholesky factor of its scatter matrix.
        """
        w, n = self.width, int(self.n)
        root = factor / np.sqrt(n)
        # Latent (i, j) of A moves column j of the factor by column i of the root.
        i, j = (np.concatenate([indices, np.arange(w)]) for indices in self.below)
        moved = root[:, i] * np.where(i == j, np.sqrt(0.5), 1.0)
        kept = factor[:, j] * (j < n - 1)
        a, b = np.triu_indices(w)
        scatter = moved[a] * kept[b] + kept[a] * moved[b]
        location = np.sqrt(n) * (root[a] * mean[b][:, None] + mean[a][:, None] * root[b])
        first = np.hstack([np.sqrt(n) * root, np.zeros((w, i.size))])
        moves = np.vstack([first, np.hstack([location, scatter])])
        sums = sample_sums(mean, factor, n) / n
        return sums, moves / np.sqrt(n)


def _product(a: TensorVariable, b: TensorVariable) -> TensorVariable:
    """Multiply matrices, of several blocks by their columns."""
    if not are_small_blocks(a):
        return a @ b
    return pt.stack([matvec(a, b[..., j]) for j in range(b.type.shape[-1])], axis=-1)


def sample_sums(mean: np.ndarray, factor: np.ndarray, n: int) -> np.ndarray:
    """Return the sums of n rows with this mean and factor of their scatter: `column_products`.

    The scatter of n rows has rank n - 1: further columns of the factor are not used.
    """
    used = factor[:, : n - 1]
    second = used @ used.T + n * np.outer(mean, mean)
    return np.concatenate([n * mean, second[np.triu_indices(len(mean))]])


def nearest_sample(
    matrix: np.ndarray,
    z: np.ndarray,
    sd: np.ndarray,
    n: int,
    start: tuple[np.ndarray, np.ndarray],
    root: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and factor of the scatter of n rows whose sums are close to the released sums.

    Parameters
    ----------
    matrix, z, sd
        ``z = matrix @ sums`` plus noise of standard deviation sd; sums as in `column_products`.
    start : pair of arrays
        Mean and Cholesky factor to start from, and to keep where the releases do not determine
        them.
    root
        Cholesky factor of the covariance matrix of the rows, if known roughly: the most probable
        sample is then returned.
    """
    start_mean, start_factor = start
    w = len(start_mean)
    rows, columns = np.tril_indices(w)
    diagonal = rows == columns
    if root is not None:
        freedom = np.maximum(n - 1.0 - np.arange(w), 1.0)
        start_factor = root * np.sqrt(freedom)
    a, b = np.triu_indices(w)
    pair = w + np.arange(a.size)
    unit = np.sqrt((start_factor**2).sum(axis=1) / n)
    scale = 1e3 * np.concatenate([unit, np.where(diagonal, 1.0, unit[rows] * np.sqrt(n))])
    if root is not None:
        moved = np.tril(np.cumsum(root[:, ::-1] ** 2, axis=1)[:, ::-1] - 0.5 * root**2)
        variances = np.where(diagonal, 0.5 / freedom[columns], moved[rows, columns])
        scale[w:] = np.sqrt(np.maximum(variances, 1e-300))

    def coordinates(mean, factor):
        entries = factor[rows, columns]
        return np.concatenate([mean, np.log(entries, out=entries, where=diagonal)])

    first = coordinates(start_mean, start_factor)
    low, high = (np.where(diagonal, first[w:] + k, np.inf * k) for k in (-_FARTHEST, _FARTHEST))

    def sample(c):
        factor, entries = np.zeros((w, w)), np.clip(c[w:], low, high)
        factor[rows, columns] = np.exp(entries, out=entries, where=diagonal)
        return c[:w], factor

    def around(mean):
        """Return T: the sums are those at the mean plus T times the sums of deviations from it."""
        transfer = np.eye(w + a.size)
        transfer[pair, a] += mean[b]
        transfer[pair, b] += mean[a]
        return transfer

    def residual(c):
        misfit = (matrix @ sample_sums(*sample(c), n) - z) / sd
        return np.concatenate([misfit, (c - first) / scale])

    def jacobian(c):
        mean, factor = sample(c)
        speed = np.where(diagonal, factor[rows, columns], 1.0)
        moved = (a[:, None] == rows) * factor[b][:, columns]
        moved += (b[:, None] == rows) * factor[a][:, columns]
        moved *= columns < n - 1
        location = n * around(mean)[w:, :w]
        top = np.hstack([n * np.eye(w), np.zeros((w, rows.size))])
        slopes = matrix @ np.vstack([top, np.hstack([location, moved * speed])])
        return np.vstack([slopes / sd[:, None], np.diag(1.0 / scale)])

    def polished(begin):
        solution = optimize.least_squares(
            residual, begin, jacobian, method="lm", x_scale="jac", ftol=1e-2, max_nfev=30
        )
        return sample(solution.x)

    if root is not None:
        begins = [first, coordinates(*start)]
        return polished(min(begins, key=lambda c: float(np.sum(residual(c) ** 2))))
    # The sums of deviations from a point are linear in the releases: solve for them, from a point
    # close by, where they do not cancel. The search only polishes the solution.
    size = n * np.concatenate([unit, unit[a] * unit[b]])
    mean, factor = start
    for _ in range(3):
        weighted = (matrix @ around(mean)) * size / sd[:, None]
        remainder = (z - matrix @ sample_sums(mean, factor, n)) / sd
        if np.all(np.abs(remainder) < 1e-6):
            break
        move = size * np.linalg.lstsq(weighted, remainder)[0]
        shift, used = move[:w] / n, factor[:, : n - 1]
        scatter = used @ used.T
        scatter[a, b] += move[w:]
        factor = _near_factor(scatter - n * np.outer(shift, shift), np.sqrt(n) * unit)
        factor[:, n - 1 :] = start_factor[:, n - 1 :]
        mean = mean + shift
    begin = coordinates(mean, factor)
    if np.all(np.abs(residual(begin)[: z.size]) < 1.0):
        return mean, factor
    return polished(begin)


def _near_factor(scatter: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Return the Cholesky factor of a scatter, or of a positive definite matrix near it."""
    scale = np.sqrt(np.abs(np.diag(scatter)))
    scale = np.where(scale > 0.0, scale, unit)
    values, vectors = np.linalg.eigh(scatter / np.outer(scale, scale), UPLO="U")
    if values[0] > 1e-9:
        return np.linalg.cholesky(scatter, upper=True).T
    half = scale[:, None] * vectors * np.sqrt(np.maximum(values, 1e-3))
    upper = np.linalg.qr(half.T, mode="r")
    return (upper * np.sign(np.diag(upper))[:, None]).T


def normal_sums(mean, root, n: int, width: int, z) -> RowSums:
    r"""Return the sums of Normal rows by the central limit theorem.

    :math:`\sum_i (r_i - m) = \sqrt n L e` and :math:`\sum_i (r_i - m)(r_i - m)' = L (n I + \sqrt n
    Z) L'` with :math:`e_a, Z_{ab} \sim N(0, 1)` and :math:`Z_{aa} \sim N(0, 2)`, uncorrelated.

    Parameters
    ----------
    z : vector of width + width (width + 1) / 2
        The latents.
    """
    e, pairs = z[:width], z[width:]
    rows, columns = np.triu_indices(width)
    scaled = pairs * np.where(rows == columns, np.sqrt(2.0), 1.0)
    symmetric = pt.zeros((width, width))[rows, columns].set(scaled)[columns, rows].set(scaled)
    first = np.sqrt(n) * root @ e
    second = root @ (n * pt.eye(width) + np.sqrt(n) * symmetric) @ root.T
    return RowSums(mean, first, second)


@dataclass(frozen=True)
class RowLaw:
    """Normal law of the columns of a row and of the products of two of its columns.

    Attributes
    ----------
    products : the monomials: (j,) and (i, j) with i <= j.
    mean : the means of the monomials.
    factor : a matrix F; FF' is the covariance matrix of the monomials.
    """

    products: list[tuple[int, ...]]
    mean: TensorVariable
    factor: TensorVariable

    def of(self, polynomials, n: int) -> tuple[TensorVariable, TensorVariable]:
        """Return mean and factor of linear functions of the sums over n rows."""
        matrix, offset = matrix_of(polynomials, self.products)
        return offset + n * (matrix @ self.mean), np.sqrt(n) * (matrix @ self.factor)


def matrix_of(polynomials, products) -> tuple[Any, Any]:
    """Return polynomials of degree one as a matrix, with a column for each product, and offsets.

    Both are arrays, or graphs where a coefficient is one.
    """
    order = {product: k for k, product in enumerate([(), *products])}
    table = np.zeros((len(polynomials), len(order)), dtype=object)
    for row, polynomial in zip(table, polynomials, strict=True):
        for monomial, coefficient in polynomial.items():
            row[order[monomial]] = coefficient
    if any(isinstance(c, Variable) for c in table.flat):
        matrix = pt.stack([pt.stack([as_float(pt.as_tensor(c)) for c in row]) for row in table])
    else:
        matrix = table.astype("float64")
    return matrix[:, 1:], matrix[:, 0]


def column_products(width: int) -> list[tuple[int, ...]]:
    """Return the single columns, then the products of two, row by row of the upper triangle."""
    pairs = zip(*(index.tolist() for index in np.triu_indices(width)), strict=True)
    return [*((k,) for k in range(width)), *pairs]


def feature_products(d: int) -> list[tuple[int, ...]]:
    """Return the columns behind x_i x_j (i <= j, the first left out), x_i y and y y, with x_0 = 1.

    The covariates are columns 0 to d - 2, and y is column d - 1.
    """
    i, j = (index[1:].tolist() for index in np.triu_indices(d))
    pairs = [*zip(i, j, strict=True), *((k, d) for k in range(d)), (d, d)]
    return [tuple(c - 1 for c in pair if c) for pair in pairs]


def normal_law(mean, root, width: int) -> RowLaw:
    r"""Return the law of the products of jointly Normal columns, :math:`r = m + L e`.

    :math:`r_i r_j - E\, r_i r_j = m_i (Le)_j + m_j (Le)_i + \sum_{a \le b} (L_{ia} L_{jb} +
    L_{ib} L_{ja}) (e_a e_b - \delta_{ab}) / (1 + \delta_{ab})`: all terms are uncorrelated.
    """
    i, j = np.triu_indices(width)
    a, b = np.triu_indices(width)
    left, right = root[i], root[j]
    linear = mean[i][:, None] * right + mean[j][:, None] * left
    scale = np.where(a == b, np.sqrt(0.5), 1.0)  # e_a^2 has variance 2
    pairs = (left[:, a] * right[:, b] + left[:, b] * right[:, a]) * scale
    top = pt.concatenate([root, pt.zeros((width, a.size))], axis=1)
    factor = pt.concatenate([top, pt.concatenate([linear, pairs], axis=1)], axis=0)
    second = (left * right).sum(axis=1) + mean[i] * mean[j]
    return RowLaw(column_products(width), pt.concatenate([mean, second]), factor)
