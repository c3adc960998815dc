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


def make_carry(pieces: RecordFunctions, how: Sweep) -> Callable:
    """Return the move of theta that takes the records along.

    Their noise is held fixed, and it is accepted on the releases and the prior alone: the density
    of the records cancels against the Jacobian (Yu & Meng 2011).
    """
    couple, prior = pieces.couple, pieces.prior
    read, log_density = how.read, how.log_density

    @part
    def carry(rng, x, theta, env, state, now, there):
        (log_prior,) = prior(there, *env)
        if log_prior.item() > -math.inf:
            other = couple(rng, theta, there, *x, *env)
            other_state = read(there, other, env)
            then = log_prior.item() + log_density(other_state)
            if math.log(rng.random()) < then - now:
                return True, other, there, other_state, then
        return False, x, theta, state, now

    return carry


def make_sweeps(pieces: RecordFunctions, how: Sweep) -> Callable:
    """Return the function that sweeps over the records, with interweaving moves of theta."""
    prior, carry = pieces.prior, make_carry(pieces, how)
    read, log_density, sweep = how

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
            (log_prior,) = prior(theta, *env)
            now = log_prior.item() + log_density(state)
            for _ in range(moves):
                k = turn % p
                turn += 1
                tried[k] += 1
                there = beside(rng, theta, axes, scales, k)
                taken, x, theta, state, now = carry(rng, x, theta, env, state, now, there)
                moved[k] += taken
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
    prior, carry = pieces.prior, make_carry(pieces, how)
    read, log_density, sweep = how
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
                (log_prior,) = prior(theta, *env)
                now = log_prior.item() + log_density(state)
                for _ in range(counts[1 + CARRIED] if p else 0):
                    k = turns[CARRIED] % p
                    turns[CARRIED] += 1
                    tried[CARRIED, k] += 1
                    there = beside(rng, theta, axes, scales[CARRIED], k)
                    taken, x, theta, state, now = carry(rng, x, theta, env, state, now, there)
                    moved[CARRIED, k] += taken
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
