"""Distributions that arise from differentially private releases."""

from pymc_dp.distributions.bessel import Bessel
from pymc_dp.distributions.discrete_gaussian import DiscreteGaussian
from pymc_dp.distributions.discrete_laplace import DiscreteLaplace
from pymc_dp.distributions.record_sums import RecordSums
from pymc_dp.distributions.skellam import Skellam
from pymc_dp.distributions.truncated_gamma_mixture import TruncatedGammaMixture

__all__ = [
    "Bessel",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "RecordSums",
    "Skellam",
    "TruncatedGammaMixture",
]
