r"""Coordinates in which NUTS moves latent Normal variables: what the data say of each is built in.

A latent variable :math:`x = m + s \xi` acts on the data through :math:`\theta = A + B \xi`: itself
where it is written centred, ``theta = mean + spread * raw`` where it is not. What is observed has a
mean :math:`\mu(\theta)` and a variance v, which may depend on parameters. Near a point the
log-likelihood of each entry of :math:`\theta` is about :math:`-h\theta^2/2 + k\theta` with

.. math::

    h = \sum \mu'^2 / v, \qquad k = h\hat\theta + \sum \mu' (z - \mu(\hat\theta)) / v,

as in Fisher's scoring, and `latent_normal` has the coordinates that these give. It is a change of
coordinates: the posterior stays exact where the parabolas are poor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.gradient import pullback, pushforward
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, notice, once
from pymc_dp.graphs.linear import linear_map
from pymc_dp.graphs.questions import lengths, nearest_rvs, plain_function, public_data, simplified
from pymc_dp.ladder.collapse import rebuilt
from pymc_dp.laws.mean_variance import of_variable
from pymc_dp.laws.sum_law import Change
from pymc_dp.reading.bounds import at_start, starting_values
from pymc_dp.reading.model import Reading
from pymc_dp.routes.latents import Latent, latents

_ROUNDS = 100  # of scoring, each a standard deviation of the prior at most
_STILL = 1e-9  # standard deviations given the data: nothing moves any more
_GOLDEN = 0.5 * (np.sqrt(5.0) - 1.0)


@once
def standardised(reading: Reading, on: Reading) -> tuple[pm.Model, list[str]]:
    """Return what a rung made of a model in coordinates that suit it, and of which variables.

    Those stay as they are written on which something depends that is not observed or has no known
    mean and variance, or of which no single observed number depends on one entry.
    """
    model = on.model
    names = {v: model[name] for name, v in reading.model.named_vars.items() if name in model}
    found = [
        replace(latent.replaced(names), rv=names[latent.rv])
        for latent in latents(reading)
        if latent.rv in names
    ]
    values = {rv: model.rvs_to_values[rv] for rv in model.observed_RVs}  # one given another
    moments = {
        rv: graph_replace(list(own), values, strict=False)
        for rv in values
        if (own := _moments(rv, values[rv])) is not None
    }
    found = _known(model, _ordered(found), moments)
    change = Change()
    parabolas, exact = _parabolas(reading, model, found, moments)
    for latent, parabola in zip(found, parabolas, strict=True):
        if parabola is not None:
            rv, transform = latent.coordinates(*parabola)
            transform.is_exact = exact
            change.transforms[latent.rv.name] = rv, transform
    return rebuilt(on, [], change) if change.transforms else model, list(change.transforms)


def _ordered(found: list[Latent]) -> list[Latent]:
    """Return latent variables, parents first; without those that are parts of each other."""
    done: list[Latent] = []
    left = found
    while left:
        others = {latent.rv for latent in left}
        ready = [x for x in left if not (others - {x.rv}) & set(nearest_rvs([x.a, *x.others]))]
        if not ready:
            break
        done += ready
        left = [latent for latent in left if latent not in ready]
    return done


def _known(model: pm.Model, found: list[Latent], moments: dict) -> list[Latent]:
    """Return the latent variables on which nothing depends of which too little is known."""
    kept = {latent.rv: latent for latent in found}
    for parent in nearest_rvs(model.potentials):
        kept.pop(parent, None)
    for rv in reversed(model.basic_RVs):  # what becomes unknown has its parents before it
        if rv not in kept and rv not in moments:
            for parent in nearest_rvs(rv.owner.inputs):
                kept.pop(parent, None)
    return list(kept.values())


def _moments(rv: TensorVariable, value: TensorVariable) -> tuple[TensorVariable, ...] | None:
    try:
        return of_variable(rv, value)
    except Declined:
        return None


@dataclass(frozen=True, eq=False)
class _Term:
    """What is known of a mean: of a value z with a variance, 1 / variance and (z - mean) / that."""

    mean: TensorVariable
    weight: TensorVariable
    residual: TensorVariable


def _parabolas(
    reading: Reading, model: pm.Model, found: list[Latent], moments: dict
) -> tuple[list, bool]:
    """Return h and k of each latent variable, None where nothing is known of it.

    And whether all are Normal, given all else, as h and k say: this takes means that are affine,
    each entry in one of one latent variable, and variances without them. That the data are
    independent and Normal is left to the caller.
    """
    thetas = [pt.tensor(shape=lengths(latent.rv), dtype="float64") for latent in found]
    given: dict[TensorVariable, TensorVariable] = {}
    start: dict[TensorVariable, TensorVariable] = {}
    inner = []
    for latent, theta in zip(found, thetas, strict=True):
        inner.append(latent.replaced(given))
        given[latent.rv] = inner[-1].at(theta)
        [a] = starting_values(graph_replace([inner[-1].a], start, strict=False))
        start[theta] = pt.constant(np.broadcast_to(a, lengths(latent.rv)).astype("float64"))
    terms = []
    for of_rv in moments.values():
        if set(given) & set(nearest_rvs(of_rv)):
            value, mean, variance = graph_replace(list(of_rv), given, strict=False)
            terms.append(_Term(mean, 1.0 / variance, (value - mean) / variance))
    parabolas: list = []
    exact = all(_is_exact(term, thetas) for term in terms)
    left = list(thetas)
    for latent in reversed(inner):
        h, k = _parabola(left.pop(), terms, start)
        parabolas.insert(0, (h, k))
        share = 1.0 + h * latent.variance  # what is known of a, with theta integrated out
        terms.append(_Term(latent.a, h / share, (k - h * latent.a) / share))
        alone = not latent.is_joint or not set(left) & set(ancestors([latent.a, *latent.others]))
        exact = exact and alone and _is_exact(terms[-1], left)
    score, data = _scorer(thetas, start, parabolas, inner)
    first, known = score()
    if not all(known):
        notice(*data)  # of others, more may be known
    modes = reading.following(lambda: score()[0], data, first)
    given = dict(zip(thetas, modes, strict=True))
    found_at = [
        tuple(graph_replace(parabola, given, strict=False)) if is_known else None
        for parabola, is_known in zip(parabolas, known, strict=True)
    ]
    return found_at, exact and None not in found_at


def _parabola(theta: TensorVariable, terms: Sequence[_Term], start):
    h = slope = pt.zeros(lengths(theta))
    for term in terms:
        mean = term.mean
        if theta in ancestors([mean]):
            by, alone = _slopes(mean, theta, start)
            weights = pt.broadcast_to(alone * by * term.weight, mean.shape)
            h += _pullback(mean, theta, weights)
            slope += _pullback(mean, theta, pt.broadcast_to(alone * term.residual, mean.shape))
    return h, h * theta + slope


def _pullback(mean: TensorVariable, theta: TensorVariable, weights: TensorVariable):
    return pullback(mean, theta, weights, disconnected_inputs="ignore")


def _is_exact(term: _Term, thetas: Sequence[TensorVariable]) -> bool:
    """Whether a term is seen to be that of a Normal law of one theta at most, entry by entry.

    What is not seen to be linear is not: a jump has a slope of zero.
    """
    own = [theta for theta in thetas if theta in ancestors([term.mean])]
    if set(thetas) & set(ancestors(simplified([term.weight]))) or len(own) > 1:
        return False
    try:
        maps = [linear_map(term.mean, theta) for theta in own]
    except Declined:
        return False
    return all(np.all((matrix != 0).sum(axis=1) <= 1) for matrix in maps)


def _slopes(mean: TensorVariable, theta: TensorVariable, start):
    """Return how a mean moves with theta, and which entries do with one alone, as 0 and 1."""
    shape = lengths(theta)
    # Of no pattern, so that no difference of them is zero by chance.
    directions = 1.0 + (np.arange(1, math.prod(shape) + 1).reshape(shape) * _GOLDEN) % 1.0
    slopes = [
        pushforward(mean, theta, pt.constant(directions**p), disconnected_outputs="ignore")
        for p in range(3)
    ]
    one, two, three = starting_values(graph_replace(slopes, start, strict=False))
    # Equal where, and only where, all directions that act are the same.
    alone = np.isclose(one * three, two**2, rtol=1e-9, atol=0.0)
    return slopes[0], alone.astype("float64")


def _scorer(thetas, start, parabolas, inner: Sequence[Latent]):
    """Return what finds values of theta near the mode, of parameters where PyMC starts them.

    And whether something is known of each there: h is finite, and not zero. And the data of it.
    """
    graphs = [part for parabola in parabolas for part in parabola]
    pairs = zip(inner, parabolas, strict=True)
    graphs += [part for latent, own in pairs for part in (latent.given(*own), latent.variance)]
    graphs = at_start(graphs)
    step = plain_function(thetas, graphs)
    first = [start[theta].data for theta in thetas]

    def score() -> tuple[list[np.ndarray], list[bool]]:
        values = list(first)
        for _ in range(_ROUNDS):
            numbers = step(*values)
            pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
            known, prior, moves = pairs[: len(thetas)], pairs[len(thetas) :], False
            for i, ((h, _), (to, variance)) in enumerate(zip(known, prior, strict=True)):
                most = np.sqrt(variance)
                by = np.clip(to - values[i], -most, most)
                values[i] = values[i] + by
                spread = most / np.sqrt(1.0 + h * variance)  # given the data
                # What is NaN stays so.
                moves = moves or bool(np.any(np.abs(by) > _STILL * spread))
            if not moves:
                break
        sizes = step(*values)[: 2 * len(thetas) : 2]
        return values, [bool(np.all(np.isfinite(h)) and np.any(h)) for h in sizes]

    return score, public_data(graphs)
