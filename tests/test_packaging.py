"""What is written twice for a release says the same: versions, and what is needed."""

import re
import tomllib
from pathlib import Path
from runpy import run_path

import pytest

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
BUILD = PYPROJECT["build-system"]["requires"]


def first(pattern, file):
    """Return what the pattern's group is at its first place in a file."""
    return re.search(pattern, (ROOT / file).read_text(), re.MULTILINE)[1]


def recipe(section):
    """Return the packages of a section of the recipe as pyproject.toml writes them."""
    lines = first(rf"^  {section}:\n((?:    - .+\n)+)", "conda/recipe.yaml")
    # conda-forge's matplotlib brings Qt, too.
    lines = lines.replace("matplotlib-base", "matplotlib").splitlines()
    return [line.strip(" -").replace(" ", "") for line in lines]


@pytest.mark.parametrize(
    ("pattern", "file"),
    [
        (r"^version: (.+)$", "CITATION.cff"),
        (r'^  version: "(.+)"$', "conda/recipe.yaml"),
        (r'^fallback-version = "(.+)\.dev0"$', "pyproject.toml"),
    ],
)
def test_version_is_the_changelogs(pattern, file):
    assert first(pattern, file) == first(r"^## \[(.+)\] - ", "CHANGELOG.md")


@pytest.mark.parametrize(
    ("section", "needed"),
    [
        ("run", ["python" + PROJECT["requires-python"], *PROJECT["dependencies"]]),
        ("host", ["python" + PROJECT["requires-python"], "pip", *BUILD]),
    ],
)
def test_recipe_needs_what_the_package_needs(section, needed):
    assert sorted(recipe(section)) == sorted(needed)


def test_run_py_installs_with_what_builds():
    assert PYPROJECT["dependency-groups"]["build"] == BUILD
    locked = re.findall(r"^([\w-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert {re.split("[<>=]", need)[0] for need in BUILD} <= set(locked)


def test_a_change_in_a_plugin_runs_what_can_see_it():
    run = run_path(str(ROOT / "run.py"))
    seeing = run["seeing"]
    suites = ["tests/conformance", "tests/fuzz"]
    assert seeing(["pymc_dp/plugins/reports/law.py"]) == [*suites, "tests/plugins/reports"]
    found = seeing(["pymc_dp/plugins/inversion/kernels/line.py", "README.md"])
    sizes = ["tests/plugins/inversion", "tests/plugins/unknown_sizes"]
    assert found == [*suites, *sizes, "tests/test_docs.py"]
    for name in ("pymc_dp/sampling.py", "pymc_dp/plugins/__init__.py", "tests/models.py"):
        assert seeing([name, "pymc_dp/plugins/reports/law.py"]) == ["tests"]
    assert seeing(["conda/recipe.yaml"]) == []
