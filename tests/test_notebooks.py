"""Every notebook runs from its committed text to the end."""

import re
from pathlib import Path

import jupytext
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.md"))
# What takes ten minutes by night trains for seconds by day: every cell runs, the numbers are noise.
SHORTER = {
    "06_simulator_only": {
        r"last_epochs=\d+": "last_epochs=2, max_epochs=2",
        r"\bsimulations=\d+": "simulations=200",
        r'"simulations": \d+': '"simulations": 100',
        r"draws=\d+, tune=\d+": "draws=50, tune=50",
    }
}


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path):
    text = path.read_text()
    for pattern, replacement in SHORTER.get(path.stem, {}).items():
        text, count = re.subn(pattern, replacement, text)
        assert count, f"{path.stem} has no {pattern}"
    run(jupytext.reads(text, fmt="md"), tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("name", SHORTER)
def test_notebook_runs_in_full(name, tmp_path):
    [path] = [path for path in NOTEBOOKS if path.stem == name]
    run(jupytext.read(path), tmp_path)


def run(notebook, folder):
    client = NotebookClient(
        notebook,
        timeout=600,  # seconds for one cell: a first run compiles everything, and networks train
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )

    client.execute()  # raises CellExecutionError, with the cell and its traceback

    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert all(cell.execution_count for cell in code)
    errors = [out for cell in code for out in cell.outputs if out.output_type == "error"]
    assert not errors
