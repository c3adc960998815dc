"""Records whose number is confidential, too.

Reads   noisy numbers, sums, means and counts of classes of records of unknown number, by group.
Law     a sum over the numbers that the noise and the prior allow, times the density of each sum.
Costs   the width of that window; one inversion does for all numbers where sums have no law.
Source  docs/reference/methods.md.
"""

from pymc_dp.graphs.registry import load

load(__name__)
