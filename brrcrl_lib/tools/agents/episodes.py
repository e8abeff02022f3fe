"""One episode, and the 14-bit interface through which the kit's own collectors see an environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

MANTISSA_BITS = 14


@dataclass(frozen=True)
class Episode:
    """What one episode left behind. Observations have one row more than the rest: the final state is kept."""

    observations: np.ndarray  # [T + 1, observation size]
    actions: np.ndarray  # [T, action size]
    rewards: np.ndarray  # [T]
    terminated: bool  # ended by the task (a fall), so the future is worth nothing
    truncated: bool  # cut off by the time limit, so the future is unknown
    seed: int  # env.reset(seed=seed) started it

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def total_reward(self) -> float:
        return float(self.rewards.sum(dtype=np.float64))


def round_mantissa(values: np.ndarray, bits: int = MANTISSA_BITS) -> np.ndarray:
    """Round float32 values to `bits` mantissa bits (half up in magnitude): relative error at most 2**-(bits + 1)."""
    drop = np.uint32(23 - bits)
    raw = np.asarray(values, dtype=np.float32).copy().view(np.uint32)
    return ((raw + (np.uint32(1) << (drop - np.uint32(1)))) >> drop << drop).view(np.float32)


class RoundedEnv(gym.Wrapper):
    """Round observations and actions to 14 mantissa bits before anybody sees them.

    The agent acts on, learns from and stores the rounded values, and the simulator executes the rounded
    action: what is recorded is exactly what happened, and it compresses to half the size of raw float32.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        shape = env.observation_space.shape
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, shape, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        observation, info = self.env.reset(seed=seed, options=options)
        return round_mantissa(observation), info

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return round_mantissa(observation), float(reward), terminated, truncated, info
