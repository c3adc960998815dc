"""The hospitals example: what it samples, and what it shows."""

import numpy as np
import pytest

import pymc_dp as dp
from pymc_dp.examples import hospitals


def test_patients_are_integrated_out():
    study = hospitals.simulate(5, 1)
    collapsed = dp.collapse(hospitals.build(study, "private"))
    assert {v.name for v in collapsed.free_RVs} == {"mean", "between", "within", "offset"}
    assert "theta" in collapsed.named_vars


@pytest.mark.nightly
def test_modelling_the_noise_brings_the_estimates_nearer(tmp_path):
    study, fits = hospitals.main(["--draws", "300", "--output", str(tmp_path)])
    found = hospitals.intervals(study, fits)
    error = {name: np.abs(middle - study.truth).mean() for name, (_, middle, _) in found.items()}
    assert error["private"] < error["naive"] < error["no pooling"]
    low, _, high = found["private"]
    assert np.mean((low < study.truth) & (study.truth < high)) > 0.8
    between = fits["private"]["posterior"]["between"].to_numpy()
    assert np.quantile(between, 0.01) < hospitals.BETWEEN < np.quantile(between, 0.99)
