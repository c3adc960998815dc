r"""Vectors of probabilities: a Dirichlet prior of the probabilities of categories.

The first natural parameter is the vector of concentrations, to which the counts of the
categories add up; there is no second one.
"""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.random.basic import CategoricalRV, DirichletRV, MultinomialRV

from pymc_dp.kernels import jit
from pymc_dp.kernels.draws.log_concave import TINY
from pymc_dp.step_methods.conjugacy.registry import (
    CHILDREN,
    FAMILIES,
    PRIORS,
    Contribution,
    parameters,
    require_free,
    require_itself,
)


@FAMILIES.register("dirichlet")
@jit
def _draw(rng, row):
    p = np.empty(row.size - 3)
    for k in range(p.size):
        p[k] = max(rng.standard_gamma(row[k]), TINY)
    p = np.maximum(p / p.sum(), TINY)  # the transform takes logs
    return p / p.sum()


@PRIORS.register(("dirichlet", DirichletRV))
def _dirichlet_prior(rv):
    [concentration] = parameters(rv)
    return Contribution(concentration)


@CHILDREN.register(("dirichlet", CategoricalRV))
def _categorical(rv, child, value):
    [p] = parameters(child)
    require_itself(p, rv, child, "vector of probabilities")
    [concentration] = parameters(rv)  # as long as p, which must not be read itself
    return Contribution(pt.zeros_like(concentration)[value.ravel()].inc(1.0))


@CHILDREN.register(("dirichlet", MultinomialRV))
def _multinomial(rv, child, value):
    n, p = parameters(child)
    require_itself(p, rv, child, "vector of probabilities")
    require_free(n, rv, child, "number of trials")
    return Contribution(value.sum(axis=tuple(range(value.type.ndim - 1))))
