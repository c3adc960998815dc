"""Moves along the ridge of a sum of squares that is known more precisely than its parts."""

import math

import numpy as np

from pymc_dp.kernels import jit

_DECADES = 3.0


@jit
def random_size(rng):
    """Draw the size of a move, log-uniform on [0.001, 1]: no one size suits all posteriors."""
    return 10.0 ** (-_DECADES * rng.random())


@jit
def turn(rng, v):
    """Turn v in place by a random angle about a random axis; its last entry stays positive.

    Half of the angles are near a half turn, which changes the signs of the other entries. The
    length stays. The move is symmetric in the surface measure of the half sphere where the last
    entry is positive, onto which the other half is folded.
    """
    length, along = 0.0, 0.0
    for i in range(v.size):
        length += v[i] * v[i]
    length = math.sqrt(length)
    e = np.empty(v.size)
    for i in range(v.size):
        e[i] = rng.standard_normal()
        along += e[i] * v[i] / length
    across = 0.0
    for i in range(v.size):
        e[i] -= along * v[i] / length
        across += e[i] * e[i]
    across = math.sqrt(across)
    angle = 0.5 * math.pi * random_size(rng)
    if rng.random() < 0.5:
        angle = math.pi - angle
    for i in range(v.size):
        v[i] = math.cos(angle) * v[i] + math.sin(angle) * length * e[i] / across
    v[-1] = abs(v[-1])
