r"""Coordinates of latent Normal variables that are nearly independent of the parameters.

For :math:`\theta = A + B\xi` with :math:`\xi \sim N(0, I)` the log-likelihood is about
:math:`-\theta' \mathrm{diag}(h)\,\theta / 2 + k'\theta`. Given the parameters, :math:`\xi` is
nearly

.. math::

    N(P^{-1} B'(k - hA),\; P^{-1}), \qquad P = I + B' \mathrm{diag}(h) B,

and the coordinates are :math:`u = R'(\xi - P^{-1}B'(k - hA))` with :math:`P = RR'`. Without data,
h = 0, u is the non-centred :math:`\xi`; with much data it is the centred :math:`\theta`, scaled; in
between, each entry is centred in part (Papaspiliopoulos, Roberts & Sköld, 2007).
"""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.distribution import SymbolicRandomVariable, _support_point
from pymc.logprob.abstract import _logprob
from pymc.logprob.transforms import Transform
from pytensor.tensor.variable import TensorVariable

from pymc_dp.laws.moments.latents import Whitened


class LatentNormalRV(SymbolicRandomVariable):
    r"""Independent variables :math:`m + s\xi`; inputs are the rng, m, s, A, B, h and k."""

    extended_signature = "[rng],(),(),(),(),(),()->[rng],()"
    _print_name = ("LatentNormal", "\\operatorname{LatentNormal}")


class LatentVectorRV(SymbolicRandomVariable):
    r"""A vector :math:`A + B\xi`, B lower triangular; inputs are the rng, A, B, h and k."""

    extended_signature = "[rng],(n),(n,n),(n),(n)->[rng],(n)"
    _print_name = ("LatentVector", "\\operatorname{LatentVector}")


class Standardised(Transform):
    """The coordinates u of `LatentNormalRV`.

    They are exact if the log-likelihood is the parabola of h and k: u is then standard Normal given
    all else.
    """

    name = "standardised"
    is_exact = False

    def forward(self, value, rng, mean, sd, a, b, h, k):
        """Return the coordinates."""
        precision = 1.0 + h * b**2
        return ((value - mean) / sd - b * (k - h * a) / precision) * pt.sqrt(precision)

    def backward(self, value, rng, mean, sd, a, b, h, k):
        """Return the variables."""
        precision = 1.0 + h * b**2
        return mean + sd * (b * (k - h * a) / precision + value / pt.sqrt(precision))

    def log_jac_det(self, value, rng, mean, sd, a, b, h, k):
        """Log of the derivative of `backward`."""
        return pt.zeros_like(value) + pt.log(sd) - 0.5 * pt.log1p(h * b**2)


class StandardisedVector(Transform):
    """The coordinates u of `LatentVectorRV`; see `Standardised`."""

    name = "standardised"
    is_exact = False
    ndim_supp = 1

    def forward(self, value, rng, a, b, h, k):
        """Return the coordinates."""
        return Whitened().forward(_solve(b, value - a), rng, *_given_parameters(a, b, h, k))

    def backward(self, value, rng, a, b, h, k):
        """Return the vector."""
        return a + b @ Whitened().backward(value, rng, *_given_parameters(a, b, h, k))

    def log_jac_det(self, value, rng, a, b, h, k):
        """Log of the determinant of `backward`'s derivatives."""
        whitened = Whitened().log_jac_det(value, rng, *_given_parameters(a, b, h, k))
        return pt.log(pt.diagonal(b)).sum() + whitened


def _given_parameters(a, b, h, k):
    """Return P times the mean of xi given the data, and R."""
    return b.T @ (k - h * a), pt.linalg.cholesky(pt.eye(b.shape[0]) + b.T @ (h[:, None] * b))


def _solve(matrix, vector):
    return pt.linalg.solve_triangular(matrix, vector, lower=True, b_ndim=1)


def latent_normal(mean, sd, a, b, h, k) -> tuple[TensorVariable, Transform]:
    """Return independent latent variables of the shape of h, and their coordinates."""
    inputs = _inputs(mean, sd, a, b, h, k)
    rng, mean, sd, *_, h, _ = dummies = [v.type() for v in inputs]
    rng, drawn = pt.random.normal(mean, sd, size=h.shape, rng=rng, return_next_rng=True)
    return LatentNormalRV(dummies, [rng, drawn])(*inputs), Standardised()


def latent_vector(a, b, h, k) -> tuple[TensorVariable, Transform]:
    """Return a latent vector, and its coordinates."""
    inputs = _inputs(a, b, h, k)
    rng, a, b, *_ = dummies = [v.type() for v in inputs]
    rng, xi = pt.random.normal(size=a.shape, rng=rng, return_next_rng=True)
    return LatentVectorRV(dummies, [rng, a + b @ xi])(*inputs), StandardisedVector()


def _inputs(*numbers) -> list:
    return [pt.random.shared_rng(seed=None), *(pt.as_tensor(x).astype("float64") for x in numbers)]


@_logprob.register(LatentNormalRV)
def _latent_normal_logprob(op, values, rng, mean, sd, *unused, **kwargs):
    return pm.logp(pm.Normal.dist(mean, sd), values[0])


@_logprob.register(LatentVectorRV)
def _latent_vector_logprob(op, values, rng, a, b, *unused, **kwargs):
    xi = _solve(b, values[0] - a)
    size = xi.shape[0] * np.log(2.0 * np.pi)
    return -0.5 * ((xi**2).sum() + size) - pt.log(pt.diagonal(b)).sum()


@_support_point.register(LatentNormalRV)
def _latent_normal_support_point(op, rv, *inputs):
    return Standardised().backward(pt.zeros(rv.shape), *inputs)


@_support_point.register(LatentVectorRV)
def _latent_vector_support_point(op, rv, *inputs):
    return StandardisedVector().backward(pt.zeros(rv.shape), *inputs)
