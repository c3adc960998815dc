"""Jointly Normal rows of unknown number."""

import arviz_base as az
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.model.transform.conditioning import remove_value_transforms
from scipy import special, stats

import pymc_dp as dp
from pymc_dp.graphs.values import PLAIN_MODE

SIZES, THETA = np.arange(95, 106), {"m": 0.3, "b": 0.8, "s": 0.6}
Z, ZN = np.array([20.0, 60.0, 100.0, 85.0]), 98


def written(apart):
    with pm.Model() as model:
        n = pm.DiscreteUniform("n", 95, 105)
        x = pm.Normal("x", pm.Normal("m"), 1.2, shape=n)
        mean = 0.5 + pm.Normal("b") * x
        y = pm.Normal("y", mean, pm.HalfNormal("s"), shape=n)
        dp.PrivateObservation("zn", n, dp.GeometricMechanism(2.0), observed=ZN)
        first, last = pt.stack([x.sum(), (y - 1).sum(), x @ x]), (x * y).sum()
        if apart:
            dp.PrivateObservation("z1", last, dp.LaplaceMechanism(5.0), observed=Z[3])
            dp.PrivateObservation("z", first, dp.LaplaceMechanism(5.0), observed=Z[:3])
        else:
            z = pt.concatenate([first, last[None]])
            dp.PrivateObservation("z", z, dp.LaplaceMechanism(5.0), observed=Z)
    return model


def by_number(latents):
    """Return the log density for each number: of sums and scatter, by that for 100, and of data."""
    root = np.array([[1.2, 0.0], [0.8 * 1.2, 0.6]])
    mean, cov = np.array([0.3, 0.5 + 0.8 * 0.3]), root @ root.T
    alpha = (99 - np.arange(2)) / 2
    diagonal = np.sqrt(2 * alpha) * np.exp(latents[3:] / (2 * np.sqrt(alpha)))
    lower = root @ np.array([[diagonal[0], 0.0], [latents[2], diagonal[1]]])
    first, scatter = 100 * mean + 10 * root @ latents[:2], lower @ lower.T

    def of_sums(n):
        normal = stats.multivariate_normal(n * mean, n * cov).logpdf(first)
        return normal + stats.wishart(n - 1, cov).logpdf(scatter)

    def of_data(n):
        products = scatter + np.outer(first, first) / n
        s = [first[0], first[1] - n, products[0, 0], products[0, 1]]
        return (
            -np.log(11) + stats.dlaplace(0.5).logpmf(ZN - n) + stats.laplace(s, 5).logpdf(Z).sum()
        )

    return np.array([of_sums(n) - of_sums(100) + of_data(n) for n in SIZES])


@pytest.mark.parametrize("apart", [False, True])
def test_the_number_is_summed_over(apart):
    model = written(apart)
    on = remove_value_transforms(pm.do(dp.collapse(model, "statistics"), THETA))
    latents, name = np.array([0.4, -0.3, 0.2, 0.5, -0.8]), "x_y_sums_standard"
    logp = on.logp(vars=[on["z"]])
    density = pytensor.function([on.rvs_to_values[on[name]]], logp, mode=PLAIN_MODE)
    for at in (latents, -latents, 0 * latents):
        np.testing.assert_allclose(density(at), special.logsumexp(by_number(at)), rtol=1e-10)
    posterior = {k: np.full((1, 2_000), v) for k, v in THETA.items()}
    posterior[name] = np.tile(latents, (1, 2_000, 1))
    found = dp.recover(model, az.from_dict({"posterior": posterior}), random_seed=1)
    mass = special.softmax(by_number(latents))
    counts = np.bincount(found["posterior"]["n"].to_numpy().ravel() - 95, minlength=11)
    np.testing.assert_allclose(counts / 2_000, mass, atol=0.04)


@pytest.mark.parametrize(
    ("of", "says"),
    [
        (lambda n, x, y: [x.mean()], "'z' of the rows x, y, of unknown number 'n'"),
        (lambda n, x, y: [x.sum() / n], "'z' of the rows x, y, of unknown number 'n'"),
        (lambda n, x, y: [x @ x**2], "'z' of the rows x, y, of unknown number 'n'"),
    ],
)
def test_what_is_no_sum_is_refused_by_name(of, says):
    with pm.Model() as model:
        n = pm.DiscreteUniform("n", 95, 105)
        x = pm.Normal("x", pm.Normal("m"), 1.2, shape=n)
        y = pm.Normal("y", 0.5 * x, 1.0, shape=n)
        z = pt.stack([*of(n, x, y), y.sum()])
        dp.PrivateObservation("z", z, dp.LaplaceMechanism(5.0), observed=Z[:2])
    with pytest.raises(NotImplementedError, match=says):
        dp.collapse(model, "statistics")
