"""Notebooks run from top to bottom and are committed with small, current outputs."""

from __future__ import annotations

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


def texts(notebook):
    """What a reader sees as text, cell by cell; pictures are left out, for they differ by font and library."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "stream":
                found.append(output.text)
            elif "text/html" in output.get("data", {}):
                found.append(output.data["text/html"])
            elif "image/png" not in output.get("data", {}):
                found.append(output.data.get("text/plain", ""))
    return found


def executed(path):
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": path.parent}}
    )
    client.execute()
    for cell in notebook.cells:
        cell.metadata.clear()
        for output in cell.get("outputs", ()):
            if len(output.get("data", {})) > 1:
                output.data.pop("text/plain", None)
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return notebook


def test_there_is_a_first_notebook():
    assert [path.name for path in NOTEBOOKS][:1] == ["01_first_plan.ipynb"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_runs_and_shows_what_is_committed(path, updating):
    committed = nbformat.read(path, as_version=4)
    fresh = executed(path)
    assert all(cell.execution_count for cell in fresh.cells if cell.cell_type == "code")
    if updating:
        nbformat.write(fresh, path)
        committed = fresh
    assert texts(fresh) == texts(committed), "outputs changed; if this is meant: make docs"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_is_small_and_valid(path):
    assert path.stat().st_size < 300_000
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert sum(cell.cell_type == "markdown" for cell in notebook.cells) >= 4
