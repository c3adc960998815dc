"""Moves of slices and levels, and draws of statistics, against the laws that they keep."""

import numpy as np
import pytensor.tensor as pt
import pytest
from numba import njit
from numba.core.errors import TypingError

from pymc_dp.graphs.compiled import Filling
from pymc_dp.kernels.pointers import call
from pymc_dp.kernels.slices import (
    Tuned,
    advance,
    along,
    draw_each,
    draw_jointly,
    level_move,
    slice_move,
)
from pymc_dp.routes.slices import _bends
from tests.slices import EACH, ENDS, FACTOR, MIXED, SIZE, density, noise, pointer, prior


@njit(error_model="numpy")
def gumbels(q, terms):
    """Independent entries, skewed: the log density of Gumbel's law for each."""
    terms[:] = -q - np.exp(-q)
    return terms.sum()


@pytest.mark.parametrize("independent", [True, False])
def test_a_level_keeps_its_law(independent):
    rng = np.random.default_rng(1)
    q = rng.gumbel(size=400_000)
    u = np.exp(-np.exp(-q))  # uniform
    kept = pointer(gumbels)
    level_move(
        rng,
        kept.function,
        q,
        np.empty_like(q),
        0,
        q.size,
        np.full(q.size, 0.3),
        np.full_like(q, 0.8),
        independent,
    )
    moved = np.exp(-np.exp(-q))
    assert np.mean(u != moved) > 0.3
    for power in range(1, 7):
        change = moved**power - u**power
        assert abs(change.mean()) < 4.0 * change.std() / np.sqrt(q.size)


def test_a_slice_keeps_its_law():
    rng, size, terms = np.random.default_rng(1), 20_000, np.empty(1)
    before = rng.gumbel(size=size)
    after, kept = np.empty(size), pointer(gumbels)
    line = np.zeros(1), np.ones(1), np.zeros((3, 1)), 0.7
    for i in range(size):
        q = before[i : i + 1].copy()
        slice_move(rng, kept.function, q, gumbels(q, terms), terms, *line)
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
    widths = np.array([1e-3, 1e3, 1.0])
    tuned = Tuned(np.eye(3), np.zeros((3, 3, 3)), widths, np.zeros(SIZE), np.ones(SIZE))
    kept = pointer(density), pointer(noise)
    own, of_noise = (own.function for own in kept)
    given = rng, own, of_noise, own, q, ENDS[EACH], 0, MIXED[EACH], tuned
    advance(*given, 0.5, 1, 0, out)
    assert ((tuned.widths > 0.1) & (tuned.widths < 20.0)).all()
    widths = tuned.widths.copy()
    advance(*given, 0.0, 1, 0, out)
    np.testing.assert_array_equal(tuned.widths, widths)


@pytest.mark.parametrize("c", [-4.0, 0.3, 2.5])
def test_bent_lines_lead_back_and_keep_volume(c):
    """With d, all points of a line are those of each of them: c grows by t, volume stays."""
    direction, center = np.array([0.6, 0.8, 0.0]), np.array([1.0, -2.0, 0.5])
    bend = np.array([[0.8, -0.6, 0.3], [-0.4, 0.3, 0.1], [0.08, -0.06, -0.2]])
    rest = np.array([0.4, -0.3, 0.7])

    def moved(start, t):
        q = np.empty(3)
        place = (start - center) @ direction / (direction @ direction)
        along(q, start, direction, bend, place, t)
        return q

    start = center + c * direction + rest
    there = moved(start, 1.1)
    assert (there - center) @ direction == pytest.approx(c + 1.1)
    np.testing.assert_allclose(moved(there, -1.1), start, atol=1e-13)
    np.testing.assert_allclose(moved(there, 0.7), moved(start, 1.8), atol=1e-13)
    steps = 1e-6 * np.eye(3)
    jacobian = [(moved(start + e, 1.1) - moved(start - e, 1.1)) / 2e-6 for e in steps]
    assert np.linalg.det(jacobian) == pytest.approx(1.0, abs=1e-7)


def test_lines_follow_a_bent_ridge():
    rng = np.random.default_rng(1)
    c = rng.normal(size=2_000)
    z = np.stack([c, c**3 - 3.0 * c + 0.1 * rng.normal(size=c.size), rng.normal(size=c.size)], 1)
    z = (z - z.mean(axis=0)) / z.std(axis=0)
    [bend, *_] = _bends(z)
    left = z - sum(z[:, :1] ** (k + 1) * bend[k] for k in range(3))
    assert left[:, 1].var() < 0.05
    assert not bend[:, [0, 2]].any()


def test_a_function_by_its_address():
    x = pt.vector("x", shape=(2,))
    kept = Filling(x, x.sum(), x[::-1] + 1.0)
    out = np.zeros(2)
    assert call(kept.function, np.array([4.0, 1.0]), out) == 5.0
    assert out.tolist() == [2.0, 5.0]
    # Of an error, for want of room here, all is NaN.
    longer = np.zeros(3)
    assert np.isnan(call(kept.function, np.ones(2), longer))
    assert np.isnan(longer).all()
    with pytest.raises(TypingError, match="in one piece"):
        call(kept.function, np.ones(4)[::2], out)
