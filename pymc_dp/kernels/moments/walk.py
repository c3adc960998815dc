"""A move along the ridge of a sum of squares that is known better than its parts."""

import math

import numpy as np

from pymc_dp.kernels import jit

_DECADES = 3.0


@jit
def random_size(rng):
    """Draw the size of a move, log-uniform below 1: which are accepted is not known beforehand."""
    return 10.0 ** (-_DECADES * rng.random())


@jit
def turn(rng, v):
    """Turn v in place by a random angle about a random axis; its last entry stays positive.

    Half of the angles are near a half turn, which takes the other entries to their negatives. The
    length stays. Forth is as probable as back: on the half of the sphere where the last entry
    is positive, which that of the other half is folded onto, the move is symmetric in its measure.
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
