"""The strict runner: what it refuses before anything runs, and what it does when a notebook fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import nbformat
import papermill
import pytest
from command_line import call
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from brrcrl_lib.base.config import PRESETS
from brrcrl_lib.base.files import ROOT
from brrcrl_lib.cli import main
from brrcrl_lib.study.figures import style
from brrcrl_lib.tools import notebooks
from brrcrl_lib.tools.notebooks import (
    GUARD,
    ParameterError,
    find_notebooks,
    plan,
    refresh,
    run_notebooks,
    summary,
    tidy,
)

PARAMETERS = """\
preset: str = "recorded"  # one of recorded, smoke, laptop, released, paper: what to compute
delta: float = 0.1  # in (0, 1): share
episodes: int = 3  # in [1, 100]: how many
"""
DATASET = 'dataset: str = "brrcrl/hopper/medium-v0"  # a dataset id\n'


def write(path: Path, *sources: str, parameters: str = PARAMETERS) -> Path:
    """A notebook with a title, a parameters cell, and one code cell per source."""
    tagged = new_code_cell(parameters, metadata={"tags": ["parameters"]})
    title = new_markdown_cell(f"# {path.stem}\n\n**Question:** what does {path.stem} do?")
    notebook = new_notebook(cells=[title, tagged, *map(new_code_cell, sources)])
    tidy(notebook)
    nbformat.write(notebook, path)
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two tiny notebooks that leave a file behind when they run."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "no_datasets"))
    here = tmp_path / "notebooks"
    here.mkdir()
    touch = "from pathlib import Path\nPath('ran.txt').write_text(f'{preset} {delta} {episodes}')"
    write(here / "01_first.ipynb", touch)
    write(here / "02_second.ipynb", touch, parameters=PARAMETERS + DATASET)
    return here


# -- refusing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "given", "message"),
    [
        (None, {"detla": "0.2"}, "01_first: unknown parameter 'detla'; did you mean 'delta'?"),
        (None, {"delta": "high"}, "delta takes a float, for example 0.1; got 'high'"),
        (None, {"episodes": "2.5"}, "episodes takes an int, for example 3; got 2.5"),
        (None, {"delta": "0"}, "delta must lie in (0, 1), for example 0.1; got 0.0"),
        (None, {"delta": "1"}, "delta must lie in (0, 1)"),
        (None, {"delta": "1.5"}, "got 1.5"),
        (None, {"delta": "nan"}, "got nan"),
        ("smok", {}, "preset cannot be 'smok'; did you mean 'smoke'?"),
    ],
)
def test_a_wrong_request_is_refused(folder: Path, preset: str | None, given: dict[str, str], message: str) -> None:
    with pytest.raises(ParameterError) as caught:
        plan(find_notebooks(["01"], folder), preset, given)
    assert message in str(caught.value)


def test_a_missing_dataset_is_refused_by_default_and_by_name(folder: Path) -> None:
    with pytest.raises(ParameterError, match="02_second: no dataset 'brrcrl/hopper/medium-v0'"):
        plan(find_notebooks(["02"], folder), "smoke", {})
    with pytest.raises(ParameterError, match="no dataset 'mine/own-v0'"):
        plan(find_notebooks(["02"], folder), "smoke", {"dataset": "mine/own-v0"})


def test_one_wrong_notebook_refuses_the_whole_request_and_nothing_runs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notebooks, "find_notebooks", lambda wanted: find_notebooks(wanted, folder))
    with pytest.raises(SystemExit) as left:
        main(["notebooks", "run", "--preset", "smoke", "--out", str(tmp_path / "out")])
    assert left.value.code == 2
    assert "02_second: no dataset" in capsys.readouterr().err
    assert not (folder / "ran.txt").exists() and not (tmp_path / "out").exists()


def test_notebooks_are_found_by_number_name_and_file(folder: Path) -> None:
    first, second = folder / "01_first.ipynb", folder / "02_second.ipynb"
    assert find_notebooks([], folder) == [first, second]
    assert find_notebooks(["2", "01"], folder) == [second, first]
    assert find_notebooks(["01_first", "notebooks/02_second.ipynb"], folder) == [first, second]
    with pytest.raises(ParameterError, match=r"no notebook '02_secnd'; did you mean '02_second'\?"):
        find_notebooks(["02_secnd"], folder)
    with pytest.raises(ParameterError, match="no notebook '7'"):
        find_notebooks(["7"], folder)


# -- running -----------------------------------------------------------------------------------------------------


def test_a_failure_is_reported_and_the_next_notebook_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / "notebooks"
    here.mkdir()
    write(here / "01_breaks.ipynb", "x = 1", "# a comment\nprint(x / 0)", "print('never')")
    write(here / "02_works.ipynb", "print(preset, delta, episodes)")
    monkeypatch.setattr(notebooks, "find_notebooks", lambda wanted: find_notebooks(wanted, here))
    with pytest.raises(SystemExit) as left:
        main(["notebooks", "run", "--preset", "smoke", "-p", "delta", "0.25", "--out", str(tmp_path / "out")])
    assert left.value.code == 1
    printed = capsys.readouterr().out
    assert "[1/2] 01_breaks (smoke)" in printed and "01_breaks: cell" in printed
    table = printed[printed.index("notebook   ") :].splitlines()
    assert table[1].split()[:2] == ["01_breaks", "smoke"]
    assert table[1].endswith("failed in cell 4 `# a comment`: ZeroDivisionError: division by zero")
    assert table[2].split()[:2] == ["02_works", "smoke"] and table[2].endswith("ok")
    assert "1 of 2 failed" in table[-1]
    executed = nbformat.read(tmp_path / "out/smoke/02_works.ipynb", as_version=4)
    assert executed.cells[-1].outputs[0].text == "smoke 0.25 3\n"
    assert (tmp_path / "out/smoke/01_breaks.ipynb").exists()
    assert nbformat.read(here / "02_works.ipynb", as_version=4).cells[-1].outputs == []


def test_two_at_a_time_are_reported_in_order(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The first cannot end before the second has, and fails then."""
    sign = tmp_path / "second_is_done"
    wait = f"import time, pathlib\nwhile not pathlib.Path({str(sign)!r}).exists():\n    time.sleep(0.05)"
    first = write(tmp_path / "01_waits.ipynb", wait, "1 / 0")
    second = write(tmp_path / "02_signs.ipynb", f"open({str(sign)!r}, 'w').close()")
    outcomes = run_notebooks(plan([first, second], "smoke", {}), tmp_path / "out", jobs=2)
    assert [(outcome.notebook, outcome.status) for outcome in outcomes] == [("01_waits", "failed"), ("02_signs", "ok")]
    assert "cell 4 `1 / 0`: ZeroDivisionError" in outcomes[0].error
    said = capfd.readouterr().out
    order = ["[1/2] 01_waits (smoke)", "failed after", "[2/2] 02_signs (smoke)", "ok after"]
    assert [said.index(line) for line in order] == sorted(said.index(line) for line in order)
    assert all((tmp_path / "out/smoke" / path.name).exists() for path in (first, second))


def test_no_notebook_at_a_time_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("notebooks", "run", "02", "--jobs", 0) == 2
    assert capsys.readouterr().err == "brrcrl notebooks run: --jobs must be at least 1; got 0\n"


def test_a_killed_kernel_and_a_cell_over_time_are_failures_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebooks, "CELL_TIMEOUT", 3)
    dies = write(tmp_path / "01_dies.ipynb", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    hangs = write(tmp_path / "02_hangs.ipynb", "import time\ntime.sleep(100)")
    outcomes = run_notebooks(plan([dies, hangs], "smoke", {}), tmp_path / "out")
    assert [outcome.status for outcome in outcomes] == ["failed", "failed"]
    assert "DeadKernelError" in outcomes[0].error and "cell 3 `import os, signal`" in outcomes[0].error
    assert "Timeout" in outcomes[1].error and "cell 3 `import time`" in outcomes[1].error
    assert outcomes[1].seconds < 60 and "DeadKernelError" in summary(outcomes)


# -- plain papermill, and refreshing -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"detla": 0.2}, "unknown parameter 'detla'; did you mean 'delta'?"),
        ({"delta": 1.5, "preset": "smok"}, "delta must lie in (0, 1), for example 0.1; got 1.5"),
        ({"delta": 0.5, "preset": "smoke"}, None),
    ],
)
def test_plain_papermill_is_checked_by_the_cell_after_the_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, object], message: str | None
) -> None:
    monkeypatch.setenv("BRRCRL_NOTEBOOKS", str(tmp_path))
    begin = 'from brrcrl_lib.tools.notebooks import begin\nrun = begin("05_plain", globals())'
    path = write(tmp_path / "05_plain.ipynb", begin, "print('body', run.preset, run.smoke, run.parameters['delta'])")
    out = tmp_path / "out.ipynb"
    if message is None:
        papermill.execute_notebook(path, out, given, progress_bar=False)
        assert nbformat.read(out, as_version=4).cells[-1].outputs[0].text == "body smoke True 0.5\n"
    else:
        with pytest.raises(papermill.PapermillExecutionError) as caught:
            papermill.execute_notebook(path, out, given, progress_bar=False)
        assert caught.value.ename == "ParameterError" and message in caught.value.evalue
        assert nbformat.read(out, as_version=4).cells[-1].outputs == []


FIGURE = """\
import matplotlib.pyplot as plt
from brrcrl_lib.tools.notebooks import NotebookRun
run = NotebookRun("05_plain", preset, "cpu", {})
figure = plt.figure()
run.save_figure(figure, "fig03_gains")
(run.figures / "film12_pong.gif").write_text(str(delta))
"""


def test_a_users_run_changes_no_figure_of_the_kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kit = {path: path.stat().st_mtime_ns for path in (ROOT / "figures").iterdir()}
    monkeypatch.setenv("BRRCRL_NOTEBOOKS", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("BRRCRL_FIGURES")
    runs = f"from pathlib import Path\nfrom brrcrl_lib.study.figures import style\nstyle.ROOT = Path({str(tmp_path)!r})"
    path = write(tmp_path / "05_plain.ipynb", runs, FIGURE)
    papermill.execute_notebook(path, tmp_path / "out.ipynb", {"delta": 0.2}, progress_bar=False)
    written = sorted(path.name for path in (tmp_path / "runs/figures/recorded").iterdir())
    assert written == ["fig03_gains.png", "film12_pong.gif"]
    assert {path: path.stat().st_mtime_ns for path in (ROOT / "figures").iterdir()} == kit


def test_the_pictures_of_each_preset_have_a_folder_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BRRCRL_FIGURES")
    assert {style.figures_of(preset) for preset in PRESETS} == {ROOT / "runs/figures" / preset for preset in PRESETS}


def test_refresh_writes_figures_of_the_kit_and_an_explicit_folder_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRRCRL_NOTEBOOKS", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(style, "FIGURES", tmp_path / "kit_figures")
    path = write(tmp_path / "05_plain.ipynb", FIGURE)
    monkeypatch.setenv("BRRCRL_FIGURES", str(tmp_path / "mine"))
    refresh(path)
    assert (tmp_path / "mine/fig03_gains.png").exists() and not (tmp_path / "kit_figures").exists()
    monkeypatch.delenv("BRRCRL_FIGURES")
    refresh(path)
    assert (tmp_path / "kit_figures/fig03_gains.png").exists()


def test_a_kernel_without_the_kit_says_which_one_to_choose(tmp_path: Path) -> None:
    (tmp_path / "cell.py").write_text(GUARD + "from brrcrl_lib.tools.notebooks import begin\n")
    alone = [sys.executable, "-S", "-I", "cell.py"]  # an interpreter with nothing installed
    result = subprocess.run(alone, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("AssertionError: Wrong kernel: choose Kernel > Change Kernel")


def test_refresh_stores_outputs_in_place_and_keeps_only_what_matters(tmp_path: Path) -> None:
    path = write(tmp_path / "01_x.ipynb", "print(delta * 2)")
    refresh(path)
    stored = nbformat.read(path, as_version=4)
    assert [cell.get("execution_count") for cell in stored.cells] == [None, 1, 2]
    assert stored.cells[2].outputs[0].text == "0.2\n"
    assert stored.cells[1].metadata == {"tags": ["parameters"]} and stored.cells[2].metadata == {}
    before = path.read_bytes()
    refresh(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "DeadKernelError: "),
    ],
)
def test_a_failing_refresh_is_one_sentence_and_leaves_the_notebook_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], source: str, why: str
) -> None:
    path = write(tmp_path / "01_x.ipynb", source)
    before = path.read_bytes()
    monkeypatch.setattr(notebooks, "find_notebooks", lambda wanted: [path])
    with pytest.raises(SystemExit) as left:
        main(["notebooks", "refresh"])
    said = capsys.readouterr().err
    assert left.value.code == 1 and "Traceback" not in said
    assert f"01_x failed in cell 3 `{source.splitlines()[0]}`: {why}" in said
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_a_notebook_that_is_none_is_refused_before_anything_runs(tmp_path: Path) -> None:
    path = write(tmp_path / "01_x.ipynb", "print(1)")
    broken = nbformat.read(path, as_version=4)
    broken.cells[2]["outputs"] = 3
    path.write_text(json.dumps(broken))
    with pytest.raises(ParameterError, match=r"01_x\.ipynb is no notebook of format 4: "):
        refresh(path)
    write(path, parameters="delta: float = 0.1")
    with pytest.raises(ParameterError, match=r"01_x\.ipynb declares no preset"):
        plan([path], None, {})


def test_tidy_drops_widget_state_and_timings() -> None:
    notebook = new_notebook(cells=[new_code_cell("1", metadata={"execution": {"iopub": "now"}, "tags": ["t"]})])
    notebook.metadata["widgets"] = {"state": 1}
    tidy(notebook)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert notebook.cells[0].metadata == {"tags": ["t"]} and notebook.cells[0].id == "cell-00"
