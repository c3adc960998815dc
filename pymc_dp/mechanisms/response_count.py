"""The law of the number of randomized responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pymc_dp.graphs.ops import KernelOp
from pymc_dp.kernels.functions import reported_counts as kernels

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable


class _CountInterval(KernelOp):
    """Log probability of an interval of reported counts, and its derivative in the log odds.

    Inputs are those of `kernels.log_count_interval`. All but the log odds are integers or ends of
    intervals, in which the probability is piecewise constant.
    """

    nin, fixed = 5, 4
    kernel = staticmethod(kernels.log_count_interval)


class _CountQuantile(KernelOp):
    """Quantile of the reported count; inputs are those of `kernels.count_quantile`."""

    nin = fixed = 4
    kernel = staticmethod(kernels.count_quantile)


def count_interval(lower, upper, ones, population, log_odds) -> TensorVariable:
    """Log probability of an interval of reported counts; see `kernels.log_count_interval`.

    With every record a one, the reported count is Binomial(population, p) with these log odds of p.
    """
    return _CountInterval.apply(lower, upper, ones, population, log_odds)


def count_quantile(p, ones, population, log_odds) -> TensorVariable:
    """Return the quantile of the reported count; see `kernels.count_quantile`."""
    return _CountQuantile.apply(p, ones, population, log_odds)
