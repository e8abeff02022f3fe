"""Small frame stores for tests: real games of fresh policies, a few hundred steps."""

from __future__ import annotations

from pathlib import Path

from brrcrl_lib.data.atari import AtariEnv, env_id
from brrcrl_lib.data.frames import FrameStore
from brrcrl_lib.tools.agents.atari import untrained
from brrcrl_lib.tools.publishing.ladder import LadderConfig, ladder


def fresh_policies(folder: Path, game: str, count: int = 2) -> Path:
    """Tiny policies with random weights, as `brrcrl data collect` would leave them."""
    actions = len(AtariEnv(game).buttons)
    for number in range(count):
        actor = untrained(actions, seed=number, channels=(4, 4, 4), units=8)
        actor.save(folder / f"step-{number}.safetensors", env=env_id(game), step=number)
    return folder


def small_store(frames: Path, game: str, policies: Path, **options) -> FrameStore:
    """ladder/<game> under `frames`: 400 steps, games of 100 decisions at most."""
    settings = {"steps": 400, "lanes": 2, "max_frames": 400, **options}
    return FrameStore(ladder(LadderConfig(str(fresh_policies(policies, game)), root=frames, **settings)).path)
