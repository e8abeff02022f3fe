"""Progress bars in a notebook: seen while they run, and gone from what is stored."""

from __future__ import annotations

import os

import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from brrcrl_lib.base.devices import no_bars, track
from brrcrl_lib.base.files import ROOT

BARS = """\
from brrcrl_lib.base.devices import track
print("before")
for outer in track(range(3), desc="outer", mininterval=0):
    for inner in track(range(2), desc="inner", mininterval=0):
        pass
print("after")
"""


class Watching(NotebookClient):
    """Remembers every state of every output, by cell."""

    def process_message(self, msg, cell, cell_index):
        self.seen[cell_index].append(msg)
        return super().process_message(msg, cell, cell_index)


@pytest.fixture(scope="module")
def cells() -> list[tuple[list[dict], list[dict]]]:
    """Of bars where nobody watches, and in a person's session: what the cell leaves, and every message on the way."""
    person = "import os\nos.environ['JPY_SESSION_NAME'] = 'a notebook'\n"
    client = Watching(new_notebook(cells=[new_code_cell(BARS), new_code_cell(person + BARS)]), timeout=60)
    client.kernel_name, client.seen = "python3", ([], [])
    quiet = {key: value for key, value in os.environ.items() if key != "BRRCRL_QUIET"}
    client.execute(env={**quiet, "PYTHONPATH": str(ROOT)})
    return [(cell.outputs, seen) for cell, seen in zip(client.nb.cells, client.seen, strict=True)]


def test_where_nobody_watches_there_is_no_bar(cells) -> None:
    left, _ = cells[0]
    assert [output["output_type"] for output in left] == ["stream"]


def test_a_persons_bar_is_shown_and_leaves_nothing(cells) -> None:
    left, seen = cells[1]
    shown = [str(message["content"].get("data", {}).get("text/plain", "")) for message in seen]
    assert any("outer" in text and "%" in text for text in shown) and any("inner" in text for text in shown)
    assert "".join(output.get("text", "") for output in left) == "before\nafter\n"
    assert all(output["data"] == {} for output in left if output["output_type"] == "display_data")
    assert {output["output_type"] for output in left} == {"stream", "display_data"}
    assert all(output.get("name") != "stderr" for output in left)


def test_outside_of_notebooks_a_bar_goes_to_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("BRRCRL_QUIET", raising=False)
    assert list(track(range(3), desc="counting")) == [0, 1, 2]
    assert "counting" in capsys.readouterr().err
    with no_bars():
        assert list(track(range(3), desc="counting")) == [0, 1, 2]
    assert capsys.readouterr().err == ""
