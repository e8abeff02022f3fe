"""Every notebook in JupyterLab, as `make lab` opens it: run whole, every control moved, saved and reopened."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import nbformat
import pytest
from lab_page import LabPage
from nbformat.v4 import new_code_cell, new_notebook

from brrcrl_lib.base.files import ROOT, sha256
from brrcrl_lib.tools.notebooks import GUARD, KERNEL, NOTEBOOKS, all_notebooks

QUICK = "03"
"""What `make test` takes: the quickest notebook with controls. `make test-browser` takes all."""
CHOSEN = [
    pytest.param(path, id=path.stem, marks=[] if path.stem[:2] == QUICK else pytest.mark.thorough)
    for path in all_notebooks()
]


def tracked_files() -> dict[Path, str]:
    return {path: sha256(path) for folder in (NOTEBOOKS, ROOT / "figures") for path in folder.glob("*.*")}


def cells_with_controls(path: Path) -> int:
    """Cells that always show controls: those in a branch do where there are rows to choose from."""
    return sum(bool(re.search(r"^explore\w*\(", cell.source, re.M)) for cell in nbformat.read(path, as_version=4).cells)


@pytest.mark.parametrize("path", CHOSEN)
def test_a_notebook_runs_and_its_controls_work(lab: LabPage, path: Path) -> None:
    before = tracked_files()
    lab.open(path.stem)
    lab.run_all()
    assert lab.problems() == []
    outputs = list(lab.outputs_with_controls())
    assert len(outputs) >= cells_with_controls(path)
    idle = [control for output in outputs for control in lab.idle_controls(output)]
    assert idle == [], "controls that change nothing"
    assert lab.problems() == []

    pictures = lab.pictures()
    lab.save()
    lab.reload()
    lab.await_pictures(pictures)
    assert lab.problems() == [], "after a reload with a living kernel"
    lab.end_kernels()
    lab.reload()
    lab.await_pictures(pictures)
    assert lab.problems() == [], "after reopening without the kernel"
    assert tracked_files() == before, "a file of the kit has changed"


# -- what is wrong is noticed ------------------------------------------------------------------------------------------

PLAIN = """\
from ipywidgets import Button, Dropdown, IntSlider, interact
from IPython.display import display, Javascript
interact(lambda good: print(good), good=IntSlider(3))
"""
IDLE = """\
interact(lambda slider: print("always the same"), slider=IntSlider(3))
interact(lambda menu: print(min(menu, 2)), menu=Dropdown(options=[1, 2, 3]))
display(Button(description="press"))
"""


def write(folder: Path, name: str, *sources: str) -> str:
    notebook = new_notebook(cells=[new_code_cell(source) for source in sources])
    notebook.metadata["kernelspec"] = KERNEL
    nbformat.write(notebook, folder / f"{name}.ipynb")
    return name


@pytest.mark.thorough
def test_what_is_wrong_is_noticed(lab: LabPage) -> None:
    lab.open(write(lab.folder, "idle", PLAIN, IDLE))
    lab.run_all()
    assert lab.problems() == []
    good, idle = lab.outputs_with_controls()
    assert lab.idle_controls(good) == []
    assert lab.idle_controls(idle) == ["slider", "menu", "press"]
    lab.end_kernels()

    lab.open(write(lab.folder, "wrong", PLAIN, "display(Javascript(\"console.error('oh')\"))", "1 / 0", "print('on')"))
    lab.run_all()
    error, complaint = lab.problems()
    assert "division by zero" in error and complaint == "console: oh"


BARE = """\
import sys

sys.modules["brrcrl_lib"] = None  # as where it is not installed
from ipykernel.kernelapp import launch_new_instance

launch_new_instance()
"""


@pytest.mark.thorough
def test_a_wrong_kernel_gets_one_sentence(lab: LabPage) -> None:
    spec = {
        "argv": [sys.executable, "-c", BARE, "-f", "{connection_file}"],
        "display_name": "Bare",
        "language": "python",
    }
    path = lab.folder.parent / "data" / "kernels" / "bare" / "kernel.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(spec))
    notebook = nbformat.read(NOTEBOOKS / "00_start_here.ipynb", as_version=4)
    notebook.metadata.kernelspec = {"name": "bare", "display_name": "Bare", "language": "python"}
    nbformat.write(notebook, lab.folder / "elsewhere.ipynb")
    lab.open("elsewhere", kernel="Bare")
    lab.run_all()
    (error,) = lab.problems()
    assert error.strip().endswith(GUARD.split('"')[-2])
