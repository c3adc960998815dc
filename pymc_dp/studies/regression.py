"""Linear regressions with conjugate priors, by the exact kernel."""

from __future__ import annotations

from functools import partial

import pymc as pm

from pymc_dp.reading.model import Reading
from pymc_dp.routes.regression import RegressionChain
from pymc_dp.studies.engines import (
    COMPILED,
    ChainSampler,
    Compiled,
    anything_released,
    observe,
)


@COMPILED.register()
def read(model: pm.Model) -> Compiled:
    """Read a model for `studies.engines`."""
    chain = RegressionChain.read(Reading(observe(model, anything_released(model))))
    names = tuple(rv.name for rv in chain.variables)
    return Compiled(names, partial(ChainSampler, chain, chain.values))
