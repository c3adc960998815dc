r"""Coordinates of latent Normal series that are nearly independent of the parameters.

The innovations :math:`\xi = W(\theta - A)` of a walk or an autoregression :math:`\theta` are
independent standard Normal; W is lower triangular with a band of p + 1 entries a row. The
log-likelihood is about :math:`-\theta' \mathrm{diag}(h)\,\theta / 2 + k'\theta`. Given the
parameters, :math:`\theta - A` is nearly

.. math::

    N(P^{-1}(k - hA),\; P^{-1}), \qquad P = W'W + \mathrm{diag}(h) = RR',

and the coordinates are :math:`u = R'(\theta - A) - R^{-1}(k - hA)`. All of it takes time linear in
the length (Rue & Held, 2005, Gaussian Markov Random Fields).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.distribution import SymbolicRandomVariable, _support_point
from pymc.logprob.abstract import _logprob
from pymc.logprob.transforms import Transform
from pytensor.graph.basic import Apply
from pytensor.tensor.variable import TensorVariable

from pymc_dp.kernels.functions import banded as kernels
from pymc_dp.laws.kernel_call import KernelCall, doubles

# --- Banded matrices: vector k is k places below the diagonal, the first k of it zero -------------


class _Banded(KernelCall):
    """A kernel of banded matrices, as rows, and vectors; the result is like the last input."""

    __props__: tuple[str, ...] = ()

    def make_node(self, *inputs):
        """Apply to arrays."""
        arrays = doubles(*inputs)
        return Apply(self, arrays, [arrays[-1].type()])


class Factor(_Banded):
    """Lower L with LL' = A, of a symmetric A."""

    def call(self):
        """See `KernelCall.call`."""

        def factor(a):
            return kernels.factor_banded(a)

        return factor

    def pullback(self, inputs, outputs, cotangents):
        """Return the cotangent of A."""
        return [_PullBackFactor()(outputs[0], cotangents[0])]


class _PullBackFactor(_Banded):
    def call(self):
        def pull_back(root, by_root):
            return kernels.pull_back_factor(root, by_root)

        return pull_back


class Solve(_Banded):
    """Solution x of Lx = b, or of L'x = b, for a lower L."""

    __props__ = ("transposed",)

    def __init__(self, transposed: bool = False):
        self.transposed = transposed

    def call(self):
        """See `KernelCall.call`."""
        solved = kernels.solve_banded_transposed if self.transposed else kernels.solve_banded

        def solve(lower, b):
            return solved(lower, b)

        return solve

    def pullback(self, inputs, outputs, cotangents):
        """Return the cotangents of L and of b."""
        (lower, _), [x] = inputs, outputs
        by_b = Solve(not self.transposed)(lower, cotangents[0])
        rows, columns = (x, by_b) if self.transposed else (by_b, x)
        by_lower = [-rows * _later(columns, k) for k in range(lower.type.shape[0])]
        return [pt.stack(by_lower), by_b]


def _later(x, k: int):
    """Shift a vector by k places to the right; zeros come in."""
    return pt.concatenate([pt.zeros(k), x[:-k]]) if k else x


def _sooner(x, k: int):
    """Shift a vector by k places to the left; zeros come in."""
    return pt.concatenate([x[k:], pt.zeros(k)]) if k else x


def _inside(band, k: int):
    """Return a band k places below the diagonal, with its first k entries set to zero."""
    return pt.concatenate([pt.zeros(k), band[k:]])


def of_scaled(bands: Sequence, by) -> list[TensorVariable]:
    """Return the bands of W diag(by)."""
    return [band * _later(by, k) for k, band in enumerate(bands)]


def of_differences(bands: Sequence) -> list[TensorVariable]:
    """Return the bands of WD, where D takes differences: (Dx)[i] = x[i] - x[i - 1]."""
    wider = [*bands, pt.zeros_like(bands[0])]
    less = [pt.zeros_like(bands[0]), *bands]
    return [a - _inside(b, k) for k, (a, b) in enumerate(zip(wider, less, strict=True))]


def cumulated(bands: Sequence, b) -> TensorVariable:
    """Return the solution of Wx = b."""
    return Solve()(pt.stack(bands), b)


def _precision(bands: Sequence) -> TensorVariable:
    """Return W'W, as rows."""
    p = len(bands) - 1
    rows = ([_sooner(bands[d] * bands[d + k], d) for d in range(p - k + 1)] for k in range(p + 1))
    return pt.stack([pt.add(*row) if len(row) > 1 else row[0] for row in rows])


# --- The law and its coordinates ------------------------------------------------------------------


class LatentWalkRV(SymbolicRandomVariable):
    """A series; the inputs are the rng, m, s, A, h, k, and W as rows."""

    extended_signature = "[rng],(n),(n),(n),(n),(n),(p,n)->[rng],(n)"
    _print_name = ("LatentWalk", "\\operatorname{LatentWalk}")
    is_theta = True


class InnovationsRV(LatentWalkRV):
    r"""Innovations :math:`m + s\xi` of a series."""

    is_theta = False


class StandardisedWalk(Transform):
    """The coordinates u of `LatentWalkRV`; see `latent_normal.Standardised`."""

    name = "standardised"
    is_exact = False
    ndim_supp = 1

    def __init__(self, is_theta: bool):
        self.is_theta = is_theta

    def forward(self, value, rng, mean, sd, a, h, k, rows):
        """Return the coordinates."""
        apart = value - a if self.is_theta else Solve()(rows, (value - mean) / sd)
        root = _root(h, rows)
        return _upper(root, apart) - Solve()(root, k - h * a)

    def backward(self, value, rng, mean, sd, a, h, k, rows):
        """Return the series, or its innovations."""
        root = _root(h, rows)
        apart = Solve(transposed=True)(root, Solve()(root, k - h * a) + value)
        return a + apart if self.is_theta else mean + sd * innovations(_bands(rows), apart)

    def log_jac_det(self, value, rng, mean, sd, a, h, k, rows):
        """Log of the determinant of `backward`'s derivatives."""
        by_theta = -pt.log(_root(h, rows)[0]).sum()
        return by_theta if self.is_theta else by_theta + pt.log(abs(sd * rows[0])).sum()


def _root(h, rows):
    precision = _precision(_bands(rows))
    return Factor()(pt.inc_subtensor(precision[0], h))


def _bands(rows) -> list[TensorVariable]:
    return [rows[k] for k in range(rows.type.shape[0])]


def innovations(bands: Sequence, x) -> TensorVariable:
    """Return Wx."""
    return pt.add(pt.zeros_like(x), *(b * _later(x, k) for k, b in enumerate(bands)))


def _upper(rows, x):
    return pt.add(pt.zeros_like(x), *(_sooner(b * x, k) for k, b in enumerate(_bands(rows))))


def latent_walk(mean, sd, a, bands, h, k, *, is_theta: bool) -> tuple[TensorVariable, Transform]:
    """Return a latent series, or its innovations, and the coordinates."""
    rows = pt.stack(bands)
    inputs = [pt.random.shared_rng(seed=None), *doubles(mean, sd, a, h, k, rows)]
    rng, mean, sd, a, *_, rows = dummies = [v.type() for v in inputs]
    rng, xi = pt.random.normal(size=a.shape, rng=rng, return_next_rng=True)
    drawn = a + Solve()(rows, xi) if is_theta else mean + sd * xi
    op = (LatentWalkRV if is_theta else InnovationsRV)(dummies, [rng, drawn])
    return op(*inputs), StandardisedWalk(is_theta)


@_logprob.register(LatentWalkRV)
def _latent_walk_logprob(op, values, rng, mean, sd, a, h, k, rows, **kwargs):
    [value] = values
    if not op.is_theta:
        return pm.logp(pm.Normal.dist(mean, sd), value).sum()
    xi = innovations(_bands(rows), value - a)
    return -0.5 * ((xi**2).sum() + xi.shape[0] * np.log(2.0 * np.pi)) + pt.log(rows[0]).sum()


@_support_point.register(LatentWalkRV)
def _latent_walk_support_point(op, rv, *inputs):
    return StandardisedWalk(op.is_theta).backward(pt.zeros(rv.shape), *inputs)
