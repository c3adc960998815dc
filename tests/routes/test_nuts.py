"""Routes of NUTS."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.raise_op import Assert

import pymc_dp as dp


@pytest.mark.compiled
@pytest.mark.parametrize("sampler", ["nutpie", "pymc"])
def test_what_raises_loses_no_draws(caplog, sampler):
    """A Deterministic that raises at a draw would end either sampler, and all draws with it."""
    if sampler == "nutpie":
        pytest.importorskip("nutpie")
    with pm.Model() as model:
        mu = pm.Normal("mu")
        x = pm.Normal("x", mu, 1.0, shape=50)
        pm.Deterministic("refused", Assert("mu is negative")(mu, mu > 0.2))
        pm.Deterministic("outside", pt.arange(2.0)[pt.floor(mu * 9).astype("int64")])
        pm.Deterministic("holds", Assert("mu is far away")(2 * mu, abs(mu) < 99.0))
        dp.PrivateObservation("z", x.sum(), dp.LaplaceMechanism(scale=2.0), observed=12.0)
    few = {"draws": 100, "tune": 200, "chains": 2, "nuts_sampler": sampler}
    posterior = dp.sample(model=model, random_seed=1, progressbar=False, **few)["posterior"]
    assert {*posterior.data_vars} == {"mu", "holds"}
    np.testing.assert_array_equal(posterior["holds"], 2 * posterior["mu"])
    for missing in ("'refused'. mu is negative", "'outside'"):
        assert f"Missing in the result: {missing}" in caplog.text
