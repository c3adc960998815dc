"""Draws along directions, against every table written out, and the choice of directions."""

import itertools

import numpy as np
import pytest
from scipy import special, stats

from pymc_dp.kernels.counts import laws
from pymc_dp.kernels.counts.directions import RISING, make_direction_sweep, short_directions
from pymc_dp.kernels.counts.tables import Releases
from tests.agreement import values_follow

# Two binary covariates and what they have in common: the rows of the cells, in X'y.
ROWS = np.array([[1, 0, 0], [1, 0, 1], [1, 1, 0], [1, 1, 1]])
Z = np.array([5.2, 2.1, 3.4])
TRIALS, CHANCE = np.array([2.0, 3, 2, 3]), np.array([0.3, 0.6, 0.5, 0.8])
RATES = np.array([0.5, 1.0, 0.8, 1.2])


def releases(lam, tau):
    first = np.arange(0, 13, 3)
    cells = np.tile(np.arange(3), 4)
    return Releases(Z, np.full(3, lam), np.full(3, tau), first, cells, ROWS.ravel().astype(float))


def metric(rows, precision, variance):
    return np.diag(1 / variance) + rows @ np.diag(precision) @ rows.T


@pytest.mark.parametrize(("lam", "tau"), [(0.5, 0.0), (0.0, 4.0), (1.0, 1.0)])
@pytest.mark.parametrize("law", ["binomial", "Poisson"])
def test_draws_have_the_conditional_law(law, lam, tau):
    if law == "binomial":
        sweep, theta = make_direction_sweep(laws.BINOMIAL), np.array([TRIALS, CHANCE])
        ends, log_law = TRIALS.astype(int), stats.binom(TRIALS, CHANCE).logpmf
    else:
        sweep, theta = make_direction_sweep(laws.POISSON), RATES[None]
        ends, log_law = np.full(4, 9), stats.poisson(RATES).logpmf
    tables = np.array(list(itertools.product(*(range(n + 1) for n in ends))), dtype=float)
    e = Z - tables @ ROWS
    chances = special.softmax(
        log_law(tables).sum(axis=1) - (lam * np.abs(e) + 0.5 * tau * e**2).sum(axis=1)
    )
    directions = np.vstack([np.eye(4), [1.0, -1, -1, 1], [1, 1, 0, -1], [2, -1, 0, 0]])
    widths = np.array([1.0, 2, 3, 1, 2, 2, 1])
    rng, y, found = np.random.default_rng(2), np.ones(4), np.empty((6_000, 4))
    for k in range(len(found)):
        assert sweep(rng, y, theta, directions, widths, releases(lam, tau), 1)
        found[k] = y
    possible = (found <= ends).all(axis=1)
    assert possible.mean() > 0.999  # of Poisson counts the list ends
    values_follow(found[possible], tables, chances)


def test_a_start_that_is_impossible_is_refused():
    sweep = make_direction_sweep(laws.BINOMIAL)
    theta, y = np.array([TRIALS, CHANCE]), np.array([9.0, 0, 0, 0])
    rng = np.random.default_rng(0)
    assert not sweep(rng, y, theta, np.eye(4), np.ones(4), releases(1.0, 0.0), 1)


@pytest.mark.parametrize("integrated", [False, True])
def test_tables_with_a_total_against_all_of_them(integrated):
    """2 x 2 x 2 of 5, whose three margins overlap; Dirichlet parameters below and above 1."""
    cells = np.array(list(itertools.product([0, 1], repeat=3)))
    margins = np.array([(cells[:, :2] == m).all(1) for m in cells[::2, :2]], dtype=float)
    margins = np.vstack([margins, [(cells[:, 1:] == m).all(1) for m in cells[:4, 1:]]])
    bars = np.array(list(itertools.combinations(range(12), 7)))
    tables = np.diff(bars, axis=1, prepend=-1, append=12) - 1.0
    z = margins @ [2.0, 0, 0, 1, 0, 1, 1, 0] + np.linspace(-0.8, 0.9, 8)
    a = np.array([0.3, 1.0, 2.5, 0.6, 1.0, 4.0, 0.2, 1.3])
    first, weight = np.arange(0, 17, 2), np.ones(16)
    which = np.array([np.flatnonzero(margins[:, i]) for i in range(8)]).ravel()
    noise = Releases(z, np.full(8, 0.3), np.full(8, 0.5), first, which, weight)
    if integrated:
        sweep, theta = make_direction_sweep(RISING), a[None]
        prior = special.gammaln(tables + a) - special.gammaln(tables + 1)
    else:
        sweep, theta = make_direction_sweep(laws.POISSON), a[None]
        prior = tables * np.log(a) - special.gammaln(tables + 1)
    e = z - tables @ margins.T
    log_chances = prior.sum(axis=1) - (0.3 * np.abs(e) + 0.25 * e**2).sum(axis=1)
    moves = np.eye(8)[:-1] - np.eye(8)[1:]
    moves = np.vstack([moves, (-1.0) ** cells.sum(axis=1), [1, -1, -1, 1, 0, 0, 0, 0]])
    rng, y, found = np.random.default_rng(3), np.array([5.0, *[0] * 7]), np.empty((6_000, 8))
    for k in range(len(found)):
        assert sweep(rng, y, theta, moves, np.full(len(moves), 2.0), noise, 4)
        found[k] = y
    values_follow(found, tables, special.softmax(log_chances))


def test_directions_leave_the_sums_alone_where_noise_is_small():
    """They are a basis of the whole numbers; single cells where noise is large."""
    rows = np.array(list(itertools.product([1], [0, 1], [0, 1], [0, 1])))
    sharp = short_directions(metric(rows, np.full(4, 100.0), np.full(8, 10.0)))
    assert round(abs(np.linalg.det(sharp))) == 1
    still = [v for v in sharp if not (v @ rows).any()]
    assert len(still) == 4  # of 8 cells with 4 sums
    assert np.abs(still).sum(axis=1).max() == 4  # two up, two down
    np.testing.assert_array_equal(
        short_directions(metric(rows, np.full(4, 1e-6), np.full(8, 10.0))), np.eye(8)
    )


def test_a_reduced_basis_of_real_weights():
    rng = np.random.default_rng(4)
    rows, variance = rng.normal(size=(60, 5)), rng.uniform(1, 50, 60)
    form = metric(rows, np.full(5, 1e4), variance)
    found = short_directions(form)
    assert round(abs(np.linalg.det(found))) == 1
    lengths = np.einsum("di,ij,dj->d", found, form, found)
    # Gram-Schmidt vectors do not shrink by more than a half.
    factor = np.linalg.cholesky(found @ form @ found.T)
    squares, coefficients = np.diag(factor) ** 2, factor / np.diag(factor)
    assert (squares[1:] > 0.4 * squares[:-1]).all()
    assert np.abs(np.tril(coefficients, -1)).max() < 0.5 + 1e-6
    assert np.median(lengths) < 0.01 * np.median(np.diag(form))
