"""Sums and sums of squares of Normal records with a public design, that overlap perhaps.

Reads   linear functions of Normal records with known weights, and sums of squares of them.
Law     coordinates of the weights' row space, and chi-squared residual sums of squares.
Costs   the number of released entries to the power 3 a density, whatever the number of records.
Source  Cochran's theorem; docs/reference/methods.md.
"""

from pymc_dp.graphs.registry import load

load(__name__)
