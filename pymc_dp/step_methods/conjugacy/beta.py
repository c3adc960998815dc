r"""Probabilities: Beta and Uniform(0, 1) priors of the probability of a counted event.

The natural parameters are :math:`(a, b)` of the density :math:`p^{a-1} (1-p)^{b-1}`: successes
add to a, failures to b.
"""

from __future__ import annotations

from pytensor.tensor.random.basic import (
    BernoulliRV,
    BetaRV,
    BinomialRV,
    GeometricRV,
    NegBinomialRV,
    UniformRV,
)

from pymc_dp.graphs.declined import Declined
from pymc_dp.step_methods.conjugacy.registry import (
    CHILDREN,
    FAMILIES,
    PRIORS,
    Contribution,
    constant_or_none,
    inside,
    parameters,
    require_free,
    require_itself,
    total,
    uniform_bounds,
)


@FAMILIES.register("beta")
def _draw(rng, a, b, lower, upper):
    return inside(rng.beta(a, b), 0.0, 1.0)


@PRIORS.register(("beta", BetaRV))
def _beta_prior(rv):
    alpha, beta = parameters(rv)
    return Contribution(alpha, beta)


@PRIORS.register(("beta", UniformRV))
def _uniform_prior(rv):
    if [constant_or_none(bound) for bound in uniform_bounds(rv)] != [0.0, 1.0]:
        raise Declined("its prior is not uniform on (0, 1)")
    return Contribution(1.0, 1.0)


@CHILDREN.register(("beta", BernoulliRV))
def _bernoulli(rv, child, value):
    [p] = parameters(child)
    require_itself(p, rv, child, "probability")
    successes = value.sum()
    return Contribution(successes, value.size - successes)


@CHILDREN.register(("beta", BinomialRV))
def _binomial(rv, child, value):
    n, p = parameters(child)
    require_itself(p, rv, child, "probability")
    require_free(n, rv, child, "number of trials")
    successes = value.sum()
    return Contribution(successes, total(n, value) - successes)


@CHILDREN.register(("beta", GeometricRV))
def _geometric(rv, child, value):
    [p] = parameters(child)
    require_itself(p, rv, child, "probability")
    return Contribution(value.size, value.sum() - value.size)


@CHILDREN.register(("beta", NegBinomialRV))
def _negative_binomial(rv, child, value):
    n, p = parameters(child)
    require_itself(p, rv, child, "probability")
    require_free(n, rv, child, "number of successes")
    return Contribution(total(n, value), value.sum())
