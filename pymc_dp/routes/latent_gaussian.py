"""Warnings of latent Gaussian vectors whose density in PyMC lacks a factor."""

from __future__ import annotations

from pymc.distributions.multivariate import ICARRV

from pymc_dp.graphs.declined import once
from pymc_dp.graphs.values import nearest_rvs
from pymc_dp.reading.model import Reading


@once
def unnormalised(reading: Reading) -> list[str]:
    """Return a warning for each ICAR effect of a free sigma, whose density lacks a factor."""
    sentences = []
    for rv in reading.model.free_RVs:
        if isinstance(rv.owner.op, ICARRV):
            parents = nearest_rvs([rv.owner.op.dist_params(rv.owner)[1]])
            spread = [v.name for v in reading.model.free_RVs if v in parents]
            if spread:
                sentences.append(
                    f"{rv.name!r}: the density of pm.ICAR lacks its factor sigma**-(n - 1), so "
                    f"that the posterior of {' and '.join(map(repr, spread))} is wrong. Write "
                    f"{rv.name} = sigma * pm.ICAR({rv.name + '_raw'!r}, W=W)."
                )
    return sentences
