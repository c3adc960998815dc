"""One short `pm.sample` with each step of the package, on the smallest model that takes it."""

import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp
from pymc_dp.step_methods import STEPS, FeasibleSlice
from tests.chains import sampled
from tests.models import bernoulli, factorization, gaussian, normal, poisson, statistics, table


def counted():
    return dp.collapse(bernoulli(), "statistics")


def regression_of_counts():
    rows = np.array([[1, 0], [1, 1], [1, 1], [1, 0], [1, 1]])
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=2)
        y = pm.Bernoulli("y", logit_p=rows @ b, shape=5)
        dp.PrivateObservation("z", rows.T @ y, dp.LaplaceMechanism(1.0), observed=[3.0, 1.0])
    return dp.collapse(model, "statistics")


def columns():
    with pm.Model() as model:
        rows = dp.LogLinear("rows", {"a": 2, "b": 3}, [("a", "b")], 30)
        z = np.full((2, 3), 5.0)
        dp.PrivateObservation("z", rows.margin("a", "b"), dp.LaplaceMechanism(2.0), observed=z)
    return model


def areas():
    with pm.Model() as model:
        p = pm.Dirichlet("p", [1.0, 2.0])
        county = pm.Multinomial("county", 30, p)
        tract = pm.Multinomial("tract", county, [0.2, 0.3, 0.5])
        z = np.full((2, 3), 5)
        dp.PrivateObservation("z", tract, dp.GeometricMechanism(2.0), observed=z)
    return model


# For each step: a model, and the variable that it updates.
CASES = {
    dp.RecordMetropolis: (gaussian, "x"),
    dp.FactorizationGibbs: (factorization, "theta"),
    dp.CountGibbs: (counted, "x_count"),
    dp.CliqueGibbs: (columns, "rows"),
    dp.TableGibbs: (table, "y"),
    dp.TreeGibbs: (areas, "county"),
    dp.CellGibbs: (regression_of_counts, "y_count"),
    dp.TwoSidedGibbs: (poisson, "y"),
    dp.TruncatedGammaMixtureGibbs: (statistics, "x_var"),
    dp.ConjugateGibbs: (poisson, "rate"),
    FeasibleSlice: (lambda: statistics(bounds=(0, 1)), "mu"),
    dp.LaplaceScaleMixtureGibbs: (normal, "y"),
    dp.SkellamBesselGibbs: (poisson, "y"),
}


def test_every_step_has_a_model():
    assert set(STEPS) <= set(CASES)


@pytest.mark.parametrize("step", CASES, ids=lambda step: step.__name__)
def test_short_run(step):
    build, name = CASES[step]
    model = build()
    more = {dp.FactorizationGibbs: ["phi"], dp.TreeGibbs: ["tract"]}  # drawn together
    names = [name, *more.get(step, [])]
    with model:
        own = step([model[name] for name in names])
        left = [rv for rv in model.free_RVs if model.rvs_to_values[rv] not in own.vars]
        others = [pm.Metropolis([rv]) for rv in left]
    drawn = sampled(model, draws=20, chains=1, step=[own, *others])["posterior"][name]
    assert np.isfinite(drawn).all()
    assert np.unique(drawn).size > 1  # it moves
