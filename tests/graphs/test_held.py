"""What users hold in their hands, as published value and as noise scale."""

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr

import pymc_dp as dp
from pymc_dp.reading.model import mechanism_of

pl = pytest.importorskip("polars")

TOWNS = ("Aa", "Bo", "Ce")
NUMBERS = [3.0, 4.0, 6.0]
SHUFFLED, LABELS = [4.0, 6.0, 3.0], ["Bo", "Ce", "Aa"]


def xarray(numbers, towns):
    return xr.DataArray(numbers, dims="town", coords={"town": list(towns)})


UNLABELLED = {
    "list": NUMBERS,
    "array": np.array(NUMBERS),
    "float32": np.array(NUMBERS, "float32"),
    "int": np.array([3, 4, 6]),
    "masked array, nothing masked": np.ma.array(NUMBERS, mask=[0, 0, 0]),
    "pandas Series": pd.Series(NUMBERS),
    "pandas Int64": pd.Series([3, 4, 6], dtype="Int64"),
    "pandas Index": pd.Index(NUMBERS),
    "pandas objects": pd.Series(NUMBERS, dtype="object"),
    "polars Series": pl.Series(NUMBERS),
    "polars integers": pl.Series([3, 4, 6]),
    "xarray without names": xr.DataArray(NUMBERS),
    "constant": pt.as_tensor(NUMBERS),
}
LABELLED = {
    "pandas Series, sorted": pd.Series(NUMBERS, index=list(TOWNS)),
    "pandas Series": pd.Series(SHUFFLED, index=LABELS),
    "pandas Int64, indexed": pd.Series([4, 6, 3], index=LABELS, dtype="Int64"),
    "pandas Categorical index": pd.Series(SHUFFLED, index=pd.Categorical(LABELS)),
    "xarray": xarray(SHUFFLED, LABELS),
    "xarray, sorted": xarray(NUMBERS, TOWNS),
}
MISSING = {
    "masked array": np.ma.array(NUMBERS, mask=[0, 1, 0]),
    "list": [3.0, None, 6.0],
    "pandas Int64": pd.Series([3, None, 6], dtype="Int64"),
    "polars": pl.Series([3.0, None, 6.0]),
    "xarray": xarray([3.0, np.nan, 6.0], TOWNS),
}
NO_NUMBERS = {"texts": pd.Series(list(TOWNS)), "digits": ["3", "4", "6"], "frame": pl.LazyFrame()}


def in_model(mechanism, **how):
    """Return the value and the noise scale that a model has."""
    with pm.Model(coords={"town": TOWNS, "place": TOWNS}) as model:
        x = pm.Normal("x", 0, 1, shape=3)
        z = dp.PrivateObservation("z", x, mechanism, **how)
    value, scale = model.rvs_to_values[z], z.owner.inputs[-1]
    return model, np.asarray(value.eval()), np.asarray(scale.eval())


def observed(thing):
    model, value, _ = in_model(dp.LaplaceMechanism(1.0), observed=thing, dims="town")
    assert model.named_vars_to_dims["z"] == ("town",)
    return value


def published(thing):
    release = dp.Release(thing, dp.LaplaceMechanism(1.0), dims="town", coords={"town": list(TOWNS)})
    assert release.coords == {"town": TOWNS}
    return in_model(release)[1]


def published_without_dims(thing):
    release = dp.Release(thing, dp.LaplaceMechanism(1.0))
    if release.dims == ("town",):  # an xarray brings its own
        release = release.reindex({"town": TOWNS})
    return in_model(release, dims="town")[1]


def scale(thing):
    return in_model(dp.LaplaceMechanism(thing), observed=np.zeros(3), dims="town")[2]


def scale_of_loss(thing):
    mechanism = dp.LaplaceMechanism.from_epsilon(1.0, thing).clipped(-50.0)
    return in_model(mechanism, observed=np.zeros(3), dims="town")[2]


def scale_of_release(thing):
    release = dp.Release(pd.Series([0.0] * 3, LABELS), dp.LaplaceMechanism(thing), dims="town")
    return in_model(release.reindex({"town": TOWNS}))[2]


VALUES = [observed, published, published_without_dims]
SCALES = [scale, scale_of_loss]
PLACES = [*VALUES, *SCALES]
parametrize = pytest.mark.parametrize


@parametrize("place", PLACES, ids=lambda place: place.__name__)
@parametrize("kind", [*UNLABELLED, *LABELLED])
def test_every_kind_of_object_in_every_place(kind, place):
    if place is scale_of_loss and kind == "constant":
        pytest.skip("a privacy loss is no tensor")
    assert place((UNLABELLED | LABELLED)[kind]).tolist() == NUMBERS


@parametrize("kind", LABELLED)
def test_the_scales_of_a_release_go_by_its_labels(kind):
    assert scale_of_release(LABELLED[kind]).tolist() == NUMBERS


@parametrize("place", PLACES, ids=lambda place: place.__name__)
@parametrize("kind", [*MISSING, *NO_NUMBERS])
def test_what_is_missing_or_no_number_is_refused(kind, place):
    with pytest.raises((ValueError, TypeError), match=r"NaN|nan|must be a number"):
        place((MISSING | NO_NUMBERS)[kind])


@parametrize("place", PLACES, ids=lambda place: place.__name__)
@parametrize("make", [pd.Series, xarray], ids=["pandas", "xarray"])
def test_labels_that_are_not_the_models(make, place):
    for labels, told in (
        (["Aa", "Bo", "Xx"], r"unknown labels \('Xx'\), no entry for \('Ce'\)"),
        (["Aa", "Bo", "Bo"], r"no entry for \('Ce'\), twice \('Bo'\)"),
        ([7, 8, 9], r"unknown labels \(7, 8, 9\)"),
    ):
        with pytest.raises(ValueError, match=f"('z'|Release).* along 'town' .*{told}"):
            place(make(NUMBERS, labels))


def test_dims_of_an_xarray():
    table = xr.DataArray(
        np.arange(6.0).reshape(3, 2),
        dims=("town", "sex"),
        coords={"town": LABELS, "sex": ["m", "f"]},
    )
    expected = table.sel(town=list(TOWNS), sex=["f", "m"]).to_numpy().T
    scales = xarray(SHUFFLED, LABELS)
    for how in ({"dims": ("sex", "town")}, {}):
        with pm.Model(coords={"town": TOWNS, "sex": ["f", "m"]}) as model:
            x = pm.Normal("x", 0, 1, shape=(2, 3) if how else (3, 2))
            mechanism = dp.LaplaceMechanism(scales)
            z = dp.PrivateObservation("z", x, mechanism, observed=table, **how)
            dims = model.named_vars_to_dims["z"]
            assert dims == how.get("dims", table.dims)
            release = dp.Release(table, mechanism)
            assert release.dims == table.dims
            again = dp.PrivateObservation(
                "again", x if dims == table.dims else x.T, release.reindex(model.coords)
            )
        value = model.rvs_to_values[z].eval()
        assert np.array_equal(value, expected if how else expected.T)
        by_town = dp.LaplaceMechanism(pd.Series(NUMBERS) if how else np.c_[NUMBERS])
        direct = by_town.logp(value, 0.0).eval()
        at = z.owner.inputs[-1].eval()
        assert np.array_equal(dp.LaplaceMechanism(at).logp(value, 0.0).eval(), direct)
        assert np.array_equal(model.rvs_to_values[again].eval(), expected.T)
        assert again.owner.inputs[-1].eval().tolist() == [[number] for number in NUMBERS]
    for noise, value, told in (
        (scales, NUMBERS, "a noise parameter of .*"),
        (1.0, scales, "observed"),
    ):
        with pytest.raises(ValueError, match=rf"'z': {told} has the dimension 'town', .*'place'"):
            in_model(dp.LaplaceMechanism(noise), observed=value, dims="place")


def without_dims(value, mechanism):
    return in_model(mechanism, observed=value)


def without_coords(value, mechanism):
    with pm.Model() as model:
        model.add_coord("town", length=3)
        x = pm.Normal("x", 0, 1, shape=3)
        z = dp.PrivateObservation("z", x, mechanism, observed=value, dims="town")
    return model, model.rvs_to_values[z].eval(), z.owner.inputs[-1].eval()


def release_without_dims(value, mechanism, **dims):
    release = dp.Release(value, mechanism)
    return in_model(release.reindex({"town": TOWNS}) if release.dims else release, **dims)


def then_with_dims(value, mechanism):
    return release_without_dims(value, mechanism, dims="town")


@parametrize("make", [pd.Series, xarray], ids=["pandas", "xarray"])
@parametrize("place", [without_dims, without_coords, release_without_dims, then_with_dims])
def test_labels_of_value_and_noise_belong_together(place, make):
    """Where no coords say what the order is: that of the value, if not of the first parameter."""
    scales = make(NUMBERS, TOWNS)
    _, value, scale = place(make(SHUFFLED, LABELS), dp.LaplaceMechanism(scales))
    assert scale.tolist() == value.tolist()
    unlabelled = place(np.zeros(3), dp.LaplaceMechanism(scales))[2]
    assert unlabelled.tolist() == NUMBERS
    model, *_ = place(
        np.zeros(3), dp.LaplaceMechanism(make(SHUFFLED, LABELS)).clipped(None, scales)
    )
    of_both = mechanism_of(model["z"]).parameters
    assert of_both[-1].eval().tolist() == of_both[-2].eval().tolist()
    for wrong in (make(NUMBERS, ["Aa", "Bo", "Xx"]), make(NUMBERS, [3, 5, 7])):
        with pytest.raises(ValueError, match=r"('z'|Release).* noise parameter .* no entry for"):
            place(make(SHUFFLED, LABELS), dp.LaplaceMechanism(wrong))


def test_data_frames():
    frame = pd.DataFrame([[1.0, 2.0], [5.0, 6.0]], index=["Bo", "Aa"], columns=["f", "m"])
    release = dp.Release(
        frame, dp.LaplaceMechanism(frame), dims=("town", "sex"), coords={"town": ["Aa", "Bo"]}
    )
    assert release.value.tolist() == [[5.0, 6.0], [1.0, 2.0]]
    assert release.mechanism.scale.data.tolist() == [[5.0, 6.0], [1.0, 2.0]]
    assert release.coords == {"town": ("Aa", "Bo"), "sex": ("f", "m")}
    release = dp.Release(pl.DataFrame({"m": [6.0, 2.0], "f": [5.0, 1.0]}), release.mechanism)
    with pm.Model(coords={"town": ["Aa", "Bo"], "sex": ["f", "m"]}) as model:
        x = pm.Normal("x", 0, 1, shape=(2, 2))
        z = dp.PrivateObservation("z", x, release, dims=("town", "sex"))
    assert model.rvs_to_values[z].eval().tolist() == [[5.0, 6.0], [1.0, 2.0]]


def test_shared_variables_stay_shared():
    shared = pytensor.shared(np.array(NUMBERS))
    assert observed(shared).tolist() == scale(shared).tolist() == NUMBERS
    with pytest.raises(TypeError, match=r"may change; .*value\.get_value\(\)"):
        published(shared)


@parametrize("shared", [False, True])
def test_reindex(shared):
    scales = pytensor.shared(np.array(SHUFFLED)) if shared else SHUFFLED
    release = dp.Release(
        [[4, 0], [6, 0], [3, 1]],
        dp.GeometricMechanism(pt.as_tensor(scales)[:, None]).clipped([-9.0, -8.0]),
        name="n",
        dims=("town", "sex"),
        coords={"town": LABELS},
    )
    again = release.reindex({"town": TOWNS, "other": [1, 2]})
    assert again.value.tolist() == [[3, 1], [4, 0], [6, 0]]
    lower, noise = again.mechanism.parameters
    assert (lower.eval().tolist(), noise.eval().ravel().tolist()) == ([-9.0, -8.0], NUMBERS)
    assert (again.coords, again.dims, again.name) == ({"town": TOWNS}, release.dims, "n")
    if shared:
        scales.set_value(np.array([1.0, 2.0, 3.0]))
        assert noise.eval().ravel().tolist() == [3.0, 1.0, 2.0]
    for coords, told in (
        ({"town": ["Aa", "Bo"]}, r"'n' has along 'town' unknown labels \('Ce'\)"),
        ({"town": [*TOWNS, "Xx"]}, r"no entry for \('Xx'\)"),
        ({"place": TOWNS}, r"coords label \('place',\), and the release labels \('town',\)"),
    ):
        with pytest.raises(ValueError, match=told):
            release.reindex(coords)
