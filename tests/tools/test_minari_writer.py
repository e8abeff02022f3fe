"""Minari datasets as they are written: what Minari reads, views without copies, nothing lost by overwriting."""

from __future__ import annotations

import errno
from pathlib import Path

import gymnasium as gym
import minari
import numpy as np
import pytest
from minari_cases import LENGTHS, made_up_episodes, write

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.data.minari import load_dataset
from brrcrl_lib.data.registry import DatasetError, list_datasets
from brrcrl_lib.data.storage import part_paths
from brrcrl_lib.tools.publishing.minari_writer import flatten, new_file, write_dataset


@pytest.fixture
def env():
    return gym.make("Pendulum-v1")


@pytest.fixture
def episodes(env):
    return made_up_episodes(env)


def test_minari_reads_what_the_kit_writes(tmp_path, env, episodes, monkeypatch):
    write(tmp_path, "test/pendulum/small-v0", episodes, env)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    dataset = minari.load_dataset("test/pendulum/small-v0")
    for stored, episode in zip(dataset.iterate_episodes(), episodes, strict=True):
        assert np.array_equal(stored.observations, episode.observations)
        assert np.array_equal(stored.actions, episode.actions)
        assert np.array_equal(stored.rewards, episode.rewards)
    assert list(minari.list_local_datasets()) == ["test/pendulum/small-v0"] == list_datasets()
    assert len(load_dataset("test/pendulum/small-v0")) == sum(LENGTHS)  # found through the same variable


def test_a_view_of_two_datasets_is_both_without_a_copy(tmp_path, env, episodes):
    first = write(tmp_path, "test/one-v0", episodes, env)
    second = write(tmp_path, "test/two-v0", made_up_episodes(env, (2, 3), seed=5), env)
    parts = [part for folder in (first, second) for part in part_paths(folder / "data")]
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    both = write_dataset(tmp_path, "test/both-v0", parts, env_spec=env.spec, card={}, **spaces)
    data = load_dataset("test/both-v0", root=tmp_path)
    assert data.lengths.tolist() == [*LENGTHS, 2, 3]
    assert sorted(file.name for file in (both / "data").iterdir()) == ["main_data.hdf5", "metadata.json"]
    (second / "data" / "part-000.hdf5").unlink()
    with pytest.raises(DatasetError, match=r"two-v0/data/part-000.hdf5 is missing"):
        load_dataset("test/both-v0", root=tmp_path)


def test_overwriting_a_dataset_keeps_those_below_it_and_everything_that_is_none(tmp_path, env) -> None:
    episodes = made_up_episodes(env)
    write(tmp_path, "some/p-v0", episodes, env)
    write(tmp_path, "some/p-v0/child-v0", episodes, env)
    options = {"env_spec": env.spec, "observation_space": env.observation_space, "action_space": env.action_space}
    write_dataset(tmp_path, "some/p-v0", [flatten(episodes[:2])], card={}, overwrite=True, **options)
    assert list_datasets(tmp_path) == ["some/p-v0", "some/p-v0/child-v0"]
    assert load_dataset("some/p-v0", root=tmp_path).episodes == 2
    (tmp_path / "mine" / "p-v0" / "data").mkdir(parents=True)
    (tmp_path / "mine" / "p-v0" / "data" / "thesis.txt").write_text("precious")
    with pytest.raises(KitError, match=r"has no metadata\.json"):
        write_dataset(tmp_path, "mine/p-v0", [], card={}, overwrite=True, **options)
    assert (tmp_path / "mine" / "p-v0" / "data" / "thesis.txt").read_text() == "precious"


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
