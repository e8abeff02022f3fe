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

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tqdm.auto import tqdm

from brrcrl_lib.base.environments import make_env
from brrcrl_lib.base.files import atomic_path, write_csv, write_json
from brrcrl_lib.data.episodes import Episode, RoundedEnv
from brrcrl_lib.data.storage import FlatEpisodes, read_part, write_part
from brrcrl_lib.tools.agents.play_vectors import play_episodes
from brrcrl_lib.tools.collecting.learners import make_learner

EVALUATION_SEED = 900_000_000
"""Episodes that only measure the policy start from here, far from the seeds of training episodes."""


@dataclass(frozen=True)
class CollectConfig:
    """Train SAC (continuous actions) or DQN (discrete ones) in an environment and record every transition.

    `--algorithm ppo` trains on an Atari game instead and has its own options: add --help to see them.
    """

    env: str
    """Gymnasium id, for example Hopper-v5."""
    out: Path
    """Run directory; an unfinished run there is continued."""
    steps: int = 500_000
    """Environment steps after which training ends."""
    stop_return: float = float("inf")
    """End earlier, at the first snapshot whose deterministic policy earns this much on average."""
    seed: int = 0
    """Seed of the run; episode e starts from seed * 1,000,000 + e."""
    hidden: tuple[int, ...] = (128, 128)
    """Hidden layers of actor and critics."""
    learning_rate: float = 3e-4
    """Adam's learning rate."""
    batch_size: int = 256
    """Transitions per update."""
    update_every: int = 2
    """Environment steps per gradient update."""
    random_steps: int = 10_000
    """Steps of uniformly random actions before learning starts."""
    discount: float = 0.99
    """Discount of the critic."""
    snapshot_every: int = 10_000
    """Steps between snapshots; each is evaluated, saved and committed."""
    evaluation_episodes: int = 10
    """Deterministic episodes per point of the learning curve."""
    algorithm: Literal["auto"] = "auto"
    """auto: SAC of Stable-Baselines3 where actions are continuous, DQN where they are a set; ppo: see above."""
    publish_as: str | None = None
    """Short name, for example hopper: when training has ended, write the four datasets as `data publish` does."""


def collect(config: CollectConfig, progress: bool = True) -> list[dict[str, Any]]:
    """Run or continue a collection; return its learning curve."""
    _check_same_config(config)
    torch.set_num_threads(1)
    collector = _Collector(config)
    collector.restore()
    bar = tqdm(total=config.steps, initial=collector.step, unit="step", desc=config.env, disable=not progress)
    while not collector.finished:
        collector.run_interval(bar)
        bar.set_postfix(episode=collector.episode, evaluated=round(collector.curve[-1]["return_mean"]))
    bar.close()
    if config.publish_as is not None:
        from brrcrl_lib.tools.publishing.publish import PublishConfig, publish

        publish(PublishConfig(config.out, config.publish_as))
    return collector.curve


def _check_same_config(config: CollectConfig) -> None:
    """Refuse to continue a run under other settings; `steps` and `stop_return` alone may change."""
    path = config.out / "config.json"
    wanted = json.loads(json.dumps(asdict(config), default=str))
    if path.exists():
        stored = json.loads(path.read_text())
        changed = {
            key: (stored.get(key), value)
            for key, value in wanted.items()
            if key not in {"out", "steps", "stop_return", "publish_as", "algorithm"} and stored.get(key) != value
        }
        if changed:
            listing = ", ".join(f"{key}: {old!r} before, {new!r} now" for key, (old, new) in changed.items())
            raise ValueError(f"{config.out} holds a run with other settings ({listing}); choose another --out")
    write_json(path, wanted)


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
        write_part(self._part(self.interval), FlatEpisodes.from_episodes(episodes))
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
                actor, lambda: make_env(self.config.env), seeds, lanes=self.config.evaluation_episodes, stochastic=False
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
        actor.save(self._snapshot(self.step), env=self.config.env, seed=self.config.seed, **about)

    # -- committing and restoring -------------------------------------------------------------------------------

    def _part(self, interval: int) -> Path:
        return self.config.out / "parts" / f"part-{interval:04d}.hdf5"

    def _snapshot(self, step: int) -> Path:
        return self.config.out / "snapshots" / f"step-{step:07d}.safetensors"

    def _save(self) -> None:
        progress = {
            "step": self.step,
            "episode": self.episode,
            "interval": self.interval,
            "updates": self.learner.model._n_updates,
            "curve": self.curve,
        }
        with atomic_path(self.config.out / "state.safetensors") as temporary:
            save_file(
                {name: tensor.contiguous().clone() for name, tensor in self.learner.tensors().items()},
                temporary,
                metadata={"progress": json.dumps(progress)},
            )
        write_csv(self.config.out / "learning_curve.csv", self.curve)

    def restore(self) -> None:
        """Go back to the last committed interval, and forget whatever was written after it."""
        path = self.config.out / "state.safetensors"
        if path.exists():
            with safe_open(path, "pt") as file:
                progress = json.loads(file.metadata()["progress"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            self.step, self.episode, self.interval = (progress[key] for key in ("step", "episode", "interval"))
            self.curve = progress["curve"]
            self.learner.model._n_updates = progress["updates"]
            self.learner.load(tensors)
            numbers = range(1, self.interval + 1)
            self.learner.refill(FlatEpisodes.concatenate([read_part(self._part(number)) for number in numbers]))
        for part in sorted((self.config.out / "parts").glob("part-*.hdf5"))[self.interval :]:
            part.unlink()


def read_curve(run: Path) -> list[dict[str, Any]]:
    with safe_open(run / "state.safetensors", "pt") as file:
        return json.loads(file.metadata()["progress"])["curve"]
