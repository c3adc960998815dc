"""Rates of counts that are integrated out, against sums over the counts."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy.stats import dlaplace, gamma, nbinom

import pymc_dp as dp
from pymc_dp.graphs.declined import Declined
from pymc_dp.reading.model import Reading
from pymc_dp.routes.mixed_counts import mixed
from tests.agreement import has_moments
from tests.chains import QUIET

NAME = "steps in one loop, rates integrated out"
Z, EXPOSURE = np.array([-3, 2, 19, 7]), np.array([0.5, 1.0, 4.0, 1e-3])


def counts(rate, mean=None, *, shape=4):
    y = pm.Poisson("y", rate if mean is None else mean(rate), shape=shape)
    z = Z if shape == 4 else np.zeros(shape)
    dp.PrivateObservation("z", y, dp.GeometricMechanism(1.5), observed=z)


def by_quadrature():
    """Return means of b, of the rates and of their squares: a grid of b, and sums over counts."""
    b, x = np.linspace(1e-3, 25.0, 4_000), np.arange(400)
    nb = nbinom.logpmf(x, 0.7, (b / (b + EXPOSURE[:, None]))[..., None])  # entry, b, count
    joint = nb + dlaplace.logpmf(Z[:, None, None] - x, 1 / 1.5)
    entries = np.logaddexp.reduce(joint, axis=2)
    log_b = gamma.logpdf(b, 2.0) + entries.sum(axis=0)
    weight = np.exp(log_b - log_b.max())
    weight /= weight.sum()
    of_x = np.exp(joint - entries[..., None])
    shape, rate = 0.7 + x, (b + EXPOSURE[:, None])[..., None]
    first = (of_x * shape / rate).sum(axis=2) @ weight
    second = (of_x * shape * (shape + 1) / rate**2).sum(axis=2) @ weight
    return b @ weight, first, second


def test_the_posterior_is_that_of_sums_over_the_counts(caplog):
    with pm.Model(coords={"area": list("abcd")}) as model:
        b = pm.Gamma("b", 2, 1)
        counts(pm.Gamma("rate", 0.7, b, dims="area"), lambda rate: EXPOSURE * rate)
    caplog.set_level("INFO", logger="pymc.dp")
    tree = dp.sample(model, draws=4_000, tune=500, chains=2, random_seed=1, **QUIET)
    assert f"Route: {NAME}" in caplog.text
    posterior = tree["posterior"]
    assert list(posterior.data_vars) == ["b", "rate"]
    assert posterior["rate"].dims == ("chain", "draw", "area")
    of_b, first, second = by_quadrature()
    has_moments(posterior["b"], of_b)
    has_moments(posterior["rate"], first, np.sqrt(second - first**2))


def test_only_what_is_asked_for_is_shown():
    with pm.Model() as model:
        counts(pm.Gamma("rate", 2, pm.Gamma("b", 2, 1), shape=4))
    few = {"draws": 4, "tune": 4, "chains": 2, "random_seed": 1} | QUIET
    tree = dp.sample(model, **few)
    assert tree["posterior"]["rate"].dims == ("chain", "draw", "rate_dim_0")
    again = dp.sample(model, var_names=["rate"], **few)["posterior"]
    assert list(again.data_vars) == ["rate"]
    np.testing.assert_array_equal(again["rate"], tree["posterior"]["rate"])  # of the same seed


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (lambda rate: counts(rate, lambda r: r[::-1]), "have no rate each"),
        (lambda rate: counts(rate, lambda r: r.sum()), "have no rate each"),
        (lambda rate: counts(rate, lambda r: r[:, None], shape=(4, 4)), "have no rate each"),
        (lambda rate: counts(rate, lambda r: r + 1.0), "not proportional to 'rate'"),
        (lambda rate: counts(rate, lambda r: r**2), "not proportional to 'rate'"),
        (lambda rate: (counts(rate), pm.Deterministic("sum", rate.sum())), "'sum' is computed"),
        (lambda rate: (counts(rate), pm.Normal("w", rate, 1)), "nothing else"),
        (lambda rate: (counts(rate), pm.Potential("w", -rate.sum())), "nothing else"),
        (lambda rate: pm.Poisson("y", rate, observed=[1, 2, 3, 4]), "'y' are not released"),
    ],
)
def test_other_rates_stay(write, why):
    with pm.Model() as model:
        write(pm.Gamma("rate", 2, pm.Gamma("b", 2, 1), shape=4))
    with pytest.raises(Declined, match=why):
        mixed(Reading(model))


def test_logarithms_of_rates_and_exposures_are_read():
    with pm.Model() as model:
        exposure = pm.Data("exposure", EXPOSURE)
        counts(
            pm.Gamma("rate", 2, 3, shape=4), lambda rate: pt.exp(pt.log(exposure) + pt.log(rate))
        )
    [of_mixed, names] = mixed(Reading(model))
    assert names == ["rate"]
    _, n, p = (x.eval() for x in of_mixed.model["y"].owner.inputs[1:4])
    np.testing.assert_allclose(n, 2)
    np.testing.assert_allclose(p, 3 / (3 + EXPOSURE))
