"""One short `dp.sample` by each registered route, on a model that opens it."""

import logging

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_dp as dp
from pymc_dp import sampling
from pymc_dp.sampling import registered_routes
from tests.conftest import gaussian_model

SHORT = {
    "draws": 4, "tune": 4, "chains": 1, "random_seed": 1,
    "progressbar": False, "compute_convergence_checks": False,
}  # fmt: skip
# What compiled chains do not take: another route is left, and short trees are enough for it.
NUTS = {"nuts_sampler": "pymc", "cores": 1}
SHALLOW = NUTS | {"max_treedepth": 3}


def gaussian():
    prior = {"mu_0": 0.3, "kappa_0": 1.0, "nu_0": 3.0, "sigma_0_sq": 0.1}
    return gaussian_model(20, [0.1, 0.05], [0.4, 0.06], prior=prior)


def regression():
    with pm.Model() as model:
        sigma2 = pm.InverseGamma("sigma2", alpha=20, beta=0.5)
        theta = pm.Normal("theta", 0, pt.sqrt(sigma2 * 38), shape=2)
        x = pm.Normal("x", 0, 0.2, shape=100)
        y = pm.Normal("y", theta[0] + theta[1] * x, pt.sqrt(sigma2), shape=100)
        sums = [x.sum(), (x**2).sum(), y.sum(), (x * y).sum(), (y**2).sum()]
        z = [1.0, 4.0, 30.0, 6.0, 20.0]
        dp.PrivateObservation("z", sums, dp.LaplaceMechanism(5.0), observed=z)
    return model


def counts():
    with pm.Model() as model:
        rate = pm.Gamma("rate", 2, 1)
        y = pm.Poisson("y", rate, shape=3)
        dp.PrivateObservation("z", y, dp.GeometricMechanism(2.0), observed=[3, -1, 2])
    return model


# By the name of the route: a model and arguments of `dp.sample`.
ROUTES = {
    "fused Gibbs": (gaussian, {}),
    "exact regression": (regression, {}),
    "regression by the central limit theorem": (regression, {"approximate": "clt"}),
    "NUTS on the sums, Normal by the central limit theorem": (
        regression,
        {"approximate": "clt", "rung": "statistics"} | SHALLOW,
    ),
    "NUTS on the marginal, by the central limit theorem": (
        regression,
        {"approximate": "clt", "rung": "marginal"} | SHALLOW,
    ),
    "NUTS on the marginal": (gaussian, {"rung": "marginal"} | NUTS),
    "Gibbs on the statistics": (gaussian, {"rung": "statistics"} | NUTS),
    "NUTS on the statistics": (regression, {"rung": "statistics"} | SHALLOW),
    "Metropolis on the records": (gaussian, {"rung": "records"} | NUTS),
    "exact draws of the counts": (counts, {"rung": "records"} | NUTS),
    "NUTS on the records": (gaussian, {"rung": "records"} | NUTS),
}


def test_every_route_has_a_model():
    assert {route.name for route in registered_routes()} == set(ROUTES)


@pytest.mark.parametrize("name", ROUTES)
def test_short_run(name, caplog, monkeypatch):
    build, options = ROUTES[name]
    model = build()
    if name == "NUTS on the records":  # the last resort: no small model shuts all the others
        [last] = [route for route in registered_routes() if route.name == name]
        monkeypatch.setattr(sampling, "_ROUTES", [last])
    with caplog.at_level(logging.INFO, logger="pymc.dp"):
        idata = dp.sample(model, **SHORT, **options)
    assert f"Route: {name} (rung: " in caplog.text
    assert {"posterior", "sample_stats", "observed_data"} <= set(idata.children)
    np.testing.assert_allclose(idata["observed_data"]["z"], model.rvs_to_values[model["z"]].eval())
    posterior = idata["posterior"]
    assert dict(posterior.sizes)["chain"] == 1
    assert dict(posterior.sizes)["draw"] == 4
    for parameter in posterior.data_vars.values():
        assert np.isfinite(parameter).all()
        assert np.unique(parameter).size > 1  # it moves
