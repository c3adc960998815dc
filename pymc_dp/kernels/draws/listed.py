"""Draws of an index from the logs of weights."""

import math

import numpy as np

from pymc_dp.kernels import jit


@jit
def draw_listed(rng, log_weights):
    """Draw an index with probabilities in proportion to weights; -1 if all are 0, or one NaN."""
    top = log_weights.max()
    if not abs(top) < math.inf:
        return -1
    cumulative = np.cumsum(np.exp(log_weights - top))
    u = rng.random() * cumulative[-1]
    return min(np.searchsorted(cumulative, u, "right"), log_weights.size - 1)
