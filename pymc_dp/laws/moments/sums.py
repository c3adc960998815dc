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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.distribution import _support_point
from pymc.logprob.abstract import _logprob
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable
from scipy import optimize

from pymc_dp.laws.one_value import IntegratedReleaseRV
from pymc_dp.mechanisms import GaussianMechanism
from pymc_dp.mechanisms.base import Mechanism, as_float

# What E x^4 differs by from the fourth power of E x, relatively, about 6 var(x) / (E x)^2: below,
# rounding leaves its fourth central moment less than three digits.
_LEAST_SPREAD = 2e-6
_FARTHEST = 30.0  # logarithm of what a spread may be of the one that a search starts from


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

    def moments(self, n: int) -> tuple[TensorVariable, TensorVariable]:
        """Return the sample mean and the sample covariance matrix (ddof=1)."""
        if self.first is None:
            return self.center, self.second / (n - 1)
        shift = self.first / n
        scatter = self.second - n * pt.outer(shift, shift)
        return self.center + shift, scatter / (n - 1)


@dataclass(frozen=True)
class ExactLatents:
    """The latents of jointly Normal rows: e, the entries of A below its diagonal, and those on it.

    The latter are standardised logarithms of Gamma variables, see `row_latents`.

    Attributes
    ----------
    width : number of columns.
    n : number of rows.
    """

    width: int
    n: int

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
        return (self.n - 1 - np.arange(self.width, dtype="float64")) / 2

    def sums(self, mean, root, z) -> RowSums:
        """Return the sums at latents z."""
        e, below, log = self.split(z)
        diagonal = np.sqrt(2 * self.alpha) * pt.exp(log / (2 * np.sqrt(self.alpha)))
        factor = root @ pt.diag(diagonal)[self.below].set(below)
        return RowSums(mean + root @ e / np.sqrt(self.n), None, factor @ factor.T)

    def split(self, z) -> tuple:
        """Return e, the entries below the diagonal, and the logarithms."""
        w = self.width
        return z[:w], z[w:-w], z[-w:]

    def at(self, mean, root, sample_mean, factor) -> TensorVariable:
        """Return the latents of a sample: its mean, and the Cholesky factor of its scatter."""
        lower = pt.linalg.solve_triangular(root, pt.as_tensor(factor), lower=True)
        shift = pt.linalg.solve_triangular(root, sample_mean - mean, lower=True, b_ndim=1)
        ratio = pt.log(pt.diagonal(lower)) - 0.5 * np.log(2 * self.alpha)
        log = 2 * np.sqrt(self.alpha) * ratio
        return pt.concatenate([np.sqrt(self.n) * shift, lower[self.below], log])

    def tangent(self, mean: np.ndarray, factor: np.ndarray) -> RowLaw:
        """Return the sums as linear functions of the latents, at a sample that is as expected.

        Parameters
        ----------
        mean, factor : vector and lower triangular matrix
            Mean of the sample, and the Cholesky factor of its scatter matrix.
        """
        w, n = self.width, self.n
        root = factor / np.sqrt(n)
        # Latent (i, j) of A moves column j of the factor by column i of the root.
        i, j = (np.concatenate([own, np.arange(w)]) for own in self.below)
        moved = root[:, i] * np.where(i == j, np.sqrt(0.5), 1.0)
        kept = factor[:, j]
        a, b = np.triu_indices(w)
        scatter = moved[a] * kept[b] + kept[a] * moved[b]
        location = np.sqrt(n) * (root[a] * mean[b][:, None] + mean[a][:, None] * root[b])
        first = np.hstack([np.sqrt(n) * root, np.zeros((w, i.size))])
        moves = np.vstack([first, np.hstack([location, scatter])])
        second = factor @ factor.T / n + np.outer(mean, mean)
        sums = np.concatenate([mean, second[a, b]])
        return RowLaw(column_products(w), pt.constant(sums), pt.constant(moves / np.sqrt(n)))


def nearest_sample(
    matrix: np.ndarray,
    z: np.ndarray,
    sd: np.ndarray,
    n: int,
    start: tuple[np.ndarray, np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and factor of the scatter of n rows whose sums are near to released ones.

    Parameters
    ----------
    matrix, z, sd
        The sums, in the order of `column_products`, times `matrix` are z but for noise of sd.
    start : pair of arrays
        Mean and Cholesky factor to start from, which stand where the releases leave them open.
    """
    start_mean, start_factor = start
    w = len(start_mean)
    rows, columns = np.tril_indices(w)
    diagonal = rows == columns
    a, b = np.triu_indices(w)
    pair = w + np.arange(a.size)
    unit = np.sqrt((start_factor**2).sum(axis=1) / n)
    scale = np.concatenate([unit, np.where(diagonal, 1.0, unit[rows] * np.sqrt(n))])

    def coordinates(mean, factor):
        entries = factor[rows, columns]
        return np.concatenate([mean, np.log(entries, out=entries, where=diagonal)])

    first = coordinates(start_mean, start_factor)
    low, high = (np.where(diagonal, first[w:] + k, np.inf * k) for k in (-_FARTHEST, _FARTHEST))

    def sample(c):
        factor, entries = np.zeros((w, w)), np.clip(c[w:], low, high)
        factor[rows, columns] = np.exp(entries, out=entries, where=diagonal)
        return c[:w], factor

    def sums(mean, factor):
        second = factor @ factor.T + n * np.outer(mean, mean)
        return np.concatenate([n * mean, second[a, b]])

    def around(mean):
        """Return the map from the sums of deviations from a point, to be added to its own."""
        found = np.eye(w + a.size)
        found[pair, a] += mean[b]
        found[pair, b] += mean[a]
        return found

    def residual(c):
        own = (matrix @ sums(*sample(c)) - z) / sd
        return np.concatenate([own, 1e-3 * (c - first) / scale])

    def jacobian(c):
        mean, factor = sample(c)
        speed = np.where(diagonal, factor[rows, columns], 1.0)
        moved = (a[:, None] == rows) * factor[b][:, columns]
        moved += (b[:, None] == rows) * factor[a][:, columns]
        location = n * around(mean)[w:, :w]
        top = np.hstack([n * np.eye(w), np.zeros((w, rows.size))])
        own = matrix @ np.vstack([top, np.hstack([location, moved * speed])])
        return np.vstack([own / sd[:, None], np.diag(1e-3 / scale)])

    # The sums of deviations from any point are linear in the releases: the search has only to
    # polish what they say. From near by they do not cancel.
    size = n * np.concatenate([unit, unit[a] * unit[b]])
    mean, factor = start
    for _ in range(3):
        weighted = (matrix @ around(mean)) * size / sd[:, None]
        left = (z - matrix @ sums(mean, factor)) / sd
        move = size * np.linalg.lstsq(weighted, left)[0]
        shift, scatter = move[:w] / n, factor @ factor.T
        scatter[a, b] += move[w:]
        factor = _near_factor(scatter - n * np.outer(shift, shift), np.sqrt(n) * unit)
        mean = mean + shift
    begin = coordinates(mean, factor)
    if np.all(np.abs(residual(begin)[: z.size]) < 1.0):
        return mean, factor
    found = optimize.least_squares(
        residual, begin, jacobian, method="lm", x_scale="jac", ftol=1e-2, max_nfev=30
    )
    return sample(found.x)


def _near_factor(scatter: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Return the Cholesky factor of a scatter, or of one near it where noise left none of rows."""
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
class Moments:
    """Moments of the covariates of one row up to order four, as roots of covariance matrices.

    Attributes
    ----------
    mean : the mean of the products x_i x_j, i <= j, of (1, x), without the first.
    root : a matrix F with FF' their covariance.
    second : E x x' of (1, x).
    second_root : a matrix G with GG' = second.
    moved : how far they are from those that were given, of which there may be no law.
    """

    mean: np.ndarray
    root: np.ndarray
    second: np.ndarray
    second_root: np.ndarray
    moved: float

    def shifted(self, by: np.ndarray) -> Moments:
        """Return the moments of x + by.

        Those of a law are far apart in size where it is far from zero: computed around its mean,
        and shifted as roots, they lose nothing.
        """
        d = len(self.second)
        shift = np.eye(d)
        shift[1:, 0] = by
        i, j = np.triu_indices(d)
        products = shift[i[:, None], i] * shift[j[:, None], j]
        products += np.where(i == j, 0.0, shift[i[:, None], j] * shift[j[:, None], i])
        root, second_root = products[1:, 1:] @ self.root, shift @ self.second_root
        mean = products[1:] @ np.append(1.0, self.mean)
        return Moments(mean, root, shift @ self.second @ shift.T, second_root, self.moved)

    @property
    def width(self) -> int:
        """Number of covariates, without the intercept."""
        return len(self.second) - 1


@dataclass(frozen=True)
class RowLaw:
    """Normal law of the sums of columns and of products of two columns, for one row.

    Attributes
    ----------
    products : the monomials: (j,) and (i, j) with i <= j.
    mean : their means.
    factor : a matrix F with FF' their covariance.
    """

    products: list[tuple[int, ...]]
    mean: TensorVariable
    factor: TensorVariable

    def of(self, polynomials, n: int) -> tuple[TensorVariable, TensorVariable]:
        """Return mean and factor of linear functions of the sums over n rows."""
        matrix, offset = linear_map(polynomials, self.products)
        return offset + n * (matrix @ self.mean), np.sqrt(n) * (matrix @ self.factor)


def linear_map(polynomials, products) -> tuple[Any, Any]:
    """Return polynomials of degree one as a matrix, with a column for each product, and offsets.

    Both are arrays, or graphs where a coefficient is one.
    """
    order = {product: k for k, product in enumerate([(), *products])}
    table = np.zeros((len(polynomials), len(order)), dtype=object)
    for row, polynomial in zip(table, polynomials, strict=True):
        for monomial, coefficient in polynomial.items():
            row[order[monomial]] = coefficient
    if any(isinstance(c, Variable) for c in table.flat):
        found = pt.stack([pt.stack([as_float(pt.as_tensor(c)) for c in row]) for row in table])
    else:
        found = table.astype("float64")
    return found[:, 1:], found[:, 0]


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
    L_{ib} L_{ja}) (e_a e_b - \delta_{ab}) / (1 + \delta_{ab})`, of which all terms are
    uncorrelated.
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


def moment_law(moments: Moments, intercept, slope, sigma) -> RowLaw:
    r"""Return the law of the products of (x, y), y | x Normal, from the moments of x.

    With features :math:`\tilde x = (1, x)`, :math:`\tilde x y` and :math:`y^2` are
    :math:`\tilde x\tilde x'\theta + \tilde x\varepsilon` and :math:`\theta'\tilde x\tilde
    x'\theta + 2\theta'\tilde x\varepsilon + \varepsilon^2`; products of features, of features and
    errors and the squared error are uncorrelated.
    """
    d, g = moments.second_root.shape
    theta = pt.concatenate([pt.atleast_1d(intercept), slope])
    rows, columns = (index[1:] for index in np.triu_indices(d))
    each = np.zeros((d, d, rows.size))  # which product x_i x_j is
    each[rows, columns, np.arange(rows.size)] = each[columns, rows, np.arange(rows.size)] = 1.0
    jacobian = (theta @ each.reshape(d, -1)).reshape((d, rows.size))
    xy = jacobian @ moments.root
    g_root = sigma * moments.second_root
    blocks = [
        [pt.constant(moments.root), pt.zeros((rows.size, g + 1))],
        [xy, g_root, pt.zeros((d, 1))],
        [
            (theta @ xy)[None],
            2 * (theta @ g_root)[None],
            (np.sqrt(2.0) * sigma**2).reshape((1, 1)),
        ],
    ]
    factor = pt.concatenate([pt.concatenate(row, axis=1) for row in blocks], axis=0)
    mean_xy = moments.second @ theta
    mean = pt.concatenate([moments.mean, mean_xy, (theta @ mean_xy + sigma**2).reshape((1,))])
    return RowLaw(feature_products(d), mean, factor)


def read_moments(fourth) -> Moments:
    r"""Return moments that are positive semidefinite, the nearest to the given ones.

    Parameters
    ----------
    fourth : array of shape (d, d, d, d)
        :math:`E\\, x_i x_j x_k x_l` of features with :math:`x_0 = 1`, or for one covariate the
        vector of its first four moments.
    """
    fourth = np.asarray(fourth, dtype="float64")
    if fourth.ndim == 1:
        powers = np.concatenate([[1.0], fourth])
        index = np.indices((2, 2, 2, 2)).sum(axis=0)
        fourth = powers[index] if powers.size == 5 else np.empty((0,))
    d = fourth.shape[0] if fourth.ndim else 0
    if fourth.shape != (d, d, d, d) or d < 2 or not np.all(np.isfinite(fourth)):
        raise ValueError(
            "moments= must be E[x_i x_j x_k x_l] of the features (1, x) as an array of shape "
            "(d, d, d, d), or the first four moments of a single covariate"
        )
    if abs(fourth[0, 0, 0, 0] - 1.0) > 1e-9:
        raise ValueError(
            f"moments=: the first feature is the intercept, and its moments are 1; got "
            f"{fourth[0, 0, 0, 0]}. Divide sums by the number of rows"
        )
    powers = np.abs(np.einsum("iiii->i", fourth))
    size = np.multiply.outer(np.outer(powers, powers), np.outer(powers, powers)) ** 0.25
    for axes in ((1, 0, 2, 3), (1, 2, 3, 0)):  # of which all permutations are made
        wrong = np.abs(fourth - fourth.transpose(axes)) > 1e-9 * size
        if np.any(wrong):
            one = tuple(int(k) for k in np.argwhere(wrong)[0])
            other = tuple(one[k] for k in np.argsort(axes))
            raise ValueError(
                f"moments=: the entries {one} and {other} are moments of the same product, and "
                f"differ: {fourth[one]} and {fourth[other]}. Write every order of the indices: "
                f"np.einsum('ni,nj,nk,nl->ijkl', x, x, x, x) / len(x) does, of rows (1, x)"
            )
    for k in range(1, d):
        if abs(fourth[k, k, k, k] - fourth[0, 0, 0, k] ** 4) < _LEAST_SPREAD * powers[k]:
            raise ValueError(
                f"moments=: the covariate {k} is so far from zero against its spread that no "
                f"digits of it are left in E x^4 = {fourth[k, k, k, k]:g}. Write the model for the "
                f"covariate less a public number that is near to its mean, and its moments"
            )
    rows, columns = (index[1:] for index in np.triu_indices(d))
    second = fourth[0, 0]
    mean = second[rows, columns]
    cov = fourth[rows[:, None], columns[:, None], rows, columns] - np.outer(mean, mean)
    root, moved = _root(cov, fourth[rows, columns, rows, columns])
    # The covariance of the covariates is part of it, so that what was moved agrees.
    spread = np.linalg.qr(root[: d - 1].T, mode="r").T
    top = np.eye(1, 1 + spread.shape[1])
    second_root = np.vstack([top, np.hstack([second[1:, :1], spread])])
    second = second_root @ second_root.T
    return Moments(second[rows, columns], root, second, second_root, moved)


def _root(matrix: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, float]:
    """Return F with FF' the nearest positive semidefinite matrix, and how far it was.

    Nearest in the units of the variances, or of the mean squares `size` where these are so small
    that they may be rounding: of the square of a covariate of two values, say.
    """
    scale = np.sqrt(np.maximum(np.abs(np.diag(matrix)), 1e-3 * np.abs(size)))
    scale[scale == 0.0] = 1.0
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2 / np.outer(scale, scale))
    largest = np.abs(values).max()
    moved = max(0.0, -values.min()) / max(largest, np.finfo(float).tiny)
    moved = moved if moved > 1e-12 else 0.0
    if moved:  # a regression divides by them: what was negative becomes small, not zero
        values = np.maximum(values, 1e-9 * largest)
    keep = values > 1e-14 * largest
    return scale[:, None] * vectors[:, keep] * np.sqrt(values[keep]), moved


def moment_sums(moments: Moments, intercept, slope, sigma, n: int, z) -> RowSums:
    r"""Return the sums of rows (x, y), y | x Normal, by the central limit theorem.

    With features :math:`\tilde x = (1, x)` and errors :math:`\varepsilon`, the sums
    :math:`U = \tilde X'\tilde X`, :math:`g = \tilde X'\varepsilon` and :math:`\varepsilon'
    \varepsilon` of one row are uncorrelated, and :math:`\tilde X'y = U\theta + g`,
    :math:`y'y = \theta'U\theta + 2\theta'g + \varepsilon'\varepsilon`.

    Parameters
    ----------
    z : vector
        Standard Normal latents: as many as `moments.root` and `moments.second_root` have columns,
        and one.
    """
    p, k = moments.width, moments.root.shape[1]
    theta = pt.concatenate([pt.atleast_1d(intercept), slope])
    products = n * moments.mean + np.sqrt(n) * (moments.root @ z[:k])
    rows, columns = (index[1:] for index in np.triu_indices(p + 1))
    u = pt.zeros((p + 1, p + 1))[0, 0].set(float(n))
    u = u[rows, columns].set(products)[columns, rows].set(products)
    g = np.sqrt(n) * sigma * (moments.second_root @ z[k:-1])
    squares = sigma**2 * (n + np.sqrt(2.0 * n) * z[-1])
    xy = u @ theta + g
    yy = theta @ u @ theta + 2 * theta @ g + squares
    first = pt.concatenate([u[0, 1:], xy[:1]])
    top = pt.concatenate([u[1:, 1:], xy[1:, None]], axis=1)
    bottom = pt.concatenate([xy[1:], pt.atleast_1d(yy)])[None]
    second = pt.concatenate([top, bottom], axis=0)
    return RowSums(pt.zeros(p + 1), first, second)


def moment_latents(moments: Moments) -> int:
    """Return the number of latents of `moment_sums`."""
    return moments.root.shape[1] + moments.second_root.shape[1] + 1


class NormalReleaseRV(IntegratedReleaseRV):
    r"""A release of jointly Normal statistics :math:`s = m + F e`, integrated out.

    Given the variances of the noise, :math:`z \sim N(m, FF' + \mathrm{diag}(w))`. Gaussian noise
    has known ones; those of Laplace noise are variables of the model,
    :math:`w_j \sim \mathrm{Exp}(1/(2 b_j^2))`. Draws are made with fresh noise of the mechanism.

    Inputs are two rngs, m, F, the mechanism's parameters and, under Laplace noise, w.
    """

    _print_name = ("NormalRelease", "\\operatorname{NormalRelease}")
    shape: tuple[int, ...]

    @property
    def nuts_rate(self) -> float:
        """Effective draws a second to be expected of NUTS on it, see `sampling.Route`."""
        return 5_000.0

    def law(self, inputs):
        """Return the mean, the factor and the variances of the noise."""
        _, _, mean, factor, *rest = inputs
        if isinstance(self.mechanism, GaussianMechanism):
            [sigma] = rest
            return mean, factor, pt.broadcast_to(sigma**2, self.shape).ravel()
        return mean, factor, rest[-1]


def normal_release_rv(
    mean: TensorVariable,
    factor: TensorVariable,
    mechanism: Mechanism,
    *,
    shape: Sequence[int],
    names: tuple[str, ...],
    variance: TensorVariable | None = None,
) -> TensorVariable:
    """Build the release of jointly Normal statistics, raveled in `mean` and `factor`."""
    inputs = [
        *(pt.random.shared_rng(seed=None) for _ in range(2)),
        mean,
        factor,
        *mechanism.parameters,
        *([] if variance is None else [variance]),
    ]
    dummies = [variable.type() for variable in inputs]
    rng, rng_statistic, m, f, *rest = dummies
    next_statistic, e = pt.random.normal(
        size=(f.shape[1],), rng=rng_statistic, return_next_rng=True
    )
    statistic = (m + f @ e).reshape(tuple(shape))
    own = mechanism.with_parameters(*rest[: len(mechanism.parameters)])
    next_rng, draw = own.noise_sample(rng, statistic)
    cores = ",".join(f"({','.join(f'i{k}_{j}' for j in range(v.type.ndim))})"
                     for k, v in enumerate(dummies[2:]))  # fmt: skip
    out = ",".join(f"o{j}" for j in range(len(shape)))
    op = NormalReleaseRV(
        dummies,
        [next_rng, next_statistic, draw],
        extended_signature=f"[rng],[rng],{cores}->[rng],[rng],({out})",
    )
    op.mechanism, op.names, op.shape = mechanism, names, tuple(shape)
    return op(*inputs)


@_logprob.register(NormalReleaseRV)
def _normal_release_logprob(op, values, *inputs, **kwargs):
    [value] = values
    mean, factor, noise = op.law(inputs)
    chol = pt.linalg.cholesky(factor @ factor.T + pt.diag(noise))
    residual = pt.linalg.solve_triangular(chol, value.ravel() - mean, lower=True, b_ndim=1)
    k = int(np.prod(op.shape))
    return (
        -0.5 * (residual**2).sum() - pt.log(pt.diagonal(chol)).sum() - 0.5 * k * np.log(2 * np.pi)
    )


@_support_point.register(NormalReleaseRV)
def _normal_release_support_point(op, rv, *inputs):
    return inputs[2].reshape(op.shape)
