"""`SkellamBesselGibbs`: what it refuses, and that it draws in `pm.sample`."""

import pymc as pm
import pytest

import pymc_dp as dp
from tests.chains import step_of

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
