"""The notebooks run from top to bottom, and are kept without what they print."""

from __future__ import annotations

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
pytestmark = pytest.mark.skipif(not NOTEBOOKS.is_dir(), reason="the notebooks are not beside the tests")


def names():
    return sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))


@pytest.mark.parametrize("name", names())
def test_notebook(name, tmp_path):
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code), "clear its outputs"
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert all(cell.outputs or "import" in cell.source for cell in code), "a cell says nothing"


def test_the_analysis_shows_pictures(tmp_path):
    notebook = nbformat.read(NOTEBOOKS / "roofline_analysis.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    shown = [output for output in outputs if "image/svg+xml" in output.get("data", {})]
    assert len(shown) == 3
    printed = "".join(output.get("text", "") for output in outputs)
    assert "Ridge" not in printed and "prompts of 209 tokens and more are compute-bound" in printed
