"""A store of Atari frames behind the protocol of `DiscreteData`."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from brrcrl_lib.data.atari import AtariConfig
from brrcrl_lib.data.frame_format import store_name
from brrcrl_lib.discrete.data import DiscreteBatch

FLAGS = [field.name for field in fields(AtariConfig) if field.name != "clip_rewards"]
"""How a game was presented when a store was made, and is presented again to who learned from it. Scores are raw."""


class FrameSource(Protocol):
    """The part of a frame store that training needs: steps of many games, stacked when they are asked for."""

    folder: Path
    about: dict[str, Any]  # `env`: the game
    shape: tuple[int, int]  # of one frame
    discount: float
    clip_rewards: bool  # to [-1, 1]
    rtg: Tensor  # [steps] float32
    frames: np.ndarray  # [steps, height, width] uint8

    @property
    def action_count(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    def sample(self, batch_size: int, generator: torch.Generator, with_next: bool = False) -> Any:
        """observations, actions, rtg, rewards, dones, indices and, if asked for, next_observations."""
        ...


class FrameData:
    """Batches of a frame store; `with_next` costs a second read per step, and only distributional_td needs it."""

    frames = 4

    def __init__(self, store: FrameSource, with_next: bool) -> None:
        self.store, self.with_next = store, with_next
        self.id, self.fingerprint, self.env_id = store_name(store.folder), store.fingerprint, store.about.get("env")
        self.play = {name: store.about[name] for name in FLAGS if name in store.about}
        self.discount, self.action_count, self.rtg = store.discount, store.action_count, store.rtg
        self.observation_shape: tuple[int, ...] = (self.frames, *store.shape)
        self.reward_clip = 1.0 if store.clip_rewards else None

    def standardisation(self) -> tuple[Tensor, Tensor]:
        """The mean frame [height, width], and the standard deviation around it over all pixels, of 1,000 steps."""
        steps = np.linspace(0, len(self.rtg) - 1, min(1_000, len(self.rtg))).round().astype(np.int64)
        frames = torch.from_numpy(self.store.frames[steps]).float()  # [n, height, width]
        mean = frames.mean(0)
        return mean, (frames - mean).square().mean().sqrt().clamp(min=1.0)

    def sample(self, batch_size: int, generator: torch.Generator) -> DiscreteBatch:
        drawn = self.store.sample(batch_size, generator, with_next=self.with_next)
        return DiscreteBatch(
            observations=drawn.observations,
            actions=drawn.actions,
            returns=drawn.rtg,
            rewards=drawn.rewards,
            next_observations=drawn.next_observations,
            done=drawn.dones,
            indices=drawn.indices,
        )
