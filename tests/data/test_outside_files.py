"""Files that come from anywhere: they run no code, take no more memory than they hold, and are refused by name."""

from __future__ import annotations

import json
import os
from pathlib import Path

import gymnasium as gym
import h5py
import numpy as np
import pytest
from frame_cases import made_up_games, write_store
from minari_cases import edit_metadata, made_up_episodes, write, write_plain

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.data.frames import FrameStore
from brrcrl_lib.data.minari import load_dataset, parse_env_spec
from brrcrl_lib.data.registry import list_datasets
from brrcrl_lib.data.storage import part_paths
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


def test_ends_of_episodes_are_yes_or_no(tmp_path, env) -> None:
    file = plain_file(tmp_path, env)
    with h5py.File(file, "a") as store:
        del store["episode_0/truncations"]
        store["episode_0/truncations"] = np.full(4, np.nan)
    with pytest.raises(KitError, match="truncations hold other values than 0 and 1"):
        load_dataset(ID, root=tmp_path)
    assert not verify(tmp_path)[-1].ok


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


def test_an_interrupted_replacement_is_put_back_on_the_next_use(tmp_path, env) -> None:
    folder = write(tmp_path, ID, made_up_episodes(env), env) / "data"
    folder.rename(folder.with_name(".data.old"))  # killed between the two renames
    assert list_datasets(tmp_path) == [ID]
    folder.rename(folder.with_name(".data.old"))
    assert load_dataset(ID, root=tmp_path).episodes == 5


# -- frame stores ---------------------------------------------------------------------------------------------------


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
