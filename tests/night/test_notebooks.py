"""Every notebook runs from its committed text to the end."""

from pathlib import Path

import jupytext
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.md"))


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.nightly
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path, monkeypatch):
    # Where a reader has it: some notebooks import worked examples.
    monkeypatch.setenv("PYTHONPATH", str(path.parents[1] / "docs" / "examples"))
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
