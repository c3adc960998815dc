"""Sweeps over tables with noisy cells and noisy sums, against every table written out."""

import numpy as np
import pytest
from scipy import special, stats

from pymc_dp.kernels.counts import laws as count_laws
from pymc_dp.kernels.counts.directions import RISING
from pymc_dp.kernels.counts.noise import ADDITIVE
from pymc_dp.kernels.counts.sums import make_count_draw
from pymc_dp.kernels.counts.tables import (
    Gaps,
    Releases,
    _cells_of,
    _partner,
    make_cell_sweep,
    make_pair_sweep,
    sums_of,
)
from tests.agreement import has_moments, same_means, values_follow

# Two tables of three cells: a noisy value of each cell, and of sums over (0, 1), 2, (3, 4), 5, in
# which cell 1 counts twice.
Z = np.array([2.0, 3, 1, 0, 4, 2, 6.0, 0.5, 3, 3])
MATRIX = np.vstack([np.eye(6), np.zeros((4, 6))])
MATRIX[6, :2], MATRIX[7, 2], MATRIX[8, 3:5], MATRIX[9, 5] = (1, 2), 1, 1, 1
NOISES = {
    "mixed": (np.repeat([0.0, 0.7], [6, 4]), np.repeat([0.3, 0.0], [6, 4])),
    "exponential": (np.full(10, 0.6), np.zeros(10)),
    "Gaussian": (np.zeros(10), np.full(10, 0.4)),
}
RATES = np.array([1.0, 2, 3, 1, 1, 0.5])


def releases(noise):
    cell, which = np.nonzero(MATRIX.T)
    first = np.searchsorted(cell, np.arange(7))
    return Releases(Z, *NOISES[noise], first, which, MATRIX[which, cell])


def all_counts(cells):
    none = np.zeros(0, dtype=np.int64)
    return Gaps(np.ones(cells), np.zeros(cells), np.zeros(1, np.int64), none, none, none, none)


def log_noise(noise, tables):
    lam, tau = NOISES[noise]
    e = Z - tables @ MATRIX.T
    return -(lam * np.abs(e) + 0.5 * tau * e**2).sum(axis=1)


def draws(sweep, y, n, *arguments):
    rng = np.random.default_rng(3)
    out = np.empty((n, 6))
    for k in range(n):
        for _ in range(4):
            assert sweep(rng, y, *arguments, all_counts(y.size))
        out[k] = y
    return out


def compositions(total):
    return [(i, j, total - i - j) for i in range(total + 1) for j in range(total + 1 - i)]


THETA = {
    "poisson": RATES[None],  # the draw is exact, and by a slice for others
    "rising": RATES[None],
    "binomial": np.array([[3.0, 4, 3, 6, 2, 3], [0.2, 0.5, 0.6, 0.3, 0.3, 0.1]]),
}


@pytest.mark.parametrize("law", [count_laws.POISSON, RISING, count_laws.BINOMIAL], ids=THETA)
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.by_day("mixed-poisson", "mixed-rising", "Gaussian-binomial")
def test_tables_of_known_totals(noise, law):
    sweep, theta = make_pair_sweep(law), THETA[law.name]
    found = draws(sweep, np.array([2.0, 2, 1, 3, 1, 2]), 15_000, theta, 3, releases(noise))
    np.testing.assert_array_equal(found.reshape(-1, 2, 3).sum(axis=2), np.tile([5, 6], (15_000, 1)))
    tables = np.array([a + b for a in compositions(5) for b in compositions(6)])
    prior = {
        "poisson": lambda: stats.poisson(RATES).logpmf(tables),
        "rising": lambda: special.gammaln(tables + RATES) - special.gammaln(tables + 1),
        "binomial": lambda: stats.binom(*theta).logpmf(tables),
    }[law.name]()
    chances = special.softmax(prior.sum(axis=1) + log_noise(noise, tables))
    assert np.sum(chances * len(found) > 10) > 30
    values_follow(found, tables, chances)


def test_partners_are_of_one_sum_or_of_the_block():
    rng, rel = np.random.default_rng(2), releases("mixed")
    pairs = {(i, _partner(rng, i, 3 * (i // 3), 3, rel, *_cells_of(rel)))
             for _ in range(200) for i in range(6)}  # fmt: skip
    assert pairs == {(i, j) for i in range(6) for j in range(3 * (i // 3), 3 * (i // 3) + 3)}
    one_sum = [_partner(rng, 0, 0, 3, rel, *_cells_of(rel)) for _ in range(6000)]
    has_moments(np.array(one_sum) == 2, 1 / 6)  # half of the partners are of the sum of 0 and 1


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.by_day("exponential")
def test_independent_cells(noise):
    sweep = make_cell_sweep(count_laws.POISSON)
    found = draws(sweep, np.array([2.0, 2, 1, 3, 0, 3]), 15_000, RATES[None], releases(noise))
    prior = np.random.default_rng(1).poisson(RATES, size=(400_000, 6)).astype(float)
    weight = np.exp(log_noise(noise, prior))
    for statistic in (lambda t: t, lambda t: t**2, lambda t: t[:, :3] * t[:, 3:]):
        values = statistic(prior)
        expected = weight @ values / weight.sum()
        error = np.sqrt((weight**2) @ (values - expected) ** 2) / weight.sum()
        has_moments(statistic(found), expected, mean_se=error)


@pytest.mark.nightly
def test_pairs_and_cells_agree_on_poisson_tables():
    # As `TableGibbs` alternates them: together they leave the same law.
    cells, pairs = make_cell_sweep(count_laws.POISSON), make_pair_sweep(count_laws.POISSON)
    rel, rng = releases("mixed"), np.random.default_rng(5)
    y, out = np.full(6, 2.0), np.empty((15_000, 6))
    for k in range(len(out)):
        cells(rng, y, RATES[None], rel, all_counts(6))
        pairs(rng, y, RATES[None], 6, rel, all_counts(6))
        out[k] = y
    alone = draws(cells, np.full(6, 2.0), 15_000, RATES[None], rel)
    same_means(out[None], alone[None])


def test_cells_that_must_be_empty_stay_so():
    rates = RATES.copy()
    rates[[0, 3, 4]] = 0.0
    y = np.array([0.0, 3, 2, 0, 0, 6])
    found = draws(make_pair_sweep(count_laws.POISSON), y, 200, rates[None], 3, releases("mixed"))
    assert np.all(found[:, [0, 3, 4]] == 0)
    assert len(np.unique(found[:, 1])) > 2


def test_large_counts():
    # The Gaussian limit: three cells of 1e9 with a total, noise of sd 100 on each.
    n, sd, tau = 3e9, 100.0, 1e-4
    z = np.array([1e9 + 50, 1e9 - 20, 1e9 + 10])
    rel = Releases(z, np.zeros(3), np.full(3, tau), np.arange(4), np.arange(3), np.ones(3))
    rng, y = np.random.default_rng(1), np.full(3, 1e9)
    sweep = make_pair_sweep(count_laws.POISSON)
    out = np.array(
        [(sweep(rng, y, np.ones((1, 3)), 3, rel, all_counts(3)), *y)[1:] for _ in range(4000)]
    )
    np.testing.assert_array_equal(out.sum(axis=1), n)
    # The law of the counts is flat at this scale: the releases, less their common excess.
    has_moments(out, z - (z.sum() - n) / 3, np.full(3, sd * (2 / 3) ** 0.5), sd_within=0.06)


def test_sums():
    y = np.arange(6.0)
    np.testing.assert_array_equal(sums_of(y, releases("mixed")), MATRIX @ y)


@pytest.mark.parametrize(
    ("law", "theta", "exact"),
    [
        (count_laws.POISSON, (30.0,), stats.poisson(30)),
        (count_laws.BINOMIAL, (60.0, 0.4), stats.binom(60, 0.4)),
        (count_laws.NEGATIVE_BINOMIAL, (0.1, 4.0, 0.9), stats.nbinom(4, 0.1)),
    ],
    ids=["Poisson", "binomial", "negative binomial"],
)
@pytest.mark.parametrize(("step", "rest"), [(7, 3), (12, 5)])
def test_counts_of_a_step_and_a_rest(law, theta, exact, step, rest):
    """What is between them is walked through, from a mode that is impossible itself."""
    draw, rng = make_count_draw(law, ADDITIVE), np.random.default_rng(1)
    z, noise = 25.3, (0.1, 0.002)
    arguments = (z, noise, theta, -np.inf, np.inf, float(step), float(rest))
    found = np.array([draw(rng, *arguments) for _ in range(20_000)])
    counts = rest + step * np.arange(40)
    e = np.abs(counts - z)
    log_weight = exact.logpmf(counts) - noise[0] * e - 0.5 * noise[1] * e**2
    values_follow(found, counts, special.softmax(log_weight))


def test_no_count_of_a_step_is_in_reach():
    draw, rng = make_count_draw(count_laws.POISSON, ADDITIVE), np.random.default_rng(1)
    arguments = (3.0, (0.0, 5.0), (2.0,), -np.inf, np.inf)
    assert np.isnan(draw(rng, *arguments, 1e6, 5e5))
    assert draw(rng, *arguments, 1e6, 4.0) == 4.0
