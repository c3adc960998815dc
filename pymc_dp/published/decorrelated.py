"""Published vectors whose Gaussian noise is correlated, as that of a strategy matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt

from pymc_dp.graphs.held import held
from pymc_dp.mechanisms import GaussianMechanism
from pymc_dp.published.record import Release

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from pytensor.tensor import TensorLike
    from pytensor.tensor.variable import TensorVariable


def decorrelate(
    statistic: TensorLike,
    value: ArrayLike,
    *,
    strategy: ArrayLike | None = None,
    sigma: float | None = None,
    covariance: ArrayLike | None = None,
    **described: Any,
) -> tuple[TensorVariable, Release]:
    r"""State a vector with correlated Gaussian noise by combinations whose noise is independent.

    The matrix mechanism answers the queries of a strategy A with noise,
    :math:`y = A x + e, e \sim N(0, \sigma^2 I)`, and publishes the least squares estimate
    :math:`\hat x = A^+ y` (or :math:`W \hat x`). Its noise has the covariance
    :math:`\sigma^2 (A' A)^{-1}`. With :math:`A = Q R` that says the same as

    .. math::

        R \hat x = R x + e', \qquad e' \sim N(0, \sigma^2 I),

    which every route for Gaussian noise takes.

    Parameters
    ----------
    statistic : tensor_like
        The confidential vector x, an expression of the model's variables.
    value : array_like
        The published :math:`\hat x`.
    strategy : array_like, optional
        Matrix A, one row for each query that was answered, of as many columns as x has entries
        and of that rank. With `sigma`.
    sigma : float, optional
        Standard deviation of the noise of each answer.
    covariance : array_like, optional
        That of the noise of `value`, in the place of a strategy.
    **described
        `name`, `privacy` and `source` of the release.

    Returns
    -------
    statistic, release
        What to pass to `PrivateObservation`: :math:`R x`, and :math:`R \hat x` with its noise.
        Predictions of the release are of these; ``numpy.linalg.solve(R, z)`` is in the units of
        x, where R is what the function makes of an identity matrix.

    Raises
    ------
    ValueError
        Matrices that do not fit, a strategy of less than full rank, no covariance.

    Notes
    -----
    With neighbours that differ by one in one entry of x, the release is
    :math:`\rho`-zero-concentrated private for :math:`\rho = \max_j \|A_j\|^2 / (2 \sigma^2)`:
    ``GaussianMechanism(sigma).rho(np.linalg.norm(A, axis=0).max())`` [1]_.

    References
    ----------
    .. [1] C. Li, G. Miklau, M. Hay, A. McGregor, V. Rastogi (2015). The matrix mechanism:
       optimizing linear counting queries under differential privacy. VLDB Journal 24, 757-781.

    Examples
    --------
    >>> import numpy as np
    >>> import pymc as pm
    >>> import pymc_dp as dp
    >>> A = np.array([[1, 1], [1, 0], [0, 1]])  # the total and both cells
    >>> with pm.Model():
    ...     x = pm.Poisson("x", [20.0, 30.0])
    ...     combined, release = dp.decorrelate(x, [17.2, 33.1], strategy=A, sigma=2.0)
    ...     z = dp.PrivateObservation("z", combined, release)
    """
    published = np.asarray(held(value).numbers, dtype="float64")
    k = published.shape[0] if published.ndim == 1 else 0
    if (strategy is None) == (covariance is None) or (strategy is None) != (sigma is None):
        raise ValueError("decorrelate: write strategy= and sigma=, or covariance=")
    stated = np.asarray(covariance if strategy is None else strategy, dtype="float64")
    if not k or stated.ndim != 2 or stated.shape[1] != k:
        raise ValueError(
            f"decorrelate: a vector and a matrix with a column for each of its entries are needed; "
            f"got value of shape {published.shape} and a matrix of shape {stated.shape}"
        )
    if strategy is None:
        try:
            if not np.allclose(stated, stated.T, rtol=1e-10):
                raise np.linalg.LinAlgError
            factor = np.linalg.inv(np.linalg.cholesky(stated))
        except np.linalg.LinAlgError:
            raise ValueError(
                "decorrelate: covariance is not symmetric and positive definite: write the "
                "covariance matrix of the noise of `value`, and leave entries out that are sums of "
                "others"
            ) from None
    else:
        factor = np.linalg.qr(stated, mode="r") if len(stated) >= k else np.zeros((k, k))
        size = np.abs(np.diag(factor))
        if not size.min() > 1e-10 * size.max():
            raise ValueError(
                f"decorrelate: the strategy has not the rank {k}, so that its answers do not "
                f"determine the entries: release what was answered, strategy @ x"
            )
    mechanism = GaussianMechanism(1.0 if sigma is None else sigma)
    release = Release(factor @ published, mechanism, **described)
    return pt.dot(pt.constant(factor), pt.as_tensor(statistic)), release
