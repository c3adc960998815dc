"""The core does without any plugin: each is deleted from a copy of the package."""

import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from runpy import run_path

import pytest

import pymc_dp as dp
from pymc_dp import laws
from pymc_dp.laws.sum_law import LAWS
from pymc_dp.plugins import PUBLIC

ROOT = Path(__file__).parents[2]
PLUGINS = ROOT / "pymc_dp" / "plugins"
NAMES = sorted(path.parent.name for path in PLUGINS.glob("*/__init__.py"))
USERS = run_path(str(ROOT / "run.py"))["USERS"]  # plugins that import another one

# README's model, and what the core says of models that some plugin is for.
MODEL = """
import sys
import numpy as np, pymc as pm, pytensor.tensor as pt, pymc_dp as dp
assert dp.__file__.startswith(sys.argv[1]), dp.__file__
with pm.Model() as readme:
    mu, sigma = pm.Normal("mu", 30, 20), pm.HalfNormal("sigma", 20)
    lead = pm.Normal("lead", mu, sigma, shape=43)
    noise = dp.LaplaceMechanism.from_epsilon([0.25, 0.25], sensitivity=[100 / 43, 100**2 / 43])
    dp.PrivateObservation("z", [lead.mean(), lead.var(ddof=1)], noise, observed=[34.3, 2224.8])
with pm.Model() as clamped:
    x = pm.LogNormal("x", pm.Normal("m", 0, 1), 1.0, shape=50)
    dp.PrivateObservation("z", x.clip(0, 5).sum(), dp.LaplaceMechanism(5.0), observed=80.0)
with pm.Model() as rows:
    s2 = pm.InverseGamma("s2", 3, 1)
    x = pm.Normal("x", 0, 1, shape=50)
    y = pm.Normal("y", pm.Normal("b", 0, pt.sqrt(s2)) * x, pt.sqrt(s2), shape=50)
    dp.PrivateObservation("z", [(x * y).sum()], dp.LaplaceMechanism(5.0), observed=[8.0])
with pm.Model() as counts:
    n = pm.Poisson("n", pm.Gamma("rate", 2, 0.1))
    x = pm.Bernoulli("x", pm.Beta("p", 1, 1), shape=n)
    dp.PrivateObservation("z", x.sum(), dp.GeometricMechanism(2.0), observed=8)
said = [str(dp.explain(model)) for model in (readme, clamped, rows, counts)]
assert "fused Gibbs" in said[0], said[0]
if sys.argv[2] == "sample":
    idata = dp.sample(readme, draws=200, tune=200, random_seed=1, progressbar=False)
    assert idata["posterior"].attrs["route"] == "fused Gibbs"
    assert 25 < float(idata["posterior"]["mu"].mean()) < 45
"""


def without(name: str, tmp_path: Path) -> dict[str, str]:
    """Copy the package without a plugin, and return the environment in which it is imported."""
    gone = [name, *USERS.get(name, ())]

    def ignore(folder, names):
        return [n for n in names if n in gone and Path(folder) == PLUGINS]

    shutil.copytree(ROOT / "pymc_dp", tmp_path / "pymc_dp", ignore=ignore)
    return os.environ | {"PYTHONPATH": str(tmp_path)}


def test_every_plugin_says_what_it_is():
    """Its first lines are what it reads, its law, what it costs, where that is from."""
    for name in NAMES:
        lines = (PLUGINS / name / "__init__.py").read_text().split('"""')[1].splitlines()
        assert [line.split()[0] for line in lines[2:6]] == ["Reads", "Law", "Costs", "Source"], name


@pytest.mark.parametrize("name", NAMES)
def test_the_core_explains_without(name, tmp_path):
    run = [sys.executable, "-c", MODEL, str(tmp_path), "explain"]
    subprocess.run(run, env=without(name, tmp_path), cwd=tmp_path, check=True)


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_the_core_samples_and_conforms_without(name, tmp_path):
    known = without(name, tmp_path)
    shutil.copytree(ROOT / "tests", tmp_path / "tests")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    run = [sys.executable, "-c", MODEL, str(tmp_path), "sample"]
    subprocess.run(run, env=known, cwd=tmp_path, check=True)
    suites = [f"tests/conformance/test_{of}.py" for of in ("mechanisms", "laws", "conjugacy")]
    run = [sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", *suites]
    subprocess.run(run, env=known, cwd=tmp_path, check=True)


def test_names_of_plugins():
    assert set(PUBLIC) <= set(dp.__all__)
    for name in ("ReportMatrix", "RandomizedResponse"):
        assert getattr(dp.mechanisms, name).__name__ == name
    for module, name in ((dp.mechanisms, "regression_sensitivity"), (dp, "Typo")):
        with pytest.raises(AttributeError, match=f"{module.__name__} has no '{name}'"):
            getattr(module, name)


def test_laws_of_a_plugin_are_where_one_looks():
    for _, law in LAWS:
        _, package, *_, module = law.__module__.split(".")
        if package == "plugins":
            assert module in ("law", "columns", "rows", "counted_rows", "ratios"), law


def test_the_list_of_abilities_is_what_there_is():
    rows = re.findall(r"^`([\w., `]+)`  ", laws.__doc__, re.MULTILINE)
    names = [name for row in rows for name in row.split("`, `")]
    assert len(names) == 12
    for name in names:
        *module, ability = ["pymc_dp", "laws", *name.split(".")]
        assert hasattr(import_module(".".join(module)), ability), name


def test_mechanisms_of_plugins_are_found_beside_the_others():
    mechanisms = import_module("pymc_dp.mechanisms")
    assert mechanisms.StudentTMechanism is dp.StudentTMechanism
    for wrong in ("FactorizationGibbs", "StudentMechanism"):
        with pytest.raises(AttributeError, match=f"pymc_dp.mechanisms has no '{wrong}'"):
            getattr(mechanisms, wrong)
