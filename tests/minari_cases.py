"""Small Minari datasets for tests, written by the kit and by Minari itself."""

from __future__ import annotations

import json

import gymnasium as gym
import numpy as np
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage

from brrcrl_lib.tools.agents.episodes import Episode
from brrcrl_lib.tools.publishing.minari_writer import flatten, write_dataset

LENGTHS = (4, 1, 7, 3, 5)


def made_up_episodes(env, lengths=LENGTHS, seed=0):
    rng = np.random.default_rng(seed)
    episodes = []
    for number, length in enumerate(lengths):
        discrete = isinstance(env.action_space, gym.spaces.Discrete)
        actions = rng.integers(env.action_space.n, size=length) if discrete else rng.uniform(-1, 1, (length, 1))
        episodes.append(
            Episode(
                rng.normal(size=(length + 1, *env.observation_space.shape)).astype(np.float32),
                actions if discrete else actions.astype(np.float32),
                rng.normal(size=length).astype(np.float32),
                terminated=number % 2 == 0,
                truncated=number % 2 == 1,
                seed=100 + number,
            )
        )
    return episodes


def write(root, dataset_id, episodes, env, pieces=2, **card):
    middle = len(episodes) // pieces
    flats = [flatten(part) for part in (episodes[:middle], episodes[middle:]) if part]
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    return write_dataset(root, dataset_id, flats, env_spec=env.spec, card=card, **spaces)


def write_plain(root, dataset_id, episodes, env):
    """With Minari's own writer, as `minari download` would leave it."""
    folder = root / dataset_id / "data"
    folder.mkdir(parents=True)
    storage = MinariStorage.new(folder, env.observation_space, env.action_space, env.spec)
    storage.update_metadata({"dataset_id": dataset_id, "minari_version": "0.5.4"})
    storage.update_episodes(
        [
            EpisodeBuffer(
                seed=episode.seed,
                observations=episode.observations,
                actions=episode.actions,
                rewards=list(episode.rewards),
                terminations=[False] * (len(episode) - 1) + [episode.terminated],
                truncations=[False] * (len(episode) - 1) + [episode.truncated],
            )
            for episode in episodes
        ]
    )
    return folder


def edit_metadata(root, dataset_id, **changes):
    file = root / dataset_id / "data" / "metadata.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
