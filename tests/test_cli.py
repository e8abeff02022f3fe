"""The `brrcrl` command: what it offers, and how it says no."""

from __future__ import annotations

import os
import subprocess
import sys
import termios
from importlib import import_module
from pathlib import Path

import nbformat
import pytest
from command_line import call
from nbformat.v4 import new_markdown_cell, new_notebook

from brrcrl_lib import cli
from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.files import ROOT
from brrcrl_lib.tools import notebook_commands, notebooks
from brrcrl_lib.tools.importing import d4rl
from brrcrl_lib.tools.parameters import ParameterError
from brrcrl_lib.tools.publishing import verify

INTERRUPTED_BAR = """
import sys
from types import SimpleNamespace
from brrcrl_lib import cli
from brrcrl_lib.base.devices import track
from brrcrl_lib.base.errors import KitError

def work(config):
    bar = track(total=10, mininterval=0)
    bar.update()
    raise KitError("the data end too early")

sys.modules["brrcrl_lib.work"] = SimpleNamespace(Config=lambda words: None, work=work)
cli.COMMANDS["work"] = ("work", "Config", "work", "")
cli.check_settings = lambda config: None
cli.main(["work"])
"""


def test_an_error_is_not_glued_to_a_progress_bar() -> None:
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    loud = {name: value for name, value in os.environ.items() if name != "BRRCRL_QUIET"}
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_BAR], cwd=ROOT, env=loud, stderr=theirs, check=False)
    os.close(theirs)
    written = os.read(ours, 100_000).decode()
    os.close(ours)
    assert done.returncode == 2 and "1/10" in written, "no bar was drawn"
    shown = [line.split("\r")[-1].rstrip() for line in written.replace("\r\n", "\n").split("\n")]
    assert "brrcrl work: the data end too early" in shown


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)])
def test_the_overview_lists_every_command(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*words) == 0
    printed = capsys.readouterr().out
    assert all(name in printed and text in printed for name, (*_, text) in cli.COMMANDS.items())


def test_a_group_lists_its_own_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("notebooks", "--help") == 0
    printed = capsys.readouterr().out
    assert "notebooks refresh" in printed and "data collect" not in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("notebook", "run"), "no command 'notebook'; did you mean 'notebooks run'?"),
        (("notebooks", "rum"), "no command 'notebooks rum'; did you mean 'notebooks run'?"),
        (("xyzzy",), "no command 'xyzzy' (valid: notebooks run"),
    ],
)
def test_an_unknown_command_names_the_nearest(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*words) == 2
    assert message in capsys.readouterr().err


VARIANTS = {
    f"{name} {flags}{' pong' if flags == '--ladder' else ''}": found for (name, flags), found in cli.VARIANTS.items()
}


@pytest.mark.parametrize("words", [*cli.COMMANDS, *VARIANTS])
def test_every_command_loads_and_explains_itself(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    name, *_ = words.split(" --")
    module, config, function = cli._choose(name, words.split())
    assert VARIANTS.get(words, (module, config, function)) == (module, config, function)
    assert all(callable(getattr(import_module(f"brrcrl_lib.{module}"), part)) for part in (config, function))
    assert call(*words.split(), "--help") == 0
    assert capsys.readouterr().out.startswith(f"usage: brrcrl {name}")


def test_an_unknown_flag_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("notebooks", "run", "--prest", "smoke") == 2
    assert "--preset" in capsys.readouterr().err


def test_parameters_arrive_as_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(notebook_commands, "run_notebooks", lambda config: seen.append(config))
    assert call("notebooks", "run", "02", "3", "--preset", "smoke", "-p", "delta", "0.2", "-p", "shift", "-1") == 0
    assert seen[0].notebooks == ("02", "3") and seen[0].preset == "smoke"
    assert seen[0].parameter == (("delta", "0.2"), ("shift", "-1"))


@pytest.mark.parametrize(("oks", "code"), [([True, True], 0), ([True, False], 1)])
def test_a_failed_check_is_shown_and_gives_exit_code_1(
    oks: list[bool], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [verify.Check("mine/x-v0", "hashes", ok, "as recorded" if ok else "differs") for ok in oks]
    seen = []
    monkeypatch.setattr(verify, "run_verify", lambda config: seen.append(config) or rows)
    assert call("data", "verify", "mine/x-v0", "mine/y-v0") == code
    assert seen[0].ids == ("mine/x-v0", "mine/y-v0")
    assert ("FAILED  mine/x-v0  hashes: differs" in capsys.readouterr().out) == (code == 1)


def test_a_file_may_come_first_without_its_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(d4rl, "import_d4rl", lambda config: seen.append(config))
    assert call("data", "import-d4rl", "x.hdf5", "--env", "Hopper-v4", "--id", "d4rl/hopper/medium-v2") == 0
    assert seen[0].file == Path("x.hdf5") and seen[0].id == "d4rl/hopper/medium-v2"


@pytest.mark.parametrize(
    "error", [KitError("one sentence"), ParameterError("one sentence"), FileNotFoundError("one sentence")]
)
def test_a_users_mistake_is_one_sentence_and_exit_code_2(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(wanted: object) -> None:
        raise error

    monkeypatch.setattr(notebooks, "find_notebooks", refuse)
    assert call("notebooks", "run") == 2
    assert capsys.readouterr().err == "brrcrl notebooks run: one sentence\n"


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the line that stumbles is the kit's own: only a KitError is for users."""

    def stumble(wanted: object) -> None:
        raise ValueError("a bug")

    stumble.__code__ = stumble.__code__.replace(co_filename=notebooks.__file__)
    monkeypatch.setattr(notebooks, "find_notebooks", stumble)
    with pytest.raises(ValueError, match="a bug"):
        cli.main(["notebooks", "run"])


def test_stopping_is_not_a_crash(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(wanted: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(notebooks, "find_notebooks", interrupted)
    assert call("notebooks", "run") == 130
    assert "stopped" in capsys.readouterr().err


def test_the_list_shows_the_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "02_stairs.ipynb"
    nbformat.write(
        new_notebook(cells=[new_markdown_cell("# 02 · Stairs\n\n**Question:** What now?\n**Time:** 1")]), path
    )
    monkeypatch.setattr(notebooks, "all_notebooks", lambda: [path])
    assert call("notebooks", "list") == 0
    assert capsys.readouterr().out.split(maxsplit=1) == ["02_stairs", "What now?\n"]


def test_the_installed_command_refuses_before_running() -> None:
    command = [str(Path(sys.executable).with_name("brrcrl")), "notebooks", "run", "99"]
    here = {**os.environ, "PYTHONPATH": str(ROOT)}  # this checkout, wherever the script was installed from
    result = subprocess.run(command, env=here, capture_output=True, text=True)
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.startswith("brrcrl notebooks run: no notebook '99'") and "Traceback" not in result.stderr


@pytest.mark.parametrize("words", [("data", "cards", "--root", ""), ("experiments", "merge", "engine", "--work", " "),
                                   ("data", "verify", "--root=")])  # fmt: skip
def test_an_empty_word_is_refused_before_it_becomes_the_working_folder(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(*words) == 2 and "what follows --" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
