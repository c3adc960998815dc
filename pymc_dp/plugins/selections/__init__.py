"""Selections: which of several candidates was published, or a quantile of the records.

Reads   the utilities of all candidates, the last axis of a statistic.
Law     the exponential mechanism, report noisy max, permute and flip, private quantiles.
Costs   the length of the statistic a density; records of few values are integrated out of it.
Source  McSherry & Talwar (2007); McKenna & Sheldon (2020); Smith (2011).
"""

from pymc_dp.graphs.registry import load
from pymc_dp.plugins.selections.noisy_max import NoisyMax
from pymc_dp.plugins.selections.private_quantile import PrivateQuantile
from pymc_dp.plugins.selections.selection import ExponentialMechanism

__all__ = ["ExponentialMechanism", "NoisyMax", "PrivateQuantile"]

load(__name__)
