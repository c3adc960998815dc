"""Centred Gaussian vectors behind noisy counts are named, with what to write instead."""

import logging

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_dp as dp
from pymc_dp.reading.model import Reading
from pymc_dp.routes.latent_gaussian import centred, unnormalised
from tests.models import posterior

N = 6
GRID = np.abs(np.subtract.outer(range(N), range(N))) == 1  # areas along a line


def walk(s):
    return pm.GaussianRandomWalk("w", sigma=s, init_dist=pm.Normal.dist(3, 1), shape=N)


def areas(s):
    return pm.Normal("u", pm.Normal("level"), s, shape=N)


def notes(latent, *, value=20, noise=None, law=pm.Poisson, released=lambda y: y, s=None):
    """Return what `dp.explain` says of counts with the latent vector for log rates."""
    with pm.Model() as model:
        y = law("y", pt.exp(latent(pm.HalfNormal("s") if s is None else s)), shape=N)
        z = np.broadcast_to(value, N) if released(y).type.ndim else value
        dp.PrivateObservation("z", released(y), noise or dp.GeometricMechanism(2.0), observed=z)
    return dp.explain(model).notes


@pytest.mark.parametrize(
    ("latent", "name", "instead"),
    [(walk, "w", "w = start + s * pt.cumsum(raw)"), (areas, "u", "u = mean + s * raw")],
)
def test_a_centred_vector_is_named_with_what_to_write(latent, name, instead):
    [note] = notes(latent)
    assert note.startswith(f"'{name}' is centred: drawn around its free spread, of 's'.")
    assert instead in note
    assert f"of about {np.sqrt(20 + 2 * 2.0**2) / 20:.2g};" in note


@pytest.mark.parametrize(
    ("noise", "variance"),
    [(dp.LaplaceMechanism(3.0), 18.0), (dp.DiscreteGaussianMechanism(4.0), 16.0)],
)
def test_the_error_of_a_count_is_its_own_and_that_of_the_noise(noise, variance):
    [note] = notes(areas, noise=noise)
    assert f"of about {np.sqrt(20 + variance) / 20:.2g};" in note


def test_a_mean_spread_of_several_variables_and_other_laws_of_counts():
    def two(s):
        return pm.Normal("u", 0, pt.sqrt(s**2 + pm.HalfNormal("t") ** 2), shape=N)

    [note] = notes(two, law=lambda name, mu, shape: pm.NegativeBinomial(name, mu, 5, shape=shape))
    assert "of 's' and 't'" in note
    assert "u = mean + spread * raw" in note


@pytest.mark.parametrize(
    "other",
    [
        {"latent": lambda s: s * pm.Normal("raw", shape=N)},  # not centred
        {"latent": areas, "s": 0.3},
        {"latent": areas, "value": 100_000},  # each says enough of its own rate
        {"latent": areas, "released": lambda y: y.sum()},
        {"latent": lambda s: pm.Normal("u", 0, s, shape=2)[np.arange(N) % 2]},
    ],
)
def test_nothing_is_said_of_other_vectors(other):
    assert notes(**other) == []


def icar():
    with pm.Model() as model:
        u = pm.ICAR("u", W=GRID.astype(int), sigma=pm.HalfNormal("s"))
        y = pm.Poisson("y", pt.exp(3 + u), shape=N)
        dp.PrivateObservation("z", y, dp.GeometricMechanism(2.0), observed=np.full(N, 20))
    return model


def test_icar_with_a_free_sigma_is_a_wrong_density():
    # Where PyMC's density has the factor, this note has to go.
    at_zero = [pm.logp(pm.ICAR.dist(W=GRID.astype(int), sigma=s), np.zeros(N)) for s in (1.0, 2.0)]
    np.testing.assert_allclose(*(logp.eval() for logp in at_zero))
    [note] = unnormalised(Reading(icar()))
    assert note.startswith("'u': the density of pm.ICAR lacks its factor sigma**-(n - 1)")
    assert "u = sigma * pm.ICAR('u_raw', W=W)" in note
    assert centred(Reading(icar())) == []
    assert dp.explain(icar()).notes == [note]


def test_sample_says_it_of_chains_that_have_not_mixed(caplog, monkeypatch):
    with pm.Model() as model:
        y = pm.Poisson("y", pt.exp(walk(pm.HalfNormal("s"))), shape=N)
        dp.PrivateObservation("z", y, dp.GeometricMechanism(2.0), observed=np.full(N, 20))
    stuck = posterior(400, s=1.0)
    stuck["posterior"]["s"] += np.linspace(0, 1, 200)  # it drifts
    monkeypatch.setattr(pm, "sample", lambda **_: stuck)
    with caplog.at_level(logging.WARNING):
        dp.sample(model)
    [note] = centred(Reading(model))
    assert note in caplog.text


def test_sample_warns_of_a_wrong_density(caplog):
    with caplog.at_level(logging.WARNING), pytest.raises(ValueError, match="no route"):
        dp.sample(icar(), rung="statistics")
    assert "the density of pm.ICAR lacks" in caplog.text
