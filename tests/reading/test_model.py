"""Records whose number dims or data decide are read like records of a number that is written."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.exceptions import ShapeError

import pymc_dp as dp

N = 6
LAWS = {
    "normal": lambda **n: pm.Normal("x", pm.Normal("theta"), 1, **n),
    "bernoulli": lambda **n: pm.Bernoulli("x", pm.Beta("theta", 1, 1), **n),
    "gamma": lambda **n: pm.Gamma("x", 2, pm.Gamma("theta", 2, 1), **n),
    "poisson": lambda **n: pm.Poisson("x", pm.Gamma("theta", 2, 1), **n),
    "categorical": lambda **n: pm.Categorical("x", pm.Dirichlet("theta", np.ones(3)), **n),
}


def model_of(law, length):
    with pm.Model(coords={"person": range(N)}) as model:
        match length:
            case "shape":
                x = LAWS[law](shape=N)
            case "dims":
                x = LAWS[law](dims="person")
            case "dims of data":
                pm.Data("age", np.zeros(N), dims="person")
                x = LAWS[law](dims="person")
            case "data":
                x = LAWS[law](shape=pm.Data("n", np.array(N)))
        statistic, z = x.sum(), 2
        if law == "categorical":
            statistic, z = pt.stack([pt.eq(x, 0).sum(), pt.eq(x, 1).sum()]), [2, 1]
        dp.PrivateObservation("z", statistic, dp.LaplaceMechanism(1.0), observed=z)
    return model


@pytest.mark.by_day(
    "data-bernoulli",
    "dims of data-normal",
    "dims-bernoulli",
    "dims-categorical",
    "dims-normal",
    "dims-poisson",
)
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("length", ["dims", "dims of data", "data"])
def test_the_same_is_open(law, length):
    written, model = model_of(law, "shape"), model_of(law, length)
    assert dp.explain(model, details=True).tables == dp.explain(written, details=True).tables
    rung = "statistics" if law == "categorical" else "marginal"
    if law == "poisson":  # the counts of it have their own step
        return
    expected, collapsed = dp.collapse(written, rung), dp.collapse(model, rung)
    point = expected.initial_point()
    assert collapsed.point_logps(point) == expected.point_logps(point)


def test_draws_have_the_names_of_the_model():
    with pm.Model(coords={"person": range(N)}) as model:
        mean = pm.Normal("mean")
        x = pm.Normal("x", mean, 1, dims="person")
        pm.Deterministic("twice", 2 * mean)
        dp.PrivateObservation("z", x.sum(), dp.LaplaceMechanism(1.0), observed=3.0)
    options = {"draws": 5, "tune": 5, "chains": 1, "progressbar": False, "random_seed": 1}
    draws = dp.sample(model, initvals={mean: 0.3, "x": np.zeros(N)}, **options)
    assert set(draws["posterior"].data_vars) == {"mean", "twice"}
    kept = dp.sample(model, initvals={mean: 0.3}, var_names=["mean", "x"], **options)
    assert kept["posterior"]["x"].dims == ("chain", "draw", "person")
    assert "x_mean" in dp.recover(model, draws)["posterior"]


@pytest.mark.parametrize("length", ["shape", "dims"])
def test_threads_share_a_model(length):
    """Starting values, which a graph of a model has to do without, stay on it all the time."""
    model = model_of("normal", length)
    model.set_initval(model["theta"], 3.5)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(dp.collapse, [model] * 12))
    for each in (model, *found):
        assert each.rvs_to_initial_values[each["theta"]] == 3.5


def test_a_collapsed_model_keeps_the_number_of_records():
    age, person = {"age": np.zeros(3)}, {"person": range(3)}
    model = model_of("normal", "dims of data")
    with dp.collapse(model), pytest.raises(ShapeError, match="'person' is impossible"):
        pm.set_data(age, coords=person)
    before = dp.collapse(model).point_logps()
    with model:
        pm.set_data(age, coords=person)
    assert dp.collapse(model).point_logps() != before
    with dp.collapse(model_of("normal", "data")), pytest.raises(TypeError, match="`n` must be"):
        pm.set_data({"n": 3})


@pytest.mark.parametrize(
    ("statistic", "changed"),
    [
        (lambda x, d: pt.stack([x.sum(), 3.0 * x.sum() + 1])[d], np.array(1)),
        (lambda x, d: pt.stack([x, 3 * x, 1 - x])[d].sum(), np.array(1)),
        (lambda x, d: pt.stack([x.mean(), x.sum()])[d : d + 1][0], np.array(1)),
        (lambda x, d: pt.stack([x.mean(), x.sum()])[(2 * d.astype(float) + 0.5).astype(int)], 1),
    ],
)
def test_a_collapsed_model_keeps_what_was_released(statistic, changed):
    with pm.Model() as model:
        x = pm.Normal("x", pm.Normal("theta"), 1, shape=4)
        which = pm.Data("which", np.array(0))
        dp.PrivateObservation("z", statistic(x, which), dp.LaplaceMechanism(1.0), observed=2.0)
    with dp.collapse(model), pytest.raises(TypeError, match="`which` must be"):
        pm.set_data({"which": changed})
