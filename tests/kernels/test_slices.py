"""Sweeps of slices, proposals for levels, and variances of noise, by Geweke's test."""

import math

import numpy as np
import pytest
from numba import njit

from pymc_dp.kernels.slices import (
    SIGNATURE,
    Mixed,
    Tuned,
    compiled,
    draw_each,
    draw_jointly,
    level_move,
    slice_move,
)
from tests.geweke import check_invariance

J, V, B = 3, 0.3, 0.7
SIZE = 3 + 3 * J  # mu, log tau, one parameter by itself; theta, log w, z
FACTOR = np.array([[0.5, 0.0], [0.3, 0.4], [-0.2, 0.5]])
EACH, JOINT = 0, FACTOR.shape[1]


@njit(error_model="numpy")
def normal(x, mean, variance):
    return -0.5 * ((x - mean) ** 2 / variance + math.log(variance))


@njit(SIGNATURE, error_model="numpy")
def density(q, terms):
    """Log density of a hierarchy of z ~ N(theta, V + w), theta ~ N(mu, tau)."""
    terms[:] = 0.0
    total = normal(q[0], 0.0, 1.0) + normal(q[1], -0.3, 0.25) + normal(q[2], 1.0, 4.0)
    for j in range(3, 3 + J):
        terms[j] = normal(q[j], q[0], math.exp(2.0 * q[1]))
        terms[j] += normal(q[j + 2 * J], q[j], V + math.exp(q[j + J]))
        total += terms[j]
    return total


@njit(SIGNATURE, error_model="numpy")
def joint_density(q, terms):
    """The same with z ~ N(mu + q[2] * theta, FF' + w): theta are no level here."""
    terms[:] = 0.0
    total = normal(q[0], 0.0, 1.0) + normal(q[1], -0.3, 0.25) + normal(q[2], 1.0, 4.0)
    covariance = FACTOR @ FACTOR.T + np.diag(np.exp(q[3 + J : 3 + 2 * J]))
    gap = q[3 + 2 * J :] - q[0] - q[2]
    total -= 0.5 * np.log(np.linalg.det(covariance))
    return total - 0.5 * gap @ np.linalg.solve(covariance, gap)


@njit(SIGNATURE, error_model="numpy")
def noise(q, given):
    given[:J] = q[3 + 2 * J :]
    given[J : 2 * J] = B
    given[2 * J : 3 * J] = q[3 : 3 + J]
    given[3 * J :] = V
    return 0.0


@njit(SIGNATURE, error_model="numpy")
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


@pytest.mark.parametrize("columns", [EACH, JOINT])
def test_geweke(columns):
    rng = np.random.default_rng(1)
    before = prior(rng, 10_000, columns)
    after, out = before.copy(), np.empty((1, SIZE))
    directions = np.array([[0.7, 0.3, 0.0], [1.0, 0.0, 0.0], [0.0, 0.6, 0.0], [0.2, 0.0, 2.0]])
    tuned = Tuned(directions, np.full(4, 1.5), np.full(SIZE, 0.2), np.full(SIZE, 0.8))
    ends = np.array([3] if columns else [3, 3 + J])
    mixed = Mixed(*(np.array([i]) for i in (3 + J, J, columns)))
    functions = (joint_density, joint_noise) if columns else (density, noise)
    run, _ = compiled()
    for q in after:
        run(rng, *functions, q, ends, mixed, tuned, 0.0, 1, out)
    moved = [0, 1, 2, *range(3 + J, 3 + 2 * J)] + ([] if columns else [*range(3, 3 + J)])
    if columns:  # of which theta has no part
        before, after = np.delete(before, range(3, 3 + J), 1), np.delete(after, range(3, 3 + J), 1)
        moved = range(3 + J)
    named = [{f"q[{i}]": x[:, i] for i in moved} for x in (before, after)]
    check_invariance(*named, {f"z[{j}]": before[:, -J + j] for j in range(J)})


@njit(SIGNATURE, error_model="numpy")
def gumbels(q, terms):
    """Independent entries, skewed: the log density of Gumbel's law for each."""
    terms[:] = -q - np.exp(-q)
    return terms.sum()


def test_a_level_keeps_its_law():
    rng = np.random.default_rng(1)
    q = rng.gumbel(size=400_000)
    u = np.exp(-np.exp(-q))  # uniform
    level_move(
        rng, gumbels, q, np.empty_like(q), 0, q.size, np.full(q.size, 0.3), np.full_like(q, 0.8)
    )
    moved = np.exp(-np.exp(-q))
    assert np.mean(u != moved) > 0.7
    for power in range(1, 7):
        change = moved**power - u**power
        assert abs(change.mean()) < 4.0 * change.std() / np.sqrt(q.size)


def test_a_slice_keeps_its_law():
    rng, size, terms = np.random.default_rng(1), 20_000, np.empty(1)
    before = rng.gumbel(size=size)
    after = np.empty(size)
    for i in range(size):
        q = before[i : i + 1].copy()
        slice_move(rng, gumbels, q, gumbels(q, terms), terms, np.ones(1), 0.7)
        after[i] = q[0]
    for power in range(1, 7):
        change = np.exp(-power * np.exp(-after)) - np.exp(-power * np.exp(-before))
        assert abs(change.mean()) < 4.0 * change.std() / np.sqrt(size)


def check_normal(drawn, mean, covariance):
    """Check draws, one in each row, by their mean and covariance: each within its own error."""
    gap = drawn - mean
    assert (abs(gap.mean(axis=0)) < 4.0 * np.sqrt(np.diag(covariance) / len(drawn))).all()
    products = gap[:, :, None] * gap[:, None, :] - covariance
    assert (abs(products.mean(axis=0)) < 4.0 * products.std(axis=0) / np.sqrt(len(drawn))).all()


def test_statistics_given_their_noise():
    rng, count = np.random.default_rng(1), 40_000
    z, w, mean = np.array([1.0, -2.0, 0.5]), np.array([0.2, 3.0, 1.0]), np.array([0.5, 0.0, 9.0])
    variance = np.array([0.4, 1.0, 0.0])  # the last one is of no records
    drawn = np.array([draw_each(rng, z, w, mean, variance) for _ in range(count)])
    assert (drawn[:, 2] == 9.0).all()
    precision = 1.0 / variance[:2] + 1.0 / w[:2]
    center = (mean[:2] / variance[:2] + z[:2] / w[:2]) / precision
    check_normal(drawn[:, :2], center, np.diag(1.0 / precision))

    drawn = np.array([draw_jointly(rng, z, w, mean, FACTOR) for _ in range(count)])
    covariance = FACTOR @ FACTOR.T
    gain = covariance @ np.linalg.inv(covariance + np.diag(w))
    check_normal(drawn, mean + gain @ (z - mean), covariance - gain @ covariance)


def test_widths_are_tuned_and_then_stay():
    rng, out = np.random.default_rng(1), np.empty((200, SIZE))
    [q] = prior(rng, 1, EACH)
    tuned = Tuned(np.eye(3), np.array([1e-3, 1e3, 1.0]), np.zeros(SIZE), np.ones(SIZE))
    given = np.array([3, 3 + J]), Mixed(*(np.array([i]) for i in (3 + J, J, EACH)))
    run, _ = compiled()
    run(rng, density, noise, q, *given, tuned, 0.5, 1, out)
    assert ((tuned.widths > 0.1) & (tuned.widths < 20.0)).all()
    widths = tuned.widths.copy()
    run(rng, density, noise, q, *given, tuned, 0.0, 1, out)
    np.testing.assert_array_equal(tuned.widths, widths)
