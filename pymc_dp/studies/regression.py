"""Linear regressions with conjugate priors, by the exact kernel."""

from __future__ import annotations

import pymc as pm

from pymc_dp.regression import RegressionChain
from pymc_dp.studies.engines import Compiled, register_compiled


@register_compiled
def read(model: pm.Model) -> Compiled:
    """Read a model for `studies.engines`."""
    chain = RegressionChain.read(model)
    return Compiled(chain, chain.values, tuple(rv.name for rv in chain.variables))
