"""`brrcrl train` and `brrcrl evaluate` as a user calls them: real data, real simulator, real exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import call

HOPPER = "brrcrl/hopper/medium-replay-v0"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "x"
    assert call("train", "--dataset", HOPPER, "--preset", "smoke", "--out", folder) == 0
    return folder


def test_evaluate_prints_one_line_of_json(run: Path, tmp_path: Path, capsys) -> None:
    trace = tmp_path / "trace.csv"
    assert call("evaluate", "--run", run, "--delta", 0.1, "--episodes", 2, "--json", "--trace", trace) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["dataset"] == HOPPER and row["env"] == "Hopper-v5" and len(row["returns"]) == 2
    assert row["reference"] == {"low": -20.272305, "high": 3234.3, "source": "d4rl"}
    assert row["score"] == pytest.approx(100 * (row["return_mean"] + 20.272305) / (3234.3 + 20.272305), abs=0.01)
    assert {"versions", "revision", "preset", "train_steps"} <= row.keys()
    assert trace.read_text().startswith("episode,step,reward,observed,bucket,target,predicted,energy\n")


def test_presets_set_the_defaults_and_flags_override_them(run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    assert config["config"]["steps"] == 40 and config["config"]["hidden"] == [32, 32] and config["preset"] == "smoke"


@pytest.mark.parametrize(("words", "sentence"), [
    (["--delta", 0], "delta must lie in (0, 1)"),
    (["--delta", 1], "delta must lie in (0, 1)"),
    (["--target", "highest"], "unknown target 'highest'"),
    (["--target", "fixed"], "needs a value"),
    (["--optimizer", "adam"], "unknown optimizer 'adam'"),
    (["--source", "oracle"], "unknown threshold source 'oracle'"),
    (["--env", "Walker2d-v5"], "was trained for 3 action dimensions"),
    (["--episodes", 0], "episodes must be at least 1"),
])  # fmt: skip
def test_evaluate_refuses_what_it_cannot_do(run: Path, words: list, sentence: str, capsys) -> None:
    assert call("evaluate", "--run", run, *words) == 2
    assert sentence in capsys.readouterr().err


def test_train_refuses_what_it_cannot_do(run: Path, tmp_path: Path, capsys) -> None:
    for words, sentence in (
        (["--dataset", "brrcrl/hoper/medium-replay-v0", "--out", tmp_path], f"did you mean '{HOPPER}'"),
        (["--dataset", HOPPER, "--out", tmp_path, "--objective", "author"], "did you mean 'authors'"),
        (["--dataset", HOPPER, "--out", tmp_path, "--preset", "huge"], "unknown preset 'huge'"),
        (["--dataset", HOPPER, "--out", run, "--preset", "smoke"], "pass --resume"),
        (
            ["--dataset", "brrcrl/walker2d/medium-v0", "--out", run, "--preset", "smoke", "--resume"],
            "dataset: brrcrl/hopper",
        ),
    ):
        assert call("train", *words) == 2, words
        assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_broken_checkpoints_give_exit_code_two(run: Path, tmp_path: Path, capsys) -> None:
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes((run / "checkpoint.safetensors").read_bytes()[:1000])
    assert call("evaluate", "--run", cut) == 2
    assert "corrupt or cut short" in capsys.readouterr().err
    assert call("evaluate", "--run", tmp_path / "nowhere") == 2
    assert "no checkpoint" in capsys.readouterr().err
    assert call("experiments", "run", "engin") == 2
    assert "did you mean 'engine'" in capsys.readouterr().err
