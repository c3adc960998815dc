"""Rows of noisy measurement files."""

import re

import numpy as np
import pytest

import pymc_dp as dp

pd = pytest.importorskip("pandas", reason="needs the extra [parquet]")

ROWS = pd.DataFrame(
    {
        "geocode": ["1", "2", "3"],
        "value": [12, -3, 40],
        "variance": [4.0, 6.25, 4.0],
        "query": ["total", "total", "votingage"],
    }
)


def test_variance_becomes_the_standard_deviation():
    release = dp.Release.from_nmf(ROWS, label="geocode", name="people")
    np.testing.assert_array_equal(release.mechanism.sigma.eval(), [2.0, 2.5, 2.0])
    assert type(release.mechanism) is dp.DiscreteGaussianMechanism
    assert release.value.tolist() == [12, -3, 40]
    assert release.value.dtype == "int64"
    assert release.coords == {"geocode": ("1", "2", "3")}
    renamed = dp.Release.from_nmf(ROWS, label="geocode", dims="place")
    assert (renamed.dims, renamed.coords) == (("place",), None)
    with pytest.raises(ValueError, match="'variance' holds several numbers a row"):
        dp.Release.from_nmf(ROWS.assign(variance=[[1, 2]] * len(ROWS)), value="value")
    assert (release.name, release.dims) == ("people", ("geocode",))
    assert release.privacy.measure == "zero-concentrated"
    # P(Z = s) of the discrete Gaussian, by its definition.
    k = np.arange(-60, 61)
    mass = 1 / np.exp(-(k**2) / (2 * 6.25)).sum()
    logp = release.mechanism.logp(release.value, release.value).eval()
    np.testing.assert_allclose(logp[1], np.log(mass))


def test_one_variance_is_one_sigma():
    some = ROWS[ROWS["variance"] == 4.0]
    assert repr(dp.Release.from_nmf(some).mechanism) == "DiscreteGaussianMechanism(sigma=2.0)"


def test_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "rows.parquet"
    ROWS.rename(columns={"value": "noisy", "variance": "var"}).to_parquet(path)
    release = dp.Release.from_nmf(path, value="noisy", variance="var", label="geocode")
    expected = dp.Release.from_nmf(ROWS, label="geocode")
    assert release.to_json() == expected.to_json()
    assert dp.Release.from_nmf(str(path), value="noisy", variance="var").dims is None


def test_polars_frame():
    pl = pytest.importorskip("polars", reason="needs the extra [opendp]")
    frame = pl.DataFrame({name: ROWS[name].tolist() for name in ROWS})
    release = dp.Release.from_nmf(frame, label="geocode")
    assert release.to_json() == dp.Release.from_nmf(ROWS, label="geocode").to_json()


def test_parquet_without_pandas(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(ImportError, match=re.escape("pymc-dp[parquet]")):
        dp.Release.from_nmf(tmp_path)


def test_queries_of_several_counts(tmp_path):
    rows = ROWS.assign(value=[[1, 2], [-3, 4], [5, 6]])
    release = dp.Release.from_nmf(rows, label="geocode")
    assert release.value.tolist() == [[1, 2], [-3, 4], [5, 6]]
    np.testing.assert_array_equal(release.mechanism.sigma.eval(), [[2.0], [2.5], [2.0]])
    assert release.dims == ("geocode", "value_1")
    path = tmp_path / "rows.parquet"
    rows.to_parquet(path)
    assert dp.Release.from_nmf(path, label="geocode").to_json() == release.to_json()
    with pytest.raises(ValueError, match=r"'value' hold .* select the rows of one query"):
        dp.Release.from_nmf(rows.assign(value=[[1, 2], [3], [4, 5]]))


@pytest.mark.parametrize(
    ("rows", "error", "match"),
    [
        (ROWS.drop(columns="variance"), ValueError, "no column 'variance' among geocode, value"),
        (
            ROWS.assign(variance=[4.0, 0.0, 4.0]),
            ValueError,
            "variance .*got 0.0 at index 1.*invari",
        ),
        (ROWS.assign(variance=[4.0, np.nan, 4.0]), ValueError, "variance .*got nan at index 1"),
        (ROWS.assign(value=[1.0, 2.5, 3.0]), ValueError, "value must be whole, got 2.5 at index 1"),
        (ROWS[:0], ValueError, "value is empty"),
        (ROWS["value"], TypeError, "a parquet path or a data frame is needed, got Series"),
    ],
)
def test_refusals(rows, error, match):
    with pytest.raises(error, match=match):
        dp.Release.from_nmf(rows)
