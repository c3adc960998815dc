"""Latent Poisson counts: who gets which step, that both agree, and what is refused."""

import math
import re

import cloudpickle
import numpy as np
import pymc as pm
import pytest
from pymc.sampling.mcmc import assign_step_methods

import pymc_dp as dp
from pymc_dp.reading.model import Reading
from pymc_dp.step_methods import choose_steps
from tests.references import references

CASES = [case for case in references("counts") if case["id"].startswith("B_scalar")]
GEOMETRIC, LAPLACE = dp.GeometricMechanism(2.0), dp.LaplaceMechanism(2.0)
Z = np.array([3, -1, 4, 2, 0])


def counts_model(mechanism=GEOMETRIC, rate=None, shape=5, statistic=lambda y: y, z=Z):
    with pm.Model() as model:
        mu = pm.Gamma("mu", 2, 1) if rate is None else rate()
        y = pm.Poisson("y", mu, shape=shape)
        dp.PrivateObservation("z", statistic(y), mechanism, observed=z)
    return model


def assigned(model):
    """Variables by the name of the step that `pm.sample` gives them."""
    with model:
        provided, selected = assign_step_methods(model, None)
    found = {v.name: type(s).__name__ for s in provided for v in s.vars}
    return found | {v.name: cls.__name__ for cls, vs in selected.items() for v in vs}


MODELS = {
    "geometric": {},
    "Laplace": {"mechanism": LAPLACE},
    "a rate each": {"rate": lambda: pm.Gamma("mu", 2, 1, shape=5)},
    "a regression": {"rate": lambda: pm.math.exp(pm.Normal("mu") * np.arange(5.0))},
    "known rate": {"rate": lambda: 3.0},
    "single": {"shape": (), "z": 3},
    "affine": {"statistic": lambda y: 1 - 2 * y},
    "of another dtype": {"statistic": lambda y: y.astype("float64").astype("float32")},
    "clipped": {"mechanism": GEOMETRIC.clipped(0, 9), "z": [3, 0, 4, 2, 0]},
}


@pytest.mark.parametrize("kwargs", MODELS.values(), ids=MODELS)
def test_released_one_by_one(kwargs):
    model = counts_model(**kwargs)
    assert model["y"].tag.dp_step == "TwoSidedGibbs"
    assert assigned(model)["y"] == "TwoSidedGibbs"
    assert choose_steps(Reading(model))[model["y"]] is dp.TwoSidedGibbs
    assert assigned(cloudpickle.loads(cloudpickle.dumps(model)))["y"] == "TwoSidedGibbs"
    assert assigned(model.copy())["y"] == "TwoSidedGibbs"


def of_another(y):
    return y + pm.Poisson("w", 1.0, shape=5)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"statistic": lambda y: y.sum(), "z": 9},
        {"statistic": of_another},
        {"statistic": lambda y: y**2},
        {"statistic": lambda y: y.astype("bool"), "z": [1, 0, 1, 1, 0]},
        {"statistic": lambda y: y.astype("int32")},
    ],
    ids=["sum", "of another", "square", "whether any", "wrapped around"],
)
def test_released_in_another_way(kwargs):
    model = counts_model(**kwargs)
    assert not hasattr(model["y"].tag, "dp_step")
    assert assigned(model)["y"] == "RecordMetropolis"


def test_a_second_release_decides_anew():
    model = counts_model()
    with model:
        dp.PrivateObservation("total", model["y"].sum(), LAPLACE, observed=8.0)
    assert assigned(model)["y"] == "TableGibbs"
    assert choose_steps(Reading(model))[model["y"]] is dp.TableGibbs
    with model:  # of which no table knows
        dp.PrivateObservation("square", (model["y"] ** 2).sum(), LAPLACE, observed=80.0)
    assert assigned(model)["y"] == "RecordMetropolis"
    assert choose_steps(Reading(model))[model["y"]] is dp.RecordMetropolis


@pytest.mark.parametrize(
    ("shape", "z", "instead"), [(5, Z, "dp.RecordMetropolis"), ((), 3, "pm.Metropolis")]
)
def test_a_later_child_is_refused_with_what_to_write(shape, z, instead):
    model = counts_model(shape=shape, z=z)
    with model:
        pm.Normal("late", model["y"].sum(), 1, observed=3.0)
    match = re.escape(f"is not a release. Write pm.sample(step={instead}([y]))")
    with model, pytest.raises(ValueError, match=rf"'y': 'late' depends on it too.*{match}"):
        pm.sample(1, tune=1, cores=1, progressbar=False)
    step = dp.RecordMetropolis if shape else pm.Metropolis
    with model:
        step([model["y"]])
    before = counts_model(shape=shape, z=z, statistic=lambda y: (pm.Normal("early", y), y)[1])
    assert assigned(before)["y"] != "TwoSidedGibbs"


def test_a_release_that_is_gone_is_named():
    model = pm.do(counts_model(), {"z": Z})
    with model, pytest.raises(ValueError, match=r"'y': it must feed exactly one release.*Write"):
        pm.sample(1, tune=1, cores=1, progressbar=False)


def test_refusals():
    with pm.Model() as other:
        y = pm.Binomial("y", 9, 0.3, shape=5)
        dp.PrivateObservation("z", y, GEOMETRIC, observed=Z)
    cases = [
        (other, "'y', which follows .*; write TwoSidedGibbs for others"),
        (counts_model(LAPLACE), "'y': its release 'z' uses LaplaceMechanism; write TwoSidedGibbs"),
        (counts_model(statistic=lambda y: 2 * y), "'y': .* other than 1 and -1; write TwoSided"),
        (counts_model(statistic=of_another), "'y': it must be released as it is.* write TwoSided"),
    ]
    for model, match in cases:
        with model, pytest.raises(ValueError, match=f"SkellamBesselGibbs cannot update {match}"):
            dp.SkellamBesselGibbs([model["y"]])
    with pm.Model() as shared:
        scale = pm.Data("scale", 1.0)
        y = pm.Poisson("y", 2.0, shape=5)
        dp.PrivateObservation("z", -y, dp.GeometricMechanism(scale), observed=Z)
        step = dp.SkellamBesselGibbs([y])
    step.setup_chain(np.random.default_rng(1), tune=0, draws=1)
    point, _ = step.step(shared.initial_point())
    assert point["y"].dtype == np.int64
    pm.set_data({"scale": -1.0}, model=shared)
    with pytest.raises(ValueError, match=r"cannot be drawn.* the pm\.Data"):
        step.step(point)


def mcse(x):
    batches = x[: x.size // 50 * 50].reshape(50, -1).mean(1)
    return batches.std(ddof=1) / math.sqrt(50)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case["id"])
def case(request):
    x = request.param["inputs"]
    mechanism = dp.GeometricMechanism(-1 / math.log(x["alpha"]))
    rate = lambda: pm.Gamma("mu", x["shape"], x["rate"])  # noqa: E731
    z = np.array(x["obs"])
    return counts_model(mechanism, rate, shape=z.size, z=z), request.param["expected"]


@pytest.mark.by_day("B_scalar_0-TwoSidedGibbs")
@pytest.mark.parametrize("step", [dp.TwoSidedGibbs, dp.SkellamBesselGibbs])
def test_posterior(case, step):
    model, expected = case
    with model:
        steps = [step([model["y"]]), dp.ConjugateGibbs([model["mu"]])]
        steps = cloudpickle.loads(cloudpickle.dumps(steps))
    for seed, s in enumerate(steps):
        s.setup_chain(np.random.default_rng(seed), tune=0, draws=1)
    point, mu = model.initial_point(), np.empty(12_000)
    for i in range(mu.size):
        for s in steps:
            point, _ = s.step(point)
        mu[i] = math.exp(point["mu_log__"])
    check(mu, expected)


def check(mu, expected):
    mean, sd = expected["post_mean"], expected["post_sd"]
    assert abs(mu.mean() - mean) < 4 * mcse(mu)
    squares = (mu - mean) ** 2
    assert abs(squares.mean() - sd**2) < 4 * mcse(squares)


def marginal_model(x):
    with pm.Model() as model:
        mu = pm.Gamma("mu", x["shape"], x["rate"])
        mechanism = dp.GeometricMechanism(-1 / math.log(x["alpha"]))
        y = pm.Poisson.dist(mu, shape=len(x["obs"]))
        dp.PrivateObservation("z", y, mechanism, observed=x["obs"])
    return model


def quadrature(model, grid):
    """Return the log evidence and the posterior of log mu on an even grid."""
    logp = model.compile_logp()
    joint = np.array([logp({"mu_log__": log_mu}) for log_mu in grid])
    weights = np.exp(joint - joint.max())
    return joint.max() + math.log(weights.sum() * (grid[1] - grid[0])), weights / weights.sum()


@pytest.mark.by_day("B_scalar_4")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_posterior_of_the_marginal(case):
    model, expected = marginal_model(case["inputs"]), case["expected"]
    # Smooth, and less than 1e-15 of the mass is beyond: sums on an even grid are exact.
    grid = np.linspace(-70, 5, 6001)
    evidence, weights = quadrature(model, grid)
    mean = weights @ np.exp(grid)
    sd = math.sqrt(weights @ (np.exp(grid) - mean) ** 2)
    np.testing.assert_allclose(
        [evidence, mean, sd],
        [expected[name] for name in ("log_evidence", "post_mean", "post_sd")],
        rtol=2e-6,
    )
    below = np.cumsum(weights) - 0.5 * weights
    quantiles = np.exp(np.interp([0.05, 0.5, 0.95], below, grid))
    np.testing.assert_allclose(quantiles, expected["q05_50_95"], rtol=2e-4)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
@pytest.mark.nightly
def test_draws_of_the_marginal(case):
    with marginal_model(case["inputs"]):
        tree = pm.sample(
            2500, tune=500, chains=2, cores=1, progressbar=False, random_seed=3, quiet=True
        )
    check(tree.posterior["mu"].to_numpy().ravel(), case["expected"])


@pytest.mark.parametrize("by_name", [False, True])
def test_in_pm_sample(by_name):
    model = counts_model()
    with model:
        step = [dp.SkellamBesselGibbs([model["y"]])] if by_name else None
        tree = pm.sample(
            20, tune=20, chains=2, cores=1, step=step, progressbar=False, random_seed=3,
            compute_convergence_checks=False,
        )  # fmt: skip
    y = tree.posterior["y"].to_numpy()
    assert y.dtype == np.int64
    assert np.all(y >= 0)
    assert not np.array_equal(y[0], y[1])
    assert "tree_depth" in tree.sample_stats  # NUTS for the rate


def test_dp_sample_takes_the_exact_draws(caplog):
    with caplog.at_level("INFO", logger="pymc.dp"):
        tree = dp.sample(
            counts_model(), draws=10, tune=10, chains=1, cores=1, progressbar=False,
            compute_convergence_checks=False, rung="records",
        )  # fmt: skip
    assert "Route: exact draws of the counts" in caplog.text
    assert set(tree.posterior) == {"mu"}
