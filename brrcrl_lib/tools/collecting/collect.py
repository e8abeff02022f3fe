"""Collect a dataset the way D4RL did: train an agent online (SAC, or DQN for discrete actions), keep every transition.

The run directory grows by one committed interval at a time:

    config.json                  what was asked for
    parts/part-0007.hdf5         all episodes of interval 7
    snapshots/step-0070000.safetensors   the policy at its end
    state.safetensors            networks, optimisers, step, learning curve: renamed into place last

An interval counts only once `state.safetensors` names it. Everything random in an episode comes from that
episode's own seed, and the replay buffer is rebuilt from the parts, so a run that was killed at any moment and
resumed writes the same bytes as one that was not.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from tqdm.auto import tqdm

from brrcrl_lib.base.environments import make_env
from brrcrl_lib.base.files import locked, write_csv
from brrcrl_lib.base.limits import whole
from brrcrl_lib.base.settings import Count, Discount, EnvId, Name, OutPath, Rate, check_settings
from brrcrl_lib.data.registry import DatasetError
from brrcrl_lib.data.storage import FlatEpisodes, read_part
from brrcrl_lib.tools.agents.episodes import Episode, RoundedEnv
from brrcrl_lib.tools.agents.play_vectors import play_episodes
from brrcrl_lib.tools.collecting.learners import make_learner
from brrcrl_lib.tools.collecting.run_files import (
    EVALUATION_SEED,
    check_same_settings,
    part_path,
    read_curve,
    read_state,
    save_state,
    snapshot_path,
    state_path,
    write_settings,
)
from brrcrl_lib.tools.publishing.minari_writer import flatten, write_part
from brrcrl_lib.tools.publishing.publish import PublishConfig, publish

__all__ = ["CollectConfig", "collect", "read_curve"]

MAY_CHANGE = {"out", "steps", "stop_return", "publish_as", "algorithm"}
"""A run may be continued with other values of these."""


@dataclass(frozen=True)
class CollectConfig:
    """Train SAC (continuous actions) or DQN (discrete ones) in an environment and record every transition.

    `--algorithm ppo` trains on an Atari game instead and has its own options: add --help to see them.
    """

    env: EnvId
    """Gymnasium id, for example Hopper-v5."""
    out: OutPath
    """Run directory; an unfinished run there is continued."""
    steps: Count = 500_000
    """Environment steps after which training ends."""
    stop_return: float = float("inf")
    """End earlier, at the first snapshot whose deterministic policy earns this much on average."""
    seed: Annotated[int, whole(0, 4_293)] = 0
    """Seed of the run; episode e starts from seed * 1,000,000 + e, which has to fit into 32 bits."""
    hidden: tuple[Annotated[int, whole(1, 16_384)], ...] = (128, 128)
    """Hidden layers of actor and critics."""
    learning_rate: Rate = 3e-4
    """Adam's learning rate."""
    batch_size: Count = 256
    """Transitions per update."""
    update_every: Count = 2
    """Environment steps per gradient update."""
    random_steps: Annotated[int, whole(0)] = 10_000
    """Steps of uniformly random actions before learning starts."""
    discount: Discount = 0.99
    """Discount of the critic."""
    snapshot_every: Count = 10_000
    """Steps between snapshots; each is evaluated, saved and committed."""
    evaluation_episodes: Count = 10
    """Deterministic episodes per point of the learning curve."""
    algorithm: Literal["auto"] = "auto"
    """auto: SAC of Stable-Baselines3 where actions are continuous, DQN where they are a set; ppo: see above."""
    publish_as: Name | None = None
    """Short name, for example hopper: when training has ended, write the four datasets as `data publish` does."""


def collect(config: CollectConfig, progress: bool = True) -> list[dict[str, Any]]:
    """Run or continue a collection; return its learning curve."""
    check_settings(config)
    check_same_settings(config.out, config, MAY_CHANGE)
    torch.set_num_threads(1)
    collector = _Collector(config)  # makes the environment: a name that is none leaves no trace
    with locked(config.out):
        write_settings(config.out, config)
        collector.restore()
        bar = tqdm(total=config.steps, initial=collector.step, unit="step", desc=config.env, disable=not progress)
        with bar:
            while not collector.finished:
                collector.run_interval(bar)
                bar.set_postfix(episode=collector.episode, evaluated=round(collector.curve[-1]["return_mean"]))
    if config.publish_as is not None:
        publish(PublishConfig(config.out, config.publish_as))
    return collector.curve


class _Collector:
    """A learner, driven one committed interval at a time."""

    def __init__(self, config: CollectConfig) -> None:
        self.config = config
        self.env = RoundedEnv(make_env(config.env))
        self.learner = make_learner(config, self.env)
        self.step = self.episode = self.interval = 0
        self.curve: list[dict[str, Any]] = []

    @property
    def finished(self) -> bool:
        reached = bool(self.curve) and self.curve[-1]["return_mean"] >= self.config.stop_return
        return self.step >= self.config.steps or reached

    # -- one interval -------------------------------------------------------------------------------------------

    def run_interval(self, bar: tqdm) -> None:
        started = time.perf_counter()
        episodes: list[Episode] = []
        until = (self.step // self.config.snapshot_every + 1) * self.config.snapshot_every
        while self.step < until:
            episodes.append(self._play_and_learn())
            bar.update(len(episodes[-1]))
        self.interval += 1
        write_part(part_path(self.config.out, self.interval), flatten(episodes))
        self._evaluate(episodes, time.perf_counter() - started)
        self._save()

    def _play_and_learn(self) -> Episode:
        """One training episode. Stable-Baselines3 draws from the global generators, so they are seeded here."""
        config = self.config
        seed = config.seed * 1_000_000 + self.episode
        torch.manual_seed(seed)
        np.random.seed(seed)
        self.env.action_space.seed(seed)
        observation, _ = self.env.reset(seed=seed)
        observations, actions, rewards = [observation], [], []
        terminated = truncated = False
        while not (terminated or truncated):
            action = self.learner.explore(observation, self.step)
            following, reward, terminated, truncated, _ = self.env.step(action)
            self.learner.remember(observation, following, action, reward, terminated)
            observation = following
            observations.append(observation)
            actions.append(action)
            rewards.append(np.float32(reward))
            self.step += 1
            if self.step > config.random_steps and self.step % config.update_every == 0:
                self.learner.learn(self.step)
        self.episode += 1
        return Episode(
            np.stack(observations), np.stack(actions), np.array(rewards), terminated, truncated and not terminated, seed
        )

    def _evaluate(self, episodes: list[Episode], seconds: float) -> None:
        actor = self.learner.actor(self.step)
        seeds = range(EVALUATION_SEED, EVALUATION_SEED + self.config.evaluation_episodes)
        played = list(
            play_episodes(
                actor,
                lambda: make_env(self.config.env),
                seeds,
                num_envs=self.config.evaluation_episodes,
                stochastic=False,
            )
        )
        returns = np.array([episode.total_reward for episode in played])
        point = {
            "step": self.step,
            "episodes": self.episode,
            "return_mean": round(float(returns.mean()), 3),
            "return_std": round(float(returns.std()), 3),
            "length_mean": round(float(np.mean([len(episode) for episode in played])), 1),
            "training_return_mean": round(float(np.mean([episode.total_reward for episode in episodes])), 3),
            "seconds": round(seconds, 1),
        }
        self.curve.append(point)
        about = {key: value for key, value in point.items() if key != "seconds"}
        actor.save(snapshot_path(self.config.out, self.step), env=self.config.env, seed=self.config.seed, **about)

    # -- committing and restoring -------------------------------------------------------------------------------

    def _save(self) -> None:
        progress = {
            "step": self.step,
            "episode": self.episode,
            "interval": self.interval,
            "updates": self.learner.model._n_updates,
            "curve": self.curve,
        }
        save_state(self.config.out, self.learner.tensors(), progress)
        write_csv(self.config.out / "learning_curve.csv", self.curve)

    def restore(self) -> None:
        """Go back to the last committed interval, and forget whatever was written after it."""
        run = self.config.out
        if state_path(run).exists():
            progress, tensors = read_state(run, {"episode": whole(0), "interval": whole(1)})
            self.step, self.episode, self.interval = (progress[key] for key in ("step", "episode", "interval"))
            self.curve = progress["curve"]
            self.learner.model._n_updates = progress["updates"]
            recorded = [read_part(part_path(run, number)) for number in range(1, self.interval + 1)]
            try:
                self.learner.load(tensors)
                self.learner.refill(FlatEpisodes.concatenate(recorded))
            except (KeyError, ValueError, RuntimeError) as error:
                raise DatasetError(f"{state_path(run)} does not fit this run: {error}; remove {run}") from error
        for part in sorted((run / "parts").glob("part-*.hdf5"))[self.interval :]:
            part.unlink()
