"""What is kept with a model: nothing that changes in it is missed, and nothing is built twice."""

import gc
import threading
import weakref
from contextlib import suppress

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr

import pymc_dp as dp
from pymc_dp.laws.families.closed import sum_of
from pymc_dp.reading import frozen, kept
from pymc_dp.sampling import sample
from pymc_dp.step_methods.base import observed_values

GROUPS = np.repeat(np.arange(5), 6)
ROUTES = {}
SETTINGS = {"draws": 12, "tune": 12, "chains": 2, "cores": 1, "progressbar": False, "quiet": True}


def route(name, **options):
    def register(write):
        def build():
            weights = np.array([1.0, 2.0, 3.0])
            with pm.Model(coords={"k": ["a", "b", "c"]}) as model:
                at, scale = pm.Data("at", 0.3), pm.Data("scale", 0.5)
                write(at, scale, weights)
            model.weights = weights  # which a graph was made of
            return model

        ROUTES[name] = build, options
        return write

    return register


def release(statistic, scale, z, mechanism=dp.LaplaceMechanism):
    dp.PrivateObservation("z", statistic, mechanism(scale), observed=pm.Data("published", z))


@route("fused Gibbs")
def lead(at, scale, weights):
    m = pm.Normal("m", (at * pt.as_tensor(weights))[0], 2)
    x = pm.Normal("x", m, pm.HalfNormal("s", 2), shape=20)
    release(pt.stack([x.mean(), x.var(ddof=1)]), scale, [0.4, 1.5])


@route("exact regression")
def regression(at, scale, weights):
    v = pm.InverseGamma("v", 3, 3)
    b = pm.Normal("b", (at * pt.as_tensor(weights))[0], pt.sqrt(v), shape=2)
    x = pm.Normal("x", 0, 1, shape=30)
    y = pm.Normal("y", b[0] + b[1] * x, pt.sqrt(v), shape=30)
    sums = pt.stack([x.sum(), (x**2).sum(), y.sum(), (x * y).sum(), (y**2).sum()])
    release(sums, scale, [1.0, 28.0, 5.0, 14.0, 40.0])


@route("slices on the marginal")
def hierarchy(at, scale, weights):
    m = pm.Normal("m", (at * pt.as_tensor(weights))[0], 2)
    theta = pm.Normal("theta", m, pm.HalfNormal("tau", 1), shape=5)
    x = pm.Normal("x", theta[GROUPS], pm.HalfNormal("s", 2), shape=30)
    release(pt.zeros(5)[GROUPS].inc(x) / 6, scale, [0.1, 2.0, -0.4, 0.8, 1.1])


@route("slices under Gaussian noise", rung="marginal")
def hierarchy_too(at, scale, weights):
    m = pm.Normal("m", (at * pt.as_tensor(weights))[0], 2)
    theta = pm.Normal("theta", m, pm.HalfNormal("tau", 1), shape=5)
    x = pm.Normal("x", theta[GROUPS], 3, shape=30)
    means = [x[j == GROUPS].mean() for j in range(5)]
    release(means, scale, [0.1, 2.0, -0.4, 0.8, 1.1], dp.GaussianMechanism)


@route("NUTS on the marginal", nuts_sampler="pymc")
def durations(at, scale, weights):
    m = pm.Normal("m", (at * pt.as_tensor(weights))[0], 1)
    x = pm.Exponential("x", pt.exp(m), shape=8)
    release(x.sum(), scale, 7.0)


@route("NUTS by nutpie", rung="marginal")
def durations_by_group(at, scale, weights):
    """Its coordinates are expanded at points that follow from what was published."""
    m = pm.Normal("m", (at * pt.as_tensor(weights))[0], 1)
    theta = pm.Normal("theta", m, pm.HalfNormal("tau", 1), shape=3)
    x = pm.Exponential("x", pt.exp(theta[GROUPS[:18]]), shape=18)
    release(pt.zeros(3)[GROUPS[:18]].inc(x), scale, [7.0, 4.0, 2.5])


@route("Metropolis on the records", rung="records")
def records(at, scale, weights):
    m = pm.Normal("m", (at * pt.as_tensor(weights))[0], 2)
    x = pm.Normal("x", m, 1.5, shape=12)
    release(pt.stack([x.clip(-1, 1).mean(), pt.abs(x).mean()]), scale, [0.2, 0.9])


@route("steps of latent counts")
def table(at, scale, weights):
    p = pm.Dirichlet("p", weights + at, dims="k")
    counts = pm.Multinomial("counts", 60, p, dims="k")
    release(counts, scale + 0.5, [20, 18, 26], dp.GeometricMechanism)


# What may be changed, and whether it is known to be built anew.
def published(model):
    model.set_data("published", model["published"].get_value() + 1)


def noise(model):
    model.set_data("scale", 1.1)


def covariate(model):
    model.set_data("at", 0.9)


def potential(model):
    with model:
        pm.Potential("more", -(model.free_RVs[0].sum() ** 2))


def observation(model):
    with model:
        pm.Normal(
            "seen", model.free_RVs[0], 0.1, observed=0.7 * np.ones(model.free_RVs[0].shape.eval())
        )


def replaced(model):
    rv = model["z"]
    value = pt.as_tensor(model.rvs_to_values[rv].eval() + 2).astype(rv.dtype)
    model.rvs_to_values[rv] = value
    model.values_to_rvs[value] = rv


def array(model):
    """The entries of an array that a graph was made of."""
    model.weights[0] = 3.0


def start(model):
    model.set_initval(model.free_RVs[0], np.full(model.free_RVs[0].shape.eval(), 1 / 3))


def deterministic(model):
    with model:
        pm.Deterministic("twice", 2 * model.free_RVs[0])


def labels(model):
    model.set_dim("k", 3, coord_values=["d", "e", "f"])


SAME, ANEW = (
    (published, noise),
    (potential, observation, replaced, array, start, deterministic, labels),
)


@pytest.fixture
def built(monkeypatch):
    """Count what is built."""
    found = []

    class Counted(kept._Kept):
        def __init__(self, model):
            found.append(model)
            super().__init__(model)

    monkeypatch.setattr(kept, "_Kept", Counted)
    return found


def drawn(model, seed, **options):
    tree = sample(model, random_seed=seed, **SETTINGS | options)
    return tree["posterior"].to_dataset()


@pytest.mark.parametrize("name", ROUTES)
def test_data_are_read_where_they_are_used(name, built):
    """Of published values and of noise nothing is built anew."""
    build, options = ROUTES[name]
    model, fresh = build(), build()
    drawn(model, 1, **options)
    for change in (covariate, *SAME):
        change(model)
        change(fresh)
        before = len(built)
        again = drawn(model, 2, **options)
        assert len(built) == before or change is covariate, change.__name__
    assert again.equals(drawn(fresh, 2, **options))


NIGHTLY = [(name, change) for name in ROUTES for change in (*SAME, covariate, *ANEW)]
CASES = [("fused Gibbs", change) for change in ANEW] + [
    pytest.param(*case, marks=pytest.mark.nightly) for case in NIGHTLY
]


@pytest.mark.parametrize(
    ("name", "change"), CASES, ids=lambda value: getattr(value, "__name__", value)
)
def test_what_changes_is_seen(name, change, built):
    build, options = ROUTES[name]
    model, fresh = build(), build()
    drawn(model, 1, **options)
    drawn(model, 1, **options)
    assert len(built) == 1
    change(model)
    change(fresh)
    again = drawn(model, 2, **options)
    assert len(built) == (1 if change in SAME else 2) or change is covariate
    assert again.equals(drawn(fresh, 2, **options))


@pytest.mark.parametrize("name", ["noise of an unknown number", "groups in a statistic", "a law"])
def test_what_a_reading_fixes_is_seen(name, built):
    """Whole numbers and noise that are constants in the copy, and what a function takes along."""
    weights = np.zeros(1)

    def build():
        weights[0] = 0.0
        with pm.Model() as model:
            scale, group = pm.Data("scale", 2.0), pm.Data("group", [0, 0, 0, 0, 1, 1, 1, 1])
            p = pm.Beta("p", 2, 2, shape=2)
            if name.startswith("noise"):
                n = pm.Poisson("n", 9)
                x = pm.Normal("x", pm.Normal("m", 0, 2), 1, shape=n)
                dp.PrivateObservation("n_z", n, dp.GeometricMechanism(scale), observed=5)
                release(x.sum(), 0.5, 3.0)
            elif name.startswith("groups"):
                x = pm.Bernoulli("x", p[group], shape=8)
                release((x * pt.eq(group, 0)).sum(), 1.0, 1, dp.GeometricMechanism)
            else:
                logp = lambda v, m: pm.logp(pm.Normal.dist(m + weights[0], 1), v)  # noqa: E731
                m = pm.CustomDist("m", 0.0, logp=logp)
                release(pm.Normal("x", m, 1, shape=8).mean(), 0.5, 0.3)
        return model

    def change(model):
        weights[0] = -4.0
        model.set_data("scale", 20.0)
        model.set_data("group", [0, 1, 1, 1, 1, 1, 1, 1])

    model = build()
    first = drawn(model, 1)
    change(model)
    again = drawn(model, 1)
    assert not again.equals(first)
    fresh = build()
    change(fresh)
    assert again.equals(drawn(fresh, 1))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_was_refused_for_some_data_opens_with_others():
    build, options = ROUTES["exact regression"]
    model = build()
    expected = drawn(model, 1, **options)
    good = model["published"].get_value()
    for wrong in (1e100, np.nan):
        model.set_data("published", good * wrong)
        with suppress(ValueError, np.linalg.LinAlgError):
            drawn(model, 1, **options)
    model.set_data("published", good)
    assert drawn(model, 1, **options).equals(expected)


def test_what_was_refused_is_read_anew_with_a_new_ability(built):
    model = ROUTES["fused Gibbs"][0]()
    for expected in (1, 1, 2):
        if expected == 2:
            sum_of.register(type("Own", (), {}), lambda op, n: None)
        with kept.kept(model):
            assert len(built) == expected


def test_steps_and_starts_of_the_models_own_variables():
    build, options = ROUTES["Metropolis on the records"]
    model = build()
    assert drawn(model, 1, **options)["m"].size
    with model:
        steps = dp.steps(model)
    assert drawn(model, 1, step=steps, **options)["m"].size
    build, _ = ROUTES["steps of latent counts"]
    model = build()
    start = {"p": np.array([0.8, 0.1, 0.1])}
    by_name = drawn(model, 1, initvals=start)
    assert by_name.equals(drawn(model, 1, initvals={model["p"]: start["p"]}))


def test_lengths_that_change_are_seen(built):
    def build(n):
        with pm.Model(coords={"record": range(n)}) as model:
            m = pm.Normal("m", 0, 2)
            x = pm.Normal("x", m, pm.HalfNormal("s", 2), dims="record")
            release(pt.stack([x.mean(), x.var(ddof=1)]), 0.5, [0.4, 1.5])
        return model

    model = build(10)
    first = drawn(model, 1)
    model.set_dim("record", 30, coord_values=range(30))
    again = drawn(model, 1)
    assert len(built) == 2
    assert not again.equals(first)
    assert again.equals(drawn(build(30), 1))


@pytest.mark.parametrize(
    "name", ["fused Gibbs", "slices on the marginal", "steps of latent counts"]
)
def test_nothing_grows_and_models_go(name):
    """Of 50 calls of one model nothing stays but what the first made; nor does the model itself."""
    build, options = ROUTES[name]
    model = build()

    def count():
        gc.collect()
        return len(gc.get_objects())

    for _ in range(3):
        drawn(model, 1, **options)
    before = count()
    for seed in range(47):
        published(model)
        drawn(model, seed, **options)
    assert count() - before < 100
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


def test_threads_share_a_model_and_do_not_disturb_each_other():
    build, options = ROUTES["steps of latent counts"]
    model, found = build(), {}

    def work(seed):  # PyMC's quiet=True is for all threads, and may stay
        found[seed] = drawn(model, seed, quiet=False, **options)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(4):  # what threads compile at a time may round in another way
        xr.testing.assert_allclose(found[seed], drawn(build(), seed, **options), rtol=1e-9)


def test_a_model_that_was_sampled_can_be_pickled():
    build, options = ROUTES["fused Gibbs"]
    model = build()
    expected = drawn(model, 1, **options)
    del model.weights
    copy = cloudpickle.loads(cloudpickle.dumps(model))
    assert drawn(copy, 1, **options).equals(expected)


def test_what_is_kept_with_a_model_stays_out_of_its_copies_and_pickles():
    model = ROUTES["fused Gibbs"][0]()
    del model.weights
    with kept.kept(model) as reading:
        read, kept_with = reading.model, {"answers", "_cache", "unobserved_value_vars"}
        observed_values(read, read["z"])
        read.logp()
        assert read.unobserved_value_vars
        assert kept_with <= vars(read).keys()
        for copy in (frozen.shallow(read), cloudpickle.loads(cloudpickle.dumps(read))):
            assert not kept_with & vars(copy).keys()
            assert [rv.name for rv in copy.free_RVs] == [rv.name for rv in read.free_RVs]


OUTSIDE = {"sd": 1.0}


def _log_noise(z, s):
    sd = OUTSIDE["sd"]
    return -0.5 * ((z - s) / sd) ** 2 - np.log(sd) - 0.5 * np.log(2 * np.pi)


def _noise(s, rng=None, size=None):
    return s + rng.normal(0, OUTSIDE["sd"], size)


def _log_of_counts(z, s):
    return pt.log(pt.tanh(0.5 / OUTSIDE["sd"])) - abs(z - s) / OUTSIDE["sd"]


def _log_cdf(z, s):
    return pt.log(0.5 * pt.erfc((s - z) / (OUTSIDE["sd"] * np.sqrt(2.0))))


def _noise_of_counts(s, rng=None, size=None):
    p = 1 - np.exp(-1 / OUTSIDE["sd"])
    return s + rng.geometric(p, size) - rng.geometric(p, size)


CUSTOM = dp.CustomMechanism(_log_noise, _noise, logcdf=_log_cdf)
COUNTED = dp.CustomMechanism(_log_of_counts, _noise_of_counts, discrete=True, log_concave=True)


def _own_law(**kwargs):
    mu = pm.Normal("mu", 0, 2)
    return pm.CustomDist("x", mu, logp=lambda x, mu: _log_noise(x, mu), random=None, **kwargs)


@pytest.mark.parametrize(
    ("law", "mechanism", "z"),
    [
        (lambda: pm.Normal("x", pm.Normal("mu", 0, 2), 1.0, shape=4).sum(), CUSTOM, 12.0),
        (lambda: pm.Normal("x", pm.Normal("mu", 0, 2), 1.0), CUSTOM.rounded(), 4.0),
        (lambda: pm.Poisson("x", pm.Gamma("mu", 3, 1), shape=3), COUNTED, [9, 2, 4]),
        (lambda: pm.Poisson("x", pm.Gamma("mu", 3, 1), shape=3).sum(), COUNTED, 15),
        (
            lambda: pm.Poisson("x", pm.Gamma("mu", 3, 1)),
            dp.GeometricMechanism(0.5).suppressed(below=3, by=CUSTOM),
            6,
        ),
        (_own_law, dp.LaplaceMechanism(0.5), 4.0),
    ],
)
def test_what_users_functions_read_is_seen(law, mechanism, z, monkeypatch):
    def build():
        with pm.Model() as model:
            dp.PrivateObservation("z", law(), mechanism, observed=z)
        return model

    def draws(model):
        return dp.sample(model, random_seed=1, **SETTINGS)["posterior"]["mu"].to_numpy()

    model = build()
    before = draws(model)
    monkeypatch.setitem(OUTSIDE, "sd", 3.0)
    after = draws(model)
    assert np.array_equal(after, draws(build()))
    assert not np.array_equal(after, before)


def test_what_is_summed_is_read_when_the_model_is_written(monkeypatch):
    with pm.Model() as model:
        mu = pm.Normal("mu", 1, 2)
        total = dp.RecordSums(
            "total", pm.Normal.dist(mu, 1.0), 20, of=lambda x: pt.clip(x, 0.0, OUTSIDE["sd"])
        )
        dp.PrivateObservation("z", total, dp.GaussianMechanism(1.0), observed=9.0)
    logps = []
    for sd in (1.0, 3.0):
        monkeypatch.setitem(OUTSIDE, "sd", sd)
        logps.append(dp.collapse(model).compile_logp()({"mu": 0.7}))
    assert logps[0] == logps[1]
