"""Four binary records of one probability, whose sum is released; or two groups of them."""

import math

import numpy as np

from pymc_dp.kernels import njit
from pymc_dp.kernels.records.chains import Functions, LawFunctions, together
from pymc_dp.kernels.records.sweeps import RecordFunctions, by_sums

SCALE = 0.8  # of the noise


@njit(cache=True)
def choose(mask, new, x):
    return (np.where(mask, new, x),)


@njit(cache=True)
def chance(theta):
    return 1.0 / (1.0 + math.exp(-theta[0]))


@njit(cache=True)
def propose_binary(rng, theta, z):
    return ((rng.random(4) < chance(theta)).astype(np.int64),)


@njit(cache=True)
def binary_maps(theta, x, z):
    return (x.reshape(1, 4).astype(np.float64),)


@njit(cache=True)
def binary_public(theta, z):
    return (z,)


@njit(cache=True)
def binary_density(sums, public):
    return -abs(sums[0] - public[0]) / SCALE


@njit(cache=True)
def couple_binary(rng, theta, there, x, z):
    p, q = chance(theta), chance(there)
    moved = x.copy()
    for i in range(4):
        if q >= p and x[i] == 0:
            moved[i] = rng.random() < (q - p) / (1 - p)
        elif q < p and x[i] == 1:
            moved[i] = rng.random() < q / p
    return (moved,)


@njit(cache=True)
def binary_prior(theta, z):
    return (np.asarray(-0.5 * theta[0] ** 2),)


BINARY = RecordFunctions(
    propose_binary, binary_maps, binary_public, binary_density, choose, couple_binary, binary_prior
)


@njit(cache=True)
def gather_binary(x, z):
    return (np.array([x.sum() + 0.0]),)


@njit(cache=True)
def binary_law(theta, sums, x, z):
    p = chance(theta)
    law = sums[0] * math.log(p) + (4.0 - sums[0]) * math.log1p(-p)
    return (np.asarray(law - 0.5 * theta[0] ** 2),)


@njit(cache=True)
def collect_binary(theta, x, z):
    return (np.array([theta[0], x.sum() + 0.0]),)


BINARY_LAW = LawFunctions(gather_binary, binary_law, collect_binary)


@njit(cache=True)
def law_without_prior(theta, sums, x, z):
    (law,) = binary_law(theta, sums, x, z)
    return (np.asarray(law.item() + 0.5 * theta[0] ** 2),)


@njit(cache=True)
def without_prior(theta, z):
    return (np.asarray(0.0),)


@njit(cache=True)
def collect_more(theta, x, z):
    return (np.array([x.sum() + 0.0]),)


ONE_GROUP = Functions(couple_binary, binary_prior, by_sums(BINARY), BINARY_LAW)
SECOND = Functions(
    couple_binary, without_prior, by_sums(BINARY),
    BINARY_LAW._replace(law=law_without_prior, collect=collect_more),
)  # fmt: skip
TWO_GROUPS = together(ONE_GROUP, SECOND)
