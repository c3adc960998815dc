"""Chains that tune their number of rounds to a draw in the warm-up.

Step sizes change every ten draws, later after a tenth of the draws so far. A draw has half as many
rounds as the autocorrelation time of the slowest parameter, so that two draws are about one
effective draw, and at most 100; of a variable with more than 20 entries, than 95% of them. Draws of
the warm-up have a third of that. The time is measured on the later half of the draws whenever their
number has doubled. The rounds then grow fourfold at most, as few draws of a chain that mixes slowly
measure its time poorly. At the end of the warm-up the latest quarter and eighth are measured, too,
and the shortest time counts: on the way to the posterior, which may take most of the warm-up, draws
look as if they mixed slowly. Short stretches give short times, which are multiplied by the square
roots of 2 and 4; where a parameter stands still there, they do not count.
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
from xarray import DataTree

from pymc_dp.graphs.declined import once
from pymc_dp.graphs.interrupts import Pieces
from pymc_dp.graphs.shapes import lengths
from pymc_dp.graphs.stages import stage
from pymc_dp.reading.bounds import feasible_point
from pymc_dp.reading.model import Reading
from pymc_dp.routes.chain import by_name, notice_starts, run
from pymc_dp.step_methods.records.adaptation import WalkAdaptation

_TUNED = 10  # draws between changes of step sizes
_CORRELATED, _FEWER = 2.0, 3  # draws to an effective one; divisor of rounds in the warm-up
_SHORTEST = 50  # draws from which the autocorrelation time is measured
_ENOUGH = 200  # draws of a warm-up that measures it
_LOOKED_AT, _SLOW = 100, 0.95  # entries of a variable; the share that is not slower
_MOST_ROUNDS, _FASTEST = 100, 4.0  # to a draw; growth of the rounds at a time


@dataclass
class TunedState:
    """The state of a chain: walks that learn step sizes, and counts, the rounds to a draw first."""

    walks: list[WalkAdaptation]
    counts: np.ndarray
    turns: np.ndarray

    @property
    def sweeps(self) -> int:
        """The rounds to a draw."""
        return int(self.counts[0])


class TunedChain(ABC):
    """A chain that tunes its rounds; see `routes.chain.Chain`.

    Attributes
    ----------
    size : number of parameters that a row of draws begins with; recorded variables follow.
    parts : the place of each variable among these.
    """

    sweeps = 1
    size: int
    parts: Sequence[slice]

    def __init__(self, model: pm.Model):
        self._start, self._lock = feasible_point(model), Lock()
        notice_starts(model)

    def _record(self, shown: Sequence[TensorVariable]) -> None:
        self._shapes = {str(rv.name): lengths(rv) for rv in shown}

    def _room(self, draws: int) -> np.ndarray:
        """Return an array for rows of draws."""
        return np.empty((draws, self.size + sum(map(math.prod, self._shapes.values()))))

    @abstractmethod
    def begun(self, rng: np.random.Generator) -> Any:
        """Return a state before the warm-up."""

    @abstractmethod
    def run(self, rng: np.random.Generator, state: Any, draws: int) -> tuple[np.ndarray, list]:
        """Return rows of draws, and arrays with the numbers of moves tried and accepted."""

    @abstractmethod
    def learn(self, state: Any, rows: np.ndarray, counts: list, late: np.ndarray) -> None:
        """Tune by rows of parameters and counts of moves; `late` is the later half of all rows."""

    def begin(self, rng: np.random.Generator, tune: int, *, pieces: Pieces) -> Any:
        """Return a state, after the draws that tune it."""
        with self._lock:  # `begun` calls functions that are not thread-safe
            state = self.begun(rng)

        def draw(draws: int) -> tuple[np.ndarray, list]:
            rows, counts = self.run(rng, state, draws)
            return rows[:, : self.size], counts

        warm_up(tune, pieces, draw, partial(self.learn, state), state.counts, self.parts)
        return state

    def advance(self, rng: np.random.Generator, state: Any, draws: int):
        """Return the next state, and a row for each draw."""
        rows, _ = self.run(rng, state, draws)
        return state, rows[:, self.size :]

    def posterior(self, rows: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return draws by name."""
        return by_name(rows, self._shapes)


@once
def _compiled(reading: Reading, kind: Callable[[Reading], TunedChain]) -> TunedChain:
    stage("Compiling")
    return kind(reading)


def run_tuned(
    reading: Reading, kind: Callable[[Reading], TunedChain], route: str, **kwargs: Any
) -> DataTree:
    """Sample a model by a chain of this kind, which is compiled once."""
    return run(reading, route, _compiled(reading, kind), "sweeps", **kwargs)


def warm_up(
    tune: int,
    pieces: Pieces,
    draw: Callable[[int], tuple[np.ndarray, list]],
    learn: Callable[[np.ndarray, list, np.ndarray], None],
    rounds: np.ndarray,
    parts: Sequence[slice],
) -> None:
    """Tune a chain.

    Parameters
    ----------
    draw : takes a number of draws, returns rows of parameters and counts of moves.
    learn : takes rows, the counts of their moves, and the later half of all rows.
    rounds : integers, the first of which is set in place.
    parts : the columns of each variable.
    """
    drawn = np.empty((tune, 0))
    first, measured, wanted = 0, 2 * _SHORTEST, float(_FEWER)
    while first < tune:
        size = min(max(_TUNED, first // _TUNED), tune - first)
        counts: list = []
        for piece in pieces.of(size):  # for Ctrl-C; the pieces do not change what is learnt
            rows, piece_counts = draw(piece.stop - piece.start)
            counts = (
                [a + b for a, b in zip(counts, piece_counts, strict=True)]
                if counts
                else piece_counts
            )
            if not first and not piece.start:
                drawn = np.empty((tune, rows.shape[1]))
            drawn[first + piece.start : first + piece.stop] = rows
        late = drawn[(first + size) // 2 : first + size]
        learn(drawn[first : first + size], counts, late)
        first += size
        if tune >= _ENOUGH and (first >= measured or first == tune):
            shares = (1, 2, 4) if first == tune else (1,)
            apart = min(_slowest(late, len(late) // k, parts) * k**0.5 for k in shares)
            wanted = min(apart / _CORRELATED, _FEWER * _FASTEST) * rounds[0]
            rounds[0] = np.clip(round(wanted / _FEWER), 1, _MOST_ROUNDS)
            measured *= 2
    rounds[0] = np.clip(round(wanted), 1, _MOST_ROUNDS)


def _slowest(rows: np.ndarray, length: int, parts: Sequence[slice]) -> float:
    """Return the draws to an effective draw of the slowest variable, by the last of all rows."""
    if length < _SHORTEST // 2:
        return math.inf  # too few draws to tell
    slowest = 0.0
    for part in parts:
        # The largest of thousands of poor estimates would say much about them, not the chain.
        step = max(1, (part.stop - part.start) // _LOOKED_AT)
        columns = rows[:, part.start : part.stop : step]
        last = columns[-length:]
        if ((np.ptp(last, axis=0) == 0.0) & (np.ptp(columns, axis=0) > 0.0)).any():
            return math.inf  # one has stood still
        if last.size:
            apart = list(map(_draws_apart, last.T))
            slowest = max(slowest, float(np.quantile(apart, _SLOW, method="higher")))
    return slowest or 1.0


def _draws_apart(draws: np.ndarray) -> float:
    """Return the number of draws to an effective draw."""
    if draws.min() == draws.max():
        return 1.0  # a constant, such as a count that is known
    from arviz_stats.base import array_stats  # takes half a second

    effective = float(array_stats.ess(draws[None], chain_axis=0, draw_axis=1, method="mean"))
    return len(draws) / effective if effective > 0.0 else math.inf
