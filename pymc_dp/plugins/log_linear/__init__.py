"""Tables of many columns from noisy margins.

Reads   noisy margins of the rows of a decomposable log-linear model of categorical columns.
Law     exact draws of the counts of the model's cliques, with the weights integrated out, or
        given where they have a prior of their own; by approximate="clt" Normal counts, with the
        weights as variables.
Costs   lines times cliques that hold a column a sweep; the full table never appears.
Source  Dawid & Lauritzen (1993); Dobra (2000).
"""

from pymc_dp.graphs.registry import load
from pymc_dp.plugins.log_linear.model import LogLinear
from pymc_dp.plugins.log_linear.step import CliqueGibbs

__all__ = ["CliqueGibbs", "LogLinear"]

load(__name__)
