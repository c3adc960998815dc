r"""The noise behind a record: maps :math:`x = T(u; \theta)` whose u is free of the parameters.

Interweaving moves the parameters with u held fixed (Yu & Meng 2011), and the records along with
them. The map of a law has to preserve the law: :math:`x \sim f(\cdot \mid \theta)` implies
:math:`x' \sim f(\cdot \mid \theta')`. It has to be reversible, too: the move from
:math:`\theta'` to :math:`\theta` has the same joint law of x and x'.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytensor.tensor as pt
import pytensor.tensor.random.basic as ptr
from pymc.distributions.censored import CensoredRV
from pymc.distributions.continuous import (
    HalfCauchyRV,
    HalfStudentTRV,
    MoyalRV,
    TruncatedNormalRV,
    WeibullBetaRV,
)
from pymc.distributions.distribution import DiracDeltaRV
from pymc.distributions.truncated import TruncatedRV
from pytensor.graph.basic import equal_computations
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.registry import ability
from pymc_dp.laws.continuity import is_continuous
from pymc_dp.laws.tails import Tails, cut_law, cut_quantile, cut_tails, log_tails, quantile

Draw = Callable[..., TensorVariable]

_TINY = np.finfo(float).tiny


@ability
def transport(
    op, old: TensorVariable, new: TensorVariable, value: TensorVariable, draw: Draw
) -> TensorVariable:
    r"""Move records from one set of parameters to another, with the noise behind them held fixed.

    Dispatched on the op of the records' law. The default goes through the distribution function of
    a continuous law, :math:`x' = F^{-1}(F(x; \theta); \theta')`, where PyMC has it and its
    inverse. Where that cannot be resolved the result is NaN: the caller refuses the move.

    Parameters
    ----------
    op : Op
        Op of the law.
    old, new : TensorVariable
        Random variables of the law under the two sets of parameters.
    value : TensorVariable
        Records under the old parameters.
    draw : callable
        ``draw(law, *parameters)`` gives fresh random numbers, a function of pytensor.tensor.random.

    Raises
    ------
    NotImplementedError
        If no map is registered: the parameters are then moved with the records held fixed.
    """
    if not is_continuous(old):
        raise Declined(f"no coupling of {op} records is registered")
    return quantile(op, new, log_tails(op, old, value))


def parameters_of(*rvs: TensorVariable) -> list[TensorVariable]:
    """Return the parameters of the laws of random variables, one variable after the other."""
    return [p for rv in rvs for p in rv.owner.op.dist_params(rv.owner)]


@transport.register(ptr.NormalRV)
@transport.register(ptr.LaplaceRV)
@transport.register(ptr.LogisticRV)
@transport.register(ptr.CauchyRV)
@transport.register(ptr.HalfNormalRV)
@transport.register(ptr.GumbelRV)
@transport.register(MoyalRV)
def _location_scale(op, old, new, value, draw):
    loc, scale, new_loc, new_scale = parameters_of(old, new)
    return new_loc + (value - loc) * (new_scale / scale)


@transport.register
def _uniform(op: ptr.UniformRV, old, new, value, draw):
    low, high, new_low, new_high = parameters_of(old, new)
    return new_low + (value - low) * ((new_high - new_low) / (high - low))


@transport.register(ptr.ExponentialRV)
@transport.register(HalfCauchyRV)
def _scale(op, old, new, value, draw):
    scale, new_scale = parameters_of(old, new)
    return value * (new_scale / scale)


@transport.register
def _log_normal(op: ptr.LogNormalRV, old, new, value, draw):
    mu, sigma, new_mu, new_sigma = parameters_of(old, new)
    return pt.exp(new_mu + (pt.log(value) - mu) * (new_sigma / sigma))


# --- Laws made of Gamma variables -----------------------------------------------------------------
# A Gamma variable gains an independent part when its shape grows, and loses a Beta share when the
# shape shrinks. The parts are fresh random numbers; they are small beside the noise of a release
# for which transport pays. The distribution function and its inverse would take twenty times as
# long.


def change_shape(shape, new_shape, value, draw):
    """Move standard Gamma variables from one shape to another."""
    more = new_shape - shape
    zeros = pt.zeros_like(value)
    part = standard_gamma(pt.abs(more) + zeros, draw)
    kept = standard_gamma(pt.minimum(shape, new_shape) + zeros, draw)
    less = pt.where(more < 0.0, value * kept / (kept + part), value)
    return pt.where(more > 0.0, value + part, less)


def standard_gamma(shape, draw):
    """Draw standard Gamma variables: zero for shape 0, NaN for other invalid shapes."""
    valid = (shape > 0.0) & (shape < np.inf)
    draws = draw(partial(pt.random.gamma, scale=1.0), pt.where(valid, shape, 1.0))
    return pt.where(valid, draws, pt.where(pt.eq(shape, 0.0), 0.0, np.nan))


@transport.register(ptr.GammaRV)
@transport.register(ptr.InvGammaRV)
def _gamma(op, old, new, value, draw):
    shape, scale, new_shape, new_scale = parameters_of(old, new)
    if equal_computations([shape], [new_shape]):
        return value * (new_scale / scale)
    if isinstance(op, ptr.InvGammaRV):
        return new_scale / change_shape(shape, new_shape, scale / value, draw)
    return new_scale * change_shape(shape, new_shape, value / scale, draw)


@transport.register
def _dirichlet(op: ptr.DirichletRV, old, new, value, draw):
    return move_shares(*parameters_of(old, new), value, draw)


@transport.register
def _beta(op: ptr.BetaRV, old, new, value, draw):
    alpha, beta, new_alpha, new_beta = parameters_of(old, new)
    shapes, new_shapes = as_pair(alpha, beta), as_pair(new_alpha, new_beta)
    return move_shares(shapes, new_shapes, as_pair(value, 1.0 - value), draw)[..., 0]


def as_pair(a, b):
    """Stack two broadcast variables along a new last axis."""
    return pt.stack(pt.broadcast_arrays(a, b), axis=-1)


def move_shares(shapes, new_shapes, value, draw):
    """Move shares of a sum of Gamma variables: the sum is drawn, and the shares times it move."""
    total = standard_gamma(shapes.sum(axis=-1) + pt.zeros_like(value[..., 0]), draw)
    parts = value * total[..., None]
    moved = change_shape(shapes, new_shapes, parts, draw)
    # Where a share underflows the move is NaN, in both directions.
    resolved = pt.minimum(parts.min(axis=-1), moved.min(axis=-1)) > _TINY
    return moved / pt.where(resolved, moved.sum(axis=-1), np.nan)[..., None]


@transport.register(ptr.StudentTRV)
@transport.register(HalfStudentTRV)
def _student_t(op, old, new, value, draw):
    (nu, *loc, scale), (new_nu, *new_loc, new_scale) = (parameters_of(rv) for rv in (old, new))
    distance = (value - sum(loc)) / scale
    if not equal_computations([nu], [new_nu]):
        # A Normal over the root of an independent Gamma variable, which is drawn given the record.
        rate = 1.0 + distance**2 / nu
        precision = standard_gamma((nu + 1.0) / 2.0 + pt.zeros_like(value), draw) / rate
        moved = change_shape(nu / 2.0, new_nu / 2.0, precision, draw)
        distance = distance * pt.sqrt(precision / nu * (new_nu / moved))
    return sum(new_loc) + distance * new_scale


@transport.register(WeibullBetaRV)
@transport.register(ptr.ParetoRV)
def _power(op, old, new, value, draw):
    alpha, scale, new_alpha, new_scale = parameters_of(old, new)
    return new_scale * (value / scale) ** (alpha / new_alpha)


@transport.register(ptr.MvNormalRV)
def _mv_normal(op, old, new, value, draw):
    mu, cov, new_mu, new_cov = parameters_of(old, new)
    if equal_computations([cov], [new_cov]):
        return value - mu + new_mu
    if all(
        [*cov.type.broadcastable[:-2], *new_cov.type.broadcastable[:-2]]
    ):  # one covariance matrix for all records
        first = (0,) * (cov.type.ndim - 2), (0,) * (new_cov.type.ndim - 2)
        change = _change_of_root(cov[first[0]], new_cov[first[1]])
        return pt.dot(value - mu, change.T) + new_mu
    return (_change_of_root(cov, new_cov) @ (value - mu)[..., None])[..., 0] + new_mu


def _change_of_root(cov, new_cov):
    root, new_root = pt.linalg.cholesky(cov), pt.linalg.cholesky(new_cov)
    return new_root @ pt.linalg.solve_triangular(root, np.eye(cov.type.shape[-1]), lower=True)


@transport.register(DiracDeltaRV)
def _dirac(op, old, new, value, draw):
    return pt.broadcast_to(new.owner.inputs[-1], value.shape).astype(value.dtype)


@transport.register(TruncatedRV)
@transport.register(TruncatedNormalRV)
def _truncated(op, old, new, value, draw):
    old_cut, new_cut = cut_law(old), cut_law(new)
    if not is_continuous(old_cut.law):
        raise Declined(f"no coupling of {op} records is registered")
    return cut_quantile(new_cut, cut_tails(old_cut, value))


@transport.register(CensoredRV)
def _censored(op, old, new, value, draw):
    # Values beyond a bound are drawn afresh; then all values move as uncensored ones do.
    (law, lower, upper), (new_law, new_lower, new_upper) = old.owner.inputs, new.owner.inputs
    if not is_continuous(law):
        raise Declined(f"no coupling of censored {law.owner.op} records is registered")
    base = law.owner.op
    low, high = (log_tails(base, law, bound) for bound in (lower, upper))
    share = pt.log(draw(pt.random.uniform, pt.zeros_like(value), 1.0))
    below, above = share + low.below, share + high.above
    beyond = Tails(
        pt.where(value <= lower, below, pt.log1mexp(above)),
        pt.where(value <= lower, pt.log1mexp(below), above),
    )
    inside = (value > lower) & (value < upper)
    half = np.log(0.5)
    beyond = Tails(*(pt.where(inside, half, tail) for tail in beyond))
    uncensored = pt.where(inside, value, quantile(base, law, beyond))
    moved = transport(base, law, new_law, uncensored, draw)
    return pt.minimum(pt.maximum(moved, new_lower), new_upper)
