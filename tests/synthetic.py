"""A small made-up dataset for tests of the engine."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch

from brrcrl_lib.data.vectors import OfflineDataset
from brrcrl_lib.returns import reward_to_go


def synthetic_dataset(
    episodes: int = 12,
    observation_size: int = 11,
    action_size: int = 3,
    env_id: str | None = "Hopper-v5",
    seed: int = 0,
) -> OfflineDataset:
    """Random episodes in which the reward is higher the closer an action is to 0.5, so there is something to learn."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, 40, episodes)
    steps = int(lengths.sum())
    observations = rng.normal(2.0, 3.0, (steps, observation_size)).astype(np.float32)
    actions = rng.uniform(-1, 1, (steps, action_size)).astype(np.float32)
    rewards = np.exp(-((actions - 0.5) ** 2).sum(-1)).astype(np.float32)
    starts = np.cumsum(lengths) - lengths
    numbers = np.repeat(np.arange(episodes), lengths)
    ends = np.zeros(steps, dtype=bool)
    ends[starts + lengths - 1] = True
    tensors = {
        "observations": observations,
        "actions": actions,
        "rewards": rewards,
        "rtg": reward_to_go(rewards, lengths, 0.99).astype(np.float32),
        "timesteps": np.arange(steps) - starts[numbers],
        "episode_ids": numbers,
        "terminations": ends,
        "truncations": np.zeros(steps, dtype=bool),
        "final_observations": rng.normal(size=(episodes, observation_size)).astype(np.float32),
        "lengths": lengths,
        "starts": starts,
        "seeds": np.arange(episodes),
        "returns": np.add.reduceat(rewards, starts),
        "action_low": -np.ones(action_size, dtype=np.float32),
        "action_high": np.ones(action_size, dtype=np.float32),
    }
    return OfflineDataset(
        id="test/synthetic-v0",
        env_spec=gym.spec(env_id) if env_id else None,
        discount=0.99,
        card={},
        **{name: torch.as_tensor(value) for name, value in tensors.items()},
    )
