"""Chains that choose their own number of rounds to a draw, in their warm-up.

Step sizes are changed every ten draws, later after a tenth of the draws so far. A draw has so many
rounds that two of them are about one effective draw: half the autocorrelation time of the slowest
parameter, in rounds, and at most 100. Draws of the warm-up have a third of them. The time is
measured on the later half of the draws whenever these have doubled, and may grow fourfold each
time: a chain that is slow knows too little of itself.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
import pymc as pm
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.interrupts import Pieces
from pymc_dp.graphs.shapes import lengths
from pymc_dp.reading.bounds import feasible_point
from pymc_dp.routes.chain import by_name, notice_starts
from pymc_dp.step_methods.records.adaptation import WalkAdaptation

_TUNED = 10
_CORRELATED, _FEWER = 2.0, 3
_SHORTEST = 100  # draws of which their autocorrelation is measured
_MOST_ROUNDS, _FASTEST = 100, 4.0


@dataclass
class TunedState:
    """Where a chain is: what it learns, and what it counts, the rounds to a draw first."""

    walks: list[WalkAdaptation]
    counts: np.ndarray
    turns: np.ndarray

    @property
    def sweeps(self) -> int:
        """The rounds to a draw."""
        return int(self.counts[0])


class TunedChain(ABC):
    """A chain with such a warm-up; see `routes.chain.Chain`.

    Attributes
    ----------
    size : how many parameters a row of draws has, before what is recorded.
    """

    sweeps = 1
    size: int

    def __init__(self, model: pm.Model):
        self._start, self._lock = feasible_point(model), Lock()
        notice_starts(model)

    def _record(self, shown: Sequence[TensorVariable]) -> None:
        self._shapes = {str(rv.name): lengths(rv) for rv in shown}

    def _room(self, draws: int) -> np.ndarray:
        """Return room for rows."""
        return np.empty((draws, self.size + sum(map(math.prod, self._shapes.values()))))

    def _compile(self) -> None:
        """Run once, before there are threads."""
        rng = np.random.default_rng(0)
        self.run(rng, self.begun(rng), 1)

    @abstractmethod
    def begun(self, rng: np.random.Generator) -> Any:
        """Return a state before the warm-up."""

    @abstractmethod
    def run(self, rng: np.random.Generator, state: Any, draws: int) -> tuple[np.ndarray, list]:
        """Return rows of draws, and arrays of how many moves were tried and taken."""

    @abstractmethod
    def learn(self, state: Any, rows: np.ndarray, counts: list, late: np.ndarray) -> None:
        """Learn of rows of parameters and counts of moves; `late` is the later half of all."""

    def begin(self, rng: np.random.Generator, tune: int, *, pieces: Pieces) -> Any:
        """Return a state, after the draws that tune it."""
        with self._lock:  # of functions that are not for threads
            state = self.begun(rng)

        def draw(draws: int) -> tuple[np.ndarray, list]:
            rows, counts = self.run(rng, state, draws)
            return rows[:, : self.size], counts

        warm_up(tune, pieces, draw, partial(self.learn, state), state.counts)
        return state

    def advance(self, rng: np.random.Generator, state: Any, draws: int):
        """Return the next state, and a row for each draw."""
        rows, _ = self.run(rng, state, draws)
        return state, rows[:, self.size :]

    def posterior(self, rows: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return draws by name."""
        return by_name(rows, self._shapes)


def warm_up(
    tune: int,
    pieces: Pieces,
    draw: Callable[[int], tuple[np.ndarray, list]],
    learn: Callable[[np.ndarray, list, np.ndarray], None],
    rounds: np.ndarray,
) -> None:
    """Tune a chain.

    Parameters
    ----------
    draw : number of draws to rows of parameters, and arrays of counts of moves
    learn : takes rows, the counts of their moves, and the later half of all rows
    rounds : array of integers, the first of which is changed in place
    """
    drawn = np.empty((tune, 0))
    first, measured, wanted = 0, 2 * _SHORTEST, float(_FEWER)
    while first < tune:
        size = min(max(_TUNED, first // _TUNED), tune - first)
        counts: list = []
        for piece in pieces.of(size):  # of time; what is learnt is the same in whatever pieces
            rows, more = draw(piece.stop - piece.start)
            counts = [a + b for a, b in zip(counts, more, strict=True)] if counts else more
            if not first and not piece.start:
                drawn = np.empty((tune, rows.shape[1]))
            drawn[first + piece.start : first + piece.stop] = rows
        late = drawn[(first + size) // 2 : first + size]
        learn(drawn[first : first + size], counts, late)
        first += size
        if first >= measured or (first == tune >= 2 * _SHORTEST):
            apart = max(map(_draws_apart, late.T), default=1.0)
            wanted = min(apart / _CORRELATED, _FEWER * _FASTEST) * rounds[0]
            rounds[0] = np.clip(round(wanted / _FEWER), 1, _MOST_ROUNDS)
            measured *= 2
    rounds[0] = np.clip(round(wanted), 1, _MOST_ROUNDS)


def _draws_apart(draws: np.ndarray) -> float:
    """Return how many draws an effective one takes."""
    if draws.min() == draws.max():
        return 1.0  # a count that does not move, or is known
    from arviz_stats.base import array_stats  # with what it needs, half a second

    found = float(array_stats.ess(draws[None], chain_axis=0, draw_axis=1, method="mean"))
    return len(draws) / found if found > 0.0 else math.inf
