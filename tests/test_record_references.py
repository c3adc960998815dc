"""The record rung against every exact reference, and how well it mixes."""

import arviz as az
import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp
from tests.record_models import RECORD_CASES, RECORD_MODELS, mean_and_square

# ESS per draw allows for fewer draws, except where a record moves by one of 4,526 at a time.
DRAWS = {"a_admissions_2x2": 6_000}


def run(model, step, draws=4_000, seed=1):
    """Draws of everything but the records, from one chain."""
    records = {rv.name for rv in dp.records.privatized(model)}
    names = [rv.name for rv in model.unobserved_RVs if rv.name not in records]
    with model:
        return pm.sample(
            step=step, draws=draws, tune=500, chains=1, cores=1, random_seed=seed, quiet=True,
            progressbar=False, compute_convergence_checks=False, var_names=names,
        ).posterior  # fmt: skip


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
ALONE = [name for name in RECORD_MODELS if name != "a_admissions_2x2"]


@pytest.mark.parametrize("name", ALONE)
def test_interweaving_alone(name):
    model = RECORD_MODELS[name]()
    with model:
        step = dp.RecordMetropolis(list(dp.records.privatized(model)))
    assert_reference(name, run(model, step, 6_000))


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
def test_mixes_where_the_noise_dominates(name, noise):
    """More than a quarter of an effective draw a sweep; without interweaving 1e-3 to 1e-2."""
    model = mean_and_square(name, noise)
    with model:
        step = [dp.RecordMetropolis([model["x"]], sweeps=1)]
        step.append(dp.ConjugateGibbs([model["mu"], model["sigma2"]]))
    posterior = run(model, step, 8_000)
    for parameter in ("mu", "sigma2"):
        assert float(az.ess(posterior[parameter].to_numpy())) > 0.25 * 8_000
