"""Routes that run the steps in one compiled loop; see `step_methods.loop`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from pymc_dp.graphs.declined import Declined, once
from pymc_dp.graphs.shapes import lengths
from pymc_dp.ladder.collapse import collapsed
from pymc_dp.reading.model import Reading
from pymc_dp.reading.tags import is_tagged
from pymc_dp.routes import AS_WRITTEN, ROUTES, Plan, Route
from pymc_dp.routes.chain import ARGUMENTS
from pymc_dp.routes.given import public
from pymc_dp.routes.warm_up import TunedChain, TunedState, run_tuned
from pymc_dp.step_methods import claimed_steps, kept_steps
from pymc_dp.step_methods.base import LoopDraw
from pymc_dp.step_methods.loop import Loop, loop_draws, undrawn, walks

_NAME = "steps in one loop"


@dataclass
class State(TunedState):
    """The state of a chain: what it has learnt, the parameters q, and arrays of data."""

    q: np.ndarray
    data: list[np.ndarray]


class StepsChain(TunedChain):
    """The chain for one model."""

    def __init__(self, reading: Reading):
        model = reading.model
        super().__init__(model)
        self._steps = kept_steps(reading)
        moving = [weave for step in self._steps for weave in getattr(step, "weaves", ())]
        draws = [
            draw._replace(inputs=[*draw.inputs, *draw.chosen(self._steps)])
            for draw in _draws(reading)
        ]
        moving += walks(reading, undrawn(model, draws), self._start)
        shown = [model[name] for name in public(reading)]
        self._record(shown)
        self.loop = Loop(reading, draws, moving, self._start, shown)
        self.size = self.loop.size
        self.parts = [place for _, place, _ in self.loop.slices]

    def begun(self, rng: np.random.Generator) -> State:
        """Return a state after one call of each step."""
        point, loop = self._start, self.loop
        for step, chain_rng in zip(self._steps, rng.spawn(len(self._steps)), strict=True):
            step.setup_chain(chain_rng, 0, 0)
            point, _ = step.step(point)
        learning = [weave.walk() for weave in loop.moving]
        counts, turns = np.ones(1, np.int64), np.zeros(len(learning), np.int64)
        return State(learning, counts, turns, loop.theta(point), loop.read_data())

    def learn(self, state: State, rows: np.ndarray, counts: list, late: np.ndarray) -> None:
        """See `TunedChain.learn`."""
        pairs = zip(counts[::2], counts[1::2], strict=True)
        for weave, walk, tried_and_taken in zip(self.loop.moving, state.walks, pairs, strict=True):
            walk.update(self.loop.thetas(weave, rows), *tried_and_taken)

    def run(self, rng: np.random.Generator, state: State, draws: int):
        """See `TunedChain.run`."""
        out, loop = self._room(draws), self.loop
        pairs = zip(loop.moving, state.walks, strict=True)
        counts = np.array([weave.count(walk) for weave, walk in pairs], np.int64)
        seen = [x for walk in state.walks for x in np.zeros((2, walk.scales.size))]
        learnt = [
            (walk.axes, walk.scales, *tried_and_taken)
            for walk, *tried_and_taken in zip(state.walks, seen[::2], seen[1::2], strict=True)
        ]
        loop.run(rng, state.q, state.sweeps, counts, state.turns, learnt, out, state.data)
        return out, seen


@once
def _draws(reading: Reading) -> list[LoopDraw]:
    return loop_draws(reading, claimed_steps(reading))


def _plan(rung: str, reading: Reading) -> Plan:
    return loop_plan(collapsed(reading, "statistics") if rung == "statistics" else reading, _NAME)


def loop_plan(target: Reading, name: str) -> Plan:
    """Return the plan of the loop on a model."""
    if tagged := [rv.name for rv in target.model.free_RVs if is_tagged(rv)]:
        raise Declined(f"it does not cover the records {tagged[0]!r}")
    _draws(target)
    size = sum(math.prod(lengths(rv)) for rv in target.model.free_RVs)
    cost = {"loop": 1.0, "loop, entry": float(size)}
    return Plan.costing(cost, partial(run_tuned, target, StepsChain, name))


# Routes that integrate more out mix better: the handicap says how much faster this has to be.
for _rung, _where, _handicap in (
    (AS_WRITTEN, "", 1.0),
    ("records", ", on the counts", 3.0),
    ("statistics", ", on the statistics", 10.0),
):
    _route = Route(_NAME + _where, _rung, partial(_plan, _rung), ARGUMENTS, handicap=_handicap)
    ROUTES.add(_route)
