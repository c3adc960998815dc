"""What holds for whole-number noise, by the two mechanisms that add it."""

import numpy as np
import pymc as pm
import pytest

import pymc_dp as dp
from pymc_dp.mechanisms import DiscreteGaussianMechanism, GeometricMechanism
from tests.mechanisms.noise import PYTHON, assert_law_of_draws, evaluate

CONTINUOUS = {
    GeometricMechanism(2.0): r"dp\.LaplaceMechanism",
    DiscreteGaussianMechanism(2.0): r"dp\.GaussianMechanism",
}


def cases(scales, sigmas):
    mechanisms = [*map(GeometricMechanism, scales), *map(DiscreteGaussianMechanism, sigmas)]
    return pytest.mark.parametrize("mechanism", mechanisms, ids=repr)


@cases([1e-3, 0.02, 0.3, 1.0, 7.5, 1e3, 1e9], [1e-3, 0.3, 2.0, 77.7, 1e6])
def test_icdf_is_the_least_value(mechanism):
    p = np.array([1e-300, 1e-9, 0.01, 0.3, 0.4999, 0.5, 0.5001, 0.75, 1 - 1e-9])
    for s in (5, -5):
        z = mechanism.icdf(p, s)
        at, before, values = evaluate(mechanism.logcdf(z, s), mechanism.logcdf(z - 1, s), z)
        assert np.all(values == np.round(values))
        assert np.all(at >= np.log(p) * (1 + 1e-14) - 1e-15)
        assert np.all(before < np.log(p))
    ends = evaluate(mechanism.icdf([0.0, 1.0, -0.1, 1.1, np.nan]))
    np.testing.assert_array_equal(ends, [-np.inf, np.inf, np.nan, np.nan, np.nan])


@cases([1e-3, 0.4, 3.0, 500.0, 1e9], [1e-3, 0.6, 0.9999, 1.0, 4.5, 300.0, 1e6])
@pytest.mark.compiled
def test_draws(mechanism):
    draws = pm.draw(mechanism.dist(np.full(40_000, -3)), random_seed=5)
    assert draws.dtype == "int64"
    edges = np.unique(evaluate(mechanism.icdf(np.linspace(0.005, 0.995, 31), -3)))
    assert_law_of_draws(draws, edges, np.exp(evaluate(mechanism.logcdf(edges, -3))))
    if float(mechanism.parameters[0]) == 1e9:
        assert len(np.unique(draws % 2)) == 2


@pytest.mark.parametrize(("mechanism", "instead"), CONTINUOUS.items(), ids=repr)
def test_draws_need_a_whole_statistic(mechanism, instead):
    with pytest.raises(AssertionError, match=f"whole number.*{instead}"):
        pm.draw(mechanism.dist([1.0, 2.5]), mode=PYTHON)


@pytest.mark.parametrize(
    ("mechanism", "expected"),
    [
        (GeometricMechanism(2.0), 3 * np.log(np.tanh(0.25)) - (1 + 2 + 0) / 2),
        (
            DiscreteGaussianMechanism(2.0),
            -5 / 8 - 3 * np.log(np.exp(-(np.arange(-60, 61) ** 2) / 8).sum()),
        ),
    ],
)
def test_model(mechanism, expected):
    counts = np.array([3, 0, 7])
    for observed in ([4, -2, 7], [4.0, -2.0, 7.0], np.array([4, -2, 7]), None):
        with pm.Model() as model:
            x = pm.Poisson("x", 4.0, shape=3)
            published = pm.Data("published", [4.0, -2.0, 7.0]) if observed is None else observed
            z = dp.PrivateObservation("z", x, mechanism, observed=published)
        assert z.dtype == "int64"
        logp = model.compile_logp(vars=[z])({**model.initial_point(), "x": counts})
        np.testing.assert_allclose(logp, expected, rtol=1e-13)
    with model:
        prior = pm.sample_prior_predictive(20, random_seed=1)
    assert prior.prior_predictive["z"].dtype == "int64"


@pytest.mark.parametrize(("noise", "instead"), CONTINUOUS.items(), ids=repr)
def test_what_is_not_a_whole_number_is_refused(noise, instead):
    def refused(mechanism, observed, match):
        with pm.Model() as model:
            x = pm.Poisson("x", 4.0, shape=np.shape(observed))
            with pytest.raises(ValueError, match=match):
                dp.PrivateObservation("z", x, mechanism, observed=observed)
        assert "z" not in model.named_vars

    name = type(noise).__name__
    message = (
        rf"'z': {name}\(\w+=2.0\) cannot publish 3\.4 at index 2: {name} releases whole numbers: "
        f"use {instead} for a release with continuous noise"
    )
    refused(noise, [3.0, 1.0, 3.4], message)
    refused(noise, 3.4, r"cannot publish 3\.4: ")
    refused(noise, [[1, 2], [0.5, 3]], r"cannot publish 0\.5 at index \(1, 0\)")
    refused(noise, [2.0**53, 2.0**53 + 2], r"at index 1: .*at most 2\*\*53")
    refused(noise, -1e300, r"at most 2\*\*53")
    # A post-processed release is refused for the noise, or else for the post-processing.
    refused(noise.clipped(lower=0), 3.4, f"whole numbers: use {instead}")
    refused(noise.clipped(lower=0), 2.0**54, r"at most 2\*\*53")
    refused(noise.clipped(lower=0), -1, "limits, thresholds, digits")
    refused(noise.rounded(-1), 14, "limits, thresholds, digits")
    refused(noise.rounded(0), 3.4, f"whole numbers: use {instead}")
