"""Frame stores while they are written: torn, killed, refused, and never half there."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from frame_cases import SMALL, made_up_games, write_store

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.data.frames import FrameStore
from brrcrl_lib.data.registry import DatasetError
from brrcrl_lib.tools.publishing.frame_writer import FrameWriter, staging_folder


def test_a_torn_tail_is_cut_off_and_nothing_committed_is_lost(tmp_path):
    games = made_up_games((5, 7, 6))
    target = tmp_path / "s"
    writer = FrameWriter(target, {"env": "made up"}, SMALL)
    writer.append(**games[0], policy=0, seed=100)
    writer.append(**{key: column[:3] for key, column in games[1].items()})  # in the middle of a game
    writer.commit(game=1, step=3)
    writer.append(**{key: column[3:5] for key, column in games[1].items()})
    writer.close()  # as if killed: never committed
    with (staging_folder(target) / "frames.u8").open("ab") as file:
        file.write(b"torn")
    with pytest.raises(DatasetError, match="no frame store"):
        FrameStore(target)
    assert len(FrameStore(staging_folder(target))) == 5  # only whole games count
    with FrameWriter(target, {"env": "made up"}, SMALL) as again:
        assert again.resumed and again.progress == {"game": 1, "step": 3} and (again.steps, again.open_steps) == (8, 3)
        again.append(**{key: column[3:] for key, column in games[1].items()}, policy=1, seed=101)
        again.append(**games[2], policy=0, seed=102)
        again.finish()
    whole = write_store(tmp_path / "whole", games)
    for name in ("frames.u8", "steps.bin", "episodes.bin", "store.json"):
        assert (target / name).read_bytes() == (whole / name).read_bytes(), name
    assert not staging_folder(target).exists()


@pytest.mark.parametrize("kept", [0, 5])
def test_a_kill_just_after_going_back_costs_nothing(tmp_path, kept):
    """What store.json says is never more than what the files hold."""
    games = made_up_games((5, 7))
    writer = FrameWriter(tmp_path / "s", {"env": "made up"}, SMALL)
    for game in games:
        writer.append(**game)
    writer.commit(game=2)
    writer.rewind(kept, int(kept > 0), 0)
    writer.close()  # as if killed
    with FrameWriter(tmp_path / "s", {"env": "made up"}, SMALL) as again:
        assert again.resumed and again.steps == kept and again.progress == ({"game": 2} if kept else {})
        for game in games[kept > 0 :]:
            again.append(**game, policy=0, seed=100)
        again.finish()
    assert FrameStore(tmp_path / "s").lengths.tolist() == [5, 7]


def test_a_kill_just_before_the_last_rename_costs_nothing(tmp_path, monkeypatch):
    games = made_up_games((5, 7))
    with FrameWriter(tmp_path / "s", {"env": "made up"}, SMALL) as writer:
        for game in games:
            writer.append(**game)
        monkeypatch.setattr(Path, "replace", _refuse)
        with pytest.raises(KeyboardInterrupt):
            writer.finish(extra=1)
    monkeypatch.undo()
    with FrameWriter(tmp_path / "s", {"env": "made up"}, SMALL) as again:
        assert again.resumed and again.steps == 12
        again.finish(extra=1)
    store = FrameStore(tmp_path / "s")
    assert store.lengths.tolist() == [5, 7] and store.about == {"env": "made up", "extra": 1}


_replace = Path.replace


def _refuse(self: Path, target: Path) -> Path:
    """Files may be renamed, folders not."""
    if self.is_dir():
        raise KeyboardInterrupt
    return _replace(self, target)


def _write_forever(target: Path) -> None:
    writer = FrameWriter(target, {}, SMALL)
    number = writer.progress.get("games", 0)
    while True:
        writer.append(**made_up_games((4,), seed=number, truncate_every=9)[0], seed=number)
        number += 1
        writer.commit(games=number)


def test_a_killed_writer_leaves_whole_games(tmp_path):
    target = tmp_path / "s"
    context = multiprocessing.get_context("fork")
    for _ in range(3):
        process = context.Process(target=_write_forever, args=(target,))
        process.start()
        while not (staging_folder(target) / "store.json").exists():
            time.sleep(0.01)
        time.sleep(0.1)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    with FrameWriter(target, {}, SMALL) as writer:
        count = writer.progress["games"]
        writer.finish()
    store = FrameStore(target)
    assert store.seeds.tolist() == list(range(count)) and count > 3
    for number in range(count):
        expected = made_up_games((4,), seed=number, truncate_every=9)[0]["frames"]
        assert np.array_equal(store.frames[4 * number : 4 * number + 4], expected)


def test_an_unfinished_game_can_be_dropped(tmp_path):
    games = made_up_games((5, 7))
    with FrameWriter(tmp_path / "s", {}, SMALL) as writer:
        writer.append(**games[0])
        writer.append(**{key: column[:4] for key, column in games[1].items()})
        assert writer.drop_open() == 4 and writer.steps == 5
        writer.append(**games[1])
        writer.append(**{key: column[:2] for key, column in games[0].items()})
        writer.finish(extra=[1, 2])
    store = FrameStore(tmp_path / "s")
    assert store.lengths.tolist() == [5, 7] and store.about == {"extra": [1, 2]}
    assert np.array_equal(store.frames[5:], games[1]["frames"])


def test_a_store_begun_otherwise_is_not_continued(tmp_path):
    with FrameWriter(tmp_path / "s", {"env": "Pong", "seed": 0}, SMALL) as writer:
        writer.append(**made_up_games((3,))[0])
        writer.commit()
    with pytest.raises(DatasetError, match=r"beginning of something else \(other seed\)"):
        FrameWriter(tmp_path / "s", {"env": "Pong", "seed": 1}, SMALL)


def test_two_writers_do_not_get_in_each_others_way(tmp_path):
    with FrameWriter(tmp_path / "s", {}, SMALL) as writer:
        writer.append(**made_up_games((3,))[0])
        writer.commit()
        with pytest.raises(KitError, match=r"process \d+ on .* is writing"):
            FrameWriter(tmp_path / "s", {}, SMALL)
        writer.finish()
    assert len(FrameStore(tmp_path / "s")) == 3


def test_nothing_is_left_of_a_store_that_never_got_anything(tmp_path):
    with pytest.raises(DatasetError, match="no finished episode"), FrameWriter(tmp_path / "s", {}, SMALL) as writer:
        writer.finish()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"frames": np.zeros((3, 3, 2), np.float32)}, "must be uint8"),
        ({"frames": np.zeros((3, 4, 4), np.uint8)}, r"must be uint8 \[n, 3, 2\]; got uint8 \[3, 4, 4\]"),
        ({"actions": np.array([1, 2])}, r"3 frames, but actions \(2,\)"),
        ({"actions": np.array([1, 2, 256])}, "0 to 255; got 1 to 256"),
        ({"actions": np.array([1, -1, 2])}, "0 to 255"),
        ({"rewards": np.array([0.0, np.nan, 1.0])}, "not finite, in step 1"),
        ({"terminated": np.zeros(4, bool)}, r"flags of shape \(4,\)"),
    ],
)
def test_wrong_arrays_are_refused(tmp_path, change, message):
    game = made_up_games((3,))[0]
    with FrameWriter(tmp_path / "s", {}, SMALL) as writer, pytest.raises(DatasetError, match=message):
        writer.append(**(game | change))
    assert list(tmp_path.iterdir()) == []
