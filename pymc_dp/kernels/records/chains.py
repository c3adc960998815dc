"""Chains: sweeps over the records, and moves of their parameters, in one compiled loop."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pymc_dp.kernels import jit, part
from pymc_dp.kernels.records.moves import make_moves, propose_along
from pymc_dp.kernels.records.sweeps import RecordFunctions, Sweep

CARRIED, GIVEN = 0, 1  # moves of theta with the records, and given the records


def make_sweeps(pieces: RecordFunctions, how: Sweep) -> Callable:
    """Return the function that sweeps over the records, with interweaving moves of theta."""
    read, log_density, sweep = how
    moves_of = make_moves(pieces.couple, pieces.prior, read, log_density)

    @jit
    def sweeps(rng, x, theta, env, axes, scales, count, moves, turn):
        """Return records, theta, accepted proposals, lowest log ratio, moves by axis, and refusals.

        Refusals are the proposals that `maps` rules out, whatever the releases. Moves take the axes
        in turn; `turn` is the number of moves made before.
        """
        p = scales.size
        tried = np.zeros(p)
        moved = np.zeros(p)
        seen = np.zeros((1, 3))
        state = read(theta, x, env)
        for _ in range(count):
            x, state = sweep(rng, x, theta, env, state, seen)
            if moves == 0 or p == 0:
                continue
            x, theta, state = moves_of(
                rng, x, theta, env, state, axes, scales, moves, turn, tried, moved
            )
            turn += moves
        accepted, lowest, refused = seen[0]
        return x, theta, accepted, lowest, tried, moved, refused

    return sweeps


class LawFunctions(NamedTuple):
    """Compiled functions of the law of the records; see `RecordFunctions`.

    Attributes
    ----------
    gather : ``(*x, *env) -> (sums,)``, sums over the records, where `law` needs no more of them
    law : ``(theta, sums, *x, *env) -> (float,)``, log density of theta and the records
    collect : ``(theta, *x, *env) -> (row,)``, the recorded values of a draw
    """

    gather: Any
    law: Any
    collect: Any


class Functions(NamedTuple):
    """The functions of a block of records, or of several blocks, that `make_chain` takes.

    For several blocks, the records, `env`, `state` and sums are pairs: those of the first block,
    and those of the other blocks. Densities are added, rows of `collect` are concatenated.
    """

    couple: Any
    prior: Any
    how: Sweep
    laws: LawFunctions


def together(first: Functions, rest: Functions) -> Functions:
    """Return two blocks of records, independent of each other given theta, as one."""
    couple_x, prior_x, (read_x, density_x, sweep_x), (gather_x, law_x, collect_x) = first
    couple_y, prior_y, (read_y, density_y, sweep_y), (gather_y, law_y, collect_y) = rest

    @part
    def couple(rng, theta, new_theta, x, y, env_x, env_y):
        new = couple_x(rng, theta, new_theta, *x, *env_x)
        return new, couple_y(rng, theta, new_theta, *y, *env_y)

    @part
    def prior(theta, env_x, env_y):
        (log_x,) = prior_x(theta, *env_x)
        (log_y,) = prior_y(theta, *env_y)
        return (np.asarray(log_x.item() + log_y.item()),)

    @part
    def read(theta, x, env):
        return read_x(theta, x[0], env[0]), read_y(theta, x[1], env[1])

    @part
    def log_density(state):
        return density_x(state[0]) + density_y(state[1])

    @part
    def sweep(rng, x, theta, env, state, seen):
        new, state_x = sweep_x(rng, x[0], theta, env[0], state[0], seen[:1])
        new_y, state_y = sweep_y(rng, x[1], theta, env[1], state[1], seen[1:])
        return (new, new_y), (state_x, state_y)

    @part
    def gather(x, y, env_x, env_y):
        (sums,) = gather_x(*x, *env_x)
        (sums_y,) = gather_y(*y, *env_y)
        return ((sums, sums_y),)

    @part
    def law(theta, sums, x, y, env_x, env_y):
        (log_x,) = law_x(theta, sums[0], *x, *env_x)
        (log_y,) = law_y(theta, sums[1], *y, *env_y)
        return (np.asarray(log_x.item() + log_y.item()),)

    @part
    def collect(theta, x, y, env_x, env_y):
        (row,) = collect_x(theta, *x, *env_x)
        (row_y,) = collect_y(theta, *y, *env_y)
        return (np.concatenate((row, row_y)),)

    how, laws = Sweep(read, log_density, sweep), LawFunctions(gather, law, collect)
    return Functions(couple, prior, how, laws)


def make_chain(functions: Functions, direct: bool) -> Callable:
    """Return a chain that sweeps over the records, and moves theta with and given the records.

    Theta also moves by a random walk given the records, since this takes longer steps where the
    noise is small. `direct` says that the density of the releases depends on theta itself.
    """
    couple, prior, (read, log_density, sweep), (gather, law, collect) = functions
    moves_of = make_moves(couple, prior, read, log_density)

    @jit
    def chain(rng, x, theta, env, axes, scales, counts, turns, seen, out):
        """Fill a row of `out` for each draw.

        `scales` and `turns` have a row for each kind of move; `counts` is the number of rounds in a
        draw, and the numbers of moves of each kind in a round. Returns records, theta, and the
        moves that were tried and taken, a row for each kind; see `sweeps.note` for `seen`.
        """
        p = scales.shape[1]
        tried, moved = np.zeros_like(scales), np.zeros_like(scales)
        for i in range(out.shape[0]):
            state = read(
                theta, x, env
            )  # afresh for each draw, so that draws do not depend on how a run is split
            for _ in range(counts[0]):
                x, state = sweep(rng, x, theta, env, state, seen)
                if p and counts[1 + CARRIED]:
                    x, theta, state = moves_of(
                        rng, x, theta, env, state, axes, scales[CARRIED], counts[1 + CARRIED],
                        turns[CARRIED], tried[CARRIED], moved[CARRIED],
                    )  # fmt: skip
                    turns[CARRIED] += counts[1 + CARRIED]
                (sums,) = gather(*x, *env)
                (log_law,) = law(theta, sums, *x, *env)
                now = log_law.item() + (log_density(state) if direct else 0.0)
                for _ in range(counts[1 + GIVEN] if p else 0):
                    k = turns[GIVEN] % p
                    turns[GIVEN] += 1
                    tried[GIVEN, k] += 1
                    new_theta = propose_along(rng, theta, axes, scales[GIVEN], k)
                    (log_law,) = law(new_theta, sums, *x, *env)
                    new = log_law.item()
                    if not new > -math.inf:
                        continue
                    if direct:
                        new_state = read(new_theta, x, env)
                        new += log_density(new_state)
                    if math.log(rng.random()) < new - now:
                        theta, now = new_theta, new
                        moved[GIVEN, k] += 1
                        if direct:
                            state = new_state
            (row,) = collect(theta, *x, *env)
            out[i] = row
        return x, theta, tried, moved

    return chain
