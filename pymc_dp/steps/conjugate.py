r"""Conjugate Gibbs updates, put together from what each child of a parameter contributes.

A family has two natural parameters that add up over the prior and the children:

- "normal": precision and precision-weighted location,
- "inverse_gamma": shape and scale, density :math:`x^{-\mathrm{shape}-1} e^{-\mathrm{scale}/x}`.

A prior is registered for a family by its op, and a (family, child op) pair by a function that
returns the child's contribution, or a range that the child imposes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.continuous import FlatRV, HalfFlatRV
from pytensor.graph.replace import clone_replace
from pytensor.tensor.random.basic import GammaRV, InvGammaRV, NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs import depends_on, is_linear, power, power_law
from pymc_dp.kernels.gaussian import draw_inverse_gamma_below, draw_normal_between
from pymc_dp.kernels.logconcave import draw_log_gamma
from pymc_dp.mechanisms.base import as_float
from pymc_dp.records import check_transform, children
from pymc_dp.release import PrivateReleaseRV, mean_range, variance_cap
from pymc_dp.steps.base import DPStep, as_scalar, infeasible, point_function, value_writer


class NotConjugateError(ValueError):
    """A variable without a conjugate update; says what stands in the way."""


@dataclass(frozen=True)
class Contribution:
    """What a prior or child adds to the conditional of a parameter."""

    first: TensorVariable | float = 0.0
    second: TensorVariable | float = 0.0
    lower: TensorVariable | float | None = None
    upper: TensorVariable | float | None = None


def _draw_normal(rng, precision, weighted, lower, upper):
    mean = weighted / precision
    if lower == -math.inf and upper == math.inf:
        return mean + rng.standard_normal() / math.sqrt(precision)
    return draw_normal_between(rng, precision, mean, lower, upper)


def _draw_inverse_gamma(rng, shape, scale, lower, upper):
    if lower <= 0.0 and upper == math.inf:
        return scale / rng.standard_gamma(shape)
    if lower <= 0.0:
        return draw_inverse_gamma_below(rng, shape, scale, upper)
    return math.exp(-draw_log_gamma(rng, shape, scale, -math.log(upper), -math.log(lower)))


_DRAWS: dict[str, Callable] = {"normal": _draw_normal, "inverse_gamma": _draw_inverse_gamma}
_PRIORS: dict[type, tuple[str, Callable]] = {}
_CHILDREN: dict[tuple[str, type], Callable] = {}


def register_prior(op: type, family: str):
    """Register a prior's contribution: a function of the prior's RV."""

    def register(function):
        _PRIORS[op] = (family, function)
        return function

    return register


def register_child(family: str, op: type):
    """Register a child's contribution: a function of (parameter RV, child, child's value)."""

    def register(function):
        _CHILDREN[family, op] = function
        return function

    return register


def _parameters(rv) -> list[TensorVariable]:
    """Parameters of a variable's law; as they stand, powers of small integers would overflow."""
    return [as_float(p) for p in rv.owner.op.dist_params(rv.owner)]


@register_prior(NormalRV, "normal")
def _normal_prior(rv):
    mu, sigma = _parameters(rv)
    precision = 1.0 / sigma**2
    return Contribution(precision, mu * precision)


@register_prior(FlatRV, "normal")
def _flat_prior(rv):
    return Contribution(0.0, 0.0)


@register_prior(InvGammaRV, "inverse_gamma")
def _inverse_gamma_prior(rv):
    alpha, beta = _parameters(rv)
    return Contribution(alpha, beta)


@register_prior(HalfFlatRV, "inverse_gamma")
def _half_flat_prior(rv):
    return Contribution(-1.0, 0.0)


@register_child("normal", NormalRV)
def _normal_location(rv, child, value):
    mu, sigma = _parameters(child)
    if depends_on(sigma, rv):
        raise NotConjugateError(f"the spread of {child.name!r} depends on it")
    at_zero, at_one = (
        clone_replace(mu, {rv: pt.constant(x, dtype=rv.dtype)}, rebuild_strict=False)
        for x in (0.0, 1.0)
    )
    if not is_linear(mu, rv):
        raise NotConjugateError(f"the location of {child.name!r} is not linear in it")
    slope = at_one - at_zero
    precision = 1.0 / sigma**2 * pt.ones_like(value)
    return Contribution((slope**2 * precision).sum(), (slope * (value - at_zero) * precision).sum())


def _multiple(rv, expression, child, what) -> TensorVariable:
    """Return c where ``expression == c * rv``, c free of rv."""
    ratio = clone_replace(expression, {rv: pt.constant(1.0, dtype=rv.dtype)}, rebuild_strict=False)
    if power(expression, rv) != 1:
        raise NotConjugateError(f"{what} of {child.name!r} is not proportional to it")
    return ratio


@register_child("inverse_gamma", NormalRV)
def _normal_variance(rv, child, value):
    mu, sigma = _parameters(child)
    if depends_on(mu, rv):
        raise NotConjugateError(f"the location of {child.name!r} depends on it")
    factor = _multiple(rv, sigma**2, child, "the variance")
    squares = (value - mu) ** 2 / factor * pt.ones_like(value)
    return Contribution(0.5 * value.size, 0.5 * squares.sum())


@register_child("inverse_gamma", GammaRV)
def _gamma_scale(rv, child, value):
    alpha, scale = _parameters(child)
    if depends_on(alpha, rv):
        raise NotConjugateError(f"the shape of {child.name!r} depends on it")
    factor = _multiple(rv, scale, child, "the scale")
    ones = pt.ones_like(value)
    return Contribution((alpha * ones).sum(), (value / factor * ones).sum())


@register_child("normal", PrivateReleaseRV)
def _feasible_mean(rv, child, value):
    moments, (lower, upper) = _law_moments(rv, child)
    if moments.law_mean is not rv or depends_on(moments.law_variance, rv):
        raise NotConjugateError(f"the bounds of {child.name!r} need it to be the records' mean")
    low, high = mean_range(moments.law_variance, lower, upper)
    return Contribution(lower=low, upper=high)


@register_child("inverse_gamma", PrivateReleaseRV)
def _feasible_variance(rv, child, value):
    moments, (lower, upper) = _law_moments(rv, child)
    law = power_law(moments.law_variance, rv)
    if law is None or law[1] != 1 or depends_on(moments.law_mean, rv):
        raise NotConjugateError(f"the bounds of {child.name!r} need it to be a variance")
    cap = variance_cap(moments.law_mean, lower, upper)
    return Contribution(lower=0.0, upper=cap / law[0])


def _law_moments(rv, child):
    op = child.owner.op
    statistic, _, moments = op.split(child.owner.inputs)
    if moments is None or depends_on(statistic, rv):
        raise NotConjugateError(f"the release {child.name!r} depends on it directly")
    return moments, op.bounds


def conditional(model: pm.Model, rv: TensorVariable) -> tuple[str, tuple[TensorVariable, ...]]:
    """Return the family and (first, second, lower, upper) of a parameter's full conditional.

    Raises
    ------
    NotConjugateError
        Naming the prior or the child without a conjugate pair.
    """
    if rv.type.ndim:
        raise NotConjugateError(f"{rv.name!r} is not a scalar")
    try:
        check_transform(model, rv)
    except NotImplementedError as error:
        raise NotConjugateError(str(error)) from None
    if type(rv.owner.op) not in _PRIORS:
        known = ", ".join(t.__name__.removesuffix("RV") for t in _PRIORS)
        raise NotConjugateError(
            f"{rv.name!r} has the prior {rv.owner.op}; there are conjugate updates for {known}"
        )
    family, prior = _PRIORS[type(rv.owner.op)]
    parts = [prior(rv)]
    for child in children(model, rv):
        pair = _CHILDREN.get((family, type(getattr(child.owner, "op", None))))
        if pair is None:
            raise NotConjugateError(
                f"{rv.name!r} has the child {child.name!r}, which is not conjugate to its prior"
            )
        try:
            value = model.rvs_to_values[child]
            if child in model.free_RVs:
                value = child  # the point's value, transformed back
            parts.append(pair(rv, child, value))
        except NotConjugateError as error:
            raise NotConjugateError(f"{rv.name!r} has no conjugate update: {error}") from None
    first = sum((p.first for p in parts[1:]), start=pt.as_tensor(parts[0].first))
    second = sum((p.second for p in parts[1:]), start=pt.as_tensor(parts[0].second))
    lower, upper = pt.as_tensor(-math.inf), pt.as_tensor(math.inf)
    for p in parts:
        lower = lower if p.lower is None else pt.maximum(lower, p.lower)
        upper = upper if p.upper is None else pt.minimum(upper, p.upper)
    return family, (first, second, lower, upper)


class ConjugateGibbs(DPStep):
    """Draw scalar parameters from their conjugate full conditionals, one after the other.

    Normal and flat priors on a location, InverseGamma and half-flat priors on a variance, for
    Normal children (records or sample means) and Gamma children (sample variances); a prior of
    the mean that scales with the variance (normal-inverse-gamma) is covered by both. Where a
    release states bounds of the records, the draws are cut to the feasible region.

    Parameters
    ----------
    vars : list of TensorVariable
        Scalar parameters of the model.
    model : pm.Model, optional
        The model of the context by default.
    """

    name = "dp_conjugate"

    def _prepare(self, model, initial_point):
        self._updates = []
        for rv in self.model_rvs:
            try:
                family, natural = conditional(model, rv)
            except NotConjugateError as error:
                raise ValueError(f"ConjugateGibbs cannot update {error}") from None
            row = pt.stack([as_scalar(x) for x in natural])
            function, inputs = point_function(model, row)
            name = model.rvs_to_values[rv].name
            self._updates.append((name, function, inputs, _DRAWS[family], value_writer(model, rv)))

    def step(self, point):
        """Draw every parameter once."""
        for name, function, inputs, draw, write in self._updates:
            first, second, lower, upper = function(*[point[i] for i in inputs]).tolist()
            if not lower < upper:
                raise infeasible(name)
            value = write(draw(self.rng, first, second, lower, upper))
            point = {**point, name: value}
        return point, [{}]
