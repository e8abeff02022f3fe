"""Packed samples of frame stores: bit by bit the same, and refused when they are not what they say."""

from __future__ import annotations

import json
import lzma
import multiprocessing
from pathlib import Path

import numpy as np
import pytest
import torch
from frame_cases import SMALL, made_up_games, write_store

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.data.frame_format import EPISODE
from brrcrl_lib.data.frames import FrameStore
from brrcrl_lib.data.registry import DatasetError
from brrcrl_lib.tools.publishing import samples
from brrcrl_lib.tools.publishing.pack import PackConfig, UnpackConfig, export_sample, import_sample, pack, unpack


def test_a_sample_survives_packing_bit_by_bit(tmp_path):
    games = made_up_games((20, 4, 33, 8))
    source = FrameStore(write_store(tmp_path / "s", games, about={"env": "made up", "sticky": True}))
    pack(PackConfig(tmp_path / "s", tmp_path / "sample.npz", max_bytes=1_000_000))
    copy = FrameStore(unpack(UnpackConfig(tmp_path / "sample.npz", "copy", tmp_path)).path)
    assert sorted(copy.lengths.tolist()) == [4, 8, 20, 33] and copy.about["sticky"] is True
    for number, seed in enumerate(copy.seeds):
        original = int(np.flatnonzero(source.seeds == seed)[0])
        steps, others = (s.episode_steps(np.array([n])) for s, n in ((copy, number), (source, original)))
        assert torch.equal(copy.observations(steps), source.observations(others))
        assert np.array_equal(copy.flags[steps], source.flags[others])
        assert torch.equal(copy.rewards[steps], source.rewards[others])
        assert torch.equal(copy.actions[steps], source.actions[others])
        assert copy.policies[number] == source.policies[original]


def test_a_sample_stays_below_its_limit_and_takes_what_fits(tmp_path):
    source = FrameStore(write_store(tmp_path / "s", made_up_games((100,) * 12, shape=(20, 20)), shape=(20, 20)))
    report = export_sample(source, tmp_path / "sample.npz", max_bytes=200_000)
    assert report["bytes"] == (tmp_path / "sample.npz").stat().st_size <= 200_000
    assert report["episodes"] == 4  # noise does not compress: 40 kB each
    with pytest.raises(DatasetError, match="not even one episode fits"):
        export_sample(source, tmp_path / "other.npz", max_bytes=1000)
    assert not (tmp_path / "other.npz").exists()


def test_damaged_samples_are_refused_and_leave_nothing(tmp_path):
    source = FrameStore(write_store(tmp_path / "s", made_up_games((20, 30))))
    file = tmp_path / "sample.npz"
    export_sample(source, file, max_bytes=100_000)
    content = file.read_bytes()
    for broken in (content[: len(content) // 2], b"", b"no sample", content[:600] + bytes(100) + content[700:]):
        file.write_bytes(broken)
        with pytest.raises(DatasetError, match="is no readable sample"):
            import_sample(file, tmp_path / "copy")
    with pytest.raises(DatasetError, match="no file at"):
        import_sample(tmp_path / "absent.npz", tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s", "sample.json", "sample.npz"]


def repacked(file: Path, **changes: np.ndarray) -> None:
    with np.load(file) as found:
        arrays = {name: found[name] for name in found.files} | changes
    np.savez(file, **arrays)


def head(**changes) -> np.ndarray:
    about = {"shape": SMALL, "about": {}, "source_steps": 50, "source_episodes": 2} | changes
    return np.frombuffer(json.dumps(about).encode(), np.uint8)


def table(*lengths: int) -> np.ndarray:
    return np.array([(length, 0, 0) for length in lengths], EPISODE).view(np.uint8)


BOMB = np.frombuffer(lzma.compress(bytes(5_000_000)), np.uint8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head": np.frombuffer(b"[]", np.uint8)}, "must hold an object"),
        ({"head": head(shape=[0, 0])}, "the field 'shape' must be"),
        ({"head": head(about="x")}, "the field 'about' must be"),
        ({"episodes": table(20)}, "whole episodes"),
        ({"episodes": table(20, -30)}, "one without steps"),
        ({"episodes": table(0, 50)}, "one without steps"),
        ({"episodes": table(25, 25)}, "do not end where"),
        ({"episodes": table(10, 10, 30)}, "do not end where"),
        ({"episodes": table()}, "is empty"),
        ({"block_0000": BOMB}, "takes more than"),
        ({"episodes": np.zeros(2, np.float64)}, "should be"),
    ],
)
def test_hostile_samples_are_refused_before_they_take_memory(tmp_path, monkeypatch, changes, message) -> None:
    monkeypatch.setattr(samples, "LARGEST_BLOCK", 1_000_000)
    file = tmp_path / "sample.npz"
    export_sample(FrameStore(write_store(tmp_path / "s", made_up_games((20, 30)))), file)
    repacked(file, **changes)
    with pytest.raises(KitError, match=message):
        import_sample(file, tmp_path / "copy")
    np.savez_compressed(file, head=head(), episodes=table(20, 30), block_0000=np.zeros(10**7, np.uint8))
    with pytest.raises(KitError, match="is compressed, or longer than the file"):
        import_sample(file, tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s", "sample.json", "sample.npz"]


def test_two_first_uses_of_a_sample_both_end_with_a_whole_store(tmp_path) -> None:
    source = FrameStore(write_store(tmp_path / "s", made_up_games((200,) * 20, shape=(20, 20)), shape=(20, 20)))
    export_sample(source, tmp_path / "sample.npz")
    context = multiprocessing.get_context("fork")
    for number in range(4):
        target = tmp_path / f"copy-{number}"
        start = context.Barrier(3)

        def use(target=target, start=start) -> None:
            start.wait()
            import_sample(tmp_path / "sample.npz", target, overwrite=True)
            assert len(FrameStore(target)) == 4_000

        processes = [context.Process(target=use) for _ in range(2)]
        for process in processes:
            process.start()
        start.wait()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0, 0]
        assert len(FrameStore(target)) == 4_000
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
