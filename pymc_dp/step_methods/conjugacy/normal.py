r"""Locations: Normal, flat and uniform priors, whose children are Normal with a linear location.

The natural parameters are the precision :math:`\tau` and the precision-weighted location
:math:`\tau m` of :math:`N(m, 1/\tau)`, cut to a range perhaps.
"""

from __future__ import annotations

import math

import numpy as np
from pymc.distributions.continuous import FlatRV
from pytensor.tensor.random.basic import NormalRV, UniformRV

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.values import depends_on
from pymc_dp.kernels import jit
from pymc_dp.kernels.moments.gaussian_chain import draw_normal_between
from pymc_dp.mechanisms.release import PrivateReleaseRV, mean_range
from pymc_dp.reading.sums.polynomials import is_linear
from pymc_dp.step_methods.conjugacy.registry import (
    CHILDREN,
    FAMILIES,
    PRIORS,
    Contribution,
    at_value,
    bounded_moments,
    inside,
    parameters,
    require_free,
    total,
    uniform_bounds,
)


@FAMILIES.register("normal")
@jit
def _draw(rng, row):
    precision, lower, upper = row[0], row[2], row[3]
    if precision == 0.0 and upper - lower < math.inf:  # a uniform prior, and nothing else
        return np.array([inside(rng.uniform(lower, upper), lower, upper)])
    mean = row[1] / precision
    if lower == -math.inf and upper == math.inf:
        return np.array([mean + rng.standard_normal() / math.sqrt(precision)])
    return np.array([inside(draw_normal_between(rng, precision, mean, lower, upper), lower, upper)])


@PRIORS.register(("normal", NormalRV))
def _normal_prior(rv):
    mu, sigma = parameters(rv)
    precision = 1.0 / sigma**2
    return Contribution(precision, mu * precision)


@PRIORS.register(("normal", FlatRV))
def _flat_prior(rv):
    return Contribution()


@PRIORS.register(("normal", UniformRV))
def _uniform_prior(rv):
    lower, upper = uniform_bounds(rv)
    return Contribution(lower=lower, upper=upper)


@CHILDREN.register(("normal", NormalRV))
def _location(rv, child, value):
    mu, sigma = parameters(child)
    require_free(sigma, rv, child, "spread")
    if not is_linear(mu, rv):
        raise Declined(f"the location of {child.name!r} is not linear in it")
    at_zero, at_one = (at_value(mu, rv, x) for x in (0.0, 1.0))
    slope = at_one - at_zero
    weight = slope / sigma**2
    return Contribution(total(slope * weight, value), (weight * (value - at_zero)).sum())


@CHILDREN.register(("normal", PrivateReleaseRV))
def _feasible_mean(rv, child, value):
    moments, (lower, upper) = bounded_moments(rv, child)
    if moments.law_mean is not rv or depends_on(moments.law_variance, rv):
        raise Declined(f"the bounds of {child.name!r} need it to be the records' mean")
    low, high = mean_range(moments.law_variance, lower, upper)
    return Contribution(lower=low, upper=high)
