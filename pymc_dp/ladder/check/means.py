"""Log means of products over parts, with standard errors."""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp, softmax

BLOCKS = 20  # whose differences give the errors
_MOST = 0.05  # share of a mean that one draw may have, or its error is not known


class Means:
    """The mean over values of products over parts, of means over draws.

    Attributes
    ----------
    draws : int
        How many draws there are of each value.
    """

    def __init__(self, values: int, parts: int):
        self.draws = 0
        self._sums = np.full((BLOCKS, values, parts), -np.inf)
        self._largest = np.full((values, parts), -np.inf)

    def add(self, value: int, logs: np.ndarray) -> None:
        """Add draws of a value, of shape (draws, parts); the other values get as many."""
        self.draws += len(logs) if value == 0 else 0
        blocks = logs.reshape(BLOCKS, -1, logs.shape[1])
        self._largest[value] = np.maximum(self._largest[value], logs.max(axis=0))
        self._sums[:, value] = np.logaddexp(self._sums[:, value], logsumexp(blocks, axis=1))

    def of_parts(self) -> np.ndarray:
        """Return the log means of each value and part."""
        return logsumexp(self._sums, axis=0) - np.log(self.draws)

    def log(self) -> tuple[float, float]:
        """Return the log of the mean, and its standard error."""
        of_parts = self.of_parts()
        # A draw that has much of a mean says that others may be missing.
        largest = self._largest - np.log(self.draws) - of_parts
        shares = np.exp(np.nan_to_num(largest, nan=0.0)).max(axis=1)
        found, error = _jackknife(self._sums - np.log(self.draws / BLOCKS))
        if not shares @ softmax(of_parts.sum(axis=1)) < _MOST:
            return found, np.inf
        return found, float(np.hypot(error, 1.0 / self.draws))  # what is rarer may not be drawn


def _jackknife(blocks: np.ndarray) -> tuple[float, float]:
    """Return the log of the mean over values of products over parts, and its standard error.

    `blocks` has log means, of shape (blocks, values, parts).
    """
    count, top = len(blocks), np.maximum(blocks.max(axis=0), -1e300)
    sums = np.exp(blocks - top)
    total = sums.sum(axis=0)
    with np.errstate(divide="ignore"):
        means = np.log(np.stack([total / count, *((total - sums) / (count - 1))])) + top
    found, *without = logsumexp(means.sum(axis=2), axis=1) - np.log(blocks.shape[1])
    if not np.isfinite([found, *without]).all():
        return float(found), np.inf
    return float(found), float(np.sqrt((count - 1) * np.mean((without - np.mean(without)) ** 2)))
