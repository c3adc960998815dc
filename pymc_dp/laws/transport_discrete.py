"""Transport of counts, codes and mixtures: see `laws.transport` for continuous records.

Parameters that are NaN or infinite, where the records have no density, must not reach a generator:
they are replaced before a draw.
"""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytensor.tensor.random.basic as ptr
from pymc.distributions.discrete import DiscreteUniformRV
from pymc.distributions.distribution import DiracDeltaRV
from pymc.distributions.mixture import MixtureRV
from pymc.distributions.multivariate import DirichletMultinomialRV
from pytensor.graph.basic import equal_computations
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.laws.continuity import is_continuous
from pymc_dp.laws.transport import (
    as_pair,
    change_shape,
    move_shares,
    parameters_of,
    standard_gamma,
    transport,
)

_MOST_EVENTS = 2.0**53  # of a Poisson or geometric draw: beyond, a double does not count them


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
    return _thinned(*parameters_of(old, new), value, draw)


@transport.register
def _negative_binomial(op: ptr.NegBinomialRV, old, new, value, draw):
    # A Poisson count with a Gamma rate, which is drawn given the count and moves like a Gamma.
    alpha, p, new_alpha, new_p = parameters_of(old, new)
    part = p * standard_gamma(alpha + value, draw)
    rate, new_rate = part * (1.0 - p) / p, part
    if not equal_computations([alpha], [new_alpha]):
        new_rate = change_shape(alpha, new_alpha, part, draw)
    return _thinned(rate, new_rate * (1.0 - new_p) / new_p, value, draw)


@transport.register
def _bernoulli(op: ptr.BernoulliRV, old, new, value, draw):
    p, new_p = parameters_of(old, new)
    u = draw(pt.random.uniform, pt.zeros_like(value, dtype="float64"), 1.0)
    up = pt.where(value > 0, 1.0, (new_p - p) / (1.0 - p))
    down = pt.where(value > 0, new_p / p, 0.0)
    return (u < pt.where(new_p >= p, up, down)).astype(value.dtype)


@transport.register
def _binomial(op: ptr.BinomialRV, old, new, value, draw):
    trials, p, new_trials, new_p = parameters_of(old, new)
    _require_same_number(op, trials, new_trials, "probability")
    return _flipped(trials, p, new_p, value, draw)


def _require_same_number(op, trials, new_trials, parameter):
    if not equal_computations([trials], [new_trials]):
        name = type(op).__name__.removesuffix("RV")
        raise Declined(f"{name} records move along with their {parameter} only")


def _flipped(trials, p, new_p, value, draw):
    # Failures turn into successes where the probability grows, and back where it falls.
    zeros = pt.zeros_like(value)
    gained = draw(pt.random.binomial, trials - value, _chance((new_p - p) / (1.0 - p)) + zeros)
    kept = draw(pt.random.binomial, value, _chance(new_p / p) + zeros)
    return pt.where(new_p >= p, value + gained, kept)


@transport.register
def _beta_binomial(op: ptr.BetaBinomialRV, old, new, value, draw):
    trials, alpha, beta, new_trials, new_alpha, new_beta = parameters_of(old, new)
    _require_same_number(op, trials, new_trials, "probabilities")
    shapes, new_shapes = as_pair(alpha, beta), as_pair(new_alpha, new_beta)
    p, new_p = _mixed(shapes, new_shapes, as_pair(value, trials - value), draw)
    return _flipped(trials, p[..., 0], new_p[..., 0], value, draw)


@transport.register
def _multinomial(op: ptr.MultinomialRV, old, new, value, draw):
    trials, p, new_trials, new_p = parameters_of(old, new)
    _require_same_number(op, trials, new_trials, "probabilities")
    return _regrouped(p, new_p, value, draw)


@transport.register
def _dirichlet_multinomial(op: DirichletMultinomialRV, old, new, value, draw):
    trials, shapes, new_trials, new_shapes = parameters_of(old, new)
    _require_same_number(op, trials, new_trials, "probabilities")
    p, new_p = _mixed(shapes, new_shapes, value, draw)
    return _regrouped(p, new_p, value, draw)


def _mixed(shapes, new_shapes, value, draw):
    """Draw Dirichlet probabilities given the counts, and move them."""
    parts = standard_gamma(shapes + value, draw)
    p = parts / parts.sum(axis=-1, keepdims=True)
    return p, move_shares(shapes, new_shapes, p, draw)


def _regrouped(p, new_p, value, draw):
    # Items leave a category whose probability falls, and go to the categories where it grows.
    kept = draw(pt.random.binomial, value, _chance(new_p / p) + pt.zeros_like(value))
    gains = pt.where(new_p > p, new_p - p, 0.0) + pt.zeros_like(value)
    total = gains.sum(axis=-1, keepdims=True)
    share = pt.where((total > 0.0) & (total < np.inf), gains / total, 1.0 / p.shape[-1])
    return kept + draw(pt.random.multinomial, (value - kept).sum(axis=-1), share)


@transport.register
def _geometric(op: ptr.GeometricRV, old, new, value, draw):
    # An exponential time in whole steps: the time within the last step is drawn uniformly.
    [step, new_step] = (-pt.log1p(-p) for p in parameters_of(old, new))
    u = draw(pt.random.uniform, pt.zeros_like(value, dtype="float64"), 1.0)
    time = (value - 1) * step - pt.log1p(u * pt.expm1(-step))
    steps = pt.ceil(time / new_step)
    return pt.where(steps >= 1.0, pt.minimum(steps, _MOST_EVENTS), 1.0).astype(value.dtype)


@transport.register
def _discrete_uniform(op: DiscreteUniformRV, old, new, value, draw):
    low, high, new_low, new_high = parameters_of(old, new)
    u = draw(pt.random.uniform, pt.zeros_like(value, dtype="float64"), 1.0)
    share = (value - low + u) / (high - low + 1.0)
    moved = new_low + pt.floor(share * (new_high - new_low + 1.0))
    return pt.minimum(moved, new_high).astype(value.dtype)


@transport.register
def _categorical(op: ptr.CategoricalRV, old, new, value, draw):
    p, new_p = parameters_of(old, new)
    return _moved_codes(p, new_p, value, draw)


def _moved_codes(p, new_p, code, draw):
    # Maximal coupling: a code stays with the largest possible probability, else it goes to a
    # code whose probability grows.
    codes = code[..., None]
    everywhere = pt.zeros((*code.shape, 1))
    old, new = (pt.take_along_axis(q + everywhere, codes, axis=-1)[..., 0] for q in (p, new_p))
    u, v = (draw(pt.random.uniform, pt.zeros_like(code, dtype="float64"), 1.0) for _ in range(2))
    gains = pt.cumsum(pt.maximum(new_p - p, 0.0), axis=-1)
    gaining_code = (v[..., None] * gains[..., -1:] >= gains[..., :-1]).sum(axis=-1)
    return pt.where(u * old < new, code, gaining_code).astype(code.dtype)


def _atoms_first(op, laws, value, densities):
    """Return the log densities, with the continuous components at -inf on a point mass."""
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
    # Labels are drawn given the records, and move as codes; where a label changes the record is
    # drawn afresh.
    def parts(rv):
        _, weights, *components = rv.owner.inputs
        return weights, components

    (weights, laws), (new_weights, new_laws) = parts(old), parts(new)
    support = laws[0].owner.op.ndim_supp
    if len(laws) == 1:  # its last batch axis holds the components
        components = -1 - support
        fresh = new_laws[0]
        values = pt.broadcast_to(pt.expand_dims(value, components), fresh.shape)
        densities = pm.logp(laws[0], values)
        moved = transport(laws[0].owner.op, laws[0], new_laws[0], values, draw)
        moved, fresh = (pt.moveaxis(x, components, -1) for x in (moved, fresh))
    else:
        densities = pt.stack([pm.logp(law, value) for law in laws], axis=-1)
        pairs = zip(laws, new_laws, strict=True)
        moved = [transport(law.owner.op, law, new_law, value, draw) for law, new_law in pairs]
        moved = pt.stack(moved, axis=-1)
        fresh = pt.stack(new_laws, axis=-1)
    if value.dtype.startswith("float"):
        densities = _atoms_first(op, laws, value, densities)
    chances = pt.special.softmax(pt.log(weights) + densities, axis=-1)
    u = draw(pt.random.uniform, pt.zeros_like(chances[..., 0]), 1.0)
    label = (u[..., None] > pt.cumsum(chances, axis=-1)[..., :-1]).sum(axis=-1)
    new_label = _moved_codes(weights, new_weights, label, draw)
    result = pt.where(_within(pt.eq(label, new_label), support), moved, fresh.astype(moved.dtype))
    label_index = pt.broadcast_to(_within(new_label, support), (*value.shape, 1))
    return pt.take_along_axis(result, label_index, axis=-1)[..., 0].astype(value.dtype)


def _within(x, support):
    """Add axes so that numbers of records broadcast against components along the last axis."""
    return x[(..., *[None] * (support + 1))]
