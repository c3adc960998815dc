"""The law of the number of randomized responses."""

from __future__ import annotations

from pymc_dp.graphs.ops import KernelOp
from pymc_dp.kernels.functions import reported_counts as kernels


class CountInterval(KernelOp):
    """Log probability of an interval of reported counts, and its derivative in the log odds.

    Inputs are those of `kernels.log_count_interval`. All but the log odds are integers or ends of
    intervals, in which the probability is piecewise constant. With every record a one, the reported
    count is Binomial(population, p) with these log odds of p.
    """

    nin, fixed = 5, 4
    kernel = staticmethod(kernels.log_count_interval)


class CountQuantile(KernelOp):
    """Quantile of the reported count; inputs are those of `kernels.count_quantile`."""

    nin = fixed = 4
    kernel = staticmethod(kernels.count_quantile)
