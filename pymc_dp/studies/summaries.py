"""What a study keeps of a replicate: a row of numbers for each parameter."""

from __future__ import annotations

from typing import Literal

import numpy as np
from arviz_stats.base import array_stats

Interval = Literal["hdi", "eti"]
FIELDS = ("truth", "mean", "median", "mode", "sd", "lower", "upper", "pit", "ess")

# The truth is ranked among so many draws, evenly spaced, which are then nearly independent.
_RANKED = 99

_BINS = 512


def mode(ordered: np.ndarray) -> float:
    r"""Return the highest point of a Gaussian kernel density of sorted draws.

    The bandwidth is Silverman's, :math:`0.9 \min(s, \mathrm{IQR}/1.34)\, n^{-1/5}`; draws are
    counted in 512 bins, at most a third of a bandwidth wide where the tails allow it.
    """
    n = len(ordered)
    quarter, three_quarters = ordered[n // 4], ordered[(3 * n) // 4]
    spread = min(float(ordered.std()), (three_quarters - quarter) / 1.34)
    if not spread > 0.0:
        return float(ordered[n // 2])
    width = 0.9 * spread * n**-0.2
    # Far tails hold no mode, and their length would make the bins coarse.
    low = max(ordered[0], quarter - 8 * spread)
    high = min(ordered[-1], three_quarters + 8 * spread)
    bin_width = (high - low) / _BINS
    inside = ordered[np.searchsorted(ordered, low) : np.searchsorted(ordered, high, "right")]
    bins = np.minimum(((inside - low) / bin_width).astype(np.int64), _BINS - 1)
    counts = np.bincount(bins, minlength=_BINS)
    reach = min(int(np.ceil(4 * width / bin_width)), (_BINS - 1) // 2)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) * bin_width / width) ** 2)
    peak = int(np.argmax(np.convolve(counts, kernel, mode="same")))
    return float(low + (peak + 0.5) * bin_width)


def effective(draws: np.ndarray) -> float:
    """Return the effective number of draws, for the mean of one parameter; (chains, draws)."""
    if draws.shape[1] < 4:
        return np.nan
    return float(array_stats.ess(draws, chain_axis=0, draw_axis=1, method="mean"))


def summarize(
    draws: np.ndarray,
    truth: np.ndarray,
    prob: float,
    interval: Interval,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return a row of `FIELDS` for each parameter.

    Parameters
    ----------
    draws : ndarray of shape (chains, draws, parameters)
    truth : ndarray of shape (parameters,)
    prob : float
        Probability of the interval.
    interval : {"hdi", "eti"}
        Highest density (the shortest one) or equal tails.
    rng : numpy.random.Generator
        Makes the probability integral transform continuous: between the neighbouring ranks, and
        between draws that equal the truth.
    """
    rows = np.empty((len(truth), len(FIELDS)))
    for j, true in enumerate(truth):
        by_chain = draws[:, :, j]
        flat = by_chain.ravel()
        ordered = np.sort(flat)
        n = len(ordered)
        if interval == "hdi":
            low, high = array_stats.hdi(ordered, prob, axis=0)
        else:
            low, high = np.quantile(ordered, [0.5 - prob / 2, 0.5 + prob / 2])
        chosen = flat[np.linspace(0, n - 1, min(_RANKED, n)).round().astype(np.int64)]
        below, equal = (chosen < true).sum(), (chosen == true).sum()
        pit = (below + rng.random() * (equal + 1)) / (len(chosen) + 1)
        rows[j] = (
            true, flat.mean(), 0.5 * (ordered[(n - 1) // 2] + ordered[n // 2]), mode(ordered),
            flat.std(ddof=1), low, high, pit, effective(by_chain),
        )  # fmt: skip
    return rows
