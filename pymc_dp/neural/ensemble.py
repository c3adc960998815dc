"""Draws from a density by an ensemble of walkers, all of them in one call of the density."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def ensemble_draws(
    log_density: Callable[[np.ndarray], np.ndarray],
    start: np.ndarray,
    steps: int,
    rng: np.random.Generator,
) -> np.ndarray:
    r"""Move walkers by stretch moves (Goodman & Weare, 2010).

    Half of the walkers move along the lines to random walkers of the other half,
    :math:`x' = y + \zeta (x - y)` with density of :math:`\zeta \propto \zeta^{-1/2}` on
    [1/2, 2], accepted with probability :math:`\min\{1, \zeta^{p-1} \pi(x') / \pi(x)\}`. It needs
    no scales, and a network evaluates a half at once.

    Parameters
    ----------
    log_density : callable
        ``(count, width) -> (count,)``.
    start : ndarray of shape (walkers, width)
        An even number of walkers.
    steps : int
        Moves of every walker.
    rng : numpy.random.Generator

    Returns
    -------
    ndarray of shape (walkers, width)
        The last positions.
    """
    walkers = np.array(start)
    count, width = walkers.shape
    if count % 2 or count < 4:
        raise ValueError(f"an even number of at least 4 walkers is needed, not {count}")
    halves = np.split(rng.permutation(count), 2)
    level = log_density(walkers)
    for _ in range(steps):
        for moving, resting in (halves, halves[::-1]):
            zeta = (1.0 + rng.random(len(moving))) ** 2 / 2.0
            partner = walkers[rng.choice(resting, size=len(moving))]
            proposal = partner + zeta[:, None] * (walkers[moving] - partner)
            proposed = log_density(proposal)
            gain = (width - 1) * np.log(zeta) + proposed - level[moving]
            taken = np.log(rng.random(len(moving))) < np.nan_to_num(gain, nan=-np.inf)
            walkers[moving[taken]] = proposal[taken]
            level[moving[taken]] = proposed[taken]
    return walkers


def resample(log_weights: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return `count` systematic draws of indices with these log weights."""
    weights = np.exp(log_weights - np.max(log_weights))
    edges = np.cumsum(weights) / weights.sum()
    points = (np.arange(count) + rng.random()) / count
    return np.minimum(np.searchsorted(edges, points), len(edges) - 1)
