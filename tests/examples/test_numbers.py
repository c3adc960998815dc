"""Closed forms, data, releases and posteriors of the examples, beside what is known of them."""

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
from pymc_dp.graphs.values import PLAIN_MODE
from tests.agreement import follows
from tests.references import references

# Naive Bayes, p^k_{ij}: feature k has value j in class i.
CHANCES = ("p_1", "p^1_{11}", "p^2_{11}", "p^1_{21}", "p^2_{21}")


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
    """Sums of no data are projected; rows with the projected sums, and the prior, are fitted."""
    [case] = [c for c in references("regression") if c["id"] == "A_KR_true_stats"]
    sums = cirrhosis.sums(*cirrhosis.states())
    np.testing.assert_allclose(sums, case["expected"]["s"], rtol=1e-6)

    sx, sxx, sy, sxy, syy = released = np.array([12.35, 16.36, 9.80, 17.12, 5.60])
    products = np.array([[46, sx, sy], [sx, sxx, sxy], [sy, sxy, syy]])
    values, vectors = np.linalg.eigh(products)
    assert values[0] < -0.1
    rows = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
    prior = np.linalg.cholesky(cirrhosis.PRECISION).T
    design = np.vstack([rows[:, :2], prior])
    mean, [squares], *_ = np.linalg.lstsq(design, np.append(rows[:, 2], prior @ cirrhosis.MEAN))
    shape, rate = cirrhosis.SHAPE + 23, cirrhosis.RATE + squares / 2
    found = cirrhosis.ClosedForm.given(released, 46)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-10)
    np.testing.assert_allclose(found.cov @ design.T @ design, np.eye(2), atol=1e-10)
    assert (found.shape, found.rate) == pytest.approx((shape, rate), rel=1e-10)

    # With sigma2 of this mean, and theta given it.
    mean_sigma2, row = rate / (shape - 1), np.array([1.0, 0.5])
    new = found.along(row, new=True)
    assert new.mean() == pytest.approx(mean @ row)
    assert new.var() == pytest.approx((1 + row @ found.cov @ row) * mean_sigma2)
    *coefficients, sigma = found.laws
    np.testing.assert_allclose([law.mean() for law in coefficients], mean)
    np.testing.assert_allclose(
        [law.var() for law in coefficients], np.diag(found.cov) * mean_sigma2
    )
    assert sigma.moment(2) == pytest.approx(mean_sigma2)


@pytest.mark.nightly
def test_with_next_to_no_noise_predictions_of_cirrhosis_cover_as_those_of_the_data():
    found = cirrhosis.coverage(2, (1e5,), seed=2)
    for shares in found.values():
        assert np.all(np.abs(shares - found["confidential"]) < 0.16)  # three of twenty states


def test_moments_of_what_a_visitor_spends():
    rng = np.random.default_rng(1)
    spent = (rng.random(10**6) < 0.06) * rng.lognormal(np.log(25.0), ab_test.SPREAD, 10**6)
    mean, variance = (v.eval() for v in ab_test.moments(0.06, np.log(25.0)))
    clamped = spent.clip(0, ab_test.CAP)
    assert abs(clamped.mean() - mean) < 4 * clamped.std() / 1e3
    np.testing.assert_allclose(clamped.var(), variance, rtol=0.02)


def test_census_releases_the_true_counts_and_draws_them_as_a_tree():
    data = census.simulate(80, 2)
    for name, counts in data.counts.items():
        noise = (data.released[name] - counts) / census.SIGMA[census.level(name)]
        assert 0.6 < noise.std() < 1.4
    county = data.counts["county"]
    np.testing.assert_array_equal(county.sum(1), data.counts["state"])
    for n in census.WIDTHS:
        np.testing.assert_array_equal(data.counts[f"tract {n}"].sum(-1), county[:, data.width == n])
    with census.build(data) as model:
        [step] = dp.steps(model)
    assert isinstance(step, dp.TreeGibbs)


def test_least_squares_on_the_tree_is_that_of_its_normal_equations():
    data = census.simulate(80, 3)
    sd, width = census.SIGMA, data.width
    owner = np.repeat(np.arange(width.size), width)
    design = np.vstack([np.ones(owner.size), np.eye(width.size)[:, owner], np.eye(owner.size)])
    weight = np.repeat([sd[k] ** -2 for k in ("state", "county", "tract")],
                       [1, width.size, owner.size])  # fmt: skip
    covariance = np.linalg.inv(design.T @ (weight[:, None] * design))
    tracts = np.concatenate([data.released[f"tract {n}"][0].ravel() for n in census.WIDTHS])
    z = np.concatenate([[data.released["state"][0]], data.released["county"][0], tracts])
    leaves = covariance @ (design.T @ (weight * z))
    found = census.least_squares(data)
    estimates, spreads = (
        np.concatenate([np.ravel(one[k][0]) for one in found.values()]) for k in (0, 1)
    )
    np.testing.assert_allclose(estimates, design @ leaves)
    np.testing.assert_allclose(spreads, np.sqrt(np.diag(design @ covariance @ design.T)))


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


def test_enumeration_of_naive_bayes_is_the_reference():
    case = references("neural")["loglinear"]
    assert naive_bayes.RELEASED.ravel().tolist() == case["spec"]["released_counts"]["m"]
    for found, label in zip(naive_bayes.enumerate_counts().values(), CHANCES, strict=True):
        expected = case["reference"][label]
        np.testing.assert_allclose(found, (expected["mean"], expected["sd"]), atol=6e-5)


def test_releases_of_opendp_are_of_the_statistics():
    pytest.importorskip("opendp", reason="needs the extra [opendp]")
    texts = opendp_releases.publish(opendp_releases.simulate(1), 30.0)
    laws = {name: dp.Release.from_json(text).mechanism for name, text in texts.items()}
    np.testing.assert_allclose(laws["histogram"].scale.eval(), 2 / 10)
    model, names = opendp_releases.build(texts), ("pressure", "mean", "variance", "histogram")
    drawn = pm.draw([model[name] for name in names], 20, random_seed=1)
    for records, *released in zip(*drawn, strict=True):
        clamped = records.clip(*opendp_releases.RANGE)
        counts = np.histogram(records, [-np.inf, *opendp_releases.EDGES, np.inf])[0]
        for z, s, name in zip(released, (clamped.mean(), clamped.var(ddof=1), counts), names[1:],
                              strict=True):  # fmt: skip
            assert np.all(np.abs(z - s) < 15 * laws[name].scale.eval())


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
