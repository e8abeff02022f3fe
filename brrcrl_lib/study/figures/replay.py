"""The process that `datasets.render` starts in a folder with jobs.json: plays episodes again and writes frames.npz.

A module of its own, so that no process waits for libraries that drawing does not need.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec


def play(env: gym.Env, job: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, float]:
    """Frames and positions after `job["steps"]` actions, and the largest deviation from the stored rewards."""
    env.reset(seed=job["seed"])
    frames, positions, deviation = [], [], 0.0
    for step in range(job["steps"][-1] + 1):
        if step in job["steps"]:
            frames.append(env.render())
            positions.append(env.unwrapped.data.qpos[0])  # type: ignore[attr-defined]
        if step < len(job["actions"]):
            reward = float(env.step(np.array(job["actions"][step], np.float32))[1])
            deviation = max(deviation, abs(reward - job["rewards"][step]))
    return np.array(frames), np.array(positions), deviation


if __name__ == "__main__":
    options: dict[str, Any] = {"render_mode": "rgb_array", "width": 240, "height": 240, "camera_name": "track"}
    orders = json.loads(Path("jobs.json").read_text())
    played = [
        play(gym.make(EnvSpec.from_json(order["env"]), **options | order.get("picture", {})), order) for order in orders
    ]
    np.savez("frames.npz", **dict(zip(("frames", "positions", "deviation"), zip(*played, strict=True), strict=True)))
