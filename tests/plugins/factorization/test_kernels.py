"""The sweep of Poisson factorization: every draw against its exact law, and the sweep as a whole.

Where a law is compared with draws, a wrong sampler fails by far more than the threshold.
"""

import math
from concurrent.futures import ThreadPoolExecutor

import arviz as az
import numpy as np
import pytest
from scipy import special, stats

from pymc_dp.kernels import njit
from pymc_dp.kernels.counts.poisson import draw_count
from pymc_dp.kernels.counts.skellam_bessel import draw_count_augmented, start_augmentation
from pymc_dp.plugins.factorization.kernels import (
    BESSEL,
    DIRECT,
    KNOWN,
    TINY,
    Table,
    allocate,
    block_count,
    start_state,
    sweep,
)
from tests.agreement import counts_follow, follows, has_moments, uniform
from tests.references import references

[REFERENCE] = [case for case in references("counts") if case["id"] == "B_pf_20x15x2"]
METHODS = pytest.mark.parametrize("method", [DIRECT, BESSEL], ids=["direct", "bessel"])
DRAWS = 40_000


@njit(cache=True)
def many_counts(rng, z, scale, mu, size):
    out, masses = np.empty(size), np.empty((2, 512))
    lam = 1 / scale
    for i in range(size):
        out[i] = draw_count(rng, z, lam, math.exp(-lam), math.exp(lam), mu, masses)
    return out


@njit(cache=True)
def many_augmented(rng, z, scale, mu, size, sweeps):
    out = np.empty(size)
    latent = np.empty((1, 1, 2))
    given = np.full((1, 1), z), np.full((1, 1), scale), np.full((1, 1), mu)
    for i in range(size):
        start_augmentation(rng, *given, latent)
        for _ in range(sweeps):
            out[i] = draw_count_augmented(rng, z, math.exp(-1 / scale), mu, latent[0, 0])
    return out


def count_law(z, scale, mu):
    y = np.arange(2000 + 2 * max(int(abs(z)), int(mu)))
    return special.softmax(stats.poisson.logpmf(y, mu) - np.abs(z - y) / scale)


COUNT_CASES = [
    (0.0, 1.4, 3.0),
    (-7.0, 1.4, 25.0),
    (3.0, 1.4, 0.02),
    (5.0, 1.4, 5.0),
    (5.0, 0.5, 5.0),
    (2.0, 3.0, 9.0),  # the mode is above the release
    (30.0, 3.5, 8.0),  # and below it
    (30.0, 3.5, 1.0),
    (120.0, 3.5, 125.0),
    (300.0, 2.0, 310.0),  # by rejection
    (4.0, 0.02, 3.0),  # hardly any noise
    (0.4, 1.4, 2.0),  # Laplace noise, between two counts
    (6.7, 0.8, 9.0),
    (6.2, 0.3, 60.0),
    (-0.3, 2.0, 4.0),
]


@pytest.mark.parametrize("case", COUNT_CASES, ids=str)
def test_a_count_is_drawn_from_its_exact_law(case):
    drawn = many_counts(np.random.default_rng(1), *case, DRAWS)
    law = count_law(*case)
    counts_follow(np.bincount(drawn.astype(int), minlength=law.size), law)


@pytest.mark.parametrize("case", [c for c in COUNT_CASES if c[0] == int(c[0]) and c[1] > 0.1])
@pytest.mark.parametrize("sweeps", [1, 3])
def test_the_augmentation_keeps_the_exact_law(case, sweeps):
    drawn = many_augmented(np.random.default_rng(2), *case, DRAWS // 2, sweeps)
    law = count_law(*case)
    counts_follow(np.bincount(drawn.astype(int), minlength=law.size), law)


@njit(cache=True)
def many_allocations(rng, y, weights, size):
    out = np.zeros((size, weights.size))
    column = np.zeros(weights.size)
    cumulative = np.cumsum(weights)
    for i in range(size):
        allocate(rng, y, weights, cumulative, out[i], column)
    return out, column


@pytest.mark.parametrize(
    ("y", "weights"),
    [
        (1, [0.2, 0.5, 0.3]),
        (4, [2.0, 0.0, 5.0]),
        (25, [0.05, 0.6, 0.35]),  # by a binomial draw, then one by one
        (40, [3.0, 1.0]),
        (9, [7.0]),
        (30, [1e-200, 3e-200, 1e-200]),
    ],
)
def test_allocation_is_multinomial(y, weights):
    weights = np.array(weights)
    drawn, column = many_allocations(np.random.default_rng(3), y, weights, DRAWS)
    assert np.array_equal(drawn.sum(axis=0), column)
    assert np.all(drawn.sum(axis=1) == y)
    outcomes, counts = np.unique(drawn, axis=0, return_counts=True)
    law = stats.multinomial.pmf(outcomes, y, weights / weights.sum())
    # Outcomes that did not occur are one more, of no draws.
    counts_follow(np.append(counts, 0), np.append(law, max(1 - law.sum(), 0)))


def test_allocation_of_very_many():
    weights = np.array([1.0, 1e-9, 3.0])
    drawn, _ = many_allocations(np.random.default_rng(4), 10**8, weights, 2000)
    has_moments(drawn[:, 2], 7.5e7)
    follows(drawn[:, 2], stats.norm(7.5e7, np.sqrt(0.1875e8)))
    assert 100 < drawn[:, 1].sum() / 2000 * 1e4 < 400  # 0.025 a draw


# --- The sweep ------------------------------------------------------------------------------------


def gammas(shape, a, b):
    return np.full(shape, a), np.full(shape, b)


def problem(rng, rows, columns, components, method, *, a=1.0, b=1.0, alpha=0.5, laplace=False):
    """Factors from the prior, counts and a release of them: the table, theta and phi."""
    theta, phi = (rng.gamma(a, 1 / b, s) for s in ((rows, components), (components, columns)))
    y = rng.poisson(theta @ phi)
    scale = -1 / np.log(alpha)
    noise = rng.laplace(0, scale, y.shape) if laplace else geometric(rng, alpha, y.shape)
    return (
        Table(
            method,
            y + (0.0 if method == KNOWN else noise),
            np.full(y.shape, scale),
            gammas((rows, components), a, b),
            gammas((columns, components), a, b),
        ),
        theta,
        phi,
    )


def geometric(rng, alpha, shape):
    return rng.geometric(1 - alpha, shape) - rng.geometric(1 - alpha, shape)


VARIANTS = pytest.mark.parametrize(
    ("method", "laplace"),
    [(KNOWN, False), (DIRECT, False), (DIRECT, True), (BESSEL, False)],
    ids=["known", "direct", "direct, Laplace", "bessel"],
)


@VARIANTS
@pytest.mark.parametrize("components", [1, 2])
@pytest.mark.by_day("1-direct, Laplace")
def test_sweeps_leave_the_joint_law_alone(method, laplace, components):
    """Started in the joint law of everything, sweeps must stay in it: paired differences."""
    rng = np.random.default_rng(5)
    before, after = [], []
    for _ in range(3000):
        table, theta, phi = problem(
            rng, 2, 3, components, method, a=1.5, b=0.8, alpha=0.6, laplace=laplace
        )
        state = start_state(rng, table, theta, phi)
        for _ in range(3):
            assert sweep([rng], table, state)
        for found, t, p in ((before, theta, phi), (after, state.theta, state.phi.T)):
            rate = t @ p
            numbers = (t, p, np.log(t), np.log(p), rate, np.log(rate), np.log1p(rate) * table.z)
            found.append(np.concatenate([x.ravel() for x in numbers]))
    difference = np.subtract(after, before)
    error = difference.std(axis=0) / np.sqrt(len(difference))
    assert np.all(np.abs(difference.mean(axis=0)) < 4.5 * error)


@VARIANTS
@pytest.mark.nightly
def test_ranks_are_uniform(method, laplace):
    """Simulation-based calibration: chains from elsewhere find the law of the truth."""
    rng = np.random.default_rng(6)
    ranks = []
    for _ in range(300):
        table, theta, phi = problem(rng, 2, 3, 2, method, a=2.0, laplace=laplace)
        elsewhere = rng.gamma(2.0, 1.0, theta.shape), rng.gamma(2.0, 1.0, phi.shape)
        state = start_state(rng, table, *elsewhere)
        below = np.zeros(3)
        for draw in range(23):
            for _ in range(8):
                assert sweep([rng], table, state)
            if draw >= 4:
                below += [
                    state.theta[0, 0] < theta[0, 0],
                    state.phi[2, 1] < phi[1, 2],
                    state.theta[1] @ state.phi[0] < theta[1] @ phi[:, 0],
                ]
        ranks.append(below)
    uniform(ranks, 19, bins=5)


@pytest.mark.nightly
@METHODS
def test_reference_posterior(method):
    x, expected = REFERENCE["inputs"], REFERENCE["expected"]
    z = np.array(x["T"], dtype=float)
    scale = np.full(z.shape, -1 / np.log(x["alpha"]))
    priors = gammas((x["D"], x["K"]), 1.0, 0.5), gammas((x["V"], x["K"]), 1.0, 0.5)
    table = Table(method, z, scale, *priors)
    rng = np.random.default_rng(7)
    rates, counts = np.empty((2, 6000, *z.shape)), np.zeros(z.shape)
    for chain in rates:
        start = rng.gamma(1.0, 2.0, (x["D"], x["K"])), rng.gamma(1.0, 2.0, (x["K"], x["V"]))
        state = start_state(rng, table, *start)
        for i in range(-300, len(chain)):
            assert sweep([rng], table, state)
            if i >= 0:
                np.matmul(state.theta, state.phi.T, out=chain[i])
                counts += state.y / rates[..., 0, 0].size
    sd = np.array(expected["mu_sd"])
    # The reference has an error of its own, 0.022 posterior sd.
    error = np.hypot(az.mcse(rates), 0.022 * sd)
    off = (rates.mean(axis=(0, 1)) - expected["mu_mean"]) / error
    assert np.abs(off).max() < 4
    assert np.sqrt(np.mean(off**2)) < 1.5
    assert np.abs(rates.std(axis=(0, 1)) / sd - 1).max() < 0.2
    assert np.abs(counts - expected["y_mean"]).max() < 0.25


def test_a_factor_given_the_other_and_one_component_is_exact():
    """With one component nothing is allocated, and with known counts the posterior is a Gamma."""
    rng = np.random.default_rng(8)
    y = np.array([[3.0, 0, 7], [0, 0, 0], [1, 2, 30]])
    phi = np.array([[0.5, 2.0, 1.0]])
    table = Table(KNOWN, y, np.ones(y.shape), gammas((3, 1), 0.7, 0.3), None)
    state = start_state(rng, table, np.ones((3, 1)), phi)
    drawn = np.empty((8000, 3))
    for row in drawn:
        assert sweep([rng], table, state)
        row[:] = state.theta[:, 0]
    assert np.array_equal(state.phi, phi.T)
    assert np.array_equal(state.y, y)
    for values, total in zip(drawn.T, y.sum(axis=1), strict=True):
        follows(values, stats.gamma(0.7 + total, scale=1 / 3.8))


@pytest.mark.by_day("bessel")
@METHODS
def test_a_clamped_factor_and_a_free_one_by_importance(method):
    """Theta of one row with phi held fixed, against the posterior weighed on a grid."""
    phi, z, alpha = np.array([[1.0, 4.0]]), np.array([[-2.0, 6.0]]), 0.6
    scale = np.full(z.shape, -1 / np.log(alpha))
    grid = (np.arange(4000) + 0.5) / 400
    log_post = stats.gamma.logpdf(grid, 1.5, scale=1 / 0.8)
    for j in range(2):
        y = np.arange(400)[:, None]
        mass = stats.poisson.pmf(y, grid * phi[0, j]) * alpha ** np.abs(z[0, j] - y)
        log_post += np.log(mass.sum(axis=0))

    table = Table(method, z, scale, gammas((1, 1), 1.5, 0.8), None)
    rng = np.random.default_rng(9)
    state = start_state(rng, table, np.ones((1, 1)), phi)
    drawn = np.empty(4000)
    for i in range(len(drawn)):
        for _ in range(10):  # thinned: nearly independent
            assert sweep([rng], table, state)
        drawn[i] = state.theta[0, 0]
    follows(drawn, (grid, special.softmax(log_post)))


@pytest.mark.parametrize("method", [KNOWN, DIRECT, BESSEL])
def test_threads_change_nothing(method):
    drawn = []
    for threads in (1, 2, 3):
        table, theta, phi = problem(np.random.default_rng(10), 70, 65, 3, method)
        rngs = np.random.default_rng(11).spawn(block_count(*table.z.shape))
        assert len(rngs) == 4
        state = start_state(np.random.default_rng(12), table, theta, phi)
        with ThreadPoolExecutor(2) as pool:
            for _ in range(3):
                assert sweep(rngs, table, state, pool, threads)
        drawn.append(state)
    for other in drawn[1:]:
        for a, b in zip(drawn[0], other, strict=True):
            assert np.array_equal(a, b)


# --- Extremes -------------------------------------------------------------------------------------


@METHODS
@pytest.mark.parametrize("scale", [0.05, 1.4, 300.0])
@pytest.mark.parametrize("rate", [1e-300, 1e-8, 1.0, 1e4, 1e8])
@pytest.mark.parametrize("release", [-1e6, -3.0, 0.0, 40.0, 1e6])
def test_extreme_rates_and_releases(method, release, rate, scale):
    z = np.full((2, 2), release)
    priors = gammas((2, 2), 1.0, 1.0)
    table = Table(method, z, np.full(z.shape, scale), priors, priors)
    rng = np.random.default_rng(13)
    factor = np.full((2, 2), np.sqrt(rate / 2))
    state = start_state(rng, table, factor, factor)
    for _ in range(20):
        assert sweep([rng], table, state)
        assert np.all(np.isfinite(state.theta))
        assert min(state.theta.min(), state.phi.min()) >= TINY
        assert state.y.min() >= 0


def test_known_counts_at_rates_that_underflow():
    """The products of the factors are 0 in double precision, their ratios are 1 to 3."""
    y = np.full((1, 1), 4000.0)
    theta, phi = np.full((1, 2), 1e-200), np.array([[1e-200], [3e-200]])
    flat = gammas((1, 2), 1.0, 1.0)
    table = Table(KNOWN, y, np.ones((1, 1)), flat, None)
    state = start_state(np.random.default_rng(14), table, theta, phi)
    assert sweep([np.random.default_rng(15)], table, state)
    assert abs(state.theta[0, 1] / 3000 - 1) < 0.1


@pytest.mark.parametrize("method", [KNOWN, DIRECT, BESSEL])
def test_what_cannot_be_drawn_is_said(method):
    priors = gammas((1, 1), 1.0, 1.0)
    table = Table(method, np.full((1, 1), 3.0), np.ones((1, 1)), priors, priors)
    one = np.ones((1, 1))
    for wrong in (np.nan, np.inf):
        state = start_state(np.random.default_rng(0), table, one, one)
        state.phi[:] = wrong
        assert not sweep([np.random.default_rng(0)], table, state)
    if method == KNOWN:  # a count that its rate rules out
        state = start_state(np.random.default_rng(0), table, one, 0 * one)
        assert not sweep([np.random.default_rng(0)], table, state)
