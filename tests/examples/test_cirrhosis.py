"""The cirrhosis example: its data, closed forms and posteriors."""

import numpy as np
import pytest
from scipy import integrate, stats

from pymc_dp.examples import cirrhosis
from tests.references import references

CASES = references("regression")
SEED = 3


def test_the_data_are_those_of_the_literature():
    [case] = [c for c in CASES if c["id"] == "A_KR_true_stats"]
    x, y = cirrhosis.states()
    assert len(x) == len(y) == case["inputs"]["n"]
    np.testing.assert_allclose(cirrhosis.sums(x, y), case["expected"]["s"], rtol=1e-6)


def test_closed_form_against_quadrature():
    x, y = cirrhosis.states()
    found = cirrhosis.ClosedForm.given(cirrhosis.sums(x, y), len(x))
    grid = np.meshgrid(np.linspace(-0.2, 0.4, 61), np.linspace(0.3, 1.6, 66),
                       np.linspace(0.008, 0.06, 53), indexing="ij")  # fmt: skip
    intercept, slope, sigma2 = grid
    sd = np.sqrt(sigma2)
    log_density = stats.invgamma(20, scale=0.5).logpdf(sigma2)
    log_density += stats.norm(0, 2 * sd).logpdf(intercept) + stats.norm(1, 2 * sd).logpdf(slope)
    for xi, yi in zip(x, y, strict=True):
        log_density += stats.norm(intercept + slope * xi, sd).logpdf(yi)
    weight = np.exp(log_density - log_density.max())
    weight /= weight.sum()
    for k, quantity in enumerate((intercept, slope, sd)):
        mean = np.sum(weight * quantity)
        variance = np.sum(weight * (quantity - mean) ** 2)
        at = np.linspace(*np.quantile(quantity, [0, 1]), 2_001)
        density = found.laws[k].pdf(at)
        own = integrate.trapezoid(at * density, at)
        assert integrate.trapezoid(density, at) == pytest.approx(1, abs=1e-3)
        assert own == pytest.approx(mean, abs=1e-3)
        assert integrate.trapezoid((at - own) ** 2 * density, at) == pytest.approx(
            variance, rel=0.02
        )


def test_closed_form_against_least_squares():
    """Sums of no data are projected; rows with the projected sums, and the prior, are fitted."""
    sx, sxx, sy, sxy, syy = released = np.array([12.35, 16.36, 9.80, 17.12, 5.60])
    products = np.array([[46, sx, sy], [sx, sxx, sxy], [sy, sxy, syy]])
    values, vectors = np.linalg.eigh(products)
    assert values[0] < -0.1
    rows = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
    prior = np.linalg.cholesky(cirrhosis.PRECISION).T
    design = np.vstack([rows[:, :2], prior])
    mean, [squares], *_ = np.linalg.lstsq(design, np.append(rows[:, 2], prior @ cirrhosis.MEAN))
    found = cirrhosis.ClosedForm.given(released, 46)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-10)
    np.testing.assert_allclose(found.cov @ design.T @ design, np.eye(2), atol=1e-10)
    expected = cirrhosis.SHAPE + 23, cirrhosis.RATE + squares / 2
    assert (found.shape, found.rate) == pytest.approx(expected, rel=1e-10)


@pytest.fixture(scope="module")
def fits():
    x, y = cirrhosis.states()
    released = cirrhosis.release(x, y, 1.0, np.random.default_rng(SEED))
    return cirrhosis.fit_all(x, y, released, 1.0, draws=1_000, seed=SEED)


@pytest.mark.nightly
def test_the_release_says_less_than_the_data(fits):
    ends = {k: cirrhosis.quantiles(v, [0.05, 0.95])[1] for k, v in fits.items()}
    width = {k: high - low for k, (low, high) in ends.items()}
    assert width["ours"] > 1.5 * width["confidential"] > 1.5 * width["naive"]


@pytest.mark.nightly
def test_with_bounds_every_line_meets_the_unit_square(fits):
    share = {}
    for name in ("ours", "ours, bounds"):
        intercept, slope, _ = cirrhosis.draws_of(fits[name])
        ends = np.stack([intercept, intercept + slope])
        share[name] = np.mean((ends.max(axis=0) >= 0) & (ends.min(axis=0) <= 1))
    assert share["ours, bounds"] == 1.0


@pytest.mark.nightly
def test_without_noise_predictive_intervals_are_those_of_the_data():
    found = cirrhosis.coverage(2, (1e5,), seed=2)
    assert found["ours"].shape == (1, 2)
    for shares in found.values():
        assert np.all(np.abs(shares - found["confidential"]) < 0.16)  # three of twenty states
