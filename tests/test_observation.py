"""`PrivateObservation`: what it refuses, and that it is an ordinary observed variable."""

from itertools import pairwise

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from arviz_base import from_dict
from pymc.model.transform.conditioning import do, observe
from pytensor.compile.mode import Mode
from scipy import integrate, stats

import pymc_dp as dp
from pymc_dp.graphs.declined import Declined
from pymc_dp.mechanisms.release import FeasibleMoments, PrivateReleaseRV

Z = np.array([34.3, 2224.8])
NOISE = np.array([9.3, 900.0])
INF = np.inf


def lead(n=43, mu=None, sigma2=None):
    """Records with proper priors, inside a model context."""
    mu = pm.Normal("mu", 30, 20) if mu is None else mu
    sigma2 = pm.InverseGamma("sigma2", 3, 600) if sigma2 is None else sigma2
    return pm.Normal("lead", mu, pt.sqrt(sigma2), shape=n)


def moments(records):
    return [records.mean(), records.var(ddof=1)]


def laplace():
    return dp.LaplaceMechanism(NOISE)


@pytest.fixture
def in_model():
    """A fresh model as the context."""
    with pm.Model() as model:
        yield model


@pytest.fixture(scope="module")
def model():
    with pm.Model() as model:
        x = lead()
        pm.Deterministic("largest", x.max())
        dp.PrivateObservation("z", moments(x), laplace(), observed=Z)
    return model


@pytest.fixture(scope="module")
def collapsed(model):
    return {to: dp.collapse(model, to) for to in ("statistics", "marginal")}


# Evaluates a graph without compiling it: cheap for a few calls.
PLAIN = Mode(linker="py", optimizer="fast_compile")


def logp(model):
    """Log density at the initial point."""
    return float(model.compile_logp(mode=PLAIN)(model.initial_point()))


def terms(model, name, point):
    """Terms of the log density of one variable at a point of its value variables."""
    graph = model.logp(vars=[model[name]], sum=False)
    return model.compile_fn(graph, inputs=model.value_vars, mode=PLAIN, on_unused_input="ignore")(
        point
    )[0]


# --- Refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("observed", "error", "match"),
    [
        ([1.0], ValueError, r"'z': observed has shape \(1,\), .* \(2,\)"),
        (1.0, ValueError, r"'z': observed has shape \(\), .* \(2,\)"),
        ([1.0, 2.0, 3.0], ValueError, r"'z': observed has shape \(3,\)"),
        ([[1.0, 2.0]], ValueError, r"'z': observed has shape \(1, 2\)"),
        ([1.0, np.nan], ValueError, r"'z': observed contains NaN.* release the published entries"),
        ([1.0, None], ValueError, r"'z': observed contains NaN"),
        ([1.0, INF], ValueError, r"'z': observed contains NaN, masked or infinite"),
        (np.ma.masked_array([1.0, 2.0], [True, False]), ValueError, r"'z': .* masked"),
        (["a", "b"], TypeError, r"'z': observed must be a number, an array or a pm\.Data"),
    ],
)
def test_refuses_observed(in_model, observed, error, match):
    x = lead()
    with pytest.raises(error, match=match):
        dp.PrivateObservation("z", moments(x), laplace(), observed=observed)
    # Nothing stays behind, so the corrected call works.
    dp.PrivateObservation("z", moments(x), laplace(), observed=Z)
    assert in_model["z"] in in_model.observed_RVs


@pytest.mark.parametrize("values", [[1.0], [1.0, np.nan]])
def test_refuses_observed_data_container(in_model, values):
    x, data = lead(), pm.Data("data", [1.0, 2.0])
    pm.set_data({"data": values})
    with pytest.raises(ValueError, match="'z': observed"):
        dp.PrivateObservation("z", moments(x), laplace(), observed=data)


def test_refuses_a_random_observed(in_model):
    x, other = lead(), pm.Normal("other")
    with pytest.raises(TypeError, match=r"'z': observed depends on the random variable other"):
        dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(1.0), observed=other)


@pytest.mark.parametrize("length", [1, 2])
def test_refuses_observed_of_the_wrong_length_where_dims_give_the_shape(length):
    with pm.Model(coords={"place": range(3)}):
        counts = pm.Normal("counts", 0, 1, dims="place")
        with pytest.raises(ValueError, match=r"'z': observed has shape .* \(3,\)"):
            dp.PrivateObservation(
                "z", counts, dp.LaplaceMechanism(1.0), observed=np.zeros(length), dims="place"
            )


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, INF, [1.0, 0.0]])
def test_refuses_a_scale_that_is_not_positive(scale):
    with pytest.raises(ValueError, match=r"LaplaceMechanism: scale must be finite and > 0.*Write"):
        dp.LaplaceMechanism(scale)
    with pytest.raises(ValueError, match=r"GaussianMechanism: sigma must be finite and > 0"):
        dp.GaussianMechanism(scale)


def test_refuses_a_random_scale(in_model):
    b = pm.HalfNormal("b")
    with pytest.raises(TypeError, match=r"scale depends on the random variable 'b'.*pm\.Data"):
        dp.LaplaceMechanism(2 * b)


@pytest.mark.parametrize("scale", [[1.0, 2.0, 3.0], [[1.0, 2.0]]])
@pytest.mark.parametrize("shared", [False, True])
def test_refuses_noise_that_does_not_broadcast(in_model, scale, shared):
    x = lead()
    mechanism = dp.LaplaceMechanism(pm.Data("scale", scale) if shared else scale)
    with pytest.raises(ValueError, match=r"'z': a noise parameter of shape .* \(2,\): write one"):
        dp.PrivateObservation("z", moments(x), mechanism, observed=Z)


def test_a_single_noise_scale_broadcasts(in_model):
    z = dp.PrivateObservation("z", moments(lead()), dp.LaplaceMechanism([3.0]), observed=Z)
    assert z.type.shape == (2,)
    expected = stats.laplace.logpdf(Z[0], 30.0, 3.0)  # the records start at their mean, 30
    found = terms(in_model, "z", in_model.initial_point())
    np.testing.assert_allclose(found[0], expected)


@pytest.mark.parametrize("wrong", [1.0, None, dp.LaplaceMechanism, "laplace"])
def test_refuses_a_mechanism_of_the_wrong_type(in_model, wrong):
    with pytest.raises(TypeError, match=r"'z': the third argument must be a mechanism such as"):
        dp.PrivateObservation("z", lead().mean(), wrong, observed=1.0)


def test_refuses_release_together_with_observed(in_model):
    x, release = lead(), dp.Release(34.3, dp.LaplaceMechanism(9.3))
    with pytest.raises(
        ValueError, match=r"'z': the Release already carries .* leave observed= out"
    ):
        dp.PrivateObservation("z", x.mean(), release, observed=34.3)
    z = dp.PrivateObservation("z", x.mean(), release)
    assert in_model.rvs_to_values[z].data == 34.3


@pytest.mark.parametrize(
    ("release", "error", "match"),
    [
        (dp.Release([1.0, 2.0], dp.LaplaceMechanism(1.0)), ValueError, "observed has shape"),
    ],
)
def test_refuses_a_bad_release(in_model, release, error, match):
    with pytest.raises(error, match=f"'z'.*{match}"):
        dp.PrivateObservation("z", lead().mean(), release)


@pytest.mark.parametrize("statistic", [3.0, np.ones(2), pt.constant(2.0)])
def test_refuses_a_constant_statistic(in_model, statistic):
    with pytest.raises(ValueError, match=r"'z': .* no confidential random variable.*unobserved"):
        dp.PrivateObservation("z", statistic, dp.LaplaceMechanism(1.0), observed=1.0)


def test_refuses_a_statistic_of_observed_variables(in_model):
    x = pm.Normal("x", 0, 1, observed=[1.0, 2.0])
    with pytest.raises(ValueError, match=r"one of 'x', which is observed: .* its shape="):
        dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(1.0), observed=1.0)


@pytest.mark.parametrize("mixed", [False, True])
def test_refuses_a_random_variable_outside_the_model(in_model, mixed):
    statistic = pm.Normal.dist(0, 1, shape=5).mean() + (lead().mean() if mixed else 0.0)
    with pytest.raises(ValueError, match=r"'z': .* not part of the model\. Give it a name"):
        dp.PrivateObservation("z", statistic, dp.LaplaceMechanism(1.0), observed=1.0)


@pytest.mark.parametrize("statistic", ["mean", None, [], object()])
def test_refuses_what_is_not_a_statistic(in_model, statistic):
    with pytest.raises(TypeError, match=r"'z': the statistic must be an expression"):
        dp.PrivateObservation("z", statistic, dp.LaplaceMechanism(1.0), observed=1.0)


def test_a_comparison_of_python_is_told_of_pt_eq(in_model):
    with pytest.raises(TypeError, match=r"got False: write pt\.eq\(x, 1\) for x == 1"):
        dp.PrivateObservation("z", lead() == 1, dp.LaplaceMechanism(1.0), observed=1.0)


def test_refuses_a_list_of_unequal_shapes(in_model):
    x = lead()
    with pytest.raises(ValueError, match=r"'z': .* different shapes .* pt\.concatenate"):
        dp.PrivateObservation("z", [x.mean(), x[:2]], dp.LaplaceMechanism(1.0), observed=[1.0] * 3)
    with pytest.raises(ValueError, match=r"pt\.concatenate"):
        dp.PrivateObservation("z", [x[:3], x[:2]], dp.LaplaceMechanism(1.0), observed=[1.0] * 5)


@pytest.mark.parametrize("ddof", [0, 1])
def test_refuses_a_variance_of_one_record(in_model, ddof):
    x = lead(n=1)
    with pytest.raises(ValueError, match=r"'z': a variance needs n >= 2 records; 'lead' has 1"):
        dp.PrivateObservation("z", x.var(ddof=ddof), dp.LaplaceMechanism(1.0), observed=1.0)
    dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(1.0), observed=1.0)


def test_refuses_no_records(in_model):
    with pytest.raises(ValueError, match=r"'z': 'lead' has no records"):
        dp.PrivateObservation("z", lead(n=0).mean(), dp.LaplaceMechanism(1.0), observed=1.0)


@pytest.mark.parametrize(
    ("bounds", "match"),
    [
        ((1, 0), "lower < upper"),
        ((0, 0), "lower < upper"),
        ((0, INF), "finite"),
        ((np.nan, 1), "finite"),
        ((0,), "pair"),
        ((0, 1, 2), "pair"),
        (5.0, "pair"),
        ("ab", "pair"),
        ((None, 1), "pair"),
    ],
)
def test_refuses_bounds(in_model, bounds, match):
    with pytest.raises(ValueError, match=f"'z': bounds.*{match}"):
        dp.PrivateObservation(
            "z", lead().mean(), dp.LaplaceMechanism(1.0), observed=1.0, bounds=bounds
        )


@pytest.mark.parametrize(
    ("records", "error", "match"),
    [
        (lambda: pm.Gamma("x", 2, 1, shape=9), Declined, r"'x' follow gamma.*Normal"),
        (lambda: pm.Normal("x", np.arange(9.0), 1), Declined, "'x' are not identically distrib"),
        (lambda: pm.Normal("x", 0, np.ones(9)), Declined, "'x' are not identically distributed"),
        (lambda: pm.Normal("x", 0, 1), ValueError, "'x' have 0 dimensions; a vector is needed"),
        (lambda: pm.Normal("x", 0, 1, shape=(3, 2)), ValueError, "'x' have 2 dimensions"),
        (lambda: pm.Normal("x", 0, 1, shape=1), ValueError, "'z': bounds= needs n >= 2 .* 'x' has"),
    ],
)
def test_refuses_bounds_of_other_records(in_model, records, error, match):
    with pytest.raises(error, match=match):
        dp.PrivateObservation(
            "z", records().mean(), dp.LaplaceMechanism(1.0), observed=1.0, bounds=(0, 1)
        )


def test_refuses_bounds_of_two_vectors_and_of_dist(in_model):
    x, y = lead(), pm.Normal("y", 0, 1, shape=3)
    one = dp.LaplaceMechanism(1.0)
    with pytest.raises(ValueError, match=r"'z': bounds= needs a statistic of one vector"):
        dp.PrivateObservation("z", x.mean() + y.mean(), one, observed=1.0, bounds=(0, 1))
    with pytest.raises(ValueError, match=r"'z': bounds= is a statement about records"):
        dp.PrivateObservation("z", pm.Normal.dist(0, 1), one, observed=1.0, bounds=(0, 1))


@pytest.mark.parametrize("first", [None, (0, 100)])
@pytest.mark.parametrize("statistic", [lambda x: x.mean(), lambda x: x.std()])
def test_refuses_releases_that_disagree_about_bounds(in_model, first, statistic):
    x, one = lead(), dp.LaplaceMechanism(1.0)
    dp.PrivateObservation("z1", statistic(x), one, observed=1.0, bounds=first)
    with pytest.raises(ValueError, match=r"'z2': the releases of 'lead' state different bounds"):
        dp.PrivateObservation("z2", x.var(ddof=1), one, observed=1.0, bounds=(0, 135))
    dp.PrivateObservation("z2", x.var(ddof=1), one, observed=1.0, bounds=first)


@pytest.mark.parametrize("dims", ["stat", ("stat",)])
def test_dims(dims):
    with pm.Model(coords={"stat": ["mean", "variance"]}) as model:
        dp.PrivateObservation("z", moments(lead()), laplace(), observed=Z, dims=dims)
        drawn = pm.sample_prior_predictive(3, random_seed=1).prior_predictive["z"]
    assert model.named_vars_to_dims["z"] == ("stat",)
    assert drawn.dims == ("chain", "draw", "stat")
    for to in ("statistics", "marginal"):
        collapsed = dp.collapse(model, to)
        assert collapsed.named_vars_to_dims["z"] == ("stat",)
        assert list(collapsed.coords["stat"]) == ["mean", "variance"]


def test_tags_say_what_is_released_of_which_records(in_model):
    x, one = lead(), dp.LaplaceMechanism(1.0)
    dp.PrivateObservation("z1", x.mean(), one, observed=1.0)
    assert x.tag.dp_release == "z1"
    assert dp.RecordMetropolis.competence(x) == pm.step_methods.compound.Competence.IDEAL
    dp.PrivateObservation("z2", x.std(), one, observed=1.0)
    assert x.tag.dp_release == "z1,z2"
    values = pm.Normal("values", 0, 1, shape=3)
    dp.PrivateObservation("z3", 2 * values, one, observed=np.ones(3))  # one by one: for NUTS
    assert not hasattr(values.tag, "dp_release")
    dp.PrivateObservation("z4", values.sum(), one, observed=1.0)
    assert values.tag.dp_release == "z3,z4"


# --- An ordinary observed variable ----------------------------------------------------------------


def test_is_registered_as_an_observed_variable(model):
    z = model["z"]
    assert z in model.observed_RVs
    assert isinstance(z.owner.op, PrivateReleaseRV)
    np.testing.assert_array_equal(model.rvs_to_values[z].data, Z)


def test_logp_and_gradient(model):
    x = np.random.default_rng(1).normal(30, 25, 43)
    point = {**model.initial_point(), "lead": x, "mu": np.array(28.0)}
    term = terms(model, "z", point)
    expected = stats.laplace.logpdf(Z, [x.mean(), x.var(ddof=1)], NOISE)
    np.testing.assert_allclose(term, expected, rtol=1e-12)
    gradient = model.compile_dlogp(mode=PLAIN)(point)
    assert np.all(np.isfinite(gradient))
    assert gradient.size == 45


@pytest.mark.parametrize("to", ["statistics", "marginal"])
def test_collapsed_logp_and_gradient(collapsed, to):
    model = collapsed[to]
    point = {**model.initial_point(), "mu": np.array(25.0)}
    fn = model.compile_logp(mode=PLAIN)
    value, gradient = fn(point), model.compile_dlogp(mode=PLAIN)(point)
    assert np.isfinite(value)
    assert np.all(np.isfinite(gradient))
    # Along mu, against a central difference.
    index = [v.name for v in model.value_vars].index("mu")
    h = 1e-4
    slope = (fn({**point, "mu": 25.0 + h}) - fn({**point, "mu": 25.0 - h})) / (2 * h)
    np.testing.assert_allclose(gradient[index], slope, rtol=1e-6)


def test_prior_predictive_is_the_same_law_on_every_rung(model, collapsed):
    draws = {}
    for name, m in {"records": model, **collapsed}.items():
        with m:
            prior = pm.sample_prior_predictive(4000, random_seed=3)
        draws[name] = prior.prior_predictive["z"].to_numpy()[0]
    for to in ("statistics", "marginal"):
        for j in range(2):
            p = stats.ks_2samp(draws["records"][:, j], draws[to][:, j]).pvalue
            assert p > 1e-3, (to, j)


def test_posterior_predictive_on_the_original_and_the_collapsed_model(model, collapsed):
    k = 2000
    posterior = from_dict(
        {"posterior": {"mu": np.full((1, k), 40.0), "sigma2": np.full((1, k), 900.0)}}
    )
    rng = np.random.default_rng(5)
    records = rng.normal(40, 30, (k, 43))
    expected = records.mean(1), records.var(1, ddof=1)
    expected = [s + rng.laplace(0, b, k) for s, b in zip(expected, NOISE, strict=True)]
    for m in (model, collapsed["marginal"]):
        with m:
            out = pm.sample_posterior_predictive(posterior, random_seed=4, progressbar=False)
        z = out.posterior_predictive["z"].to_numpy()[0]
        for j in range(2):
            assert stats.ks_2samp(z[:, j], expected[j]).pvalue > 1e-3


def test_log_likelihood_on_the_collapsed_model_is_that_of_the_release(collapsed):
    mu, sigma2 = np.array([[30.0, 45.0]]), np.array([[900.0, 2500.0]])
    tree = from_dict({"posterior": {"mu": mu, "sigma2": sigma2}})
    with collapsed["marginal"]:
        pm.compute_log_likelihood(tree, progressbar=False)
    found = tree.log_likelihood["z"].to_numpy()
    assert found.shape == (1, 2, 2)
    for i in range(2):
        sd = np.sqrt(sigma2[0, i] / 43)
        rate = (43 - 1) / (2 * sigma2[0, i])
        mean = quadrature(stats.norm(mu[0, i], sd).pdf, "laplace", Z[0], NOISE[0], -INF)
        var = quadrature(stats.gamma(21, scale=1 / rate).pdf, "laplace", Z[1], NOISE[1], 0)
        np.testing.assert_allclose(found[0, i], np.log([mean, var]), rtol=1e-7)


def test_unobserved_then_observe_equals_observed(model):
    with pm.Model() as free:
        z = dp.PrivateObservation("z", moments(lead()), laplace())
    assert z in free.free_RVs
    with free:
        drawn = pm.sample_prior_predictive(5, random_seed=1).prior
    assert drawn["z"].shape == (1, 5, 2)
    seen = observe(free, {z: Z})
    assert seen["z"] in seen.observed_RVs
    assert dp.RecordMetropolis.competence(seen["lead"])  # the tag came along
    np.testing.assert_allclose(logp(seen), logp(model), rtol=1e-12)
    np.testing.assert_allclose(logp(dp.collapse(seen)), logp(dp.collapse(model)), rtol=1e-12)


def test_do_on_a_parameter(model):
    fixed = do(model, {"mu": 50.0})
    assert [rv.name for rv in fixed.free_RVs] == ["sigma2", "lead"]
    with fixed:
        z = pm.sample_prior_predictive(2000, random_seed=1).prior_predictive["z"].to_numpy()[0]
    assert abs(np.median(z[:, 0]) - 50) < 2


def test_do_on_the_release_leaves_its_records_to_their_law(model):
    gone = do(model, {"z": Z})
    with gone:
        step = dp.RecordMetropolis([gone["lead"]])
    step.setup_chain(np.random.default_rng(1), tune=0, draws=1)
    point = {**gone.initial_point(), "mu": np.array(0.0)}
    step.step(point)
    drawn = np.concatenate([step.step(point)[0]["lead"] for _ in range(50)])
    sd = np.exp(point["sigma2_log__"] / 2)
    assert stats.kstest(drawn, stats.norm(0, sd).cdf).pvalue > 1e-3


@pytest.mark.parametrize("how", ["copy", "cloudpickle"])
def test_copies(model, how):
    other = model.copy() if how == "copy" else cloudpickle.loads(cloudpickle.dumps(model))
    np.testing.assert_allclose(logp(other), logp(model), rtol=1e-12)
    np.testing.assert_allclose(logp(dp.collapse(other)), logp(dp.collapse(model)), rtol=1e-12)
    assert dp.RecordMetropolis.competence(other["lead"])


# --- pm.Data --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data_model():
    with pm.Model() as model:
        value = pm.Data("value", Z)
        scale = pm.Data("scale", NOISE)
        dp.PrivateObservation("z", moments(lead()), dp.LaplaceMechanism(scale), observed=value)
    return model


def test_data_as_observed_value_and_scale(data_model):
    other = data_model.copy()
    z, scale = np.array([20.0, 500.0]), np.array([2.0, 300.0])
    with pm.Model() as plain:
        dp.PrivateObservation("z", moments(lead()), dp.LaplaceMechanism(scale), observed=z)
    for convert in (lambda m: m, dp.collapse, lambda m: dp.collapse(m, "statistics")):
        changed, expected = convert(other), convert(plain)
        fn = changed.compile_logp(mode=PLAIN)
        before = fn(changed.initial_point())
        pm.set_data({"value": z, "scale": scale}, model=changed)
        after = fn(changed.initial_point())
        assert before != after
        np.testing.assert_allclose(after, logp(expected), rtol=1e-12)
        pm.set_data({"value": Z, "scale": NOISE}, model=changed)
    # The collapsed models carry copies.
    np.testing.assert_array_equal(other["value"].get_value(), Z)


def test_steps_read_new_data(data_model):
    collapsed = dp.collapse(data_model, "statistics")
    with collapsed:
        step = dp.TwoSidedGibbs([collapsed["lead_mean"]])
    step.setup_chain(np.random.default_rng(1), tune=0, draws=1)
    point = collapsed.initial_point()
    pm.set_data({"value": [-500.0, 100.0], "scale": [1e-6, 1.0]}, model=collapsed)
    drawn = step.step(point)[0]["lead_mean"]
    np.testing.assert_allclose(drawn, -500.0, atol=1e-3)


@pytest.mark.nightly
def test_record_step_reads_new_data(data_model):
    model = data_model.copy()
    with model:
        step = dp.RecordMetropolis([model["lead"]])
    step.setup_chain(np.random.default_rng(1), tune=0, draws=1)
    point, _ = step.step(model.initial_point())
    pm.set_data({"value": [45.0, 900.0], "scale": [1e-2, 1e6]}, model=model)
    for _ in range(30):
        point, _ = step.step(point)
    np.testing.assert_allclose(point["lead"].mean(), 45.0, atol=0.1)


def test_dp_sample_reads_new_data():
    """Whatever route `dp.sample` takes, the values are those at the time of the call."""
    with pm.Model() as model:
        value = pm.Data("value", [0.0, 100.0])
        scale = pm.Data("scale", [1.0, 10.0])
        dp.PrivateObservation("z", moments(lead()), dp.LaplaceMechanism(scale), observed=value)
    pm.set_data({"value": [70.0, 100.0], "scale": [1e-3, 10.0]}, model=model)
    tree = dp.sample(
        model, draws=200, tune=100, chains=1, cores=1, random_seed=1, progressbar=False,
        compute_convergence_checks=False,
    )  # fmt: skip
    assert abs(float(tree.posterior["mu"].mean()) - 70) < 2


# --- Unregistered .dist ---------------------------------------------------------------------------


def quadrature(pdf, noise, z, b, lower):
    """Marginal density of a statistic plus noise."""
    eta = stats.laplace(0, b).pdf if noise == "laplace" else stats.norm(0, b).pdf
    cuts = [c for c in (z - 30 * b, z - b, z, z + b, z + 30 * b) if c > lower]
    edges = [max(lower, cuts[0] - 40 * b), *cuts, cuts[-1] + 40 * b]
    return sum(
        integrate.quad(lambda s: pdf(s) * eta(z - s), lo, hi, epsabs=0, epsrel=1e-11, limit=400)[0]
        for lo, hi in pairwise(edges)
        if hi > lo
    )


MECHANISMS = {"laplace": dp.LaplaceMechanism, "gaussian": dp.GaussianMechanism}
DISTS = [
    (
        "normal-laplace",
        "laplace",
        lambda p, **k: pm.Normal.dist(p, 2.0, **k),
        lambda p: stats.norm(p, 2.0),
    ),
    (
        "normal-gaussian",
        "gaussian",
        lambda p, **k: pm.Normal.dist(1, p, **k),
        lambda p: stats.norm(1, p),
    ),
    (
        "gamma-laplace",
        "laplace",
        lambda p, **k: pm.Gamma.dist(p, 0.7, **k),
        lambda p: stats.gamma(p, scale=1 / 0.7),
    ),
    (
        "gamma-gaussian",
        "gaussian",
        lambda p, **k: pm.Gamma.dist(2.5, p, **k),
        lambda p: stats.gamma(2.5, scale=1 / p),
    ),
    (
        "exponential-laplace",
        "laplace",
        lambda p, **k: pm.Exponential.dist(p, **k),
        lambda p: stats.expon(scale=1 / p),
    ),
]


@pytest.mark.parametrize(
    ("noise", "ours", "theirs"), [d[1:] for d in DISTS], ids=[d[0] for d in DISTS]
)
def test_dist_density_and_gradient(noise, ours, theirs):
    b = 1.3
    values = np.array([-2.5, 0.4, 3.0])
    with pm.Model() as model:
        p = pm.Uniform("p", 0.2, 5.0, default_transform=None)
        z = dp.PrivateObservation("z", ours(p, shape=3), MECHANISMS[noise](b), observed=values)
    assert z in model.observed_RVs
    assert z.eval().shape == (3,)
    point = {"p": np.array(1.7)}
    found = terms(model, "z", point)
    law = theirs(1.7)
    lower = law.support()[0]
    expected = [np.log(quadrature(law.pdf, noise, v, b, lower)) for v in values]
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)
    fn, slope = model.compile_logp(mode=PLAIN), model.compile_dlogp(mode=PLAIN)(point)
    h = 1e-5
    numeric = (fn({"p": 1.7 + h}) - fn({"p": 1.7 - h})) / (2 * h)
    np.testing.assert_allclose(slope, [numeric], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("noise", "ours", "theirs"), [d[1:] for d in DISTS], ids=[d[0] for d in DISTS]
)
def test_dist_scalar_prior_predictive(noise, ours, theirs):
    with pm.Model():
        p = pm.Uniform("p", 1.7, 1.7 + 1e-9)
        z = dp.PrivateObservation("z", ours(p), MECHANISMS[noise](1.3), observed=0.5)
    assert z.type.ndim == 0
    drawn = pm.draw(z, 3000, random_seed=2)
    rng = np.random.default_rng(7)
    error = rng.laplace(0, 1.3, 3000) if noise == "laplace" else rng.normal(0, 1.3, 3000)
    expected = theirs(1.7).rvs(3000, random_state=rng) + error
    assert stats.ks_2samp(drawn, expected).pvalue > 1e-3


def test_dist_shape_keyword_and_vector_noise(in_model):
    values, noise = np.array([1.0, 2.0, 9.0]), np.array([0.5, 1.0, 3.0])
    z = dp.PrivateObservation(
        "z", pm.Exponential.dist(0.5, shape=3), dp.LaplaceMechanism(noise), observed=values
    )
    assert z.type.shape == (3,)
    expected = [
        np.log(quadrature(stats.expon(scale=2).pdf, "laplace", v, b, 0))
        for v, b in zip(values, noise, strict=True)
    ]
    np.testing.assert_allclose(terms(in_model, "z", {}), expected, rtol=1e-8)


@pytest.mark.parametrize(
    "statistic", [lambda: pm.Beta.dist(1, 1), lambda: pm.StudentT.dist(4, mu=0, sigma=1)]
)
def test_dist_refuses_other_laws(in_model, statistic):
    with pytest.raises(
        NotImplementedError,
        match=r"'z': .*no marginal.*Gamma under LaplaceMechanism.*Normal under.*Register",
    ):
        dp.PrivateObservation("z", statistic(), dp.LaplaceMechanism(1.0), observed=0.5)


def test_dist_refuses_other_laws_of_pymc(in_model):
    truncated = pm.Truncated.dist(pm.Normal.dist(0, 1), 0, 1)
    with pytest.raises(NotImplementedError, match="'z': "):
        dp.PrivateObservation("z", truncated, dp.LaplaceMechanism(1.0), observed=0.5)


@pytest.mark.parametrize(
    ("scale", "observed", "match"),
    [
        ([1.0, 2.0], [1.0, 2.0, 3.0], r"'z': a noise parameter of shape \(2,\)"),
        (1.0, 1.0, r"'z': observed has shape \(\)"),
        (1.0, [1.0], r"'z': observed has shape \(1,\)"),
    ],
)
def test_dist_refuses_wrong_shapes(in_model, scale, observed, match):
    with pytest.raises(ValueError, match=match):
        dp.PrivateObservation(
            "z", pm.Normal.dist(0, 1, shape=3), dp.LaplaceMechanism(scale), observed=observed
        )


def test_dist_refuses_several_noises_for_one_value(in_model):
    with pytest.raises(ValueError, match=r"'z': a noise parameter of shape \(2,\)"):
        dp.PrivateObservation(
            "z", pm.Normal.dist(0, 1), dp.LaplaceMechanism([1.0, 2.0]), observed=[1.0, 2.0]
        )


# --- Bounds ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bounded():
    with pm.Model() as model:
        x = lead(n=5)
        dp.PrivateObservation("z", moments(x), laplace(), observed=Z, bounds=(0, 100))
    return model


INSIDE = np.array([20.0, 40.0, 60.0, 50.0, 30.0])


@pytest.mark.parametrize(
    ("records", "mu", "sigma2", "feasible"),
    [
        (INSIDE, 50.0, 2500.0, True),  # the law's variance at its limit
        (INSIDE, 50.0, 2501.0, False),
        (INSIDE, 10.0, 900.0, True),
        (INSIDE, 10.0, 901.0, False),
        (INSIDE, -1.0, 1.0, False),
        (INSIDE, 101.0, 1.0, False),
        (np.array([0.0, 0.0, 100.0, 100.0, 50.0]), 50.0, 100.0, True),
        (np.array([-30.0, -30.0, 130.0, 130.0, 50.0]), 50.0, 100.0, False),  # sample too spread
        (INSIDE + 80.0, 50.0, 100.0, False),  # sample mean outside
        # The records themselves are not confined.
        (np.array([-1.0, 50.0, 50.0, 50.0, 50.0]), 50.0, 100.0, True),
    ],
)
def test_bounds_make_a_wall(bounded, records, mu, sigma2, feasible):
    point = {"mu": mu, "sigma2_log__": np.log(sigma2 * (1 - 1e-12)), "lead": records}
    point = {k: np.asarray(v) for k, v in point.items()}
    term = terms(bounded, "z", point)
    mechanism = stats.laplace.logpdf(Z, [records.mean(), records.var(ddof=1)], NOISE)
    np.testing.assert_allclose(term, mechanism if feasible else -INF, rtol=1e-12)


def test_draws_outside_the_bounds_are_nan(bounded):
    with bounded:
        prior = pm.sample_prior_predictive(400, random_seed=2)
    x = prior.prior["lead"].to_numpy()[0]
    z = prior.prior_predictive["z"].to_numpy()[0]
    m, v = (prior.prior[name].to_numpy()[0] for name in ("mu", "sigma2"))
    ybar, s2 = x.mean(1), x.var(1, ddof=1)
    inside = (m > 0) & (m < 100) & (v <= m * (100 - m))
    inside &= (ybar >= 0) & (ybar <= 100) & (0.8 * s2 <= ybar * (100 - ybar))
    np.testing.assert_array_equal(np.isnan(z).any(1), ~inside)
    assert 20 < inside.sum() < 380


def test_feasible_moments_enter_as_inputs(bounded):
    release = bounded["z"]
    _, _, found = release.owner.op.split(release.owner.inputs)
    assert isinstance(found, FeasibleMoments)
    assert found.law_mean is bounded["mu"]  # unbroadcast
    assert found.law_variance.type.ndim == 0
    assert (release.owner.op.bounds, release.owner.op.n) == ((0.0, 100.0), 5)
    inputs = [bounded["sigma2"], bounded["lead"]]
    draws = pytensor.function(inputs, list(found[1:]), mode=PLAIN)(7.0, INSIDE)
    np.testing.assert_allclose(draws, [7.0, 40.0, INSIDE.var(ddof=1)])


def test_dims_that_do_not_fit_are_refused():
    with pm.Model(coords={"k": range(3)}):
        x = pm.Bernoulli("x", pm.Beta("p", 1, 1), shape=6)
        both = [x.sum(), x.mean()]
        noise = dp.LaplaceMechanism(1.0)
        with pytest.raises(ValueError, match=r"'z': the dimension 'k' has 3 labels.*2 entries"):
            dp.PrivateObservation("z", both, noise, observed=[1, 2], dims="k")
        with pytest.raises(ValueError, match="'z': the model has no dimension 'j'"):
            dp.PrivateObservation("z", both, noise, observed=[1, 2], dims="j")
