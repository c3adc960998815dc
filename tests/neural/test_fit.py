"""SPPE and SPLE on models with known posteriors; what they return, repeat and refuse."""

import logging
import os

import numpy as np
import pymc as pm
import pytest

pytest.importorskip("torch")
pytest.importorskip("sbi")
import torch

import pymc_dp as dp
from pymc_dp.neural import Training, likelihood
from pymc_dp.neural import run as run_module
from pymc_dp.neural.fit import _noise, read_problem
from pymc_dp.neural.likelihood import NetworkLogLikelihood, network_model
from pymc_dp.neural.noise import Channel, has_atoms
from pymc_dp.neural.problem import _UNLIKE, _unlike
from pymc_dp.neural.run import Run, supported_draws, warn_of_border
from pymc_dp.neural.simulator import model_problem
from pymc_dp.neural.training import Box, Simulations, Trainer

SMALL = Training(
    hidden_features=20, num_transforms=2, learning_rate=3e-3, max_epochs=10, last_epochs=40
)
SHORT = Training(
    hidden_features=20, learning_rate=3e-3, epoch_steps=20, max_epochs=5, last_epochs=10
)
TINY = Training(
    hidden_features=8,
    num_transforms=2,
    epoch_steps=2,
    max_epochs=2,
    last_epochs=2,
    batch_size=20,
    atoms=4,
)
QUICK = {"training": SHORT, "random_seed": 7, "draws": 400}
OBSERVED = np.array([0.9, -1.6])


def sple(*args, **kwargs):
    return dp.neural.sple(*args, **{"compute_convergence_checks": False} | kwargs)


def by_sample(model, **kwargs):
    return dp.sample(model, method="sppe", **kwargs)


def fit(model=None, method=dp.neural.sppe, **kwargs):
    """Fit as fast as can be; a conjugate model if there is no other, and no simulator."""
    defaults = {"rounds": 2, "simulations": 40, "training": TINY, "random_seed": 4}
    defaults |= {"draws": 10, "chains": 2, "progressbar": False}
    if model is None and "simulator" not in kwargs:
        model = conjugate_model()
    return method(model, **defaults | kwargs)


def functional(simulator, **kwargs):
    given = {"prior": {"a": pm.Normal.dist(shape=2)}, "mechanism": dp.LaplaceMechanism(1.0)}
    return fit(simulator=simulator, **given | {"observed": [1.0, 2.0]} | kwargs)


def as_it_is(parameters, rng):
    return parameters["a"]


def drawn(parameters, rng):
    return parameters["a"] + rng.normal(size=parameters["a"].shape)


def conjugate_model(name="mu", sd=2.0):
    """Ten records of two Normal columns; their means are released with Gaussian noise."""
    with pm.Model(coords={"column": ["a", "b"], "sign": ["+", "-"]}) as model:
        mu = pm.Normal(name, [0, 1], [1.0, sd], dims="column")
        pm.Deterministic("signed", mu[0] * np.array([1, -1]), dims="sign")
        pm.Deterministic("gap", mu[0] - mu[1])
        x = pm.CustomDist(
            "x",
            mu,
            random=lambda mu, rng=None, size=None: rng.normal(mu, 1.5, size=size),
            shape=(10, 2),
        )
        dp.PrivateObservation("z", x.mean(0), dp.GaussianMechanism(0.6), observed=OBSERVED)
    return model


def agrees(tree, name, mean, sd, atol=0.2, rtol=0.15):
    """Compare draws with the mean and the standard deviation of each entry."""
    draws = tree["posterior"][name]
    np.testing.assert_allclose((draws.mean(("chain", "draw")) - mean) / sd, 0, atol=atol)
    np.testing.assert_allclose(draws.std(("chain", "draw")) / sd, 1, rtol=rtol)


def check_conjugate(tree):
    variance = 1.5**2 / 10 + 0.6**2
    prior = np.array([1.0, 2.0]) ** 2
    exact_variance = 1 / (1 / variance + 1 / prior)
    exact = exact_variance * (OBSERVED / variance + np.array([0, 1]) / prior)
    mu = tree["posterior"]["mu"]
    assert mu.dims == ("chain", "draw", "column")
    assert list(mu.column.values) == ["a", "b"]
    agrees(tree, "mu", exact, np.sqrt(exact_variance))
    assert list(tree["posterior"]["signed"].sign.values) == ["+", "-"]
    gap = mu[..., 0] - mu[..., 1]
    np.testing.assert_allclose(tree["posterior"]["gap"], gap, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(tree["observed_data"]["z"], OBSERVED)


@pytest.mark.nightly
def test_sppe_finds_a_conjugate_posterior():
    tree = fit(rounds=3, simulations=400, training=SMALL, draws=1000, random_seed=1)
    check_conjugate(tree)
    assert tree["posterior"].attrs["method"] == "sppe"
    assert tree["posterior"].attrs["leakage"] == 0
    assert tree["training"]["loss"].sizes["round"] == 3
    assert tree["simulations"]["theta"].shape == (1200, 2)
    assert tree["sample_stats"]["lp"].shape == (2, 1000)


@pytest.mark.nightly
def test_sple_finds_a_conjugate_posterior():
    tree = fit(method=sple, simulations=500, training=SMALL, draws=500, tune=300, random_seed=2)
    check_conjugate(tree)
    assert not tree["sample_stats"]["diverging"].any()


@pytest.mark.parametrize("method", [dp.neural.sppe, sple])
@pytest.mark.nightly
def test_a_prior_hundreds_of_times_wider_than_the_posterior(method):
    """In units of the prior, the whole posterior is .005 wide."""
    tree = functional(
        as_it_is, method=method, prior={"a": pm.Normal.dist([0, 0], [200, 100], shape=2)},
        mechanism=dp.GaussianMechanism(0.5), observed=[120.0, 7.0], rounds=5, simulations=300,
        training=SMALL, draws=1000, random_seed=3,
    )  # fmt: skip
    agrees(tree, "a", [120, 7], 0.5)


@pytest.mark.nightly
def test_bounded_prior_in_functional_form():
    """A count of successes, released with geometric noise; the prior is Beta."""

    def successes(parameters, rng):
        return rng.binomial(50, parameters["p"])[:, None]

    noise = dp.GeometricMechanism.from_epsilon(0.5)
    arguments = {"simulations": 500, "training": SMALL, "random_seed": 3, "draws": 1000}
    given = {"prior": {"p": pm.Beta.dist(2, 2)}, "mechanism": noise, "observed": [11.0]}
    with pm.Model() as model:
        count = pm.Binomial("count", 50, pm.Beta("p", 2, 2))
        dp.PrivateObservation("z", count, noise, observed=11.0)
    grid = np.linspace(0, 1, 401)[1:-1]
    counts = np.arange(51)
    likelihood = np.exp(pm.logp(pm.Binomial.dist(50, grid[:, None]), counts).eval())
    weight = (likelihood @ np.exp(noise.logp(11.0, counts).eval())) * grid * (1 - grid)
    weight /= weight.sum()
    mean = weight @ grid
    sd = np.sqrt(weight @ (grid - mean) ** 2)

    trees = [
        functional(successes, **given, **arguments),
        functional(successes, method=sple, tune=200, **given, **arguments | {"draws": 500}),
        fit(model, by_sample, rounds=1, **arguments),
    ]
    for tree in trees:
        p = tree["posterior"]["p"]
        assert p.min() > 0
        assert p.max() < 1
        agrees(tree, "p", mean, sd, 0.25, 0.2)


@pytest.mark.parametrize("qmc", [True, False])
def test_seeds_repeat_and_nothing_is_written(tmp_path, monkeypatch, qmc):
    monkeypatch.chdir(tmp_path)
    first, second, other = (fit(random_seed=seed, qmc=qmc) for seed in (4, 4, 5))
    mu = [tree["posterior"]["mu"].to_numpy() for tree in (first, second, other)]
    np.testing.assert_array_equal(mu[0], mu[1])
    assert not np.any(mu[0] == mu[2])
    assert os.listdir(tmp_path) == []


@pytest.mark.nightly
def test_processes_change_no_draw():
    one, two = (fit(method=sple, draws=20, tune=20, cores=cores, random_seed=1) for cores in (1, 2))
    np.testing.assert_array_equal(one["posterior"]["mu"], two["posterior"]["mu"])


def test_torch_and_the_model_of_the_context_are_left_as_they_were():
    torch.manual_seed(1)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    try:
        with pm.Model() as outer:
            pm.Normal("a")
            functional(as_it_is)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(state, torch.get_rng_state())
    assert threads == torch.get_num_threads()
    assert [rv.name for rv in outer.free_RVs] == ["a"]


@pytest.mark.by_day("sple-6-0-3", "sppe-2-3-None")
@pytest.mark.parametrize(
    ("method", "rounds", "earlier", "takeover"),
    [
        (dp.neural.sppe, 2, 0, None),
        (dp.neural.sppe, 3, 0, 2),
        (dp.neural.sppe, 6, 0, 3),
        (dp.neural.sppe, 2, 3, None),  # the release may be another: its box would not fit
        (dp.neural.sppe, 4, 3, 5),
        (sple, 6, 0, 3),
    ],
)
def test_rounds_follow_after_a_new_network_takes_over(
    method, rounds, earlier, takeover, monkeypatch
):
    """They simulate where it is wrong; it has seen none but the parameters in the box."""

    def later_box(self, first):
        assert first == earlier
        return Box(np.full(2, -3.0 + 0.1 * self.round.max()), np.full(2, 2.0))

    seen, boxes = [], []
    train = Trainer.fit

    def recorded(self, data, epochs, report, *, renew, last):
        seen.append((data, renew, last))
        return train(self, data, epochs, report, renew=renew, last=last)

    def recorded_model(problem, density, box):
        boxes.append(box)
        return network_model(problem, density, box)

    settings = {"rounds": rounds, "earlier": fit(rounds=earlier) if earlier else None}
    if method is sple:  # NUTS is not looked at
        draws = fit()
        monkeypatch.setattr(pm, "sample", lambda **_: draws)
        monkeypatch.setattr(likelihood, "network_model", recorded_model)
    monkeypatch.setattr(Trainer, "fit", recorded)
    monkeypatch.setattr(Simulations, "later_box", later_box)
    tree = fit(method=method, **settings)
    numbers = [int(data.round.max()) for data, _, _ in seen]
    end = earlier + rounds - 1
    assert numbers == list(range(max(earlier - 1, 0), end + 1))
    assert [n for n, (_, renew, _) in zip(numbers, seen, strict=True) if renew] == (
        [] if takeover is None else [takeover]
    )
    assert {n for n, (_, _, last) in zip(numbers, seen, strict=True) if last} == (
        {earlier - 1, end} if earlier else {end}
    )
    theta, number = (tree["simulations"][n].to_numpy() for n in ("theta", "round"))
    for (data, _, _), own in zip(seen, numbers, strict=True):
        known = number <= own
        if takeover is None or own < takeover:
            np.testing.assert_array_equal(data.theta, theta[known])
            continue
        low = -3.0 + 0.1 * own
        inside = np.all((theta >= low) & (theta <= 2.0), axis=1)
        np.testing.assert_array_equal(data.theta, theta[known & inside])
        assert inside[number == own + 1].all()
    assert not np.all((theta[number < 2] >= -3.0) & (theta[number < 2] <= 2.0))
    if takeover is not None:
        final = -3.0 + 0.1 * end
        if method is sple:
            np.testing.assert_array_equal(boxes[0].low, final)
        else:
            mu = tree["posterior"]["mu"]
            assert mu.min() >= final
            assert mu.max() <= 2.0


def test_a_posterior_at_the_border_of_its_box_is_warned_of(caplog):
    box = Box.around(np.array([0.0, 0.0]), np.array([1.0, 2.0]))
    np.testing.assert_allclose([box.low, box.high], [[-0.25, -0.5], [1.25, 2.5]])
    theta = np.full((100, 2), 0.5)
    theta[:10, 1] = 2.1
    theta[10:14, 0] = -0.1
    assert box.border(theta) == pytest.approx(0.14)
    warn_of_border(box, theta[14:])
    warn_of_border(None, theta)
    assert not caplog.records
    warn_of_border(box, theta)
    assert "14% of the posterior is at the border" in caplog.text


def test_a_line_a_minute_is_logged_where_there_is_no_bar(caplog, monkeypatch):
    with caplog.at_level(logging.INFO, logger="pymc.dp"):
        fit()
        assert "epoch" not in caplog.text  # it took less than a minute
        monkeypatch.setattr(run_module, "_LINE", 0.0)
        fit()
    assert "Round 2 of 2, epoch 2: validation loss" in caplog.text


def test_earlier_simulations_are_used_again():
    first = fit()
    second = fit(earlier=first, rounds=1)
    assert second["simulations"].sizes["simulation"] == 120
    np.testing.assert_array_equal(
        second["simulations"]["theta"][:80], first["simulations"]["theta"]
    )
    np.testing.assert_array_equal(np.unique(second["simulations"]["round"]), [0, 1, 2])
    with pytest.raises(ValueError, match="its simulations have 2 parameters and 2 statistics"):
        functional(as_it_is, prior={"a": pm.Normal.dist(shape=1)}, observed=[1.0], earlier=first)
    with pytest.raises(ValueError, match="come from another prior"):
        fit(conjugate_model(sd=2.5), earlier=first)
    with pytest.raises(ValueError, match="are of the parameters 'mu', this model has 'nu'"):
        fit(conjugate_model("nu"), earlier=first)


def test_both_estimators():
    tree = fit(estimator="nsf", rounds=1)
    assert tree["posterior"].attrs["estimator"] == "nsf"


def test_reported_loss_does_not_grow_with_the_noise_draws():
    one, many = (float(fit(noise_draws=m)["training"]["loss"][0, 0]) for m in (1, 16))
    assert abs(one - many) < 1


def test_statistics_that_do_not_go_with_the_mechanism_are_named_in_any_round():
    calls = []

    def halves(parameters, rng):
        calls.append(1)
        return np.round(parameters["a"]) + (0.5 if len(calls) > 4 else 0.0)

    with pytest.raises(ValueError, match="'release': the simulated statistics do not go with the"):
        functional(halves, mechanism=dp.GeometricMechanism(2.0))


def test_a_simulator_with_a_seed_of_its_own_is_noted(caplog):
    def same(parameters, rng):
        return parameters["a"] + np.random.default_rng(1).normal(size=parameters["a"].shape)

    with caplog.at_level(logging.INFO, logger="pymc.dp"):
        functional(lambda parameters, rng: parameters["a"] + rng.normal(size=2))
        assert "with two seeds" not in caplog.text
        functional(same)
    assert "gave the same statistics with two seeds" in caplog.text


def test_an_error_of_the_simulator_says_how_it_was_called():
    with pytest.raises(KeyError, match="A") as caught:
        functional(lambda parameters, rng: parameters["A"])
    assert "a dict of arrays, 'a' (4, 2), and rng" in caught.value.__notes__[0]


def test_earlier_simulations_of_another_statistic_are_refused():
    first = functional(drawn)
    functional(drawn, earlier=first, rounds=1, mechanism=dp.GaussianMechanism(3.0))  # kept bare
    with pytest.raises(ValueError, match="'release' is not distributed as it was then"):
        functional(lambda p, rng: 5.0 + drawn(p, rng), earlier=first, rounds=1)


@pytest.mark.nightly
def test_earlier_simulations_for_a_release_with_more_noise():
    """The posterior is wider than the earlier one, and elsewhere."""

    def fitted(noise, observed, **kwargs):
        return functional(
            lambda p, rng: p["a"] + 0.5 * rng.normal(size=p["a"].shape),
            prior={"a": pm.Normal.dist([0, 0], [2, 3], shape=2)},
            mechanism=dp.GaussianMechanism(noise), observed=observed, simulations=300,
            training=SMALL, random_seed=3, draws=1000, **kwargs,
        )  # fmt: skip

    first = fitted(0.1, [-2.0, 3.0], rounds=4)
    second = fitted(2.0, [3.0, -3.0], rounds=3, earlier=first)
    precision = 1 / np.array([4, 9]) + 1 / 4.25
    exact = np.array([3.0, -3.0]) / 4.25 / precision
    agrees(second, "a", exact, precision**-0.5, 0.25)


@pytest.mark.parametrize("width", [0.0, 1.0, 200.0])
def test_what_makes_columns_unlike(width):
    """At the same parameters, whose own spread must not hide the difference."""
    rng = np.random.default_rng(1)
    center = width * rng.normal(size=50)
    one, two, three = center + rng.normal(size=(3, 50))
    assert _unlike(three, one, two) > 1e-3
    assert _unlike(np.round(three), np.round(one), np.round(two)) > 1e-3
    assert _unlike(center, center, center) == 1.0  # no chance in it
    assert _unlike(three + 2, one, two) < _UNLIKE
    assert _unlike(center + 20 * (three - center), one, two) < _UNLIKE
    if width:
        assert _unlike(center + 1, center, center) < _UNLIKE
        assert _unlike(100 * three, one, two) < _UNLIKE


@pytest.mark.nightly
def test_few_values_are_not_for_a_smooth_likelihood(caplog):
    def bits(parameters, rng):
        return (rng.random((len(parameters["a"]), 2)) < 0.5).astype(int)

    arguments = {"mechanism": dp.RandomizedResponse(0.9), "observed": [0, 1]}
    with caplog.at_level(logging.WARNING, logger="pymc.dp"):
        functional(bits, **arguments)
    assert "takes few values" not in caplog.text
    with caplog.at_level(logging.WARNING, logger="pymc.dp"):
        functional(bits, method=sple, **arguments)
    assert "'release' takes few values (steps of 1" in caplog.text


def test_release_beyond_all_simulations_is_warned_of(caplog):
    with caplog.at_level(logging.WARNING, logger="pymc.dp"):
        functional(as_it_is, observed=[1.0, 5000.0], rounds=1)
    assert "'release': the released value at [1] is 5000" in caplog.text


def test_arguments_of_pm_sample_that_change_the_result_are_refused():
    with pytest.raises(TypeError, match="sple does not take return_inferencedata="):
        fit(method=sple, return_inferencedata=False)


def likelihood_of(problem, training):
    """Train a likelihood in a single round."""
    run = Run("likelihood", problem, training, None, _noise(problem, 4, True), "cpu", 6)
    with run.torch():
        run.rounds(1, 200, None, None, False)
    return run


@pytest.mark.filterwarnings("ignore:Numba will use object mode")
def test_network_model_predicts_releases_and_has_gradients():
    """The network is an ordinary observed variable of a PyMC model."""
    problem = model_problem(conjugate_model())
    run = likelihood_of(problem, TINY)
    model = network_model(problem, run.trainer.density, run.box)
    assert [rv.name for rv in model.observed_RVs] == ["z"]
    gradient = model.compile_dlogp()(model.initial_point())
    assert gradient.shape == (2,)
    assert np.all(np.isfinite(gradient))
    op = NetworkLogLikelihood(run.trainer.density)
    theta = np.array([0.3, -0.4])
    _, slope = op.value_and_gradient(OBSERVED, theta)

    def value(at):
        return op.value_and_gradient(OBSERVED, at)[0]

    found = [(value(theta + h) - value(theta - h)) / 2e-2 for h in 1e-2 * np.eye(2)]
    np.testing.assert_allclose(slope, found, rtol=0.02, atol=0.02)
    with model:
        predicted = pm.sample_prior_predictive(5, random_seed=1)
    assert predicted["prior_predictive"]["z"].shape == (1, 5, 2)


def mean_of(offset, prior=None):
    """Return a functional problem with one Normal mean that is known but for an offset."""
    return {
        "simulator": lambda p, rng: rng.normal(p["mu"], 0.5)[:, None],
        "prior": {"mu": pm.Normal.dist(offset, 1.0) if prior is None else prior},
        "mechanism": dp.GaussianMechanism(0.5),
        "observed": [offset + 1.0],
    }


@pytest.mark.nightly
def test_an_offset_moves_the_posterior_and_changes_nothing_else():
    """In single precision, 1e9 + 1 is 1e9."""
    found = []
    for offset in (0.0, 1e9):
        tree = fit(**mean_of(offset), **QUICK, simulations=200)
        found.append((tree["posterior"]["mu"] - offset, tree["sample_stats"]["lp"]))
    (mu, lp), (moved, lp_moved) = found
    # Rounding may make a draw that of another component of the mixture.
    assert np.median(np.abs(moved - mu)) < 1e-3
    assert np.median(np.abs(lp_moved - lp)) < 1e-3
    assert abs(float(moved.mean() - mu.mean())) < 5e-3
    assert abs(float(mu.mean()) - 2 / 3) < 0.2


def test_an_offset_does_not_change_the_likelihood():
    found = []
    for offset in (0.0, 1e9):
        problem = read_problem(None, var_names=None, **mean_of(offset))
        op = NetworkLogLikelihood(likelihood_of(problem, SHORT).trainer.density)
        found.append(op.value_and_gradient(problem.observed, np.array([offset + 0.5])))
    (value, gradient), (moved, gradient_moved) = found
    np.testing.assert_allclose(moved, value, atol=2e-3)
    np.testing.assert_allclose(gradient_moved, gradient, atol=5e-3)
    exact = -0.5 * np.log(2 * np.pi * 0.5) - 0.25
    assert abs(value - exact) < 0.15
    assert gradient[0] > 0.2  # towards 1


def test_heavy_tails_do_not_spoil_the_middle():
    """A Cauchy prior: its largest draws are hundreds of scales out."""
    arguments = mean_of(0.0, pm.Cauchy.dist(0, 1)) | QUICK
    agrees(fit(**arguments, rounds=1, simulations=1000), "mu", 0.6833, 0.6201, rtol=0.2)


def uniform_mean(**kwargs):
    """Return a model whose bounded parameter has no transform."""
    with pm.Model() as model:
        mu = pm.Uniform("mu", 0, 1, default_transform=None)
        x = pm.Normal("x", mu, 1, shape=4)
        dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(1.0), **{"observed": 0.1} | kwargs)
    return model


def test_leakage_is_warned_of(caplog):
    with caplog.at_level(logging.WARNING, logger="pymc.dp"):
        tree = fit(uniform_mean())
    assert tree["posterior"].attrs["leakage"] > 0.01
    assert tree["posterior"].attrs["estimator"] == "mdn"
    assert "% of the network's draws have a prior density; the others" in caplog.text  # no box yet
    assert "drawn again: 'mu' has no transform" in caplog.text
    mu = tree["posterior"]["mu"]
    assert mu.min() > 0
    assert mu.max() < 1


def test_draws_that_are_never_inside_are_given_up():
    class Far:
        def sample(self, condition, draws):
            return np.full((draws, len(condition), 1), 2.0)

    prior = model_problem(uniform_mean()).prior
    with pytest.raises(RuntimeError, match=r"only 0 of \d+ draws .* 'mu' has no transform"):
        supported_draws(prior, Far(), np.zeros((1, 1)), 10)


@pytest.mark.parametrize("method", [dp.neural.sppe, by_sample])
def test_noise_that_data_have_spoilt(method):
    with pm.Model() as model:
        scale = pm.Data("scale", 1.0)
        mu = pm.Normal("mu")
        x = pm.Normal("x", mu, shape=4)
        dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(scale), observed=0.1)
        pm.set_data({"scale": -1.0})
    with pytest.raises(ValueError, match="'z': the noise parameter scale"):
        fit(model, method=method)


@pytest.mark.parametrize(
    "mechanism",
    [
        dp.LaplaceMechanism(1.0).clipped(0, None),
        dp.LaplaceMechanism(1.0).rounded(2).clipped(0, None),
        dp.LaplaceMechanism(1.0).clipped(0, None).rounded(2),
        dp.GaussianMechanism(2.0).clipped(-5, 5).clipped(0, None),
    ],
    ids=repr,
)
def test_atoms_are_found_behind_other_steps(mechanism):
    with pytest.raises(NotImplementedError, match=r"use dp\.neural\.sppe"):
        functional(as_it_is, method=sple, mechanism=mechanism)


def test_a_lattice_that_is_wide_beside_the_noise_has_no_atoms():
    for mechanism in (dp.GeometricMechanism(1.0).clipped(0, None), dp.GeometricMechanism(9.0)):
        assert not has_atoms(Channel("z", mechanism, ()))
    assert has_atoms(Channel("z", dp.GeometricMechanism(9.0).clipped(0, None), ()))


BAD = [
    ({"prior": {"a": pm.Normal}}, r"prior: a pm\.Model, or a dict"),
    ({"prior": 3.0}, r"prior: a pm\.Model, or a dict"),
    ({"simulator": 3}, r"simulator: a function"),
    ({"simulator": lambda p, rng: np.full(p["a"].shape, "x")}, "return an array of numbers"),
    ({"simulator": lambda p, rng: [[0.0]] + [[1.0, 2.0]] * 39}, "return an array of numbers"),
    ({"observed": ["a", 2.0]}, "observed: a number or an array"),
    ({"mechanism": dp.LaplaceMechanism([1.0, 2.0, 3.0])}, "'release': a noise parameter of shape"),
    ({"mechanism": dp.LaplaceMechanism(1.0).clipped(5, None)}, "'release': .* cannot publish 1.0"),
    ({"mechanism": dp.GeometricMechanism(1.0)}, "'release': .* statistic must be a whole number"),
    ({"device": "gpu"}, "device='gpu'"),
    ({"noise_draws": 2.5}, "noise_draws=2.5"),
    ({"draws": 0}, "draws=0"),
    ({"rounds": 0}, "rounds=0"),
    ({"earlier": {}}, "earlier: a result of sppe or sple"),
    ({"mechanism": None, "observed": None}, "missing: mechanism=, observed="),
    ({"simulator": None, "prior": None, "observed": None}, "mechanism= goes with simulator="),
    ({"simulations": 5}, r"simulations=5: too few .*write 12 or more"),
    ({"training": {}}, r"training: dp\.neural\.Training"),
    ({"estimator": "mdn"}, "estimator='mdn'"),
    ({"noise_draws": 0}, "noise_draws=0"),
    (
        {"simulator": lambda p, rng: np.where(p["a"] > 0, p["a"], np.nan)},
        r"'release' is not finite in \d+ of \d+ simulations",
    ),
    (
        {"simulator": lambda p, rng: np.ones((len(p["a"]), 3))},
        r"shape \(4, 3\) for 4 sets of parameters; it must be \(4, 2\)",
    ),
    (
        {"simulator": lambda p, rng: p["a"] + np.random.normal()},  # noqa: NPY002
        "depends on unseeded state",
    ),
    (  # what it draws does not matter
        {"simulator": lambda p, rng: [np.random.random(), p["a"]][1]},  # noqa: NPY002
        r"or drew from np\.random",
    ),
]


@pytest.mark.parametrize(("wrong", "message"), BAD, ids=[next(iter(w)) for w, _ in BAD])
def test_bad_input_is_named_before_any_training(wrong, message, monkeypatch):
    monkeypatch.setattr(Trainer, "fit", None)
    with pytest.raises((TypeError, ValueError), match=message):
        functional(**{"simulator": drawn} | wrong)
