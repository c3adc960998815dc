"""Closed forms, data, releases and posteriors of the examples, beside what is known of them."""

import json

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.graph.replace import graph_replace
from scipy import integrate, stats

import ab_test
import blood_lead
import census
import cirrhosis
import clamped_regression
import factorization
import glm
import naive_bayes
import opendp_releases
import pymc_dp as dp
from pymc_dp.graphs.questions import PLAIN_MODE
from pymc_dp.kernels.moments.clt_chain import nig_update, onto_cone
from pymc_dp.kernels.moments.clt_law import cross_products
from tests.agreement import follows, has_moments, has_quantiles
from tests.references import references

# Blood lead, by quadrature on the scale of [0, 1]: posterior medians of mu and sigma2, and the
# probability of the feasible region; without and with the bounds.
QUADRATURE = {
    ("flat", False): (0.343027, 0.241569, 0.3882),
    ("flat", True): (0.376355, 0.148441, 1.0),
    ("informative", False): (0.20397, 0.0124961, 0.899337),
    ("informative", True): (0.19802, 0.00842515, 1.0),
}
# Shares of a new person's predictive below 0 and above 100.
OUTSIDE = {"flat": (0.242708, 0.101389), "informative": (0.0909156, 0.0162712)}
# Naive Bayes, p^k_{ij}: feature k has value j in class i.
CHANCES = ("p_1", "p^1_{11}", "p^2_{11}", "p^1_{21}", "p^2_{21}")


@pytest.mark.parametrize(("prior", "bounded"), QUADRATURE)
def test_blood_lead_agrees_with_quadrature(prior, bounded):
    model = blood_lead.build(prior, bounded)
    idata = dp.sample(model, draws=2000, chains=4, random_seed=11, progressbar=False)
    mu, sigma2, probability = QUADRATURE[prior, bounded]
    has_quantiles(idata["posterior"]["mu"], {0.5: 100 * mu})
    has_quantiles(idata["posterior"]["sigma2"], {0.5: 100**2 * sigma2})
    inside = blood_lead.feasible(*blood_lead.draws_of(idata))
    new = dp.predict_records(model, idata, size=1, random_seed=5)
    if bounded:
        assert inside.all()
        assert new.min() >= 0
        assert new.max() <= 100
        return
    has_moments(np.reshape(inside, (4, 2000)), probability)
    for share, expected in zip((new < 0, new > 100), OUTSIDE[prior], strict=True):
        # one record to a draw, and the draws are nearly independent: half of them is a safe count
        error = np.sqrt(expected * (1 - expected) / (share.size / 2))
        assert abs(float(share.mean()) - expected) < 4 * error


@pytest.mark.parametrize("prior", blood_lead.PRIORS)
@pytest.mark.parametrize("statistics", [blood_lead.CONFIDENTIAL, blood_lead.RELEASED], ids=str)
def test_closed_form_of_blood_lead(prior, statistics):
    """Prior times likelihood, on a grid: the ratio to the closed form must not vary."""
    mean, variance = statistics
    posterior = blood_lead.ClosedForm.given(prior, mean, variance)
    mu, sigma2 = np.meshgrid(mean + np.array([-6.0, 0.0, 5.0]), variance * np.array([0.5, 1, 2]))
    claimed = stats.norm.logpdf(mu, posterior.location, np.sqrt(sigma2 / posterior.kappa))
    claimed += posterior.sigma2.logpdf(sigma2)
    n = blood_lead.N
    exact = stats.norm.logpdf(mean, mu, np.sqrt(sigma2 / n))
    exact += stats.gamma.logpdf(variance, (n - 1) / 2, scale=2 * sigma2 / (n - 1))
    if prior == "informative":
        exact += stats.norm.logpdf(mu, 12.5, np.sqrt(sigma2))
        exact += stats.invgamma.logpdf(sigma2, 0.5, scale=0.5 * 3.8**2)
    np.testing.assert_allclose((exact - claimed).ravel(), (exact - claimed)[0, 0], rtol=1e-10)

    sigma2 = posterior.sigma2.rvs(100_000, random_state=np.random.default_rng(3))
    sd = np.sqrt(sigma2 / posterior.kappa)
    mu = np.random.default_rng(4).normal(posterior.location, sd)
    follows(mu, posterior.mu)
    follows(np.sqrt(sigma2), posterior.sigma)
    share = blood_lead.feasible(mu, sigma2).mean()
    assert abs(posterior.probability_feasible() - share) < 4 * np.sqrt(0.25 / 100_000)


def test_closed_form_of_cirrhosis():
    """Sums of no data are projected; the conjugate update is that of the compiled chain."""
    [case] = [c for c in references("regression") if c["id"] == "A_KR_true_stats"]
    sums = cirrhosis.sums(*cirrhosis.states())
    np.testing.assert_allclose(sums, case["expected"]["s"], rtol=1e-6)

    released = np.array([12.35, 16.36, 9.80, 17.12, 5.60])
    products = cross_products(released, 46.0, 2)
    projected = onto_cone(products)
    assert np.abs(projected - products).max() > 0.1
    prior = cirrhosis.MEAN, cirrhosis.PRECISION, cirrhosis.SHAPE, cirrhosis.RATE
    mean, root, shape, rate, _ = nig_update(projected, 46.0, *prior)
    found = cirrhosis.ClosedForm.given(released, 46)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-10)
    np.testing.assert_allclose(found.cov @ root.T @ root, np.eye(2), atol=1e-10)
    assert (found.shape, found.rate) == pytest.approx((shape, rate), rel=1e-10)

    rng = np.random.default_rng(1)
    sigma = np.sqrt(rate / rng.gamma(shape, size=20_000))
    theta = mean + sigma[:, None] * rng.multivariate_normal([0, 0], found.cov, 20_000)
    for draws, law in zip((*theta.T, sigma), found.laws, strict=True):
        follows(draws, law)
    new = found.along(np.array([1.0, 0.5]), new=True)
    follows(theta @ [1.0, 0.5] + sigma * rng.normal(size=20_000), new)


def test_moments_of_what_a_visitor_spends():
    rng = np.random.default_rng(1)
    spent = (rng.random(10**6) < 0.06) * rng.lognormal(np.log(25.0), ab_test.SPREAD, 10**6)
    mean, variance = (v.eval() for v in ab_test.moments(0.06, np.log(25.0)))
    clamped = spent.clip(0, ab_test.CAP)
    assert abs(clamped.mean() - mean) < 4 * clamped.std() / 1e3
    np.testing.assert_allclose(clamped.var(), variance, rtol=0.02)


def test_census_releases_the_true_counts_and_draws_them_as_a_table():
    geography = census.simulate(80, 2)
    np.testing.assert_array_equal(census.by_county(np.arange(20)), [45, 145])
    tract = (geography.tracts - geography.counts) / census.SIGMA["tract"]
    county = geography.counties - census.by_county(geography.counts)
    assert 0.7 < tract.std() < 1.3
    assert np.all(np.abs(county) < 5 * census.SIGMA["county"])
    np.testing.assert_array_equal(geography.totals, geography.counts.sum(axis=1))
    # Their own law as the proposal, whole states at a time, would hardly move.
    with census.build(geography) as model:
        [step] = dp.steps(model)
    assert isinstance(step, dp.TableGibbs)


def test_divergence_is_of_the_mean_of_the_later_half():
    truth = np.array([[1.0, 3.0], [2.0, 2.0]])
    draws = np.array([9 * truth, truth[:, ::-1], 0.1 * truth, truth])
    found = factorization.divergence(truth, draws)
    # After the second draw: (3, 1) alone against (1, 3), and a row that is right.
    expected = (0.25 * np.log(0.25 / 0.75) + 0.75 * np.log(0.75 / 0.25)) / 2
    np.testing.assert_allclose(found[[0, 1, 3]], [0.0, expected, 0.0], atol=1e-12)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_noise_of_factorization_is_the_mechanisms(epsilon):
    data, alpha = factorization.simulate(epsilon, 1), np.exp(-epsilon)
    noise, variance = data.release - data.counts, 2 * alpha / (1 - alpha) ** 2
    assert abs(noise.mean()) < 5 * np.sqrt(variance / noise.size)
    assert abs(noise.var() / variance - 1) < 0.1


@pytest.mark.nightly
def test_noise_that_is_modelled_does_less_harm_than_noise_that_is_ignored():
    curves = factorization.clamped_experiment(factorization.simulate(0.5, 3), 300, 3)
    late = {name: curve[-1] for name, curve in curves.items()}
    assert late["confidential"] < late["private"] < 0.8 * late["naive"]


@pytest.mark.parametrize("name", glm.REGRESSIONS)
def test_moments_and_sensitivity_of_glm(name):
    kind, n = glm.REGRESSIONS[name], 50_000
    study = glm.simulate(kind, n, 1)
    with pm.Model() as model:
        _, nodes, weights = kind.covariate()
        intercept, slope = kind.truth
        found = glm.moments(kind, intercept + slope * nodes, nodes, weights)
    truth = {"mean": 0.3, "spread": 1.0}  # of a Normal x
    known = {rv: pt.constant(np.float64(truth[rv.name])) for rv in model.free_RVs}
    found = pm.draw(graph_replace(found, known, strict=False), mode=PLAIN_MODE)
    terms = np.stack(kind.terms(study.x, study.y)).astype(float)
    error = terms.std(axis=1) / np.sqrt(n)
    np.testing.assert_array_less(np.abs(terms.mean(axis=1) - found[0]), 5 * error)
    np.testing.assert_allclose(np.cov(terms), found[1], rtol=0.1, atol=0.02)

    rng = np.random.default_rng(1)
    terms = np.stack(kind.terms(rng.normal(0, 3, 10_000), rng.poisson(3, 10_000))).astype(float)
    np.testing.assert_allclose(np.ptp(terms, axis=1), kind.sensitivity, rtol=0.01)


def test_numbers_of_clamped_regression():
    case = references("neural")["linreg"]
    assert list(clamped_regression.RELEASED) == case["s_dp"]["10"]
    reference = case["reference"]["eps10_priorvar1"]
    found = list(clamped_regression.REFERENCE.values())
    np.testing.assert_array_equal(found, np.transpose([reference["mean"], reference["sd"]]))
    for name, means in clamped_regression.PUBLISHED.items():
        assert list(means) == case["paper_table1"][name]["mean"]

    rng = np.random.default_rng(1)
    x, y = rng.choice([-1, 0.0, 1], (5000, 2)) * 15, rng.choice([-1, 0.0, 1], 5000) * 15
    terms = np.stack(clamped_regression.products(x, y))[:, :300]
    distance = np.abs(terms[:, :, None] - terms[:, None]).sum(axis=0)
    # The published bound is not sharp: its noise is larger than need be.
    assert 0.6 < distance.max() / clamped_regression.PEOPLE / clamped_regression.SENSITIVITY <= 1

    model = clamped_regression.build()
    x, y, z = pm.draw([model["x"], model["y"], model["release"]], random_seed=1)
    means = [p.mean() for p in clamped_regression.products(x, y)]
    assert np.max(np.abs(z - means)) < 12 * clamped_regression.SENSITIVITY / 10


# tests/night/test_record_references.py holds the same model to its reference in every run.
@pytest.mark.nightly
def test_clamped_regression_draws_its_reference():
    idata = clamped_regression.exact(clamped_regression.build(), 5000, seed=1)
    draws = clamped_regression.coefficients(idata)
    for name, (mean, sd) in clamped_regression.REFERENCE.items():
        has_moments(draws[name].reshape(4, -1), mean, sd, least=100)


def test_enumeration_of_naive_bayes_is_the_reference():
    case = references("neural")["loglinear"]
    assert naive_bayes.RELEASED.ravel().tolist() == case["spec"]["released_counts"]["m"]
    for found, label in zip(naive_bayes.enumerate_counts().values(), CHANCES, strict=True):
        expected = case["reference"][label]
        np.testing.assert_allclose(found, (expected["mean"], expected["sd"]), atol=6e-5)


@pytest.mark.nightly
def test_naive_bayes_draws_what_is_enumerated():
    draws = naive_bayes.chances(naive_bayes.exact(naive_bayes.build(), 2000, seed=2))
    for name, (mean, sd) in naive_bayes.enumerate_counts().items():
        has_moments(draws[name].reshape(2, -1), mean, sd, sd_within=0.06, least=400)


def test_statistics_of_opendp_are_those_of_the_records():
    noise = {
        "mean": dp.LaplaceMechanism(0.7),
        "variance": dp.LaplaceMechanism(98.0),
        "histogram": dp.GeometricMechanism(6.0),
    }
    values = (127.5, 240.0, [31, 160, 150, 132, 108, 20])
    named = {"dims": "class", "coords": {"class": opendp_releases.CLASSES}}
    texts = {
        name: dp.Release(value, law, **(named if name == "histogram" else {})).to_json()
        for (name, law), value in zip(noise.items(), values, strict=True)
    }
    model = opendp_releases.build(texts)
    names = [model[name] for name in ("pressure", *noise)]
    pressure, *drawn = pm.draw(names, draws=20, random_seed=1)
    for records, *released in zip(pressure, *drawn, strict=True):
        clamped = records.clip(*opendp_releases.RANGE)
        counts = np.histogram(records, [-np.inf, *opendp_releases.EDGES, np.inf])[0]
        statistics = clamped.mean(), clamped.var(ddof=1), counts
        for z, s, scale in zip(released, statistics, (0.7, 98.0, 6.0), strict=True):
            assert np.all(np.abs(z - s) < 15 * scale)
    assert counts.sum() == opendp_releases.PATIENTS


def test_privacy_loss_of_opendp():
    pytest.importorskip("opendp", reason="needs the extra [opendp]")
    text = opendp_releases.publish(opendp_releases.simulate(1), 30.0)["histogram"]
    release = dp.Release.from_json(text)
    assert release.coords == {"class": opendp_releases.CLASSES}
    assert release.privacy.epsilon == pytest.approx(10)
    np.testing.assert_allclose(release.mechanism.scale.eval(), 2 / 10)
    assert json.loads(text)["mechanism"]["class"]


@pytest.mark.nightly
def test_reference_of_opendp_is_the_posterior_of_the_records():
    pressure = opendp_releases.simulate(3)[:40]
    _, spread, above = opendp_releases.non_private(pressure, 40_000, 1).values()

    def weight(sigma, mu, power=0.0):
        logp = stats.norm.logpdf(pressure, mu, sigma).sum() + 170
        prior = stats.norm.pdf(mu, *opendp_releases.PRIOR[:2])
        prior *= stats.halfnorm.pdf(sigma, scale=opendp_releases.PRIOR[2])
        return sigma**power * np.exp(logp) * prior

    m, s = pressure.mean(), pressure.std()
    box = (m - 3 * s, m + 3 * s, s / 2, 2 * s)
    total, first = (integrate.dblquad(weight, *box, args=(p,))[0] for p in (0, 1))
    assert abs(spread.mean() - first / total) < 4 * spread.std() / 200
    assert abs(np.mean(above) - np.mean(pressure > opendp_releases.HIGH)) < 0.15
