"""Regressions and other rows of several Normal columns, with released sums of products.

Reads   sums over rows (x, y) of products of up to two columns, over all rows or by public groups.
Law     Wishart scatter and Normal mean of the rows; by approximate="clt" Normal sums.
Costs   about the width to the power 2.8 a trajectory, whatever the number of rows.
Source  Bernstein & Sheldon (2019); Bartlett (1933) for the factors.
"""

from pymc_dp.graphs.registry import load
from pymc_dp.plugins.regression.sensitivity import regression_sensitivity

__all__ = ["regression_sensitivity"]

load(__name__)
