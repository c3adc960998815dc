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
    them, `sweep` changes along with them, and ``log_density(state)`` turns into the log density of
    the releases.
    """

    read: Callable
    log_density: Callable
    sweep: Callable


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
    def sweep(rng, x, theta, env, state, mask):
        values, public = state
        new = propose(rng, theta, *env)
        (proposed,) = maps(theta, *new, *env)
        refused = count_refused(proposed)
        took, low = accept_each(rng, values, proposed, sum_rows(values), public, mask)
        return choose(mask, *new, *x), state, took, low, refused

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
    def sweep(rng, x, theta, env, state, mask):
        new = propose(rng, theta, *env)
        (held,) = maps(theta, *new, *env)
        now = state
        accepted = 0
        lowest = 0.0 if now == now else now
        for i in range(mask.size):
            trial = choose(np.asarray(i), *new, *x)
            (value,) = density(theta, *trial, *env)
            step = value.item() - now + 0.0 * held[0, i]
            if step < lowest:
                lowest = step
            if rng.random() < math.exp(min(step, 0.0)):
                x = trial
                now = value.item()
                accepted += 1
        return x, now, accepted, lowest, count_refused(held)

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
        accepted = refused = 0
        lowest = 0.0
        tried = np.zeros(p)
        moved = np.zeros(p)
        state = read(theta, x, env)
        mask = np.empty(len(x[0]), dtype=np.bool_)
        for _ in range(count):
            x, state, took, low, never = sweep(rng, x, theta, env, state, mask)
            accepted += took
            refused += never
            lowest = low if low < lowest or low != low else lowest
            if moves == 0 or p == 0:
                continue
            x, theta, state = moves_of(
                rng, x, theta, env, state, axes, scales, moves, turn, tried, moved
            )
            turn += moves
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


def make_chain(pieces: RecordFunctions, how: Sweep, laws: LawFunctions, direct: bool) -> Callable:
    """Return a whole chain: sweeps, moves of theta with the records and given them, in turn.

    Given the records, theta moves by a random walk, too: where the noise is small, these steps are
    the longer ones. `direct` says that the density of the releases depends on theta itself.
    """
    read, log_density, sweep = how
    moves_of = make_moves(pieces.couple, pieces.prior, read, log_density)
    gather, law, collect = laws

    @jit
    def chain(rng, x, theta, env, axes, scales, counts, turns, out):
        """Fill a row of `out` for each draw.

        `scales` and `turns`, and what is returned of the moves, have a row for each kind of them;
        `counts` is how many rounds there are to a draw, and of moves of each kind to a round.
        Returns records, theta, lowest log ratio, moves that were tried and taken, and refusals.
        """
        p = scales.shape[1]
        tried, moved = np.zeros_like(scales), np.zeros_like(scales)
        refused, lowest = 0, 0.0
        mask = np.empty(len(x[0]), dtype=np.bool_)
        for i in range(out.shape[0]):
            state = read(theta, x, env)  # anew for each draw: sums in whatever pieces are the same
            for _ in range(counts[0]):
                x, state, _, low, never = sweep(rng, x, theta, env, state, mask)
                refused += never
                lowest = low if low < lowest or low != low else lowest
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
        return x, theta, lowest, tried, moved, refused

    return chain
