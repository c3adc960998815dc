"""ICAR effects of a free sigma are named, whose density is wrong in PyMC."""

import logging

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_dp as dp
from pymc_dp.reading.model import Reading
from pymc_dp.routes.latent_gaussian import unnormalised

N = 6
GRID = np.abs(np.subtract.outer(range(N), range(N))) == 1  # areas along a line


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
    assert dp.explain(icar(), details=True).notes == [note]


def test_sample_warns_of_a_wrong_density(caplog):
    with caplog.at_level(logging.WARNING), pytest.raises(ValueError, match="no route"):
        dp.sample(icar(), rung="statistics")
    assert "the density of pm.ICAR lacks" in caplog.text
