"""The reader of diffprivlib, against what the library itself holds and draws."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pymc_dp as dp

DATA = Path(__file__).parents[1] / "data"
SCRIPT = DATA / "diffprivlib_cases.py"
MADE = json.loads((DATA / "diffprivlib.json").read_text())
CASES = MADE["cases"]
IDS = [f"{i}-{case['class']}" for i, case in enumerate(CASES)]


def stand_in(name, **attributes):
    """Return an object with the class name and the attributes of diffprivlib's."""
    return type(name, (), attributes)()


def read(case):
    value = case["statistic"]
    if case["class"] == "Binary":
        value = case["attributes"][f"value{int(value)}"]
    return dp.Release.from_diffprivlib(stand_in(case["class"], **case["attributes"]), value)


def follows(release, case):
    """Whether the library's draws have the law that was read."""
    share, n = np.array(case["share_up_to"]), case["draws"]
    cdf = np.exp(release.mechanism.logcdf(np.array(case["at"]), case["statistic"]).eval())
    return np.all(np.abs(share - cdf) < 4.5 * np.sqrt(np.maximum(cdf * (1 - cdf), 1 / n) / n))


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_law_loss_and_value(case):
    release, own = read(case), case["attributes"]
    assert follows(release, case)
    if case["class"] == "Uniform":
        assert release.privacy is None  # all of the loss is in delta
        return
    assert release.privacy.epsilon == own["epsilon"]
    assert release.privacy.delta == (own.get("delta") or None)
    assert release.privacy.measure == ("approximate" if own.get("delta") else "pure")
    assert release.value == case["statistic"]
    assert release.source == f"diffprivlib {case['class']}"


def test_one_law_a_class():
    kinds = {case["class"]: type(read(case).mechanism) for case in CASES}
    clipped = dp.LaplaceMechanism(1.0).clipped(0, 1)
    assert kinds == {
        "Laplace": dp.LaplaceMechanism,
        "LaplaceTruncated": type(clipped),
        "Geometric": dp.GeometricMechanism,
        "GeometricTruncated": type(clipped),
        "Gaussian": dp.GaussianMechanism,
        "GaussianAnalytic": dp.GaussianMechanism,
        "GaussianDiscrete": dp.DiscreteGaussianMechanism,
        "LaplaceFolded": dp.FoldedLaplaceMechanism,
        "LaplaceBoundedDomain": dp.BoundedLaplaceMechanism,
        "Uniform": dp.UniformMechanism,
        "Staircase": dp.StaircaseMechanism,
        "Snapping": dp.SnappingMechanism,
        "Binary": dp.RandomizedResponse,
    }


@pytest.mark.parametrize(("epsilon", "loss"), [(2.0, 2.0 - 2.0 * np.log(1.5)), (0.5, 0.25)])
def test_vectors_are_read_as_the_noise_of_a_gradient(epsilon, loss):
    """It is divided by n; where regularisation is too weak, half of epsilon is left."""
    own = {"function_sensitivity": 0.25, "data_sensitivity": 2.0, "alpha": 1.0, "n": 50}
    vector = stand_in("Vector", epsilon=epsilon, **own)
    release = dp.Release.from_diffprivlib(vector, [0.1, -0.2, 0.3])
    assert isinstance(release.mechanism, dp.SphericalLaplace)
    np.testing.assert_allclose(release.mechanism.beta.eval(), 50 * loss / 4.0)


@pytest.mark.parametrize("case", MADE["tools"], ids=lambda case: f"{case['tool']}")
def test_tools_by_name(case):
    said = case["arguments"] | ({} if case["tool"] == "histogram" else {"n": 8})
    value = [case["statistic"]] * (2 if case["tool"] == "histogram" else 1)
    release = dp.Release.from_diffprivlib(case["tool"], value, **said)
    assert follows(release, case)
    assert release.source == f"diffprivlib tools.{case['tool']}"


def test_scale_of_the_bounded_domain_is_the_one_it_draws_with():
    case = next(c for c in CASES if c["class"] == "LaplaceBoundedDomain")
    found = read(case).mechanism.scale.eval()
    np.testing.assert_allclose(found, case["attributes"]["_scale"], rtol=1e-12)


def test_an_axis_splits_epsilon():
    release = dp.Release.from_diffprivlib("mean", [1.0, 2.0], epsilon=1.0, bounds=(0, 4), n=10)
    assert release.mechanism.inner.scale.eval() == 0.8


@pytest.mark.parametrize(
    ("name", "arguments", "match"),
    [
        ("std", {}, "read dp.Release.from_diffprivlib.*value..2"),
        ("median", {}, "needs bounds="),
        ("quantile", {"bounds": (0, 1)}, "quantile needs .*quant="),
        ("cumsum", {}, "cumsum is not read: .*What is read: mean, var"),
        ("mean", {"n": 3}, "needs bounds="),
        ("sum", {"bounds": (0, 1)}, "sum needs bounds=.*and n="),
        ("histogram", {"density": True}, "release the counts"),
    ],
)
def test_tools_that_are_refused(name, arguments, match):
    with pytest.raises(ValueError, match=match):
        dp.Release.from_diffprivlib(name, 1.0, epsilon=1.0, **arguments)


def test_labels_become_positions():
    chance = {("A", "A"): 1.0, ("B", "B"): 1.0, ("A", "B"): 0.5, ("B", "A"): 0.25}
    said = {"epsilon": 1.0, "_domain_values": ["A", "B"], "_get_prob": lambda self, *z: chance[z]}
    release = dp.Release.from_diffprivlib(stand_in("ExponentialCategorical", **said), ["B", "A"])
    assert release.value.tolist() == [1, 0]
    np.testing.assert_allclose(release.mechanism.matrix, [[2 / 3, 1 / 3], [0.2, 0.8]])


@pytest.mark.parametrize("name", ["Exponential", "PermuteAndFlip"])
def test_selections(name):
    said = {"epsilon": 1.0, "sensitivity": 0.5, "monotonic": False, "candidates": ["x", "y"]}
    release = dp.Release.from_diffprivlib(stand_in(name, **said, measure=None), "y")
    assert release.value == 1
    law = dp.ExponentialMechanism(1.0) if name == "Exponential" else dp.NoisyMax("exponential", 1.0)
    assert repr(release.mechanism) == repr(law)


def test_analytic_gaussian_agrees_with_ours():
    case = next(c for c in CASES if c["class"] == "GaussianAnalytic")
    own = {k: case["attributes"][k] for k in ("epsilon", "delta", "sensitivity")}
    ours = dp.GaussianMechanism.from_epsilon_delta(**own)
    found = read(case).mechanism.sigma.eval()
    np.testing.assert_allclose(found, ours.sigma.eval(), rtol=1e-7)


def test_binary_with_delta():
    mechanism = stand_in("Binary", epsilon=1.0, delta=0.2, value0="a", value1="b")
    release = dp.Release.from_diffprivlib(mechanism, ["b", "a"])
    truth = (np.e + 0.2) / (np.e + 1)
    np.testing.assert_allclose(release.mechanism.truth_probability.eval(), truth)
    assert release.value.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("mechanism", "match"),
    [
        (stand_in("GeometricFolded", epsilon=1.0), "is not read: its whole .* What is read: Lap"),
        (stand_in("Vector", epsilon=1.0), "not that of diffprivlib 0.6 .*function_sensitivity"),
        (stand_in("Laplace", epsilon=1.0, delta=0.0, sensitivity=0.0), "finite and > 0, got 0"),
        (stand_in("Laplace", epsilon=np.inf, delta=0.0, sensitivity=1.0), "finite and > 0, got 0"),
        (stand_in("Gaussian", epsilon=1.0, delta=0.1), "not that of diffprivlib 0.6 .*_scale"),
        (stand_in("Binary", epsilon=1.0, value0="a", value1="b"), "1.0 is none of 'a', 'b'"),
    ],
)
def test_refusals(mechanism, match):
    with pytest.raises(ValueError, match=match):
        dp.Release.from_diffprivlib(mechanism, 1.0)


@pytest.mark.nightly
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the old scikit-learn has no wheels")
def test_the_library_still_says_so(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    python = tmp_path / ("Scripts" if os.name == "nt" else "bin") / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "diffprivlib==0.6.6", "scikit-learn<1.6"], check=True
    )
    done = subprocess.run([python, SCRIPT], check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == MADE
