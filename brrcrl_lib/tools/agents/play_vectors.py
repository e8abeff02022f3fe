"""Play a policy in many environments at once and keep whole episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import gymnasium as gym
import numpy as np

from brrcrl_lib.tools.agents.episodes import Episode, RoundedEnv
from brrcrl_lib.tools.agents.vectors import Actor


def play_episodes(
    actor: Actor, make_env: Callable[[], gym.Env], seeds: Iterable[int], num_envs: int, stochastic: bool = True
) -> Iterator[Episode]:
    """Play one episode per seed, `num_envs` of them at a time in lock-step; yield them in the order of their seeds.

    Each episode draws its start and its noise from its own seed, so what it does never depends on its neighbours.
    """
    queue = enumerate(seeds)
    finished: dict[int, Episode] = {}
    next_out = 0
    active = [
        recorder for recorder in (_Recorder(RoundedEnv(make_env())) for _ in range(num_envs)) if recorder.start(queue)
    ]
    while active:
        observations = np.stack([recorder.observations[-1] for recorder in active])  # [num_envs, k]
        actions = actor.decide(observations, [recorder.rng for recorder in active] if stochastic else None)
        for recorder, action in zip(active, actions, strict=True):
            episode = recorder.step(action)
            if episode is not None:
                finished[recorder.order] = episode
                recorder.done = not recorder.start(queue)
        active = [recorder for recorder in active if not recorder.done]
        while next_out in finished:
            yield finished.pop(next_out)
            next_out += 1


class _Recorder:
    """One environment and the episode under way in it."""

    def __init__(self, env: RoundedEnv) -> None:
        self.env, self.done = env, False
        self.order = self.seed = 0
        self.observations: list[np.ndarray] = []

    def start(self, queue: Iterator[tuple[int, int]]) -> bool:
        following = next(queue, None)
        if following is None:
            self.env.close()
            return False
        self.order, self.seed = following
        self.rng = np.random.default_rng(self.seed)
        self.observations = [self.env.reset(seed=self.seed)[0]]
        self.actions: list[np.ndarray] = []
        self.rewards: list[float] = []
        return True

    def step(self, action: np.ndarray) -> Episode | None:
        observation, reward, terminated, truncated, _ = self.env.step(action)
        self.observations.append(observation)
        self.actions.append(action)
        self.rewards.append(reward)
        if not (terminated or truncated):
            return None
        return Episode(
            observations=np.stack(self.observations),
            actions=np.stack(self.actions),
            rewards=np.array(self.rewards, dtype=np.float32),
            terminated=terminated,
            truncated=truncated and not terminated,
            seed=self.seed,
        )
