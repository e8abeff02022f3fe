"""Play a policy in many games at once and keep whole games."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from brrcrl_lib.data.atari import AtariEnv
from brrcrl_lib.data.frame_format import SHAPE
from brrcrl_lib.tools.agents.atari import AtariActor
from brrcrl_lib.tools.publishing.frame_writer import FrameWriter


@dataclass(frozen=True)
class AtariGame:
    """What one game left behind: the frame that each action answered, and what came of it."""

    frames: np.ndarray  # [T, 84, 84] uint8
    actions: np.ndarray  # [T] uint8
    rewards: np.ndarray  # [T] float32, clipped if the environment clips
    life_lost: np.ndarray  # [T] bool
    terminated: bool  # the game was over
    truncated: bool  # the time limit ended it
    seed: int  # env.reset(seed=seed) started it
    score: float  # sum of what the game paid, never clipped

    def __len__(self) -> int:
        return len(self.actions)

    def append_to(self, writer: FrameWriter, policy: int) -> None:
        last = np.arange(len(self)) == len(self) - 1
        writer.append(
            self.frames,
            self.actions,
            self.rewards,
            last & self.terminated,
            last & self.truncated,
            self.life_lost,
            policy=policy,
            seed=self.seed,
        )


def play_games(
    actor: AtariActor,
    envs: list[AtariEnv],
    seeds: Iterable[int],
    stochastic: bool = True,
    on_step: Callable[[int], object] | None = None,
) -> Iterator[AtariGame]:
    """One game per seed, as many at a time as there are `envs`; yields them in the order of their seeds.

    A game draws its start, its actions and its stickiness from its own seed. `on_step` is told how many steps each
    round took.
    """
    queue = enumerate(seeds)
    finished: dict[int, AtariGame] = {}
    next_out = 0
    active = [recorder for recorder in map(_Recorder, envs) if recorder.start(queue)]
    while active:
        observations = np.stack([recorder.env.stack for recorder in active])  # [num_envs, 4, 84, 84]
        draws = np.array([recorder.rng.random() for recorder in active]) if stochastic else None
        actions = actor.act(observations, draws)
        if on_step is not None:
            on_step(len(active))
        for recorder, action in zip(active, actions, strict=True):
            game = recorder.step(int(action))
            if game is not None:
                finished[recorder.order] = game
                recorder.done = not recorder.start(queue)
        active = [recorder for recorder in active if not recorder.done]
        while next_out in finished:
            yield finished.pop(next_out)
            next_out += 1


class _Recorder:
    """One environment and the game under way in it."""

    def __init__(self, env: AtariEnv) -> None:
        self.env, self.done = env, False
        self.order = self.seed = self.length = 0
        self.frames = np.empty((1_024, *SHAPE), np.uint8)  # grows as a game does, and is used again for the next

    def start(self, queue: Iterator[tuple[int, int]]) -> bool:
        following = next(queue, None)
        if following is None:
            return False
        self.order, self.seed = following
        self.rng = np.random.default_rng([self.seed, 1])  # the environment draws from the seed itself
        self.env.reset(seed=self.seed)
        self.length, self.score = 0, 0.0
        self.actions: list[int] = []
        self.rewards: list[float] = []
        self.life_lost: list[bool] = []
        return True

    def step(self, action: int) -> AtariGame | None:
        if self.length == len(self.frames):
            self.frames = np.concatenate([self.frames, np.empty_like(self.frames)])
        self.frames[self.length] = self.env.frame
        self.length += 1
        _, reward, terminated, truncated, info = self.env.step(action)
        self.actions.append(action)
        self.rewards.append(reward)
        self.life_lost.append(info["life_lost"])
        self.score += info["score"]
        if not (terminated or truncated):
            return None
        return AtariGame(
            self.frames[: self.length].copy(),
            np.array(self.actions, np.uint8),
            np.array(self.rewards, np.float32),
            np.array(self.life_lost, bool),
            terminated,
            truncated,
            self.seed,
            self.score,
        )
