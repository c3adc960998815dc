r"""Probabilities: Beta and Uniform(0, 1) priors of the probability of a counted event.

The natural parameters are :math:`(a, b)` of the density :math:`p^{a-1} (1-p)^{b-1}`: successes
add to a, failures to b.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from pytensor.tensor.random.basic import (
    BernoulliRV,
    BetaRV,
    BinomialRV,
    GeometricRV,
    NegBinomialRV,
    UniformRV,
)

from pymc_dp.graphs.declined import Declined
from pymc_dp.kernels import jit
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
@jit
def _draw(rng, row):
    return np.array([inside(rng.beta(row[0], row[1]), 0.0, 1.0)])


@PRIORS.register(("beta", BetaRV))
def _beta_prior(rv):
    alpha, beta = parameters(rv)
    return Contribution(alpha, beta)


@PRIORS.register(("beta", UniformRV))
def _uniform_prior(rv):
    if [constant_or_none(bound) for bound in uniform_bounds(rv)] != [0.0, 1.0]:
        raise Declined("its prior is not uniform on (0, 1)")
    return Contribution(1.0, 1.0)


def _child(rv, child, value, number, counts):
    *numbers, p = parameters(child)
    require_itself(p, rv, child, "probability")
    for n in numbers:
        require_free(n, rv, child, number)
    return Contribution(*counts(value, *numbers))


# Of each law: the parameter besides the probability, and the successes and failures in a value.
for _op, _number, _counts in (
    (BernoulliRV, "", lambda y: (y.sum(), y.size - y.sum())),
    (BinomialRV, "number of trials", lambda y, n: (y.sum(), total(n, y) - y.sum())),
    (GeometricRV, "", lambda y: (y.size, y.sum() - y.size)),
    (NegBinomialRV, "number of successes", lambda y, n: (total(n, y), y.sum())),
):
    CHILDREN.add(partial(_child, number=_number, counts=_counts), ("beta", _op))
