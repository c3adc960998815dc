"""Tables with a column of noise."""

import numpy as np
import pandas as pd
import pytest

import pymc_dp as dp

ROWS = pd.DataFrame(
    {
        "town": ["Bo", "Aa", "Bo", "Aa"],
        "sex": ["f", "m", "m", "f"],
        "cases": [12, -3, 7, 0],
        "sd": [1.0, 2.0, 3.0, 4.0],
    }
)
TABLE = np.array([[1.0, 3.0], [4.0, 2.0]])  # towns by sexes
ACCURATE = dp.LaplaceMechanism.from_accuracy(TABLE, 0.05)
COUNTS = dp.DiscreteGaussianMechanism.from_variance(TABLE)


def read(frame=ROWS, **changed):
    return dp.from_table(frame, **({"value": "cases", "law": "gaussian"} | changed))


@pytest.mark.parametrize(
    ("law", "stated", "expected"),
    [
        ("gaussian", {"sd": "sd"}, dp.GaussianMechanism(TABLE)),
        ("laplace", {"sd": "sd"}, dp.LaplaceMechanism(TABLE / np.sqrt(2))),
        ("laplace", {"variance": "sd"}, dp.LaplaceMechanism(np.sqrt(TABLE / 2))),
        ("laplace", {"scale": "sd"}, dp.LaplaceMechanism(TABLE)),
        ("laplace", {"scale": 2}, dp.LaplaceMechanism(2.0)),
        (
            "Laplace",
            {"accuracy": "sd", "alpha": 0.05},
            dp.LaplaceMechanism.from_accuracy(TABLE, 0.05),
        ),
        (
            "discrete_gaussian",
            {"variance": "sd"},
            dp.DiscreteGaussianMechanism.from_variance(TABLE),
        ),
        (dp.CauchyMechanism, {"scale": "sd"}, dp.CauchyMechanism(TABLE)),
    ],
)
def test_values_and_noise_stand_where_their_labels_are(law, stated, expected):
    release = read(law=law, dims=["town", "sex"], **stated)
    assert release.dims == ("town", "sex")
    assert release.coords == {"town": ("Bo", "Aa"), "sex": ("f", "m")}
    np.testing.assert_array_equal(release.value, [[12, 7], [0, -3]])
    assert type(release.mechanism) is type(expected)
    [scale], [right] = release.mechanism.parameters, expected.parameters
    np.testing.assert_allclose(scale.data, right.data, rtol=1e-14)
    assert release.name == "cases"


def test_forms_of_tables():
    polars = pytest.importorskip("polars")
    forms = [ROWS, polars.from_pandas(ROWS), ROWS.to_dict("list")]
    releases = [read(frame, sd="sd", dims=("town", "sex")) for frame in forms]
    assert releases[0] == releases[1] == releases[2]
    without = read(sd="sd")
    assert without.dims is None
    np.testing.assert_array_equal(without.value, ROWS["cases"])


def test_what_was_done_afterwards():
    frame = ROWS.assign(cases=[12, np.nan, 7, 0])
    release = read(frame, sd="sd", after=lambda noise: noise.suppressed(below=0))
    np.testing.assert_array_equal(release.value, [12, np.nan, 7, 0])
    assert repr(release.mechanism).endswith(".suppressed(below=0.0)")


@pytest.mark.parametrize(
    ("changed", "error", "match"),
    [
        ({}, ValueError, "write one of sd=.* got none"),
        ({"sd": "sd", "scale": 1}, ValueError, "got sd, scale"),
        ({"accuracy": "sd"}, ValueError, "with alpha="),
        ({"sd": "noise"}, ValueError, "no column 'noise' among town, sex, .*reset_index"),
        ({"sd": "sd", "dims": "town"}, ValueError, "Bo has several rows"),
        ({"sd": "sd", "law": "binomial"}, TypeError, "write one of 'laplace'"),
        ({"sd": "sd", "law": dp.BinomialMechanism}, TypeError, "with from_sd"),
        ({"sd": -1.0}, ValueError, "sd must be finite and > 0"),
        ({"frame": 3, "sd": 1.0}, TypeError, "data frame"),
        ({"frame": ROWS[:3], "sd": "sd", "dims": ["town", "sex"]}, ValueError, "Aa, f has no row"),
        (
            {"frame": ROWS.assign(cases=[1, None, 2, 3]), "sd": 1.0},
            ValueError,
            r"withheld.*suppressed\(below=",
        ),
    ],
)
def test_refused(changed, error, match):
    with pytest.raises(error, match=match):
        read(**changed)
