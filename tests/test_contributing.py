"""The guide's example works as written, outside the package: it trains, is killed and resumed, plays, is in a grid."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import call
from grid_cases import plugged_in

from brrcrl_lib.base.files import ROOT
from brrcrl_lib.checkpoints import Checkpoint
from brrcrl_lib.study.claims.summary import readable, summarise
from brrcrl_lib.study.experiments.results import read_grid

HOPPER = "brrcrl/hopper/medium-replay-v0"


def code_block(heading: str, language: str = "python") -> str:
    """The first block of a language under a heading of CONTRIBUTING.md."""
    section = (ROOT / "CONTRIBUTING.md").read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Path]:
    """A stranger's folder, with the guide's example in it and the plugin's variable set."""
    folder = tmp_path_factory.mktemp("stranger")
    (folder / "my_method.py").write_text(code_block("Add a method in one file"))
    with plugged_in(folder / "my_method.py"):
        yield folder


@pytest.fixture(autouse=True)
def there(folder: Path, monkeypatch) -> None:
    monkeypatch.chdir(folder)


def test_it_is_listed_and_explains_itself(capsys) -> None:
    assert call("methods") == 0
    assert re.search(r"weighted +box +- +regression on actions", capsys.readouterr().out)
    assert call("train", "weighted", "--help") == 0
    text = capsys.readouterr().out
    assert "--boost" in text and "How much more an action counts" in text


def test_it_trains_is_killed_and_resumed_to_the_same_weights(folder: Path) -> None:
    train = ["train", "weighted", "--dataset", HOPPER, "--preset", "smoke", "--checkpoint-every", "20",
             "--device", "cpu"]  # fmt: skip
    command = [sys.executable, "-m", "brrcrl_lib.cli", *train, "--out", "killed", "--steps", "100000"]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})  # a plugin to it as well
    checkpoint = folder / "killed/checkpoint.safetensors"
    while not checkpoint.exists():
        assert process.poll() is None, "training ended before it could be killed"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    steps = Checkpoint.load(checkpoint).about["step"] + 30
    assert call(*train, "--out", "killed", "--steps", steps, "--resume") == 0
    assert call(*train, "--out", "whole", "--steps", steps) == 0
    one, two = (Checkpoint.load(folder / name / "checkpoint.safetensors").tensors for name in ("killed", "whole"))
    assert one.keys() == two.keys() and all(bool((one[name] == two[name]).all()) for name in one)


def test_it_plays_and_its_row_says_what_it_was(capsys) -> None:
    assert call("train", "weighted", "--dataset", HOPPER, "--out", "run", "--preset", "smoke", "--boost", "4") == 0
    capsys.readouterr()
    assert call("evaluate", "--run", "run", "--episodes", 2, "--max-steps", 10, "--scale", 0.5, "--json") == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["method"], row["scale"], row["env"], len(row["returns"])) == ("weighted", 0.5, "Hopper-v5", 2)


def test_it_is_in_a_grid_and_in_a_table() -> None:
    small = ["--preset", "smoke", "--episodes", "2", "--work", "work", "--workers", "1"]
    command = [sys.executable, "-m", "brrcrl_lib.cli", "experiments", "run", "mine", *small]
    assert subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False).returncode == 0
    rows = read_grid("mine", Path("work"))
    table = readable(summarise(rows, {name: {"method": name} for name in ("weighted", "cloning")})).to_string()
    assert "hopper medium-replay" in table
    assert re.search(r"weighted +-?\d", table) and re.search(r"cloning +-?\d", table)


def test_the_target_rule_of_the_guide_asks_for_what_it_says() -> None:
    import torch

    from brrcrl_lib.inference import targets
    from brrcrl_lib.returns import ReturnBuckets

    names = {**vars(targets), "torch": torch}
    exec(code_block("Add a target rule"), names)
    buckets = ReturnBuckets(0.0, 10.0, 10)
    spread = torch.full((2, 10), 0.1)  # mean 5, so the rule asks for 6
    assert names["AboveMean"]().bucket(spread, buckets).tolist() == [6, 6]


def test_the_card_of_the_guide_is_a_card() -> None:
    from brrcrl_lib.worlds import make_card

    entries = tomllib.loads(code_block("Add a dataset or an environment", "toml"))["worlds"]
    (card,) = (make_card(name, **entry) for name, entry in entries.items())
    assert (card.name, card.kind, card.reference.source) == ("ant", "box", "d4rl")
