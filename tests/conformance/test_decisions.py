"""The same model gives the same decision, whatever the seeds."""

import random

import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp
from pymc_dp.reading.model import Reading
from pymc_dp.step_methods import choose_steps
from tests.models import MODELS, route_table


def rung_of(model, rung, density):
    """Return what a collapsed model is, with a value of its density, or why there is none."""
    try:
        collapsed = dp.collapse(model, rung)
    except (ValueError, NotImplementedError) as error:
        return str(error)
    ops = {rv.name: str(rv.owner.op) for rv in collapsed.basic_RVs}
    start = collapsed.initial_point()
    value = float(collapsed.compile_logp()(start)) if density else None
    return ops, {name: value.tolist() for name, value in start.items()}, value


def step_of(model, rv):
    """Return whether each step takes a variable, or why it does not."""
    found = {}
    for step in (dp.TwoSidedGibbs, dp.CountGibbs, dp.TableGibbs, dp.ConjugateGibbs):
        try:
            with model:
                step([rv])
            found[step.__name__] = "taken"
        except (ValueError, NotImplementedError) as error:
            found[step.__name__] = str(error)
    return found


def decisions(build, seed, density=False):
    """Return all that is decided of a model, built anew."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    model = build()
    released = choose_steps(Reading(model))
    return {
        "routes": [(route.name, rate, reason) for route, rate, reason in route_table(model)],
        "steps": {rv.name: step.__name__ for rv, step in released.items()},
        "each": {rv.name: step_of(model, rv) for rv in model.free_RVs},
        "rungs": {rung: rung_of(model, rung, density) for rung in ("statistics", "marginal")},
        "explained": str(dp.explain(model, details=True)),
    }


SLOW = {"random_index", "vi_regression_clamped_laplace", "iv_regression_n20_laplace"}
NAMES = [pytest.param(n, marks=pytest.mark.nightly) if n in SLOW else n for n in MODELS]


@pytest.mark.by_day(
    "gaussian",
    "bernoulli",
    "poisson",
    "table",
    "mean_of_bits",
    "random_prior",
    "random_exponent",
    "random_half",
    "random_shape",
    "factorization",
    "normal",
)
@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_read_alike_each_time(name, night):
    first = decisions(MODELS[name], 0, density=night)
    for seed in range(1, 12 if night else 2):
        again = decisions(MODELS[name], seed, density=night)
        for what, expected in first.items():
            assert again[what] == expected, what


def test_the_seeds_of_draws_differ_from_build_to_build():
    """Else nothing above could have been found."""
    draws = {float(pm.draw(pm.Normal.dist())) for _ in range(3)}
    assert len(draws) == 3
