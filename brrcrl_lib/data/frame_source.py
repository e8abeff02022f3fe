"""A store of Atari frames as a `Source` of batches."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import torch
from torch import Tensor

from brrcrl_lib.data.atari import AtariConfig
from brrcrl_lib.data.batch import TRANSITIONS, Batch, Facts, Needs, best_share, random_split, return_facts
from brrcrl_lib.data.frame_format import STACK, store_name
from brrcrl_lib.data.frames import FrameStore
from brrcrl_lib.data.registry import DatasetError

FLAGS = [field.name for field in fields(AtariConfig) if field.name != "clip_rewards"]
"""How a game was presented when a store was made, and is presented again to who learned from it. Scores are raw."""


class FrameSource:
    """Batches of a frame store, or of some of its games; frames stay on disk, so batches are drawn on the CPU."""

    device = torch.device("cpu")

    def __init__(self, store: FrameStore, games: np.ndarray | None = None) -> None:
        self.store, self.games = store, games
        self.among = None if games is None else store.episode_steps(games)

    @property
    def id(self) -> str:
        return store_name(self.store.folder)

    @property
    def rtg(self) -> Tensor:
        return self.store.rtg if self.among is None else self.store.rtg[self.among]

    def facts(self) -> Facts:
        store = self.store
        return Facts(
            dataset=self.id,
            env=store.about.get("env"),
            observation_shape=(STACK, *store.shape),
            discount=store.discount,
            reward_clip=1.0 if store.clip_rewards else None,
            **return_facts(self.rtg),
            action_count=store.action_count,
            play={name: store.about[name] for name in FLAGS if name in store.about},
            fingerprint=store.fingerprint,
            standardisation=self.standardisation(),
        )

    def standardisation(self) -> tuple[Tensor, Tensor]:
        """The mean frame [height, width], and the standard deviation around it over all pixels, of 1,000 steps."""
        places = np.linspace(0, len(self.rtg) - 1, min(1_000, len(self.rtg))).round().astype(np.int64)
        steps = places if self.among is None else self.among[places].numpy()
        frames = torch.from_numpy(self.store.frames[steps]).float()  # [n, height, width]
        mean = frames.mean(0)
        return mean, (frames - mean).square().mean().sqrt().clamp(min=1.0)

    def to(self, device: torch.device) -> FrameSource:
        return self

    def top_fraction(self, share: float) -> FrameSource:
        """The best `share` of the games by score, at least one; of equal ones the earlier. Order is kept."""
        games = self._all_games()
        return FrameSource(self.store, games[best_share(torch.from_numpy(self.store.returns[games]), share).numpy()])

    def split(self, held_out: float, generator: torch.Generator) -> tuple[FrameSource, FrameSource]:
        """Whole games at random into (train, held out); both get at least one. Order is kept."""
        games = self._all_games()
        training, held = random_split(self.id, len(games), held_out, generator)
        return FrameSource(self.store, games[training.numpy()]), FrameSource(self.store, games[held.numpy()])

    def _all_games(self) -> np.ndarray:
        return np.arange(self.store.episodes) if self.games is None else self.games

    def sample(self, size: int, generator: torch.Generator, needs: Needs = TRANSITIONS) -> Batch:
        """Steps drawn uniformly; `needs.next` costs a second read, and leaves out what nobody knows the end of."""
        if needs.context:
            raise DatasetError(f"{self.id} holds frames; windows of several steps come from vectors only")
        return self.store.sample(size, generator, needs.next, self.among)
