"""Minari datasets on disk: flat, compressed parts, and a Minari view of them that copies nothing.

    data/minari/brrcrl/hopper/medium-v0/data/
        metadata.json      Minari's own metadata, plus the kit's card
        main_data.hdf5     one group an episode, as Minari wants it: virtual datasets that point into the parts
        part-000.hdf5      the transitions, concatenated: observations [sum(T_i + 1), n], actions [sum(T_i), m], ...

Minari reads such a dataset as it is. The kit reads the parts, a whole array at a time, which is many times
faster than opening five HDF5 objects for each of thousands of episodes. A view may point into another
dataset's parts, so medium-expert is medium and expert together without a second copy.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
from gymnasium.envs.registration import EnvSpec
from minari import __version__ as minari_version
from minari.serialization import serialize_space

from brrcrl_lib.base.files import check_replaceable, partial_path, remove, replace_folder, settle, sha256, write_json
from brrcrl_lib.data.episodes import Episode
from brrcrl_lib.data.hdf5 import check_memory, new_file, numbers, reading
from brrcrl_lib.data.registry import DatasetError

STEP_FIELDS = ("actions", "rewards", "terminations", "truncations")
FIELDS = ("observations", *STEP_FIELDS)
PARTS_ATTRIBUTE = "brrcrl_parts"


@dataclass(frozen=True)
class FlatEpisodes:
    """Many episodes as flat arrays; episode i owns `lengths[i]` steps and `lengths[i] + 1` observations."""

    observations: np.ndarray  # [steps + episodes, observation size]
    actions: np.ndarray  # [steps, action size], or [steps] for discrete actions
    rewards: np.ndarray  # [steps]
    terminations: np.ndarray  # [steps], bool
    truncations: np.ndarray  # [steps], bool
    lengths: np.ndarray  # [episodes]
    seeds: np.ndarray  # [episodes]; -1 where unknown

    @classmethod
    def from_episodes(cls, episodes: Sequence[Episode]) -> FlatEpisodes:
        lengths = np.array([len(episode) for episode in episodes], dtype=np.int64)
        ends = np.cumsum(lengths) - 1
        terminations = np.zeros(lengths.sum(), dtype=bool)
        truncations = np.zeros(lengths.sum(), dtype=bool)
        terminations[ends] = [episode.terminated for episode in episodes]
        truncations[ends] = [episode.truncated for episode in episodes]
        return cls(
            observations=np.concatenate([episode.observations for episode in episodes]),
            actions=np.concatenate([episode.actions for episode in episodes]),
            rewards=np.concatenate([episode.rewards for episode in episodes]).astype(np.float32),
            terminations=terminations,
            truncations=truncations,
            lengths=lengths,
            seeds=np.array([episode.seed for episode in episodes], dtype=np.int64),
        )

    @classmethod
    def concatenate(cls, pieces: Sequence[FlatEpisodes]) -> FlatEpisodes:
        if len(pieces) == 1:
            return pieces[0]
        names = cls.__dataclass_fields__
        return cls(**{name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in names})

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def starts(self) -> np.ndarray:
        """First step of each episode, [episodes]."""
        return np.cumsum(self.lengths) - self.lengths

    def episode(self, index: int) -> Episode:
        start, length = int(self.starts[index]), int(self.lengths[index])
        steps = slice(start, start + length)
        return Episode(
            observations=self.observations[start + index : start + index + length + 1],
            actions=self.actions[steps],
            rewards=self.rewards[steps],
            terminated=bool(self.terminations[steps][-1]),
            truncated=bool(self.truncations[steps][-1]),
            seed=int(self.seeds[index]),
        )

    def head(self, episodes: int) -> FlatEpisodes:
        """The first `episodes` episodes."""
        steps = int(self.lengths[:episodes].sum())
        return FlatEpisodes(
            observations=self.observations[: steps + episodes],
            **{name: getattr(self, name)[:steps] for name in STEP_FIELDS},
            lengths=self.lengths[:episodes],
            seeds=self.seeds[:episodes],
        )


def write_part(path: Path, flat: FlatEpisodes) -> None:
    """Write one part, compressed without loss; the file appears only when it is whole."""
    with new_file(path) as file:
        for name in (*FIELDS, "lengths", "seeds"):
            values = getattr(flat, name)
            rows = max(1, min(len(values), 65536 // max(1, values[:1].size)))
            chunks = (rows, *values.shape[1:])
            file.create_dataset(name, data=values, chunks=chunks, compression="gzip", compression_opts=6, shuffle=True)


def read_part(path: Path) -> FlatEpisodes:
    with reading(path), h5py.File(path, "r") as file:
        arrays = {name: numbers(file, name) for name in FlatEpisodes.__dataclass_fields__}
        check_memory(arrays.values(), path)
        return FlatEpisodes(**{name: array[()] for name, array in arrays.items()})


def merge_parts(parts: Iterable[Path], limit: int = 16_000_000) -> Iterator[FlatEpisodes]:
    """The episodes of many small parts in few large pieces, each of which fits a part of about `limit` bytes."""
    group: list[Path] = []
    for part in parts:
        if group and sum(member.stat().st_size for member in group) + part.stat().st_size > limit:
            yield FlatEpisodes.concatenate([read_part(member) for member in group])
            group = []
        group.append(part)
    if group:
        yield FlatEpisodes.concatenate([read_part(member) for member in group])


def _write_view(folder: Path, parts: Sequence[Path]) -> tuple[int, int]:
    """Write main_data.hdf5: for each episode of each part, five virtual datasets into that part."""
    episode = steps = 0
    with new_file(folder / "main_data.hdf5") as view:
        view.attrs[PARTS_ATTRIBUTE] = json.dumps([os.path.relpath(part, folder) for part in parts])
        for part in parts:
            relative = os.path.relpath(part, folder)
            with h5py.File(part, "r") as file:
                lengths, seeds = file["lengths"][()], file["seeds"][()]
                shapes = {name: (file[name].shape, file[name].dtype) for name in FIELDS}
            start = 0
            for index, (length, seed) in enumerate(zip(lengths.tolist(), seeds.tolist(), strict=True)):
                group = view.create_group(f"episode_{episode}")
                group.attrs["id"] = episode
                group.attrs["total_steps"] = length
                if seed >= 0:
                    group.attrs["seed"] = seed
                for name, (shape, dtype) in shapes.items():
                    first, rows = (start + index, length + 1) if name == "observations" else (start, length)
                    layout = h5py.VirtualLayout((rows, *shape[1:]), dtype)
                    layout[:] = h5py.VirtualSource(relative, name, shape=shape, dtype=dtype)[first : first + rows]
                    group.create_virtual_dataset(name, layout)
                start += length
                episode += 1
            steps += start
    return episode, steps


def check_dataset_id(dataset_id: str) -> None:
    """Refuse an id that Minari could not list, before any work is done."""
    if not re.fullmatch(r"[-\w]{2,}(/[-\w]+)*/[-\w]+-v\d+", dataset_id):
        raise DatasetError(f"'{dataset_id}' is no dataset id; write namespace/name-vN, for example mine/hopper-v0")


def check_free(root: Path, dataset_id: str, overwrite: bool) -> None:
    """Refuse an id under which nothing may be written, before any work is done."""
    check_dataset_id(dataset_id)
    folder = root / dataset_id / "data"
    settle(folder)
    if folder.exists() and not overwrite:
        raise DatasetError(f"dataset '{dataset_id}' exists in {root}; choose another --id or pass --overwrite")
    check_replaceable(folder, "metadata.json", overwrite)


def write_dataset(
    root: Path,
    dataset_id: str,
    pieces: Iterable[FlatEpisodes | Path],
    *,
    env_spec: EnvSpec,
    observation_space: gym.Space,
    action_space: gym.Space,
    card: Mapping[str, Any],
    overwrite: bool = False,
) -> Path:
    """Write a Minari dataset from flat episodes (one part each) or as a view of existing part files.

    The folder `data` is prepared beside its final place and moved there in one step; datasets whose ids go on
    after this one's lie beside it and stay.
    """
    check_free(root, dataset_id, overwrite)
    target = root / dataset_id
    folder = partial_path(target / "data")
    remove(folder)
    folder.mkdir(parents=True)
    try:
        parts: list[Path] = []
        for number, piece in enumerate(pieces):
            if isinstance(piece, FlatEpisodes):
                parts.append(folder / f"part-{number:03d}.hdf5")
                write_part(parts[-1], piece)
            else:
                parts.append(piece)
        episodes, steps = _write_view(folder, parts)
        own = [folder / "main_data.hdf5", *(part for part in parts if part.parent == folder)]
        write_json(
            folder / "metadata.json",
            {
                "dataset_id": dataset_id,
                "total_episodes": episodes,
                "total_steps": steps,
                "data_format": "hdf5",
                "jpeg_encoding": False,
                "observation_space": serialize_space(observation_space),
                "action_space": serialize_space(action_space),
                "env_spec": env_spec.to_json(),
                "minari_version": minari_version,
                "dataset_size": round(sum(file.stat().st_size for file in own) / 1e6, 1),
                "sha256": {file.name: sha256(file) for file in own},
                "author": ["BR-RCRL kit"],
                **card,
            },
        )
        replace_folder(folder, target / "data")
    finally:
        remove(folder)
        _remove_empty(target, root)
    return target


def _remove_empty(folder: Path, root: Path) -> None:
    """Remove `folder` and its parents below `root` as long as nothing is in them: what a failed write leaves."""
    while folder != root and root in folder.parents and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def part_paths(folder: Path) -> list[Path]:
    """The parts that a view points into, or [] if main_data.hdf5 is a plain Minari file."""
    file = folder / "main_data.hdf5"
    with reading(file), h5py.File(file, "r") as view:
        names = json.loads(view.attrs.get(PARTS_ATTRIBUTE, "[]"))
    if not isinstance(names, list) or not all(
        re.fullmatch(r"(\.\./)*([-\w]+/)*part-\d+\.hdf5", str(name)) for name in names
    ):
        raise DatasetError(f"{file} names parts that are no files of a dataset: {names}")
    return [(folder / name).resolve() for name in names]
