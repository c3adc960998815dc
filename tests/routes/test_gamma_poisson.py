"""Rates of counts that are integrated out, against sums over the counts."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy.special import poch
from scipy.stats import dlaplace, gamma, laplace, nbinom

import pymc_dp as dp
from pymc_dp.graphs.declined import Declined
from pymc_dp.reading.model import Reading
from pymc_dp.routes.gamma_poisson import marginalized
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
        rate = pm.Gamma("rate", 0.7, b, dims="area")
        counts(rate, lambda rate: pm.Deterministic("mean", EXPOSURE * rate, dims="area"))
        pm.Deterministic("ranked", rate.argsort() + 0 * b)
    caplog.set_level("INFO", logger="pymc.dp")
    tree = dp.sample(model, draws=4_000, tune=500, chains=2, random_seed=1, **QUIET)
    assert f"Route: {NAME}" in caplog.text
    posterior = tree["posterior"]
    assert list(posterior.data_vars) == ["b", "rate", "mean", "ranked"]
    assert posterior["rate"].dims == posterior["mean"].dims == ("chain", "draw", "area")
    np.testing.assert_allclose(posterior["mean"], EXPOSURE * posterior["rate"])
    np.testing.assert_array_equal(posterior["ranked"], np.argsort(posterior["rate"], axis=-1))
    of_b, first, second = by_quadrature()
    has_moments(posterior["b"], of_b)
    has_moments(posterior["rate"], first, np.sqrt(second - first**2))


def test_a_table_with_exposures_that_change():
    """Each rate has a law of its own: a sum over counts."""
    b, z = np.array([[0.5], [3.0]]), np.array([[0, 9, -4], [30, 1, 2]])
    x = np.arange(300)
    with pm.Model() as model:
        exposure = pm.Data("exposure", np.ones((2, 3)))
        y = pm.Poisson("y", exposure * pm.Gamma("rate", 1.5, b, shape=(2, 3)), shape=(2, 3))
        dp.PrivateObservation("z", y, dp.GeometricMechanism(2.0), observed=z)
    for c in (np.ones((2, 3)), np.array([[0.0, 2.0, 0.1], [5.0, 0.0, 1.0]])):
        pm.set_data({"exposure": c}, model=model)
        tree = dp.sample(model, draws=2_000, tune=200, chains=2, random_seed=1, **QUIET)
        beta = b + c
        mass = nbinom.pmf(x, 1.5, (b / beta)[..., None]) * dlaplace.pmf(z[..., None] - x, 0.5)
        mean = (mass * (1.5 + x)).sum(axis=-1) / mass.sum(axis=-1) / beta
        has_moments(tree["posterior"]["rate"], mean)


def test_of_two_rates_of_a_count_one_is_integrated_out():
    """y ~ Poisson(r s): a grid of s, and sums over counts given r integrated out."""
    with pm.Model() as model:
        r, s = (pm.Gamma(name, shape, 2.0, shape=2) for name, shape in (("r", 3.0), ("s", 4.0)))
        y = pm.Poisson("y", r * s, shape=2)
        dp.PrivateObservation("z", y, dp.GeometricMechanism(1.5), observed=[1, 12])
    _, rates = marginalized(Reading(model))
    assert rates == [model["r"]]
    tree = dp.sample(model, draws=6_000, tune=500, chains=2, random_seed=1, **QUIET)
    s, x = np.linspace(1e-3, 15, 2_000)[:, None], np.arange(200)
    for k, z in enumerate((1, 12)):
        mass = nbinom.pmf(x, 3.0, 2.0 / (2.0 + s)) * dlaplace.pmf(z - x, 1 / 1.5)
        weight = mass * gamma.pdf(s, 4.0, scale=0.5)
        of_s, of_r = (weight * s).sum() / weight.sum(), weight * (3.0 + x) / (2.0 + s)
        has_moments(tree["posterior"]["s"][..., k], of_s)
        has_moments(tree["posterior"]["r"][..., k], of_r.sum() / weight.sum())


def test_a_deterministic_of_rates_that_are_records():
    """The shape is random: r | c ~ Gamma(a + c, 1.7), a sum over counts and a grid of a."""
    matrix, z = np.array([[1.0, 1.0], [1.0, 0.0]]), np.array([3.0, 4.0])
    with pm.Model() as model:
        a = pm.Exponential("a", 1.0)
        r = pm.Gamma("r", a, 0.7, shape=2)
        pm.Deterministic("d", pt.sqrt(r).sum())
        pm.Deterministic("e", a + 1)
        y = pm.Poisson("y", r)
        dp.PrivateObservation("z", matrix @ y, dp.LaplaceMechanism(1.5), observed=z)
    tree = dp.sample(model, draws=2_000, tune=300, chains=2, random_seed=1, **QUIET)
    x = np.stack(np.meshgrid(np.arange(40), np.arange(40)), -1).reshape(-1, 2)
    given, at = (
        laplace.logpdf(z, x @ matrix.T, 1.5).sum(axis=1),
        -np.log1p(-np.arange(0.005, 1, 0.01)),
    )
    weight = np.exp(given + nbinom.logpmf(x, at[:, None, None], 0.7 / 1.7).sum(axis=2))
    d = (poch(at[:, None, None] + x, 0.5) / np.sqrt(1.7)).sum(axis=2)  # E log r is infinite
    has_moments(tree["posterior"]["d"], (weight * d).sum() / weight.sum())
    np.testing.assert_allclose(tree["posterior"]["e"], tree["posterior"]["a"] + 1)


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
        (
            lambda rate: counts(rate, lambda r: r[::-1]),
            "something else than a function of each value",
        ),
        (
            lambda rate: counts(rate, lambda r: r.sum()),
            "something else than a function of each value",
        ),
        (lambda rate: counts(rate, lambda r: r[:, None], shape=(4, 4)), "have no rate each"),
        (lambda rate: counts(rate, lambda r: r + 1.0), "not proportional to 'rate'"),
        (lambda rate: counts(rate, lambda r: r**2), "not proportional to 'rate'"),
        (lambda rate: (counts(rate), pm.Normal("w", rate, 1)), "nothing else"),
        (lambda rate: (counts(rate), pm.Potential("w", -rate.sum())), "nothing else"),
        (lambda rate: pm.Poisson("y", rate, observed=[1, 2, 3, 4]), "'y' are not released"),
    ],
)
def test_other_rates_stay(write, why):
    with pm.Model() as model:
        write(pm.Gamma("rate", 2, pm.Gamma("b", 2, 1), shape=4))
    with pytest.raises(Declined, match=why):
        marginalized(Reading(model))


def test_logarithms_of_rates_and_exposures_are_read():
    with pm.Model() as model:
        exposure = pm.Data("exposure", EXPOSURE)
        counts(
            pm.Gamma("rate", 2, 3, shape=4), lambda rate: pt.exp(pt.log(exposure) + pt.log(rate))
        )
    sampled, rates = marginalized(Reading(model))
    assert rates == [model["rate"]]
    _, n, p = (x.eval() for x in sampled.model["y"].owner.inputs[1:4])
    np.testing.assert_allclose(n, 2)
    np.testing.assert_allclose(p, 3 / (3 + EXPOSURE))
