"""`brrcrl train`, `brrcrl evaluate` and `brrcrl methods` as a user calls them: real data, simulators, exit codes."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import numpy as np
import pandas as pd
import pytest
import torch
from command_line import call
from discrete_cases import CARTPOLE
from frame_cases import small_store

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.files import ROOT
from brrcrl_lib.checkpoints import Checkpoint
from brrcrl_lib.cli import main
from brrcrl_lib.commands import Train
from brrcrl_lib.data.atari import AtariConfig, AtariEnv
from brrcrl_lib.data.frames import FrameStore
from brrcrl_lib.evaluate import environment_for
from brrcrl_lib.methods.base import methods
from brrcrl_lib.methods.br_rcrl import BrRcrlAct
from brrcrl_lib.methods.cloning import Cloning
from brrcrl_lib.training import load_run

HOPPER = "brrcrl/hopper/medium-replay-v0"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """BR-RCRL on Hopper."""
    folder = tmp_path_factory.mktemp("run") / "x"
    assert call("train", "br_rcrl", "--dataset", HOPPER, "--preset", "smoke", "--out", folder) == 0
    return folder


@pytest.fixture(scope="module")
def game(places: Path, tmp_path_factory) -> Path:
    """The joint table on frames of Q*bert."""
    folder = tmp_path_factory.mktemp("game") / "x"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRRCRL_FRAMES_PATH", str(places / "frames"))
        words = ("--objective", "distributional_td", "--preset", "smoke", "--seed", 3)
        assert call("train", "br_rcrl_joint", "--dataset", "ladder/qbert", *words, "--out", folder) == 0
    return folder


# -- training and playing ------------------------------------------------------------------------------------------


def test_evaluate_prints_one_line_of_json(run: Path, tmp_path: Path, capsys) -> None:
    trace = tmp_path / "trace.csv"
    assert call("evaluate", "--run", run, "--delta", 0.1, "--episodes", 2, "--json", "--trace", trace) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["dataset"] == HOPPER and row["env"] == "Hopper-v5" and len(row["returns"]) == 2
    assert (row["method"], row["objective"], row["delta"]) == ("br_rcrl", "authors", 0.1)
    assert row["reference"] == {"low": -20.272305, "high": 3234.3, "source": "d4rl"}
    assert row["score"] == pytest.approx(100 * (row["return_mean"] + 20.272305) / (3234.3 + 20.272305), abs=0.01)
    assert {"versions", "revision", "preset", "train_steps"} <= row.keys()
    assert trace.read_text().startswith("episode,step,reward,observed,bucket,target,predicted,energy\n")


def test_presets_set_the_defaults_and_flags_override_them(run: Path, game: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    assert config["config"]["steps"] == 40 and config["config"]["hidden"] == [32, 32] and config["preset"] == "smoke"
    assert config["config"]["seed"] == 0 and json.loads((game / "config.json").read_text())["config"]["seed"] == 3


def test_a_run_says_where_it_came_from(game: Path, frames: Path) -> None:
    about = Checkpoint.load(game / "checkpoint.safetensors").about
    assert about["dataset"] == "ladder/qbert" and about["config"]["seed"] == 3 and about["preset"] == "smoke"
    assert about["method"] == "br_rcrl_joint"
    assert about["facts"]["fingerprint"] == FrameStore(frames / "ladder/qbert").fingerprint
    assert about["facts"]["play"]["sticky_actions"] is True and about["facts"]["play"]["max_frames"] == 400
    env = environment_for(load_run(game, "cpu").facts)()
    assert isinstance(env, AtariEnv) and env.config == AtariConfig(sticky_actions=True, max_frames=400)


def test_scores_are_raw_and_traces_in_the_units_of_training(game: Path, tmp_path: Path, capsys) -> None:
    """Against the same games in a plain loop: no lock-step, no policy class, no clipping of what is earned."""
    trace = tmp_path / "trace.csv"
    words = ("--clone", "--epsilon", 0.9, "--episodes", 2, "--seed", 40, "--json", "--trace", trace)
    assert call("evaluate", "--run", game, *words) == 0
    row = json.loads(capsys.readouterr().out)
    model, rewards = load_run(game, "cpu").model, []
    source = torch.Generator().manual_seed(40)
    draws = torch.stack([torch.rand(2, 3, generator=source) for _ in range(100)])  # [steps, games, 3]
    for number, seed in enumerate((40, 41)):
        env = AtariEnv("qbert", AtariConfig(sticky_actions=True, max_frames=400))
        observation, ended = env.reset(seed=seed)[0], False
        rewards.append([])
        while not ended:
            with torch.no_grad():
                logits = model.head(model.encoder(torch.as_tensor(observation[None]))).view(6, -1)
            _, anything, luck = draws[len(rewards[-1]), number].tolist()
            action = int(6 * anything) if luck < 0.9 else int(logits.logsumexp(1).argmax())
            observation, reward, over, cut, _ = env.step(action)
            rewards[-1].append(reward)
            ended = over or cut
    assert row["returns"] == [sum(earned) for earned in rewards] and max(map(max, rewards)) > 1
    assert row["score"] == pytest.approx(100 * (row["return_mean"] - 163.9) / (13455.0 - 163.9), abs=0.001)
    assert (row["objective"], row["train_seed"], row["train_steps"]) == ("distributional_td", 3, 40)
    assert row["reference"]["source"] == "atari-human" and row["play"]["sticky_actions"] is True
    observed = pd.read_csv(trace).groupby("episode")["observed"].first()
    for number, earned in enumerate(rewards):
        assert observed[number] == pytest.approx(sum(0.95**k * min(1, r) for k, r in enumerate(earned)), abs=1e-3)


def test_a_cap_is_said_and_so_is_how_many_games_it_cut(game: Path, tmp_path: Path, capsys) -> None:
    trace = tmp_path / "trace.csv"
    words = ("--delta", 0.1, "--episodes", 3, "--max-steps", 7, "--json", "--trace", trace)
    assert call("evaluate", "--run", game, *words) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["max_steps"], row["cut_off"], row["length_mean"], row["epsilon"]) == (7, 3, 7.0, 0.01)
    assert trace.read_text().startswith("episode,step,reward,observed,bucket,target,predicted,energy\n")
    assert call("evaluate", "--run", game, "--episodes", 1, "--json") == 0
    row = json.loads(capsys.readouterr().out)
    assert "max_steps" not in row and row["length_mean"] == 100  # 400 screens


def test_a_run_resumes_on_the_same_data_only(frames: Path, game: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    copy = tmp_path / "run"
    shutil.copytree(game, copy)
    words = ("br_rcrl_joint", "--dataset", "ladder/qbert", "--out", copy, "--objective", "distributional_td",
             "--preset", "smoke", "--seed", 3, "--resume", "--steps")  # fmt: skip
    assert call("train", *words, 42) == 0
    before = (copy / "checkpoint.safetensors").read_bytes()
    small_store(tmp_path / "frames", "qbert", tmp_path / "policies", sticky_actions=True, seed=1)
    monkeypatch.setenv("BRRCRL_FRAMES_PATH", str(tmp_path / "frames"))
    assert call("train", *words, 44) == 2
    assert "ladder/qbert holds other data than this run was trained on" in capsys.readouterr().err
    assert (copy / "checkpoint.safetensors").read_bytes() == before


def test_frames_resume_to_the_bit(frames: Path, tmp_path: Path) -> None:
    """Gradients of frames that lie channels last must meet the optimiser's moments in the right order."""
    words = ("br_rcrl_joint", "--dataset", "ladder/qbert", "--preset", "smoke", "--batch-size", 8,
             "--checkpoint-every", 4)  # fmt: skip
    assert call("train", *words, "--steps", 8, "--out", tmp_path / "whole") == 0
    assert call("train", *words, "--steps", 4, "--out", tmp_path / "halves") == 0
    assert call("train", *words, "--steps", 8, "--out", tmp_path / "halves", "--resume") == 0
    one, two = (Checkpoint.load(tmp_path / name / "checkpoint.safetensors").tensors for name in ("whole", "halves"))
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_vectors_train_and_play_through_the_same_words(cartpole: None, tmp_path: Path, capsys) -> None:
    words = ("--dataset", CARTPOLE, "--objective", "distributional_td", "--preset", "smoke", "--out", tmp_path)
    assert call("train", "br_rcrl_joint", *words, "--export", tmp_path / "small.safetensors") == 0
    capsys.readouterr()
    for place in (tmp_path, tmp_path / "small.safetensors"):
        assert call("evaluate", "--run", place, "--episodes", 2, "--json") == 0
        row = json.loads(capsys.readouterr().out)
        assert row["env"] == "CartPole-v1" and row["score"] is None and row["reference"] is None
        assert row["returns"] == pytest.approx([row["length_mean"]] * 2, abs=row["return_std"] + 0.1)
    for env, has in (("Acrobot-v1", "has (6,) and 3"), ("Pendulum-v1", "has (3,) and (1,)")):
        assert call("evaluate", "--run", tmp_path, "--env", env) == 2
        found = capsys.readouterr().err
        assert f"a model of CartPole-v1 sees observations of shape (4,) and acts in 2; {env} {has}" in found


# -- wrong input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "sentence"), [
    (["--delta", 0], "delta must lie in (0, 1)"),
    (["--delta", 1], "delta must lie in (0, 1)"),
    (["--target", "highest"], "unknown target 'highest'"),
    (["--target", "fixed"], "needs a value"),
    (["--optimizer", "adam"], "unknown optimizer 'adam'"),
    (["--source", "oracle"], "unknown source 'oracle'"),
    (["--env", "Walker2d-v5"], "a model of Hopper-v5 sees observations of shape (11,) and acts in (3,); Walker2d-v5"),
    (["--episodes", 0], "episodes must be at least 1"),
    (["--device", "abacus"], "unknown device 'abacus'"),
])  # fmt: skip
def test_evaluate_refuses_what_it_cannot_do(run: Path, words: list, sentence: str, capsys) -> None:
    assert call("evaluate", "--run", run, *words) == 2
    printed = capsys.readouterr().err
    assert sentence in printed and printed.count("\n") == 1


@pytest.mark.parametrize(("words", "sentence"), [
    (["--epsilon", 2], "epsilon must lie in [0, 1]"),
    (["--env", "ALE/Pong-v5"], "a model of ALE/Qbert-v5 cannot play ALE/Pong-v5"),  # as many actions
    (["--env", "ALE/Breakout-v5"], "cannot play ALE/Breakout-v5"),
    (["--env", "ALE/Pnog-v5"], "did you mean 'pong'"),
])  # fmt: skip
def test_games_are_not_confused(game: Path, words: list, sentence: str, capsys) -> None:
    assert call("evaluate", "--run", game, *words) == 2
    printed = capsys.readouterr().err
    assert sentence in printed and printed.count("\n") == 1


@pytest.mark.parametrize(("words", "sentence"), [
    (["br_rcrl", "--dataset", "brrcrl/hoper/medium-replay-v0"], f"did you mean '{HOPPER}'"),
    (["br_rcrl", "--dataset", HOPPER, "--objective", "author"], "did you mean 'authors'"),
    (["br_rcrl", "--dataset", HOPPER, "--preset", "huge"], "unknown preset 'huge'"),
    (["br_rcrl", "--dataset", HOPPER, "--device", "abacus"], "unknown device 'abacus'"),
    (["br_rcrl_joint", "--dataset", HOPPER], f"br_rcrl_joint needs discrete actions; {HOPPER} has vectors and a box"),
    (["br_rcrl", "--dataset", "ladder/qbert"], "br_rcrl needs continuous actions; ladder/qbert has frames and"),
    (["br_rcrl_joint", "--dataset", "ladder/qbert", "--objective", "monte-carlo"],
     "unknown objective 'monte-carlo'; did you mean 'monte_carlo'?"),
    (["br_rcrl_joint", "--dataset", "ladder/pong"], "`brrcrl data rollout --ladder pong --steps 200000 --seed 0` buil"),
    (["br_rcrl_joint", "--dataset", "ladder/pnog"], "no Atari game 'pnog'; did you mean 'pong'?"),
    (["cloning", "--dataset", "ladder/qbert", "--encoder", "mlp"],
     "encoder 'mlp' cannot read observations of shape (4, 84, 84)"),
    (["cloning", "--dataset", "ladder/qbert", "--reward-clip", 2], "or not at all (0); not 2.0"),
    (["brrcrl", "--dataset", HOPPER], "unknown method 'brrcrl'; did you mean 'br_rcrl'?"),
    (["--method", "cloning", "--dataset", HOPPER],
     "the method comes first now, without --method: brrcrl train cloning --dataset ... --out ..."),
    (["--dataset", HOPPER, "--method=bayesian"], "brrcrl train br_rcrl --dataset ... --out ..."),
    (["--dataset", HOPPER], "which method? brrcrl train METHOD --dataset ... (there are: bear, br_rcrl, "),
])  # fmt: skip
def test_train_refuses_what_it_cannot_do(words: list, sentence: str, frames: Path, tmp_path: Path, capsys) -> None:
    assert call("train", *words, "--out", tmp_path / "run") == 2
    printed = capsys.readouterr().err
    assert sentence in printed and printed.count("\n") == 1 and printed.startswith("brrcrl train: ")
    assert not list(tmp_path.iterdir())


def test_a_run_is_not_overwritten_nor_continued_with_other_settings(run: Path, capsys) -> None:
    before = (run / "checkpoint.safetensors").read_bytes()
    for words, sentence in (
        (("br_rcrl", "--dataset", HOPPER), "pass --resume"),
        (("br_rcrl", "--dataset", "brrcrl/walker2d/medium-v0", "--resume"), "dataset: brrcrl/hopper"),
        (("br_rcrl", "--dataset", HOPPER, "--resume", "--negatives", 9), "negatives: 8 before, 9 now"),
        (("cloning", "--dataset", HOPPER, "--resume"), "method: br_rcrl before, cloning now"),
    ):
        assert call("train", *words, "--preset", "smoke", "--out", run) == 2, words
        assert sentence in capsys.readouterr().err
    assert (run / "checkpoint.safetensors").read_bytes() == before


@pytest.mark.parametrize(("words", "flag"), [
    (("train", "br_rcrl_joint", "--dataset", "ladder/qbert", "--out", "x", "--negatives", 4), "--negatives"),
    (("train", "br_rcrl", "--dataset", HOPPER, "--out", "x", "--encoder", "mlp"), "--encoder"),
])  # fmt: skip
def test_flags_of_another_method_are_refused(words: tuple, flag: str, frames: Path, capsys) -> None:
    assert call(*words) == 2
    assert f"Unrecognized options: {flag}" in capsys.readouterr().err


def test_ways_to_play_belong_to_their_method(game: Path, capsys) -> None:
    assert call("evaluate", "--run", game, "--optimizer=cem") == 2
    assert "--optimizer" in capsys.readouterr().err
    with pytest.raises(KitError, match="br_rcrl_joint is played with JointAct, not BrRcrlAct"):
        load_run(game, "cpu").policy(BrRcrlAct())


def test_broken_checkpoints_give_exit_code_two(run: Path, tmp_path: Path, capsys) -> None:
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes((run / "checkpoint.safetensors").read_bytes()[:1000])
    assert call("evaluate", "--run", cut) == 2
    assert "corrupt or cut short" in capsys.readouterr().err
    assert call("evaluate", "--run", tmp_path / "nowhere") == 2
    assert "no checkpoint" in capsys.readouterr().err
    assert call("experiments", "run", "engin") == 2
    assert "did you mean 'engine'" in capsys.readouterr().err


def test_a_bug_keeps_its_traceback_and_a_sentence_for_users_has_none(monkeypatch, tmp_path: Path, capsys) -> None:
    words = ["train", "cloning", "--dataset", HOPPER, "--preset", "smoke", "--out", str(tmp_path / "run"), "--resume"]

    def wrong_shapes(self: Cloning, *anything: object) -> NoReturn:
        np.zeros(3) + np.zeros(4)
        raise AssertionError("numpy added what does not fit")

    monkeypatch.setattr(Cloning, "loss", wrong_shapes)
    with pytest.raises(ValueError, match="could not be broadcast"):
        main(words)

    def refuse(self: Cloning, *anything: object) -> NoReturn:
        raise KitError("this cannot be cloned; take other data")

    monkeypatch.setattr(Cloning, "loss", refuse)
    capsys.readouterr()
    assert call(*words) == 2
    assert capsys.readouterr().err == "brrcrl train: this cannot be cloned; take other data\n"


# -- help ----------------------------------------------------------------------------------------------------------


def test_the_methods_are_listed_with_what_they_take_and_need(capsys) -> None:
    assert call("methods") == 0
    listed = capsys.readouterr().out
    assert call("train", "--help") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("usage: brrcrl train METHOD --dataset ID --out FOLDER") and printed.endswith(listed)
    lines = {line.split()[0]: line for line in listed.splitlines()}
    assert list(lines) == sorted(methods()) and {"br_rcrl", "br_rcrl_joint", "vanilla", "cloning"} <= set(lines)
    for name, method in methods().items():
        needs = [*(["next states"] if method.needs.next else []), *(["windows"] if method.needs.context else [])]
        assert all(word in lines[name] for word in (*method.kinds, *needs, method.summary))


@pytest.mark.parametrize("name", sorted(methods()))
def test_help_of_a_method_lists_every_setting_and_explains_it(name: str, capsys) -> None:
    assert call("train", name, "--help") == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"usage: brrcrl train {name} ") and methods()[name].summary in " ".join(printed.split())
    explained = dict(re.findall(r"^\W*(--[a-z][a-z-]*)(.*?)\((?:default|required)", printed, re.M | re.S))
    wanted = {*dataclasses.fields(Train), *dataclasses.fields(methods()[name].Config)}
    assert set(explained) == {f"--{field.name.replace('_', '-')}" for field in wanted}
    silent = [flag for flag, text in explained.items() if not re.search(r"[A-Za-z]+[.,;:)]", text)]
    assert silent == [], "flags without a word of explanation"


def test_help_starts_from_the_preset_and_the_data(cartpole: None, capsys) -> None:
    for words, steps in (((), 6000), (("--preset", "smoke"), 40), (("--dataset", CARTPOLE), 4000)):
        assert call("train", "cloning", *words, "--help") == 0
        assert f"Gradient steps. (default: {steps})" in " ".join(capsys.readouterr().out.split())


def test_help_of_evaluate_lists_the_flags_of_the_runs_method(run: Path, game: Path, capsys) -> None:
    for words, there, absent in (
        ((), "brrcrl evaluate --run runs/x --help", "--epsilon"),
        (("--run", run), "--optimizer", "--epsilon"),
        (("--run", game), "--epsilon", "--optimizer"),
    ):
        assert call("evaluate", *words, "--help") == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert there in printed and absent not in printed


def test_the_overview_is_there_at_once() -> None:
    """Without the heavy libraries, and in a small part of the time that torch alone would take to load."""
    code = (
        "import sys, time\nfrom brrcrl_lib.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
        "print(time.process_time(), [name for name in ('torch', 'gymnasium', 'pandas') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    seconds, heavy = result.stdout.splitlines()[-1].split(" ", 1)
    assert heavy == "[]" and float(seconds) < 2  # of processor time, about 0.3 on an idle machine


def test_a_card_says_what_a_dataset_is_good_for(capsys) -> None:
    assert call("data", "card", "brrcrl/halfcheetah/medium-v0") == 0
    text = capsys.readouterr().out
    assert "effective episodes" in text and "Warning: The discounted return that agents are asked for" in text
    assert call("data", "card", "sample/pong") == 2
    assert "sample/pong holds frames" in capsys.readouterr().err
