"""`FactorizationGibbs`: in `pm.sample`, beside NUTS and exact laws, and what it refuses."""

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats

import pymc_dp as dp
from pymc_dp.reading.model import Reading
from pymc_dp.step_methods import choose_steps
from tests.agreement import follows, same_law
from tests.chains import QUIET, SHORT, chain

SCALE = -1 / np.log(0.5)
Z = np.array([[3, -1, 12], [0, 4, 2], [7, 1, 25], [-2, 0, 3]])
Y = np.array([[3, 0, 11], [1, 4, 2], [6, 1, 27], [0, 1, 2]])
SHAPES = {"shape": (4, 2)}, {"shape": (2, 3)}


def private_model(mechanism=None, observed=Z):
    return dp.poisson_factorization(observed, 2, mechanism or dp.GeometricMechanism(SCALE))


def rates(found):
    return np.exp(found["theta_log__"]) @ np.exp(found["phi_log__"])


def by_hand(product):
    with pm.Model() as model:
        theta = pm.Gamma("theta", 1, 1, shape=(4, 2))
        phi = pm.Gamma("phi", 1, 1, shape=(3, 2) if product == "transposed" else (2, 3))
        if product == "transposed":
            rate = theta @ phi.T
        elif product == "dot":
            rate = pt.dot(theta, phi)
        else:
            rate = theta @ phi
        if product == "latent":
            y = pm.Poisson("y", rate)
            dp.PrivateObservation("z", y, dp.GeometricMechanism(SCALE), observed=Z)
        else:
            dp.PrivateObservation(
                "z",
                pm.Poisson.dist(rate, shape=Z.shape if product == "shape" else None),
                dp.GeometricMechanism(SCALE),
                observed=Z,
            )
    return model


@pytest.fixture(scope="module")
def reference():
    model = private_model()
    step = dp.FactorizationGibbs([model["theta"], model["phi"]], model=model, sweeps=5)
    return rates(chain(step, model.initial_point(), 3000))[100::10]


@pytest.mark.nightly
def test_the_other_method_agrees(reference):
    model = private_model()
    both = [model["phi"], model["theta"]]
    step = dp.FactorizationGibbs(both, model=model, sweeps=5, method="bessel")
    same_law(
        reference, rates(chain(step, model.initial_point(), 3000, seed=2))[100::10], level=1e-4
    )


@pytest.mark.parametrize("product", ["dot", "transposed", "latent", "shape"])
def test_models_written_by_hand(product, reference):
    model = by_hand(product)
    [step] = dp.steps(model)
    assert isinstance(step, dp.FactorizationGibbs)
    step.sweeps = 5
    found = chain(step, model.initial_point(), 3000, seed=3)
    if product == "transposed":
        found["phi_log__"] = found["phi_log__"].swapaxes(1, 2)
    same_law(reference, rates(found)[100::10], level=1e-4)
    if product == "latent":
        assert found["y"].dtype == np.int64
        assert found["y"].min() >= 0
        assert np.abs(found["y"].mean(axis=0) - np.maximum(Z, 0)).max() < 4


@pytest.mark.nightly
def test_the_marginal_model_has_the_same_posterior(reference):
    """NUTS, with the counts integrated out, knows nothing of the sweep."""
    model = private_model()
    options = {"nuts_sampler": "pymc", "random_seed": 4, "target_accept": 0.9}
    posterior = pm.sample(800, tune=400, model=model, **options, **SHORT)["posterior"]
    found = (posterior["theta"].to_numpy() @ posterior["phi"].to_numpy())[0]
    same_law(reference, found[::4], level=1e-4)


def test_confidential_counts_come_back():
    """Both ways to the counts have the same mean: latent, and recovered."""
    model, latent = private_model(), by_hand("latent")
    options = {"model": model, "step": dp.steps(model), "random_seed": 5}
    idata = pm.sample(2000, tune=100, **options, **SHORT)
    recovered = dp.recover(model, idata, random_seed=6)["posterior"]["release_confidential"]
    assert recovered.shape == (1, 2000, 4, 3)
    assert float(recovered.min()) >= 0
    [step] = dp.steps(latent)
    counts = chain(step, latent.initial_point(), 2100, seed=7)["y"][100::10]
    both = np.stack([counts, recovered.to_numpy()[0, ::10]])
    one, other = both.mean(axis=1)
    error = both.std(axis=(0, 1)) * np.sqrt(2 / len(counts))
    assert np.all(np.abs(one - other) < 5 * error)


@pytest.mark.parametrize("clamp", ["data", "transposed", "variable"])
def test_a_clamped_factor(clamp):
    """Known counts and one component to a row leave an exact Gamma posterior."""
    phi = np.array([[0.5, 2.0, 1.0]])
    with pm.Model() as model:
        if clamp == "variable":
            held = pm.Gamma("phi", 1, 1, shape=(1, 3), initval=phi)
        else:
            held = pm.Data("phi", phi.T if clamp == "transposed" else phi)
            held = held.T if clamp == "transposed" else held
        theta = pm.Gamma("theta", 0.7, 0.3, shape=(4, 1))
        pm.Poisson("y", theta @ held, observed=Y)
    step = dp.FactorizationGibbs([theta], model=model)
    point = model.initial_point()
    found = chain(step, point, 3000)
    drawn = np.exp(found["theta_log__"])[..., 0]
    for values, total in zip(drawn.T, Y.sum(axis=1), strict=True):
        follows(values, stats.gamma(0.7 + total, scale=1 / 3.8), level=1e-4)
    if clamp == "variable":
        assert np.array_equal(found["phi_log__"][-1], point["phi_log__"])
        assert {rv.name for rv in choose_steps(Reading(model))} == {"theta", "phi"}
    else:
        # Data are read anew: with twice the exposure the rates are about half.
        model.set_data("phi", 2 * held.eval().T if clamp == "transposed" else 2 * phi)
        after = np.exp(chain(step, point, 2000)["theta_log__"])[..., 0]
        assert np.allclose(after.mean(axis=0) / drawn.mean(axis=0), 4.1 / 7.6 * 3.8 / 4.1, rtol=0.1)


def test_random_hyperparameters_are_read_from_the_point():
    with pm.Model() as model:
        rate = pm.Gamma("rate", 2, 1, shape=2)
        theta = pm.Gamma("theta", [[1.0, 2.0]], rate, shape=(4, 2))
        phi = pm.Gamma("phi", 1, rate[:, None], shape=(2, 3))
        pm.Poisson("y", theta @ phi, observed=0 * Y)
    step = dp.FactorizationGibbs([theta, phi], model=model)
    point = model.initial_point()
    # At an enormous rate nothing but the prior counts.
    point["rate_log__"] = np.log([1e6, 1e9])
    found = chain(step, point, 2000)
    theta, phi = np.exp(found["theta_log__"]), np.exp(found["phi_log__"])
    assert np.allclose(theta.mean(axis=(0, 1)), [1e-6, 2e-9], rtol=0.05)
    assert np.allclose(phi.mean(axis=(0, 2)), [1e-6, 1e-9], rtol=0.05)


@pytest.mark.parametrize("method", ["direct", "bessel"])
def test_a_seed_decides_and_threads_do_not(method):
    rng = np.random.default_rng(8)
    z = rng.poisson(3.0, (64, 40)) + rng.integers(-3, 4, (64, 40))
    model = private_model(observed=z)
    drawn = []
    for threads, seed in ((1, 1), (2, 1), (2, 2)):
        step = dp.FactorizationGibbs(
            [model["theta"], model["phi"]], model=model, threads=threads, method=method, sweeps=2
        )
        drawn.append(chain(step, model.initial_point(), 3, seed)["theta_log__"][-1])
        copied = cloudpickle.loads(cloudpickle.dumps(step))
        # What PyMC keeps of a chain is enough to go on with it.
        state = step.sampling_state
        first, second = (own.step(model.initial_point())[0]["phi_log__"] for own in (copied, step))
        step.sampling_state = state
        assert np.array_equal(first, second)
        assert np.array_equal(first, step.step(model.initial_point())[0]["phi_log__"])
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])


def test_two_processes_with_threads():
    """A step that ran in this process must run in a forked one, whose threads are its own."""
    rng = np.random.default_rng(9)
    model = private_model(observed=rng.poisson(3.0, (64, 40)))
    with model:
        step = dp.FactorizationGibbs([model["theta"], model["phi"]], threads=2)
        chain(step, model.initial_point(), 1)
        idata = pm.sample(3, tune=2, chains=2, cores=2, step=step, random_seed=1, **QUIET)
    assert idata["posterior"]["theta"].shape == (2, 3, 64, 2)


# --- What is refused ------------------------------------------------------------------------------


def gamma(name):
    return pm.Gamma(name, 1, 1, **SHAPES[name == "phi"])


def poisson(rate):
    return pm.Poisson("y", rate, observed=Y)


def other_child():
    theta = gamma("theta")
    poisson(theta @ gamma("phi"))
    pm.Normal("other", theta.sum(), 1, observed=0.0)


def not_the_same_table():
    poisson(gamma("theta") @ np.ones((2, 3)))
    pm.Poisson("other", np.ones((4, 2)) @ gamma("phi"), observed=Y)


def of_theta(law, *parameters, **options):
    return lambda: poisson(law("theta", *parameters, shape=(4, 2), **options) @ gamma("phi"))


INTERVAL = pm.distributions.transforms.Interval(0, 5)
# Why a model is refused: the model, and the factors that are this step's all the same.
REFUSED = {
    "'y' is not the product of two matrices: write theta @ phi": (
        lambda: poisson(2 * pt.dot(gamma("theta"), gamma("phi"))),
        [],
    ),
    "'y' is not a product of 'theta' and 'phi' themselves": (
        lambda: poisson(gamma("theta") @ pt.exp(gamma("phi"))),
        ["theta"],
    ),
    "'theta' has the prior halfnormal.*: write pm.Gamma": (of_theta(pm.HalfNormal, 1), ["phi"]),
    "the prior of 'theta' is cut: write pm.Gamma": (of_theta(pm.Uniform, 0, 1), ["phi"]),
    "'y' is neither a pm.Poisson table nor a release": (
        lambda: pm.NegativeBinomial("y", mu=gamma("theta") @ gamma("phi"), alpha=1, observed=Y),
        [],
    ),
    "'theta' has the transform": (of_theta(pm.Gamma, 1, 1, transform=INTERVAL), ["phi"]),
    r"'theta' must feed one table .* feeds \['y', 'other'\]": (other_child, ["phi"]),
    r"'phi' feeds \['other'\]": (not_the_same_table, ["theta", "phi"]),
}


@pytest.mark.parametrize("message", REFUSED)
def test_other_models_are_refused(message):
    """The message says what does not fit; `dp.steps` leaves that factor to another step."""
    build, chosen = REFUSED[message]
    with pm.Model() as model:
        build()
    with pytest.raises(ValueError, match=message):
        dp.FactorizationGibbs([model["theta"], model["phi"]], model=model)
    steps = choose_steps(Reading(model))
    assert [rv.name for rv in steps if steps[rv] is dp.FactorizationGibbs] == chosen


def test_a_factor_times_itself_is_refused():
    with pm.Model() as model:
        theta = pm.Gamma("theta", 1, 1, shape=(3, 3))
        pm.Poisson("y", theta @ theta.T, observed=np.ones((3, 3), dtype=int))
    with pytest.raises(ValueError, match="depend on 'theta'"):
        dp.FactorizationGibbs([theta], model=model)


def test_arguments_are_checked():
    model = private_model(dp.LaplaceMechanism(1.0))
    both = [model["theta"], model["phi"]]
    with pytest.raises(
        ValueError, match="'bessel' does not cover LaplaceMechanism: write 'direct'"
    ):
        dp.FactorizationGibbs(both, model=model, method="bessel")
    for arguments in ({"method": "gibbs"}, {"sweeps": 0}, {"threads": 1.5}):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            dp.FactorizationGibbs(both, model=model, **arguments)


def test_a_release_that_changed_for_the_worse_is_said():
    with pm.Model() as model:
        theta, phi = gamma("theta"), gamma("phi")
        z = pm.Data("values", Z)
        dp.PrivateObservation(
            "z", pm.Poisson.dist(theta @ phi), dp.GeometricMechanism(SCALE), observed=z
        )
    step = dp.FactorizationGibbs([theta, phi], model=model)
    model["values"].set_value(Z[:2].astype(z.dtype))
    with pytest.raises(ValueError, match="'theta and phi' cannot be drawn"):
        chain(step, model.initial_point(), 1)
