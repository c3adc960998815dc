r"""Latents of the sums over rows, and the coordinates in which a sampler moves them.

The sums are a function s of latents :math:`\zeta`, which are near standard Normal whatever the
parameters are. Where the noise is large against the spread of the sums, parameters and latents are
nearly independent given the release. Where it is small the release fixes s, and the latents follow
the parameters in all directions, which NUTS can hardly follow. Both have the same remedy: with the
release linearised, :math:`z \approx s(\hat\zeta) + J(\zeta - \hat\zeta) + \text{noise}`, the
latents given parameters and release are :math:`N(V b, V)` with

.. math::

    V = (I + J'W^{-1}J)^{-1}, \qquad b = J'W^{-1}(z - s(\hat\zeta) + J\hat\zeta),

W the variances of the noise, and :math:`u = V^{-1/2}(\zeta - V b)` is nearly standard Normal given
the parameters, at every scale of the noise. It is a change of coordinates: the posterior stays
exact where the approximation is poor.
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
from pytensor.tensor.variable import TensorVariable

_MOST_PRECISE = 1e10  # of the release against the latents: beyond, the Cholesky factor would fail


class RowLatentsRV(SymbolicRandomVariable):
    r"""Independent latents: standard Normal ones, then standardised logarithms of Gamma variables.

    The latter are :math:`\sqrt{\alpha}\,\log(g/\alpha)` with :math:`g \sim \mathrm{Gamma}(\alpha,
    1)`: near standard Normal too, for every shape. Inputs are the rng, and b and the Cholesky
    factor of V's inverse, on which the law does not depend: `Whitened` uses them.
    """

    _print_name = ("RowLatents", "\\operatorname{RowLatents}")
    alpha: np.ndarray


class Whitened(Transform):
    """The latents, standardised by what the release says of them."""

    name = "whitened"
    ndim_supp = 1

    def forward(self, value, rng, b, root):
        """Return the nearly independent coordinates."""
        return root.T @ (value - _center(b, root))

    def backward(self, value, rng, b, root):
        """Return the latents."""
        return _center(b, root) + pt.linalg.solve_triangular(root.T, value, lower=False, b_ndim=1)

    def log_jac_det(self, value, rng, b, root):
        """Log of the determinant of `backward`'s derivatives."""
        return -pt.log(pt.diagonal(root)).sum()


def _center(b: TensorVariable, root: TensorVariable) -> TensorVariable:
    half = pt.linalg.solve_triangular(root, b, lower=True, b_ndim=1)
    return pt.linalg.solve_triangular(root.T, half, lower=False, b_ndim=1)


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


def row_latents(
    size: int, alpha: np.ndarray | None = None, releases: Sequence[Linearised] = ()
) -> tuple[TensorVariable, Transform | None]:
    """Return latents and the transform to the coordinates that suit the releases.

    Parameters
    ----------
    size : int
        Number of latents.
    alpha : vector, optional
        Shapes of the Gamma variables of the last ones.
    releases : sequence of Linearised
        None of them: the latents are sampled as they are.
    """
    alpha = np.zeros(0) if alpha is None else alpha
    b, precision = pt.zeros(size), pt.eye(size)
    for release in releases:
        spread = (release.jacobian**2).sum(axis=1)
        weight = 1.0 / pt.maximum(release.variance, spread / _MOST_PRECISE)
        b += release.jacobian.T @ (weight * release.target)
        precision += (release.jacobian.T * weight) @ release.jacobian
    inputs = [pt.random.shared_rng(seed=None), b, pt.linalg.cholesky(precision)]
    rng, *others = dummies = [v.type() for v in inputs]
    rng, normal = pt.random.normal(size=(size - alpha.size,), rng=rng, return_next_rng=True)
    rng, gamma = pt.random.gamma(alpha, scale=1.0, rng=rng, return_next_rng=True)
    log = np.sqrt(alpha) * pt.log(gamma / alpha)
    unused = sum(pt.zeros_like(v).sum() for v in others)  # inputs have to be used
    op = RowLatentsRV(
        dummies,
        [rng, pt.concatenate([normal, log]) + unused],
        extended_signature="[rng],(q),(q,q)->[rng],(q)",
    )
    op.alpha = alpha
    return op(*inputs), Whitened() if releases else None


@_logprob.register(RowLatentsRV)
def _row_latents_logprob(op, values, *inputs, **kwargs):
    [value] = values
    k = op.alpha.size
    normal = value[: value.shape[0] - k]
    total = pm.logp(pm.Normal.dist(), normal).sum()
    if k:
        scaled = value[value.shape[0] - k :] / np.sqrt(op.alpha)
        gamma = pm.Gamma.dist(op.alpha, 1.0)
        total += pm.logp(gamma, op.alpha * pt.exp(scaled)).sum()
        total += (scaled + 0.5 * np.log(op.alpha)).sum()
    return total


@_support_point.register(RowLatentsRV)
def _row_latents_support_point(op, rv, rng, b, root):
    return _center(b, root)
