"""Exact draws from one-dimensional conditionals, against their distribution functions."""

from functools import cache

import numpy as np
import pytest
from scipy import special

from pymc_dp.kernels import njit
from pymc_dp.kernels.draws.log_concave import (
    _draw_power_exponential,
    draw_log_concave,
    draw_log_gamma,
    draw_tilted_gamma,
)
from tests.agreement import follows

INF = np.inf
DRAWS = 20_000


@cache
def many(draw):
    """Return a function that draws often with one kernel."""

    @njit(cache=True)
    def run(rng, *args):
        out = np.empty(DRAWS)
        for i in range(DRAWS):
            out[i] = draw(rng, *args)
        return out

    return run


def density_agrees(draws, log_density, lo=-INF, hi=INF):
    """Against a density on a fine grid."""
    spread = np.ptp(draws)
    grid = np.linspace(max(lo, draws.min() - spread), min(hi, draws.max() + spread), 400_001)
    with np.errstate(all="ignore"):
        log_values = log_density(grid)
    log_values[~np.isfinite(log_values)] = -INF
    follows(draws, (grid, special.softmax(log_values)))


@pytest.mark.parametrize(
    "args",
    [
        pytest.param((0, 0, 1, 0, 2, 0.5, -INF, INF), id="normal, laplace kink inside"),
        pytest.param((0, 0, 1, 0, 2, 30, -INF, INF), id="normal, release far to the right"),
        pytest.param((0, 0, 1, 0, 2, -30, -INF, INF), id="normal, release far to the left"),
        pytest.param((0, 0, 4, 1, 0, 0, 0.5, 0.7), id="normal cut to an interval"),
        pytest.param((0, 0, 4, 1, 3, 0.6, 0.5, 0.7), id="normal, laplace, cut"),
        pytest.param((0, 0, 1, 5, 0, 0, 8, INF), id="normal, far tail"),
        pytest.param((0, 0, 0, 0, 2, 0.3, -INF, INF), id="laplace alone"),
        pytest.param((0, -3, 0, 0, 1, 0, 0, 1), id="rising exponential"),
        pytest.param((20, 80, 0, 0, 10.7, 0.22, 0, INF), id="gamma, kink inside"),
        pytest.param((20, 80, 0, 0, 10.7, -5, 0, INF), id="gamma, negative release"),
        pytest.param((20, 8, 0, 0, 10.7, 2, 0, INF), id="gamma, rate below lambda"),
        pytest.param((20, 8, 0, 0, 10.7, 9, 0, 1), id="gamma, rate below lambda, cut"),
        pytest.param((0, 1, 0, 0, 3, 2, 0, INF), id="exponential, rate below lambda"),
        pytest.param((0.1, 1, 2, 3, 0, 0, 0, INF), id="gamma under gaussian noise"),
        pytest.param((5e8, 5e8, 0, 0, 2e4, 1.0001, 0, INF), id="huge shape"),
    ],
)
def test_log_concave_family(args):
    p, beta, tau, m, lam, z, lo, hi = args = tuple(map(float, args))
    draws = many(draw_log_concave)(np.random.default_rng(7), *args)

    def log_density(s):
        # relative to the draws' median: absolute values of 1e9 would lose the digits
        s0 = np.median(draws)
        power = p * np.log1p((s - s0) / s0) if p else 0.0
        return (
            power
            - beta * (s - s0)
            - 0.5 * tau * ((s - m) ** 2 - (s0 - m) ** 2)
            - lam * (np.abs(z - s) - np.abs(z - s0))
        )

    assert draws.min() >= lo
    assert draws.max() <= hi
    density_agrees(draws, log_density, lo, hi)


@pytest.mark.parametrize(
    "args",
    [
        (21, 84, 10.75, 0.22, 0, INF),
        (0.5, 2, 3, 0.7, 0, INF),
        (0.5, 3, 2, 0.7, 0, INF),
        (0.5, 2, 30, 0.7, 0, 0.8),
        (0.3, 2, 0.5, -1, 0, INF),
        (0.5, 20, 0.5, 5, 0, INF),
        (0.5, 1, 0.5, 5, 0, 0.1),
        (0.9, 2, 100, 0.7, 0, INF),
    ],
    ids=str,
)
def test_tilted_gamma(args):
    a, beta, lam, z, _, hi = args = tuple(map(float, args))
    draws = np.log(many(draw_tilted_gamma)(np.random.default_rng(8), *args))

    def log_density(u):  # in log s, where small shapes have no pole
        return a * u - beta * np.exp(u) - lam * np.abs(z - np.exp(u))

    density_agrees(draws, log_density, -INF, np.log(hi))


@pytest.mark.parametrize(
    "args",
    [
        (2, 3, -INF, INF),
        (0, 1e-8, -3, INF),
        (20, 3, 5, INF),
        (20, 3, -9, INF),
        (0.5, 0.1, -4, INF),
        (0.5, 0.1, -4, -2),
    ],
    ids=str,
)
def test_log_gamma(args):
    a, rate, lo, hi = args = tuple(map(float, args))
    draws = many(draw_log_gamma)(np.random.default_rng(9), *args)
    density_agrees(draws, lambda u: a * u - rate * np.exp(u), lo, hi)


@pytest.mark.parametrize("c", [-200.0, -3.0, 0.0, 3.0, 200.0])
@pytest.mark.parametrize(("lo", "hi"), [(0.0, 1.0), (0.2, 0.3)])
def test_power_exponential(c, lo, hi):
    a = 0.4
    draws = many(_draw_power_exponential)(np.random.default_rng(10), a, c, lo, hi)
    log_lo = np.log(lo) if lo else -INF
    density_agrees(np.log(draws), lambda u: a * u - c * np.exp(u), log_lo, np.log(hi))


def test_a_wrong_sampler_fails():
    """The thresholds above would catch a Laplace rate that is off by a few percent."""
    args = 20.0, 80.0, 0.0, 0.0, 10.7, 0.22, 0.0, INF
    draws = many(draw_log_concave)(np.random.default_rng(7), *args)
    with pytest.raises(AssertionError):
        density_agrees(draws, lambda s: 20 * np.log(s) - 80 * s - 8 * np.abs(0.22 - s), 0.0)
