"""Sweeps over confidential records, and interweaving moves of their parameters.

What a model is made of comes in as compiled functions, `RecordFunctions`; nothing here knows PyMC.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pymc_dp.kernels import jit, part

CARRIED, GIVEN = 0, 1  # moves of theta with the records, and given them


class RecordFunctions(NamedTuple):
    """Compiled functions of the parameters `theta`, the records `x` and further inputs `env`.

    Records and `env` are tuples of arrays; `sums` is a vector of sums over records.

    Attributes
    ----------
    propose : ``(rng, theta, *env) -> records``, independent draws from their law
    maps : ``(theta, *x, *env) -> (values,)``, terms of the sums, one row for each sum; NaN in the
        first row for a record that cannot be held, or whose law has no such parameters
    public : ``(theta, *env) -> (public,)``, what `density` needs besides the sums
    density : ``(sums, public) -> float``, log density of the releases
    choose : ``(mask, *new, *x) -> records``, the new ones where the mask is set
    couple : ``(rng, theta, new_theta, *x, *env) -> records``, the same noise under other parameters
    prior : ``(theta, *env) -> (float,)``, log density of all that depends on theta but the records
    """

    propose: Any
    maps: Any
    public: Any
    density: Any
    choose: Any
    couple: Any
    prior: Any


@part
def sum_rows(values):
    """Sum each row."""
    sums = np.empty(values.shape[0])
    for j in range(values.shape[0]):
        sums[j] = values[j].sum()
    return sums


@part
def count_refused(values):
    """Count the records that cannot be taken, whatever the releases."""
    refused = 0
    for i in range(values.shape[1]):
        refused += values[0, i] != values[0, i]
    return refused


def make_accept_each(density: Callable) -> Callable:
    """Return the sweep over records for a density of the releases given sums."""

    @jit
    def accept_each(rng, current, proposed, sums, public, mask):
        """Accept or reject the proposal of each record in turn, in O(1) each.

        `current` and `proposed` hold the terms of the sums, one row for each sum. Changes `sums`
        and `current`, and sets `mask` where a proposal was accepted. Returns the number of accepted
        proposals and the lowest log acceptance ratio, -inf where a proposal makes the releases
        impossible; NaN where the density of the releases is, at the start.
        """
        d, n = current.shape
        trial = np.empty(d)
        now = density(sums, public)
        accepted = 0
        lowest = 0.0 if now == now else now
        for i in range(n):
            for j in range(d):
                trial[j] = sums[j] + (proposed[j, i] - current[j, i])
            new = density(trial, public)
            step = new - now
            holds = proposed[0, i] == proposed[0, i]
            if holds and step < lowest:
                lowest = step
            # As exp(t) >= 1 + t, most need no exp; a branch on the sign would be unpredictable.
            u = rng.random()
            take = holds and (u < 1.0 + step or u < math.exp(step))
            mask[i] = take
            if take:
                for j in range(d):
                    sums[j] = trial[j]
                    current[j, i] = proposed[j, i]
                now = new
                accepted += 1
        return accepted, lowest

    return accept_each


class Sweep(NamedTuple):
    """One way to compute the density of the releases, and to sweep over the records with it.

    What is kept of the records beside them is `state`, which ``read(theta, x, env)`` computes from
    them, ``sweep(rng, x, theta, env, state, seen)`` changes along with them, and
    ``log_density(state)`` turns into the log density of the releases. `seen` has a row for each
    block of records: what `note` keeps.
    """

    read: Callable
    log_density: Callable
    sweep: Callable


ACCEPTED, LOWEST, REFUSED = range(3)  # columns of what is seen of sweeps


@part
def note(seen, accepted, lowest, refused):
    """Take in the accepted proposals, the lowest log ratio, and the proposals ruled out by `maps`.

    A ratio that is NaN stays.
    """
    seen[0, ACCEPTED] += accepted
    seen[0, REFUSED] += refused
    if lowest < seen[0, LOWEST] or lowest != lowest:
        seen[0, LOWEST] = lowest


def by_sums(pieces: RecordFunctions) -> Sweep:
    """Return sweeps in which a proposal changes sums over the records."""
    propose, maps, public_of, density, choose = pieces[:5]
    accept_each = make_accept_each(density)

    @part
    def read(theta, x, env):
        (values,) = maps(theta, *x, *env)
        (public,) = public_of(theta, *env)
        return values, public

    @part
    def log_density(state):
        values, public = state
        sums = sum_rows(values)
        return density(sums, public) if sums[0] == sums[0] else math.nan

    @part
    def sweep(rng, x, theta, env, state, seen):
        values, public = state
        new = propose(rng, theta, *env)
        (proposed,) = maps(theta, *new, *env)
        refused = count_refused(proposed)
        mask = np.empty(values.shape[1], dtype=np.bool_)
        took, low = accept_each(rng, values, proposed, sum_rows(values), public, mask)
        note(seen, took, low, refused)
        return choose(mask, *new, *x), state

    return Sweep(read, log_density, sweep)


def in_full(pieces: RecordFunctions) -> Sweep:
    """Return sweeps for statistics that are computed afresh for each proposal.

    Here `density` is ``(theta, *x, *env) -> (float,)`` and `choose` is
    ``(i, *new, *x) -> records`` with record i replaced. Of `maps` only the NaN count.
    """
    propose, maps, _, density, choose = pieces[:5]

    @part
    def read(theta, x, env):
        (value,) = density(theta, *x, *env)
        (held,) = maps(theta, *x, *env)
        return value.item() + 0.0 * held.sum()

    @part
    def log_density(state):
        return state

    @part
    def sweep(rng, x, theta, env, state, seen):
        new = propose(rng, theta, *env)
        (held,) = maps(theta, *new, *env)
        now = state
        accepted = 0
        lowest = 0.0 if now == now else now
        for i in range(held.shape[1]):
            trial = choose(np.asarray(i), *new, *x)
            (value,) = density(theta, *trial, *env)
            step = value.item() - now + 0.0 * held[0, i]
            if step < lowest:
                lowest = step
            if rng.random() < math.exp(min(step, 0.0)):
                x = trial
                now = value.item()
                accepted += 1
        note(seen, accepted, lowest, count_refused(held))
        return x, now

    return Sweep(read, log_density, sweep)


@part
def beside(rng, theta, axes, scales, k):
    """Propose theta along an axis, a column of `axes`; without columns these are coordinates."""
    step = scales[k] * rng.standard_normal()
    there = theta.copy()
    if axes.shape[1]:
        there += step * axes[:, k]
    else:
        there[k] += step
    return there


def make_moves(couple: Callable, prior: Callable, read: Callable, log_density: Callable):
    """Return moves of theta, one axis after the other, with the records carried along.

    Their noise is held fixed, and it is accepted on the releases and the prior alone: the density
    of the records cancels against the Jacobian (Yu & Meng 2011).

    What is kept of the records beside them is `state`, which `read` computes from them and
    `log_density` turns into the log density of the releases.
    """

    @part
    def moves_of(rng, x, theta, env, state, axes, scales, count, turn, tried, moved):
        (log_prior,) = prior(theta, *env)
        now = log_prior.item() + log_density(state)
        for t in range(turn, turn + count):
            k = t % scales.size
            tried[k] += 1
            there = beside(rng, theta, axes, scales, k)
            (log_prior,) = prior(there, *env)
            if not log_prior.item() > -math.inf:
                continue
            other = couple(rng, theta, there, *x, *env)
            other_state = read(there, other, env)
            then = log_prior.item() + log_density(other_state)
            if math.log(rng.random()) < then - now:
                theta, x, state, now = there, other, other_state, then
                moved[k] += 1
        return x, theta, state

    return moves_of


def make_carried(back, values, couple, density, prior) -> Callable:
    """Return moves of theta and of what it carries along.

    Parameters
    ----------
    back : ``(theta, *env) -> records``, what is carried, as it is
    values : ``(theta, *x, *env) -> arrays``, what is to be returned of it
    density : ``(theta, *x, *env) -> (float,)``, log density of all that depends on it
    couple, prior : see `RecordFunctions`
    """

    @part
    def read(theta, x, env):
        (value,) = density(theta, *x, *env)
        return value.item()

    @part
    def log_density(state):
        return state

    moves_of = make_moves(couple, prior, read, log_density)

    @jit
    def carried(rng, theta, env, axes, scales, count, turn):
        """Return values of what is carried, theta, and the moves tried and taken by axis."""
        tried, moved = np.zeros(scales.size), np.zeros(scales.size)
        x = back(theta, *env)
        state = read(theta, x, env)
        x, theta, _ = moves_of(rng, x, theta, env, state, axes, scales, count, turn, tried, moved)
        return values(theta, *x, *env), theta, tried, moved

    return carried


def make_carried_each(back, values, couple, terms, choose) -> Callable:
    """Return moves of n entries at once, each with what it carries, and each taken or not.

    Theta holds n entries of one variable after the other; given all else, entry i of everything is
    independent of the others. ``terms(theta, *x, *env) -> (values,)``: n log densities, of what
    depends on entry i of theta but what it carries. The rest as in `make_carried`.
    """

    @jit
    def carried_each(rng, theta, env, axes, scales, count, turn):
        """Return values of what is carried, theta, and the moves tried and taken by entry."""
        tried, moved = np.zeros(scales.size), np.zeros(scales.size)
        x = back(theta, *env)
        (now,) = terms(theta, *x, *env)
        now = now.copy()
        n = now.size
        mask = np.empty(n, dtype=np.bool_)
        for t in range(turn, turn + count):
            first = t % (theta.size // n) * n  # of the variable whose turn it is
            there = theta.copy()
            for i in range(first, first + n):
                there[i] += scales[i] * rng.standard_normal()
            other = couple(rng, theta, there, *x, *env)
            (then,) = terms(there, *other, *env)
            for i in range(n):
                mask[i] = math.log(rng.random()) < then[i] - now[i]
                tried[first + i] += 1
                if mask[i]:
                    now[i] = then[i]
                    moved[first + i] += 1
                else:
                    there[first + i] = theta[first + i]
            x, theta = choose(mask, *other, *x), there
        return values(theta, *x, *env), theta, tried, moved

    return carried_each


def make_sweeps(pieces: RecordFunctions, how: Sweep) -> Callable:
    """Return the function that sweeps over the records, with interweaving moves of theta."""
    read, log_density, sweep = how
    moves_of = make_moves(pieces.couple, pieces.prior, read, log_density)

    @jit
    def sweeps(rng, x, theta, env, axes, scales, count, moves, turn):
        """Return records, theta, accepted proposals, lowest log ratio, moves by axis, and refusals.

        Refusals are the proposals that `maps` rules out, whatever the releases.
        Of the moves, `turn` is the number of those made before: they take the axes in turn.
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
    gather : ``(*x, *env) -> (sums,)``, what `law` needs of the records, if it does without them
    law : ``(theta, sums, *x, *env) -> (float,)``, log density of theta and the records
    collect : ``(theta, *x, *env) -> (row,)``, what is recorded of a draw
    """

    gather: Any
    law: Any
    collect: Any


class Functions(NamedTuple):
    """All of a block of records, or of several, that `make_chain` takes.

    Of several blocks, the records, `env`, `state` and sums are pairs: of the first block, and of
    the others. Their densities and rows of `collect` add up.
    """

    couple: Any
    prior: Any
    how: Sweep
    laws: LawFunctions


def together(first: Functions, others: Functions) -> Functions:
    """Return two blocks of records, independent of each other given theta, as one."""
    couple_x, prior_x, (read_x, density_x, sweep_x), (gather_x, law_x, collect_x) = first
    couple_y, prior_y, (read_y, density_y, sweep_y), (gather_y, law_y, collect_y) = others

    @part
    def couple(rng, theta, there, x, y, of_x, of_y):
        new = couple_x(rng, theta, there, *x, *of_x)
        return new, couple_y(rng, theta, there, *y, *of_y)

    @part
    def prior(theta, of_x, of_y):
        (one,) = prior_x(theta, *of_x)
        (other,) = prior_y(theta, *of_y)
        return (np.asarray(one.item() + other.item()),)

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
    def gather(x, y, of_x, of_y):
        (sums,) = gather_x(*x, *of_x)
        (sums_y,) = gather_y(*y, *of_y)
        return ((sums, sums_y),)

    @part
    def law(theta, sums, x, y, of_x, of_y):
        (one,) = law_x(theta, sums[0], *x, *of_x)
        (other,) = law_y(theta, sums[1], *y, *of_y)
        return (np.asarray(one.item() + other.item()),)

    @part
    def collect(theta, x, y, of_x, of_y):
        (row,) = collect_x(theta, *x, *of_x)
        (row_y,) = collect_y(theta, *y, *of_y)
        return (np.concatenate((row, row_y)),)

    how, laws = Sweep(read, log_density, sweep), LawFunctions(gather, law, collect)
    return Functions(couple, prior, how, laws)


def make_chain(functions: Functions, direct: bool) -> Callable:
    """Return a whole chain: sweeps, moves of theta with the records and given them, in turn.

    Given the records, theta moves by a random walk, too: where the noise is small, these steps are
    the longer ones. `direct` says that the density of the releases depends on theta itself.
    """
    couple, prior, (read, log_density, sweep), (gather, law, collect) = functions
    moves_of = make_moves(couple, prior, read, log_density)

    @jit
    def chain(rng, x, theta, env, axes, scales, counts, turns, seen, out):
        """Fill a row of `out` for each draw.

        `scales` and `turns`, and what is returned of the moves, have a row for each kind of them;
        `counts` is how many rounds there are to a draw, and of moves of each kind to a round.
        Returns records, theta, and the moves that were tried and taken; see `note` for `seen`.
        """
        p = scales.shape[1]
        tried, moved = np.zeros_like(scales), np.zeros_like(scales)
        for i in range(out.shape[0]):
            state = read(theta, x, env)  # anew for each draw: sums in whatever pieces are the same
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
                    there = beside(rng, theta, axes, scales[GIVEN], k)
                    (log_law,) = law(there, sums, *x, *env)
                    then = log_law.item()
                    if not then > -math.inf:
                        continue
                    if direct:
                        there_state = read(there, x, env)
                        then += log_density(there_state)
                    if math.log(rng.random()) < then - now:
                        theta, now = there, then
                        moved[GIVEN, k] += 1
                        if direct:
                            state = there_state
            (row,) = collect(theta, *x, *env)
            out[i] = row
        return x, theta, tried, moved

    return chain
