r"""The noise behind a record: maps :math:`x = T(u; \theta)` whose u is free of the parameters.

Interweaving moves the parameters with u held fixed (Yu & Meng 2011). A record law says here how a
record moves along. What it has to keep is the pair of laws: from :math:`x \sim f(\cdot \mid
\theta)` follows :math:`x' \sim f(\cdot \mid \theta')`, and the way back has the same joint law.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial, singledispatch

import numpy as np
import pymc as pm
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
from pymc.distributions.discrete import DiscreteUniformRV
from pymc.distributions.distribution import DiracDeltaRV
from pymc.distributions.mixture import MixtureRV
from pymc.distributions.multivariate import DirichletMultinomialRV
from pymc.distributions.truncated import TruncatedRV
from pytensor import scalar as ps
from pytensor.graph.basic import Variable, equal_computations
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.laws.tails import Tails, cut_law, cut_quantile, cut_tails, log_tails, quantile

Draw = Callable[..., TensorVariable]

_MOST_EVENTS = 2.0**53
_TINY = np.finfo(float).tiny
_WITH_ATOMS = (
    ps.Clip, ps.Maximum, ps.Minimum, ps.Floor, ps.Ceil, ps.Trunc,
    ps.RoundHalfToEven, ps.RoundHalfAwayFromZero,
)  # fmt: skip


@singledispatch
def transport(
    op, old: TensorVariable, new: TensorVariable, value: TensorVariable, draw: Draw
) -> TensorVariable:
    r"""Move records from one set of parameters to another, with the noise behind them held fixed.

    Dispatched on the op of the records' law. The default goes through the distribution function of
    a continuous law, :math:`x' = F^{-1}(F(x; \theta); \theta')`, where PyMC has it and its
    inverse. Where it cannot be resolved the result is NaN: such a move has to be refused.

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
        If there is no such map: the parameters then move given the records alone.
    """
    if not is_continuous(old):
        raise Declined(f"no coupling of {op} records is registered")
    return quantile(op, new, log_tails(op, old, value))


def is_continuous(rv: TensorVariable) -> bool:
    """Whether no value of a variable has a positive probability, as far as its op shows."""
    graphs = getattr(rv.owner.op, "inner_outputs", ())
    return rv.dtype.startswith("float") and not has_atoms(graphs)


def has_atoms(graphs: Sequence[Variable], blockers: Collection[Variable] = ()) -> bool:
    """Whether values of graphs may have positive probability, though none of their inputs has."""
    for node in {v.owner for v in ancestors(graphs, blockers=blockers) if v not in blockers}:
        match node and node.op:
            case None:
                found = False
            case Elemwise():
                found = isinstance(node.op.scalar_op, _WITH_ATOMS)
            case RandomVariable():
                found = not node.outputs[-1].dtype.startswith("float")
            case op:
                found = has_atoms(getattr(op, "inner_outputs", ()))
        if found:
            return True
    return False


def _parameters(*rvs: TensorVariable) -> list[TensorVariable]:
    return [p for rv in rvs for p in rv.owner.op.dist_params(rv.owner)]


@transport.register(ptr.NormalRV)
@transport.register(ptr.LaplaceRV)
@transport.register(ptr.LogisticRV)
@transport.register(ptr.CauchyRV)
@transport.register(ptr.HalfNormalRV)
@transport.register(ptr.GumbelRV)
@transport.register(MoyalRV)
def _location_scale(op, old, new, value, draw):
    loc, scale, new_loc, new_scale = _parameters(old, new)
    return new_loc + (value - loc) * (new_scale / scale)


@transport.register
def _uniform(op: ptr.UniformRV, old, new, value, draw):
    low, high, new_low, new_high = _parameters(old, new)
    return new_low + (value - low) * ((new_high - new_low) / (high - low))


@transport.register(ptr.ExponentialRV)
@transport.register(HalfCauchyRV)
def _scale(op, old, new, value, draw):
    scale, new_scale = _parameters(old, new)
    return value * (new_scale / scale)


@transport.register
def _log_normal(op: ptr.LogNormalRV, old, new, value, draw):
    mu, sigma, new_mu, new_sigma = _parameters(old, new)
    return pt.exp(new_mu + (pt.log(value) - mu) * (new_sigma / sigma))


# --- Gamma variables and what they make up --------------------------------------------------------
# A shape grows by an independent part, and shrinks by giving up a Beta share. The parts are fresh
# noise. It is small beside that of a release that makes records worth carrying along, and the
# distribution function and its inverse would take twenty times as long.


def _grown(shape, new_shape, value, draw):
    more = new_shape - shape
    zeros = pt.zeros_like(value)
    part = _standard_gamma(pt.abs(more) + zeros, draw)
    kept = _standard_gamma(pt.minimum(shape, new_shape) + zeros, draw)
    less = pt.where(more < 0.0, value * kept / (kept + part), value)
    return pt.where(more > 0.0, value + part, less)


def _standard_gamma(shape, draw):
    valid = (shape > 0.0) & (shape < np.inf)
    found = draw(partial(pt.random.gamma, scale=1.0), pt.where(valid, shape, 1.0))
    return pt.where(valid, found, pt.where(pt.eq(shape, 0.0), 0.0, np.nan))


@transport.register(ptr.GammaRV)
@transport.register(ptr.InvGammaRV)
def _gamma(op, old, new, value, draw):
    shape, scale, new_shape, new_scale = _parameters(old, new)
    if equal_computations([shape], [new_shape]):
        return value * (new_scale / scale)
    if isinstance(op, ptr.InvGammaRV):
        return new_scale / _grown(shape, new_shape, scale / value, draw)
    return new_scale * _grown(shape, new_shape, value / scale, draw)


@transport.register
def _dirichlet(op: ptr.DirichletRV, old, new, value, draw):
    return _shared(*_parameters(old, new), value, draw)


@transport.register
def _beta(op: ptr.BetaRV, old, new, value, draw):
    alpha, beta, new_alpha, new_beta = _parameters(old, new)
    shapes, new_shapes = _two(alpha, beta), _two(new_alpha, new_beta)
    return _shared(shapes, new_shapes, _two(value, 1.0 - value), draw)[..., 0]


def _two(a, b):
    return pt.stack(pt.broadcast_arrays(a, b), axis=-1)


def _shared(shapes, new_shapes, value, draw):
    """Move shares of a sum of Gamma variables: these are the sum, which is drawn, times them."""
    total = _standard_gamma(shapes.sum(axis=-1) + pt.zeros_like(value[..., 0]), draw)
    parts = value * total[..., None]
    moved = _grown(shapes, new_shapes, parts, draw)
    # Where one underflows the move is refused, there and back.
    resolved = pt.minimum(parts.min(axis=-1), moved.min(axis=-1)) > _TINY
    return moved / pt.where(resolved, moved.sum(axis=-1), np.nan)[..., None]


@transport.register(ptr.StudentTRV)
@transport.register(HalfStudentTRV)
def _student_t(op, old, new, value, draw):
    (nu, *loc, scale), (new_nu, *new_loc, new_scale) = (_parameters(rv) for rv in (old, new))
    distance = (value - sum(loc)) / scale
    if not equal_computations([nu], [new_nu]):
        # Normal over the root of an independent Gamma variable, which is drawn given the record.
        rate = 1.0 + distance**2 / nu
        precision = _standard_gamma((nu + 1.0) / 2.0 + pt.zeros_like(value), draw) / rate
        moved = _grown(nu / 2.0, new_nu / 2.0, precision, draw)
        distance = distance * pt.sqrt(precision / nu * (new_nu / moved))
    return sum(new_loc) + distance * new_scale


@transport.register(WeibullBetaRV)
@transport.register(ptr.ParetoRV)
def _power(op, old, new, value, draw):
    alpha, scale, new_alpha, new_scale = _parameters(old, new)
    return new_scale * (value / scale) ** (alpha / new_alpha)


@transport.register(ptr.MvNormalRV)
def _mv_normal(op, old, new, value, draw):
    mu, cov, new_mu, new_cov = _parameters(old, new)
    if equal_computations([cov], [new_cov]):
        return value - mu + new_mu
    if all([*cov.type.broadcastable[:-2], *new_cov.type.broadcastable[:-2]]):  # one root for all
        one = (0,) * (cov.type.ndim - 2), (0,) * (new_cov.type.ndim - 2)
        change = _change_of_root(cov[one[0]], new_cov[one[1]])
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
    here, there = cut_law(old), cut_law(new)
    if not is_continuous(here.law):
        raise Declined(f"no coupling of {op} records is registered")
    return cut_quantile(there, cut_tails(here, value))


@transport.register(CensoredRV)
def _censored(op, old, new, value, draw):
    # What lies beyond a bound is drawn afresh; all of it moves as uncensored values do.
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
    whole = pt.where(inside, value, quantile(base, law, beyond))
    moved = transport(base, law, new_law, whole, draw)
    return pt.minimum(pt.maximum(moved, new_lower), new_upper)


# --- Counts and codes -----------------------------------------------------------------------------
# NaN and infinite parameters, at which the records have no density, must not reach a generator.


def _chance(p: TensorVariable) -> TensorVariable:
    return pt.where(p >= 0.0, pt.minimum(p, 1.0), 0.0)


def _thinned(rate, new_rate, value, draw):
    # Thinning and superposition: the two counts share the events that both rates have.
    more = new_rate - rate
    more = pt.where((more > 0.0) & (more < _MOST_EVENTS), more, 0.0)
    gained = draw(pt.random.poisson, more + pt.zeros_like(value))
    kept = draw(pt.random.binomial, value, _chance(new_rate / rate) + pt.zeros_like(value))
    return pt.where(new_rate >= rate, value + gained, kept)


@transport.register
def _poisson(op: ptr.PoissonRV, old, new, value, draw):
    return _thinned(*_parameters(old, new), value, draw)


@transport.register
def _negative_binomial(op: ptr.NegBinomialRV, old, new, value, draw):
    # A Poisson count with a Gamma rate, which is drawn given the count and moves like a Gamma.
    alpha, p, new_alpha, new_p = _parameters(old, new)
    part = p * _standard_gamma(alpha + value, draw)
    rate, new_rate = part * (1.0 - p) / p, part
    if not equal_computations([alpha], [new_alpha]):
        new_rate = _grown(alpha, new_alpha, part, draw)
    return _thinned(rate, new_rate * (1.0 - new_p) / new_p, value, draw)


@transport.register
def _bernoulli(op: ptr.BernoulliRV, old, new, value, draw):
    p, new_p = _parameters(old, new)
    u = draw(pt.random.uniform, pt.zeros_like(value, dtype="float64"), 1.0)
    up = pt.where(value > 0, 1.0, (new_p - p) / (1.0 - p))
    down = pt.where(value > 0, new_p / p, 0.0)
    return (u < pt.where(new_p >= p, up, down)).astype(value.dtype)


@transport.register
def _binomial(op: ptr.BinomialRV, old, new, value, draw):
    trials, p, new_trials, new_p = _parameters(old, new)
    _require_same_number(op, trials, new_trials, "probability")
    return _flipped(trials, p, new_p, value, draw)


def _require_same_number(op, trials, new_trials, what):
    if not equal_computations([trials], [new_trials]):
        name = type(op).__name__.removesuffix("RV")
        raise Declined(f"{name} records move along with their {what} only")


def _flipped(trials, p, new_p, value, draw):
    # Failures turn into successes where the probability grows, and back where it falls.
    zeros = pt.zeros_like(value)
    gained = draw(pt.random.binomial, trials - value, _chance((new_p - p) / (1.0 - p)) + zeros)
    kept = draw(pt.random.binomial, value, _chance(new_p / p) + zeros)
    return pt.where(new_p >= p, value + gained, kept)


@transport.register
def _beta_binomial(op: ptr.BetaBinomialRV, old, new, value, draw):
    trials, alpha, beta, new_trials, new_alpha, new_beta = _parameters(old, new)
    _require_same_number(op, trials, new_trials, "probabilities")
    shapes, new_shapes = _two(alpha, beta), _two(new_alpha, new_beta)
    p, new_p = _mixed(shapes, new_shapes, _two(value, trials - value), draw)
    return _flipped(trials, p[..., 0], new_p[..., 0], value, draw)


@transport.register
def _multinomial(op: ptr.MultinomialRV, old, new, value, draw):
    trials, p, new_trials, new_p = _parameters(old, new)
    _require_same_number(op, trials, new_trials, "probabilities")
    return _regrouped(p, new_p, value, draw)


@transport.register
def _dirichlet_multinomial(op: DirichletMultinomialRV, old, new, value, draw):
    trials, shapes, new_trials, new_shapes = _parameters(old, new)
    _require_same_number(op, trials, new_trials, "probabilities")
    p, new_p = _mixed(shapes, new_shapes, value, draw)
    return _regrouped(p, new_p, value, draw)


def _mixed(shapes, new_shapes, value, draw):
    """Draw Dirichlet probabilities given the counts, and move them."""
    parts = _standard_gamma(shapes + value, draw)
    p = parts / parts.sum(axis=-1, keepdims=True)
    return p, _shared(shapes, new_shapes, p, draw)


def _regrouped(p, new_p, value, draw):
    # Categories that lose give items up, one by one; those that gain receive them.
    kept = draw(pt.random.binomial, value, _chance(new_p / p) + pt.zeros_like(value))
    gains = pt.where(new_p > p, new_p - p, 0.0) + pt.zeros_like(value)
    total = gains.sum(axis=-1, keepdims=True)
    share = pt.where((total > 0.0) & (total < np.inf), gains / total, 1.0 / p.shape[-1])
    return kept + draw(pt.random.multinomial, (value - kept).sum(axis=-1), share)


@transport.register
def _geometric(op: ptr.GeometricRV, old, new, value, draw):
    # The waiting time in whole steps of an exponential clock, which stood within the last step.
    [step, new_step] = (-pt.log1p(-p) for p in _parameters(old, new))
    u = draw(pt.random.uniform, pt.zeros_like(value, dtype="float64"), 1.0)
    time = (value - 1) * step - pt.log1p(u * pt.expm1(-step))
    steps = pt.ceil(time / new_step)
    return pt.where(steps >= 1.0, pt.minimum(steps, _MOST_EVENTS), 1.0).astype(value.dtype)


@transport.register
def _discrete_uniform(op: DiscreteUniformRV, old, new, value, draw):
    low, high, new_low, new_high = _parameters(old, new)
    u = draw(pt.random.uniform, pt.zeros_like(value, dtype="float64"), 1.0)
    share = (value - low + u) / (high - low + 1.0)
    moved = new_low + pt.floor(share * (new_high - new_low + 1.0))
    return pt.minimum(moved, new_high).astype(value.dtype)


@transport.register
def _categorical(op: ptr.CategoricalRV, old, new, value, draw):
    p, new_p = _parameters(old, new)
    return _moved_codes(p, new_p, value, draw)


def _moved_codes(p, new_p, code, draw):
    # A code stays with the largest probability that there is, else goes to one that gains.
    at = code[..., None]
    everywhere = pt.zeros((*code.shape, 1))
    old, new = (pt.take_along_axis(q + everywhere, at, axis=-1)[..., 0] for q in (p, new_p))
    u, v = (draw(pt.random.uniform, pt.zeros_like(code, dtype="float64"), 1.0) for _ in range(2))
    gains = pt.cumsum(pt.maximum(new_p - p, 0.0), axis=-1)
    other = (v[..., None] * gains[..., -1:] >= gains[..., :-1]).sum(axis=-1)
    return pt.where(u * old < new, code, other).astype(code.dtype)


def _atoms_first(op, laws, value, densities):
    """Log densities of the components, those of continuous ones zero where a point mass lies."""
    points = [isinstance(law.owner.op, DiracDeltaRV) for law in laws]
    if not all(p or is_continuous(law) for p, law in zip(points, laws, strict=True)):
        raise Declined(f"no coupling of {op} records with point masses is registered")
    if not any(points) or len(laws) == 1:
        return densities
    places = [law.owner.inputs[-1] for p, law in zip(points, laws, strict=True) if p]
    at_point = pt.any(pt.stack([pt.eq(value, place) for place in places]), axis=0)
    return pt.where(at_point[..., None] & ~pt.constant(points), -np.inf, densities)


@transport.register(MixtureRV)
def _mixture(op, old, new, value, draw):
    # Labels are drawn given the records; a record whose label moves is drawn afresh.
    def parts(rv):
        _, weights, *components = rv.owner.inputs
        return weights, components

    (weights, laws), (new_weights, new_laws) = parts(old), parts(new)
    support = laws[0].owner.op.ndim_supp
    if len(laws) == 1:  # has the components along its last axis before those of the support
        components = -1 - support
        fresh = new_laws[0]
        at = pt.broadcast_to(pt.expand_dims(value, components), fresh.shape)
        densities = pm.logp(laws[0], at)
        moved = transport(laws[0].owner.op, laws[0], new_laws[0], at, draw)
        moved, fresh = (pt.moveaxis(x, components, -1) for x in (moved, fresh))
    else:
        densities = pt.stack([pm.logp(law, value) for law in laws], axis=-1)
        pairs = zip(laws, new_laws, strict=True)
        moved = [transport(law.owner.op, law, other, value, draw) for law, other in pairs]
        moved = pt.stack(moved, axis=-1)
        fresh = pt.stack(new_laws, axis=-1)
    if value.dtype.startswith("float"):
        densities = _atoms_first(op, laws, value, densities)
    chances = pt.special.softmax(pt.log(weights) + densities, axis=-1)
    u = draw(pt.random.uniform, pt.zeros_like(chances[..., 0]), 1.0)
    label = (u[..., None] > pt.cumsum(chances, axis=-1)[..., :-1]).sum(axis=-1)
    new_label = _moved_codes(weights, new_weights, label, draw)
    result = pt.where(_within(pt.eq(label, new_label), support), moved, fresh.astype(moved.dtype))
    at = pt.broadcast_to(_within(new_label, support), (*value.shape, 1))
    return pt.take_along_axis(result, at, axis=-1)[..., 0].astype(value.dtype)


def _within(x, support):
    """Align what is one for each record with components of vectors, along the last axis."""
    return x[(..., *[None] * (support + 1))]
