"""`prepare` and `open_prepared`: samples unpacked and ladders played on first use; grids that need them."""

from __future__ import annotations

from pathlib import Path

import pytest
from frame_cases import fresh_policies, small_store

from brrcrl_lib import commands
from brrcrl_lib.data import open as opening
from brrcrl_lib.data.frames import FrameStore
from brrcrl_lib.data.registry import DatasetError
from brrcrl_lib.study.experiments.grids import cells
from brrcrl_lib.study.experiments.running import ExperimentConfig
from brrcrl_lib.tools.publishing import ladder as ladders
from brrcrl_lib.tools.publishing import prepare as preparing
from brrcrl_lib.tools.publishing.pack import export_sample
from brrcrl_lib.tools.publishing.prepare import open_prepared, prepare


def test_a_sample_is_unpacked_once_and_again_when_another_ships(frames: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(opening, "SAMPLES", tmp_path / "atari")
    with pytest.raises(DatasetError, match=r"no sample of qbert at .*--ladder qbert .*brrcrl data pack ladder/qbert"):
        open_prepared("sample/qbert")
    whole = FrameStore(frames / "ladder/qbert", discount=0.95, clip_rewards=True)
    monkeypatch.setenv("BRRCRL_FRAMES_PATH", str(tmp_path / "frames"))
    export_sample(whole, tmp_path / "atari/qbert.npz")
    source = open_prepared("sample/qbert")
    mark = source.facts().fingerprint
    assert source.id == "sample/qbert" and source.facts().play["sticky_actions"] is True
    assert sorted(source.rtg.tolist()) == sorted(whole.rtg.tolist())
    written = (tmp_path / "frames/sample/qbert/frames.u8").stat().st_mtime_ns
    assert open_prepared("sample/qbert").facts().fingerprint == mark
    assert (tmp_path / "frames/sample/qbert/frames.u8").stat().st_mtime_ns == written
    other = small_store(tmp_path / "other", "qbert", tmp_path / "policies", steps=150, seed=1)
    export_sample(other, tmp_path / "atari/qbert.npz")
    assert open_prepared("sample/qbert").facts().fingerprint != mark
    assert len(open_prepared("sample/qbert").rtg) == len(other)
    (tmp_path / "atari/qbert.npz").unlink()
    assert len(open_prepared("sample/qbert").rtg) == len(other)  # what was unpacked stays


def test_a_ladder_is_played_when_results_want_it_and_only_then(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("BRRCRL_FRAMES_PATH", str(tmp_path / "frames"))
    monkeypatch.setattr(ladders, "ROOT", tmp_path)
    monkeypatch.setattr(preparing, "LADDER_STEPS", 300)
    fresh_policies(tmp_path / "data/policies/atari/qbert", "qbert")
    with pytest.raises(DatasetError, match="brrcrl data rollout --ladder qbert"):
        open_prepared("ladder/qbert")
    mark = prepare("ladder/qbert")
    source = open_prepared("ladder/qbert", discount=0.9)
    assert source.facts().fingerprint == mark and source.facts().discount == 0.9
    monkeypatch.setattr(preparing, "LADDER_STEPS", 50_000)
    with pytest.raises(DatasetError, match=r"results want 50,000 of seed 0: `brrcrl data rollout .*--overwrite`"):
        prepare("ladder/qbert")
    assert prepare("brrcrl/hopper/medium-v0") is None


def test_a_grid_prepares_what_its_missing_cells_need(tmp_path: Path, monkeypatch) -> None:
    prepared, ran = [], []

    def fail_on_qbert(dataset: str) -> None:
        prepared.append(dataset)
        if dataset == "sample/qbert":
            raise DatasetError("no sample of qbert")  # the grid itself will say so

    monkeypatch.setattr(commands, "prepare", fail_on_qbert)
    monkeypatch.setattr(commands, "run_grid", lambda config: ran.append(config.dataset) or 0)
    every = cells("atari", "smoke", 10)
    config = ExperimentConfig("atari", "smoke", work=tmp_path, results=tmp_path)
    assert commands.run_experiments(config) == 0
    assert prepared == list(dict.fromkeys(cell.dataset for cell in every)) and ran == [None]
    prepared.clear()
    pong = ExperimentConfig("atari", "smoke", dataset="pong", work=tmp_path, results=tmp_path)
    assert commands.run_experiments(pong) == 0 and prepared == ["sample/pong"] and ran[-1] == "pong"
    prepared.clear()
    cell = next(cell for cell in every if cell.dataset == "sample/breakout")
    one = ExperimentConfig("atari", "smoke", key=cell.key, work=tmp_path, results=tmp_path)
    assert commands.run_experiments(one) == 0 and prepared == ["sample/breakout"]
