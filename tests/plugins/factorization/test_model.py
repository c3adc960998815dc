"""The model that `poisson_factorization` writes."""

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_dp as dp

Z = np.array([[3, -1, 12], [0, 4, 2], [7, 1, 25], [-2, 0, 3]])
GEOMETRIC = dp.GeometricMechanism(1.5)


def test_the_model_is_the_stated_one():
    theta, phi = np.full((4, 2), 0.7), np.array([[1.0, 2.0, 3.0], [0.2, 0.1, 9.0]])
    prior = {"theta_shape": 2.0, "theta_rate": 0.5, "phi_shape": 0.3, "phi_rate": [[2.0], [4.0]]}
    priors = stats.gamma.logpdf(theta, 2, scale=2).sum()
    priors += stats.gamma.logpdf(phi, 0.3, scale=1 / np.array([[2.0], [4.0]])).sum()
    rate = theta @ phi
    y = np.arange(400)[:, None, None]
    noise = np.tanh(0.5 / 1.5) * np.exp(-np.abs(Z - y) / 1.5)
    for mechanism, observed, likelihood in (
        (None, np.abs(Z), stats.poisson.logpmf(np.abs(Z), rate).sum()),
        (GEOMETRIC, Z, np.log((stats.poisson.pmf(y, rate) * noise).sum(axis=0)).sum()),
    ):
        model = dp.poisson_factorization(observed, 2, mechanism, **prior)
        point = {"theta_log__": np.log(theta), "phi_log__": np.log(phi)}
        found = model.compile_logp(jacobian=False)(point)
        np.testing.assert_allclose(found, priors + likelihood, rtol=1e-9)


def test_dims_and_coords():
    model = dp.poisson_factorization(
        dp.Release(Z, GEOMETRIC), 2, dims=("town", "crop"), coords={"crop": ["a", "b", "c"]}
    )
    assert model.named_vars_to_dims["theta"] == ("town", "component")
    assert model.named_vars_to_dims["phi"] == ("component", "crop")
    assert model.named_vars_to_dims["release"] == ("town", "crop")
    assert model.coords["crop"] == ("a", "b", "c")
    with model:
        prior = pm.sample_prior_predictive(5, random_seed=1)
    assert prior["prior_predictive"]["release"].dims == ("chain", "draw", "town", "crop")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 2], 2), "shape \\(2,\\)"),
        ((Z, 2), "no counts"),
        ((np.abs(Z) + 0.5, 2), "no counts"),
        ((Z, 0, GEOMETRIC), "components=0"),
        ((dp.Release(Z, GEOMETRIC), 2, GEOMETRIC), "leave mechanism out"),
        ((Z + 0.5, 2, GEOMETRIC), "cannot publish"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ValueError, match=message):
        dp.poisson_factorization(*arguments)


def test_refused_dims():
    with pytest.raises(ValueError, match="names of rows and columns"):
        dp.poisson_factorization(Z, 2, GEOMETRIC, dims="row")
