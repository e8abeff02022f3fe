"""The output check has teeth: nbval accepts what a notebook prints, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook, new_output


def printing(stored: str, *tags: str) -> NotebookNode:
    """A cell that prints 0.33 and whose stored output is `stored`."""
    cell = new_code_cell("print(f'{1 / 3:.2f}')", execution_count=1, metadata={"tags": list(tags)})
    cell.outputs = [new_output("stream", name="stdout", text=f"{stored}\n")]
    return cell


def test_a_changed_number_fails_unless_that_cell_is_tagged(tmp_path: Path) -> None:
    cells = [printing("0.33"), printing("0.34"), printing("0.34", "nbval-ignore-output")]
    nbformat.write(new_notebook(cells=cells), tmp_path / "01_cells.ipynb")
    options = ["--nbval", "--nbval-current-env", "-rA", "-p", "no:cacheprovider"]
    result = subprocess.run([sys.executable, "-m", "pytest", *options], cwd=tmp_path, capture_output=True, text=True)
    outcomes = [line.split(" - ")[0] for line in result.stdout.splitlines() if line.startswith(("PASSED", "FAILED"))]
    same, changed, tagged = (f"01_cells.ipynb::Cell {number}" for number in range(3))
    assert sorted(outcomes) == [f"FAILED {changed}", f"PASSED {same}", f"PASSED {tagged}"]
    assert result.returncode == 1 and "0.33" in result.stdout and "0.34" in result.stdout
