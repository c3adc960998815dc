"""A small hierarchy as `kernels.slices` is given one: densities of q, and its prior."""

import math
from typing import Any, NamedTuple

import numpy as np
from numba import carray, cfunc, njit

from pymc_dp.kernels.pointers import SIGNATURE
from pymc_dp.kernels.slices import Mixed

J, V, B = 3, 0.3, 0.7
SIZE = 3 + 3 * J  # mu, log tau, one parameter by itself; theta, log w, z
FACTOR = np.array([[0.5, 0.0], [0.3, 0.4], [-0.2, 0.5]])
EACH, JOINT = 0, FACTOR.shape[1]
ENDS = {EACH: np.array([3, 3 + J]), JOINT: np.array([3])}
MIXED = {k: Mixed(*(np.array([i]) for i in (3 + J, J, k))) for k in (EACH, JOINT)}
KNOWN = Mixed(*(np.zeros(0, dtype=np.int64),) * 3)  # w stays as it is


class Pointer(NamedTuple):
    """A compiled function that takes no data."""

    kept: Any

    @property
    def function(self):
        return self.kept.address, np.zeros(0)


def pointer(function):
    """Compile a function of two vectors for kernels.pointers; the code lasts as long as this."""

    def fill(q, size, data, count, out, length):
        return function(carray(q, size), carray(out, length))

    return Pointer(cfunc(SIGNATURE)(fill))


@njit(error_model="numpy")
def normal(x, mean, variance):
    return -0.5 * ((x - mean) ** 2 / variance + math.log(variance))


@njit(error_model="numpy")
def density(q, terms):
    """Log density of a hierarchy of z ~ N(theta, V + w), theta ~ N(mu, tau)."""
    terms[:] = 0.0
    total = normal(q[0], 0.0, 1.0) + normal(q[1], -0.3, 0.25) + normal(q[2], 1.0, 4.0)
    for j in range(3, 3 + J):
        terms[j] = normal(q[j], q[0], math.exp(2.0 * q[1]))
        terms[j] += normal(q[j + 2 * J], q[j], V + math.exp(q[j + J]))
        total += terms[j]
    return total


@njit(error_model="numpy")
def joint_density(q, terms):
    """The same with z ~ N(mu + q[2], FF' + w): theta has no part in it."""
    terms[:] = 0.0
    total = normal(q[0], 0.0, 1.0) + normal(q[1], -0.3, 0.25) + normal(q[2], 1.0, 4.0)
    covariance = FACTOR @ FACTOR.T + np.diag(np.exp(q[3 + J : 3 + 2 * J]))
    gap = q[3 + 2 * J :] - q[0] - q[2]
    total -= 0.5 * np.log(np.linalg.det(covariance))
    return total - 0.5 * gap @ np.linalg.solve(covariance, gap)


@njit(error_model="numpy")
def given_the_rest(q, j):
    """Mean and variance of theta given z and all else."""
    known, prior = V + math.exp(q[j + J]), math.exp(2.0 * q[1])
    share = prior / (prior + known)
    return q[0] + share * (q[j + 2 * J] - q[0]), share * known


@njit(error_model="numpy")
def standard_density(q, terms):
    """The first, with theta standardised given all else."""
    terms[:] = 0.0
    total = normal(q[0], 0.0, 1.0) + normal(q[1], -0.3, 0.25) + normal(q[2], 1.0, 4.0)
    for j in range(3, 3 + J):
        total += normal(q[j], 0.0, 1.0)
        total += normal(q[j + 2 * J], q[0], V + math.exp(q[j + J]) + math.exp(2.0 * q[1]))
    return total


@njit(error_model="numpy")
def standard_noise(q, given):
    noise(q, given)
    for j in range(J):
        mean, variance = given_the_rest(q, 3 + j)
        given[2 * J + j] = mean + math.sqrt(variance) * q[3 + j]
    return 0.0


@njit(error_model="numpy")
def noise(q, given):
    given[:J] = q[3 + 2 * J :]
    given[J : 2 * J] = B
    given[2 * J : 3 * J] = q[3 : 3 + J]
    given[3 * J :] = V
    return 0.0


@njit(error_model="numpy")
def joint_noise(q, given):
    given[:J] = q[3 + 2 * J :]
    given[J : 2 * J] = B
    given[2 * J : 3 * J] = q[0] + q[2]
    given[3 * J :] = FACTOR.ravel()
    return 0.0


def prior(rng, size, joint):
    q = np.empty((size, SIZE))
    q[:, 0] = rng.normal(0.0, 1.0, size)
    q[:, 1] = rng.normal(-0.3, 0.5, size)
    q[:, 2] = rng.normal(1.0, 2.0, size)
    q[:, 3 : 3 + J] = q[:, :1] + np.exp(q[:, 1:2]) * rng.normal(size=(size, J))
    w = rng.exponential(2.0 * B**2, size=(size, J))
    q[:, 3 + J : 3 + 2 * J] = np.log(w)
    mean, statistics = q[:, 3 : 3 + J], np.sqrt(V) * rng.normal(size=(size, J))
    if joint:
        mean, statistics = q[:, :1] + q[:, 2:3], rng.normal(size=(size, JOINT)) @ FACTOR.T
    q[:, 3 + 2 * J :] = mean + statistics + np.sqrt(w) * rng.normal(size=(size, J))
    return q


@njit(error_model="numpy")
def surrogate(q, terms):
    """The density with other variances of z."""
    total = density(q, terms)
    for j in range(3, 3 + J):
        change = normal(q[j + 2 * J], q[j], 2.0 * V + math.exp(q[j + J]))
        change -= normal(q[j + 2 * J], q[j], V + math.exp(q[j + J]))
        terms[j] += change
        total += change
    return total


@njit(error_model="numpy")
def correction(q, unused):
    """What the surrogate lacks."""
    return density(q, unused) - surrogate(q, unused)
