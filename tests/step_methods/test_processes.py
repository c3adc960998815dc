"""Chains in processes that start from nothing: steps reach them as pickles."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import numpy as np
import pymc as pm
import pymc_dp as dp


def main():
    with pm.Model():
        mu, p = pm.Normal("mu"), pm.Beta("p", 1, 1)
        x, w = pm.Normal("x", mu, 1, shape=20), pm.Exponential("w", 1.0, shape=5)
        c = pm.Binomial("c", 30, p)
        observed = pm.Data("observed", 0.3)
        dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(0.1), observed=observed)
        dp.PrivateObservation("v", w.sum(), dp.LaplaceMechanism(0.5), observed=4.0)
        dp.PrivateObservation("y", c, dp.LaplaceMechanism(1.0), observed=12)
        steps = [dp.RecordMetropolis([x, w]), dp.CountGibbs([c, p]), dp.ConjugateGibbs([mu])]

        def draws(**kwargs):
            found = pm.sample(
                20, tune=20, chains=2, step=steps, random_seed=1, progressbar=False, quiet=True,
                compute_convergence_checks=False, **kwargs,
            ).posterior
            return np.concatenate([np.ravel(found[n]) for n in ("mu", "x", "w", "c", "p")])

        here = draws(cores=1)
        for context in ("spawn", "forkserver"):
            np.testing.assert_array_equal(draws(cores=2, mp_ctx=context), here)


if __name__ == "__main__":
    main()
"""


@pytest.mark.nightly
def test_spawned_chains_are_those_of_this_process(tmp_path):
    script = tmp_path / "sample.py"
    script.write_text(SCRIPT)
    root = Path(__file__).parents[2]
    found = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, cwd=root, timeout=600,
        env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-3000:]
