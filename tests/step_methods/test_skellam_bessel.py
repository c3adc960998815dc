"""`SkellamBesselGibbs`: what it refuses, and that it draws in `pm.sample`."""

import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp
from tests.chains import sampled, step_of

GEOMETRIC = dp.GeometricMechanism(2.0)


def released(mechanism=GEOMETRIC, statistic=lambda y: y, law=pm.Poisson, parameters=(2.0,)):
    with pm.Model() as model:
        y = law("y", *parameters, shape=5)
        dp.PrivateObservation("z", statistic(y), mechanism, observed=[3, -1, 4, 2, 0])
    return model


def of_another(y):
    return y + pm.Poisson("w", 1.0, shape=5)


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (
            {"law": pm.Binomial, "parameters": (9, 0.3)},
            "'y', which follows .*; write TwoSidedGibbs for others",
        ),
        (
            {"mechanism": dp.LaplaceMechanism(2.0)},
            "'y': its release 'z' uses LaplaceMechanism; write TwoSidedGibbs",
        ),
        ({"statistic": lambda y: 2 * y}, "'y': .* other than 1 and -1; write TwoSided"),
        ({"statistic": of_another}, "'y': it must be released as it is.* write TwoSided"),
    ],
)
def test_refusals(model, match):
    with pytest.raises(ValueError, match=f"SkellamBesselGibbs cannot update {match}"):
        step_of(dp.SkellamBesselGibbs, released(**model), "y")


def test_data_that_became_useless():
    with pm.Model() as model:
        scale = pm.Data("scale", 1.0)
        y = pm.Poisson("y", 2.0, shape=5)
        dp.PrivateObservation("z", -y, dp.GeometricMechanism(scale), observed=[3, -1, 4, 2, 0])
    step = step_of(dp.SkellamBesselGibbs, model, "y")
    point, _ = step.step(model.initial_point())
    assert point["y"].dtype == np.int64
    pm.set_data({"scale": -1.0}, model=model)
    with pytest.raises(ValueError, match=r"cannot be drawn.* the pm\.Data"):
        step.step(point)


def test_in_pm_sample():
    with pm.Model() as model:
        y = pm.Poisson("y", pm.Gamma("mu", 2, 1), shape=5)
        dp.PrivateObservation("z", y, GEOMETRIC, observed=[3, -1, 4, 2, 0])
        tree = sampled(model, draws=20, step=[dp.SkellamBesselGibbs([y])])
    y = tree.posterior["y"].to_numpy()
    assert y.dtype == np.int64
    assert np.all(y >= 0)
    assert not np.array_equal(y[0], y[1])
    assert "tree_depth" in tree.sample_stats  # NUTS for the rate
