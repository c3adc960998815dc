"""Steps in one compiled loop; see `step_methods.loop`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
from xarray import DataTree

from pymc_dp.graphs.declined import Declined, once
from pymc_dp.graphs.interrupts import Pieces
from pymc_dp.graphs.questions import lengths
from pymc_dp.graphs.stages import stage
from pymc_dp.ladder.collapse import collapsed
from pymc_dp.reading.bounds import feasible_point
from pymc_dp.reading.model import Reading, is_tagged
from pymc_dp.routes import AS_WRITTEN, ROUTES, Plan, Route
from pymc_dp.routes.chain import ARGUMENTS, by_name, notice_starts, run
from pymc_dp.routes.given import public
from pymc_dp.routes.warm_up import warm_up
from pymc_dp.step_methods import claimed_steps, kept_steps
from pymc_dp.step_methods.base import LoopDraw
from pymc_dp.step_methods.loop import Loop, loop_draws, undrawn, walks
from pymc_dp.step_methods.records.adaptation import WalkAdaptation

_NAME = "steps in one loop"


@dataclass
class State:
    """Where a chain is."""

    q: np.ndarray
    walks: list[WalkAdaptation]
    rounds: np.ndarray
    turns: np.ndarray
    data: list[np.ndarray]

    @property
    def sweeps(self) -> int:
        """Those to a draw."""
        return int(self.rounds[0])


class StepsChain:
    """The chain for one model; see `routes.chain.Chain`."""

    sweeps = 1

    def __init__(self, reading: Reading):
        model = reading.model
        self._lock, self._start = Lock(), feasible_point(model)
        notice_starts(model)
        self._steps = kept_steps(reading)
        moving = [weave for step in self._steps for weave in getattr(step, "weaves", ())]
        draws = _draws(reading)
        moving += walks(reading, undrawn(model, draws), self._start)
        shown = [model[name] for name in public(reading)]
        self._shapes = {rv.name: lengths(rv) for rv in shown}
        self.loop = Loop(reading, draws, moving, self._start, shown)
        # Compiled once, before there are threads.
        rng = np.random.default_rng(0)
        self.run(rng, self.begun(rng), 1)

    def begin(self, rng: np.random.Generator, tune: int, *, pieces: Pieces) -> State:
        """Return a state, after the draws that tune it."""
        with self._lock:  # of functions that are not for threads
            state = self.begun(rng)

        def draw(draws: int):
            rows, learnt = self.run(rng, state, draws)
            return rows[:, : self.loop.size], [x for own in learnt for x in own]

        def learn(rows: np.ndarray, learnt, late: np.ndarray) -> None:
            pairs = zip(learnt[::2], learnt[1::2], strict=True)
            for weave, walk, own in zip(self.loop.moving, state.walks, pairs, strict=True):
                walk.update(self.loop.thetas(weave, rows), *own)

        warm_up(tune, pieces, draw, learn, state.rounds)
        return state

    def begun(self, rng: np.random.Generator) -> State:
        """Return a state after one call of each step."""
        point, loop = self._start, self.loop
        for step, own in zip(self._steps, rng.spawn(len(self._steps)), strict=True):
            step.setup_chain(own, 0, 0)
            point, _ = step.step(point)
        learning = [weave.walk() for weave in loop.moving]
        turns = np.zeros(len(learning), np.int64)
        return State(loop.theta(point), learning, np.ones(1, np.int64), turns, loop.read_data())

    def run(self, rng: np.random.Generator, state: State, draws: int):
        """Return rows of q and all variables for draws, and the moves tried and taken."""
        entries = sum(math.prod(shape) for shape in self._shapes.values())
        out, loop = np.empty((draws, self.loop.size + entries)), self.loop
        pairs = zip(loop.moving, state.walks, strict=True)
        counts = np.array([weave.count(walk) for weave, walk in pairs], np.int64)
        learnt = [
            (walk.axes, walk.scales, *np.zeros((2, walk.scales.size))) for walk in state.walks
        ]
        rounds = int(state.rounds[0])
        loop.run(rng, state.q, rounds, counts, state.turns, learnt, out, state.data)
        return out, [own[2:] for own in learnt]

    def advance(self, rng: np.random.Generator, state: State, draws: int):
        """Return the next state, and a row for each draw."""
        rows, _ = self.run(rng, state, draws)
        return state, rows[:, self.loop.size :]

    def posterior(self, rows: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return draws by name."""
        return by_name(rows, self._shapes)


@once
def _draws(reading: Reading) -> list[LoopDraw]:
    return loop_draws(reading, claimed_steps(reading))


def _plan(rung: str, reading: Reading) -> Plan:
    on = collapsed(reading, "statistics") if rung == "statistics" else reading
    if tagged := [rv.name for rv in on.model.free_RVs if is_tagged(rv)]:
        raise Declined(f"it does not cover the records {tagged[0]!r}")
    _draws(on)
    size = sum(math.prod(lengths(rv)) for rv in on.model.free_RVs)
    cost = {"loop": 1.0, "loop, entry": float(size)}
    return Plan.costing(cost, partial(_sample, on))


@once
def _chain(reading: Reading) -> StepsChain:
    stage("Compiling")
    return StepsChain(reading)


def _sample(reading: Reading, **kwargs: Any) -> DataTree:
    return run(reading, _NAME, _chain(reading), "sweeps", **kwargs)


# Where what is left can be integrated out, it is: nothing is then followed slowly.
for _rung, _where, _careful in (
    (AS_WRITTEN, "", 1.0),
    ("records", ", on the counts", 3.0),
    ("statistics", ", on the statistics", 10.0),
):
    _route = Route(_NAME + _where, _rung, partial(_plan, _rung), ARGUMENTS, careful=_careful)
    ROUTES.add(_route)
