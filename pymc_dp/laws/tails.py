"""Log distribution functions and their inverses, in both tails.

A probability near one does not resolve the upper tail: a record far out there is described by the
probability above it. PyMC inverts probabilities below a value; `quantile` inverts those above, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytensor.tensor.random.basic as ptr
from pymc.distributions.continuous import TruncatedNormalRV
from pymc.distributions.truncated import TruncatedRV
from pymc.logprob.basic import logccdf
from pymc.math import logdiffexp
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.registry import ability
from pymc_dp.laws import is_registered
from pymc_dp.mechanisms.gaussian import GaussianMechanism

_LOG_HALF = np.log(np.float64(0.5))
_RESOLVED = np.log(np.float64(1e-9))  # 1 - p has seven digits there


class Tails(NamedTuple):
    """Log probabilities of a value or less (below), and of more (above)."""

    below: TensorVariable
    above: TensorVariable


@ability
def log_tails(op, rv: TensorVariable, value: TensorVariable) -> Tails:
    """Return the log probabilities on both sides of a value; dispatched on the op of `rv`."""
    return Tails(pm.logcdf(rv, value, warn_rvs=False), logccdf(rv, value, warn_rvs=False))


def log_between(
    law: RandomVariable, parameters: Sequence[TensorVariable], edges: np.ndarray
) -> TensorVariable:
    """Return the log probabilities of the intervals of a continuous law between increasing edges.

    The first interval starts at minus infinity, the last ends at infinity.
    """
    rng = pt.random.shared_rng(seed=None)
    _, record = law(*parameters, rng=rng, return_next_rng=True)
    below, above = log_tails(law, record, pt.constant(edges))
    between = [logdiffexp(below[1:], below[:-1])] if edges.size > 1 else []
    return pt.concatenate([below[:1], *between, above[-1:]])


@ability
def quantile(op, rv: TensorVariable, tails: Tails) -> TensorVariable:
    """Return the value with these log probabilities on both sides; dispatched on the op of `rv`.

    The default is NaN in an upper tail that it cannot resolve. A caller that moves a record from
    one law to another has to refuse the move there. The reverse move is refused as well, as the
    record has the same tail probabilities under both laws: detailed balance holds.
    """
    probability = pt.exp(tails.below)
    resolved = pt.where(tails.above > _RESOLVED, probability, np.nan)
    return pm.icdf(rv, resolved, warn_rvs=False)


def is_two_tailed(op) -> bool:
    """Whether `quantile` resolves the upper tail of a law."""
    return is_registered(quantile, op)


@quantile.register
def _normal(op: ptr.NormalRV, rv, tails):
    mu, sigma = op.dist_params(rv.owner)
    z = pt.ndtri_exp(pt.minimum(tails.below, tails.above))
    return mu + sigma * pt.where(tails.below < tails.above, z, -z)


@log_tails.register
def _normal_tails(op: ptr.NormalRV, rv, value):
    # PyMC takes the root of 2 to single precision.
    mu, sigma = op.dist_params(rv.owner)
    noise = GaussianMechanism(1.0).with_parameters(sigma)
    return Tails(noise.log_interval(-np.inf, value, mu), noise.log_interval(value, np.inf, mu))


def _symmetric_tails(value, loc, less) -> Tails:
    """Return the tails of a symmetric law; `less` is the log probability of the smaller tail."""
    more = pt.log1mexp(less)
    return Tails(pt.where(value < loc, less, more), pt.where(value < loc, more, less))


@log_tails.register
def _laplace_tails(op: ptr.LaplaceRV, rv, value):
    # PyMC takes log(0.5) to single precision.
    loc, scale = op.dist_params(rv.owner)
    less = _LOG_HALF - pt.abs(value - loc) / scale
    return _symmetric_tails(value, loc, less)


@quantile.register
def _laplace(op: ptr.LaplaceRV, rv, tails):
    loc, scale = op.dist_params(rv.owner)
    distance = scale * (_LOG_HALF - pt.minimum(tails.below, tails.above))
    return loc + pt.where(tails.below < tails.above, -distance, distance)


@log_tails.register(ptr.LogisticRV)
@log_tails.register(ptr.CauchyRV)
def _tails_by_symmetry(op, rv, value):
    loc, _ = op.dist_params(rv.owner)
    less = pm.logcdf(rv, loc - pt.abs(value - loc), warn_rvs=False)
    return _symmetric_tails(value, loc, less)


@log_tails.register
def _student_t_tails(op: ptr.StudentTRV, rv, value):
    # PyMC's t + sqrt(t^2 + nu) cancels in the lower tail.
    nu, loc, scale = op.dist_params(rv.owner)
    square = ((value - loc) / scale) ** 2
    far = square > pt.minimum(nu, 10.0)  # else 1 - part keeps 13 digits
    half, share = nu / 2.0, pt.where(far, nu, square) / (nu + square)
    part = pt.betainc(pt.where(far, half, 0.5), pt.where(far, 0.5, half), share)
    less = _LOG_HALF + pt.where(far, pt.log(part), pt.log1p(-part))
    return _symmetric_tails(value, loc, less)


@quantile.register(ptr.LogisticRV)
@quantile.register(ptr.CauchyRV)
@quantile.register(ptr.StudentTRV)
def _symmetric(op, rv, tails):
    *_, loc, _ = op.dist_params(rv.owner)
    lower = pm.icdf(rv, pt.exp(pt.minimum(tails.below, tails.above)), warn_rvs=False)
    return pt.where(tails.below < tails.above, lower, 2.0 * loc - lower)


@log_tails.register
def _exponential_tails(op: ptr.ExponentialRV, rv, value):
    [scale] = op.dist_params(rv.owner)
    rate = pt.maximum(value, 0.0) / scale
    return Tails(pt.log1mexp(-rate), -rate)


@quantile.register
def _exponential(op: ptr.ExponentialRV, rv, tails):
    [scale] = op.dist_params(rv.owner)
    below = tails.below < _LOG_HALF
    return -scale * pt.where(below, pt.log1p(-pt.exp(tails.below)), tails.above)


@log_tails.register
def _gamma_tails(op: ptr.GammaRV, rv, value):
    shape, scale = op.dist_params(rv.owner)
    positive = value > 0.0
    above = pt.log(pt.gammaincc(shape, pt.where(positive, value / scale, 1.0)))
    return Tails(pm.logcdf(rv, value, warn_rvs=False), pt.where(positive, above, 0.0))


@quantile.register
def _gamma(op: ptr.GammaRV, rv, tails):
    shape, scale = op.dist_params(rv.owner)
    below, above = (pt.exp(tail) for tail in tails)
    return scale * pt.where(
        below < above, pt.gammaincinv(shape, below), pt.gammainccinv(shape, above)
    )


@log_tails.register
def _beta_tails(op: ptr.BetaRV, rv, value):
    inside = value < 1.0  # log(1 - value) has no gradient at 1
    rest = pt.where(inside, 1.0 - value, 0.5)
    above = pm.logcdf(_mirrored(op, rv), rest, warn_rvs=False)
    return Tails(pm.logcdf(rv, value, warn_rvs=False), pt.where(inside, above, -np.inf))


@quantile.register
def _beta(op: ptr.BetaRV, rv, tails):
    low = pm.icdf(rv, pt.exp(tails.below), warn_rvs=False)
    high = 1.0 - pm.icdf(_mirrored(op, rv), pt.exp(tails.above), warn_rvs=False)
    return pt.where(tails.below < tails.above, low, high)


def _mirrored(op, rv):
    """Return one minus a Beta variable."""
    alpha, beta = op.dist_params(rv.owner)
    return pm.Beta.dist(beta, alpha)


# --- Laws that are cut to an interval -------------------------------------------------------------


class Cut(NamedTuple):
    """A law cut to an interval."""

    law: TensorVariable
    lower: TensorVariable
    upper: TensorVariable


def cut_law(rv: TensorVariable) -> Cut:
    """Return the law that a truncated variable is cut from, and the limits."""
    op = rv.owner.op
    if isinstance(op, TruncatedNormalRV):
        mu, sigma, lower, upper = op.dist_params(rv.owner)
        return Cut(pm.Normal.dist(mu, sigma), lower, upper)
    assert isinstance(op, TruncatedRV)
    *inputs, lower, upper = rv.owner.inputs
    return Cut(op.base_rv_op.make_node(*inputs).outputs[-1], lower, upper)


def cut_tails(cut: Cut, value: TensorVariable) -> Tails:
    """Return the log probabilities on both sides of a value, under the truncated law."""
    op = cut.law.owner.op
    at_value = log_tails(op, cut.law, value)
    ends, mass = _ends(cut)
    below, above = _between(ends[0], at_value), _between(at_value, ends[1])
    if not is_two_tailed(op):  # NaN where `quantile` is, so that the reverse move is refused
        mass = pt.where(at_value.above > _RESOLVED, mass, np.nan)
    return Tails(below - mass, above - mass)


def cut_quantile(cut: Cut, tails: Tails) -> TensorVariable:
    """Return the value with these log probabilities on both sides, under the truncated law."""
    (low, high), mass = _ends(cut)
    uncut = Tails(_log_sum(low.below, tails.below + mass), _log_sum(high.above, tails.above + mass))
    return quantile(cut.law.owner.op, cut.law, uncut)


def _ends(cut: Cut) -> tuple[tuple[Tails, Tails], TensorVariable]:
    """Return the tails at both limits, and the log probability between the limits."""
    op = cut.law.owner.op
    low, high = (log_tails(op, cut.law, _as_float(end)) for end in (cut.lower, cut.upper))
    return (low, high), _between(low, high)


def _as_float(x) -> TensorVariable:
    return pt.as_tensor(x).astype("float64")


def _between(low: Tails, high: Tails) -> TensorVariable:
    """Log probability between two values, as a difference in the tail where less cancels."""
    from_above = low.below > _LOG_HALF
    most = pt.where(from_above, low.above, high.below)
    least = pt.where(from_above, high.above, low.below)
    return most + pt.log1mexp(pt.minimum(least - most, 0.0))


def _log_sum(a, b) -> TensorVariable:
    top = pt.maximum(a, b)
    return pt.where(pt.eq(top, -np.inf), top, top + pt.log1p(pt.exp(-pt.abs(a - b))))
