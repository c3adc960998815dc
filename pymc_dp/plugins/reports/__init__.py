"""Answers that were changed at random, one record at a time.

Reads   categories of each record under `dp.RandomizedResponse`, or any matrix of chances.
Law     a sum over the answers of a record, shared by all rows with equal chances and reports.
Costs   patterns of reports times answers a density, whatever the number of rows.
Source  Warner (1965), Randomized response.
"""

from pymc_dp.graphs.registry import load
from pymc_dp.plugins.reports.mechanism import RandomizedResponse

__all__ = ["RandomizedResponse"]

load(__name__)
