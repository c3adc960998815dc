"""Records and their parameters in one compiled loop; see `kernels.records.make_chain`.

Records of several groups that are independent of each other, given the parameters, move together.

A round is a sweep over the records, moves of the parameters that take the records along, and moves
given the records. What is tuned in the warm-up, by draws alone:

- step sizes, along each axis and for each kind of moves, to the acceptance rate of a random walk;
- the axes, to those along which the draws are uncorrelated (`WalkAdaptation`);
- how many moves of a kind a round has: two along each axis, and one in all where their mean squared
  jump is less than a tenth of the other kind's. Moves that take about as long as a sweep, because
  they draw at random or add up all records, are made once along each axis, and once in all where
  the other kind's are longer;
- how many rounds a draw has (`routes.warm_up`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from threading import Lock
from typing import Any

import numpy as np
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable
from xarray import DataTree

from pymc_dp.graphs.declined import Declined, once
from pymc_dp.graphs.interrupts import Pieces
from pymc_dp.graphs.questions import lengths
from pymc_dp.graphs.stages import stage
from pymc_dp.kernels.records import CARRIED
from pymc_dp.reading.bounds import feasible_point
from pymc_dp.reading.groups import Block, blocks, parameters
from pymc_dp.reading.model import Reading, is_tagged
from pymc_dp.reading.privacy import stated_loss
from pymc_dp.routes import ROUTES, Plan, Route
from pymc_dp.routes.chain import ARGUMENTS, by_name, notice_starts, run
from pymc_dp.routes.gibbs import sweep
from pymc_dp.routes.given import public
from pymc_dp.routes.warm_up import warm_up
from pymc_dp.step_methods.records import (
    Watch,
    check_gaps,
    checked_blocks,
    first_records,
    say_what_is_slow,
)
from pymc_dp.step_methods.records.adaptation import WalkAdaptation
from pymc_dp.step_methods.records.engine import Engine, chained

_NAME = "records in one loop"
_MOST = 20  # entries of parameters: a move of any is one of all records
# Passes over the axes in a round, and the least share of the other kind's mean squared jump.
_CHEAP, _COSTLY = (2, 0.1), (1, 1.0)
_TRIES = 100  # to draw the records of all blocks at the same parameters


@dataclass
class State:
    """Where a chain is; see `kernels.records.make_chain`."""

    x: tuple
    theta: np.ndarray
    env: tuple[tuple[np.ndarray, ...], ...]
    axes: np.ndarray
    scales: np.ndarray
    counts: np.ndarray
    turns: np.ndarray
    watches: list[Watch]

    @property
    def sweeps(self) -> int:
        """Those to a draw."""
        return int(self.counts[0])


class RecordChain:
    """The chain for one model; see `routes.chain.Chain`."""

    sweeps = 1

    def __init__(self, reading: Reading):
        model = reading.model
        self._start, self._lock = feasible_point(model), Lock()
        notice_starts(model)
        tagged = [rv for block in covered(reading) for rv in block.records if is_tagged(rv)]
        groups = checked_blocks(reading, tagged, self._start)
        shown = [model[name] for name in public(reading)]
        recorded = [[rv for rv in shown if _computed(rv, block)] for block in groups]
        others = {*chain.from_iterable(recorded[1:])}
        recorded[0] = [rv for rv in shown if rv not in others]
        self._shapes = {rv.name: lengths(rv) for own in recorded for rv in own}
        self._engines = [
            Engine(model, block, self._start, (groups, own))
            for block, own in zip(groups, recorded, strict=True)
        ]
        self._chain = chained(self._engines)
        self._size = self._engines[0].size
        self._losses = [stated_loss(model, block) for block in groups]
        for engine in self._engines:
            say_what_is_slow(engine, interweave=True)
        # Compiled once, before there are threads.
        rng = np.random.default_rng(0)
        self._run(rng, self._begun(rng), 1)

    def begin(self, rng: np.random.Generator, tune: int, *, pieces: Pieces) -> State:
        """Return a state, after the draws that tune it."""
        with self._lock:  # of functions that are not for threads
            state = self._begun(rng)
        size = self._size
        walks = [WalkAdaptation(size), WalkAdaptation(size)]

        def draw(draws: int):
            rows, tried, moved = self._run(rng, state, draws)
            return rows[:, :size], [tried, moved]

        def learn(rows: np.ndarray, learnt, late: np.ndarray) -> None:
            for walk, *own in zip(walks, *learnt, strict=True):
                walk.update(rows, *own)
            state.axes = walks[0].axes
            state.scales = np.stack([walk.scales for walk in walks])
            state.counts[1:] = self._moves(state, late)
            state.env = self._env(state.x)  # its centers

        warm_up(tune, pieces, draw, learn, state.counts)
        return state

    def _begun(self, rng: np.random.Generator) -> State:
        point, walk = self._start, WalkAdaptation(self._size)
        theta = self._engines[0].theta(point) + rng.uniform(-1.0, 1.0, self._size)
        for _ in range(_TRIES):
            x, first = [], theta
            for engine in self._engines:
                own, theta = first_records(engine, rng, theta, point)
                x.append(own)
            if theta is first or (theta == first).all():  # all the records are of the same
                break
        watches = [Watch(*pair) for pair in zip(self._engines, self._losses, strict=True)]
        counts, turns = np.ones(3, np.int64), np.zeros(2, np.int64)
        scales, env = np.stack([walk.scales] * 2), self._env(x)
        state = State(tuple(x), theta, env, walk.axes, scales, counts, turns, watches)
        state.counts[1:] = self._moves(state, theta[None])
        return state

    def _env(self, x: Sequence) -> tuple[tuple[np.ndarray, ...], ...]:
        """Return the further inputs of each block, sums centred near the means of records."""
        pairs = zip(self._engines, x, strict=True)
        return tuple(engine.env(self._start, engine.centers_of(own)) for engine, own in pairs)

    def _moves(self, state: State, drawn: np.ndarray) -> np.ndarray:
        """Return how many moves of each kind a round has."""
        each = zip(*(engine.costly for engine in self._engines), strict=True)
        how = [_COSTLY if any(costly) else _CHEAP for costly in each]
        passes, least = map(np.array, zip(*how, strict=True))
        moves = passes * state.scales.shape[1]
        if any(engine.fixed for engine in self._engines):
            moves[CARRIED] = 0
        sd = drawn.std(axis=0)
        if (sd > 0.0).all() and sd.size:
            axes = state.axes if state.axes.shape[1] else np.eye(sd.size)
            jumps = ((state.scales * np.linalg.norm(axes / sd[:, None], axis=0)) ** 2).mean(axis=1)
            moves = np.where(jumps < least * jumps[::-1], np.minimum(moves, 1), moves)
        return moves

    def _run(self, rng, state: State, draws: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        entries = sum(math.prod(shape) for shape in self._shapes.values())
        out, seen = np.empty((draws, self._size + entries)), np.zeros((len(self._engines), 3))
        state.x, state.theta, tried, moved = self._chain(
            rng, state.x, state.theta, state.env, state.axes, state.scales,
            state.counts, state.turns, seen, out,
        )  # fmt: skip
        for watch, (_, lowest, refused) in zip(state.watches, seen, strict=True):
            watch.look(lowest, int(refused), draws * int(state.counts[0]))
        return out, tried, moved

    def advance(self, rng: np.random.Generator, state: State, draws: int):
        """Return the next state, and a row for each draw."""
        rows, _, _ = self._run(rng, state, draws)
        return state, rows[:, self._size :]

    def posterior(self, rows: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return draws by name."""
        return by_name(rows, self._shapes)


@once
def covered(reading: Reading) -> list[Block]:
    """Return the records of a model that the loop covers wholly; say what it does not cover."""
    model = reading.model
    tagged = [rv for rv in model.free_RVs if is_tagged(rv)]
    if not tagged:
        raise Declined("the confidential values are released one by one, not in sums of records")
    for rv in tagged:
        check_gaps(model, rv)
    found = blocks(reading, tuple(tagged))
    for first, second in combinations(found, 2):
        for rv in (*model.basic_RVs, *model.potentials, *model.deterministics):
            if _computed(rv, first) and _computed(rv, second):
                raise Declined(
                    f"{rv.name!r} is computed from records of several groups, {first.name!r} and "
                    f"{second.name!r}"
                )
    records = {rv for block in found for rv in block.records}
    moving = {rv for block in found for rv in parameters(reading, block)}
    extra = [rv for rv in model.free_RVs if rv not in moving | records]
    if extra:
        raise Declined(f"it does not cover {extra[0].name!r}, which is no parameter of the records")
    size = sum(math.prod(lengths(model.rvs_to_values[rv])) for rv in moving)
    if size > _MOST:
        raise Declined(f"it moves up to {_MOST} parameters one by one, and there are {size}")
    return found


def _computed(rv: TensorVariable, block: Block) -> bool:
    """Whether a variable is one of some records, or computed from them."""
    return bool({*block.records} & {*ancestors([rv])})


def _plan(reading: Reading) -> Plan:
    found = covered(reading)
    cost = Counter({"records, loop": 1.0})
    for block in found:
        cost.update(sweep(reading, block))
    return Plan.costing(cost, lambda **kwargs: _sample(reading, **kwargs))


@once
def _chain(reading: Reading) -> RecordChain:
    stage("Compiling")
    return RecordChain(reading)


def _sample(reading: Reading, **kwargs: Any) -> DataTree:
    return run(reading, _NAME, _chain(reading), "sweeps", **kwargs)


# As steps on the records: what is integrated out is not followed slowly.
ROUTES.add(Route(_NAME, "records", _plan, ARGUMENTS, careful=10.0))
