"""Records and their parameters in one compiled loop; see `kernels.records.make_chain`.

A round is a sweep over the records, moves of the parameters that take the records along, and moves
given the records. What is tuned in the warm-up, by draws alone:

- step sizes, along each axis and for each kind of moves, to the acceptance rate of a random walk;
- the axes, to those along which the draws are uncorrelated (`WalkAdaptation`);
- how many moves of a kind a round has: two along each axis, and one in all where their mean squared
  jump is less than a tenth of the other kind's. Moves that take about as long as a sweep, because
  they draw at random or add up all records, are made once along each axis, and once in all where
  the other kind's are longer;
- how many rounds a draw has: half the autocorrelation time of the slowest parameter, in rounds, and
  at most 100. Draws of the warm-up have a third of them. The time is measured on the later half of
  the draws whenever these have doubled, and may grow fourfold each time: a chain that is slow knows
  too little of itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
from arviz_stats.base import array_stats
from xarray import DataTree

from pymc_dp.graphs.declined import Declined, once
from pymc_dp.graphs.interrupts import Pieces
from pymc_dp.graphs.questions import lengths
from pymc_dp.graphs.stages import stage
from pymc_dp.kernels.records import CARRIED
from pymc_dp.reading.bounds import feasible_point
from pymc_dp.reading.groups import Block, parameters
from pymc_dp.reading.model import Reading, is_tagged
from pymc_dp.reading.privacy import stated_loss
from pymc_dp.routes import ROUTES, Plan, Route
from pymc_dp.routes.chain import ARGUMENTS, run
from pymc_dp.routes.gibbs import sweep
from pymc_dp.routes.given import public
from pymc_dp.step_methods.records import Watch, checked_blocks, first_records, say_what_is_slow
from pymc_dp.step_methods.records.adaptation import WalkAdaptation
from pymc_dp.step_methods.records.engine import Engine

_NAME = "records in one loop"
_MOST = 20  # entries of parameters: a move of any is one of all records
_TUNED = 10  # draws between changes of the step sizes, and later the same share of the draws
# Passes over the axes in a round, and the least share of the other kind's mean squared jump.
_CHEAP, _COSTLY = (2, 0.1), (1, 1.0)
_CORRELATED, _FEWER = 2.0, 3  # draws to an effective one; times as many in the warm-up
_SHORTEST = 100  # draws of which their autocorrelation is measured
_MOST_ROUNDS, _FASTEST = 100, 4.0


@dataclass
class State:
    """Where a chain is; see `kernels.records.make_chain`."""

    x: tuple[np.ndarray, ...]
    theta: np.ndarray
    env: tuple[np.ndarray, ...]
    axes: np.ndarray
    scales: np.ndarray
    counts: np.ndarray
    turns: np.ndarray
    watch: Watch


class RecordChain:
    """The chain for one model; see `routes.chain.Chain`."""

    sweeps = 1

    def __init__(self, reading: Reading):
        model = reading.model
        self._start, self._lock = feasible_point(model), Lock()
        block = covered(reading)
        recorded = [model[name] for name in public(reading)]
        self._shapes = {rv.name: lengths(rv) for rv in recorded}
        self._engine = Engine(model, block, self._start, recorded)
        self._loss = stated_loss(model, block)
        say_what_is_slow(self._engine, interweave=True)
        # Compiled once, before there are threads.
        rng = np.random.default_rng(0)
        self._run(rng, self._begun(rng), 1)

    def begin(self, rng: np.random.Generator, tune: int, *, pieces: Pieces) -> State:
        """Return a state, after the draws that tune it."""
        with self._lock:  # of functions that are not for threads
            state = self._begun(rng)
        size = self._engine.size
        walks = [WalkAdaptation(size), WalkAdaptation(size)]
        drawn = np.empty((tune, size))
        first, measured = 0, 2 * _SHORTEST
        while first < tune:
            here = drawn[first : first + max(_TUNED, first // _TUNED)]
            tried = moved = np.zeros(state.scales.shape)
            for piece in pieces.of(len(here)):
                rows, *more = self._run(rng, state, piece.stop - piece.start)
                here[piece] = rows[:, :size]
                tried, moved = tried + more[0], moved + more[1]
            for walk, own in zip(walks, zip(tried, moved, strict=True), strict=True):
                walk.update(here, *own)
            state.axes = walks[0].axes
            state.scales = np.stack([walk.scales for walk in walks])
            first += len(here)
            late = drawn[first // 2 : first]
            state.counts[1:] = self._moves(state, late)
            if size and (first >= measured or (first == tune and len(late) >= _SHORTEST)):
                apart = max(map(_draws_apart, late.T))
                growth = min(apart / (_FEWER * _CORRELATED), _FASTEST)
                state.counts[0] = np.clip(round(state.counts[0] * growth), 1, _MOST_ROUNDS)
                measured *= 2
        state.counts[0] = min(_FEWER * state.counts[0], _MOST_ROUNDS)
        return state

    def _begun(self, rng: np.random.Generator) -> State:
        engine, point = self._engine, self._start
        theta = engine.theta(point)
        x, theta = first_records(engine, rng, theta + rng.uniform(-1.0, 1.0, theta.size), point)
        walk = WalkAdaptation(engine.size)
        state = State(
            x, theta, engine.env(point, engine.centers_of(x)), walk.axes,
            np.stack([walk.scales] * 2), np.ones(3, np.int64), np.zeros(2, np.int64),
            Watch(engine, self._loss),
        )  # fmt: skip
        state.counts[1:] = self._moves(state, theta[None])
        return state

    def _moves(self, state: State, drawn: np.ndarray) -> np.ndarray:
        """Return how many moves of each kind a round has."""
        how = [_COSTLY if costly else _CHEAP for costly in self._engine.costly]
        passes, least = map(np.array, zip(*how, strict=True))
        moves = passes * state.scales.shape[1]
        if self._engine.fixed:
            moves[CARRIED] = 0
        sd = drawn.std(axis=0)
        if (sd > 0.0).all() and sd.size:
            axes = state.axes if state.axes.shape[1] else np.eye(sd.size)
            jumps = ((state.scales * np.linalg.norm(axes / sd[:, None], axis=0)) ** 2).mean(axis=1)
            moves = np.where(jumps < least * jumps[::-1], np.minimum(moves, 1), moves)
        return moves

    def _run(self, rng, state: State, draws: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        entries = sum(math.prod(shape) for shape in self._shapes.values())
        out = np.empty((draws, self._engine.size + entries))
        state.x, state.theta, lowest, tried, moved, refused = self._engine.chain(
            rng, state.x, state.theta, state.env, state.axes, state.scales,
            state.counts, state.turns, out,
        )  # fmt: skip
        state.watch.look(lowest, int(refused), draws * int(state.counts[0]))
        return out, tried, moved

    def advance(self, rng: np.random.Generator, state: State, draws: int):
        """Return the next state, and a row for each draw."""
        rows, _, _ = self._run(rng, state, draws)
        return state, rows[:, self._engine.size :]

    def posterior(self, rows: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return draws by name."""
        ends = np.cumsum([math.prod(shape) for shape in self._shapes.values()])
        parts = np.split(rows, ends[:-1], axis=-1)
        pairs = zip(self._shapes.items(), parts, strict=True)
        return {name: part.reshape(*rows.shape[:-1], *shape) for (name, shape), part in pairs}


def _draws_apart(draws: np.ndarray) -> float:
    """Return how many draws an effective one takes."""
    found = float(array_stats.ess(draws[None], chain_axis=0, draw_axis=1, method="mean"))
    return len(draws) / found if found > 0.0 else math.inf


@once
def covered(reading: Reading) -> Block:
    """Return the records of a model that the loop covers wholly; say what it does not cover."""
    model = reading.model
    tagged = [rv for rv in model.free_RVs if is_tagged(rv)]
    if not tagged:
        raise Declined("the confidential values are released one by one, not in sums of records")
    block, *others = checked_blocks(reading, tagged, feasible_point(model))
    if others:
        raise Declined(f"{block.name!r} and {others[0].name!r} are records of several groups")
    moving = parameters(reading, block)
    extra = [rv for rv in model.free_RVs if rv not in (*moving, *block.records)]
    if extra:
        raise Declined(f"it does not cover {extra[0].name!r}, which is no parameter of the records")
    size = sum(math.prod(lengths(model.rvs_to_values[rv])) for rv in moving)
    if size > _MOST:
        raise Declined(f"it moves up to {_MOST} parameters one by one, and there are {size}")
    return block


def _plan(reading: Reading) -> Plan:
    block = covered(reading)
    cost = {"records, loop": 1.0} | sweep(reading, block)
    return Plan.costing(cost, lambda **kwargs: _sample(reading, **kwargs))


@once
def _chain(reading: Reading) -> RecordChain:
    stage("Compiling")
    return RecordChain(reading)


def _sample(reading: Reading, **kwargs: Any) -> DataTree:
    return run(reading, _NAME, _chain(reading), "rounds", **kwargs)


ROUTES.add(Route(_NAME, "records", _plan, ARGUMENTS, careful=3.0))
