"""Records and their parameters in one compiled loop; see `kernels.records.chains.make_chain`.

Several groups of records, independent of each other given the parameters, are moved in one loop.

A round is a sweep over the records, moves of the parameters that take the records along, and moves
of the parameters given the records. The warm-up tunes, from the draws alone:

- step sizes, along each axis and for each kind of moves, to the acceptance rate of a random walk;
- the axes, to those along which the draws are uncorrelated (`WalkAdaptation`);
- the number of moves of a kind in a round: two along each axis, but a single move if their mean
  squared jump is less than a tenth of the other kind's. Moves as costly as a sweep, because they
  draw random numbers or add up all records, are made once along each axis, and a single one if the
  other kind's jumps are longer. Moves given sums over the records take no time beside a sweep of
  many records: there are up to ten along each axis, and costly moves of the other kind are then
  made more than once only if their mean squared jump is ten times as long;
- the number of rounds in a draw (`routes.warm_up`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, combinations

import arviz_base
import numpy as np
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, walk
from pytensor.tensor.variable import TensorVariable

from pymc_dp.graphs.declined import Declined, once
from pymc_dp.graphs.draws import per_draw
from pymc_dp.graphs.shapes import known_shape, value_lengths
from pymc_dp.kernels.records.chains import CARRIED, GIVEN
from pymc_dp.reading.factors import parameters
from pymc_dp.reading.groups import Records, blocks
from pymc_dp.reading.model import Reading
from pymc_dp.reading.privacy import stated_loss
from pymc_dp.reading.tags import is_tagged
from pymc_dp.routes import ROUTES, Plan, Route
from pymc_dp.routes.chain import ARGUMENTS
from pymc_dp.routes.gibbs import sweep
from pymc_dp.routes.given import public
from pymc_dp.routes.warm_up import TunedChain, TunedState, run_tuned
from pymc_dp.step_methods.records import (
    Watch,
    first_records,
    say_what_is_slow,
)
from pymc_dp.step_methods.records.adaptation import WalkAdaptation
from pymc_dp.step_methods.records.checks import check_gaps, checked_blocks
from pymc_dp.step_methods.records.engine import Engine, chained

_NAME = "records in one loop"
_MOST_PARAMETERS = 20  # entries: each move of a parameter computes all records anew
# Passes over the axes in a round, and the least share of the other kind's mean squared jump.
_CHEAP, _COSTLY, _BESIDE_FREE = (2, 0.1), (1, 1.0), (1, 10.0)
_MOST_PASSES, _RECORDS_A_MOVE = 10, 100  # of moves given sums: a fifth of the time of a sweep
_LONGEST_PART = 20  # entries of an expression that is recorded for a deterministic of two blocks
_TRIES = 100  # at drawing first records of all blocks at the same parameters


@dataclass
class State(TunedState):
    """The state of a chain; see `kernels.records.chains.make_chain`."""

    x: tuple
    theta: np.ndarray
    env: tuple[tuple[np.ndarray, ...], ...]
    watches: list[Watch]


class RecordChain(TunedChain):
    """The chain for one model."""

    def __init__(self, reading: Reading):
        model = reading.model
        super().__init__(model)
        tagged = [rv for block in covered(reading) for rv in block.records if is_tagged(rv)]
        groups = checked_blocks(reading, tagged, self._start)
        shown = [model[name] for name in public(reading)]
        self._joint = [rv for rv in shown if rv in model.deterministics and _is_joint(rv, groups)]
        shown = [rv for rv in shown if rv not in self._joint]
        parts = dict.fromkeys(part for rv in self._joint for part in _parts(rv, groups))
        self._parts = {part: part.copy(name=f"part {k}") for k, part in enumerate(parts)}
        shown += self._parts.values()
        recorded = [[rv for rv in shown if _computed(rv, block)] for block in groups]
        elsewhere = {*chain.from_iterable(recorded[1:])}
        recorded[0] = [rv for rv in shown if rv not in elsewhere]
        self._record([*chain.from_iterable(recorded)])
        self._engines = [
            Engine(model, block, self._start, (groups, variables))
            for block, variables in zip(groups, recorded, strict=True)
        ]
        self._chain, self.size = chained(self._engines), self._engines[0].size
        self.parts = [place for _, place, _ in self._engines[0].slices]
        self._losses = [stated_loss(model, block) for block in groups]
        for engine in self._engines:
            say_what_is_slow(engine, interweave=True)

    def begun(self, rng: np.random.Generator) -> State:
        """Return a state whose records are possible given the releases."""
        point = self._start
        theta = self._engines[0].theta(point) + rng.uniform(-1.0, 1.0, self.size)
        for _ in range(_TRIES):
            x, first = [], theta
            for engine in self._engines:
                records, theta = first_records(engine, rng, theta, point)
                x.append(records)
            # All blocks have records of the same parameters.
            if theta is first or (theta == first).all():
                break
        watches = [Watch(*pair) for pair in zip(self._engines, self._losses, strict=True)]
        walks = [WalkAdaptation(self.size), WalkAdaptation(self.size)]
        counts, turns = np.ones(3, np.int64), np.zeros(2, np.int64)
        state = State(walks, counts, turns, tuple(x), theta, self._env(x), watches)
        state.counts[1:] = self._moves(state, theta[None])
        return state

    def learn(self, state: State, rows: np.ndarray, counts: list, late: np.ndarray) -> None:
        """See `TunedChain.learn`."""
        for adaptation, *tried_and_taken in zip(state.walks, *counts, strict=True):
            adaptation.update(rows, *tried_and_taken)
        state.counts[1:] = self._moves(state, late)
        state.env = self._env(state.x)  # with new centers

    def _env(self, x: Sequence) -> tuple[tuple[np.ndarray, ...], ...]:
        """Return further inputs of each block's kernel; sums are centred near means of records."""
        pairs = zip(self._engines, x, strict=True)
        return tuple(
            engine.env(self._start, engine.centers_of(records)) for engine, records in pairs
        )

    def _moves(self, state: State, drawn: np.ndarray) -> np.ndarray:
        """Return the number of moves of each kind in a round."""
        carried, afresh = map(any, zip(*(engine.costly for engine in self._engines), strict=True))
        axes, scales = _learnt(state)
        n, count = sum(engine.block.n for engine in self._engines), scales.shape[1]
        free = 0 if afresh else min(n // _RECORDS_A_MOVE, _MOST_PASSES * count)  # beside a sweep
        costly = _BESIDE_FREE if free > _CHEAP[0] * count else _COSTLY
        how = [costly if carried else _CHEAP, _COSTLY if afresh else _CHEAP]
        passes, least = map(np.array, zip(*how, strict=True))
        moves = passes * count
        if any(engine.fixed for engine in self._engines):
            moves[CARRIED] = 0
        sd = drawn.std(axis=0)
        if (sd > 0.0).all() and sd.size:
            axes = axes if axes.shape[1] else np.eye(sd.size)
            jumps = ((scales * np.linalg.norm(axes / sd[:, None], axis=0)) ** 2).mean(axis=1)
            moves = np.where(jumps < least * jumps[::-1], np.minimum(moves, 1), moves)
        moves[GIVEN] = max(moves[GIVEN], free)  # whatever their jumps
        return moves

    def run(self, rng: np.random.Generator, state: State, draws: int):
        """See `TunedChain.run`."""
        out, seen = self._room(draws), np.zeros((len(self._engines), 3))
        state.x, state.theta, *moves = self._chain(
            rng, state.x, state.theta, state.env, *_learnt(state), state.counts, state.turns,
            seen, out,
        )  # fmt: skip
        for watch, (_, lowest, refused) in zip(state.watches, seen, strict=True):
            watch.look(lowest, int(refused), draws * state.sweeps)
        return out, moves

    def posterior(self, rows: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return draws by name, with deterministics of several blocks computed from their parts."""
        draws = super().posterior(rows, rng)
        parts = {part: draws.pop(str(kept.name)) for part, kept in self._parts.items()}
        if self._joint:
            dataset = arviz_base.dict_to_dataset(draws)
            inputs = {part: part.type() for part in parts}
            values = {
                inputs[part]: x.reshape(-1, *x.shape[2:]).astype(part.dtype)
                for part, x in parts.items()
            }
            for rv, graph in zip(self._joint, graph_replace(self._joint, inputs), strict=True):
                flat = per_draw(dataset, graph, values)
                draws[str(rv.name)] = flat.reshape(*rows.shape[:2], *flat.shape[1:])
        return draws


def _learnt(state: State) -> tuple[np.ndarray, np.ndarray]:
    """Return the axes of both kinds of moves, and the step sizes, a row for each kind."""
    return state.walks[0].axes, np.stack([walk.scales for walk in state.walks])


@once
def covered(reading: Reading) -> list[Records]:
    """Return the blocks of records; decline if the loop does not cover the whole model."""
    model = reading.model
    tagged = [rv for rv in model.free_RVs if is_tagged(rv)]
    if not tagged:
        raise Declined("the confidential values are released one by one, not in sums of records")
    for rv in tagged:
        check_gaps(model, rv)
    record_blocks = blocks(reading, tuple(tagged))
    for first, second in combinations(record_blocks, 2):
        for rv in (*model.basic_RVs, *model.potentials, *model.deterministics):
            if _computed(rv, first) and _computed(rv, second):
                if rv in model.deterministics and _are_short(_parts(rv, record_blocks)):
                    continue
                raise Declined(
                    f"{rv.name!r} is computed from records of several groups, {first.name!r} and "
                    f"{second.name!r}"
                )
    records = {rv for block in record_blocks for rv in block.records}
    moving = {rv for block in record_blocks for rv in parameters(reading, block)}
    extra = [rv for rv in model.free_RVs if rv not in moving | records]
    if extra:
        raise Declined(f"it does not cover {extra[0].name!r}, which is no parameter of the records")
    size = sum(math.prod(value_lengths(model, rv)) for rv in moving)
    if size > _MOST_PARAMETERS:
        raise Declined(
            f"it moves up to {_MOST_PARAMETERS} parameters one by one, and there are {size}"
        )
    return record_blocks


def _computed(rv: TensorVariable, block: Records) -> bool:
    """Whether a variable is among the records of a block, or computed from them."""
    return bool({*block.records} & {*ancestors([rv])})


def _is_joint(rv: TensorVariable, record_blocks: Sequence[Records]) -> bool:
    """Whether a variable is computed from records of several blocks."""
    return sum(_computed(rv, block) for block in record_blocks) > 1


def _parts(rv: TensorVariable, record_blocks: Sequence[Records]) -> list[TensorVariable]:
    """Return the expressions of single blocks that a variable is computed from."""
    joint = partial(_is_joint, record_blocks=record_blocks)
    reached = walk([rv], lambda v: v.owner.inputs if joint(v) else None)
    return [v for v in reached if not joint(v) and any(_computed(v, b) for b in record_blocks)]


def _are_short(parts: Sequence[TensorVariable]) -> bool:
    shapes = [known_shape(part) for part in parts]
    return all(math.prod(n or math.inf for n in shape) <= _LONGEST_PART for shape in shapes)


def _plan(reading: Reading) -> Plan:
    record_blocks = covered(reading)
    cost = Counter({"records, loop": 1.0})
    for block in record_blocks:
        cost.update(sweep(reading, block))
    return Plan.costing(cost, partial(run_tuned, reading, RecordChain, _NAME))


# Marginal routes mix better: this one is taken only if it is expected to be ten times faster.
ROUTES.add(Route(_NAME, "records", _plan, ARGUMENTS, handicap=10.0))
