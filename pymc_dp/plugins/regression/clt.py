"""The central limit theorem's law of the sums over the rows of a regression."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt

from pymc_dp.laws.moments.sums import LEAST_SPREAD, RowLaw, RowSums, feature_products


@dataclass(frozen=True)
class CovariateMoments:
    """Moments of the covariates of one row up to order four, as roots of covariance matrices.

    Attributes
    ----------
    mean : the mean of the products x_i x_j, i <= j, of (1, x), without the first.
    root : a matrix F with FF' their covariance.
    second : E x x' of (1, x).
    second_root : a matrix G with GG' = second.
    moved : the relative distance from the stated moments, 0 where these are those of a law.
    """

    mean: np.ndarray
    root: np.ndarray
    second: np.ndarray
    second_root: np.ndarray
    moved: float

    def shifted(self, by: np.ndarray) -> CovariateMoments:
        """Return the moments of x + by.

        Moments of a law far from zero differ much in size. Computed around its mean, and shifted
        as roots of covariance matrices, they lose no digits.
        """
        d = len(self.second)
        shift = np.eye(d)
        shift[1:, 0] = by
        i, j = np.triu_indices(d)
        products = shift[i[:, None], i] * shift[j[:, None], j]
        products += np.where(i == j, 0.0, shift[i[:, None], j] * shift[j[:, None], i])
        root, second_root = products[1:, 1:] @ self.root, shift @ self.second_root
        mean = products[1:] @ np.append(1.0, self.mean)
        return CovariateMoments(mean, root, shift @ self.second @ shift.T, second_root, self.moved)

    @property
    def width(self) -> int:
        """Number of covariates, without the intercept."""
        return len(self.second) - 1


def moment_law(moments: CovariateMoments, intercept, slope, sigma) -> RowLaw:
    r"""Return the law of the products of (x, y), y | x Normal, from the moments of x.

    With features :math:`\tilde x = (1, x)`, :math:`\tilde x y` and :math:`y^2` are
    :math:`\tilde x\tilde x'\theta + \tilde x\varepsilon` and :math:`\theta'\tilde x\tilde
    x'\theta + 2\theta'\tilde x\varepsilon + \varepsilon^2`; products of features, of features and
    errors and the squared error are uncorrelated.
    """
    d, g = moments.second_root.shape
    theta = pt.concatenate([pt.atleast_1d(intercept), slope])
    rows, columns = (index[1:] for index in np.triu_indices(d))
    each = np.zeros((d, d, rows.size))  # 1 where the product x_i x_j is product k
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


def read_moments(fourth) -> CovariateMoments:
    r"""Return the positive semidefinite moments that are nearest to stated ones.

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
    for axes in ((1, 0, 2, 3), (1, 2, 3, 0)):  # they generate all permutations
        wrong = np.abs(fourth - fourth.transpose(axes)) > 1e-9 * size
        if np.any(wrong):
            entry = tuple(int(k) for k in np.argwhere(wrong)[0])
            permuted = tuple(entry[k] for k in np.argsort(axes))
            raise ValueError(
                f"moments=: the entries {entry} and {permuted} are moments of the same product, "
                f"and differ: {fourth[entry]} and {fourth[permuted]}. Write every order of the "
                f"indices: np.einsum('ni,nj,nk,nl->ijkl', x, x, x, x) / len(x) does, of rows (1, x)"
            )
    for k in range(1, d):
        if abs(fourth[k, k, k, k] - fourth[0, 0, 0, k] ** 4) < LEAST_SPREAD * powers[k]:
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
    # The covariance of the covariates is read off the root, so that both agree if it was moved.
    spread = np.linalg.qr(root[: d - 1].T, mode="r").T
    top = np.eye(1, 1 + spread.shape[1])
    second_root = np.vstack([top, np.hstack([second[1:, :1], spread])])
    second = second_root @ second_root.T
    return CovariateMoments(second[rows, columns], root, second, second_root, moved)


def _root(matrix: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, float]:
    """Return F with FF' the nearest positive semidefinite matrix, and the distance to it.

    Nearest in the units of the variances, or of the mean squares `size` where these are so small
    that they may be rounding, such as that of the square of a covariate with values -1 and 1.
    """
    scale = np.sqrt(np.maximum(np.abs(np.diag(matrix)), 1e-3 * np.abs(size)))
    scale[scale == 0.0] = 1.0
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2 / np.outer(scale, scale))
    largest = np.abs(values).max()
    moved = max(0.0, -values.min()) / max(largest, np.finfo(float).tiny)
    moved = moved if moved > 1e-12 else 0.0
    if moved:  # a regression divides by them: negative eigenvalues become small, not zero
        values = np.maximum(values, 1e-9 * largest)
    keep = values > 1e-14 * largest
    return scale[:, None] * vectors[:, keep] * np.sqrt(values[keep]), moved


def moment_sums(moments: CovariateMoments, intercept, slope, sigma, n: int, z) -> RowSums:
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


def moment_latents(moments: CovariateMoments) -> int:
    """Return the number of latents of `moment_sums`."""
    return moments.root.shape[1] + moments.second_root.shape[1] + 1
