"""Files that come from anywhere: they run no code, take no more memory than they hold, and are refused by name."""

from __future__ import annotations

import errno
import json
import lzma
import multiprocessing
import os
from pathlib import Path

import gymnasium as gym
import h5py
import numpy as np
import pytest
from test_datasets_frames import SMALL, made_up_games
from test_datasets_frames import write as write_store
from test_datasets_loading import edit_metadata, made_up_episodes, write, write_plain

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.data import samples
from brrcrl_lib.data.frame_format import EPISODE
from brrcrl_lib.data.frames import FrameStore
from brrcrl_lib.data.hdf5 import new_file
from brrcrl_lib.data.minari import load_dataset, parse_env_spec
from brrcrl_lib.data.registry import list_datasets
from brrcrl_lib.data.samples import import_sample
from brrcrl_lib.data.storage import FlatEpisodes, part_paths, write_dataset
from brrcrl_lib.tools.publishing.pack import export_sample
from brrcrl_lib.tools.publishing.verify import verify

ID = "test/pendulum-v0"


@pytest.fixture
def env():
    return gym.make("Pendulum-v1")


# -- datasets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spaces", [True, False])
def test_metadata_run_no_code(tmp_path, env, monkeypatch, spaces) -> None:
    """The entry point in a spec is never looked at, whether the environment is needed for its spaces or for replay."""
    ran: list[str] = []
    monkeypatch.setattr(os, "system", ran.append)
    write(tmp_path, ID, made_up_episodes(env), env)
    spec = {"id": "Pendulum-v1", "entry_point": "os:system", "kwargs": {"command": "true"}, "additional_wrappers": []}
    edit_metadata(tmp_path, ID, env_spec=json.dumps(spec), **({} if spaces else {"observation_space": None}))
    data = load_dataset(ID, root=tmp_path)
    assert data.make_env().spec.entry_point == gym.spec("Pendulum-v1").entry_point
    verify(tmp_path)
    for name in ("os:Evil-v0", "", "nonsense id"):
        with pytest.raises(KitError, match="the field 'id' must be"):
            parse_env_spec(json.dumps(spec | {"id": name}))
    unknown = parse_env_spec(json.dumps(spec | {"id": "NotHere-v0"}))
    assert unknown.id == "NotHere-v0" and unknown.entry_point is None and not ran


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"total_steps": "20"}, "the field 'total_steps' must be"),
        ({"env_spec": 7}, "the field 'env_spec' must be"),
        ({"env_spec": "nonsense"}, "cannot be read as JSON"),
        ({"observation_space": "nonsense"}, "states no observation_space"),
        ({"action_space": json.dumps({"type": "Unknown"})}, "states no action_space"),
        ({"card": []}, "the field 'card' must be"),
        ({"sha256": "abc"}, "the field 'sha256' must be"),
    ],
)
def test_wrong_metadata_are_named(tmp_path, env, changes, message) -> None:
    write(tmp_path, ID, made_up_episodes(env), env)
    edit_metadata(tmp_path, ID, **changes)
    with pytest.raises(KitError, match=message):
        load_dataset(ID, root=tmp_path)
    assert [row.ok for row in verify(tmp_path)][-1:] == [False]
    (tmp_path / ID / "data" / "metadata.json").write_text("[]")
    with pytest.raises(KitError, match=r"metadata\.json must hold an object"):
        load_dataset(ID, root=tmp_path)


def plain_file(tmp_path: Path, env: gym.Env) -> Path:
    return write_plain(tmp_path, ID, made_up_episodes(env), env) / "main_data.hdf5"


def replaced(file: Path, make) -> None:
    """Put something else in the place of the rewards of episode 0."""
    with h5py.File(file, "a") as store:
        group = store["episode_0"]
        del group["rewards"]
        make(group)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda group: group.create_dataset("rewards", data=[b"1"] * 4), "real numbers are needed"),
        (lambda group: group.create_dataset("rewards", data=np.zeros(4, complex)), "real numbers are needed"),
        (lambda group: group.create_dataset("rewards", data=np.zeros(4, "f4,f4")), "real numbers are needed"),
        (lambda group: group.create_group("rewards"), "should be an array"),
        (lambda group: group.create_dataset("rewards", shape=(10**9,), chunks=(1000,)), "more than a file of its size"),
        (lambda group: group.create_dataset("rewards", shape=(10**9,), chunks=(10**9,)), "in pieces of"),
        (lambda group: group.create_dataset("rewards", data=np.zeros((4, 2))), "cannot be read"),
        (lambda group: None, "lacks /episode_0/rewards"),
    ],
)
def test_arrays_that_are_no_plain_numbers_are_refused(tmp_path, env, make, message) -> None:
    replaced(plain_file(tmp_path, env), make)
    with pytest.raises(KitError, match=message):
        load_dataset(ID, root=tmp_path)


def test_hdf5_does_not_reach_into_other_files(tmp_path, env) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(100))
    with h5py.File(tmp_path / "other.hdf5", "w") as other:
        other["rewards"] = np.zeros(4, np.float32)
    layout = h5py.VirtualLayout((4,), "f4")
    layout[:] = h5py.VirtualSource(str(tmp_path / "other.hdf5"), "rewards", (4,), "f4")
    for make in (
        lambda group: group.create_dataset("rewards", (4,), "f4", external=[(str(secret), 0, 16)]),
        lambda group: group.__setitem__("rewards", h5py.ExternalLink(str(tmp_path / "other.hdf5"), "rewards")),
        lambda group: group.create_virtual_dataset("rewards", layout),
    ):
        file = plain_file(tmp_path, env)
        replaced(file, make)
        with pytest.raises(KitError, match="another file, which is not followed"):
            load_dataset(ID, root=tmp_path)
        for left in file.parent.iterdir():
            left.unlink()
        file.parent.rmdir()


def test_rows_must_fit_the_spaces(tmp_path, env) -> None:
    wide = [np.zeros((len(episode), 4), np.float32) for episode in made_up_episodes(env)]
    episodes = made_up_episodes(env)
    for episode, actions in zip(episodes, wide, strict=True):
        object.__setattr__(episode, "actions", actions)
    write(tmp_path, ID, episodes, env)
    with pytest.raises(KitError, match=r"actions of shape \(4,\) per step; its spaces say \(1,\)"):
        load_dataset(ID, root=tmp_path)
    large = made_up_episodes(env)
    for episode in large:
        object.__setattr__(episode, "observations", np.full((len(episode) + 1, 3), 1e39))
    write(tmp_path, "test/large-v0", large, env)
    with pytest.raises(KitError, match="not finite as 32-bit numbers"):
        load_dataset("test/large-v0", root=tmp_path)


def test_views_name_parts_of_datasets_only(tmp_path, env) -> None:
    folder = write(tmp_path, ID, made_up_episodes(env), env) / "data"
    with h5py.File(folder / "main_data.hdf5", "a") as view:
        view.attrs["brrcrl_parts"] = json.dumps(["/etc/passwd"])
    with pytest.raises(KitError, match="no files of a dataset"):
        part_paths(folder)


def test_overwriting_a_dataset_keeps_those_below_it_and_everything_that_is_none(tmp_path, env) -> None:
    episodes = made_up_episodes(env)
    write(tmp_path, "some/p-v0", episodes, env)
    write(tmp_path, "some/p-v0/child-v0", episodes, env)
    options = {"env_spec": env.spec, "observation_space": env.observation_space, "action_space": env.action_space}
    write_dataset(tmp_path, "some/p-v0", [FlatEpisodes.from_episodes(episodes[:2])], card={}, overwrite=True, **options)
    assert list_datasets(tmp_path) == ["some/p-v0", "some/p-v0/child-v0"]
    assert load_dataset("some/p-v0", root=tmp_path).episodes == 2
    (tmp_path / "mine" / "p-v0" / "data").mkdir(parents=True)
    (tmp_path / "mine" / "p-v0" / "data" / "thesis.txt").write_text("precious")
    with pytest.raises(KitError, match=r"has no metadata\.json"):
        write_dataset(tmp_path, "mine/p-v0", [], card={}, overwrite=True, **options)
    assert (tmp_path / "mine" / "p-v0" / "data" / "thesis.txt").read_text() == "precious"


def test_an_interrupted_replacement_is_put_back_on_the_next_use(tmp_path, env) -> None:
    folder = write(tmp_path, ID, made_up_episodes(env), env) / "data"
    folder.rename(folder.with_name(".data.old"))  # killed between the two renames
    assert list_datasets(tmp_path) == [ID]
    folder.rename(folder.with_name(".data.old"))
    assert load_dataset(ID, root=tmp_path).episodes == 5


def test_a_full_disk_does_not_crash_hdf5(tmp_path, monkeypatch) -> None:
    """Nothing of HDF5 touches the disk: the whole file is one write of Python's."""
    written: list[Path] = []

    def fail(self: Path, content: bytes) -> int:
        written.append(self)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="no space left"), new_file(tmp_path / "x.hdf5") as file:
        file["a"] = np.zeros(10)
        assert not list(tmp_path.iterdir())
    assert len(written) == 1 and not list(tmp_path.iterdir())


# -- frame stores and samples --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": "12"}, "the field 'steps' must be"),
        ({"shape": "3, 2"}, "the field 'shape' must be"),
        ({"shape": None}, "the field 'shape' must be"),
        ({"shape": [0, 2]}, "the field 'shape' must be"),
        ({"about": []}, "the field 'about' must be"),
        ({"about": {"action_count": "four"}}, "the field 'action_count' must be"),
    ],
)
def test_wrong_stores_are_named(tmp_path, changes, message) -> None:
    file = write_store(tmp_path / "s", made_up_games((5, 7))) / "store.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(KitError, match=message):
        FrameStore(tmp_path / "s")


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
