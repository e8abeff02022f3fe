"""`make_env`: Gymnasium's `make`, without the noise."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

KNOWN = ("'settotalmass' is deprecated",)
"""MuJoCo says this about Gymnasium's own HalfCheetah model each time one is made, and writes it to a file."""


def make_env(env: str | EnvSpec, **options: Any) -> gym.Env:
    _handle_mujoco_warnings()
    return gym.make(env, **options)


@cache
def _handle_mujoco_warnings() -> None:
    """Drop the warnings that we know and can do nothing about; pass the others on as Python warnings."""
    import mujoco

    def handle(message: str) -> None:
        if not any(known in message for known in KNOWN):
            warnings.warn(f"MuJoCo: {message}", stacklevel=2)

    mujoco.set_mju_user_warning(handle)
