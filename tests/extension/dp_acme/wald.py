"""Inverse Gaussian records: sums over those of one law are inverse Gaussian, too."""

from pymc.distributions.continuous import WaldRV

from pymc_dp.laws.families.closed import law, sum_of


@sum_of.register(WaldRV)
def _sum(op, n, mu, lam, alpha):
    return law(op, n * mu, n**2 * lam, n * alpha)
