"""Routes of dp.sample: which is taken, what it says, what it returns."""

import logging
from functools import partial

import arviz_stats
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.distributions import transforms
from scipy import special, stats

import pymc_dp as dp
from pymc_dp import sampling
from pymc_dp.graphs.declined import Declined
from pymc_dp.reading.checks import check_values
from pymc_dp.reading.model import Reading
from pymc_dp.reading.tags import is_tagged
from pymc_dp.routes.given import check_initial_values, public
from tests.agreement import has_moments, same_law
from tests.chains import QUIET, SHORT
from tests.models import as_model, bits, normal, normals, releasing, route_table

# A prior of the standard deviation, and draws of the variance from it, or from a wide uniform law.
SPREADS = {
    "sigma": (lambda: pm.HalfNormal("sigma", 20), lambda rng, size: rng.normal(0, 20, size) ** 2),
    "flat sigma": (lambda: pm.HalfFlat("sigma"), lambda rng, size: rng.uniform(0, 400, size) ** 2),
    "sigma2": (
        lambda: pt.sqrt(pm.InverseGamma("sigma2", 3.0, 800.0)),
        lambda rng, size: 800 / rng.standard_gamma(3.0, size),
    ),
    "gamma": (
        lambda: pt.sqrt(pm.Gamma("sigma2", 2.0, 0.005)),
        lambda rng, size: rng.gamma(2.0, 200, size),
    ),
    "exponential": (
        lambda: pt.sqrt(pm.Exponential("sigma2", 0.003)),
        lambda rng, size: rng.exponential(1 / 0.003, size),
    ),
    "half-cauchy": (lambda: pm.HalfCauchy("sigma", 20), None),
}


def build(spread="sigma", *, records=pm.Normal, statistic=None, bounds=None, **release):
    """Twenty records under one release; `spread` names the prior."""
    with pm.Model(coords={"stat": ["mean", "var"]}) as model:
        mu = pm.Normal("mu", 60, 20)
        sigma = SPREADS[spread][0]()
        y = records("y", mu, sigma, shape=20)
        pm.Deterministic("cv", sigma / mu)
        values = [y.mean(), y.var(ddof=1)] if statistic is None else statistic(y)
        arguments = {"observed": [71.0, 400.0]} | release
        mechanism = arguments.pop("mechanism", None) or dp.LaplaceMechanism([5.0, 300.0])
        dp.PrivateObservation("z", values, mechanism, bounds=bounds, **arguments)
    return model


@pytest.mark.by_day("sigma-bounded")
@pytest.mark.parametrize("bounds", [None, (0, 200)], ids=["unbounded", "bounded"])
@pytest.mark.parametrize("spread", [name for name, (_, draw) in SPREADS.items() if draw])
def test_fused_covers_the_priors_that_it_claims(spread, bounds):
    """Means against importance sampling from the prior, or a uniform law where that is flat."""
    model = build(spread, bounds=bounds)
    idata = dp.sample(model, draws=20_000, chains=2, random_seed=1, **QUIET)
    posterior = idata["posterior"]
    assert posterior.attrs["route"] == "fused Gibbs"

    rng, size = np.random.default_rng(2), 2_000_000
    mu, s2 = rng.normal(60, 20, size), SPREADS[spread][1](rng, size)
    ybar = rng.normal(mu, np.sqrt(s2 / 20))
    var = s2 * rng.chisquare(19, size) / 19
    log_weight = stats.laplace.logpdf(71, ybar, 5) + stats.laplace.logpdf(400, var, 300)
    if bounds:
        feasible = (s2 <= mu * (200 - mu)) & (19 / 20 * var <= ybar * (200 - ybar))
        log_weight[~(feasible & (mu > 0) & (mu < 200))] = -np.inf
    weight = special.softmax(log_weight)
    ess = 1 / np.sum(weight**2)
    sigma = posterior["sigma"] if "sigma" in posterior else np.sqrt(posterior["sigma2"])
    for draws, x in ((posterior["mu"], mu), (sigma, np.sqrt(s2))):
        mean = weight @ x
        sd = np.sqrt(weight @ (x - mean) ** 2)
        has_moments(draws, mean, sd, mean_se=sd / ess**0.5, sd_within=0.04, least=15_000)


def test_result_of_the_fused_route(caplog):
    with caplog.at_level(logging.INFO, logger="pymc.dp"):
        idata = dp.sample(build("sigma2", dims="stat"), draws=50, random_seed=1, **QUIET)
    assert "fused Gibbs" in caplog.text
    assert set(idata.children) == {"posterior", "sample_stats", "observed_data"}
    assert dict(idata["posterior"].sizes) == {"chain": 4, "draw": 50}
    assert set(idata["posterior"].data_vars) == {"mu", "sigma2", "cv"}
    np.testing.assert_allclose(
        idata["posterior"]["cv"], np.sqrt(idata["posterior"]["sigma2"]) / idata["posterior"]["mu"]
    )
    assert idata["observed_data"]["z"].dims == ("stat",)
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="pymc.dp"):
        options = QUIET | {"quiet": True}
        again = dp.sample(build("sigma2", dims="stat"), draws=50, random_seed=1, **options)
    assert not caplog.text
    np.testing.assert_array_equal(again["posterior"]["mu"], idata["posterior"]["mu"])
    assert len(np.unique(idata["posterior"]["mu"])) == 200  # chains and draws differ


def test_other_arguments_take_another_route_and_say_so(caplog):
    with caplog.at_level(logging.INFO, logger="pymc.dp"):
        options = {"target_accept": 0.9, "nuts_sampler": "pymc"} | SHORT
        idata = dp.sample(build(), draws=20, tune=20, **options)
    assert "Not taken: fused Gibbs" in caplog.text
    assert "y" not in idata["posterior"]


def reasons(model):
    return {route.name: reason for route, _, reason in route_table(model)}


def test_routes_are_shut_with_the_reason():
    assert "'sigma' is none of" in reasons(build("half-cauchy"))["fused Gibbs"]
    gamma = reasons(build(records=pm.Gamma))
    for name in ("fused Gibbs", "NUTS on the marginal", "Gibbs on the statistics"):
        assert "'y'" in gamma[name]
    assert gamma["Metropolis on the records"] == ""
    assert gamma["NUTS on the records"] == ""
    assert "one by one" in reasons(normal())["Metropolis on the records"]
    mu = partial(pm.Flat, "mu", transform=pm.distributions.transforms.Interval(0, 1))
    cut = releasing(
        lambda: pm.Normal("y", mu(), pm.HalfFlat("s"), shape=20),
        lambda y: [y.mean(), y.var(ddof=1)],
        z=[0.5, 1.0],
    )
    assert "transform" in reasons(cut)["fused Gibbs"]


@pytest.mark.nightly
def test_nuts_on_the_records_moves_at_all():
    """Records start scattered: equal ones have no gradient of their standard deviation."""
    release = {"observed": [71.0, 19.0], "mechanism": dp.LaplaceMechanism([5.0, 5.0])}
    model = build(statistic=lambda y: [y.mean(), y.std(ddof=1)], **release)
    idata = dp.sample(model, draws=100, tune=200, random_seed=1, **SHORT)
    assert float(idata["posterior"]["mu"].std()) > 1
    assert "y" not in idata["posterior"]


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ({"observed": [71.0, np.nan]}, "'z': the observed value"),
        ({"observed": [71.0]}, "'z': the observed value"),
        ({"scale": [5.0, 0.0]}, "'z': the noise parameter scale"),
    ],
)
def test_set_data_is_checked_again(new, message):
    with pm.Model() as model:
        y = pm.Normal("y", pm.Normal("mu", 60, 20), pm.HalfNormal("sigma", 20), shape=20)
        noise = dp.LaplaceMechanism(pm.Data("scale", [5.0, 300.0]))
        observed = pm.Data("observed", [71.0, 400.0])
        dp.PrivateObservation("z", [y.mean(), y.var(ddof=1)], noise, observed=observed)
        pm.set_data(new)
    with pytest.raises(ValueError, match=message):
        dp.sample(model)


@pytest.mark.parametrize(
    "mechanism",
    [
        dp.RandomizedResponse(0.25),
        dp.RandomizedResponse.from_epsilon(0.0),
        dp.RandomizedResponse(0.25).counted(0),
        dp.LaplaceMechanism(2.0).clipped(lower=0.0),
        dp.LaplaceMechanism(2.0).clipped(-3.0, np.inf).rounded(1),
    ],
    ids=repr,
)
def test_parameters_that_need_not_be_positive(mechanism):
    each = isinstance(mechanism, dp.RandomizedResponse)
    statistic = (lambda x: x) if each else lambda x: 0.0 * x.sum()
    check_values(releasing(lambda: bits(4), statistic, mechanism, [0] * 4 if each else 0))


@pytest.mark.parametrize(
    ("build", "value", "message"),
    [
        (lambda v: dp.LaplaceMechanism(v), -1.0, "'z': the noise parameter scale"),
        (lambda v: dp.LaplaceMechanism(v).rounded(1), np.inf, "'z': the noise parameter scale"),
        (lambda v: dp.LaplaceMechanism(v).clipped(0, 1), 0.0, "'z': the noise parameter scale"),
        (lambda v: dp.LaplaceMechanism(1.0).clipped(v, 2.0), 3.0, "lower=3.0 is not below"),
        (lambda v: dp.RandomizedResponse(v), 1.0, "truth_probability=1.0"),
        (lambda v: dp.BinomialMechanism(5, 1.0, v), 0.0, "population=0.0"),
    ],
)
def test_parameters_that_data_have_spoilt(build, value, message):
    with pm.Model() as model:
        parameter = pm.Data("parameter", 0.5)
        x = pm.Bernoulli("x", 0.5)
        if message.startswith("population"):
            pm.set_data({"parameter": 1.0})
        dp.PrivateObservation("z", x, build(parameter), observed=1)
        pm.set_data({"parameter": value})
    with pytest.raises(ValueError, match=message), np.errstate(divide="ignore"):
        check_values(model)


def test_what_is_left_out_of_the_result():
    """Records; never parameters that the statistic uses, too, and never everything."""
    group = np.repeat(np.arange(4), 5)
    with pm.Model() as model:
        p = pm.Normal("p", 0, 1, shape=4)
        x = pm.Normal("x", p[group], 1, shape=20)
        apart = (x - p[group]).clip(-1, 1)
        dp.PrivateObservation("z", apart.sum(), dp.LaplaceMechanism(1.0), observed=1.0)
    assert public(Reading(model)) == ["p"]
    rates = partial(pm.Gamma, "rate", 2, 1, shape=3)
    assert public(Reading(releasing(rates, lambda rate: rate, z=np.ones(3)))) == ["rate"]


@as_model
def nothing():
    pm.Normal("x")


@pytest.mark.parametrize(
    ("model", "options", "error", "message"),
    [
        (lambda: 500, {}, TypeError, r"write dp\.sample\(model"),
        (lambda: None, {}, TypeError, "no model"),
        (build, {"rung": "top"}, ValueError, "rung='top'"),
        (build, {"method": "gibbs"}, ValueError, "'gibbs': write 'sppe' or 'sple'"),
        (build, {"method": "naive"}, ValueError, "'naive': gone.*write .*clt.*notebooks/05"),
        (build, {"method": "bernstein-sheldon"}, ValueError, "gone.*write approximate='clt'"),
        (build, {"method": "sppe", "rung": "records"}, ValueError, "'sppe' does not take rung"),
        (nothing, {}, ValueError, r"dp\.PrivateObservation"),
    ],
)
def test_arguments(model, options, error, message):
    with pytest.raises(error, match=message):
        dp.sample(model(), **options)


@pytest.mark.nightly
def test_recover_from_separate_bounded_releases():
    with pm.Model() as model:
        y = pm.Normal("y", pm.Normal("mu", 60, 20), pm.HalfNormal("sigma", 20), shape=20)
        for name, s, scale, z in (("a", y.mean(), 5, 71), ("b", y.var(ddof=1), 300, 400)):
            noise = dp.LaplaceMechanism(scale)
            dp.PrivateObservation(name, s, noise, observed=z, bounds=(0, 200))
    idata = dp.sample(model, draws=2_000, random_seed=1, **QUIET)
    together = build(bounds=(0, 200))
    same = dp.sample(together, draws=2_000, random_seed=2, **QUIET)
    one = dp.recover(model, idata, random_seed=3)["posterior"]
    other = dp.recover(together, same, random_seed=4)["posterior"]
    for name in ("y_mean", "y_var"):
        same_law(*(found[name].to_numpy().ravel()[::4] for found in (one, other)))
    assert "y_mean" in dp.recover(model, dp.recover(model, idata))["posterior"]


@pytest.mark.parametrize(
    ("mu", "warned"),
    [
        (lambda: pm.Normal("mu", 4, transform=pm.distributions.transforms.Interval(0, 9)), True),
        (lambda: pm.Normal("mu"), False),
    ],
)
def test_what_one_word_costs_is_said(mu, warned, caplog):
    records = lambda: pm.Normal("y", mu(), pm.HalfNormal("s", 1), shape=20)  # noqa: E731
    model = releasing(records, lambda y: [y.mean(), y.var(ddof=1)], z=[4.0, 1.0])
    dp.sample(model, draws=2, tune=2, **SHORT)
    said = [r.message for r in caplog.records if "leave transform= out" in r.message]
    assert len(said) == warned
    assert not warned or "The route 'fused Gibbs' is usually" in said[0]


def test_without_observed_values_the_prior_is_drawn_from(caplog):
    """Independent draws, of any shape, in chains; what cannot be drawn is refused."""
    with caplog.at_level(logging.INFO, logger="pymc.dp"):
        with pm.Model(coords={"group": "ab"}) as model:
            mu = pm.Normal("mu", [-3, 3], 0.1, dims="group")
            y = pm.Normal("y", mu[[0, 1, 1]], 1, shape=3)
            pm.Deterministic("twice", 2 * mu)
            dp.PrivateObservation("z", y.mean(), dp.LaplaceMechanism(1.0))
        posterior = dp.sample(model, draws=50, chains=3, random_seed=1, **QUIET)["posterior"]
    assert "'z' has no observed value" in caplog.text
    assert "draws from the prior" in caplog.text
    assert set(posterior.data_vars) == {"mu", "twice", "z"}
    assert posterior["mu"].dims == ("chain", "draw", "group")
    assert np.unique(posterior["mu"]).size == 300
    np.testing.assert_allclose(posterior["mu"].mean(("chain", "draw")), [-3, 3], atol=0.05)
    improper = releasing(lambda: pm.Normal("y", pm.Flat("mu"), 1, shape=20), pt.mean, z=None)
    with pytest.raises(Declined, match="nothing is observed"):
        dp.sample(improper)


@pytest.mark.parametrize(
    "prior",
    [
        lambda: pm.Normal("mu", 0, 1, transform=transforms.Interval(-1, 9)),
        lambda: pm.Flat("mu", transform=transforms.Interval(-1, 9)),
        lambda: pm.Normal("mu", 0, 1, shape=2, transform=transforms.ordered, initval=[0, 1])[1],
        lambda: pm.CustomDist("mu", logp=lambda value: pt.switch(value > -1, -value, -np.inf)),
    ],
    ids=["cut", "flat and cut", "ordered", "no random"],
)
def test_what_forward_draws_do_not_know(prior, caplog):
    """A transform that cuts the support, a law with a density only: a route draws these."""
    caplog.set_level(logging.INFO, logger="pymc.dp")
    model = releasing(lambda: pm.Normal("y", prior(), 1, shape=20), pt.mean, z=None)
    mu = dp.sample(model, draws=40, tune=2, **SHORT)["posterior"]["mu"].to_numpy()
    assert "draws from the prior, as nothing" not in caplog.text
    assert (np.diff(mu) > 0).all() if model["mu"].ndim else (mu > -1).all()


def test_explain_a_bounded_marginal():
    text = str(dp.explain(dp.collapse(build(bounds=(0, 200)), "marginal"), details=True))
    assert "integrated out: y_mean, y_var" in text


def test_whole_number_noise_on_a_mean_of_continuous_records_has_no_route():
    records = lambda: normals(30, sigma=pm.HalfNormal("s", 1))  # noqa: E731
    model = releasing(records, pt.mean, dp.GeometricMechanism(1.0), 1)
    said = "NUTS on the records.*: 'z' adds whole-number noise to a statistic"
    with pytest.raises(ValueError, match=said):
        dp.sample(model)


def _two_groups(**given):
    groups = np.repeat([0, 1], 20)
    with pm.Model(coords={"site": ["a", "b"]}) as model:
        weights = pm.Data("weights", [1.0, 1.0], dims="site")
        theta = pm.Normal("theta", 50.0 * weights, 10, dims="site")
        x = pm.Normal("x", theta[groups], 8, shape=40)
        means = pt.zeros(2)[groups].inc(x) / 20
        dp.PrivateObservation("z", means, dp.LaplaceMechanism(3.0), observed=[50.0, 55.0])
    few = {"draws": 20, "tune": 20, "chains": 2, "cores": 1, "progressbar": False}
    return model, dp.sample(model, random_seed=1, **few, **given)


@pytest.mark.parametrize("given", [{}, {"nuts_sampler": "pymc", "rung": "marginal"}])
def test_every_route_returns_constant_data_as_pymc_does(given):
    _, tree = _two_groups(**given)
    assert tree["constant_data"]["weights"].dims == ("site",)


def test_without_inference_data_it_returns_a_trace():
    with pytest.warns(FutureWarning, match="return_inferencedata"):
        _, trace = _two_groups(return_inferencedata=False)
    assert trace["theta"].shape == (40, 2)


def test_group_means_are_not_predicted_and_it_says_why():
    model, tree = _two_groups()
    with pytest.raises(NotImplementedError, match=r"means or variances differ.*pm\.Normal"):
        dp.predict_records(model, tree)


def test_effects_that_are_looked_up_are_left_to_nuts():
    county = np.arange(40) % 5
    with pm.Model() as model:
        raw, u = pm.Normal("raw", shape=5), pm.Normal("u", shape=40)
        rate = pm.math.sigmoid(pm.HalfNormal("tau") * raw[county] + u)
        dp.PrivateObservation("z", rate, dp.LaplaceMechanism(0.1), observed=np.full(40, 0.5))
        total = pm.Normal("x", raw.sum(), 1.0, shape=40)
        dp.PrivateObservation("sum", total.sum(), dp.LaplaceMechanism(1.0), observed=3.0)
    assert [rv.name for rv in model.free_RVs if is_tagged(rv)] == ["x"]


@pytest.mark.compiled
def test_values_released_one_by_one_are_moved_by_nuts_in_coordinates(caplog):
    """A share by zip code: no draw in 215 s, with the effects of counties taken for records."""
    rng = np.random.default_rng(1)
    county, scale = np.arange(60) % 6, 0.01
    share = special.expit(-1 + 0.8 * rng.normal(size=6)[county] + rng.normal(size=60))
    with pm.Model() as model:
        tau, s = pm.HalfNormal("tau", 1), pm.HalfNormal("s", 1)
        raw, u = pm.Normal("raw", shape=6), pm.Normal("u", shape=60)
        rate = pm.math.sigmoid(-1 + tau * raw[county] + s * u)
        pm.Deterministic("first", rate[0])
        noise = dp.LaplaceMechanism(scale).clipped(0, 1).rounded(3)
        z = (share + rng.laplace(0, scale, 60)).clip(0, 1).round(3)
        dp.PrivateObservation("z", rate, noise, observed=z)
    assert any("Parameters, not records: 'raw'" in note for note in dp.explain(model).notes)
    with caplog.at_level(logging.INFO, "pymc.dp"):
        tree = dp.sample(model, draws=300, tune=500, chains=2, random_seed=1, progressbar=False)
    assert "'raw', 'u'" in caplog.text
    assert {*tree.posterior.data_vars} == {"tau", "s", "raw", "first"}
    with caplog.at_level(logging.INFO, "pymc.dp"):
        more = dp.sample(model, var_names=["u", "tau"], **SHORT)
    assert caplog.text.count("'raw', 'u'") == 2
    assert {*more.posterior.data_vars} == {"u", "tau"}
    assert arviz_stats.ess(tree, var_names=["tau"])["tau"] > 200
    # What the confidential shares say, since the noise is small beside their spread.
    effect = special.logit(share)
    within = effect - np.array([effect[county == c].mean() for c in range(6)])[county]
    expected = np.sqrt((within**2).sum() / 54)
    assert float(tree.posterior["s"].mean()) == pytest.approx(expected, rel=0.1)


def test_explain_shows_the_route_that_is_taken_and_how_many_others_there_are():
    model, _ = _two_groups()
    [short], [full] = (
        [rows for title, _, rows in dp.explain(model, details=details).tables if title == "Routes"]
        for details in (False, True)
    )
    assert short[0][:3] == full[0][:3]
    assert "dp.sample takes it" in short[0][2]
    assert short[-1][1] == f"{len(full) - len(short) + 1} others"


def test_published_values_are_checked_against_the_current_noise_of_a_copy(monkeypatch):
    with pm.Model() as model:
        cap, published = pm.Data("cap", 100.0), pm.Data("published", 40.0)
        c = pm.Poisson("c", pm.Gamma("rate", 2, 0.1), shape=3)
        noise = dp.GeometricMechanism(2.0).clipped(upper=cap)
        dp.PrivateObservation("z", c.sum(), noise, observed=published)
    collapsed = dp.collapse(model, "marginal")
    with collapsed:
        pm.set_data({"cap": 200.0, "published": 150.0})
    monkeypatch.setattr(sampling, "_sampled", lambda *_: "sampled")
    assert dp.sample(collapsed) == "sampled"
    with collapsed:
        pm.set_data({"published": 250.0})
    with pytest.raises(ValueError, match="cannot publish 250"):
        dp.sample(collapsed)


def test_no_open_route_leads_with_the_one_thing_to_change():
    with pm.Model() as model:
        x = pm.Gamma("x", pm.HalfNormal("a", 3), 1.0, shape=30)
        dp.PrivateObservation("z", x.max(), dp.LaplaceMechanism(1.0), observed=4.0)
    with pytest.raises(
        ValueError, match=r"no route on the rung 'marginal' is open\. NUTS"
    ) as error:
        dp.sample(model, rung="marginal")
    assert "Release sums of functions of single records" in str(error.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"nope": 1.0}, "the model has no free variable 'nope', it has 'theta'"),
        ({"theta": np.zeros(3)}, r"has the shape \(3,\), and 'theta' has \(2,\)"),
        ({"theta": [np.nan, 1.0]}, "is not all numbers"),
        ({"theta": "bad"}, "write numbers, 'support_point' or 'prior'"),
    ],
    ids=["name", "shape", "NaN", "strategy"],
)
def test_initvals_that_cannot_be_are_refused_by_name(given, said):
    with pm.Model() as model:
        theta = pm.Normal("theta", shape=2)
        dp.PrivateObservation("z", theta, dp.LaplaceMechanism(3.0), observed=[50.0, 55.0])
    with pytest.raises(ValueError, match=said):
        dp.sample(model, initvals=given, **SHORT)


def test_initvals_outside_of_a_support_are_refused_and_what_pymc_takes_is_taken():
    with pm.Model() as model:
        pm.HalfNormal("s")
    with pytest.raises(ValueError, match="outside of what 's' can be"):
        check_initial_values(model, {"s": -1.0})
    for given in ({"s": None}, {"s_log__": -1.0}, {model["s"]: 2}, {"s": "prior"}, [None, {}]):
        check_initial_values(model, given)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"var_names": ["mu", "y_mean"]}, "cannot have 'y_mean'.*dp.recover"),
        ({"var_names": ["z"]}, "cannot have 'z'"),
        ({"var_names": ["m"], "rung": "marginal"}, "'marginal' integrates out what 'm' is"),
        ({"var_names": ["y"], "rung": "statistics"}, "'statistics' integrates out what 'y' is"),
    ],
)
def test_a_name_that_the_result_would_lack_is_refused(arguments, why):
    model = build()
    with model:
        pm.Deterministic("m", model["y"].mean())
    with pytest.raises(ValueError, match=why):
        dp.sample(model, **arguments, **SHORT)
    assert sampling._check_names(Reading(model), "auto", ["mu", "m"], {"y"})
    assert not sampling._check_names(Reading(model), "auto", ["mu", "y", "cv"], {"y"})
