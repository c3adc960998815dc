"""`TwoSidedGibbs`: which counts it gets by itself, and what its draws are given."""

import re

import arviz as az
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
from tests.chains import SHORT, assigned, chain, sampled, step_of

GEOMETRIC, LAPLACE = dp.GeometricMechanism(2.0), dp.LaplaceMechanism(2.0)
Z = np.array([3, -1, 4, 2, 0])


def counts_model(
    mechanism=GEOMETRIC, rate=lambda: pm.Gamma("mu", 2, 1), shape=5, statistic=lambda y: y, z=Z
):
    with pm.Model() as model:
        y = pm.Poisson("y", rate(), shape=shape)
        dp.PrivateObservation("z", statistic(y), mechanism, observed=z)
    return model


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


def test_in_pm_sample():
    tree = sampled(counts_model(), draws=20)
    y = tree.posterior["y"].to_numpy()
    assert y.dtype == np.int64
    assert np.all(y >= 0)
    assert not np.array_equal(y[0], y[1])
    assert "tree_depth" in tree.sample_stats  # NUTS for the rate


def test_dp_sample_takes_the_exact_draws(caplog):
    with caplog.at_level("INFO", logger="pymc.dp"):
        tree = dp.sample(counts_model(), draws=10, tune=10, rung="records", **SHORT)
    assert "Route: steps in one loop, on the counts" in caplog.text
    assert set(tree.posterior) == {"mu"}


# --- Exact conditionals ---------------------------------------------------------------------------

DRAWS = 4000


def given_release(mean, sd, z, b):
    """Return the law of a Normal value that was released with Laplace noise: a grid, a density."""
    grid = np.union1d(np.linspace(mean - 12 * sd, mean + 12 * sd, 40_001), z)
    return grid, np.exp(stats.norm.logpdf(grid, mean, sd) - np.abs(grid - z) / b)


def test_entries_of_vectors_and_of_lists():
    """Every entry against its own conditional; a kernel that mixed them up would fail."""
    z, scale = np.array([0.5, 4.0, -3.0]), np.array([0.5, 1.0, 2.0])
    means = np.array([0.0, 5.0, 1.0])
    with pm.Model() as model:
        v = pm.Normal("v", means, 1.5, shape=3)
        a, b = pm.Normal("a", 2.0, 1.0), pm.Normal("b", -2.0, 1.0)
        dp.PrivateObservation("zv", 1 + 2 * v, dp.LaplaceMechanism(2 * scale), observed=1 + 2 * z)
        joined = pt.concatenate([a[None], (3 - b)[None]])
        dp.PrivateObservation("zab", joined, dp.LaplaceMechanism([0.5, 2.0]), observed=[1.0, 5.5])
        step = dp.TwoSidedGibbs([v, a, b])
    found = chain(step, model.initial_point(), DRAWS)
    for j in range(3):
        follows(found["v"][:, j], given_release(means[j], 1.5, z[j], scale[j]))
    follows(found["a"], given_release(2.0, 1.0, 1.0, 0.5))
    follows(found["b"], given_release(-2.0, 1.0, -2.5, 2.0))


def test_integer_parameters():
    """PyTensor keeps 20 as an 8-bit integer, of which neither 20**2 nor 20**-2 exists."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 100, 20)
        x = pm.Normal("x", mu, 20, shape=4)
        dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(3), observed=60)
        pm.Normal("y", mu, 20, observed=[70, 50])
    model = dp.collapse(model, "statistics")
    point = {"mu": np.array(100.0), "x_mean": np.array(50.0)}
    drawn = chain(step_of(dp.ConjugateGibbs, model, "mu"), point, DRAWS)["mu"]
    follows(drawn, stats.norm((100 + 70 + 50 + 4 * 50) / 7, 20 / np.sqrt(7)))
    step = step_of(dp.TwoSidedGibbs, model, "x_mean")
    follows(chain(step, point, DRAWS)["x_mean"], given_release(100, 10, 60, 3))


def test_other_variables_of_the_statistic_are_read_from_the_point():
    with pm.Model() as model:
        a, b = pm.Normal("a"), pm.Normal("b", 0, 10)
        dp.PrivateObservation("z", a + b, dp.GaussianMechanism(0.1), observed=7.0)
        step = dp.TwoSidedGibbs([a])
    drawn = chain(step, model.initial_point() | {"b": np.array(6.0)}, 2000)["a"]
    variance = 1 / (1 + 100)
    follows(drawn, stats.norm(variance * 100 * (7.0 - 6.0), np.sqrt(variance)))


def at_a_wall(n, scales, z, width, draws=20_000):
    """Draw mean and variance of a law given a release; they are uniform in the releases' reach.

    Sample moments on a grid, given these the law's by its conjugate law, cut to what is possible.
    """
    rng = np.random.default_rng(0)
    m = 0.5 * width * (1 - np.cos(np.linspace(0, np.pi, 1503)[1:-1]))[:, None]
    share = np.linspace(0, 1, 1002)[1:-1] ** 3
    cap = n / (n - 1) * m * (width - m)
    v = cap * (1 - share)
    b = 600 + 0.5 * ((n - 1) * v + n / (n + 1) * (m - 40) ** 2)
    log_density = (n - 3) / 2 * np.log(v) - (2 + n / 2) * np.log(b)
    log_density -= abs(z[0] - m) / scales[0] + abs(z[1] - v) / scales[1]
    weight = (
        np.exp(log_density - log_density.max()) * cap * np.gradient(share) * np.gradient(m, axis=0)
    )
    i = rng.choice(weight.size, 4 * draws, p=weight.ravel() / weight.sum())
    s2 = b.ravel()[i] / rng.gamma(2 + n / 2, size=i.size)
    mu = rng.normal((n * m[i // share.size, 0] + 40) / (n + 1), np.sqrt(s2 / (n + 1)))
    possible = (mu > 0) & (s2 <= mu * (width - mu))
    return mu[possible][:draws], s2[possible][:draws]


@pytest.mark.parametrize("squared", [False, True])
def test_moments_move_along_the_wall_of_what_is_possible(squared):
    """Far beyond it the release holds both moments at the wall, and tells little of where."""
    n, width, z, scales = 43, 100.0, [-200.0, 60_000.0], [0.023, 2.3]
    with pm.Model() as model:
        if squared:
            s = pm.HalfFlat("s")
            prior = pm.logp(pm.InverseGamma.dist(2, 600), s**2) + pt.log(s)
            pm.Potential("prior", prior)
        else:
            s = pt.sqrt(pm.InverseGamma("s2", 2, 600))
        x = pm.Normal("x", pm.Normal("mu", 40, s), s, shape=n)
        noise = dp.LaplaceMechanism(scales)
        dp.PrivateObservation("z", [x.mean(), x.var(ddof=1)], noise, observed=z, bounds=(0, width))
    drawn = sampled(dp.collapse(model, "statistics"), draws=2_000, tune=500).posterior
    spread = drawn["s"] ** 2 if squared else drawn["s2"]
    for found, expected in zip((drawn["mu"], spread), at_a_wall(n, scales, z, width), strict=True):
        assert az.ess(np.asarray(found)) > 0.1 * found.size
        same_law(np.ravel(found)[::10], expected)


def test_parameters_that_do_not_move_along_are_named(caplog):
    with pm.Model() as model:
        mu = pm.Normal("mu", pm.Normal("above"), 1)
        pm.Uniform("u", mu - 9, mu + 9)
        s = pm.Normal("s", mu, 1)
        dp.PrivateObservation("z", s, LAPLACE, observed=7.0)
    step = dp.TwoSidedGibbs([s], model=model)
    assert [rv.name for weave in step.weaves for rv in weave.parameters] == ["mu"]
    why = "'above' does not move along with what depends on it, because the transform of 'u'"
    assert caplog.text.count(why) == 1
