"""Multinomial counts that are split further: areas of areas, margins of margins.

Reads   noisy sums of Multinomial counts that are the numbers of trials of other Multinomials.
Law     exact draws of all counts, with Dirichlet probabilities integrated out.
Costs   as many lines in a sweep as there are counts, each of a few counts a level.
Source  Diaconis & Sturmfels (1998), moves that keep sums; Neal (2003), slices.
"""

from pymc_dp.graphs.registry import load
from pymc_dp.plugins.multinomial_trees.step import TreeGibbs

__all__ = ["TreeGibbs"]

load(__name__)
