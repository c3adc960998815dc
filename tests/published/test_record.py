"""`Release`, `Privacy` and their JSON text; what a model does with them."""

import json
import re
from dataclasses import replace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_dp as dp
from pymc_dp.mechanisms import mechanism_examples
from pymc_dp.mechanisms.base import known_value

LAPLACE = dp.LaplaceMechanism(2.0)
EXAMPLES = list(mechanism_examples())

FULL = dp.Release(
    [[1, -2], [30, 4]],
    dp.LaplaceMechanism.from_epsilon([0.1, 0.3], [1.0, 0.7])
    .clipped([-np.inf, -5.0], [40.0, np.inf])
    .rounded(1),
    name="cases",
    dims=("town", "sex"),
    coords={"town": ["Aa", "Bø"], "sex": np.array([0, 1])},
    privacy=dp.Privacy("one person", "replace one record", "approximate", 0.4, None, 1e-6),
    source="the bureau",
)


def again(release):
    return dp.Release.from_json(release.to_json())


# --- The text -----------------------------------------------------------------------------------


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: repr(e.mechanism))
def test_every_mechanism_round_trips(example):
    atoms = list(example.atoms)
    value = float(atoms[len(atoms) // 2]) if atoms else example.statistic
    release = dp.Release(value, example.mechanism)
    back = again(release)
    assert repr(back.mechanism) == repr(example.mechanism)
    assert back.to_json() == release.to_json()
    for ours, theirs in zip(back.mechanism.parameters, release.mechanism.parameters, strict=True):
        assert known_value(ours) == known_value(theirs)


@pytest.mark.parametrize("value", [np.nan, [np.nan, 4.0]])
def test_what_was_withheld_round_trips(value):
    back = again(dp.Release(value, LAPLACE.suppressed(below=3)))
    np.testing.assert_array_equal(back.value, value)


def test_array_parameters_round_trip():
    mechanisms = [
        dp.GaussianMechanism([0.1, 1 / 3]),
        dp.BinomialMechanism([10, 20], [2.5, 3.5], 100),
        dp.RandomizedResponse.from_epsilon([0.0, 800.0]),
        dp.RandomizedResponse(0.7).counted([5, 6]),
    ]
    for mechanism in mechanisms:
        back = again(dp.Release([1, 0], mechanism)).mechanism
        for ours, theirs in zip(back.parameters, mechanism.parameters, strict=True):
            np.testing.assert_array_equal(known_value(ours), known_value(theirs))


def test_everything_round_trips():
    back = again(FULL)
    np.testing.assert_array_equal(back.value, FULL.value)
    assert back.value.dtype == "int64"
    for name in ("name", "dims", "coords", "privacy", "source"):
        assert getattr(back, name) == getattr(FULL, name) is not None
    assert back.coords == {"town": ("Aa", "Bø"), "sex": (0, 1)}
    clipped, ours = back.mechanism.inner, FULL.mechanism.inner
    for bound in ("lower", "upper"):
        np.testing.assert_array_equal(getattr(clipped, bound).eval(), getattr(ours, bound).eval())
    # The loss that the draws of records are checked against.
    assert clipped.inner.stated_epsilon((2,)) == ours.inner.stated_epsilon((2,)) == 0.4


def test_numbers_keep_their_kind_and_digits():
    for value in (3, 2**62 + 1, [1, 2], 0.1, [0.1, 1e-300], [[1.0, 2.0]]):
        back = again(dp.Release(value, LAPLACE)).value
        assert back.dtype == ("int64" if np.asarray(value).dtype.kind == "i" else "float64")
        np.testing.assert_array_equal(back, value)
    assert dp.Release([True, False], dp.RandomizedResponse(0.7)).value.tolist() == [1, 0]
    assert dp.Release(np.uint32(3), LAPLACE).value.dtype == "int64"


def document(**changes):
    return {**json.loads(FULL.to_json()), **changes}


def noise(kind, **fields):
    """Return the change to another mechanism."""
    return {"mechanism": {"class": kind, **fields}}


INNER = noise("LaplaceMechanism", scale=1)["mechanism"]
VALUES = [
    ({"clip": 3, "rounding": 1}, "release: unknown fields 'clip', 'rounding'; known are value"),
    ({"format": "pickle"}, 'no "format": "pymc_dp release"'),
    ({"version": 2}, "of version 2; this package reads version 1"),
    ({"version": True}, "of version True"),
    ({"value": None}, "Release: value must be finite, got nan"),
    ({"value": [[1, 2], [3]]}, "value: rows of different length"),
    ({"value": ["inf", 1]}, "value must be finite, got inf at index 0"),
    ({"privacy": {"epsilon": 1, "eps": 2}}, "privacy: unknown field 'eps'; known are unit"),
    ({"privacy": {"epsilon": -1}}, "epsilon must be finite and > 0"),
    ({"mechanism": {}}, "mechanism: the field 'class' is missing; known are"),
    (noise("Staircase"), "unknown mechanism 'Staircase'; known are .*LaplaceMechanism"),
    (noise("LaplaceMechanism"), "mechanism LaplaceMechanism: the field 'scale' is missing"),
    (
        noise("LaplaceMechanism", scale=1, sensitivity=2),
        "unknown field 'sensitivity'; known are scale, stated_epsilon",
    ),
    (
        noise("GaussianMechanism", sigma=1, stated_epsilon=2),
        "unknown field 'stated_epsilon'; known are sigma",
    ),
    (
        noise("LaplaceMechanism", scale=1, stated_epsilon=-2),
        "stated_epsilon must be finite and > 0",
    ),
    (noise("LaplaceMechanism", scale=-1), "scale must be finite and > 0"),
    (
        noise("GaussianMechanism", sigma_squared=4),
        "'sigma_squared' is a variance, .* of GaussianMechanism: write sigma = sqrt.variance.",
    ),
    (
        noise("DiscreteGaussianMechanism", sigma=2, variance=4),
        "'variance' is a variance, .* write sigma = sqrt.variance.",
    ),
    (
        noise("LaplaceMechanism", variance=4),
        r"'variance' is a variance.*write scale.*Laplace noise is sqrt\(variance / 2\)",
    ),
    (
        noise("RoundedMechanism", inner=INNER | {"b": 1}),
        "mechanism.inner LaplaceMechanism: unknown field 'b'",
    ),
    (noise("RandomizedResponse", log_ratio="inf", categories=2), "log_ratio must be finite"),
    ({"dims": ["town"]}, "names 1 dimensions, the value of shape .2, 2. has 2"),
]
KINDS = [
    ({"value": "34.3"}, "value must be a number or a list of numbers .*got '34.3'"),
    ({"value": [True]}, "value must be a number .*got True"),
    ({"mechanism": "laplace"}, "mechanism must be an object"),
    (noise("LaplaceMechanism", scale="2"), "scale must be a number"),
    ({"privacy": 1.0}, "privacy must be an object"),
    ({"privacy": {"epsilon": "1"}}, "epsilon must be a number, got '1'"),
    ({"name": 3}, "name must be text, got 3"),
    ({"coords": {"town": [None, 1]}}, "labels of 'town' must be texts or finite numbers"),
    (noise("RoundedMechanism", inner=INNER, digits=1.5), "digits must be an integer"),
]
TEXT = FULL.to_json()
NO_JSON = [
    ("release.json", r"no JSON text.*Path\(file\)\.read_text"),
    (TEXT.replace('"value"', '"value": 1, "value"', 1), "the field 'value' is there twice"),
    (TEXT.replace('"value"', '"values"', 1), "release: unknown field 'values'"),
    (re.sub(r'"value": .*?\]\], ', "", TEXT), "release: the field 'value' is missing"),
    (TEXT.replace("-2", "NaN", 1), "NaN is no JSON number"),
    (TEXT.replace("-2", "Infinity", 1), "Infinity is no JSON number"),
    ("[]", "this is no release"),
]


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        *((json.dumps(document(**changed)), ValueError, match) for changed, match in VALUES),
        *((json.dumps(document(**changed)), TypeError, match) for changed, match in KINDS),
        *((text, ValueError, match) for text, match in NO_JSON),
        (document(), TypeError, "JSON text is needed, got dict"),
    ],
)
def test_text_that_is_refused(text, error, match):
    with pytest.raises(error, match=match):
        dp.Release.from_json(text)


def test_a_symbolic_parameter_is_not_written():
    release = dp.Release(1.0, dp.LaplaceMechanism(pt.scalar("b")))
    with pytest.raises(ValueError, match=r"LaplaceMechanism: scale is symbolic \(b\)"):
        release.to_json()
    with pm.Model():
        release = dp.Release(1.0, dp.LaplaceMechanism(pm.Data("b", 2.5)))
    assert repr(again(release).mechanism) == "LaplaceMechanism(scale=2.5)"


# --- Validation ---------------------------------------------------------------------------------


class Ours(dp.LaplaceMechanism):
    """A mechanism that is not registered."""


def release(*arguments):
    return lambda: dp.Release(*arguments)


def described(**fields):
    return lambda: replace(FULL, **fields)


def privacy(**fields):
    return lambda: dp.Privacy(**fields)


REFUSED = [
    (
        release(np.nan, LAPLACE),
        ValueError,
        r"finite, got nan\. .*\.suppressed\(below=",
    ),
    (release([1.0, -np.inf], LAPLACE), ValueError, "got -inf at index 1"),
    (release(np.ma.masked_array([1.0, 2.0], [0, 1]), LAPLACE), ValueError, "or masked"),
    (release([], LAPLACE), ValueError, "value is empty"),
    (
        release("34.3", LAPLACE),
        TypeError,
        "value must be a number or an array of numbers; got '34.3'",
    ),
    (release([[1], [2, 3]], LAPLACE), TypeError, "value must be a number"),
    (release(np.array([2**63], "uint64"), LAPLACE), ValueError, "over 2..63 - 1"),
    (release(1.0, 2.0), TypeError, r"mechanism must be a mechanism such as .*got float"),
    (
        release([1.0, 2.0], dp.LaplaceMechanism([1.0, 2.0, 3.0])),
        ValueError,
        r"shape \(3,\) of LaplaceMechanism.* against the value of shape \(2,\)",
    ),
    (
        release(1.0, LAPLACE.clipped([0.0, 1.0])),
        ValueError,
        r"shape \(2,\) of .* against the value of shape \(\)",
    ),
    (release(1.5, dp.GeometricMechanism(2.0)), ValueError, r"cannot publish 1\.5"),
    (release(-1.0, LAPLACE.clipped(lower=0)), ValueError, "cannot publish -1"),
    (described(dims="town"), ValueError, "names 1 dimensions"),
    (described(dims=("town", "town")), ValueError, "twice"),
    (described(dims=3), TypeError, "dims must be texts, got 3"),
    (described(coords={"place": [1, 2]}), ValueError, "'place', which is not one of dims="),
    (described(coords={"town": ["Aa"]}), ValueError, "1 labels of 'town', but the value has 2"),
    (described(coords={"town": "Aa"}), TypeError, "labels of 'town' must be a sequence"),
    (described(coords={"town": ["Aa", np.nan]}), TypeError, "finite numbers, got nan"),
    (described(coords=["Aa"]), TypeError, "coords must map"),
    (described(name=3), TypeError, "name must be text"),
    (described(source=3), TypeError, "source must be text"),
    (described(privacy={"epsilon": 1}), TypeError, "must be a dp.Privacy, got dict"),
    (privacy(epsilon=0.0), ValueError, "Privacy: epsilon must be finite and > 0, got 0.0"),
    (privacy(epsilon=np.inf), ValueError, "Privacy: epsilon must be finite"),
    (privacy(rho=np.nan), ValueError, "Privacy: rho must be finite"),
    (privacy(rho="1"), TypeError, "Privacy: rho must be a number, got '1'"),
    (privacy(epsilon=True), TypeError, "Privacy: epsilon must be a number, got True"),
    (privacy(epsilon=1.0, delta=1.0), ValueError, "Privacy: delta must be > 0 and < 1, got 1.0"),
    (
        privacy(delta=0.1),
        ValueError,
        "Privacy: delta=0.1 belongs to a loss: write epsilon= or rho=",
    ),
    (privacy(unit=1), TypeError, "Privacy: unit must be text"),
    (lambda: release(1.0, Ours(1.0))().to_json(), TypeError, "Ours is not registered"),
]


@pytest.mark.parametrize(("make", "error", "match"), REFUSED, ids=[case[2] for case in REFUSED])
def test_refusals(make, error, match):
    with pytest.raises(error, match=match) as caught:
        make()
    assert re.match("'?Release|Privacy|to_json", str(caught.value))


def test_the_value_is_a_copy():
    mine = np.array([1.0, 2.0])
    release = dp.Release(mine, LAPLACE)
    mine[0] = 9.0
    assert release.value.tolist() == [1.0, 2.0]


# --- In a model ---------------------------------------------------------------------------------

TOWNS = dp.Release(
    [3, 7], dp.GeometricMechanism(1.5), dims="town", coords={"town": ["Aa", "Bo"]}, name="z"
)


def test_observed_with_its_dims_and_coords():
    with pm.Model() as model:
        rate = pm.Gamma("rate", 2, 1, shape=2)
        z = dp.PrivateObservation("z", pm.Poisson("y", rate, shape=2), TOWNS)
    assert model.named_vars_to_dims["z"] == ("town",)
    assert model.coords["town"] == ("Aa", "Bo")
    assert model.rvs_to_values[z].data.tolist() == [3, 7]


def test_dims_without_labels_and_dims_of_the_user():
    with pm.Model(coords={"place": [5, 6]}) as model:
        y = pm.Poisson("y", 3.0, shape=2)
        dp.PrivateObservation("a", y, replace(TOWNS, coords=None))
        dp.PrivateObservation("b", y, TOWNS, dims="place")
    assert tuple(model.coords["town"]) == (0, 1)
    assert model.named_vars_to_dims["b"] == ("place",)


@pytest.mark.parametrize(
    ("labels", "coords", "match"),
    [
        (["Bo", "Aa"], TOWNS.coords, r"labels 'town' \('Aa', 'Bo'\), the model has \('Bo', 'Aa'\)"),
        (["Aa", "Bo", "Ce"], TOWNS.coords, "labels 'town'"),
        (["Aa", "Bo", "Ce"], None, "has 2 entries along 'town', the model has 3"),
    ],
)
def test_coords_of_the_model_must_agree(labels, coords, match):
    with pm.Model(coords={"town": labels}) as model:
        y = pm.Poisson("y", 3.0, shape=2)
        with pytest.raises(ValueError, match=f"'z': the release {match}"):
            dp.PrivateObservation("z", y, replace(TOWNS, coords=coords))
    assert "z" not in model.named_vars
    with pm.Model(coords={"town": ["Aa", "Bo"]}):
        dp.PrivateObservation("z", pm.Poisson("y", 3.0, shape=2), TOWNS)


def test_a_refused_release_leaves_no_coords_behind():
    with pm.Model() as model:
        y = pm.Poisson("y", 3.0, shape=3)
        with pytest.raises(ValueError, match="observed has shape"):
            dp.PrivateObservation("z", y, TOWNS)
    assert "town" not in model.coords


def test_a_table_for_a_factorization():
    table = dp.Release(
        [[3, 7], [1, 0]], dp.GeometricMechanism(1.5), dims=("a", "b"), coords={"a": ["x", "y"]}
    )
    model = dp.poisson_factorization(table, 1)
    assert model.named_vars_to_dims["release"] == ("a", "b")
    assert model.coords["a"] == ("x", "y")


def test_equality():
    found = dp.Release([1, 2], dp.GeometricMechanism(2.0), source="a table")
    assert found == again(found)
    assert hash(found) == hash(again(found))
    assert found != dp.Release([1, 3], dp.GeometricMechanism(2.0), source="a table")
    with pytest.raises(ValueError, match="read-only"):
        found.value[0] = 5


def test_a_symbolic_release_equals_itself_only():
    one, other = (dp.Release(3.0, dp.LaplaceMechanism(pt.scalar("b"))) for _ in range(2))
    assert one != other
    assert one != dp.Release(3.0, dp.LaplaceMechanism(1.0))
    assert len({one, other, one}) == 2
