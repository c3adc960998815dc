"""Sweeps over confidential records, each record proposed from its law and accepted in turn.

A model comes in as compiled functions, `RecordFunctions`: nothing here knows PyMC.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pymc_dp.kernels import jit, part


class RecordFunctions(NamedTuple):
    """Compiled functions of the parameters `theta`, the records `x` and further inputs `env`.

    Records and `env` are tuples of arrays; `sums` is a vector of sums over records.

    Attributes
    ----------
    propose : ``(rng, theta, *env) -> records``, independent draws from their law
    maps : ``(theta, *x, *env) -> (values,)``, terms of the sums, one row for each sum; NaN in the
        first row for a record that is impossible, or under parameters that its law does not have
    public : ``(theta, *env) -> (public,)``, what `density` needs besides the sums
    density : ``(sums, public) -> float``, log density of the releases
    choose : ``(mask, *new, *x) -> records``, the new records where the mask is set
    couple : ``(rng, theta, new_theta, *x, *env) -> records``, the records that the same random
        numbers give under other parameters
    prior : ``(theta, *env) -> (float,)``, log density of all variables that depend on
        theta, except the records
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
    """Count the records that are impossible, whatever the releases."""
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
        proposals and the lowest log acceptance ratio: -inf if a proposal makes the releases
        impossible, NaN if the density of the releases is NaN at the start.
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
            # exp(t) >= 1 + t: most proposals need no exp. A branch on the sign would be
            # mispredicted.
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

    `state` is computed from the records by ``read(theta, x, env)``, changed along with them by
    ``sweep(rng, x, theta, env, state, seen)``, and turned into the log density of the releases by
    ``log_density(state)``. `seen` has a row of statistics for each block of records, see `note`.
    """

    read: Callable
    log_density: Callable
    sweep: Callable


ACCEPTED, LOWEST, REFUSED = range(3)  # columns of `seen`


@part
def note(seen, accepted, lowest, refused):
    """Add a sweep to `seen`: accepted proposals, lowest log ratio, proposals ruled out by `maps`.

    A lowest ratio that is NaN stays NaN.
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
    ``(i, *new, *x) -> records`` with record i replaced. `maps` only tells, by NaN, which records
    are impossible.
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
