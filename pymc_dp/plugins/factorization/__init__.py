"""Poisson factorization of private counts.

Reads   Poisson counts whose rate is a product of Gamma factors, under whole-number noise.
Law     exact conditionals: counts by Skellam and Bessel augmentation, factors by conjugacy.
Costs   rows times columns times factors a sweep.
Source  Schein, Wu, Schofield, Zhou & Wallach (2019).
"""

from pymc_dp.graphs.registry import load
from pymc_dp.plugins.factorization.model import poisson_factorization
from pymc_dp.plugins.factorization.step import FactorizationGibbs

__all__ = ["FactorizationGibbs", "poisson_factorization"]

load(__name__)
