"""`load_dataset(id)`: any Minari dataset of vectors as contiguous tensors, ready for any device.

Two ways in, one way out. The kit's own datasets lie in flat parts that are read whole, after their sha256 was
checked; every other Minari HDF5 file (as `minari download` leaves it) is read episode by episode.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec
from minari.serialization import deserialize_space

from brrcrl_lib.base.environments import make_env
from brrcrl_lib.base.files import sha256
from brrcrl_lib.base.limits import ENV_ID, parse_json
from brrcrl_lib.data.hdf5 import check_memory, child, numbers, reading
from brrcrl_lib.data.registry import DatasetError, dataset_folder, read_metadata
from brrcrl_lib.data.storage import FIELDS, FlatEpisodes, part_paths, read_part
from brrcrl_lib.data.vectors import OfflineDataset
from brrcrl_lib.returns import reward_to_go

__all__ = ["OfflineDataset", "action_space", "load_dataset", "read_episodes"]

EPISODES_AT_ONCE = 256


def load_dataset(dataset_id: str, *, discount: float = 0.99, root: Path | str | None = None) -> OfflineDataset:
    """The installed dataset `dataset_id`, with the RTG of every step for `discount`."""
    folder = dataset_folder(dataset_id, root)
    metadata = read_metadata(folder)
    observation_space, space = _vector_spaces(dataset_id, metadata)
    pieces = list(read_episodes(folder, metadata))
    if not pieces:
        raise DatasetError(f"{dataset_id} holds no episodes")
    with reading(folder / "main_data.hdf5"):  # parts whose rows differ in shape cannot be joined
        flat = FlatEpisodes.concatenate(pieces)
    del pieces
    _check(dataset_id, metadata, flat)
    _check_rows(dataset_id, flat, observation_space, space)
    try:
        rtg = reward_to_go(flat.rewards, flat.lengths, discount)
    except ValueError as error:
        raise DatasetError(f"{dataset_id}: {error}") from error
    final = np.zeros(len(flat.observations), bool)
    final[np.cumsum(flat.lengths + 1) - 1] = True
    actions = flat.actions.astype(np.int64 if isinstance(space, gym.spaces.Discrete) else np.float32, copy=False)
    low, high = _action_bounds(space)
    return OfflineDataset(
        id=dataset_id,
        env_spec=parse_env_spec(metadata.get("env_spec")),
        discount=discount,
        observations=_float32(flat.observations[~final]),
        actions=torch.from_numpy(actions),
        rewards=_float32(flat.rewards),
        rtg=_float32(rtg),
        timesteps=torch.from_numpy(np.arange(len(rtg)) - np.repeat(flat.starts, flat.lengths)),
        episode_ids=torch.from_numpy(np.repeat(np.arange(len(flat)), flat.lengths)),
        terminations=torch.from_numpy(flat.terminations),
        truncations=torch.from_numpy(flat.truncations),
        final_observations=_float32(flat.observations[final]),
        lengths=torch.from_numpy(flat.lengths),
        starts=torch.from_numpy(flat.starts),
        seeds=torch.from_numpy(flat.seeds),
        returns=_float32(np.add.reduceat(flat.rewards, flat.starts, dtype=np.float64)),
        action_low=low,
        action_high=high,
        card={key: value for key, value in metadata.items() if key not in ("observation_space", "action_space")},
    )


def action_space(dataset_id: str) -> gym.Space:
    """The actions of an installed dataset, without reading its steps: a box of vectors, or discrete."""
    return _vector_spaces(dataset_id, read_metadata(dataset_folder(dataset_id)))[1]


def read_episodes(folder: Path, metadata: dict[str, Any]) -> Iterator[FlatEpisodes]:
    """All episodes in order, as they are stored: one item a part, or a few hundred episodes of a plain file."""
    if metadata.get("data_format", "hdf5") != "hdf5":
        raise DatasetError(f"{folder} is stored as {metadata['data_format']}; only HDF5 datasets can be loaded")
    view = folder / "main_data.hdf5"
    if "sha256" in metadata:
        check_hash(view)
    parts = part_paths(folder)
    if not parts:
        yield from _plain_episodes(view, int(metadata["total_episodes"]))
    for part in parts:
        check_hash(part)
        yield read_part(part)


def check_hash(file: Path) -> None:
    """Compare a file of a kit's dataset with the sha256 that the metadata.json beside it records."""
    if not file.is_file():
        raise DatasetError(f"{file} is missing; restore it from the repository or make it again")
    recorded = read_metadata(file.parent).get("sha256", {}).get(file.name)
    if sha256(file) != recorded:
        raise DatasetError(f"{file} does not have the recorded sha256; it is damaged or was changed, so restore it")


def _plain_episodes(file: Path, episodes: int) -> Iterator[FlatEpisodes]:
    """Episodes of a Minari file without parts, a few hundred at a time."""
    with reading(file), h5py.File(file, "r") as store:
        for first in range(0, episodes, EPISODES_AT_ONCE):
            names = [f"episode_{index}" for index in range(first, min(first + EPISODES_AT_ONCE, episodes))]
            groups = [child(store, name) for name in names]
            columns = {name: [numbers(group, name) for group in groups] for name in FIELDS}
            check_memory((array for column in columns.values() for array in column), file)
            arrays = {name: np.concatenate([array[()] for array in column]) for name, column in columns.items()}
            for name in ("terminations", "truncations"):
                if not np.isin(arrays[name], (0, 1)).all():
                    raise DatasetError(f"{file}: {name} hold other values than 0 and 1")
                arrays[name] = arrays[name].astype(bool)
            yield FlatEpisodes(
                **arrays,
                lengths=np.array([len(rewards) for rewards in columns["rewards"]], np.int64),
                seeds=np.array([int(group.attrs.get("seed", -1)) for group in groups], np.int64),
            )


def _check(dataset_id: str, metadata: dict[str, Any], flat: FlatEpisodes) -> None:
    steps, episodes = len(flat.rewards), len(flat)
    if (steps, episodes) != (metadata["total_steps"], metadata["total_episodes"]):
        said = f"{metadata['total_steps']} steps in {metadata['total_episodes']} episodes"
        raise DatasetError(f"{dataset_id} should hold {said}, but holds {steps} in {episodes}")
    if len(flat.observations) != steps + episodes:
        raise DatasetError(
            f"{dataset_id}: {steps} steps in {episodes} episodes need {steps + episodes} observations "
            f"(one more than steps in each episode); there are {len(flat.observations)}"
        )
    if not len(flat.actions) == len(flat.terminations) == len(flat.truncations) == steps == flat.lengths.sum():
        raise DatasetError(f"{dataset_id}: actions, rewards and ends of episodes differ in length")
    if steps and flat.lengths.min() < 1:
        raise DatasetError(f"{dataset_id} holds an episode without steps")


def _check_rows(dataset_id: str, flat: FlatEpisodes, observations: gym.Space, actions: gym.Space) -> None:
    """Shapes, kinds and values of rows against the spaces that the metadata state."""
    rows = {"observations": observations.shape, "actions": actions.shape, "rewards": ()}
    for name, shape in {**rows, "terminations": (), "truncations": ()}.items():
        values = getattr(flat, name)
        if values.shape[1:] != shape:
            raise DatasetError(
                f"{dataset_id} holds {name} of shape {values.shape[1:]} per step; its spaces say {shape}"
            )
    for name in ("observations", "actions"):
        with np.errstate(over="ignore"):
            finite = np.isfinite(getattr(flat, name).astype(np.float32, copy=False)).all()
        if not finite:
            raise DatasetError(f"{dataset_id} holds {name} that are not finite as 32-bit numbers")
    if isinstance(actions, gym.spaces.Discrete):
        low, high = actions.start, actions.start + actions.n - 1
        if flat.actions.dtype.kind not in "iu" or flat.actions.min() < low or flat.actions.max() > high:
            raise DatasetError(f"{dataset_id} holds actions other than the whole numbers {low} to {high} of its space")


def _float32(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32, copy=False))


def _vector_spaces(dataset_id: str, metadata: dict[str, Any]) -> tuple[gym.Space, gym.Space]:
    """The dataset's spaces, which must be a vector and a box of actions or discrete ones."""
    if metadata.get("observation_space") is not None and metadata.get("action_space") is not None:
        observation_space, action_space = (
            _parse_space(dataset_id, name, metadata[name]) for name in ("observation_space", "action_space")
        )
    else:
        spec = parse_env_spec(metadata.get("env_spec"))
        if spec is None:
            raise DatasetError(f"{dataset_id} states neither its spaces nor its environment")
        env = make_env(spec)
        observation_space, action_space = env.observation_space, env.action_space
        env.close()
    if not isinstance(observation_space, gym.spaces.Box) or len(observation_space.shape) != 1:
        raise DatasetError(f"{dataset_id} has observations {observation_space}; load_dataset reads vectors only")
    if not isinstance(action_space, gym.spaces.Discrete) and not (
        isinstance(action_space, gym.spaces.Box) and len(action_space.shape) == 1
    ):
        raise DatasetError(f"{dataset_id} has actions {action_space}; load_dataset reads vectors and discrete actions")
    return observation_space, action_space


def _parse_space(dataset_id: str, name: str, text: str | dict[str, Any]) -> gym.Space:
    try:
        return deserialize_space(text if isinstance(text, str) else json.dumps(text))
    except Exception as error:  # Minari checks nothing, so anything may come
        raise DatasetError(f"the metadata of {dataset_id} states no {name} that Minari knows: {error!r}") from error


def _action_bounds(space: gym.Space) -> tuple[torch.Tensor, torch.Tensor]:
    if isinstance(space, gym.spaces.Discrete):
        return torch.tensor([float(space.start)]), torch.tensor([float(space.start + space.n - 1)])
    assert isinstance(space, gym.spaces.Box)
    return torch.tensor(space.low, dtype=torch.float32), torch.tensor(space.high, dtype=torch.float32)


def parse_env_spec(text: str | dict[str, Any] | None) -> EnvSpec | None:
    """The spec that Gymnasium has registered for the id in a stored spec, which may come from anybody.

    Nothing else of it is used: its entry point and arguments would be code to run. An id that is not registered here
    is kept by name, so that the data can be read without the environment.
    """
    if text is None:
        return None
    where = "env_spec in metadata.json"
    name = parse_json(text if isinstance(text, str) else json.dumps(text), where, {"id": ENV_ID}, None, DatasetError)[
        "id"
    ]
    try:
        return gym.envs.registration.registry.get(name) or EnvSpec(name)
    except gym.error.Error as error:
        raise DatasetError(f"{where}: '{name}' is no id of an environment: {error}") from error
