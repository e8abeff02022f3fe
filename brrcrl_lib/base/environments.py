"""`make_env`: Gymnasium's `make`, without the noise, for registered environments only."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.limits import ENV_ID, check

KNOWN = ("'settotalmass' is deprecated",)
"""MuJoCo says this about Gymnasium's own HalfCheetah model each time one is made, and writes it to a file."""


def make_env(env: str | EnvSpec, **options: Any) -> gym.Env:
    """The registered environment of an id, or of the id of a spec.

    Whatever else a spec says is ignored: it may come from a file, and an entry point would be code to run.
    """
    name = env if isinstance(env, str) else env.id
    check(name, ENV_ID, "an environment")
    _handle_mujoco_warnings()
    try:
        made = gym.make(name, **options)
    except Exception as error:  # Gymnasium raises its own kinds, and MuJoCo environments plain ones
        raise KitError(f"environment '{name}' cannot be made: {error}") from error
    if made.spec is not None and made.spec.id != name:
        raise KitError(f"environment '{name}' has several versions; write which, for example {made.spec.id}")
    return made


@cache
def _handle_mujoco_warnings() -> None:
    """Drop the warnings that we know and can do nothing about; pass the others on as Python warnings."""
    import mujoco

    def handle(message: str) -> None:
        if not any(known in message for known in KNOWN):
            warnings.warn(f"MuJoCo: {message}", stacklevel=2)

    mujoco.set_mju_user_warning(handle)
