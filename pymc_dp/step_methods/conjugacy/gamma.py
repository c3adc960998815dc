r"""Rates, precisions, variances, scales and standard deviations: three families that are one.

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
from pymc_dp.graphs.questions import depends_on, power_law
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
def _draw_gamma(rng, shape, rate, lower, upper):
    if lower <= 0.0 and upper == math.inf:
        return inside(rng.standard_gamma(shape) / rate, 0.0, upper)
    log_lower = math.log(lower) if lower > 0.0 else -math.inf
    x = math.exp(draw_log_gamma(rng, shape, rate, log_lower, math.log(upper)))
    return inside(x, max(lower, 0.0), upper)


@FAMILIES.register("inverse_gamma")
def _draw_inverse_gamma(rng, shape, scale, lower, upper):
    if lower > 0.0:
        x = math.exp(-draw_log_gamma(rng, shape, scale, -math.log(upper), -math.log(lower)))
    elif upper < math.inf:
        x = draw_inverse_gamma_below(rng, shape, scale, upper)
    else:
        x = scale / max(rng.standard_gamma(shape), TINY)
    return inside(x, max(lower, 0.0), upper)


@FAMILIES.register("inverse_gamma_root")
def _draw_root(rng, shape, scale, lower, upper):
    lower = max(lower, 0.0)
    square = _draw_inverse_gamma(rng, shape, scale, lower * lower, upper * upper)
    return inside(math.sqrt(square), lower, upper)


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


def _normal_child(rv, child, value, k):
    mu, sigma = parameters(child)
    require_free(mu, rv, child, "location")
    factor = power_factor(sigma**2, rv, k, child, "variance")
    return Contribution(0.5 * value.size, 0.5 * ((value - mu) ** 2 / factor).sum())


def _exponential_child(rv, child, value, k):
    [scale] = parameters(child)
    factor = power_factor(scale, rv, k, child, "scale")
    return Contribution(value.size, (value / factor).sum())


def _gamma_child(rv, child, value, k):
    alpha, scale = parameters(child)
    require_free(alpha, rv, child, "shape")
    factor = power_factor(scale, rv, k, child, "scale")
    return Contribution(total(alpha, value), (value / factor).sum())


def _inverse_gamma_child(rv, child, value, k):
    alpha, scale = parameters(child)
    require_free(alpha, rv, child, "shape")
    factor = power_factor(scale, rv, -k, child, "scale")
    return Contribution(total(alpha, value), (factor / value).sum())


def _poisson_child(rv, child, value, k):
    [mu] = parameters(child)
    factor = power_factor(mu, rv, -k, child, "mean")
    return Contribution(value.sum(), total(factor, value))


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
    for _op, _child in (
        (NormalRV, _normal_child),
        (ExponentialRV, _exponential_child),
        (GammaRV, _gamma_child),
        (InvGammaRV, _inverse_gamma_child),
        (PoissonRV, _poisson_child),
        (PrivateReleaseRV, _feasible_variance),
    ):
        CHILDREN.add(partial(_child, k=_k), (_family, _op))
