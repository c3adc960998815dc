r"""Rates, precisions, variances, scales and standard deviations: three families of one form.

A child's likelihood is a gamma density of :math:`t = x^{-k}`, where x is the parameter,

.. math::

    t^{\mathrm{first}} e^{-\mathrm{second} \cdot t},

with k = -1 for the gamma family (x is a rate or precision), k = 1 for the inverse gamma family
(x is a variance or scale), and k = 2 for its root (x is a standard deviation). The variance of a
Normal child and the scale of an exponential or gamma child are then proportional to
:math:`x^k`, the mean of a Poisson child and the scale of an inverse gamma child to
:math:`x^{-k}`. A prior contributes its shape and rate (or scale) as a law of t.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.continuous import HalfFlatRV
from pytensor.tensor.random.basic import (
    ExponentialRV,
    GammaRV,
    InvGammaRV,
    NormalRV,
    PoissonRV,
    UniformRV,
)

from pymc_dp.graphs.declined import Declined
from pymc_dp.graphs.powers import power_law
from pymc_dp.graphs.values import depends_on
from pymc_dp.kernels import jit
from pymc_dp.kernels.draws.log_concave import TINY, draw_log_gamma
from pymc_dp.kernels.moments.gaussian_chain import draw_inverse_gamma_below
from pymc_dp.mechanisms.release import PrivateReleaseRV, variance_cap
from pymc_dp.step_methods.conjugacy.registry import (
    CHILDREN,
    FAMILIES,
    PRIORS,
    Contribution,
    bounded_moments,
    constant_or_none,
    inside,
    parameters,
    power_factor,
    proportional_to,
    require_free,
    total,
    uniform_bounds,
)

_POWERS = {"gamma": -1, "inverse_gamma": 1, "inverse_gamma_root": 2}


@FAMILIES.register("gamma")
@jit
def _draw_gamma(rng, row):
    shape, rate, lower, upper = row[0], row[1], row[2], row[3]
    if lower <= 0.0 and upper == math.inf:
        return np.array([inside(rng.standard_gamma(shape) / rate, 0.0, upper)])
    log_lower = math.log(lower) if lower > 0.0 else -math.inf
    x = math.exp(draw_log_gamma(rng, shape, rate, log_lower, math.log(upper)))
    return np.array([inside(x, max(lower, 0.0), upper)])


@jit
def _inverse_gamma(rng, shape, scale, lower, upper):
    if lower > 0.0:
        x = math.exp(-draw_log_gamma(rng, shape, scale, -math.log(upper), -math.log(lower)))
    elif upper < math.inf:
        x = draw_inverse_gamma_below(rng, shape, scale, upper)
    else:
        x = scale / max(rng.standard_gamma(shape), TINY)
    return inside(x, max(lower, 0.0), upper)


@FAMILIES.register("inverse_gamma")
@jit
def _draw_inverse_gamma(rng, row):
    shape, scale, lower, upper = row[0], row[1], row[2], row[3]
    return np.array([_inverse_gamma(rng, shape, scale, lower, upper)])


@FAMILIES.register("inverse_gamma_root")
@jit
def _draw_root(rng, row):
    shape, scale, lower, upper = row[0], row[1], row[2], row[3]
    lower = max(lower, 0.0)
    square = _inverse_gamma(rng, shape, scale, lower * lower, upper * upper)
    return np.array([inside(math.sqrt(square), lower, upper)])


# --- Priors ---------------------------------------------------------------------------------------


@PRIORS.register(("gamma", GammaRV))
def _gamma_prior(rv):
    alpha, scale = parameters(rv)
    return Contribution(alpha, 1.0 / scale)


@PRIORS.register(("gamma", ExponentialRV))
def _exponential_prior(rv):
    [scale] = parameters(rv)
    return Contribution(1.0, 1.0 / scale)


@PRIORS.register(("inverse_gamma", InvGammaRV))
def _inverse_gamma_prior(rv):
    alpha, beta = parameters(rv)
    return Contribution(alpha, beta)


def _flat_shape(k: int) -> float:
    """Shape of the law of ``t = x**-k`` whose x has a constant density."""
    return -1.0 / k


def _half_flat_prior(rv, k):
    return Contribution(_flat_shape(k))


def _uniform_prior(rv, k):
    lower, upper = uniform_bounds(rv)
    least = constant_or_none(lower)
    if least is None or least < 0.0:
        raise Declined("its lower bound is no constant that is 0 or more")
    return Contribution(_flat_shape(k), lower=lower, upper=upper)


# --- Children -------------------------------------------------------------------------------------


def _child(rv, child, value, k, other, role, sign, terms):
    *free, scale = parameters(child)
    for parameter in free:
        require_free(parameter, rv, child, other)
    scale = scale**2 if role == "variance" else scale
    factor = power_factor(scale, rv, sign * k, child, role)
    return Contribution(*terms(value, factor, *free))


# Of each law: the parameter that is free of x, the last parameter, the sign of its power of x, and
# the two natural parameters that a value adds, given the factor of that power.
_SCALED = {
    NormalRV: (
        "location", "variance", 1, lambda y, f, mu: (0.5 * y.size, 0.5 * ((y - mu) ** 2 / f).sum()),
    ),
    ExponentialRV: ("", "scale", 1, lambda y, f: (y.size, (y / f).sum())),
    GammaRV: ("shape", "scale", 1, lambda y, f, a: (total(a, y), (y / f).sum())),
    InvGammaRV: ("shape", "scale", -1, lambda y, f, a: (total(a, y), (f / y).sum())),
    PoissonRV: ("", "mean", -1, lambda y, f: (y.sum(), total(f, y))),
}  # fmt: skip


def _feasible_variance(rv, child, value, k):
    moments, (lower, upper) = bounded_moments(rv, child)
    law = power_law(moments.law_variance, rv, positive=True)
    if law is None or law[1] != k or depends_on(moments.law_mean, rv):
        raise Declined(
            f"the bounds of {child.name!r} need the records' variance to be proportional to "
            f"{proportional_to(k)}"
        )
    cap = pt.maximum(variance_cap(moments.law_mean, lower, upper), 0.0)
    end = (cap / law[0]) ** (1 / k)
    return Contribution(lower=0.0, upper=end) if k > 0 else Contribution(lower=end)


for _family, _k in _POWERS.items():
    PRIORS.add(partial(_half_flat_prior, k=_k), (_family, HalfFlatRV))
    PRIORS.add(partial(_uniform_prior, k=_k), (_family, UniformRV))
    CHILDREN.add(partial(_feasible_variance, k=_k), (_family, PrivateReleaseRV))
    for _op, (_other, _what, _sign, _terms) in _SCALED.items():
        CHILDREN.add(
            partial(_child, k=_k, other=_other, role=_what, sign=_sign, terms=_terms),
            (_family, _op),
        )
