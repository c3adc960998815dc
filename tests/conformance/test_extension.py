"""Another package adds a mechanism, a law, a step, a route, a reader: no file of ours changes."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "extension"


def test_another_package_is_found(tmp_path):
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", tmp_path, FOLDER], check=True)
    # A process of its own: what it registers is none of the package's.
    known = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    subprocess.run([sys.executable, FOLDER / "check.py"], env=known, cwd=ROOT, check=True)


def test_the_page_is_its_code():
    page = (ROOT / "docs" / "extending.md").read_text()
    blocks = set(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    files = {f.read_text() for f in FOLDER.glob("dp_acme/*.py") if f.name != "__init__.py"}
    assert blocks == files
