"""Moves of the parameters that carry records along with them (interweaving)."""

import math
from collections.abc import Callable

import numpy as np

from pymc_dp.kernels import jit, part


@part
def propose_along(rng, theta, axes, scales, k):
    """Propose theta along an axis, a column of `axes`; without columns these are coordinates."""
    step = scales[k] * rng.standard_normal()
    new_theta = theta.copy()
    if axes.shape[1]:
        new_theta += step * axes[:, k]
    else:
        new_theta[k] += step
    return new_theta


def make_moves(couple: Callable, prior: Callable, read: Callable, log_density: Callable):
    """Return moves of theta, one axis after the other, with the records carried along.

    The records' random numbers are held fixed, and a move is accepted on the releases and the prior
    alone: the density of the records cancels against the Jacobian (Yu & Meng 2011).

    `read` computes a `state` from the records, and `log_density` turns it into the log density of
    the releases.
    """

    @part
    def moves_of(rng, x, theta, env, state, axes, scales, count, turn, tried, moved):
        (log_prior,) = prior(theta, *env)
        now = log_prior.item() + log_density(state)
        for t in range(turn, turn + count):
            k = t % scales.size
            tried[k] += 1
            new_theta = propose_along(rng, theta, axes, scales, k)
            (log_prior,) = prior(new_theta, *env)
            if not log_prior.item() > -math.inf:
                continue
            new_x = couple(rng, theta, new_theta, *x, *env)
            new_state = read(new_theta, new_x, env)
            new = log_prior.item() + log_density(new_state)
            if math.log(rng.random()) < new - now:
                theta, x, state, now = new_theta, new_x, new_state, new
                moved[k] += 1
        return x, theta, state

    return moves_of


def make_carried(back, values, couple, density, prior) -> Callable:
    """Return moves of theta and of the variables x that it carries along.

    Parameters
    ----------
    back : ``(theta, *env) -> x``, the current values of the carried variables
    values : ``(theta, *x, *env) -> arrays``, the values of them that are returned
    density : ``(theta, *x, *env) -> (float,)``, log density of all variables that depend on x
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
        """Return values of the carried variables, theta, and the moves tried and taken by axis."""
        tried, moved = np.zeros(scales.size), np.zeros(scales.size)
        x = back(theta, *env)
        state = read(theta, x, env)
        x, theta, _ = moves_of(rng, x, theta, env, state, axes, scales, count, turn, tried, moved)
        return values(theta, *x, *env), theta, tried, moved

    return carried


def make_carried_each(back, values, couple, terms, choose) -> Callable:
    """Return moves of n entries at once, each with the variables that it carries along.

    Each entry is accepted or rejected on its own. Theta holds n entries of one variable after the
    other; given all else, the variables of entry i are independent of those of other entries.
    ``terms(theta, *x, *env) -> (values,)`` are n log densities, of the variables that depend on
    entry i of theta, except the carried ones. Other arguments are as in `make_carried`.
    """

    @jit
    def carried_each(rng, theta, env, axes, scales, count, turn):
        """Return values of the carried variables, theta, and the moves tried and taken by entry."""
        tried, moved = np.zeros(scales.size), np.zeros(scales.size)
        x = back(theta, *env)
        (now,) = terms(theta, *x, *env)
        now = now.copy()
        n = now.size
        mask = np.empty(n, dtype=np.bool_)
        for t in range(turn, turn + count):
            first = t % (theta.size // n) * n  # first entry of the variable that moves
            new_theta = theta.copy()
            for i in range(first, first + n):
                new_theta[i] += scales[i] * rng.standard_normal()
            new_x = couple(rng, theta, new_theta, *x, *env)
            (new,) = terms(new_theta, *new_x, *env)
            for i in range(n):
                mask[i] = math.log(rng.random()) < new[i] - now[i]
                tried[first + i] += 1
                if mask[i]:
                    now[i] = new[i]
                    moved[first + i] += 1
                else:
                    new_theta[first + i] = theta[first + i]
            x, theta = choose(mask, *new_x, *x), new_theta
        return values(theta, *x, *env), theta, tried, moved

    return carried_each
