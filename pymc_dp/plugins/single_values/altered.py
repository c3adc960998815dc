"""Releases that are withheld or clipped, and those of whether a threshold was reached.

A value that was published as it was has the density of the noise alone, so that its marginal is
that of the noise. All others stand for an interval of noisy values.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.values import known_value
from pymc_dp.laws import GENERAL_PAIRS, Pair, find_pair, is_registered
from pymc_dp.laws.tilting import log_tilted_mass, logaddexp
from pymc_dp.mechanisms import GaussianMechanism, LaplaceMechanism
from pymc_dp.mechanisms.arguments import as_float
from pymc_dp.mechanisms.base import Mechanism
from pymc_dp.mechanisms.postprocessed import ClippedMechanism
from pymc_dp.mechanisms.suppressed import SuppressedMechanism, ThresholdedMechanism
from pymc_dp.plugins.single_values.grid import number_of_all
from pymc_dp.plugins.single_values.pair import GeneralPair
from pymc_dp.plugins.single_values.pair import log_marginal as by_quadrature


def log_between(law: Any, noise: Mechanism, lower, upper, *theta) -> TensorVariable:
    """Log probability that a noisy value lies between two ends; one may be infinite."""
    mass = partial(log_tilted_mass, law)
    if isinstance(noise, GaussianMechanism):
        mu, sigma = map(as_float, theta)
        return mass(0.0, None, lower, upper, mu, pt.sqrt(sigma**2 + noise.sigma**2))
    rate, open_below, open_above = 1.0 / as_float(noise.scale), pt.isinf(lower), pt.isinf(upper)  # type: ignore[attr-defined]
    low, high = pt.switch(open_below, upper, lower), pt.switch(open_above, lower, upper)
    width = pt.minimum(upper - lower, 1e30)
    # Of values outside: the noise has to bring them in.
    outside = logaddexp(
        pt.switch(open_below, -np.inf, mass(rate, None, -np.inf, low, *theta)),
        pt.switch(open_above, -np.inf, mass(-rate, None, high, np.inf, *theta)),
    )
    outside += pt.log(-0.5 * pt.expm1(-rate * width))
    # Of values inside: it must not take them out, on either side.
    inside = mass(0.0, None, lower, upper, *theta)
    some = pt.gt(inside, -np.inf)
    taken: Any = 0.0
    for is_open, tilt, ends in (
        (open_below, -rate, (low, upper)),
        (open_above, rate, (lower, high)),
    ):
        out = mass(tilt, None, *ends, *theta)
        left = some & ~is_open & pt.gt(out, -np.inf)
        gap = pt.switch(left, out, 0.0) - pt.switch(left, inside, 0.0)
        taken += pt.switch(left, 0.5 * pt.exp(gap), 0.0)
    return logaddexp(outside, inside + pt.log1p(-taken))


def intervals(mechanism: Mechanism, value: TensorVariable) -> list[tuple[Any, Any]]:
    """Return the intervals of noisy values that a value stands for that was not left as it was."""
    infinity = as_float(np.inf)
    if isinstance(mechanism, SuppressedMechanism):
        if mechanism.is_between:
            return [(mechanism.above, mechanism.below)]
        below = [] if mechanism.below is None else [(-infinity, mechanism.below)]
        return below + ([] if mechanism.above is None else [(mechanism.above, infinity)])
    if isinstance(mechanism, ClippedMechanism):
        low, high = bounds(mechanism)
        beyond = pt.eq(value, low)
    else:
        low = high = mechanism.threshold  # type: ignore[attr-defined]
        beyond = pt.eq(value, 0.0)
    return [(pt.switch(beyond, -infinity, high), pt.switch(beyond, low, infinity))]


def bounds(mechanism: ClippedMechanism) -> tuple[Any, Any]:
    """Return the bounds of clipped values."""
    low, high = mechanism.lower, mechanism.upper
    return -np.inf if low is None else low, np.inf if high is None else high


def is_altered(mechanism: Mechanism, value: TensorVariable) -> TensorVariable:
    """Whether a value is not the noisy value itself."""
    if isinstance(mechanism, ClippedMechanism):
        low, high = bounds(mechanism)
        return ~((value > low) & (value < high))
    if isinstance(mechanism, ThresholdedMechanism):
        return pt.ones_like(value, dtype="bool")
    return mechanism.is_withheld(value)


def has_closed_mass(law: Any, mechanism: Any) -> bool:
    """Whether what is not the noisy value itself has a probability in closed form."""
    if not intervals(mechanism, as_float(0.0)):
        return not mechanism.inner.withholds
    laplace = type(mechanism.inner) is LaplaceMechanism and is_registered(log_tilted_mass, law)
    return laplace or (type(mechanism.inner) is GaussianMechanism and isinstance(law, NormalRV))


def log_mass(law: Any, mechanism: Any, value, *theta) -> TensorVariable:
    """Log probability of a value that is not the noisy value itself."""
    if not has_closed_mass(law, mechanism):
        return by_quadrature(law, mechanism, value, *theta)
    ends = intervals(mechanism, value)
    parts = [log_between(law, mechanism.inner, *map(as_float, pair), *theta) for pair in ends]
    mass = reduce(logaddexp, parts, pt.full_like(value, -np.inf))
    where = getattr(mechanism, "where", None)
    return mass if where is None else pt.switch(pt.neq(where, 0.0), 0.0, mass)


def log_marginal(law: Any, mechanism: Any, value, *theta) -> TensorVariable:
    """Return the log marginal density of a release, see `Pair`."""
    value = as_float(value)
    altered = is_altered(mechanism, value)
    if isinstance(mechanism, ThresholdedMechanism):
        density = log_mass(law, mechanism, value, *theta)
    else:
        density = _by_entry(law, mechanism, value, altered, theta)
    # A printed value that the rule does not allow, or one beyond the bounds.
    possible = pt.gt(mechanism.logp(value, mechanism.typical_statistic(value)), -np.inf)
    return pt.switch(possible, density, -np.inf)


def _by_entry(law, mechanism, value, altered, theta) -> TensorVariable:
    inner = find_pair(law, mechanism.inner).log_marginal
    known, count = known_value(altered, fixed=True), len(theta)
    given = [as_float(p) for p in (value, *theta, *mechanism.parameters)]
    shapes = [p.type.shape for p in given]
    if known is None or any(None in shape for shape in shapes):
        printed = pt.switch(altered, mechanism.typical_statistic(value), value)
        mass = log_mass(law, mechanism, value, *theta)
        return pt.switch(altered, mass, inner(mechanism.inner, printed, *theta))
    known = np.broadcast_to(known, np.broadcast_shapes(*shapes))
    if not known.ndim:
        if known:
            return log_mass(law, mechanism, value, *theta)
        return inner(mechanism.inner, value, *theta)
    density = pt.zeros(known.shape)
    for chosen, of_altered in ((known, True), (~known, False)):
        if chosen.any():
            at = np.nonzero(chosen)
            z, *rest = [
                pt.broadcast_to(p, known.shape)[at]
                if (number := number_of_all(p)) is None
                else number
                for p in given
            ]
            noise = mechanism.with_parameters(*rest[count:])
            log_density = (
                log_mass(law, noise, z, *rest[:count])
                if of_altered
                else inner(noise.inner, z, *rest[:count])
            )
            density = pt.set_subtensor(density[at], log_density)
    return density


@GENERAL_PAIRS.register("altered", order=-1)
def altered_pair(law: Any, mechanism: Mechanism) -> Pair:
    """Return the pair of a law and a mechanism that leaves some values as they are."""
    match mechanism:
        case SuppressedMechanism(keeps_printed=True) | ClippedMechanism():
            slow = find_pair(law, mechanism.inner).slow
        case ThresholdedMechanism():
            slow = False
        case _:
            raise Declined
    slow = slow or not has_closed_mass(law, mechanism)
    return GeneralPair(law, mechanism, partial(log_marginal, law), slow=slow)
