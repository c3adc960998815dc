"""What `import pymc_dp` brings along, and what comes when it is asked for."""

import subprocess
import sys

# In processes of their own: this one has imported everything.
LIGHT = """
import sys, pymc
before = set(sys.modules)
import pymc_dp as dp
heavy = {"matplotlib", "joblib", "distributed", "nutpie", "torch", "jaxlib"}
heavy &= set(sys.modules) - before
assert not heavy, heavy
from pymc_dp.graphs.registry import Registry
additions = Registry.additions
assert {"neural", "studies", "plot_release", "plot_privacy"} <= set(dir(dp))
from pymc_dp import neural
assert neural is dp.neural and "torch" not in sys.modules
assert dp.studies.coverage
assert dp.plot_privacy is dp.studies.plot_privacy is dp.studies.plot_privacy_utility
assert callable(dp.plot_release)
assert Registry.additions == additions  # readings are kept
try:
    dp.nothing
except AttributeError as error:
    assert "nothing" in str(error)
"""

WITHOUT_TORCH = """
import sys, pymc as pm, pymc_dp as dp
dp.neural
sys.modules["torch"] = None
with pm.Model() as model:
    mu = pm.Normal("mu")
    x = pm.Normal("x", mu, shape=3)
    dp.PrivateObservation("z", x.mean(), dp.LaplaceMechanism(1.0), observed=1.0)
for function in (
    dp.neural.sppe,
    dp.neural.sple,
    lambda m: dp.sample(m, method="sppe"),
    lambda m: dp.neural.amortise(m, mechanism=lambda e: dp.LaplaceMechanism(1 / e), epsilon=(1, 2)),
    lambda m: dp.neural.compare(None, None),
):
    try:
        function(model)
    except ImportError as error:
        assert 'pip install "pymc-dp[neural]"' in str(error), error
    else:
        raise AssertionError("no error")
"""


def test_import_leaves_to_later_what_few_models_need():
    subprocess.run([sys.executable, "-c", LIGHT], check=True)


def test_neural_estimation_without_torch_says_how_to_install_it():
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH], check=True)
