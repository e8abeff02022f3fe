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
from pathlib import Path

import pytest

from brrcrl_lib.base.files import ROOT
from brrcrl_lib.checkpoints import Checkpoint

HOPPER = "brrcrl/hopper/medium-replay-v0"


def code_block(heading: str, language: str = "python") -> str:
    """The first block of a language under a heading of CONTRIBUTING.md."""
    section = (ROOT / "CONTRIBUTING.md").read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("stranger")
    (folder / "my_method.py").write_text(code_block("Add a method in one file"))
    return folder


def environment(folder: Path) -> dict[str, str]:
    plugin = str(folder / "my_method.py")
    return {**os.environ, "BRRCRL_METHODS": plugin, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def brrcrl(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "brrcrl_lib.cli", *words],
        env=environment(folder), cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_listed_and_explains_itself(folder: Path) -> None:
    assert re.search(r"weighted +box +- +regression on actions", brrcrl(folder, "methods"))
    text = brrcrl(folder, "train", "weighted", "--help")
    assert "--boost" in text and "How much more an action counts" in text


def test_it_trains_is_killed_and_resumed_to_the_same_weights(folder: Path) -> None:
    train = [
        "train",
        "weighted",
        "--dataset",
        HOPPER,
        "--preset",
        "smoke",
        "--checkpoint-every",
        "20",
        "--device",
        "cpu",
    ]
    command = [sys.executable, "-m", "brrcrl_lib.cli", *train, "--out", "killed", "--steps", "100000"]
    process = subprocess.Popen(command, env=environment(folder), cwd=folder)
    checkpoint = folder / "killed/checkpoint.safetensors"
    while not checkpoint.exists():
        assert process.poll() is None, "training ended before it could be killed"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    steps = str(Checkpoint.load(checkpoint).about["step"] + 30)
    brrcrl(folder, *train, "--out", "killed", "--steps", steps, "--resume")
    brrcrl(folder, *train, "--out", "whole", "--steps", steps)
    one, two = (Checkpoint.load(folder / name / "checkpoint.safetensors").tensors for name in ("killed", "whole"))
    assert one.keys() == two.keys() and all(bool((one[name] == two[name]).all()) for name in one)


def test_it_plays_and_its_row_says_what_it_was(folder: Path) -> None:
    brrcrl(folder, "train", "weighted", "--dataset", HOPPER, "--out", "run", "--preset", "smoke", "--boost", "4")
    answer = brrcrl(
        folder, "evaluate", "--run", "run", "--episodes", "2", "--max-steps", "10", "--scale", "0.5", "--json"
    )
    row = json.loads(answer)
    assert (row["method"], row["scale"], row["env"], len(row["returns"])) == ("weighted", 0.5, "Hopper-v5", 2)


def test_it_is_in_a_grid_and_in_a_table(folder: Path) -> None:
    brrcrl(
        folder, "experiments", "run", "mine", "--preset", "smoke", "--episodes", "2", "--work", "work", "--workers", "1"
    )
    script = (
        "from pathlib import Path\n"
        "from brrcrl_lib.study.claims.summary import readable, summarise\n"
        "from brrcrl_lib.study.experiments.results import read_grid\n"
        "rows = read_grid('mine', Path('work'))\n"
        "print(readable(summarise(rows, {name: {'method': name} for name in ('weighted', 'cloning')})).to_string())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(folder), cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "hopper medium-replay" in done.stdout
    assert re.search(r"weighted +-?\d", done.stdout) and re.search(r"cloning +-?\d", done.stdout)


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
