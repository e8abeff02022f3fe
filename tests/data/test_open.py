"""`open_source` and `kind_of`: data by name, whichever place they come from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from discrete_cases import CARTPOLE

from brrcrl_lib.data import open as opening
from brrcrl_lib.data.batch import Needs
from brrcrl_lib.data.frame_format import STEP, fingerprint
from brrcrl_lib.data.frame_source import FrameSource
from brrcrl_lib.data.frames import FrameStore
from brrcrl_lib.data.open import kind_of, open_source
from brrcrl_lib.data.registry import DatasetError
from brrcrl_lib.data.vectors import OfflineDataset

HOPPER = "brrcrl/hopper/medium-replay-v0"


def test_a_ladder_opens_with_the_papers_discount_and_clipped_rewards(frames: Path) -> None:
    source = open_source("ladder/qbert")
    facts = source.facts()
    assert isinstance(source, FrameSource) and source.id == facts.dataset == "ladder/qbert"
    assert (facts.env, facts.kind, facts.discount, facts.reward_clip) == ("ALE/Qbert-v5", "pixels", 0.95, 1.0)
    store = FrameStore(frames / "ladder/qbert")
    assert float(store.rewards.max()) >= 25  # what the game pays
    following, slowly = 0.0, []
    ends = set((store.starts + store.lengths - 1).tolist())
    for step in reversed(range(len(store))):
        following = min(1.0, float(store.rewards[step])) + (0.0 if step in ends else 0.95 * following)
        slowly.append(following)
    np.testing.assert_allclose(source.rtg.numpy(), slowly[::-1], atol=1e-5)
    raw = open_source("ladder/qbert", discount=1.0, reward_clip=0)
    assert raw.facts().reward_clip is None and float(raw.rtg.max()) == pytest.approx(float(store.returns.max()))
    with pytest.raises(DatasetError, match=r"clipped to \[-1, 1\] \(reward_clip 1\) or not at all \(0\); not 2"):
        open_source("ladder/qbert", reward_clip=2)


def test_frames_come_with_what_follows_only_when_it_is_asked_for(frames: Path) -> None:
    source = open_source("ladder/qbert")
    batch = source.sample(4, torch.Generator().manual_seed(0))
    assert batch.next_observations is None and batch.observations.shape == (4, 4, 84, 84)
    batch = source.sample(4, torch.Generator().manual_seed(0), Needs(next=True))
    assert batch.next_observations is not None and batch.next_observations.shape == (4, 4, 84, 84)
    with pytest.raises(DatasetError, match="windows of several steps come from vectors only"):
        source.sample(4, torch.Generator(), Needs(context=3))


def test_vectors_with_discrete_actions_open_by_their_id(cartpole: None) -> None:
    source = open_source(CARTPOLE)
    facts = source.facts()
    assert isinstance(source, OfflineDataset) and kind_of(CARTPOLE) == facts.kind == "discrete"
    assert (facts.discount, facts.action_count, facts.reward_clip) == (0.95, 2, None)
    assert open_source(CARTPOLE, reward_clip=0.5).facts().reward_clip == 0.5
    assert float(open_source(CARTPOLE, reward_clip=0.5).rtg.max()) == pytest.approx(float(source.rtg.max()) / 2)


def test_kinds_are_told_apart_by_the_data_or_their_world() -> None:
    assert kind_of(HOPPER) == "box" and kind_of("ladder/pong") == "pixels"
    assert kind_of("brrcrl/hopper/not-here-v0") == "box"  # by its card, so that help can say its defaults
    with pytest.raises(DatasetError, match="did you mean 'brrcrl/hopper"):
        kind_of("brrcrl/hoper/medium-replay-v0")


def test_a_sample_that_is_not_unpacked_is_an_error_with_the_command(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(opening, "SAMPLES", tmp_path)
    monkeypatch.setenv("BRRCRL_FRAMES_PATH", str(tmp_path / "frames"))
    with pytest.raises(DatasetError, match=r"--ladder qbert && .* pack ladder/qbert .* unpack .* --name sample/qbert"):
        open_source("sample/qbert")
    (tmp_path / "qbert.npz").touch()
    with pytest.raises(DatasetError, match=r"'sample/qbert' in .*; `brrcrl data unpack .*qbert.npz --name sample"):
        open_source("sample/qbert")
    assert not (tmp_path / "frames").exists()


def test_a_fingerprint_sees_every_action_and_reward_and_nothing_else(frames: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(frames / "ladder/qbert", folder)
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
