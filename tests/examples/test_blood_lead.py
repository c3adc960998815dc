"""The blood-lead example: its numbers against quadrature."""

import numpy as np
import pytest
from scipy import stats

import pymc_dp as dp
from pymc_dp.examples import blood_lead
from pymc_dp.examples.blood_lead import (
    CONFIDENTIAL,
    PRIORS,
    RELEASED,
    ClosedForm,
    build,
    draws_of,
    feasible,
)
from tests.agreement import has_moments, has_quantiles

# Posterior medians of mu and sigma2 and the probability of the feasible region, by quadrature,
# on the scale of [0, 1]; without and with the bounds.
REFERENCE = {
    ("flat", False): (0.343027, 0.241569, 0.3882),
    ("flat", True): (0.376355, 0.148441, 1.0),
    ("informative", False): (0.20397, 0.0124961, 0.899337),
    ("informative", True): (0.19802, 0.00842515, 1.0),
}
# Shares of a new person's predictive below 0 and above 100, without bounds.
OUTSIDE = {"flat": (0.242708, 0.101389), "informative": (0.0909156, 0.0162712)}


@pytest.fixture(scope="module")
def fits():
    return {
        (prior, bounded): dp.sample(
            build(prior, bounded), draws=2000, chains=4, random_seed=11, progressbar=False
        )
        for prior, bounded in REFERENCE
    }


@pytest.mark.parametrize(("prior", "bounded"), REFERENCE)
def test_posterior_agrees_with_quadrature(fits, prior, bounded):
    idata = fits[prior, bounded]
    mu_median, sigma2_median, probability = REFERENCE[prior, bounded]
    has_quantiles(idata["posterior"]["mu"], {0.5: 100 * mu_median})
    has_quantiles(idata["posterior"]["sigma2"], {0.5: 100**2 * sigma2_median})
    inside = feasible(*draws_of(idata))
    if bounded:
        assert inside.all()
    else:
        has_moments(np.reshape(inside, (4, 2000)), probability)


@pytest.mark.parametrize("prior", PRIORS)
def test_predictive_shares_outside_the_bounds(fits, prior):
    new = dp.predict_records(build(prior, False), fits[prior, False], size=1, random_seed=5)
    for share, expected in zip((new < 0, new > 100), OUTSIDE[prior], strict=True):
        # one record to a draw, and the draws are nearly independent: half of them is a safe count
        error = np.sqrt(expected * (1 - expected) / (share.size / 2))
        assert abs(float(share.mean()) - expected) < 4 * error

    kept = dp.predict_records(build(prior, True), fits[prior, True], size=1, random_seed=5)
    assert kept.min() >= 0
    assert kept.max() <= 100


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("statistics", [CONFIDENTIAL, RELEASED], ids=["confidential", "naive"])
def test_closed_form_is_the_posterior(prior, statistics):
    """Prior times likelihood, on a grid: the ratio to the closed form must not vary."""
    mean, variance = statistics
    posterior = ClosedForm.given(prior, mean, variance)
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


def test_closed_form_probability_of_the_feasible_region():
    posterior = ClosedForm.given("flat", *RELEASED)
    rng = np.random.default_rng(3)
    sigma2 = posterior.sigma2.rvs(100_000, random_state=rng)
    mu = rng.normal(posterior.location, np.sqrt(sigma2 / posterior.kappa))
    share = feasible(mu, sigma2).mean()
    assert abs(posterior.probability_feasible() - share) < 4 * np.sqrt(0.25 / 100_000)
