"""Files under attack: killed at every step, a full disk, two writers, folders that are not ours."""

from __future__ import annotations

import errno
import multiprocessing
import os
import time
from pathlib import Path

import pytest
import torch

from brrcrl_lib.base.environments import make_env
from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.files import atomic_path, locked, write_json
from brrcrl_lib.base.tensors import load_tensors, save_tensors


def test_what_dead_processes_left_is_swept_and_living_ones_keep_theirs(tmp_path) -> None:
    process = multiprocessing.get_context("fork").Process(target=int)
    process.start()
    process.join()
    dead, alive = tmp_path / f".x.json.{process.pid}.partial", tmp_path / f".x.json.{os.getppid()}.partial"
    other = tmp_path / f".y.json.{process.pid}.partial"
    for left in (dead, alive, other):
        left.write_text("half")
    write_json(tmp_path / "x.json", 1)
    assert sorted(tmp_path.iterdir()) == sorted([alive, other, tmp_path / "x.json"])


def test_a_full_disk_is_one_sentence_and_keeps_what_was_there(tmp_path) -> None:
    write_json(tmp_path / "x.json", 1)
    with pytest.raises(OSError, match=r"no space left for .*x\.json; free some"), atomic_path(tmp_path / "x.json"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def _hold(target: Path) -> None:
    with locked(target):
        target.touch()
        time.sleep(0.3)


def test_a_lock_keeps_others_out_or_lets_them_wait_and_leaves_nothing(tmp_path) -> None:
    process = multiprocessing.get_context("fork").Process(target=_hold, args=(tmp_path / "x",))
    process.start()
    while not (tmp_path / "x").exists():
        time.sleep(0.01)
    with pytest.raises(KitError, match=r"process \d+ on .* is writing"), locked(tmp_path / "x"):
        pass
    with locked(tmp_path / "x", wait=True):
        assert process.exitcode is None or process.exitcode == 0
    process.join()
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_tensors_give_the_same_bytes_every_time(tmp_path) -> None:
    tensors = {"b": torch.arange(3), "a": torch.ones(2, 2)}
    contents = set()
    for number in range(8):
        metadata = {str(key): "x" for key in (range(9) if number % 2 else reversed(range(9)))}
        save_tensors(tmp_path / "x", tensors, metadata)
        contents.add((tmp_path / "x").read_bytes())
    assert len(contents) == 1
    found, loaded = load_tensors(tmp_path / "x")
    assert found == metadata and all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    (tmp_path / "x").write_bytes(b"nonsense")
    with pytest.raises(KitError, match="not a readable safetensors file"):
        load_tensors(tmp_path / "x")


@pytest.mark.parametrize("name", ["", "os:Hopper-v5", "Hopper-v99", "NoSuch-v0", "Hopper"])
def test_environments_are_registered_ones_with_their_version(name: str) -> None:
    with pytest.raises(KitError, match="environment"):
        make_env(name)
