"""Latent Gaussian vectors whose density is wrong in PyMC, as sentences."""

from __future__ import annotations

from pymc.distributions.multivariate import ICARRV

from pymc_dp.graphs.declined import once
from pymc_dp.graphs.values import nearest_rvs
from pymc_dp.reading.model import Reading


@once
def unnormalised(reading: Reading) -> list[str]:
    """Name the ICAR effects of a free sigma: PyMC's density leaves out what depends on it."""
    found = []
    for rv in reading.model.free_RVs:
        if isinstance(rv.owner.op, ICARRV):
            made_of = nearest_rvs([rv.owner.op.dist_params(rv.owner)[1]])
            spread = [v.name for v in reading.model.free_RVs if v in made_of]
            if spread:
                found.append(
                    f"{rv.name!r}: the density of pm.ICAR lacks its factor sigma**-(n - 1), so "
                    f"that the posterior of {' and '.join(map(repr, spread))} is wrong. Write "
                    f"{rv.name} = sigma * pm.ICAR({rv.name + '_raw'!r}, W=W)."
                )
    return found
