"""Alternative text, films and verdicts: what nbconvert makes of them."""

from __future__ import annotations

import os
from pathlib import Path

import matplotlib.pyplot as plt
import nbconvert
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from brrcrl_lib.base.files import ROOT
from brrcrl_lib.study.figures import showing

CELLS = """\
import matplotlib.pyplot as plt
from pathlib import Path
from brrcrl_lib.study.figures.showing import clip, show_verdict
from brrcrl_lib.tools.notebooks import NotebookRun
run = NotebookRun("00_x", "recorded", "cpu", {})
for title in ('a "finding"', ""):
    figure, axis = plt.subplots()
    axis.set_title(title)
    run.save_figure(figure, "fig00_x")
    plt.show()
show_verdict("It **holds**:\\nyes.")
Path("x.gif").write_bytes(b"GIF89a")
clip(Path("x.gif"), "two < three")
"""


def test_a_figure_in_words() -> None:
    figure, (left, right) = plt.subplots(1, 2)
    assert showing.alt_text(figure, "fig00") == "fig00"
    left.set_title("one\n side", loc="left")
    right.set_title("the other")
    assert showing.alt_text(figure) == "one side; the other"
    figure.suptitle("finding")
    assert showing.alt_text(figure) == "finding; one side; the other"
    plt.close("all")


def test_static_pages_have_alternative_texts_films_and_verdicts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notebook = new_notebook(cells=[new_code_cell(CELLS)])
    client = NotebookClient(notebook, timeout=60, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    client.execute(env={**os.environ, "PYTHONPATH": str(ROOT)})
    pictures = [output for output in notebook.cells[0].outputs if "image/png" in output.get("data", {})]
    assert [output.metadata["image/png"]["alt"] for output in pictures] == ['a "finding"', "fig00_x"]
    assert all(output.data["text/plain"].startswith("<Figure size") for output in pictures)  # as ever, for nbval
    page, _ = nbconvert.HTMLExporter(template_name="classic").from_notebook_node(notebook)
    assert "Alternative text is missing" not in caplog.text and "No description" not in page
    assert "data:image/gif;base64,R0lGODlh" in page and "two &lt; three" in page
    assert "<blockquote>" in page and "<strong>holds</strong>" in page
