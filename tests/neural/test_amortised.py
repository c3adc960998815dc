"""One network for a range of privacy levels, and the diagnostics, against conjugate posteriors."""

import copy
import dataclasses
import logging
from functools import partial

import arviz_base
import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats
from xarray import DataTree

import pymc_dp as dp

pytest.importorskip("sbi")

SMALL = dp.neural.Training(hidden_features=30, num_transforms=3)
ROUGH = dp.neural.Training(hidden_features=8, epoch_steps=5, last_epochs=4)
OBSERVED = np.array([0.5, -0.4])


def mechanism(epsilon):
    return dp.GaussianMechanism(np.ones(2) / epsilon)


def means_of_two_groups():
    """Write a model with two independent Normal means, each known by a noisy mean of 20."""
    with pm.Model(coords={"group": ["a", "b"]}) as model:
        mu = pm.Normal("mu", 0, 1, dims="group")
        x = pm.Normal("x", mu, 1, shape=(20, 2))
        dp.PrivateObservation("z", x.mean(axis=0), mechanism(1.0), observed=OBSERVED, dims="group")
    return model


def exact(epsilon, z=OBSERVED):
    """Return mean and standard deviation of the posterior."""
    precision = 1 / (1 / 20 + 1 / epsilon**2)
    return precision * z / (1 + precision), (1 + precision) ** -0.5


def amortised(model=None, **kwargs):
    """Train a poor network, fast."""
    defaults = {"mechanism": mechanism, "epsilon": (0.5, 20.0), "simulations": 200}
    defaults |= {"training": ROUGH, "random_seed": 1, "progressbar": False}
    if model is None and "simulator" not in kwargs:
        model = means_of_two_groups()
    return dp.neural.amortise(model, **defaults | kwargs)


@pytest.fixture(scope="module")
def fit():
    return amortised(simulations=4000, training=SMALL)


@pytest.fixture(scope="module")
def rough():
    return amortised()


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 20.0])
@pytest.mark.nightly
def test_posterior_at_every_level(fit, epsilon):
    tree = fit.sample(epsilon, random_seed=1)
    draws = tree["posterior"]["mu"]
    assert draws.dims == ("chain", "draw", "group")
    mean, sd = exact(epsilon)
    np.testing.assert_allclose(draws.mean(("chain", "draw")), mean, atol=0.2 * sd)
    np.testing.assert_allclose(draws.std(("chain", "draw")), sd, rtol=0.12)
    lp = tree["sample_stats"]["lp"].to_numpy().mean()  # that of two Normal densities
    assert abs(lp - 2 * (-0.5 * np.log(2 * np.pi * sd**2) - 0.5)) < 0.2
    np.testing.assert_array_equal(tree["observed_data"]["z"], OBSERVED)
    again = fit.sample(epsilon, OBSERVED, random_seed=1)
    np.testing.assert_array_equal(again["posterior"]["mu"], draws)


@pytest.mark.nightly
def test_calibration(fit):
    calibration = partial(dp.neural.calibration, simulations=300, draws=100, random_seed=2)
    tree = calibration(fit)
    assert fit.labels == ["mu[0]", "mu[1]"] == list(tree["prior_sbc"].data_vars)
    checks = tree["checks"].to_dataset()
    assert np.all(checks["ks_pvalue"] > 1e-3)
    assert np.all(np.abs(checks["c2st"] - 0.5) < 0.1)
    assert checks.identical(calibration(fit)["checks"].to_dataset())
    expected = tree["coverage"]["expected_coverage"]
    assert np.abs(expected - expected["prob"]).max() < 0.1
    # A network that is given another release than the one that was drawn is not calibrated.
    noise = copy.copy(fit.noise)
    noise.release = lambda *arguments: fit.noise.release(*arguments) + 0.8
    moved = calibration(dataclasses.replace(fit, noise=noise))
    assert np.all(moved["checks"]["ks_pvalue"] < 1e-3)
    assert np.all(moved["checks"]["c2st"] > 0.6)
    assert moved["checks"]["negative_log_density"] > checks["negative_log_density"]


@pytest.mark.nightly
def test_privacy_utility_curve(fit):
    levels = [0.5, 3.0, 20.0]
    curve = fit.privacy_utility(levels, replicates=200, draws=200, random_seed=3)
    sd = np.array([exact(e)[1] for e in levels])
    np.testing.assert_allclose(curve["sd"].mean("parameter"), sd, rtol=0.1)
    np.testing.assert_allclose(curve["width"].mean("parameter"), 2 * 1.645 * sd, rtol=0.1)
    np.testing.assert_allclose(curve["rmse"].mean("parameter"), sd, rtol=0.15)
    assert np.all(np.abs(curve["coverage"] - 0.9) < 0.08)
    here = fit.privacy_utility([3.0], given={"mu": [2.0, -2.0]}, replicates=50, random_seed=3)
    assert np.all(here["rmse"] < 0.8)


@pytest.mark.nightly
def test_laplace_noise_at_a_level_is_that_of_the_mechanism(fit):
    """The releases that the network learns from, by quantiles and by draws."""
    noise = fit.noise
    rng = np.random.default_rng(4)
    z = noise.release(np.zeros((20_000, 2)), np.full(20_000, 4.0), rng)
    assert stats.kstest(z[:, 0] * 4.0, "norm").pvalue > 1e-3
    drawn = noise.draw(np.zeros((500, 2)))
    level = np.exp(drawn[..., 2])
    assert level.min() > 0.5
    assert level.max() < 20.0
    spread = (np.log(level) - np.log(0.5)) / np.log(40.0)
    assert stats.kstest(spread.ravel(), "uniform").pvalue > 1e-3


@pytest.mark.nightly
def test_predictions_and_distances():
    model = means_of_two_groups()
    rng = np.random.default_rng(0)
    mean, sd = exact(1.0)
    good, bad = (posterior_of(rng.normal(mean + move, sd, (2, 1000, 2))) for move in (0.0, 3.0))
    found = dp.neural.predict(good, model, random_seed=1)
    z = found["posterior_predictive"]["z"]
    assert z.dims == ("chain", "draw", "group")
    assert list(z["group"].values) == ["a", "b"]
    np.testing.assert_allclose(z.mean(("chain", "draw")), mean, atol=0.25)
    np.testing.assert_allclose(
        z.std(("chain", "draw")), np.hypot(sd, (1 + 1 / 20) ** 0.5), rtol=0.1
    )
    distance = found["posterior_predictive"].attrs["log_median_distance"]
    worse = dp.neural.predict(bad, model, random_seed=1)
    assert worse["posterior_predictive"].attrs["log_median_distance"] > distance
    assert "posterior_predictive" not in good.children

    same, fewer = (
        dp.neural.compare(good, posterior_of(rng.normal(mean, sd, shape)))
        for shape in ((2, 1000, 2), (1, 300, 2))
    )
    assert abs(fewer["c2st"] - 0.5) < 0.1
    apart = dp.neural.compare(good, bad)
    assert abs(same["c2st"] - 0.5) < 0.05
    assert abs(same["mmd"]) < 0.01
    assert apart["c2st"] > 0.9
    fixed = [with_constant(tree) for tree in (good, bad)]
    assert dp.neural.compare(*fixed)["c2st"] > 0.9
    truth = {"mu": mean}
    density = dp.neural.negative_log_density(good, truth)
    assert abs(density - 2 * np.log(sd * np.sqrt(2 * np.pi))) < 0.2
    assert dp.neural.negative_log_density(bad, truth) > density + 2


def with_constant(tree):
    posterior = tree["posterior"].to_dataset()
    return DataTree.from_dict({"posterior": posterior.assign(c=0 * posterior["mu"] + 1)})


def posterior_of(draws):
    dims, coords = {"mu": ["group"]}, {"group": ["a", "b"]}
    return arviz_base.from_dict({"posterior": {"mu": draws}}, dims=dims, coords=coords)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epsilon": (2.0, 1.0)}, r"write the range of the level"),
        ({"mechanism": lambda epsilon: epsilon}, r"mechanism must return one"),
        ({"mechanism": lambda _: dp.LaplaceMechanism(1.0)}, r"does not depend on the level"),
        ({"epsilon": 1.0}, r"write the range of the level"),
        ({"mechanism": dp.LaplaceMechanism(1.0)}, r"mechanism: a function of the level"),
        ({"shape": 2}, r"shape= goes with simulator="),
        ({"simulator": np.sum, "prior": {}}, r"simulator= takes shape="),
        ({"simulations": 0}, r"simulations=0"),
    ],
)
def test_arguments_that_are_refused(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        amortised(**arguments)


def test_levels_and_releases_that_are_refused(rough):
    for wrong, message in [
        ({"epsilon": 100.0}, r"levels from 0\.5 to 20"),
        ({"observed": [1.0, 2.0, 3.0]}, "'z' releases 2 finite numbers"),
        ({"observed": [1.0, np.nan]}, "'z' releases 2 finite numbers"),
        ({"observed": [[1.0], [2.0]]}, "'z' releases 2 finite numbers"),
        ({"observed": ["a", 2.0]}, "observed: a number or an array"),
        ({"epsilon": [1.0, 2.0]}, "one number"),
        ({"draws": 0}, "draws=0"),
    ]:
        with pytest.raises((ValueError, TypeError), match=message):
            rough.sample(**{"epsilon": 1.0} | wrong)


def test_a_release_out_of_range_is_warned_of(rough, caplog):
    with caplog.at_level(logging.WARNING, logger="pymc.dp"):
        rough.sample(20.0, OBSERVED)
        assert not caplog.text
        rough.sample(20.0, [0.5, 6.0])
    assert "'z': the released value at [1] is 6" in caplog.text


def positive(parameters, rng):
    return rng.normal(parameters["s"], 0.5)[:, None]


def by_level(epsilon):
    return dp.LaplaceMechanism(1.0 / np.asarray(epsilon))


@pytest.fixture(scope="module")
def small():
    """Train a poor network, of a positive parameter without a transform."""
    with pm.Model() as prior:
        s = pm.HalfNormal("s", default_transform=None)
        pm.Deterministic("square", s**2)
    return amortised(
        simulator=positive, prior=prior, shape=1, mechanism=by_level, epsilon=(0.5, 5.0)
    )


def test_draws_stay_within_the_prior_and_deterministics_are_kept(small, caplog):
    with caplog.at_level(logging.WARNING, logger="pymc.dp"):
        posterior = small.sample(1.0, [0.3], draws=200)["posterior"]
    assert posterior["s"].min() > 0
    assert posterior.attrs["leakage"] > 0.01
    assert "'s' has no transform" in caplog.text
    np.testing.assert_allclose(posterior["square"], posterior["s"] ** 2)
    with pytest.raises(ValueError, match="observed= is needed"):
        small.sample(1.0)
    with pytest.raises(ValueError, match=r"'s': -1.0.* have no prior density"):
        small.privacy_utility([1.0], given={"s": -1.0})


def test_an_amortised_posterior_can_be_stored(small, rough):
    for posterior, observed, name in ((small, [0.3], "s"), (rough, OBSERVED, "mu")):
        again = cloudpickle.loads(cloudpickle.dumps(posterior))
        trees = [own.sample(1.0, observed, draws=20, random_seed=2) for own in (posterior, again)]
        np.testing.assert_array_equal(*(tree["posterior"][name] for tree in trees))
        theta, _ = again.simulate(3, 1.0, 1)
        assert theta.shape == (3, posterior.problem.prior.width)


def test_the_data_are_simulated_once_for_all_levels(small):
    calls = []
    run = small.problem.run

    def counted(theta, rng):
        calls.append(len(theta))
        return run(theta, rng)

    problem = dataclasses.replace(small.problem, run=counted)
    own = dataclasses.replace(small, problem=problem)
    own.privacy_utility([1.0, 2.0, 4.0], replicates=10, draws=20)
    assert calls == [10]


def test_levels_of_a_lattice_and_no_release_yet():
    """The mechanism is never called outside of the range, and the model needs no release."""

    def drawn(level):
        return dp.BinomialMechanism(np.round(level / 40), 5, 1000)

    with pm.Model() as model:
        share = pm.Beta("share", 2, 2)
        sick = pm.CustomDist(
            "sick", share, random=lambda p, rng, size: rng.binomial(1000, p, size=size)
        )
        dp.PrivateObservation("z", sick, drawn(400))
    few = dp.neural.Training(hidden_features=8, last_epochs=1, epoch_steps=2)
    found = amortised(model, mechanism=drawn, epsilon=(80, 400), simulations=60, training=few)
    with pytest.raises(ValueError, match="observed= is needed"):
        found.sample(200.0)
    with pytest.raises(ValueError, match=r"'z': .* cannot publish 2\.5"):
        found.sample(200.0, 2.5)
    assert found.sample(200.0, 3.0, draws=10)["posterior"]["share"].sizes["draw"] == 10


def test_two_releases_are_refused():
    with pm.Model() as model:
        mu = pm.Normal("mu")
        x = pm.Normal("x", mu, 1, shape=5)
        dp.PrivateObservation("a", x.mean(), dp.LaplaceMechanism(1.0), observed=0.0)
        dp.PrivateObservation("b", pt.max(x), dp.LaplaceMechanism(1.0), observed=0.0)
    with pytest.raises(NotImplementedError, match="'a', 'b'"):
        dp.neural.amortise(model, mechanism=dp.LaplaceMechanism, epsilon=(1.0, 2.0))
