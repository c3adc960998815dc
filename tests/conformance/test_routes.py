"""One short `dp.sample` by each registered route, on a model that opens it."""

import logging

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_dp as dp
from pymc_dp import routes
from pymc_dp.ladder.collapse import collapsed
from pymc_dp.reading.model import Reading
from pymc_dp.routes import ROUTES, nuts, starts
from pymc_dp.step_methods.loop import walks
from tests.chains import QUIET
from tests.models import MODELS, as_model, gaussian, group_means, poisson, regression, route_table

FEW = {"draws": 4, "tune": 4, "chains": 1, "random_seed": 1} | QUIET
# What compiled chains do not take: another route is left, and short trees are enough for it.
NUTS = {"nuts_sampler": "pymc", "cores": 1}
SHALLOW = NUTS | {"max_treedepth": 3}
# And a start that is looked for a little: tests/routes/test_starts.py looks for it in full.
HASTE = {"_ROUNDS": 1, "_MOST_ASCENTS": 5, "_LOOKED_AT": 2, "_CHECKED": 2}


@as_model
def clamped():
    x = pm.Normal("x", pm.Normal("mu", 0, 2), pm.HalfNormal("sd", 2), shape=20).clip(0, 3)
    released = pt.stack([x.mean(), (x**2).mean()])
    dp.PrivateObservation("z", released, dp.LaplaceMechanism(0.2), observed=[1.4, 2.5])


@as_model
def two_groups():
    sd = pm.HalfNormal("sd", 5)
    for j in range(2):
        x = pm.Normal(f"x{j}", pm.Normal(f"mu{j}", 0, 5), sd, shape=30)
        moments = [x.mean(), x.var(ddof=1)]
        name = "z" if j else "z0"
        dp.PrivateObservation(name, moments, dp.LaplaceMechanism(0.5), observed=[1.0, 4.0])


@as_model
def cells():
    counts = pm.Multinomial("counts", 60, pm.Dirichlet("p", np.ones(3)))
    dp.PrivateObservation("z", counts, dp.GeometricMechanism(2.0), observed=[20, 18, 26])


@as_model
def levels():
    rate = pm.Gamma("rate", pm.Gamma("a", 2, 1), 1, shape=3)
    y = pm.Poisson("y", rate, shape=3)
    dp.PrivateObservation("z", y, dp.GeometricMechanism(2.0), observed=[2, 0, 5])


@as_model
def columns():
    rows = dp.LogLinear("rows", {"a": 2, "b": 2}, [("a", "b")], 40)
    z = [[12.3, 8.1], [4.4, 16.0]]
    dp.PrivateObservation("z", rows.margin("a", "b"), dp.GaussianMechanism(3.0), observed=z)


def a_jump():
    """A discrete parameter that nothing of ours moves."""
    with pm.Model() as model:
        x = pm.Normal("x", pm.Poisson("k", 2.0), 1.0, shape=9)
        dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(0.5), observed=1.4)
    return dp.collapse(model, "marginal")


# By the name of the route: a model and arguments of `dp.sample`.
CASES = {
    "fused Gibbs": (gaussian, {}),
    "exact regression": (regression, {}),
    "NUTS on the sums, Normal by the central limit theorem": (
        regression,
        {"approximate": "clt", "rung": "statistics"} | SHALLOW,
    ),
    "NUTS on the marginal, by the central limit theorem": (
        regression,
        {"approximate": "clt", "rung": "marginal"} | SHALLOW,
    ),
    "NUTS on cell probabilities, by the central limit theorem": (
        columns,
        {"approximate": "clt"} | SHALLOW,
    ),
    "NUTS on the marginal": (gaussian, {"rung": "marginal"} | NUTS),
    "slices on the marginal": (group_means, {}),
    "Gibbs on the statistics": (gaussian, {"rung": "statistics"} | NUTS),
    "NUTS on the statistics": (regression, {"rung": "statistics"} | SHALLOW),
    "Metropolis on the records": (gaussian, {"rung": "records"} | NUTS),
    "exact draws of the counts": (poisson, {"rung": "records"} | NUTS),
    "records in one loop": (clamped, {}),
    "steps in one loop": (cells, {}),
    "steps in one loop, on the counts": (poisson, {"rung": "records"}),
    "steps in one loop, rates integrated out": (levels, {}),
    "steps in one loop, on the statistics": (two_groups, {"rung": "statistics"}),
    "NUTS on the records": (gaussian, {"rung": "records"} | NUTS),
    "steps on the model as written": (cells, NUTS),
    "NUTS on the model as written": (lambda: dp.collapse(gaussian(), "marginal"), SHALLOW),
    "PyMC's own steps on the model as written": (a_jump, NUTS),
}


def test_a_loop_leaves_many_parameters_that_depend_on_each_other_to_others():
    X = np.random.default_rng(1).normal(size=(40, 25))
    with pm.Model() as model:
        y = pm.Poisson("y", pm.math.exp(X @ pm.Normal("b", 0, 1, shape=25)), shape=40)
        dp.PrivateObservation("z", y, dp.GeometricMechanism(3.0), observed=np.full(40, 8))
    reasons = {route.name: why for route, _, why in route_table(model)}
    assert "25 have no step: 'b'" in reasons["steps in one loop, on the counts"]


def test_entries_whose_values_are_tied_do_not_move_each_by_itself():
    with pm.Model() as model:
        tied = {"transform": pm.distributions.transforms.ordered, "initval": [1.0, 2.0, 3.0]}
        for name, options in (("free", {}), ("tied", tied)):
            rate = pm.Gamma(name, 2, 1, shape=3, **options)
            y = pm.Poisson(f"{name}_y", rate, shape=3)
            dp.PrivateObservation(f"{name}_z", y, dp.GeometricMechanism(1.0), observed=[1, 2, 5])
    found = walks(Reading(model), [model["free"], model["tied"]], model.initial_point())
    # A walk for each axis, two for each entry where they have axes in common.
    assert [weave.walk().scales.size for weave in found] == [3, 6]


@pytest.mark.parametrize(
    ("write", "accept"),
    [
        (lambda: pm.Normal("x", pm.Normal("mu"), pm.HalfNormal("sd"), shape=9), 0.8),
        (lambda: pm.Normal("x", pm.Normal("mu", pm.Normal("level"), 1.0), 1.0, shape=9), 0.9),
        (lambda: pm.Bernoulli("x", pm.Beta("p", 1, 1), shape=pm.Poisson("n", 9)), 0.9),
    ],
)
def test_steps_of_nuts_are_shorter_where_parameters_depend_on_each_other(write, accept):
    with pm.Model() as model:
        dp.PrivateObservation("z", write().sum(), dp.LaplaceMechanism(2.0), observed=4.0)
    reading = Reading(model)
    assert nuts._accept(reading, collapsed(reading, "marginal")) == accept


def test_every_route_has_a_model():
    assert {route.name for route in ROUTES} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_short_run(name, caplog, monkeypatch):
    build, options = CASES[name]
    model = build()
    for constant, value in HASTE.items():
        monkeypatch.setattr(starts, constant, value)
    if name == "NUTS on the records":  # the last resort: no small model shuts all the others
        [last] = [route for route in ROUTES if route.name == name]
        monkeypatch.setattr(routes, "ROUTES", [last])
    with caplog.at_level(logging.INFO, logger="pymc.dp"):
        idata = dp.sample(model, **FEW, **options)
    assert f"Route: {name} (rung: " in caplog.text
    assert {"posterior", "sample_stats", "observed_data"} <= set(idata.children)
    np.testing.assert_allclose(idata["observed_data"]["z"], model.rvs_to_values[model["z"]].eval())
    posterior = idata["posterior"]
    assert dict(posterior.sizes)["chain"] == 1
    assert dict(posterior.sizes)["draw"] == 4
    for parameter in posterior.data_vars.values():
        assert np.isfinite(parameter).all()
        assert np.unique(parameter).size > 1  # it moves
    again = dp.sample(model, **FEW, **options)["posterior"]  # by what the first call made
    assert again.to_dataset().equals(posterior.to_dataset())


# Models of which nothing is integrated out: dp.check says so.
AS_WRITTEN = {
    "table", "random_shape", "random_half", "random_index", "gauss_meanvar_n100",
    "iv_regression_n20_laplace", "vi_regression_clamped_laplace",
    "a_admissions_2x2",  # of this one the statistics are, but its records are slow to draw
}  # fmt: skip
JUDGED = {name: build for name, build in MODELS.items() if name not in AS_WRITTEN} | {
    "two groups": two_groups, "levels": levels, "group means": group_means,
}  # fmt: skip


@pytest.mark.by_day("poisson", "bernoulli", "factorization", "normal", "random_prior", "levels",
                    "v_randomized_response", "iii_exponential_clamped_gaussian")  # fmt: skip
@pytest.mark.parametrize("name", JUDGED)
def test_the_density_of_each_model_is_that_of_what_is_written(name):
    found = dp.check(JUDGED[name](), points=2, seconds=2.0, random_seed=1, progressbar=False)
    assert found.agrees, found
