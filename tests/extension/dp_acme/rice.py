"""Rice records: their density is smooth, so that sums over them are integrated out."""

from pymc.distributions.continuous import RiceRV

from pymc_dp.plugins.inversion.quadrature import detail

detail.register(RiceRV, lambda op: 1)
