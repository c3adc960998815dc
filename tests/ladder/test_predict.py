"""New rows of several columns from the posterior predictive."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from arviz_base import from_dict
from scipy import stats

import pymc_dp as dp
from tests.agreement import follows
from tests.models import as_model, posterior

K = 40_000
NOISE = dp.LaplaceMechanism(1.0)
PARAMETERS = {"mu": 2.0, "tau": 0.5, "theta": np.array([1.0, -0.8]), "sigma": 0.3}


@pytest.fixture(scope="module")
def tree():
    return posterior(K, **PARAMETERS)


@as_model
def regression(covariate=pm.Normal, bounds=None):
    mu, tau = pm.Normal("mu"), pm.HalfNormal("tau")
    theta, sigma = pm.Normal("theta", shape=2), pm.HalfNormal("sigma")
    x = covariate("x", mu, tau, shape=20)
    y = pm.Normal("y", theta[0] + theta[1] * x, sigma, shape=20)
    statistic = pt.stack([x.sum(), (x * y).sum(), (y**2).sum()])
    dp.PrivateObservation("z", statistic, NOISE, observed=np.zeros(3), bounds=bounds)


def ravel(drawn):
    return drawn.to_numpy().ravel()


def assert_normal(values, mean, sd):
    follows(values, stats.norm(mean, sd))


def test_new_rows_follow_the_joint_law(tree):
    new = dp.predict_records(regression(), tree, random_seed=1)
    assert isinstance(new, xr.Dataset)
    assert list(new.data_vars) == ["x", "y"]
    assert new["y"].dims == ("chain", "draw", "new_record")
    assert new["y"].shape == (2, K // 2, 1)
    x, y = ravel(new["x"]), ravel(new["y"])
    assert_normal(x, 2.0, 0.5)
    assert_normal(y, 1.0 - 0.8 * 2.0, np.hypot(0.8 * 0.5, 0.3))
    assert_normal(y - (1.0 - 0.8 * x), 0.0, 0.3)  # the pairs belong together
    assert abs(np.corrcoef(x, y - (1.0 - 0.8 * x))[0, 1]) < 4 / np.sqrt(K)


def test_predictive_of_a_regression_at_new_covariates(tree):
    at = np.array([-1.0, 0.0, 5.0])
    new = dp.predict_records(regression(), tree, given={"x": at}, random_seed=2)
    assert list(new.data_vars) == ["y"]
    assert new["y"].shape == (2, K // 2, 3)
    assert new["x"].dims == ("new_record",)
    np.testing.assert_array_equal(new["x"], at)
    for j, x in enumerate(at):
        assert_normal(new["y"][..., j], 1.0 - 0.8 * x, 0.3)


def test_every_draw_has_its_own_parameters():
    rng = np.random.default_rng(3)
    draws = {
        "mu": rng.normal(size=(2, 5)),
        "tau": np.ones((2, 5)),
        "theta": rng.normal(size=(2, 5, 2)),
        "sigma": np.full((2, 5), 1e-9),
    }
    new = dp.predict_records(regression(), from_dict({"posterior": draws}), given={"x": [0, 3]})
    expected = draws["theta"][..., :1] + draws["theta"][..., 1:] * [0, 3]
    np.testing.assert_allclose(new["y"], expected, atol=1e-7)


def test_one_value_for_many_new_rows(tree):
    few = tree.isel(draw=slice(4))
    new = dp.predict_records(regression(), few, given={"x": 1.5}, size=3, random_seed=4)
    assert new["y"].shape == (2, 4, 3)
    np.testing.assert_array_equal(new["x"], np.full(3, 1.5))
    assert dp.predict_records(regression(), few, given={"x": 1.5})["y"].shape == (2, 4, 1)


def test_covariates_need_not_be_normal_if_they_are_given(tree):
    model = regression(pm.Gumbel)
    new = dp.predict_records(model, tree, given={"x": 3.0}, random_seed=5)
    assert_normal(new["y"], 1.0 - 0.8 * 3.0, 0.3)
    with pytest.raises(NotImplementedError, match=r"'x' follow Gumbel.*given=\{'x': values\}"):
        dp.predict_records(model, tree)


def test_new_rows_are_within_the_bounds(tree):
    model = regression(bounds=((1.8, -1.0), (3.0, 0.0)))  # x in [1.8, 3], y in [-1, 0]
    new = dp.predict_records(model, tree, random_seed=9)
    x, y = ravel(new["x"]), ravel(new["y"])
    law = stats.truncnorm((1.8 - 2.0) / 0.5, (3.0 - 2.0) / 0.5, 2.0, 0.5)
    follows(x, law)
    assert -1 <= y.min() < y.max() <= 0
    mean = 1.0 - 0.8 * x
    below, above = (stats.norm.cdf((end - mean) / 0.3) for end in (-1.0, 0.0))
    u = (stats.norm.cdf((y - mean) / 0.3) - below) / (above - below)
    follows(u, "uniform")
    with pytest.raises(ValueError, match=r"'x' outside of its bounds \[1.8, 3\]"):
        dp.predict_records(model, tree, given={"x": 0.0})


def test_only_the_records_of_a_release_are_within_its_bounds():
    with pm.Model() as model:
        theta = pm.Normal("theta", shape=2)
        x = pm.Normal("x", 0.5, 0.2, shape=50)
        y = pm.Normal("y", theta[0] + theta[1] * x, 0.3, shape=50)
        dp.PrivateObservation("a", [x.mean(), x.var()], NOISE, observed=[0.5, 0.04], bounds=(0, 1))
        dp.PrivateObservation("b", [y.sum(), (y**2).sum()], NOISE, observed=[250.0, 1300.0])
    new = dp.predict_records(model, posterior(K, theta=np.array([5.0, 0.0])), random_seed=10)
    follows(new["x"], stats.truncnorm(-2.5, 2.5, 0.5, 0.2))
    assert_normal(new["y"], 5.0, 0.3)


COV = np.array([[1.0, 0.6], [0.6, 0.9]])
SLOPES = np.array([0.5, -2.0])


def wide():
    with pm.Model(coords={"person": range(15), "feature": ["age", "dose"]}) as model:
        slopes = pm.Normal("slopes", shape=2)
        x = pm.MvNormal("x", [1.0, -1.0], COV, shape=(15, 2), dims=("person", "feature"))
        y = pm.Normal("y", 3 + x @ slopes, 0.2, shape=15)
        dp.PrivateObservation("z", pt.concatenate([x.T @ y, x.sum(0)]), NOISE, observed=np.ones(4))
    return model


def test_several_covariates():
    new = dp.predict_records(wide(), posterior(K, slopes=SLOPES), random_seed=6)
    assert new["x"].dims == ("chain", "draw", "new_record", "feature")
    assert list(new["feature"].to_numpy()) == ["age", "dose"]
    x, y = new["x"].to_numpy().reshape(-1, 2), ravel(new["y"])
    np.testing.assert_allclose(np.cov(x.T), COV, atol=4 * np.sqrt(2 / K))
    assert_normal(x[:, 1], -1.0, np.sqrt(COV[1, 1]))
    assert_normal(y, 3 + SLOPES @ [1, -1], np.sqrt(SLOPES @ COV @ SLOPES + 0.04))
    assert_normal(y - x @ SLOPES, 3.0, 0.2)


def test_several_given_covariates():
    at = np.array([[0.0, 1.0], [2.0, 2.0]])
    new = dp.predict_records(wide(), posterior(K, slopes=SLOPES), given={"x": at}, random_seed=7)
    assert new["x"].dims == ("new_record", "feature")
    for j, row in enumerate(at):
        assert_normal(new["y"][..., j], 3 + row @ SLOPES, 0.2)


def test_a_single_vector_is_an_array_as_ever():
    with pm.Model() as model:
        mu = pm.Normal("mu")
        x = pm.Normal("x", mu, 2.0, shape=9)
        dp.PrivateObservation("z", x.mean(), NOISE, observed=0.0)
    new = dp.predict_records(model, posterior(K, mu=1.0), random_seed=8)
    assert isinstance(new, xr.DataArray)
    assert_normal(new, 1.0, 2.0)
    with pytest.raises(ValueError, match="'x' are a single vector"):
        dp.predict_records(model, posterior(K, mu=1.0), given={"x": 1.0})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"given": {"X": 1.0}}, "names 'X': the variables of a row are 'x', 'y'"),
        ({"given": {"x": [1.0, 2.0]}, "size": 3}, r"size: 3, given 'x': 2\): write the same"),
        ({"given": {"x": [[1.0]]}}, r"shape \(1, 1\): its shape has to be \(rows,\) or a number"),
        ({"given": {"x": np.nan}}, "'x' with values that are not finite"),
        ({"given": {"x": 1.0, "y": 2.0}}, "nothing is left to draw"),
        ({"size": 0}, "size is 0"),
    ],
)
def test_refuses(tree, arguments, message):
    with pytest.raises(ValueError, match=message):
        dp.predict_records(regression(), tree, **arguments)


def test_refuses_lengths_that_differ():
    with pm.Model() as model:
        x, w = (pm.Normal(name, shape=9) for name in "xw")
        y = pm.Normal("y", x + w, shape=9)
        dp.PrivateObservation("z", (x * y).sum() + (w * y).sum(), NOISE, observed=0.0)
    with pytest.raises(ValueError, match=r"given 'x': 2, given 'w': 3"):
        dp.predict_records(model, posterior(K, a=1.0), given={"x": [1, 2], "w": [1, 2, 3]})


def test_refuses_to_draw_backwards(tree):
    with pytest.raises(NotImplementedError, match=r"'y', which depends on 'x'.* give 'x' too"):
        dp.predict_records(regression(), tree, given={"y": 1.0})


def test_refuses_a_wrong_width():
    with pytest.raises(ValueError, match=r"shape \(3,\).*\(rows, 2\) or \(2,\)"):
        dp.predict_records(wide(), posterior(K, slopes=SLOPES), given={"x": [1.0, 2.0, 3.0]})
