"""The record rung against every exact reference, and how well it mixes."""

import arviz as az
import numpy as np
import pymc as pm
import pytest
from pymc.step_methods.compound import CompoundStep

import pymc_dp as dp
from pymc_dp.reading.bounds import feasible_point
from pymc_dp.reading.model import Reading, privatized
from pymc_dp.step_methods.base import point_function
from tests.models import RECORD_CASES, RECORD_MODELS, mean_and_square

# ESS per draw allows for fewer draws, except where a record moves by one of 4,526 at a time.
CLAMPED = "vi_regression_clamped_laplace"
DRAWS = {"a_admissions_2x2": 6_000, CLAMPED: 2_000}


def run(model, step, draws=4_000, seed=1):
    """Draws of everything but the records, from one chain."""
    records = {rv.name for rv in privatized(Reading(model))}
    names = [rv.name for rv in model.unobserved_RVs if rv.name not in records]
    with model:
        return pm.sample(
            step=step, draws=draws, tune=500, chains=1, cores=1, random_seed=seed, quiet=True,
            progressbar=False, compute_convergence_checks=False, var_names=names,
        ).posterior  # fmt: skip


def run_alone(model, step, draws, tune=500, seed=1):
    """The same with one step and no other: `pm.sample` would give the parameters to NUTS, too."""
    records = {model.values_to_rvs[v] for v in step.vars}
    quantities = [rv for rv in model.unobserved_RVs if rv not in records]
    function, inputs = point_function(model, quantities)
    chain, point, found = CompoundStep([step]), feasible_point(model), []
    chain.setup_chain(np.random.default_rng(seed), tune, draws)
    for i in range(tune + draws):
        if i == tune:
            chain.stop_tuning()
        point, _ = chain.step(point)
        if i >= tune:
            found.append(function(*(point[name] for name in inputs)))
    values = zip(*found, strict=True)
    return {rv.name: np.array(v) for rv, v in zip(quantities, values, strict=True)}


def ess(draws):
    return float(az.ess(np.asarray(draws, dtype=float)[None], method="mean"))


def assert_agrees(draws, exact):
    """Mean, sd and the share of draws below exact quantiles, each within 4 standard errors."""
    draws = np.asarray(draws).ravel()
    assert ess(draws) > 1_000
    if "mean" in exact:
        assert abs(draws.mean() - exact["mean"]) < 4 * draws.std() / np.sqrt(ess(draws))
    if "sd" in exact:
        squares = (draws - draws.mean()) ** 2
        assert abs(draws.std() - exact["sd"]) < 4 * exact["sd"] / np.sqrt(2 * ess(squares))
    for p in ("0.025", "0.5", "0.975"):
        if p in exact.get("quantiles", {}):
            below, share = draws <= exact["quantiles"][p], float(p)
            error = np.sqrt(share * (1 - share) / ess(below))
            assert abs(below.mean() - share) < 4 * error, p


def assert_reference(name, posterior):
    case = RECORD_CASES[name]
    derived = {"odds_ratio"}  # of log_or
    assert set(case["params"]) - derived <= set(posterior)
    for parameter in set(case["params"]) - derived:
        assert_agrees(posterior[parameter], case["params"][parameter])
    if "odds_ratio" in case["params"]:
        assert_agrees(np.exp(posterior["log_or"]), case["params"]["odds_ratio"])


@pytest.mark.parametrize("name", RECORD_MODELS)
@pytest.mark.nightly
def test_reference(name):
    model = RECORD_MODELS[name]()
    posterior = run(model, dp.steps(model), DRAWS.get(name, 4_000))
    assert_reference(name, posterior)
    latent = RECORD_CASES[name].get("latent", {})
    if "count_mean" in latent:
        exact = {"mean": latent["count_mean"], "sd": latent["count_sd"]}
        assert_agrees(posterior["count"], exact)


def test_every_reference_is_compared():
    assert set(RECORD_MODELS) == set(RECORD_CASES)


# Without any update of the parameters given the records: the interweaving moves are all there is.
ALONE = [name for name in RECORD_MODELS if name not in ("a_admissions_2x2", CLAMPED)]
SWEEPS = {"gauss_meanvar_n1000": 8}  # the noise is small there, which makes the moves short


@pytest.mark.nightly
@pytest.mark.parametrize("name", ALONE)
def test_interweaving_alone(name):
    model = RECORD_MODELS[name]()
    with model:
        step = dp.RecordMetropolis(list(privatized(Reading(model))), sweeps=SWEEPS.get(name))
    assert_reference(name, run_alone(model, step, 6_000))


@pytest.mark.nightly
def test_beside_nuts():
    """The steps that `pm.sample` assigns by itself."""
    name = "gauss_meanvar_n100"
    posterior = run(RECORD_MODELS[name](), None, 3_000)
    assert_reference(name, posterior)


@pytest.mark.parametrize(
    ("name", "noise"),
    [
        ("gauss_meanvar_n100", 40.0),
        ("gauss_meanvar_n100", 400.0),
        ("gauss_meanvar_n1000", 100.0),
    ],
)
@pytest.mark.nightly
def test_mixes_where_the_noise_dominates(name, noise):
    """More than a quarter of an effective draw a sweep; without interweaving 1e-3 to 1e-2."""
    model = mean_and_square(name, noise)
    with model:
        step = [dp.RecordMetropolis([model["x"]], sweeps=1)]
        step.append(dp.ConjugateGibbs([model["mu"], model["sigma2"]]))
    posterior = run(model, step, 8_000)
    for parameter in ("mu", "sigma2"):
        assert float(az.ess(posterior[parameter].to_numpy())) > 0.25 * 8_000


@pytest.mark.nightly
def test_clamped_regression_mixes():
    """Plain data augmentation yields a hundredth of an effective draw a sweep, or less."""
    model, sweeps, draws = RECORD_MODELS[CLAMPED](), 3, 8_000
    with model:
        step = dp.RecordMetropolis(list(privatized(Reading(model))), sweeps=sweeps)
    posterior = run_alone(model, step, draws)
    assert_reference(CLAMPED, posterior)
    for name, exact in RECORD_CASES[CLAMPED]["params"].items():
        assert ess(posterior[name]) > 0.05 * draws * sweeps
        assert abs(posterior[name].mean() - exact["mean"]) < 0.05 * exact["sd"]
