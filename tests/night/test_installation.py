"""The wheel, in an environment of its own: what a user gets who installs no extras."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_SECONDS = 3.0  # of a processor, for `import pymc_dp` beside `import pymc`

IMPORT = """
import json, sys, time
import pymc
before, start = set(sys.modules), time.process_time()
import pymc_dp
seconds = time.process_time() - start
print(json.dumps([seconds, sorted({name.split(".")[0] for name in set(sys.modules) - before})]))
"""

pytestmark = pytest.mark.nightly


def pip(*arguments):
    subprocess.run([sys.executable, "-m", "pip", *map(str, arguments)], check=True)


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Make an environment with the pinned packages of the run time and the wheel."""
    folder = tmp_path_factory.mktemp("installation")
    pip("wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder / "wheels", ROOT)
    [wheel] = (folder / "wheels").iterdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    found = folder / "venv" / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    install = ("--python", found, "install", "-q", "--no-deps")
    pip(*install, "-r", ROOT / "requirements.lock", wheel)
    pip("--python", found, "check")  # the lock has every dependency
    return found


def run(python, code, folder):
    """Run code outside of the tree; -I keeps this process' paths out."""
    command = [python, "-I", "-c", code]
    known = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_")}
    done = subprocess.run(
        command, cwd=folder, env=known, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def test_neither_torch_nor_opendp_is_installed(python, tmp_path):
    names = ("torch", "sbi", "opendp", "pytest")
    code = f"from importlib.util import find_spec as f; print(any(map(f, {names})))"
    assert run(python, code, tmp_path).split() == ["False"]


def test_import_is_light(python, tmp_path):
    found = [json.loads(run(python, IMPORT, tmp_path)) for _ in range(3)]
    assert not {"matplotlib", "joblib", "distributed", "torch"} & set(found[0][1])
    assert min(seconds for seconds, _ in found) <= MOST_SECONDS


def test_every_block_of_the_readme_runs(python, tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    assert blocks
    # No script: a process that starts another way than by a fork would run it again.
    run(python, "\n".join(blocks), tmp_path)
