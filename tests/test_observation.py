"""`PrivateObservation`: what it refuses, and that it is an ordinary observed variable."""

from functools import partial
from itertools import pairwise

import cloudpickle
import numpy as np
import pymc as pm
import pymc.dims as pmd
import pytensor
import pytensor.tensor as pt
import pytest
from arviz_base import from_dict
from pymc.model.transform.conditioning import do, observe
from pytensor.compile.mode import Mode
from scipy import integrate, stats

import pymc_dp as dp
from pymc_dp.graphs.declined import Declined
from tests.agreement import follows, same_law
from tests.chains import SHORT, step_of
from tests.models import releasing

Z = np.array([34.3, 2224.8])
NOISE = np.array([9.3, 900.0])
INF = np.inf
ONE = dp.LaplaceMechanism(1.0)
# Evaluates a graph without compiling it: cheap for a few calls.
PLAIN = Mode(linker="py", optimizer="fast_compile")


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


@pytest.mark.parametrize("values", [[1.0], [1.0, np.nan]])
def test_refuses_observed_data_container(in_model, values):
    x, data = lead(), pm.Data("data", [1.0, 2.0])
    pm.set_data({"data": values})
    with pytest.raises(ValueError, match="'z': observed"):
        dp.PrivateObservation("z", moments(x), laplace(), observed=data)


def mean(**records):
    return lead(**records).mean()


def outside(law=pm.Normal, *parameters, **options):
    """Return a variable that is not part of the model."""
    return law.dist(*parameters, **options)


def bits():
    x = pm.Bernoulli("x", pm.Beta("p", 1, 1), shape=6)
    return [x.sum(), x.mean()]


def refusal(statistic, match, error=ValueError, **how):
    """Return a case: what is released, in which other way than `ONE` and the value 1."""
    return pytest.param(statistic, how, error, match, id=match)


OUTSIDE = r"'z': .* not part of the model\. Give it a name"
TWO_SCALES = r"'z': a noise parameter of shape \(2,\)"
REFUSED = [
    # Observed values
    *(
        refusal(lambda: moments(lead()), f"'z': observed {match}", observed=observed)
        for observed, match in (
            ([1.0], r"has shape \(1,\), .* \(2,\)"),
            (1.0, r"has shape \(\), .* \(2,\)"),
            ([1.0, 2.0, 3.0], r"has shape \(3,\)"),
            ([[1.0, 2.0]], r"has shape \(1, 2\)"),
            ([1.0, np.nan], r"contains NaN.* which rule.*\.suppressed\(below=threshold\)"),
            ([1.0, None], "contains NaN"),
            ([1.0, INF], "contains NaN, masked or infinite"),
            (np.ma.masked_array([1.0, 2.0], [True, False]), ".* masked"),
        )
    ),
    refusal(
        lambda: moments(lead()),
        r"'z': observed must be a number, an array or a pm\.Data",
        TypeError,
        observed=["a", "b"],
    ),
    refusal(
        mean,
        "'z': observed depends on the random variable other",
        TypeError,
        observed=pm.Normal.dist(name="other"),
    ),
    refusal(mean, "'z'.*observed has shape", mechanism=dp.Release([1.0, 2.0], ONE)),
    refusal(mean, "'z': .* cannot publish", mechanism=ONE.clipped(0, None), observed=-3.0),
    refusal(mean, "'z': .* cannot publish", mechanism=ONE.rounded(0), observed=1.5),
    refusal(
        lambda: pmd.Normal("x", 0, 1, dims=("place",)).mean(),
        r"'z': .*pm\.Normal\(\.\.\., dims=",
        TypeError,
    ),
    refusal(lambda: lead() == 1, r"got False: write pt\.eq\(x, 1\) for x == 1", TypeError),
    refusal(
        lambda: pm.Normal("x", 0, 1, observed=[1.0, 2.0]).mean(),
        "computed from 'x', which is observed: .* its shape=",
    ),
    refusal(lambda: outside(shape=5).mean(), OUTSIDE),
    refusal(lambda: outside(shape=5).mean() + mean(), OUTSIDE),
    refusal(
        lambda: [(x := lead()).mean(), x[:2]],
        r"'z': .* different shapes .* pt\.concatenate",
        observed=[1.0] * 3,
    ),
    refusal(lambda: [(x := lead())[:3], x[:2]], r"pt\.concatenate", observed=[1.0] * 5),
    refusal(lambda: mean(n=0), "'z' has a mean .* over no records of 'lead'.*leave it out"),
    refusal(lambda: mean(n=-3), "'z': 'lead' has the shape -3, which is negative: write"),
    *(
        refusal(mean, "'z': the third argument must be a mechanism", TypeError, mechanism=wrong)
        for wrong in (1.0, None, dp.LaplaceMechanism, "laplace")
    ),
    *(
        refusal(lambda s=s: s, "'z': .* no confidential random variable.*unobserved")
        for s in (3.0, np.ones(2), pt.constant(2.0))
    ),
    *(
        refusal(lambda s=s: s, "'z': the statistic must be an expression", TypeError)
        for s in ("mean", None, [], object())
    ),
    # Dimensions
    *(
        refusal(
            lambda: pm.Normal("counts", 0, 1, dims="place"),
            r"'z': observed has shape .* \(3,\)",
            observed=np.zeros(length),
            dims="place",
        )
        for length in (1, 2)
    ),
    refusal(bits, "'z': the dimension 'place' has 3 labels.*2", observed=[1, 2], dims="place"),
    refusal(bits, "'z': the model has no dimension 'j'", observed=[1, 2], dims="j"),
    # Bounds
    *(
        refusal(mean, f"'z': bounds.*{match}", bounds=bounds)
        for match, wrong in {
            "lower < upper": [(1, 0), (0, 0)],
            "finite": [(0, INF), (np.nan, 1)],
            "pair": [(0,), (0, 1, 2), 5.0, "ab", (None, 1)],
        }.items()
        for bounds in wrong
    ),
    *(
        refusal(lambda law=law: law().mean(), match, error, bounds=(0, 1))
        for law, match, error in (
            (lambda: pm.Gamma("x", 2, 1, shape=9), "'x' follow gamma.*Normal", Declined),
            (lambda: pm.Normal("x", np.arange(9.0), 1), "'x' are not identically dist", Declined),
            (lambda: pm.Normal("x", 0, np.ones(9)), "'x' are not identically dist", Declined),
            (lambda: pm.Normal("x", 0, 1), "'x' have 0 dimensions; a vector is needed", ValueError),
            (lambda: pm.Normal("x", 0, 1, shape=(3, 2)), "'x' have 2 dimensions", ValueError),
            (lambda: pm.Normal("x", shape=1), "'z': bounds= needs n >= 2 .* 'x' has", ValueError),
        )
    ),
    refusal(
        lambda: mean() + pm.Normal("y", 0, 1, shape=3).mean(),
        "'z': bounds= needs a statistic of one vector",
        bounds=(0, 1),
    ),
    refusal(outside, "'z': bounds= is a statement about records", bounds=(0, 1)),
    # Laws that are integrated out
    refusal(
        lambda: outside(pm.Dirichlet, [1.0, 1.0]),
        "'z': .*Register the confidential value",
        NotImplementedError,
        observed=[0.5, 0.5],
    ),
    refusal(
        lambda: outside(shape=3),
        TWO_SCALES,
        mechanism=dp.LaplaceMechanism([1.0, 2.0]),
        observed=[1.0, 2.0, 3.0],
    ),
    refusal(outside, TWO_SCALES, mechanism=dp.LaplaceMechanism([1.0, 2.0]), observed=[1.0, 2.0]),
    refusal(lambda: outside(shape=3), r"'z': observed has shape \(\)"),
    refusal(lambda: outside(shape=3), r"'z': observed has shape \(1,\)", observed=[1.0]),
]


@pytest.mark.parametrize(("statistic", "how", "error", "match"), REFUSED)
def test_refuses(statistic, how, error, match):
    with pm.Model(coords={"place": range(3)}) as model:
        arguments = {"mechanism": ONE, "observed": 1.0} | how
        released, mechanism = statistic(), arguments.pop("mechanism")
        if isinstance(mechanism, dp.Release):
            del arguments["observed"]
        with pytest.raises(error, match=match):
            dp.PrivateObservation("z", released, mechanism, **arguments)
    assert "z" not in model.named_vars  # nothing stays behind: the corrected call works


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


def test_refuses_release_together_with_observed(in_model):
    x, release = lead(), dp.Release(34.3, dp.LaplaceMechanism(9.3))
    with pytest.raises(
        ValueError, match=r"'z': the Release already carries .* leave observed= out"
    ):
        dp.PrivateObservation("z", x.mean(), release, observed=34.3)
    z = dp.PrivateObservation("z", x.mean(), release)
    assert in_model.rvs_to_values[z].data == 34.3


@pytest.mark.parametrize("ddof", [0, 1])
def test_refuses_a_variance_of_one_record(in_model, ddof):
    x = lead(n=1)
    with pytest.raises(ValueError, match=r"'z': a variance needs n >= 2 records; 'lead' has 1"):
        dp.PrivateObservation("z", x.var(ddof=ddof), ONE, observed=1.0)
    dp.PrivateObservation("z", x.mean(), ONE, observed=1.0)


@pytest.mark.parametrize("first", [None, (0, 100)])
@pytest.mark.parametrize("statistic", [lambda x: x.mean(), lambda x: x.std()])
def test_refuses_releases_that_disagree_about_bounds(in_model, first, statistic):
    x = lead()
    dp.PrivateObservation("z1", statistic(x), ONE, observed=1.0, bounds=first)
    with pytest.raises(ValueError, match=r"'z2': the releases of 'lead' state different bounds"):
        dp.PrivateObservation("z2", x.var(ddof=1), ONE, observed=1.0, bounds=(0, 135))
    dp.PrivateObservation("z2", x.var(ddof=1), ONE, observed=1.0, bounds=first)


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
    x = lead()
    dp.PrivateObservation("z1", x.mean(), ONE, observed=1.0)
    assert x.tag.dp_release == "z1"
    assert dp.RecordMetropolis.competence(x) == pm.step_methods.compound.Competence.IDEAL
    dp.PrivateObservation("z2", x.std(), ONE, observed=1.0)
    assert x.tag.dp_release == "z1,z2"
    values = pm.Normal("values", 0, 1, shape=3)
    dp.PrivateObservation("z3", 2 * values, ONE, observed=np.ones(3))  # one by one: for NUTS
    assert not hasattr(values.tag, "dp_release")
    dp.PrivateObservation("z4", values.sum(), ONE, observed=1.0)
    assert values.tag.dp_release == "z3,z4"


# --- An ordinary observed variable ----------------------------------------------------------------


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


def predicted(model, draws, random_seed=1):
    """Draw releases from the prior predictive."""
    tree = pm.sample_prior_predictive(draws, model=model, random_seed=random_seed)
    return tree.prior_predictive["z"].to_numpy()[0]


def test_prior_predictive_is_the_same_law_on_every_rung(model, collapsed):
    records, *others = (predicted(m, 4000, random_seed=3) for m in (model, *collapsed.values()))
    for draws in others:
        same_law(records, draws)


def test_posterior_predictive_on_the_original_and_the_collapsed_model(model, collapsed):
    k = 2000
    posterior = from_dict(
        {"posterior": {"mu": np.full((1, k), 40.0), "sigma2": np.full((1, k), 900.0)}}
    )
    rng = np.random.default_rng(5)
    records = rng.normal(40, 30, (k, 43))
    expected = np.stack([records.mean(1), records.var(1, ddof=1)], axis=1)
    expected += rng.laplace(0, NOISE, (k, 2))
    for m in (model, collapsed["marginal"]):
        with m:
            out = pm.sample_posterior_predictive(posterior, random_seed=4, progressbar=False)
        z = out.posterior_predictive["z"].to_numpy()[0]
        same_law(z, expected)


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
    assert abs(np.median(predicted(fixed, 2000)[:, 0]) - 50) < 2


def test_do_on_the_release_leaves_its_records_to_their_law(model):
    gone = do(model, {"z": Z})
    step = step_of(dp.RecordMetropolis, gone, "lead")
    point = {**gone.initial_point(), "mu": np.array(0.0)}
    step.step(point)
    drawn = np.concatenate([step.step(point)[0]["lead"] for _ in range(50)])
    follows(drawn, stats.norm(0, np.exp(point["sigma2_log__"] / 2)))


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
    step = step_of(dp.TwoSidedGibbs, collapsed, "lead_mean")
    point = collapsed.initial_point()
    pm.set_data({"value": [-500.0, 100.0], "scale": [1e-6, 1.0]}, model=collapsed)
    drawn = step.step(point)[0]["lead_mean"]
    np.testing.assert_allclose(drawn, -500.0, atol=1e-3)


def test_dp_sample_reads_new_data():
    """Whatever route `dp.sample` takes, the values are those at the time of the call."""
    with pm.Model() as model:
        value = pm.Data("value", [0.0, 100.0])
        scale = pm.Data("scale", [1.0, 10.0])
        dp.PrivateObservation("z", moments(lead()), dp.LaplaceMechanism(scale), observed=value)
    pm.set_data({"value": [70.0, 100.0], "scale": [1e-3, 10.0]}, model=model)
    tree = dp.sample(model, draws=200, tune=100, random_seed=1, **SHORT)
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


# A law with a parameter, about 1.7, and scipy's; and the noise of its release.
MECHANISMS = {"laplace": dp.LaplaceMechanism, "normal": dp.GaussianMechanism}
DISTS = pytest.mark.parametrize(
    ("ours", "theirs", "noise"),
    [
        (lambda p, **n: pm.Normal.dist(p, 2.0, **n), stats.norm(1.7, 2.0), "laplace"),
        (lambda p, **n: pm.Normal.dist(1, p, **n), stats.norm(1, 1.7), "normal"),
        (lambda p, **n: pm.Gamma.dist(p, 0.7, **n), stats.gamma(1.7, scale=1 / 0.7), "laplace"),
        (lambda p, **n: pm.Gamma.dist(2.5, p, **n), stats.gamma(2.5, scale=1 / 1.7), "normal"),
        (pm.Exponential.dist, stats.expon(scale=1 / 1.7), "laplace"),
    ],
)


@DISTS
def test_dist_densities_under_vector_noise(ours, theirs, noise):
    values, scales = np.array([-2.5, 0.4, 3.0]), np.array([0.5, 1.0, 3.0])
    model = releasing(lambda: 1.7, lambda p: ours(p, shape=3), MECHANISMS[noise](scales), values)
    assert model["z"].type.shape == (3,)
    given = zip(values, scales, strict=True)
    expected = [np.log(quadrature(theirs.pdf, noise, *at, theirs.support()[0])) for at in given]
    np.testing.assert_allclose(terms(model, "z", {}), expected, rtol=1e-8, atol=1e-8)


@DISTS
def test_dist_scalar_prior_predictive(ours, theirs, noise):
    mechanism, p = MECHANISMS[noise](1.3), partial(pm.Uniform, "p", 1.7, 1.7 + 1e-9)
    z = releasing(p, ours, mechanism, 0.5)["z"]
    assert z.type.ndim == 0
    drawn = pm.draw(z, 3000, random_seed=2)
    rng = np.random.default_rng(7)
    error = getattr(rng, noise)(0, 1.3, 3000)
    same_law(drawn, theirs.rvs(3000, random_state=rng) + error)


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


def test_single_precision_is_refused_before_anything_is_built():
    """By the configuration, and of a model that was made under it."""

    def build():
        with pm.Model() as model:
            x = pm.Normal("x", shape=3)
            dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(1.0), observed=0.3)
        return model

    made = build()
    with pytensor.config.change_flags(floatX="float32"):
        for call in (build, lambda: dp.sample(made, draws=2)):
            with pytest.raises(ValueError, match="computes in float64: set pytensor"):
                call()
        with pm.Model():
            x = pm.Normal("x", pm.Normal("mu"), shape=3)
            context = pm.modelcontext(None)
    with context, pytest.raises(ValueError, match="before the model is made"):
        dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(1.0), observed=0.3)


def test_a_noisy_threshold_belongs_to_the_statistic():
    z = np.array([1, 0, 1])
    with pm.Model() as model:
        thr = pm.Laplace("thr", 3.0, 1.0)
        x = pm.Normal("x", shape=3)
        with pytest.raises(TypeError, match=r"'thr'.*x - thr, noise.thresholded\(0.0\)"):
            dp.LaplaceMechanism(2.0).thresholded(thr)
        dp.PrivateObservation("z", x - thr, dp.LaplaceMechanism(2.0).thresholded(0.0), observed=z)
    values = np.array([0.5, -1.0, 2.0])
    found = model.compile_logp([model["z"]], mode=Mode(linker="py", optimizer="fast_compile"))(
        {"thr": np.array(2.2), "x": values}
    )
    up = stats.laplace.sf(2.2, values, 2.0)
    np.testing.assert_allclose(found, np.log(np.where(z, up, 1 - up)).sum())


def test_whole_number_noise_on_single_precision_is_refused():
    """Rounding would decide which numbers of records are possible: 7 times 1/7 is not 1 there."""
    with pm.Model():
        x = pm.Bernoulli("x", pm.Beta("p", 1, 1), shape=7)
        with pytest.raises(ValueError, match="'z': rounding in float32 would decide"):
            dp.PrivateObservation(
                "z", x.astype("float32").mean(), dp.GeometricMechanism(1.0), observed=2
            )
        dp.PrivateObservation(
            "z", x.astype("float32").sum(), dp.GeometricMechanism(1.0), observed=2
        )
