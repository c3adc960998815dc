r"""Coordinates in which NUTS moves latent Normal variables, chosen by how informative data are.

A latent variable :math:`x = m + s \xi` acts on the data through :math:`\theta = A + B \xi`. In a
centred model theta is x itself, in a non-centred one ``theta = mean + spread * raw``. The data have
a mean :math:`\mu(\theta)` and a variance v, which may depend on parameters. Near a point the
log-likelihood of each entry of :math:`\theta` is about :math:`-h\theta^2/2 + k\theta` with

.. math::

    h = \sum \mu'^2 / v, \qquad k = h\hat\theta + \sum \mu' (z - \mu(\hat\theta)) / v,

as in Fisher's scoring; `latent_normal` has the coordinates that follow from h and k. They are a
change of variables: the posterior stays exact where the parabola is a poor approximation.
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
from pymc_dp.graphs.shapes import lengths
from pymc_dp.graphs.substitution import simplified
from pymc_dp.graphs.values import nearest_rvs, plain_function, public_data
from pymc_dp.ladder.collapse import rebuilt
from pymc_dp.laws.mean_variance import of_variable
from pymc_dp.laws.sum_law import Change
from pymc_dp.reading.bounds import at_start, starting_values
from pymc_dp.reading.model import Reading
from pymc_dp.routes.latents import Latent, latents

_ROUNDS = 100  # of scoring; each moves theta by at most one standard deviation of its prior
_STILL = 1e-9  # scoring ends where no move exceeds so many posterior standard deviations
_GOLDEN = 0.5 * (np.sqrt(5.0) - 1.0)


@once
def standardised(reading: Reading, target: Reading) -> tuple[pm.Model, list[str]]:
    """Return the model of a rung in coordinates that suit the data, and the variables in them.

    A latent Normal variable stays as it is written if a variable depends on it that is neither
    observed with a known mean and variance nor such a latent variable itself, or if every observed
    number depends on several of its entries.
    """
    model = target.model
    names = {v: model[name] for name, v in reading.model.named_vars.items() if name in model}
    moved = [
        replace(latent.replaced(names), rv=names[latent.rv])
        for latent in latents(reading)
        if latent.rv in names
    ]
    values = {rv: model.rvs_to_values[rv] for rv in model.observed_RVs}  # parents of a release
    moments = {
        rv: graph_replace(list(expressions), values, strict=False)
        for rv in values
        if (expressions := _moments(rv, values[rv])) is not None
    }
    moved = _known(model, _ordered(moved), moments)
    change = Change()
    parabolas, exact = _parabolas(reading, model, moved, moments)
    for latent, parabola in zip(moved, parabolas, strict=True):
        if parabola is not None:
            rv, transform = latent.coordinates(*parabola)
            transform.is_exact = exact
            change.transforms[latent.rv.name] = rv, transform
    return rebuilt(target, [], change) if change.transforms else model, list(change.transforms)


def _ordered(candidates: list[Latent]) -> list[Latent]:
    """Sort latent variables, parents first; drop those whose expressions depend on each other."""
    ordered: list[Latent] = []
    left = candidates
    while left:
        rvs = {latent.rv for latent in left}
        ready = [x for x in left if not (rvs - {x.rv}) & set(nearest_rvs([x.a, *x.expressions]))]
        if not ready:
            break
        ordered += ready
        left = [latent for latent in left if latent not in ready]
    return ordered


def _known(model: pm.Model, candidates: list[Latent], moments: dict) -> list[Latent]:
    """Return the latent variables whose children all are latent, or have a mean and variance."""
    kept = {latent.rv: latent for latent in candidates}
    for parent in nearest_rvs(model.potentials):
        kept.pop(parent, None)
    for rv in reversed(model.basic_RVs):  # children first: a dropped variable drops its parents
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
    """A value z observed with this mean: weight is 1 / variance, residual (z - mean) / variance."""

    mean: TensorVariable
    weight: TensorVariable
    residual: TensorVariable


def _parabolas(
    reading: Reading, model: pm.Model, moved: list[Latent], moments: dict
) -> tuple[list, bool]:
    """Return (h, k) of each latent variable, or None where the data say nothing of it.

    Also return whether the parabolas are exact, so that the latent variables are Normal given all
    else: every mean is affine in at most one entry of one latent variable, and no variance depends
    on them. The caller checks that the data are independent and Normal.
    """
    thetas = [pt.tensor(shape=lengths(latent.rv), dtype="float64") for latent in moved]
    replacements: dict[TensorVariable, TensorVariable] = {}
    start: dict[TensorVariable, TensorVariable] = {}
    inner = []
    for latent, theta in zip(moved, thetas, strict=True):
        inner.append(latent.replaced(replacements))
        replacements[latent.rv] = inner[-1].from_theta(theta)
        [a] = starting_values(graph_replace([inner[-1].a], start, strict=False))
        start[theta] = pt.constant(np.broadcast_to(a, lengths(latent.rv)).astype("float64"))
    terms = []
    for expressions in moments.values():
        if set(replacements) & set(nearest_rvs(expressions)):
            value, mean, variance = graph_replace(list(expressions), replacements, strict=False)
            terms.append(_Term(mean, 1.0 / variance, (value - mean) / variance))
    parabolas: list = []
    exact = all(_is_exact(term, thetas) for term in terms)
    remaining = list(thetas)
    for latent in reversed(inner):
        h, k = _parabola(remaining.pop(), terms, start)
        parabolas.insert(0, (h, k))
        share = 1.0 + h * latent.variance  # the information about a, with theta integrated out
        terms.append(_Term(latent.a, h / share, (k - h * latent.a) / share))
        alone = not latent.is_joint or not set(remaining) & set(
            ancestors([latent.a, *latent.expressions])
        )
        exact = exact and alone and _is_exact(terms[-1], remaining)
    score, data = _scorer(thetas, start, parabolas, inner)
    first, known = score()
    if not all(known):
        notice(*data)  # other data may say more
    modes = reading.following(lambda: score()[0], data, first)
    replacements = dict(zip(thetas, modes, strict=True))
    parabolas_at_modes = [
        tuple(graph_replace(parabola, replacements, strict=False)) if is_known else None
        for parabola, is_known in zip(parabolas, known, strict=True)
    ]
    return parabolas_at_modes, exact and None not in parabolas_at_modes


def _parabola(theta: TensorVariable, terms: Sequence[_Term], start):
    h = slope = pt.zeros(lengths(theta))
    for term in terms:
        mean = term.mean
        if theta in ancestors([mean]):
            slope_of_mean, alone = _slopes(mean, theta, start)
            weights = pt.broadcast_to(alone * slope_of_mean * term.weight, mean.shape)
            h += _pullback(mean, theta, weights)
            slope += _pullback(mean, theta, pt.broadcast_to(alone * term.residual, mean.shape))
    return h, h * theta + slope


def _pullback(mean: TensorVariable, theta: TensorVariable, weights: TensorVariable):
    return pullback(mean, theta, weights, disconnected_inputs="ignore")


def _is_exact(term: _Term, thetas: Sequence[TensorVariable]) -> bool:
    """Whether a term is linear in one theta at most, entry by entry, with a fixed weight.

    `linear_map` decides, not the slopes: a step function has slope zero.
    """
    involved = [theta for theta in thetas if theta in ancestors([term.mean])]
    if set(thetas) & set(ancestors(simplified([term.weight]))) or len(involved) > 1:
        return False
    try:
        maps = [linear_map(term.mean, theta) for theta in involved]
    except Declined:
        return False
    return all(np.all((matrix != 0).sum(axis=1) <= 1) for matrix in maps)


def _slopes(mean: TensorVariable, theta: TensorVariable, start):
    """Return slopes of a mean; and 1 for its entries that depend on one entry of theta, else 0."""
    shape = lengths(theta)
    # Irregular directions, so that no combination of them cancels by chance.
    directions = 1.0 + (np.arange(1, math.prod(shape) + 1).reshape(shape) * _GOLDEN) % 1.0
    slopes = [
        pushforward(mean, theta, pt.constant(directions**p), disconnected_outputs="ignore")
        for p in range(3)
    ]
    one, two, three = starting_values(graph_replace(slopes, start, strict=False))
    # Equal where a single direction acts; otherwise not, as the directions are irregular.
    alone = np.isclose(one * three, two**2, rtol=1e-9, atol=0.0)
    return slopes[0], alone.astype("float64")


def _scorer(thetas, start, parabolas, inner: Sequence[Latent]):
    """Return a function that scores, and the data that it uses.

    The function returns thetas near the mode, with parameters where PyMC starts them; and for each
    theta whether the data say something of it there: h is finite, and not zero.
    """
    graphs = [part for parabola in parabolas for part in parabola]
    pairs = zip(inner, parabolas, strict=True)
    graphs += [
        part
        for latent, h_and_k in pairs
        for part in (latent.posterior_mean(*h_and_k), latent.variance)
    ]
    graphs = at_start(graphs)
    step = plain_function(thetas, graphs)
    first = [start[theta].data for theta in thetas]

    def score() -> tuple[list[np.ndarray], list[bool]]:
        values = list(first)
        for _ in range(_ROUNDS):
            numbers = step(*values)
            pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
            known, prior, moves = pairs[: len(thetas)], pairs[len(thetas) :], False
            for i, ((h, _), (posterior_mean, variance)) in enumerate(
                zip(known, prior, strict=True)
            ):
                prior_sd = np.sqrt(variance)
                change = np.clip(posterior_mean - values[i], -prior_sd, prior_sd)
                values[i] = values[i] + change
                spread = prior_sd / np.sqrt(1.0 + h * variance)  # of the posterior
                # NaN compares as False: it does not move.
                moves = moves or bool(np.any(np.abs(change) > _STILL * spread))
            if not moves:
                break
        sizes = step(*values)[: 2 * len(thetas) : 2]
        return values, [bool(np.all(np.isfinite(h)) and np.any(h)) for h in sizes]

    return score, public_data(graphs)
