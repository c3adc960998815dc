"""Selections: which of several candidates was published, or a quantile of the records.

Reads   the utilities of all candidates, the last axis of a statistic.
Law     the exponential mechanism, report noisy max, permute and flip, private quantiles.
Costs   the length of the statistic a density; records of few values are integrated out of it.
Source  McSherry & Talwar (2007); McKenna & Sheldon (2020); Smith (2011).
"""

from pymc_dp.graphs.registry import load, offer

offer(
    __name__,
    ExponentialMechanism="selection",
    NoisyMax="noisy_max",
    PrivateQuantile="private_quantile",
)
load(__name__)
