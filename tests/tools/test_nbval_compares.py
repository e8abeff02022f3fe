"""The output check has teeth: nbval accepts what a notebook prints, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook, new_output


def write(path: Path, stored: str, tags: list[str]) -> None:
    """A notebook that prints 0.33 and whose stored output is `stored`."""
    cell = new_code_cell("print(f'{1 / 3:.2f}')", execution_count=1, metadata={"tags": tags})
    cell.outputs = [new_output("stream", name="stdout", text=f"{stored}\n")]
    nbformat.write(new_notebook(cells=[cell]), path)


def test_a_changed_number_fails_unless_that_cell_is_tagged(tmp_path: Path) -> None:
    write(tmp_path / "01_same.ipynb", "0.33", [])
    write(tmp_path / "02_changed.ipynb", "0.34", [])
    write(tmp_path / "03_tagged.ipynb", "0.34", ["nbval-ignore-output"])
    options = ["--nbval", "--nbval-current-env", "-rA", "-p", "no:cacheprovider"]
    result = subprocess.run([sys.executable, "-m", "pytest", *options], cwd=tmp_path, capture_output=True, text=True)
    outcomes = [line.split("::")[0] for line in result.stdout.splitlines() if line.startswith(("PASSED", "FAILED"))]
    assert sorted(outcomes) == ["FAILED 02_changed.ipynb", "PASSED 01_same.ipynb", "PASSED 03_tagged.ipynb"]
    assert result.returncode == 1 and "0.33" in result.stdout and "0.34" in result.stdout
