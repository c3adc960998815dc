"""The problem that neural estimation solves: a prior, a simulator, the noise, the release."""

from __future__ import annotations

import logging
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pymc as pm
from scipy import stats

from pymc_dp.neural.noise import Channel, check_statistic, spans
from pymc_dp.neural.prior import Prior

_log = logging.getLogger("pymc.dp")

# Below this p-value simulations differ: far below chance, for thousands of statistics.
_UNLIKE = 1e-6


@dataclass(frozen=True)
class Problem:
    """A prior, a simulator of confidential statistics, and the release of these statistics.

    Attributes
    ----------
    prior : Prior
    model : pm.Model
        Model that names dimensions and coordinates.
    channels : tuple of Channel
    observed : ndarray
        The releases, flattened and joined.
    run : callable
        ``(theta, rng) -> statistics`` of shape (count, size), not validated.
    """

    prior: Prior
    model: pm.Model
    channels: tuple[Channel, ...]
    observed: np.ndarray
    run: Callable[[np.ndarray, np.random.Generator], np.ndarray]

    def simulate(self, theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Simulate one confidential statistic for each parameter vector; (count, size)."""
        names = ", ".join(repr(c.name) for c in self.channels)
        statistic = self.run(theta, rng)
        try:
            statistic = np.asarray(statistic, "float64")
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"the simulator must return an array of numbers, the statistics of {names}; "
                f"got {statistic!r} ({error})"
            ) from None
        size = len(self.observed)
        if statistic.shape != (len(theta), size):
            raise ValueError(
                f"the simulator returned an array of shape {statistic.shape} for {len(theta)} sets "
                f"of parameters; it must be ({len(theta)}, {size}), a row of statistics for each "
                f"set: the number of released values in {names} is {size}"
            )
        wrong = ~np.all(np.isfinite(statistic), axis=1)
        if wrong.any():
            bad = {k: v[wrong][0].tolist() for k, v in self.prior.natural(theta).items()}
            raise ValueError(
                f"the statistic of {names} is not finite in {wrong.sum()} of {len(theta)} "
                f"simulations, first at {bad}: a release needs a number there, or a prior that "
                f"leaves these parameters out"
            )
        for channel, place in spans(self.channels):
            check_statistic(channel, statistic[:, place])
        return statistic

    def check_seeded(self, theta: np.ndarray, seed: int) -> None:
        """Refuse a simulator that gives other values for the same seed."""

        def state():
            return pickle.dumps((random.getstate(), np.random.get_state()))  # noqa: NPY002

        before = state()
        first, second = (self.simulate(theta, np.random.default_rng(seed)) for _ in range(2))
        if not np.array_equal(first, second) or state() != before:
            raise ValueError(
                "the simulator depends on unseeded state: two calls with the same parameters and "
                "the same seed gave different values, or drew from np.random or random. Draw all "
                "random numbers from the generator that it is given (rng)"
            )
        if np.array_equal(first, self.simulate(theta, np.random.default_rng(seed + 1))):
            _log.info(
                "The simulator gave the same statistics with two seeds: if there is chance in it, "
                "draw from the generator that it is given (rng)"
            )

    def check_same(self, theta: np.ndarray, statistic: np.ndarray, rng: np.random.Generator):
        """Refuse earlier simulations that do not have the law of this problem's simulator."""
        again = self.simulate(theta, rng), self.simulate(theta, rng)
        for channel, place in spans(self.channels):
            columns = zip(*(a[:, place].T for a in (statistic, *again)), strict=True)
            if any(_unlike(*three) < _UNLIKE for three in columns):
                raise ValueError(
                    f"earlier: at the parameters of its simulations, the statistic of "
                    f"{channel.name!r} is not distributed as it was then: leave earlier= out, or "
                    f"use the simulator and the statistic of that result"
                )


def _unlike(known: np.ndarray, first: np.ndarray, second: np.ndarray) -> float:
    """Return the least p-value of tests of whether three columns are exchangeable, row by row."""
    pvalues = [stats.ks_2samp(known, first).pvalue]
    moved = ~np.isclose(known, first, rtol=1e-9, atol=0)
    # Fewer than 20 differences cannot give a p-value below `_UNLIKE`.
    if moved.sum() >= 20:
        away = (known - first)[moved]
        for difference in (
            away,
            np.abs(away) - np.abs(second - first)[moved],
        ):  # in place, in spread
            pvalues.append(stats.wilcoxon(difference, method="asymptotic").pvalue)
    return min(pvalues)
