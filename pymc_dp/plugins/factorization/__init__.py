"""Poisson factorization of private counts.

Reads   Poisson counts whose rate is a product of Gamma factors, under whole-number noise.
Law     exact conditionals: counts by Skellam and Bessel augmentation, factors by conjugacy.
Costs   rows times columns times factors a sweep.
Source  Schein, Wu, Schofield, Zhou & Wallach (2019).
"""

from pymc_dp.graphs.registry import load, offer

offer(__name__, FactorizationGibbs="step", poisson_factorization="model")

load(__name__)
