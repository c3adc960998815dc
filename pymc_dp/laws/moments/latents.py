r"""Latents of the sums over rows, and the coordinates in which a sampler moves them.

The sums are a function s of latents :math:`\zeta`, which are nearly standard Normal for all
parameters. Where the noise is large against the spread of the sums, parameters and latents are
nearly independent given the release. Where it is small the release determines s, and the latents
are tied to the parameters, a posterior that NUTS explores slowly. One change of coordinates serves
both. With the release linearised,
:math:`z \approx s(\hat\zeta) + J(\zeta - \hat\zeta) + \text{noise}`, the latents given parameters
and release are :math:`N(V b, V)` with

.. math::

    V = (I + J'W^{-1}J)^{-1}, \qquad b = J'W^{-1}(z - s(\hat\zeta) + J\hat\zeta),

where W are the variances of the noise. Then :math:`u = V^{-1/2}(\zeta - V b)` is nearly standard
Normal given the parameters, at every scale of the noise. The posterior stays exact where the
approximation is poor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.distribution import SymbolicRandomVariable, _support_point
from pymc.logprob.abstract import _logprob
from pymc.logprob.transforms import Transform
from pytensor.graph.basic import Constant
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.values import known_value
from pymc_dp.laws.mean_variance import noise_variance
from pymc_dp.mechanisms.base import Mechanism, has_continuous_rates

# Precision of a release relative to that of the latents: beyond, the Cholesky factor fails.
_MOST_RELATIVE_PRECISION = 1e10
_MOST_COLUMNS = 10  # of a small matrix, which is multiplied and solved for without a call


class RowLatentsRV(SymbolicRandomVariable):
    r"""Independent latents: standard Normal ones, then standardised logarithms of Gamma variables.

    The latter are :math:`\sqrt{\alpha}\,\log(g/\alpha)` with :math:`g \sim \mathrm{Gamma}(\alpha,
    1)`: nearly standard Normal, too, for every shape. A leading axis holds independent blocks.
    Inputs are the rng, b and the Cholesky factor of the inverse of V. The law does not depend on
    the latter two: they are inputs of the transform `Whitened`.
    """

    _print_name = ("RowLatents", "\\operatorname{RowLatents}")
    alpha: np.ndarray


class Whitened(Transform):
    """The latents, standardised by their approximate law given the release."""

    name = "whitened"
    ndim_supp = 1

    def forward(self, value, rng, b, root):
        """Return the nearly independent coordinates."""
        return pt.matvec(pt.matrix_transpose(root), value - _center(b, root))

    def backward(self, value, rng, b, root):
        """Return the latents."""
        return _center(b, root) + _solve_transposed(root, value)

    def log_jac_det(self, value, rng, b, root):
        """Log of the determinant of `backward`'s derivatives."""
        return -pt.log(pt.diagonal(root, axis1=-2, axis2=-1)).sum(axis=-1)


def are_small_blocks(matrix) -> bool:
    """Whether a matrix has leading axes and few columns."""
    *blocks, _, columns = getattr(matrix, "type", matrix).shape
    return bool(blocks) and columns is not None and columns <= _MOST_COLUMNS


def matvec(matrix, vector) -> TensorVariable:
    """Multiply; small matrices of several blocks entry by entry, which takes no call for each."""
    if not are_small_blocks(matrix):
        return pt.matvec(matrix, vector)
    return (matrix * vector[..., None, :]).sum(axis=-1)


def solve_lower(root, b: TensorVariable) -> TensorVariable:
    """Solve for vectors by lower triangular matrices, those of several blocks by substitution."""
    if not are_small_blocks(root):
        return pt.linalg.solve_triangular(root, b, lower=True, b_ndim=1)
    x: list[TensorVariable] = []
    for i in range(root.type.shape[-1]):
        above = (root[..., i, j] * x[j] for j in range(i))
        x.append((b[..., i] - sum(above, start=0.0)) / root[..., i, i])
    return pt.stack(x, axis=-1)


def _inverse(root: TensorVariable) -> np.ndarray | None:
    """Return the inverses of the roots of several blocks, where they are numbers."""
    known = isinstance(root, Constant) and are_small_blocks(root)
    return np.linalg.inv(root.data) if known else None


def _center(b: TensorVariable, root: TensorVariable) -> TensorVariable:
    if (inverse := _inverse(root)) is not None:
        return matvec(inverse.swapaxes(-1, -2) @ inverse, b)
    half = pt.linalg.solve_triangular(root, b, lower=True, b_ndim=1)
    return _solve_transposed(root, half)


def _solve_transposed(root: TensorVariable, b: TensorVariable) -> TensorVariable:
    if (inverse := _inverse(root)) is not None:
        return matvec(inverse.swapaxes(-1, -2), b)
    return pt.linalg.solve_triangular(pt.matrix_transpose(root), b, lower=False, b_ndim=1)


@dataclass(frozen=True)
class Linearised:
    r"""A release as a linear function of the latents, with noise.

    Attributes
    ----------
    jacobian : matrix J, entries of the release times latents.
    target : vector :math:`z - s(\hat\zeta) + J\hat\zeta`.
    variance : vector of the variances of the noise.
    """

    jacobian: TensorVariable
    target: TensorVariable
    variance: TensorVariable


def observed_noise(
    model: pm.Model, rv: TensorVariable, mechanism: Mechanism
) -> tuple[TensorVariable, TensorVariable] | None:
    """Return the published values of a release and the variances of its noise.

    None without published values, or under noise that is not Laplace or Gaussian.
    """
    if rv not in model.observed_RVs or not has_continuous_rates(mechanism):
        return None
    value = model.rvs_to_values[rv].astype("float64")
    variance = pt.broadcast_to(noise_variance(mechanism), value.shape)
    return value.ravel(), variance.ravel()


def _weight(release: Linearised, numbers):
    spread = (release.jacobian**2).sum(axis=-1)
    return 1.0 / numbers.maximum(release.variance, spread / _MOST_RELATIVE_PRECISION)


def _precision(size: int, batch: Sequence[int], releases: Sequence[Linearised], numbers):
    """Return the inverse of V; `numbers` is numpy or pytensor.tensor."""
    precision = np.eye(size) + np.zeros((*batch, 1, 1))
    for release in releases:
        turned = numbers.swapaxes(release.jacobian, -1, -2)
        weight = _weight(release, numbers)
        precision = precision + (turned * weight[..., None, :]) @ release.jacobian
    return precision


def row_latents(
    size: int, alpha: np.ndarray | None = None, releases: Sequence[Linearised] = ()
) -> tuple[TensorVariable, Transform | None]:
    """Return latents, and their transform to nearly independent coordinates given the releases.

    Parameters
    ----------
    size : int
        Number of latents, of each block.
    alpha : vector, optional
        Shapes of the Gamma variables of the last latents; a matrix with a row for each block.
    releases : sequence of Linearised
        Without any, the latents are not transformed. With blocks, all have a leading axis.
    """
    alpha = np.zeros(0) if alpha is None else alpha
    *batch, count = alpha.shape
    b = pt.zeros((*batch, size))
    for release in releases:
        turned = pt.matrix_transpose(release.jacobian)
        b += matvec(turned, _weight(release, pt) * release.target)
    known = [
        Linearised(jacobian, release.target, variance)
        for release in releases
        if (jacobian := known_value(release.jacobian, fixed=True)) is not None
        and (variance := known_value(release.variance, fixed=True)) is not None
    ]
    if len(known) == len(releases):
        root = pt.as_tensor(np.linalg.cholesky(_precision(size, batch, known, np)))
    else:
        root = pt.linalg.cholesky(_precision(size, batch, releases, pt))
    inputs = [pt.random.shared_rng(seed=None), b, root]
    rng, *whitening = dummies = [v.type() for v in inputs]
    rng, normal = pt.random.normal(size=(*batch, size - count), rng=rng, return_next_rng=True)
    rng, gamma = pt.random.gamma(alpha, scale=1.0, rng=rng, return_next_rng=True)
    log = np.sqrt(alpha) * pt.log(gamma / alpha)
    unused = sum(pt.zeros_like(v).sum() for v in whitening)  # an op has to use all of its inputs
    op = RowLatentsRV(
        dummies,
        [rng, pt.concatenate([normal, log], axis=-1) + unused],
        extended_signature="[rng],(q),(q,q)->[rng],(q)",
    )
    op.alpha = alpha
    return op(*inputs), Whitened() if releases else None


@_logprob.register(RowLatentsRV)
def _row_latents_logprob(op, values, *inputs, **kwargs):
    [value] = values
    count = op.alpha.shape[-1]
    first = value.shape[-1] - count
    total = pm.logp(pm.Normal.dist(), value[..., :first]).sum(axis=-1)
    if count:
        scaled = value[..., first:] / np.sqrt(op.alpha)
        gamma = pm.Gamma.dist(op.alpha, 1.0)
        total += pm.logp(gamma, op.alpha * pt.exp(scaled)).sum(axis=-1)
        total += (scaled + 0.5 * np.log(op.alpha)).sum(axis=-1)
    return total


@_support_point.register(RowLatentsRV)
def _row_latents_support_point(op, rv, rng, b, root):
    return _center(b, root)
