"""Small sources of frames for tests: real games of fresh policies, a few hundred steps; made up ones; random bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from brrcrl_lib.data.atari import AtariEnv, env_id
from brrcrl_lib.data.batch import TRANSITIONS, Batch, Facts, Needs, return_facts
from brrcrl_lib.data.frame_source import FrameSource
from brrcrl_lib.data.frames import FrameStore
from brrcrl_lib.tools.agents.atari import untrained
from brrcrl_lib.tools.publishing.frame_writer import FrameWriter
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
    settings = {"steps": 400, "num_envs": 2, "max_frames": 400, **options}
    return FrameStore(ladder(LadderConfig(str(fresh_policies(policies, game)), root=frames, **settings)).path)


class RandomFrames(FrameSource):
    """Twelve stacks of random bytes as a source of batches; nothing on disk."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.stacks = torch.randint(256, (12, 4, 84, 84), generator=generator, dtype=torch.uint8)
        self.frames = self.stacks[:11, -1].numpy()  # [steps, 84, 84]
        self.returns = 2 * torch.rand(11, generator=generator) - 1

    @property
    def id(self) -> str:
        return "test/frames"

    @property
    def rtg(self) -> torch.Tensor:
        return self.returns

    def facts(self) -> Facts:
        return Facts(
            dataset=self.id,
            env="ALE/Pong-v5",
            observation_shape=(4, 84, 84),
            discount=0.95,
            reward_clip=1.0,
            **return_facts(self.rtg),
            action_count=6,
            fingerprint="0123456789ab",
            standardisation=self.standardisation(),
        )

    def standardisation(self) -> tuple[torch.Tensor, torch.Tensor]:
        frames = torch.from_numpy(self.frames).float()
        return frames.mean(0), (frames - frames.mean(0)).square().mean().sqrt()

    def sample(self, size: int, generator: torch.Generator, needs: Needs = TRANSITIONS) -> Batch:
        chosen = torch.randint(11, (size,), generator=generator)
        return Batch(
            observations=self.stacks[chosen],
            actions=chosen % 6,
            returns=self.rtg[chosen],
            rewards=torch.ones(size),
            done=chosen == 10,
            indices=chosen,
            next_observations=self.stacks[chosen + 1] if needs.next else None,
        )


def random_frames() -> RandomFrames:
    return RandomFrames()


SMALL = (3, 2)


def made_up_game(rng: np.random.Generator, length: int, shape=SMALL, truncated: bool = False) -> dict[str, np.ndarray]:
    """Frames that are nowhere black, rewards, some lost lives; the last step ends the game."""
    last = np.arange(length) == length - 1
    return {
        "frames": rng.integers(1, 256, (length, *shape), dtype=np.uint8),
        "actions": rng.integers(0, 18, length),
        "rewards": rng.normal(0, 2, length).astype(np.float32),
        "terminated": last & (not truncated),
        "truncated": last & truncated,
        "life_lost": rng.random(length) < 0.2,
    }


def made_up_games(lengths, seed=0, shape=SMALL, truncate_every=3) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [made_up_game(rng, n, shape, number % truncate_every == 1) for number, n in enumerate(lengths)]


def write_store(target: Path, games, shape=SMALL, chunk: int | None = None, about=None) -> Path:
    """One game per call, or everything in chunks that know nothing of where games end."""
    with FrameWriter(target, about or {"env": "made up"}, shape) as writer:
        if chunk is None:
            for number, game in enumerate(games):
                writer.append(**game, policy=number % 2, seed=100 + number)
        else:
            flat = {key: np.concatenate([game[key] for game in games]) for key in games[0]}
            for first in range(0, len(flat["frames"]), chunk):
                writer.append(**{key: column[first : first + chunk] for key, column in flat.items()})
        return writer.finish()
