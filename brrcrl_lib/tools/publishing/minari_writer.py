"""Write Minari datasets as `data/storage.py` describes them: flat, compressed parts, and a view that copies nothing."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
from gymnasium.envs.registration import EnvSpec
from minari import __version__ as minari_version
from minari.serialization import serialize_space

from brrcrl_lib.base.files import atomic_path, partial_path, remove, settle, sha256, write_json
from brrcrl_lib.data.registry import DatasetError
from brrcrl_lib.data.storage import FIELDS, PARTS_ATTRIBUTE, FlatEpisodes, read_part
from brrcrl_lib.tools.agents.episodes import Episode
from brrcrl_lib.tools.publishing.folders import check_replaceable, replace_folder


def flatten(episodes: Sequence[Episode]) -> FlatEpisodes:
    """Many episodes as flat arrays."""
    lengths = np.array([len(episode) for episode in episodes], dtype=np.int64)
    ends = np.cumsum(lengths) - 1
    terminations = np.zeros(lengths.sum(), dtype=bool)
    truncations = np.zeros(lengths.sum(), dtype=bool)
    terminations[ends] = [episode.terminated for episode in episodes]
    truncations[ends] = [episode.truncated for episode in episodes]
    return FlatEpisodes(
        observations=np.concatenate([episode.observations for episode in episodes]),
        actions=np.concatenate([episode.actions for episode in episodes]),
        rewards=np.concatenate([episode.rewards for episode in episodes]).astype(np.float32),
        terminations=terminations,
        truncations=truncations,
        lengths=lengths,
        seeds=np.array([episode.seed for episode in episodes], dtype=np.int64),
    )


def episode_of(flat: FlatEpisodes, index: int) -> Episode:
    """One episode of flat arrays."""
    start, length = int(flat.starts[index]), int(flat.lengths[index])
    steps = slice(start, start + length)
    return Episode(
        observations=flat.observations[start + index : start + index + length + 1],
        actions=flat.actions[steps],
        rewards=flat.rewards[steps],
        terminated=bool(flat.terminations[steps][-1]),
        truncated=bool(flat.truncations[steps][-1]),
        seed=int(flat.seeds[index]),
    )


@contextmanager
def new_file(path: Path) -> Iterator[h5py.File]:
    """A file that is made in memory and appears at `path` when it is whole; HDF5 itself would crash on a full disk."""
    with h5py.File(path.name, "w", driver="core", backing_store=False, libver="latest") as file:
        yield file
        file.flush()
        image = file.id.get_file_image()
    with atomic_path(path) as temporary:
        temporary.write_bytes(image)


def write_part(path: Path, flat: FlatEpisodes) -> None:
    """Write one part, compressed without loss; the file appears only when it is whole."""
    with new_file(path) as file:
        for name in (*FIELDS, "lengths", "seeds"):
            values = getattr(flat, name)
            rows = max(1, min(len(values), 65536 // max(1, values[:1].size)))
            chunks = (rows, *values.shape[1:])
            file.create_dataset(name, data=values, chunks=chunks, compression="gzip", compression_opts=6, shuffle=True)


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
