"""Noise of a whole vector: its density over space, its draws, and the models that take it."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from scipy import integrate, special, stats

import pymc_dp as dp
from pymc_dp.graphs.values import PLAIN_MODE, plain_function
from tests.mechanisms.noise import assert_law_of_draws, evaluate

BETA = 0.4


@pytest.mark.parametrize("d", [1, 2, 3, 7])
def test_density_adds_up_to_one(d):
    """Over shells: all points of a shell have one density."""
    r = np.linspace(0.0, 150.0, 200_001)
    points = np.zeros((r.size, d))
    points[:, d // 2] = r
    density = np.exp(evaluate(dp.SphericalLaplace(BETA).logp(points + 3.0, np.full(d, 3.0))))
    shell = 2 * np.pi ** (d / 2) / special.gamma(d / 2) * r ** (d - 1)
    np.testing.assert_allclose(integrate.simpson(shell * density, x=r), 1.0, rtol=1e-9)
    turned, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(d, d)))
    np.testing.assert_allclose(
        evaluate(dp.SphericalLaplace(BETA).logp(points[::20_000] @ turned, np.zeros(d))),
        np.log(density[::20_000]),
        atol=1e-9,
    )


def test_one_entry_is_laplace():
    z = np.array([[1.0], [-3.0], [0.0]])
    found = evaluate(dp.SphericalLaplace(BETA).logp(z, [0.5]))
    np.testing.assert_allclose(found, stats.laplace(0.5, 1 / BETA).logpdf(z[:, 0]), rtol=1e-12)


def test_draws_have_the_law():
    mechanism = dp.SphericalLaplace(np.array([0.4, 2.0]))  # of two rows
    s = np.array([[5.0, -1.0, 2.0], [0.0, 0.0, 0.0]])
    draws = pm.draw(mechanism.dist(s), 4_000, random_seed=1, mode=PLAIN_MODE) - s
    for k, beta in enumerate((0.4, 2.0)):
        length = np.linalg.norm(draws[:, k], axis=-1)
        edges = stats.gamma(3, scale=1 / beta).ppf(np.arange(0.1, 1, 0.1))
        assert_law_of_draws(length, edges, np.arange(0.1, 1, 0.1))
        # By Archimedes' theorem each coordinate of a direction in space is uniform.
        for i in range(3):
            assert_law_of_draws(
                draws[:, k, i] / length, np.arange(-0.8, 0.9, 0.2), np.arange(0.1, 1, 0.1)
            )
    logp = evaluate(mechanism.logp(s + draws[0], s))
    one = [evaluate(dp.SphericalLaplace(b).logp(draws[0, k], np.zeros(3))) for k, b in
           enumerate((0.4, 2.0))]  # fmt: skip
    np.testing.assert_allclose(logp, one, rtol=1e-12)


def test_slope_at_the_release_is_finite():
    s = pt.dvector("s")
    logp = dp.SphericalLaplace(BETA).logp([1.0, 2.0], s)
    slope = plain_function([s], pytensor.grad(logp, s))
    np.testing.assert_array_equal(slope(np.array([1.0, 2.0])), 0.0)
    np.testing.assert_allclose(slope(np.array([4.0, 6.0])), [-0.24, -0.32], rtol=1e-12)


def test_privacy_loss():
    mechanism = dp.SphericalLaplace.from_epsilon(1.5, sensitivity=3.0)
    np.testing.assert_allclose(mechanism.epsilon(3.0), 1.5)
    far, near = evaluate(
        mechanism.logp([90.0, 120.0], [0.0, 0.0]), mechanism.logp([90.0, 120.0], [1.8, 2.4])
    )
    np.testing.assert_allclose(near - far, 1.5, rtol=1e-9)  # along its direction


def test_what_is_refused():
    with pytest.raises(ValueError, match="finite and > 0"):
        dp.SphericalLaplace(0.0)
    with pytest.raises(TypeError, match="makes one release of all its statistic"):
        dp.SphericalLaplace(1.0).rounded()
    with pm.Model():
        x = pm.Normal("x", 0, 1, shape=(5, 2))
        noise = dp.SphericalLaplace(1.0)
        with pytest.raises(ValueError, match="makes one release of several entries"):
            dp.PrivateObservation("z", x.mean(), noise, observed=0.3)
        with pytest.raises(ValueError, match=r"give one release of all entries of the statistic$"):
            dp.PrivateObservation("z", x.mean(0), noise, observed=[0.3, 1.0, 2.0])
        with pytest.raises(ValueError, match="integrated out entry by entry"):
            dp.PrivateObservation("z", pm.Normal.dist(0, 1, shape=2), noise, observed=[0.3, 1.0])


def test_release_in_a_model():
    """The log density of the model, and a file."""
    release = dp.Release([0.4, -0.7], dp.SphericalLaplace(2.0))
    again = dp.Release.from_json(release.to_json())
    assert repr(again.mechanism) == "SphericalLaplace(beta=2.0)"
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, shape=(5, 2))
        dp.PrivateObservation("z", x.sum(axis=0), again)
    at = np.random.default_rng(2).normal(size=(5, 2))
    length = np.linalg.norm(at.sum(0) - [0.4, -0.7])
    expected = np.log(2.0**2 / (2 * np.pi)) - 2.0 * length
    value = model.rvs_to_values[model["x"]]
    found = plain_function([value], model.logp(model["z"]))(at)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
