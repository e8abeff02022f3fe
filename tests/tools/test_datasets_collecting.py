"""A tiny real collection: killed, resumed, published, verified, rolled out again."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.data.minari import load_dataset
from brrcrl_lib.data.registry import DatasetError, list_datasets
from brrcrl_lib.data.storage import FlatEpisodes, read_part
from brrcrl_lib.returns import reward_to_go
from brrcrl_lib.tools.agents.vectors import SacActor
from brrcrl_lib.tools.bench.loading import benchmark_loading
from brrcrl_lib.tools.collecting.collect import CollectConfig, collect, read_curve
from brrcrl_lib.tools.publishing.cards import BEGIN, write_cards
from brrcrl_lib.tools.publishing.minari_writer import write_dataset
from brrcrl_lib.tools.publishing.publish import PublishConfig, choose_medium, choose_replay, publish
from brrcrl_lib.tools.publishing.rollout import RolloutConfig, rollout, staging_key
from brrcrl_lib.tools.publishing.verify import verify

TINY = {"hidden": (16, 16), "batch_size": 16, "random_steps": 60, "snapshot_every": 100, "evaluation_episodes": 2}
STEPS = 450


def kill_once(process: Any, ready: Path) -> None:
    """Kill a running process with SIGKILL soon after `ready` exists."""
    deadline = time.monotonic() + 200
    while not ready.exists():
        assert time.monotonic() < deadline, f"{ready} did not appear in 200 seconds"
        time.sleep(0.01)
    time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("collected") / "run"
    collect(CollectConfig("Hopper-v5", folder, steps=STEPS, **TINY), progress=False)
    return folder


@pytest.fixture(scope="module")
def published(run, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("data") / "minari"
    publish(
        PublishConfig(run, "hopper", root, min_replay=250, medium_share=0.01, steps=300, num_envs=4, fresh_episodes=2)
    )
    return root


def test_a_killed_and_resumed_run_writes_the_same_bytes(run, tmp_path):
    folder = tmp_path / "run"
    script = (
        "from pathlib import Path; from brrcrl_lib.tools.collecting.collect import CollectConfig, collect; "
        f"collect(CollectConfig('Hopper-v5', Path({str(folder)!r}), steps=100_000, **{TINY!r}), progress=False)"
    )
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        kill_once(process, folder / "state.safetensors")
    assert process.returncode == -signal.SIGKILL
    assert 1 <= len(read_curve(folder)) < len(read_curve(run)), "the kill came too late to show anything"
    collect(CollectConfig("Hopper-v5", folder, steps=STEPS, **TINY), progress=False)
    for kind, content in (("parts/*.hdf5", Path.read_bytes), ("snapshots/*.safetensors", policy_content)):
        expected, found = sorted(run.glob(kind)), sorted(folder.glob(kind))
        assert [file.name for file in found] == [file.name for file in expected] and found
        for one, other in zip(expected, found, strict=True):
            assert content(one) == content(other), one.name
    without_clock = [[{**point, "seconds": 0} for point in read_curve(place)] for place in (run, folder)]
    assert without_clock[0] == without_clock[1]


def policy_content(file: Path) -> tuple:
    """What a policy file says; the order of its header's entries is not part of that."""
    actor = SacActor.load(file)
    return actor.about, {name: tensor.numpy().tobytes() for name, tensor in actor.state_dict().items()}


def test_other_settings_do_not_continue_a_run(run):
    with pytest.raises(ValueError, match="batch_size: 16 before, 17 now"):
        collect(CollectConfig("Hopper-v5", run, steps=STEPS, **{**TINY, "batch_size": 17}), progress=False)


def test_what_is_published_verifies(published, run):
    names = ["expert", "medium-expert", "medium-replay", "medium"]
    assert list_datasets(published) == sorted(f"brrcrl/hopper/{name}-v1" for name in names)
    rows = verify(published)
    assert all(row.ok for row in rows), [row for row in rows if not row.ok]
    assert sum(row.check == "replay" and "3 episodes" in row.details for row in rows) == 4
    data = {name: load_dataset(f"brrcrl/hopper/{name}-v1", root=published) for name in names}
    assert data["medium-expert"].lengths.tolist() == [*data["medium"].lengths, *data["expert"].lengths]
    assert len(data["medium"]) >= 300 > len(data["medium"]) - data["medium"].lengths[-1]
    curve = read_curve(run)
    ends = np.cumsum(np.concatenate([read_part(part).lengths for part in sorted(run.glob("parts/*.hdf5"))]))
    random = int(min(end for end in ends if end >= TINY["random_steps"]))  # a policy's episodes begin here
    last = next(point for point in curve if point["step"] - random >= 250)
    assert len(data["medium-replay"]) == last["step"] - random and random >= TINY["random_steps"] > 0
    recorded = FlatEpisodes.concatenate([read_part(part) for part in sorted(run.glob("parts/*.hdf5"))])
    assert data["medium-replay"].actions[:5].tolist() == recorded.actions[random : random + 5].tolist()
    assert (
        data["medium-replay"].seeds.tolist()
        == recorded.seeds[np.searchsorted(ends, random) + 1 :][: data["medium-replay"].episodes].tolist()
    )
    replay = data["medium-replay"].card
    assert f"The first {random:,} steps, uniformly random and not the agent's, are left out." in replay["description"]
    assert replay["card"]["medium_step"] == curve[0]["step"] < last["step"] == replay["card"]["policy"]["step"]
    assert f"after {curve[0]['step']:,} steps" in replay["description"]
    card = data["expert"].card["card"]
    assert card["policy"]["step"] == max(curve, key=lambda point: point["return_mean"])["step"]
    assert card["return_mean"] == pytest.approx(data["expert"].returns.mean().item(), abs=0.06)
    assert "out" not in json.dumps(card["training"]) and str(run) not in json.dumps(data["medium-replay"].card)
    actor = SacActor.load(published.parent / "policies" / "hopper-expert-v1.safetensors")
    assert actor.about["fresh_return_mean"] == card["policy"]["fresh_return_mean"]
    assert (published.parent / "policies" / "hopper-learning-curve-v1.csv").read_text().count("\n") == len(curve) + 1


def test_replaying_a_stored_episode_meets_the_training_rtg_step_by_step(published):
    """The environment, the stored seed and the stored actions alone give every RTG that training sees."""
    data = load_dataset("brrcrl/hopper/medium-v1", root=published, discount=0.97)
    env = data.make_env()
    for episode in (0, data.episodes - 1):
        start, length = int(data.starts[episode]), int(data.lengths[episode])
        env.reset(seed=int(data.seeds[episode]))
        rewards = [float(env.step(action.numpy())[1]) for action in data.actions[start : start + length]]
        remaining = reward_to_go(rewards, [length], 0.97)
        assert np.abs(remaining - data.rtg[start : start + length].numpy()).max() < 1e-4
        target = float(data.rtg[start])  # and a target that is lowered reward by reward arrives at each of them
        for step, reward in enumerate(rewards[:-1]):
            target = (target - reward) / 0.97
            assert target == pytest.approx(float(data.rtg[start + step + 1]), abs=1e-4 / 0.97**step)


def test_cards_replace_only_their_own_table(published):
    readme = published.parent / "README.md"
    before = readme.read_text()
    readme.write_text("# Mine\n\nKept.\n\n" + before[before.index(BEGIN) :] + "\nAlso kept.\n")
    text = write_cards(published).read_text()
    assert text.startswith("# Mine\n\nKept.\n") and text.endswith("Also kept.\n") and text.count(BEGIN) == 1
    assert text.count("| `brrcrl/hopper/") == 4 + 3  # once each, and three beside their counterparts in D4RL
    assert "| 402,000 | 467 (15.0) | 3,193 (98.7) |" in text


def test_medium_is_the_first_good_snapshot_and_its_replay_goes_on_until_there_is_enough():
    curve = [{"step": step, "return_mean": mean} for step, mean in ((10, 20), (20, 50), (30, 10), (40, 90))]
    assert choose_medium(curve, 90, 1 / 3) == 1
    assert [choose_replay(curve, 1, least) for least in (0, 20, 21, 40)] == [1, 1, 2, 3]
    assert [choose_replay(curve, 1, least, left_out=5) for least in (0, 15, 16, 35)] == [1, 1, 2, 3]
    with pytest.raises(DatasetError, match=r"no snapshot earns 0\.33 of the expert's 900"):
        choose_medium(curve, 900, 1 / 3)
    with pytest.raises(DatasetError, match="the run has 40 steps, fewer than the 50 transitions"):
        choose_replay(curve, 1, 50)


def test_publishing_refuses_before_it_works(published, run, tmp_path):
    with pytest.raises(DatasetError, match=r"exist in .*pass --overwrite"):
        publish(PublishConfig(run, "hopper", published))
    with pytest.raises(DatasetError, match="no collection run"):
        publish(PublishConfig(tmp_path, "hopper", tmp_path / "root"))


# -- rollouts -----------------------------------------------------------------------------------------------------


def parts(folder: Path) -> list[bytes]:
    return [part.read_bytes() for part in sorted((folder / "data").glob("part-*.hdf5"))]


def test_the_shipped_policy_makes_the_shipped_dataset_again(published, tmp_path):
    policy = published.parent / "policies" / "hopper-medium-v1.safetensors"
    again = rollout(RolloutConfig(policy, "again/medium-v0", steps=300, num_envs=4, root=tmp_path))
    assert parts(again) == parts(published / "brrcrl/hopper/medium-v1")


def test_a_killed_rollout_continues_to_the_same_dataset(published, tmp_path):
    policy = published.parent / "policies" / "hopper-expert-v1.safetensors"
    whole = rollout(RolloutConfig(policy, "whole/set-v0", steps=1500, num_envs=4, root=tmp_path))
    endless = RolloutConfig(policy, "cut/set-v0", steps=10**7, num_envs=4, root=tmp_path)
    staging = tmp_path / ".staging" / "cut" / "set-v0" / staging_key(policy, "Hopper-v5", endless)
    process = multiprocessing.get_context("fork").Process(target=rollout, args=(endless,))
    process.start()
    kill_once(process, staging / "block-00001.hdf5")
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert list_datasets(tmp_path) == ["whole/set-v0"]  # nothing half-written is listed
    continued = rollout(RolloutConfig(policy, "cut/set-v0", steps=1500, num_envs=4, root=tmp_path))
    assert parts(continued) == parts(whole)
    assert not staging.exists()
    data = load_dataset("cut/set-v0", root=tmp_path)
    assert len(data) >= 1500 > len(data) - data.lengths[-1]
    assert len(set(data.seeds.tolist())) == data.episodes


def test_rollouts_refuse_bad_requests(published, tmp_path):
    policy = published.parent / "policies" / "hopper-medium-v1.safetensors"
    with pytest.raises(DatasetError, match="takes 11 observations and gives 3 actions"):
        rollout(RolloutConfig(policy, "bad/env-v0", env="Walker2d-v5", root=tmp_path))
    with pytest.raises(DatasetError, match="is no dataset id"):
        rollout(RolloutConfig(policy, "bad id", root=tmp_path))
    with pytest.raises(DatasetError, match="exists in"):
        rollout(RolloutConfig(policy, "brrcrl/hopper/medium-v1", root=published))
    with pytest.raises(KitError, match="at least 1"):
        rollout(RolloutConfig(policy, "bad/steps-v0", steps=0, root=tmp_path))
    with pytest.raises(DatasetError, match="no policy at"):
        rollout(RolloutConfig(tmp_path / "absent", "bad/policy-v0", root=tmp_path))
    assert not any(tmp_path.iterdir())


# -- verification notices -----------------------------------------------------------------------------------------


def rewritten(published, tmp_path, change):
    """A copy of medium whose episodes went through `change`, written with right hashes."""
    folder = published / "brrcrl/hopper/medium-v1" / "data"
    flat = read_part(folder / "part-000.hdf5")
    arrays = {name: getattr(flat, name).copy() for name in FlatEpisodes.__dataclass_fields__}
    change(arrays)
    env = gym.make("Hopper-v5")
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    card = {"card": json.loads((folder / "metadata.json").read_text())["card"]}
    write_dataset(tmp_path, "test/copy-v0", [FlatEpisodes(**arrays)], env_spec=env.spec, card=card, **spaces)
    return {row.check: row for row in verify(tmp_path)}


def test_verification_passes_an_honest_copy(published, tmp_path):
    assert all(row.ok for row in rewritten(published, tmp_path, lambda arrays: None).values())


@pytest.mark.parametrize(
    ("name", "value", "failing"),
    [
        ("rewards", lambda rewards: rewards + 0.01, {"returns", "replay"}),
        ("seeds", lambda seeds: seeds + 1, {"replay"}),
        ("actions", lambda actions: actions * 1.5, {"actions", "replay"}),
        ("truncations", lambda truncations: ~truncations, {"ends"}),
    ],
)
def test_verification_notices_what_hashes_cannot(published, tmp_path, name, value, failing):
    def change(arrays):
        arrays[name] = value(arrays[name])

    rows = rewritten(published, tmp_path, change)
    assert {check for check, row in rows.items() if not row.ok} == failing


def test_verification_names_a_damaged_file(published, tmp_path):
    shutil.copytree(published, tmp_path / "copy")
    part = tmp_path / "copy/brrcrl/hopper/expert-v1/data/part-000.hdf5"
    part.write_bytes(part.read_bytes()[:-1])
    bad = [row for row in verify(tmp_path / "copy") if not row.ok]
    assert {row.dataset for row in bad} == {"brrcrl/hopper/expert-v1", "brrcrl/hopper/medium-expert-v1"}
    assert all("part-000.hdf5 does not have the recorded sha256" in row.details for row in bad)


def test_the_loading_benchmark_compares_like_with_like(published):
    row = benchmark_loading("brrcrl/hopper/medium-v1", published, repeats=1)
    data = load_dataset("brrcrl/hopper/medium-v1", root=published)
    assert (row["steps"], row["episodes"]) == (len(data), data.episodes)
    assert row["minari_plain_seconds"] > 0 and row["speedup_over_plain"] > 1


def test_one_command_collects_and_publishes(run, tmp_path, monkeypatch):
    """`--publish-as` hands a finished run to `publish`; a run that ended before is not trained again."""
    folder = shutil.copytree(run, tmp_path / "run")
    stored = json.loads((folder / "config.json").read_text())
    asked: list[PublishConfig] = []
    monkeypatch.setattr("brrcrl_lib.tools.collecting.collect.publish", asked.append)
    hidden = tuple(stored["hidden"])
    settings = {
        key: value for key, value in stored.items() if key not in ("out", "hidden", "stop_return", "publish_as")
    }
    curve = collect(CollectConfig(out=folder, hidden=hidden, publish_as="hopper", **settings), progress=False)
    assert curve == read_curve(run)
    assert asked == [PublishConfig(folder, "hopper")]
