"""Rubin's rules for synthetic files: formulas, coverage, refusals."""

import numpy as np
import pytest
import xarray as xr
from scipy import stats

import pymc_dp as dp


def test_the_formulas_for_each_parameter():
    q = np.array([[1.0, 5.0], [3.0, 5.5], [5.0, 6.0]])
    u = np.array([[0.5, 0.02], [1.0, 0.03], [1.5, 0.04]])
    pooled = dp.rubin(q, u)
    b = np.array([4.0, 0.25])
    total = 4 / 3 * b - [1.0, 0.03]
    np.testing.assert_allclose(pooled.estimate, [3.0, 5.5])
    np.testing.assert_allclose(pooled.sd, np.sqrt(total))
    df = 2 * (1 - np.array([1.0, 0.03]) / (4 / 3 * b)) ** 2
    np.testing.assert_allclose(pooled.df, df)
    low, high = pooled.interval(0.8)
    exact = stats.t(df, pooled.estimate, np.sqrt(total)).interval(0.8)
    np.testing.assert_allclose([low, high], exact)
    alone = dp.rubin(q[:, 1], u[:, 1])
    np.testing.assert_allclose(alone, [x[1] for x in pooled])


def test_draws_of_a_result_are_the_files_and_keep_their_labels():
    rng = np.random.default_rng(1)
    q, u = rng.normal(size=(3, 2, 10)), rng.uniform(0.1, 0.2, size=(3, 2, 10))
    names, coords = ("term", "chain", "draw"), {"term": ["a", "b", "c"]}
    labelled = dp.rubin(xr.DataArray(q, coords, names), xr.DataArray(u, coords, names))
    plain = dp.rubin(q.reshape(3, 20).T, u.reshape(3, 20).T)
    for found, exact in zip(
        (*labelled, *labelled.interval()), (*plain, *plain.interval()), strict=True
    ):
        assert found.dims == ("term",)
        np.testing.assert_allclose(found.sel(term=["c", "a"]), exact[[2, 0]])


@pytest.mark.parametrize("noise", [0.0, 0.2], ids=["rows", "release"])
def test_intervals_cover(noise):
    """The mean of n Normal records, released with noise; files are of the posterior predictive."""
    rng, n, m, repeats = np.random.default_rng(3), 60, 100, 4_000
    spread = np.sqrt(1 / n + noise**2)  # of what was published, and of the posterior
    mean = rng.normal(0, spread, repeats) + rng.normal(0, spread, (m, repeats))
    q = rng.normal(mean, np.sqrt(1 / n))
    u = rng.chisquare(n - 1, q.shape) / (n - 1) / n
    pooled = dp.rubin(q, u)
    low, high = pooled.interval(0.9)
    assert abs(np.mean((low < 0) & (high > 0)) - 0.9) < 0.02
    error = (pooled.sd**2).std() / np.sqrt(repeats)
    assert abs((pooled.sd**2).mean() - spread**2) < 5 * error


def test_a_negative_variance_gives_way_to_the_sampling_of_the_rows():
    q = np.array([[1.0, 1.0, 2.0], [1.1, 1.0, 2.0], [0.9, 1.0, 2.0]])
    u = np.full((3, 3), [0.4, 0.4, 0.0])
    pooled = dp.rubin(q, u, relative_size=0.5)
    np.testing.assert_allclose(pooled.sd, np.sqrt([0.2, 0.2, 0.0]))
    assert np.isinf(pooled.df).all()
    np.testing.assert_allclose(pooled.interval()[1] - [1, 1, 2], 1.959964 * pooled.sd, rtol=1e-6)


@pytest.mark.parametrize(
    ("estimates", "variances", "more", "message"),
    [
        ([1.0], [1.0], {}, "two files or more along the first axis, not 1"),
        (1.0, 1.0, {}, "two files or more along the first axis, not 0"),
        (
            xr.DataArray([1.0, 2.0]),
            xr.DataArray([1.0, 2.0]),
            {},
            "two files or more along chain and draw, not 0",
        ),
        ([1.0, 2.0], [[1.0, 2.0]], {}, "need the same shape, not"),
        ([1.0, 2.0], xr.DataArray([1.0, 2.0], dims="draw"), {}, "need the same shape, not"),
        ([1.0, 2.0], [1.0, -1e-9], {}, "not negative"),
        ([1.0, np.nan], [1.0, 1.0], {}, "have to be finite"),
        ([1.0, 2.0], [1.0, 1.0], {"relative_size": 0}, "relative_size=0 is no number > 0"),
    ],
)
def test_refusals(estimates, variances, more, message):
    with pytest.raises(ValueError, match=message):
        dp.rubin(estimates, variances, **more)


def test_draws_that_are_not_the_same_are_refused():
    q, u = (xr.DataArray([1.0, 2.0], {"draw": d}, ("draw",)) for d in ([0, 1], [1, 2]))
    with pytest.raises(ValueError, match="cannot align"):
        dp.rubin(q, u)
    with pytest.raises(ValueError, match="level=95 is no probability"):
        dp.rubin([1.0, 2.0], [0.1, 0.1]).interval(95)
