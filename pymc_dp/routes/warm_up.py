"""The warm-up of chains that choose their own number of rounds to a draw.

Step sizes are changed every ten draws, later after a tenth of the draws so far. A draw has so many
rounds that two of them are about one effective draw: half the autocorrelation time of the slowest
parameter, in rounds, and at most 100. Draws of the warm-up have a third of them. The time is
measured on the later half of the draws whenever these have doubled, and may grow fourfold each
time: a chain that is slow knows too little of itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from arviz_stats.base import array_stats

from pymc_dp.graphs.interrupts import Pieces

_TUNED = 10
_CORRELATED, _FEWER = 2.0, 3
_SHORTEST = 100  # draws of which their autocorrelation is measured
_MOST_ROUNDS, _FASTEST = 100, 4.0


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
    found = float(array_stats.ess(draws[None], chain_axis=0, draw_axis=1, method="mean"))
    return len(draws) / found if found > 0.0 else math.inf
