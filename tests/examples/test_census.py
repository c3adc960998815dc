"""The census example: totals kept, and intervals that cover."""

import numpy as np
import pytest

import pymc_dp as dp
from pymc_dp.examples import census

DRAWS, SEED = 200, 2


@pytest.fixture(scope="module")
def geography():
    return census.simulate(80, SEED)


@pytest.fixture(scope="module")
def idata(geography):
    return census.fit(census.build(geography), DRAWS, SEED, progressbar=False)


@pytest.fixture(scope="module")
def found(geography, idata):
    return census.intervals(geography, idata)


def test_counties_are_sums_of_ten_tracts_in_a_row():
    table = np.arange(40).reshape(1, 2, 20)
    expected = [[[45, 145], [245, 345]]]
    np.testing.assert_array_equal(census.by_county(table), expected)


def test_the_counts_are_drawn_as_a_table(geography):
    """Their own law as the proposal, whole states at a time, would hardly move."""
    with census.build(geography) as model:
        [step] = dp.steps(model)
    assert isinstance(step, dp.TableGibbs)


def test_the_releases_are_of_the_true_counts(geography):
    tract = (geography.tracts - geography.counts) / census.SIGMA["tract"]
    county = geography.counties - census.by_county(geography.counts)
    assert 0.7 < tract.std() < 1.3
    assert np.all(np.abs(county) < 5 * census.SIGMA["county"])
    np.testing.assert_array_equal(geography.totals, geography.counts.sum(axis=1))


@pytest.mark.nightly
def test_totals_hold_in_every_draw(geography, idata):
    counts = idata["posterior"]["count"].to_numpy()
    assert counts.min() >= 0
    assert counts.shape == (2, DRAWS, *geography.counts.shape)
    assert np.all(counts.sum(axis=-1) == geography.totals)
    assert np.ptp(counts, axis=(0, 1)).min() > 0  # and no tract is stuck


def cover(truth, ends):
    return np.mean((ends[0] <= truth) & (truth <= ends[1]))


@pytest.mark.parametrize("name", ["counts of tracts", "rates of tracts"])
@pytest.mark.nightly
def test_exact_intervals_cover(found, name):
    truth, _, exact = found[name]
    # 80 intervals of 90%: four standard errors, and the tracts of a county are not independent.
    assert cover(truth, exact) > census.LEVEL - 0.14


@pytest.mark.nightly
def test_the_noise_is_ignored_at_a_price(found):
    truth, naive, exact = found["rates of tracts"]
    assert cover(truth, naive) < 0.75
    assert cover(truth, naive) < cover(truth, exact)
    width = {k: np.median(v[1] - v[0]) for k, v in enumerate(found["counts of tracts"][1:])}
    assert width[1] < width[0]  # the other tracts, and the totals, say something too


@pytest.mark.nightly
def test_picture(found):
    figure = census.picture(found)
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert titles == [
        "90% intervals for the counts of tracts",
        "90% intervals for the rates of tracts",
    ]
    assert all(axis.collections for axis in figure.axes)
    assert all(axis.get_xlabel() for axis in figure.axes)
