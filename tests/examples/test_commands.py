"""What the commands print and draw.

By day, models that take long to compile have draws from the prior in the place of a sampler; all
else of them runs. By night they sample, here or in tests of their own.
"""

from importlib import import_module

import numpy as np
import pymc as pm
import pytest
from matplotlib.image import imread
from pymc.testing import mock_sample

import pymc_dp as dp
from pymc_dp.graphs.questions import nearest_rvs
from pymc_dp.reading.model import written_length

# Arguments, pictures, and some of what is printed.
COMMANDS = {
    "ab_test": ("--draws 20", ["ab_test"], ["visitors A", "P(B better)", "ignored", "modelled"]),
    "blood_lead": (
        "--draws 100 --seed 7",
        ["feasible_region", "posterior_predictive", "side_by_side"],
        ["confidential", "naive", "ours, bounds", "34.30", "288.32", "R-hat", "sible"],
    ),
    "census": (
        "--tracts 80 --draws 4",
        ["census"],
        ["80 tracts in 8 counties", "State totals hold in every draw: True"],
    ),
    "cirrhosis": (
        "--splits 1 --draws 200",
        ["coverage", "densities", "lines"],
        ["12.23", "Laplace noise of scale 5 on each", "ours, bounds"],
    ),
    "clamped_regression": ("--method none --draws 100", [], ["records (exact)", "-2.6480"]),
    "factorization": (
        "--iterations 20 --draws 20",
        ["divergence", "hidden_counts"],
        ["Root mean square error"],
    ),
    "glm": ("--study logistic --people 30 --draws 20", ["glm"], ["Logistic", "Median and 90%"]),
    "hospitals": ("--hospitals 6 --draws 20", ["hospitals"], ["6 hospitals", "no pooling"]),
    "naive_bayes": ("--method none --draws 100", [], ["table (exact)", "0.7679"]),
    "opendp_releases": ("--draws 20 --epsilon 30", ["posteriors"], ["mean off by (sd)", "R-hat"]),
}
BY_NIGHT = ["ab_test", "cirrhosis", "clamped_regression", "naive_bayes"]
MOCKED = [*BY_NIGHT, "glm", "hospitals", "opendp_releases"]


def run(name, tmp_path, capsys):
    arguments, pictures, words = COMMANDS[name]
    output = tmp_path / "pictures"
    to = ["--output", str(output)] if pictures else []
    import_module(f"pymc_dp.examples.{name}").main([*arguments.split(), *to])
    printed = capsys.readouterr().out
    assert printed.count("\n") > 5
    assert name == "census" or "…" not in printed  # no table is cut; census shows its progress
    assert not {word for word in [*words, *pictures] if word not in printed}
    assert sorted(path.stem for path in output.glob("*.png")) == pictures
    for path in output.glob("*.png"):
        image = imread(path)
        assert min(image.shape[:2]) > 300
        assert image[..., :3].std() > 0.05  # something was drawn


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.nightly) if name in BY_NIGHT else name
        for name in COMMANDS
        if name in BY_NIGHT or name not in MOCKED
    ],
)
def test_command(name, tmp_path, capsys):
    run(name, tmp_path, capsys)


@pytest.mark.filterwarnings("ignore")  # what draws of a prior look like is no news
@pytest.mark.parametrize("name", MOCKED)
def test_all_but_the_sampling(name, tmp_path, monkeypatch, capsys):
    if name == "opendp_releases":
        pytest.importorskip("opendp", reason="needs the extra [opendp]")
    models = []

    def prior(model=None, *, draws, **kwargs):
        model = pm.modelcontext(model)
        models.append(model)
        # Records of which the number varies have no draws that make up one array.
        lengths = {v: written_length(v) for v in model.free_RVs}
        varying = {v for v, n in lengths.items() if n is not None and nearest_rvs([n])}
        names = [v.name for v in model.unobserved_RVs if v not in varying]
        return mock_sample(draws=draws, model=model, var_names=names, random_seed=1)

    monkeypatch.setattr(dp, "sample", prior)
    monkeypatch.setattr(pm, "sample", prior)
    run(name, tmp_path, capsys)
    assert any(dp.reading.model.releases(model) for model in models)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("method", ["sppe", "sple"])
@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("clamped_regression", -np.inf, np.inf), ("naive_bayes", 0, 1)],
)
@pytest.mark.nightly
def test_neural(name, low, high, method, capsys):
    pytest.importorskip("sbi")
    size = ["--rounds", "1", "--simulations", "100", "--draws", "50"]
    found = import_module(f"pymc_dp.examples.{name}").main(["--method", method, *size])
    assert all(np.all((low < x) & (x < high)) for x in found[method].values())
    assert method in capsys.readouterr().out
