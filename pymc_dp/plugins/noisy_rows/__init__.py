"""Rows that were released one by one under Gaussian noise.

Reads   what is linear in the Normal columns of each row, each row by itself.
Law     the rows are Normal given the parameters: columns are integrated out one after the other.
Costs   rows times columns a density.
Source  Gaussian conditioning.
"""

from pymc_dp.graphs.registry import load

load(__name__)
