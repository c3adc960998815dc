"""Steps in one compiled loop; see `step_methods.loop`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
from xarray import DataTree

from pymc_dp.graphs.declined import once
from pymc_dp.graphs.interrupts import Pieces
from pymc_dp.graphs.questions import lengths
from pymc_dp.graphs.stages import stage
from pymc_dp.ladder.collapse import collapsed
from pymc_dp.reading.bounds import feasible_point
from pymc_dp.reading.model import Reading
from pymc_dp.routes import AS_WRITTEN, ROUTES, Plan, Route
from pymc_dp.routes.chain import ARGUMENTS, run
from pymc_dp.routes.warm_up import warm_up
from pymc_dp.step_methods import claimed_steps, kept_steps
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


class StepsChain:
    """The chain for one model; see `routes.chain.Chain`."""

    sweeps = 1

    def __init__(self, reading: Reading):
        model = reading.model
        self._lock, self._start = Lock(), feasible_point(model)
        self._steps = kept_steps(reading)
        moving = [weave for step in self._steps for weave in getattr(step, "weaves", ())]
        draws = loop_draws(reading, claimed_steps(reading))
        moving += walks(reading, undrawn(model, draws), self._start)
        self._shapes = {rv.name: lengths(rv) for rv in model.free_RVs}
        self._loop = Loop(reading, draws, moving, self._start, model.free_RVs)
        # Compiled once, before there are threads.
        rng = np.random.default_rng(0)
        self._run(rng, self._begun(rng), 1)

    def begin(self, rng: np.random.Generator, tune: int, *, pieces: Pieces) -> State:
        """Return a state, after the draws that tune it."""
        with self._lock:  # of functions that are not for threads
            state = self._begun(rng)

        def learn(draws: int, first: int) -> np.ndarray:
            rows, learnt = self._run(rng, state, draws)
            for layout, walk, own in zip(self._loop.moving, state.walks, learnt, strict=True):
                walk.update(self._loop.thetas(layout, rows), *own)
            return rows[:, : self._loop.size]

        warm_up(tune, pieces, learn, state.rounds)
        return state

    def _begun(self, rng: np.random.Generator) -> State:
        point, loop = self._start, self._loop
        for step, own in zip(self._steps, rng.spawn(len(self._steps)), strict=True):
            step.setup_chain(own, 0, 0)
            point, _ = step.step(point)
        learning = [weave.walk() for weave in loop.moving]
        turns = np.zeros(len(learning), np.int64)
        return State(loop.theta(point), learning, np.ones(1, np.int64), turns, loop.read_data())

    def _run(self, rng, state: State, draws: int):
        entries = sum(math.prod(shape) for shape in self._shapes.values())
        out, loop = np.empty((draws, self._loop.size + entries)), self._loop
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
        rows, _ = self._run(rng, state, draws)
        return state, rows[:, self._loop.size :]

    def posterior(self, rows: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return draws by name."""
        ends = np.cumsum([math.prod(shape) for shape in self._shapes.values()])
        parts = np.split(rows, ends[:-1], axis=-1)
        pairs = zip(self._shapes.items(), parts, strict=True)
        return {name: part.reshape(*rows.shape[:-1], *shape) for (name, shape), part in pairs}


def _plan(rung: str, reading: Reading) -> Plan:
    on = reading if rung == AS_WRITTEN else collapsed(reading, rung)
    loop_draws(on, claimed_steps(on))
    size = sum(math.prod(lengths(rv)) for rv in on.model.free_RVs)
    cost = {"loop": 1.0, "loop, entry": float(size)}
    return Plan.costing(cost, partial(_sample, on))


@once
def _chain(reading: Reading) -> StepsChain:
    stage("Compiling")
    return StepsChain(reading)


def _sample(reading: Reading, **kwargs: Any) -> DataTree:
    return run(reading, _NAME, _chain(reading), "rounds", **kwargs)


ROUTES.add(Route(_NAME, AS_WRITTEN, partial(_plan, AS_WRITTEN), ARGUMENTS))
ROUTES.add(
    Route(f"{_NAME}, on the statistics", "statistics", partial(_plan, "statistics"), ARGUMENTS)
)
