"""One short `pm.sample` with each step of the package, on the smallest model that takes it."""

import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp
from pymc_dp.steps import FeasibleSlice, registered_steps
from tests.conftest import gaussian_model

LAPLACE, GEOMETRIC = dp.LaplaceMechanism(2.0), dp.GeometricMechanism(2.0)


def gaussian(**options):
    prior = {"mu_0": 0.3, "kappa_0": 1.0, "nu_0": 3.0, "sigma_0_sq": 0.1}
    return gaussian_model(20, [0.1, 0.05], [0.4, 0.06], prior=prior, **options)


def statistics(**options):
    return dp.collapse(gaussian(**options), "statistics")


def poisson():
    with pm.Model() as model:
        y = pm.Poisson("y", pm.Gamma("rate", 2, 1), shape=3)
        dp.PrivateObservation("z", y, GEOMETRIC, observed=[3, -1, 2])
    return model


def bernoulli():
    with pm.Model() as model:
        x = pm.Bernoulli("x", pm.Beta("p", 1, 1), shape=9)
        dp.PrivateObservation("z", x.sum(), GEOMETRIC, observed=4)
    return dp.collapse(model, "statistics")


def table():
    with pm.Model() as model:
        y = pm.Poisson("y", [2.0, 3.0], shape=2)
        dp.PrivateObservation("cells", y, GEOMETRIC, observed=[1, 4])
        dp.PrivateObservation("total", y.sum(), GEOMETRIC, observed=6)
    return model


def factorization():
    return dp.poisson_factorization(np.array([[3, 0], [1, 5]]), 1, GEOMETRIC)


def normal():
    with pm.Model() as model:
        y = pm.Normal("y", pm.Normal("mu", 0, 1), 1, shape=2)
        dp.PrivateObservation("z", y, LAPLACE, observed=[1.0, -2.0])
    return model


# For each step: a model, and the variable that it updates.
STEPS = {
    dp.RecordMetropolis: (gaussian, "x"),
    dp.FactorizationGibbs: (factorization, "theta"),
    dp.CountGibbs: (bernoulli, "x_count"),
    dp.TableGibbs: (table, "y"),
    dp.TwoSidedGibbs: (poisson, "y"),
    dp.TruncatedGammaMixtureGibbs: (statistics, "x_var"),
    dp.ConjugateGibbs: (poisson, "rate"),
    FeasibleSlice: (lambda: statistics(bounds=(0, 1)), "mu"),
    dp.LaplaceScaleMixtureGibbs: (normal, "y"),
    dp.SkellamBesselGibbs: (poisson, "y"),
}


def test_every_step_has_a_model():
    assert set(registered_steps()) <= set(STEPS)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_short_run(step):
    build, name = STEPS[step]
    model = build()
    with model:
        variables = [model[name]]
        if step is dp.FactorizationGibbs:
            variables.append(model["phi"])
        own = step(variables)
        left = [rv for rv in model.free_RVs if model.rvs_to_values[rv] not in own.vars]
        others = [pm.Metropolis([rv]) for rv in left]
        idata = pm.sample(
            draws=20, tune=5, chains=1, cores=1, step=[own, *others], random_seed=1,
            progressbar=False, compute_convergence_checks=False,
        )  # fmt: skip
    drawn = idata["posterior"][name]
    assert np.isfinite(drawn).all()
    assert np.unique(drawn).size > 1  # it moves
