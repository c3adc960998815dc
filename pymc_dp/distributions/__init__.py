"""Distributions that arise from differentially private releases."""

from pymc_dp.distributions.truncated_gamma_mixture import TruncatedGammaMixture

__all__ = ["TruncatedGammaMixture"]
