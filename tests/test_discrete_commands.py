"""Discrete data by name, and `brrcrl train` and `brrcrl evaluate` on them: real games, real exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gymnasium as gym
import numpy as np
import pandas as pd
import pytest
import torch
from brrcrl_lib.discrete import sources
from brrcrl_lib.discrete.data import VectorData
from brrcrl_lib.discrete.frames import FrameData
from brrcrl_lib.discrete.sources import has_discrete_actions, open_discrete
from brrcrl_lib.discrete.train import load_discrete_run
from brrcrl_lib.families import FAMILIES, family_of_run
from command_line import call
from frame_cases import small_store

from brrcrl_lib.checkpoints import Checkpoint
from brrcrl_lib.commands import EvaluateCommand, evaluate_run
from brrcrl_lib.data.atari import AtariConfig, AtariEnv
from brrcrl_lib.data.episodes import Episode
from brrcrl_lib.data.frame_format import STEP, fingerprint
from brrcrl_lib.data.frames import FrameStore
from brrcrl_lib.data.storage import FlatEpisodes, write_dataset
from brrcrl_lib.tools.publishing.pack import export_sample

HOPPER = "brrcrl/hopper/medium-replay-v0"
CARTPOLE = "test/cartpole/random-v0"


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> Path:
    """ladder/qbert with sticky actions, and CartPole played at random."""
    base = tmp_path_factory.mktemp("places")
    small_store(base / "frames", "qbert", base / "policies", sticky_actions=True)
    env, rng, episodes = gym.make("CartPole-v1"), np.random.default_rng(0), []
    for seed in range(30):
        seen, actions, ended = [env.reset(seed=seed)[0]], [], False
        while not ended:
            actions.append(rng.integers(2))
            observation, _, ended, _, _ = env.step(actions[-1])
            seen.append(observation)
        rewards = np.ones(len(actions), np.float32)
        episodes.append(Episode(np.stack(seen), np.array(actions), rewards, True, False, seed))
    write_dataset(
        base / "minari", CARTPOLE, [FlatEpisodes.from_episodes(episodes)], env_spec=env.spec,
        observation_space=gym.spaces.Box(-np.inf, np.inf, (4,), np.float32), action_space=env.action_space, card={},
    )  # fmt: skip
    return base


@pytest.fixture(autouse=True)
def _look_there(places: Path, monkeypatch) -> None:
    monkeypatch.setenv("BRRCRL_FRAMES_PATH", str(places / "frames"))


@pytest.fixture
def cartpole(places: Path, monkeypatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(places / "minari"))


@pytest.fixture(scope="module")
def run(places: Path, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "x"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRRCRL_FRAMES_PATH", str(places / "frames"))
        words = ("--method", "bayesian", "--learner", "distributional_td", "--preset", "smoke", "--seed", 3)
        assert call("train", "--dataset", "ladder/qbert", *words, "--out", folder) == 0
    return folder


# -- data by name --------------------------------------------------------------------------------------------------


def test_a_ladder_opens_with_the_papers_discount_and_clipped_rewards(places: Path) -> None:
    data = open_discrete("ladder/qbert")
    assert isinstance(data, FrameData) and data.id == "ladder/qbert" and data.env_id == "ALE/Qbert-v5"
    store = FrameStore(places / "frames/ladder/qbert")
    assert float(store.rewards.max()) >= 25  # what the game pays
    following, slowly = 0.0, []
    ends = set((store.starts + store.lengths - 1).tolist())
    for step in reversed(range(len(store))):
        following = min(1.0, float(store.rewards[step])) + (0.0 if step in ends else 0.95 * following)
        slowly.append(following)
    np.testing.assert_allclose(data.rtg.numpy(), slowly[::-1], atol=1e-5)
    raw = open_discrete("ladder/qbert", discount=1.0, clip_rewards=False)
    assert raw.reward_clip is None and float(raw.rtg.max()) == pytest.approx(float(store.returns.max()))
    batch = open_discrete("ladder/qbert", with_next=False).sample(4, torch.Generator().manual_seed(0))
    assert batch.next_observations is None and batch.observations.shape == (4, 4, 84, 84)


def test_vectors_with_discrete_actions_open_by_their_id(cartpole) -> None:
    data = open_discrete(CARTPOLE)
    assert isinstance(data, VectorData) and data.discount == 0.95 and data.action_count == 2
    assert has_discrete_actions(CARTPOLE) and has_discrete_actions("ladder/pong")


def test_continuous_data_are_told_apart() -> None:
    assert not has_discrete_actions(HOPPER)
    with pytest.raises(ValueError, match="has continuous actions"):
        open_discrete(HOPPER)
    with pytest.raises(ValueError, match="did you mean 'brrcrl/hopper"):
        has_discrete_actions("brrcrl/hoper/medium-replay-v0")


def test_a_sample_is_unpacked_once_and_again_when_another_ships(places: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sources, "SAMPLES", tmp_path / "atari")
    with pytest.raises(ValueError, match=r"no sample of qbert at .*--ladder qbert .*brrcrl data pack ladder/qbert"):
        open_discrete("sample/qbert")
    monkeypatch.setenv("BRRCRL_FRAMES_PATH", str(tmp_path / "frames"))
    whole = FrameStore(places / "frames/ladder/qbert", discount=0.95, clip_rewards=True)
    export_sample(whole, tmp_path / "atari/qbert.npz")
    data = open_discrete("sample/qbert")
    assert data.id == "sample/qbert" and data.play["sticky_actions"] is True
    assert sorted(data.rtg.tolist()) == sorted(whole.rtg.tolist())
    written = (tmp_path / "frames/sample/qbert/frames.u8").stat().st_mtime_ns
    assert open_discrete("sample/qbert").fingerprint == data.fingerprint
    assert (tmp_path / "frames/sample/qbert/frames.u8").stat().st_mtime_ns == written
    other = small_store(tmp_path / "other", "qbert", tmp_path / "policies", steps=150, seed=1)
    export_sample(other, tmp_path / "atari/qbert.npz")
    assert open_discrete("sample/qbert").fingerprint != data.fingerprint
    assert len(open_discrete("sample/qbert").rtg) == len(other)
    (tmp_path / "atari/qbert.npz").unlink()
    assert len(open_discrete("sample/qbert").rtg) == len(other)  # what was unpacked stays


def test_a_fingerprint_sees_every_action_and_reward_and_nothing_else(places: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(places / "frames/ladder/qbert", folder)
    before = fingerprint(folder)
    about = json.loads((folder / "store.json").read_text())
    about["about"]["revision"], about["about"]["versions"] = "another", {}
    (folder / "store.json").write_text(json.dumps(about))
    with (folder / "steps.bin").open("ab") as file:
        file.write(b"a torn tail")
    assert fingerprint(folder) == before
    records = np.fromfile(folder / "steps.bin", STEP, about["steps"])
    for name in ("action", "reward"):
        changed = records.copy()
        changed[name][7] += 1
        changed.tofile(folder / "steps.bin")
        assert fingerprint(folder) != before
    records.tofile(folder / "steps.bin")
    assert fingerprint(folder) == before
    about["about"]["seed"] = 1
    (folder / "store.json").write_text(json.dumps(about))
    assert fingerprint(folder) != before


# -- training and playing ------------------------------------------------------------------------------------------


def test_a_run_says_where_it_came_from(run: Path, places: Path) -> None:
    about = Checkpoint.load(run / "checkpoint.safetensors").about
    assert about["dataset"] == "ladder/qbert" and about["config"]["seed"] == 3 and about["preset"] == "smoke"
    assert about["fingerprint"] == FrameStore(places / "frames/ladder/qbert").fingerprint
    assert about["play"]["sticky_actions"] is True and about["play"]["max_frames"] == 400
    env = family_of_run(run).environment(run, about, "ALE/Qbert-v5")()
    assert isinstance(env, AtariEnv) and env.config == AtariConfig(sticky_actions=True, max_frames=400)


def test_scores_are_raw_and_traces_in_the_units_of_training(run: Path, tmp_path: Path, capsys) -> None:
    """Against the same games in a plain loop: no lock-step, no policy class, no clipping of what is earned."""
    trace = tmp_path / "trace.csv"
    words = ("--clone", "--epsilon", 0.9, "--episodes", 2, "--seed", 40, "--json", "--trace", trace)
    assert call("evaluate", "--run", run, *words) == 0
    row = json.loads(capsys.readouterr().out)
    model, rewards = load_discrete_run(run, "cpu").model, []
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


def test_a_cap_is_said_and_so_is_how_many_games_it_cut(run: Path, tmp_path: Path, capsys) -> None:
    trace = tmp_path / "trace.csv"
    words = ("--delta", 0.1, "--episodes", 3, "--max-steps", 7, "--json", "--trace", trace)
    assert call("evaluate", "--run", run, *words) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["max_steps"], row["cut_off"], row["length_mean"], row["epsilon"]) == (7, 3, 7.0, 0.01)
    assert trace.read_text().startswith("episode,step,reward,observed,bucket,target,predicted,energy\n")
    assert call("evaluate", "--run", run, "--episodes", 1, "--json") == 0
    row = json.loads(capsys.readouterr().out)
    assert "max_steps" not in row and row["length_mean"] == 100  # 400 screens


def test_a_run_resumes_on_the_same_data_only(places: Path, run: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    words = ("--learner", "distributional_td", "--preset", "smoke", "--seed", 3, "--resume", "--steps")
    assert call("train", "--dataset", "ladder/qbert", "--out", copy, *words, 42) == 0
    before = (copy / "checkpoint.safetensors").read_bytes()
    small_store(tmp_path / "frames", "qbert", tmp_path / "policies", sticky_actions=True, seed=1)
    monkeypatch.setenv("BRRCRL_FRAMES_PATH", str(tmp_path / "frames"))
    assert call("train", "--dataset", "ladder/qbert", "--out", copy, *words, 44) == 2
    assert "ladder/qbert holds other data than this run was trained on" in capsys.readouterr().err
    assert (copy / "checkpoint.safetensors").read_bytes() == before


def test_frames_resume_to_the_bit(tmp_path: Path) -> None:
    """Gradients of frames that lie channels last must meet the optimiser's moments in the right order."""
    words = ("--dataset", "ladder/qbert", "--preset", "smoke", "--batch-size", 8, "--checkpoint-every", 4)
    assert call("train", *words, "--steps", 8, "--out", tmp_path / "whole") == 0
    assert call("train", *words, "--steps", 4, "--out", tmp_path / "halves") == 0
    assert call("train", *words, "--steps", 8, "--out", tmp_path / "halves", "--resume") == 0
    one, two = (Checkpoint.load(tmp_path / name / "checkpoint.safetensors").tensors for name in ("whole", "halves"))
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_vectors_train_and_play_through_the_same_words(cartpole, tmp_path: Path, capsys) -> None:
    words = ("--dataset", CARTPOLE, "--learner", "distributional_td", "--preset", "smoke", "--out", tmp_path)
    assert call("train", *words, "--export", tmp_path / "small.safetensors") == 0
    capsys.readouterr()
    for place in (tmp_path, tmp_path / "small.safetensors"):
        assert call("evaluate", "--run", place, "--episodes", 2, "--json") == 0
        row = json.loads(capsys.readouterr().out)
        assert row["env"] == "CartPole-v1" and row["score"] is None and row["reference"] is None
        assert row["returns"] == pytest.approx([row["length_mean"]] * 2, abs=row["return_std"] + 0.1)
    assert call("evaluate", "--run", tmp_path, "--env", "Acrobot-v1") == 2
    assert "trained for 2 actions and observations (4,) (CartPole-v1), but Acrobot-v1 has" in capsys.readouterr().err
    assert call("evaluate", "--run", tmp_path, "--env", "Pendulum-v1") == 2
    assert call("train", *words, "--fusion", "early") == 2
    assert f"--fusion is for continuous actions; {CARTPOLE} has discrete ones" in capsys.readouterr().err


# -- wrong input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "sentence"), [
    (["--delta", 0], "delta must lie in (0, 1)"),
    (["--target", "highest"], "unknown target 'highest'"),
    (["--epsilon", 2], "epsilon must lie in [0, 1]"),
    (["--optimizer=cem"], "--optimizer is for continuous actions"),
    (["--env", "ALE/Pong-v5"], "was trained on ALE/Qbert-v5 and cannot play ALE/Pong-v5"),  # as many actions
    (["--env", "ALE/Breakout-v5"], "cannot play ALE/Breakout-v5"),
    (["--env", "ALE/Pnog-v5"], "did you mean 'pong'"),
    (["--episodes", 0], "episodes must be at least 1"),
])  # fmt: skip
def test_evaluate_refuses_what_it_cannot_do(run: Path, words: list, sentence: str, capsys) -> None:
    assert call("evaluate", "--run", run, *words) == 2
    printed = capsys.readouterr().err
    assert sentence in printed and printed.count("\n") == 1


@pytest.mark.parametrize(("words", "sentence"), [
    (["ladder/qbert", "--learner", "monte-carlo"], "unknown learner 'monte-carlo'; did you mean 'monte_carlo'?"),
    (["ladder/qbert", "--negatives", 4], "--negatives is for continuous actions; ladder/qbert has discrete ones"),
    (["ladder/pong"], "`brrcrl data rollout --ladder pong --steps 200000 --seed 0` builds it"),
    (["ladder/pnog"], "no Atari game 'pnog'; did you mean 'pong'?"),
    ([HOPPER, "--learner", "monte_carlo"], f"--learner is for discrete actions; {HOPPER} has continuous ones"),
    (["ladder/qbert", "--preset", "huge"], "unknown preset 'huge'"),
    (["ladder/qbert", "--encoder", "mlp"], "encoder 'mlp' cannot read observations of shape (4, 84, 84)"),
])  # fmt: skip
def test_train_refuses_what_it_cannot_do(words: list, sentence: str, tmp_path: Path, capsys) -> None:
    assert call("train", "--dataset", *words, "--out", tmp_path / "run") == 2
    printed = capsys.readouterr().err
    assert sentence in printed and printed.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_help_lists_the_flags_of_the_data_and_points_to_the_others(run: Path, capsys) -> None:
    for words, there, absent in (
        (("train",), "--dataset ladder/pong --help", "--learner"),
        (("train", "--dataset", "ladder/qbert"), "--learner", "--negatives"),
        (("evaluate",), "--run runs/x --help", "--epsilon"),
        (("evaluate", "--run", run), "--epsilon", "--optimizer"),
    ):
        assert call(*words, "--help") == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert there in printed and absent not in printed


def test_one_kind_of_inference_is_not_taken_for_the_other(run: Path) -> None:
    with pytest.raises(ValueError, match="was trained for discrete actions; DiscreteInference plays those"):
        evaluate_run(EvaluateCommand(run))
    assert FAMILIES["discrete"].recorded == ("discount", "reward_clip", "play", "fingerprint")
