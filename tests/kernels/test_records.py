"""Sweeps over records and interweaving moves, against posteriors that are known exactly."""

import math
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest
from scipy import integrate, special, stats

from pymc_dp.kernels import njit
from pymc_dp.kernels.records.chains import make_chain, make_sweeps, together
from pymc_dp.kernels.records.sweeps import RecordFunctions, by_sums, make_accept_each
from pymc_dp.kernels.records.sweeps import in_full as afresh
from tests.agreement import counts_follow, follows
from tests.binary_records import (
    BINARY,
    BINARY_LAW,
    ONE_GROUP,
    SCALE,
    SECOND,
    TWO_GROUPS,
    binary_law,
    law_without_prior,
)

P_VALUE = 1e-4  # of 20 tests with fixed seeds; the wrong samplers below give 1e-8 and less
IN_FULL = [False, True]


@njit(cache=True)
def no_prior(theta, *env):
    return (np.asarray(0.0),)


@njit(cache=True)
def choose(mask, new, x):
    return (np.where(mask, new, x),)


@njit(cache=True)
def choose_one(i, new, x):
    x = x.copy()
    x[i.item()] = new[i.item()]
    return (x,)


def make(pieces, in_full, density, choose=choose_one):
    """Sweeps; in full, the density is asked for again for each record."""
    if in_full:
        pieces = pieces._replace(density=density, choose=choose)
        return make_sweeps(pieces, afresh(pieces))
    return make_sweeps(pieces, by_sums(pieces))


# --- Records with six values: a code and a bit, (Σ code, Σ code · bit) released -------------------

CODES = np.array([0.5, 0.2, 0.3])
RELEASED = np.array([3.1, 0.2])
N_CODES = 3


@njit(cache=True)
def propose_codes(rng, theta, chances, z):
    n = N_CODES
    code, bit = np.empty(n, np.int64), np.empty(n, np.int64)
    for i in range(n):
        code[i] = np.searchsorted(np.cumsum(chances), rng.random())
        bit[i] = 1 if rng.random() < theta[0] * (1 + code[i]) else 0
    return code, bit


@njit(cache=True)
def code_maps(theta, code, bit, chances, z):
    values = np.empty((2, code.size))
    values[0] = code
    values[1] = code * bit
    return (values,)


@njit(cache=True)
def code_public(theta, chances, z):
    return (np.array([z[0], z[1], theta[1]]),)


@njit(cache=True)
def code_density(sums, public):
    return -(abs(sums[0] - public[0]) + abs(sums[1] - public[1])) / public[2]


@njit(cache=True)
def code_density_in_full(theta, code, bit, chances, z):
    (values,) = code_maps(theta, code, bit, chances, z)
    (public,) = code_public(theta, chances, z)
    return (np.asarray(code_density(values.sum(axis=1), public)),)


@njit(cache=True)
def choose_codes(mask, new_code, new_bit, code, bit):
    return np.where(mask, new_code, code), np.where(mask, new_bit, bit)


@njit(cache=True)
def choose_code(i, new_code, new_bit, code, bit):
    code, bit = code.copy(), bit.copy()
    code[i.item()], bit[i.item()] = new_code[i.item()], new_bit[i.item()]
    return code, bit


@njit(cache=True)
def couple_codes(rng, theta, there, code, bit, chances, z):
    return code, bit


CODE_PIECES = RecordFunctions(
    propose_codes, code_maps, code_public, code_density, choose_codes, couple_codes, no_prior
)


@njit
def keep_code_states(sweeps, rng, x, theta, env, draws, thin):
    axes, scales = np.eye(2), np.zeros(0)
    states = np.empty(draws, np.int64)
    for t in range(draws):
        x, theta, _, _, _, _, _ = sweeps(rng, x, theta, env, axes, scales, thin, 0, 0)
        states[t] = 0
        for i in range(N_CODES):
            states[t] = 6 * states[t] + 2 * x[0][i] + x[1][i]
    return states


def exact_code_states(theta):
    cells = list(product(range(3), range(2)))
    weights = []
    for state in product(cells, repeat=N_CODES):
        code, bit = np.array(state).T
        one = theta[0] * (1 + code)
        prior = np.prod(CODES[code] * np.where(bit == 1, one, 1 - one))
        sums = np.array([code.sum(), (code * bit).sum()])
        weights.append(prior * np.exp(-np.abs(sums - RELEASED).sum() / theta[1]))
    return np.array(weights)


@pytest.mark.parametrize("in_full", IN_FULL)
@pytest.mark.nightly
def test_records_given_the_releases(in_full):
    sweeps = make(CODE_PIECES, in_full, code_density_in_full, choose_code)
    theta, x = np.array([0.3, 0.6]), (np.zeros(N_CODES, np.int64), np.ones(N_CODES, np.int64))
    rng = np.random.default_rng(1)
    states = keep_code_states(sweeps, rng, x, theta, (CODES, RELEASED), 20_000, 8)
    exact = exact_code_states(theta)
    counts_follow(np.bincount(states, minlength=exact.size), exact, P_VALUE)


def test_one_sweep():
    """The acceptance of each record given what was accepted before, and what is reported of it."""
    accept_each = make_accept_each(code_density)
    rng = np.random.default_rng(2)
    current = rng.integers(0, 3, (2, 50)).astype(float)
    proposed = rng.integers(0, 3, (2, 50)).astype(float)
    public, sums = np.array([55.0, 45.0, 2.0]), current.sum(1)
    before, uniforms = current.copy(), np.random.default_rng(3)
    mask = np.empty(50, np.bool_)
    accepted, lowest = accept_each(np.random.default_rng(3), current, proposed, sums, public, mask)
    expected, now = before.copy(), code_density(before.sum(1), public)
    ratios = []
    for i in range(50):
        trial = expected.copy()
        trial[:, i] = proposed[:, i]
        ratios.append(code_density(trial.sum(1), public) - now)
        if uniforms.random() < math.exp(min(ratios[-1], 0.0)):
            expected, now = trial, now + ratios[-1]
    np.testing.assert_array_equal(current, expected)
    np.testing.assert_allclose(sums, expected.sum(1))
    np.testing.assert_array_equal(mask[np.any(before != expected, axis=0)], True)
    np.testing.assert_array_equal(before[:, ~mask], expected[:, ~mask])
    assert accepted == mask.sum() < 50
    assert min(ratios) < 0
    assert lowest == pytest.approx(min(ratios))


def test_sums_that_are_kept_are_those_of_the_records():
    """After a million steps that only add differences, with columns far from their centres' scale.

    The sweeps sum anew each time: here are a thousand sweeps' worth without.
    """

    @njit(cache=True)
    def density(sums, public):
        return -abs(sums[0]) / public[0] - abs(sums[1] - public[1]) / public[2]

    accept_each = make_accept_each(density)
    rng, n, centre = np.random.default_rng(8), 1_000, 1e6

    def maps(x):
        return np.array([x - centre, (x - centre) ** 2])

    x = centre + rng.standard_normal(n)
    current, mask = maps(x), np.empty(n, np.bool_)
    sums, public = current.sum(axis=1), np.array([20.0, n, 30.0])
    accepted = 0
    for _ in range(1_000):
        new = centre + rng.standard_normal(n)
        accepted += accept_each(rng, current, maps(new), sums, public, mask)[0]
        x = np.where(mask, new, x)
    assert 300_000 < accepted < 1_000_000
    np.testing.assert_array_equal(current, maps(x))
    exact = [math.fsum(row) for row in maps(x)]
    np.testing.assert_allclose(sums, exact, rtol=0, atol=1e-9)


# --- Normal records: x_i ~ N(a + b, 1), a ~ N(0, 1) above a bound, b ~ N(1, 0.5²), mean released --

N, NOISE, Z = 5, 0.4, 0.9
# Of `env`: the bound; and what makes the sampler wrong, if it is not this.
RIGHT = {"bound": -np.inf, "coupling": 1.0, "prior": 1.0, "ratio": 1.0, "cut": -np.inf}


@njit(cache=True)
def propose_normal(rng, theta, env):
    return (theta[0] + theta[1] + rng.standard_normal(N),)


@njit(cache=True)
def normal_maps(theta, x, env):
    return ((np.maximum(x, env[4]) - theta[0]).reshape(1, x.size),)  # moves with theta


@njit(cache=True)
def normal_public(theta, env):
    return (np.array([env[3], theta[0]]),)


@njit(cache=True)
def normal_density(sums, public):
    return -0.5 * public[0] * ((sums[0] / N + public[1] - Z) / NOISE) ** 2


@njit(cache=True)
def normal_density_in_full(theta, x, env):
    return (np.asarray(-0.5 * ((x.mean() - Z) / NOISE) ** 2),)


@njit(cache=True)
def couple_normal(rng, theta, there, x, env):
    return (x + env[1] * (there[0] + there[1] - theta[0] - theta[1]),)


@njit(cache=True)
def normal_prior(theta, env):
    value = -0.5 * env[2] * (theta[0] ** 2 + ((theta[1] - 1.0) / 0.5) ** 2)
    return (np.asarray(value if theta[0] >= env[0] else -np.inf),)


@cache
def normal_chain(in_full):
    pieces = RecordFunctions(
        propose_normal, normal_maps, normal_public, normal_density, choose, couple_normal,
        normal_prior,
    )  # fmt: skip
    sweeps = make(pieces, in_full, normal_density_in_full)

    @njit(cache=True)
    def chain(rng, x, theta, env, axes, scales, draws, thin):
        kept = np.empty((draws, 4))
        tried, moved, turn = np.zeros(2), np.zeros(2), 0
        for t in range(draws):
            x, theta, _, _, more, taken, _ = sweeps(rng, x, theta, env, axes, scales, thin, 3, turn)
            turn += 3 * thin
            tried += more
            moved += taken
            kept[t, :2], kept[t, 2], kept[t, 3] = theta, x[0].mean(), x[0][0]
        return kept, tried, moved

    return chain


def run_normal(in_full=False, seed=4, **changes):
    """Draws of (a, b, mean of x, x_0), and the accepted share of the moves along each axis."""
    env = (np.array(list({**RIGHT, **changes}.values())),)
    axes, scales = np.array([[1.0, 0.7], [0.2, -0.6]]), np.array([0.9, 1.4])
    x, theta, rng = (np.zeros(N),), np.array([0.4, 0.1]), np.random.default_rng(seed)
    kept, tried, moved = normal_chain(in_full)(rng, x, theta, env, axes, scales, 8_000, 20)
    assert abs(tried[0] - tried[1]) <= 1
    return kept[100:], moved / tried


def normal_posterior():
    """Mean and covariance of (a, b, mean of x, x_0) given the release, without a bound."""
    mean = np.array([0.0, 1.0, 1.0, 1.0])
    common = np.array([1.0, 0.25])
    cov = np.empty((4, 4))
    cov[:2, :2] = np.diag(common)
    cov[:2, 2:] = common[:, None]
    cov[2:, :2] = common
    cov[2:, 2:] = common.sum() + np.array([[1 / N, 1 / N], [1 / N, 1.0]])
    gain = cov[:, 2] / (cov[2, 2] + NOISE**2)
    return mean + gain * (Z - mean[2]), cov - np.outer(gain, cov[2])


DIRECTIONS = [*np.eye(4), [1, 1, -1, 0], [1, -1, 0, 0], [0, 0, 1, -1], [1, 1, 1, 1]]


def follows_posterior(kept, level=P_VALUE):
    mean, cov = normal_posterior()
    for direction in np.array(DIRECTIONS, dtype=float):
        law = stats.norm(direction @ mean, math.sqrt(direction @ cov @ direction))
        follows(kept @ direction, law, level)


@pytest.mark.parametrize("in_full", IN_FULL)
@pytest.mark.by_day("True")
def test_parameters_and_records_of_a_normal_model(in_full):
    kept, share = run_normal(in_full)
    assert np.all((share > 0.2) & (share < 0.9))
    follows_posterior(kept)


@pytest.mark.nightly
def test_axes_without_columns_are_the_coordinates():
    env = (np.array(list(RIGHT.values())),)

    def moved(axes):
        rng, x, theta = np.random.default_rng(3), (np.zeros(N),), np.array([0.4, 0.1])
        return normal_chain(False)(rng, x, theta, env, axes, np.array([0.9, 1.4]), 50, 5)

    for found, expected in zip(moved(np.zeros((2, 0))), moved(np.eye(2)), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("in_full", IN_FULL)
def test_parameters_stay_where_the_prior_is(in_full):
    kept, _ = run_normal(in_full, bound=0.3)
    assert kept[:, 0].min() >= 0.3
    mean, cov = normal_posterior()
    sd = math.sqrt(cov[0, 0])
    law = stats.truncnorm((0.3 - mean[0]) / sd, np.inf, mean[0], sd)
    follows(kept[:, 0], law, P_VALUE)


@pytest.mark.by_day("wrong ratio", "no prior")
@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"coupling": 0.0}, id="records stay"),
        pytest.param({"coupling": 0.5}, id="records lag behind"),
        pytest.param({"prior": 0.0}, id="no prior"),
        pytest.param({"ratio": 1.5}, id="wrong ratio"),
        pytest.param({"cut": 0.0}, id="wrong sums"),
    ],
)
def test_wrong_samplers_fail(wrong):
    """The thresholds above would catch a sampler that is a little wrong."""
    kept, _ = run_normal(**wrong)
    with pytest.raises(AssertionError):
        follows_posterior(kept, 1e-8)


# --- Binary records, whose coupling needs random numbers of its own -------------------------------


def by_steps(rng, draws):
    sweeps = make_sweeps(BINARY, by_sums(BINARY))
    x, theta = (np.zeros(4, np.int64),), np.zeros(1)
    env, axes, scales = (np.array([3.4]),), np.eye(1), np.array([1.5])
    kept = np.empty((draws, 2))
    for t in range(draws):
        x, theta, _, _, _, _, _ = sweeps(rng, x, theta, env, axes, scales, 12, 2, 0)
        kept[t, 0], kept[t, 1] = theta[0], x[0].sum()
    return kept


def in_a_chain(rng, draws, direct, functions=ONE_GROUP, moves=(1, 2)):
    chain = make_chain(functions, direct)
    kept, counts = np.empty((draws, 2)), np.array([8, *moves])
    scales, turns, seen = np.full((2, 1), 1.5), np.zeros(2, np.int64), np.zeros((1, 3))
    x, theta = (np.zeros(4, np.int64),), np.zeros(1)
    chain(rng, x, theta, (np.array([3.4]),), np.eye(1), scales, counts, turns, seen, kept)
    return kept


def follows_binary(kept):
    theta, count = kept.T
    edges = np.array([-9.0, -1.2, -0.6, -0.2, 0.1, 0.4, 0.7, 1.0, 1.5, 9.0])
    exact = np.array([
        [
            integrate.quad(
                lambda t, k=k: stats.norm.pdf(t) * stats.binom.pmf(k, 4, special.expit(t)), a, b
            )[0] * math.exp(-abs(k - 3.4) / 0.8)
            for a, b in pairwise(edges)
        ]
        for k in range(5)
    ])  # fmt: skip
    counts = np.zeros_like(exact)
    cell = np.clip(np.searchsorted(edges, theta) - 1, 0, 8)
    np.add.at(counts, (count.astype(int), cell), 1)
    counts_follow(counts, exact, P_VALUE)


@pytest.mark.nightly
def test_parameters_and_records_of_a_binary_model():
    follows_binary(by_steps(np.random.default_rng(6), 20_000))


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("moves", [(1, 2), (0, 2), (2, 0)])
def test_a_chain_of_a_binary_model(direct, moves):
    follows_binary(in_a_chain(np.random.default_rng(6), 20_000, direct, moves=moves))


def test_a_chain_without_the_prior_fails():
    """The threshold above would catch moves given the records that are wrong."""
    functions = ONE_GROUP._replace(laws=BINARY_LAW._replace(law=law_without_prior))
    with pytest.raises(AssertionError):
        follows_binary(in_a_chain(np.random.default_rng(6), 20_000, False, functions))


SUMS = np.array([3.4, 0.9])  # of two groups


def of_two_groups(rng, draws, functions=TWO_GROUPS, direct=False, moves=(1, 2)):
    chain = make_chain(functions, direct)
    kept, counts = np.empty((draws, 3)), np.array([8, *moves])
    scales, turns, seen = np.full((2, 1), 1.5), np.zeros(2, np.int64), np.zeros((2, 3))
    x, env = ((np.zeros(4, np.int64),),) * 2, ((SUMS[:1],), (SUMS[1:],))
    chain(rng, x, np.zeros(1), env, np.eye(1), scales, counts, turns, seen, kept)
    assert np.all(seen[:, 0] > draws)
    assert seen[0, 1] != seen[1, 1]
    return kept


def follows_two_groups(kept):
    theta, *counts = kept.T
    edges = np.array([-9.0, -0.6, 0.0, 0.6, 9.0])
    k = np.arange(5)
    weights = np.exp(-abs(k[:, None] - SUMS) / SCALE)
    exact = np.array([
        [
            [
                integrate.quad(
                    lambda t, i=i, j=j: stats.norm.pdf(t)
                    * stats.binom.pmf([i, j], 4, special.expit(t)).prod(),
                    a, b,
                )[0] * weights[i, 0] * weights[j, 1]
                for a, b in pairwise(edges)
            ]
            for j in k
        ]
        for i in k
    ])  # fmt: skip
    found = np.zeros_like(exact)
    cell = np.searchsorted(edges, theta) - 1
    np.add.at(found, (*np.array(counts, int), cell), 1)
    counts_follow(found, exact, P_VALUE)


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("moves", [(1, 2), (0, 2), (2, 0)])
@pytest.mark.by_day("moves0-False", "moves2-True")
def test_a_chain_of_two_groups(direct, moves):
    rng = np.random.default_rng(6)
    follows_two_groups(of_two_groups(rng, 20_000, direct=direct, moves=moves))


@pytest.mark.parametrize("moves", [(2, 0), (0, 2)])
def test_a_chain_with_two_priors_fails(moves):
    """The threshold above would catch moves that are a little wrong in the second group."""
    wrong = together(ONE_GROUP, ONE_GROUP._replace(laws=SECOND.laws))
    if moves[0] == 0:
        wrong = together(ONE_GROUP, SECOND._replace(laws=SECOND.laws._replace(law=binary_law)))
    with pytest.raises(AssertionError):
        follows_two_groups(of_two_groups(np.random.default_rng(6), 20_000, wrong, moves=moves))


def test_pieces_of_a_chain_are_those_of_one():
    """Draws do not depend on the pieces in which they are made."""
    chain = make_chain(TWO_GROUPS, False)
    found = []
    for sizes in ((30,), (1, 9, 20)):
        rng, turns = np.random.default_rng(3), np.zeros(2, np.int64)
        x, env = ((np.zeros(4, np.int64),),) * 2, ((SUMS[:1],), (SUMS[1:],))
        theta, parts, seen = np.zeros(1), [], np.zeros((2, 3))
        for size in sizes:
            parts.append(np.empty((size, 3)))
            how = np.eye(1), np.full((2, 1), 1.5), np.array([3, 1, 2]), turns, seen, parts[-1]
            x, theta, *_ = chain(rng, x, theta, env, *how)
        found.append(np.concatenate(parts))
    np.testing.assert_array_equal(*found)


# --- Densities that are zero or not a number ------------------------------------------------------


@njit(cache=True)
def odd_density(sums, public):
    if sums[0] > public[0]:
        return np.nan
    return -np.inf if sums[0] < public[1] else 0.0


@njit(cache=True)
def odd_density_in_full(theta, x, z):
    return (np.asarray(odd_density(np.array([x.sum() * 1.0]), z)),)


@cache
def odd_sweeps(in_full):
    pieces = BINARY._replace(density=odd_density, prior=no_prior)
    return make(pieces, in_full, odd_density_in_full)


@pytest.mark.parametrize("in_full", IN_FULL)
@pytest.mark.parametrize("start", [0, 1, 4])
def test_impossible_records_are_left_and_never_entered(in_full, start):
    """With one to three of four records set the density is 0, else it is -inf or NaN."""
    sweeps = odd_sweeps(in_full)
    x = (np.repeat([1, 0], [start, 4 - start]),)
    theta, env, rng = np.zeros(1), (np.array([3.0, 1.0]),), np.random.default_rng(7)
    arguments = env, np.eye(1), np.array([1.0])
    x, theta, _, lowest, *_ = sweeps(rng, x, theta, *arguments, 3, 0, 0)
    if start == 4:
        assert math.isnan(lowest)
        return
    found = {lowest}
    for _ in range(300):
        x, theta, _, lowest, *_ = sweeps(rng, x, theta, *arguments, 1, 2, 0)
        assert 1 <= x[0].sum() <= 3
        found.add(lowest)
    assert found == {0.0, -math.inf}
