"""PPO from Stable-Baselines3 on Atari games, driven so that a killed run goes on exactly where its checkpoint was.

The games under way are not saved (an emulator's saved state is not quite complete): their seeds and actions are, and
they are played again. Stable-Baselines3 draws from the global generators, which are seeded before every round.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from stable_baselines3 import PPO
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor

from brrcrl_lib.base.files import atomic_path
from brrcrl_lib.data.atari import AtariConfig, AtariEnv
from brrcrl_lib.data.registry import DatasetError
from brrcrl_lib.tools.agents.atari import AtariActor, AtariTrunk


@dataclass(frozen=True)
class PpoConfig:
    """How the agent learns; the defaults are PPO's for Atari, with a smaller network."""

    envs: int = 8
    """Games played side by side."""
    rollout: int = 128
    """Steps per game between two updates."""
    batch_size: int = 256
    """Transitions per gradient step."""
    epochs: int = 3
    """Passes over the transitions of one update."""
    learning_rate: float = 2.5e-4
    """Adam's learning rate."""
    discount: float = 0.99
    """Discount of rewards."""
    gae_lambda: float = 0.95
    """Of the advantage estimate."""
    clip_range: float = 0.1
    """How far an update may change the probability of an action."""
    entropy: float = 0.01
    """Weight of the policy's entropy."""
    value_weight: float = 0.5
    """Weight of the value loss."""
    channels: tuple[int, int, int] = (16, 32, 64)
    """Filters of the three convolutions."""
    units: int = 256
    """Units of the layer behind them."""


class _AtariPolicy(ActorCriticPolicy):
    """The trunk takes bytes as they are; Stable-Baselines3 would make floats of them first, which takes longer.

    It still does where it calls its own base class (`predict_values`), to the same effect.
    """

    def extract_features(self, obs: Any, features_extractor: Any = None) -> Any:
        return self.features_extractor(obs)


@dataclass
class _Running:
    """A game under way."""

    seed: int
    actions: list[int] = field(default_factory=list)
    score: float = 0.0


class PpoLearner:
    """Eight games, one network, and the memory of what finished games scored."""

    def __init__(self, env: str, seed: int, ppo: PpoConfig, play: AtariConfig) -> None:
        if ppo.envs * ppo.rollout % ppo.batch_size:
            raise DatasetError(
                f"an update has {ppo.envs} * {ppo.rollout} = {ppo.envs * ppo.rollout} transitions, "
                f"which --ppo.batch-size {ppo.batch_size} does not divide"
            )
        self.config, self.seed = ppo, seed
        self.envs = [AtariEnv(env, play) for _ in range(ppo.envs)]
        self.ppo = PPO(
            _AtariPolicy,
            DummyVecEnv([lambda env=env: env for env in self.envs]),  # type: ignore[misc]
            learning_rate=ppo.learning_rate,
            n_steps=ppo.rollout,
            batch_size=ppo.batch_size,
            n_epochs=ppo.epochs,
            gamma=ppo.discount,
            gae_lambda=ppo.gae_lambda,
            clip_range=ppo.clip_range,
            ent_coef=ppo.entropy,
            vf_coef=ppo.value_weight,
            policy_kwargs={
                "features_extractor_class": AtariTrunk,
                "features_extractor_kwargs": {"channels": ppo.channels, "units": ppo.units},
                "net_arch": [],
                "normalize_images": False,  # the trunk does
            },
            seed=seed,
            device="cpu",
        )
        self.ppo.policy.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.ppo.set_logger(Logger(None, []))
        self.step = self.rounds = self.games = 0
        self.first = np.ones(ppo.envs, bool)  # [envs]: the next step begins an episode, for the advantage estimate
        self.running = [self._start(env) for env in self.envs]
        self.finished: list[tuple[float, int]] = []  # (score, length) of games since the last look

    def actor(self) -> AtariActor:
        return AtariActor.from_sb3(self.ppo.policy)

    def _start(self, env: AtariEnv) -> _Running:
        seed = self.seed * 1_000_000 + self.games
        self.games += 1
        env.reset(seed=seed)
        return _Running(seed)

    # -- learning -----------------------------------------------------------------------------------------------

    def round(self) -> int:
        """Play `rollout` steps in each game and learn from them; return how many transitions that were."""
        seed = (self.seed * 1_000_003 + self.rounds) % 2**32
        torch.manual_seed(seed)
        np.random.seed(seed)
        self.ppo.policy.set_training_mode(False)
        buffer: Any = self.ppo.rollout_buffer
        buffer.reset()
        observations = self._observations()
        with torch.no_grad():
            for _ in range(self.config.rollout):
                actions, values, log_probs = self.ppo.policy(torch.from_numpy(observations))
                chosen = actions.numpy()
                rewards, ended = self._play(chosen)
                buffer.add(observations, chosen[:, None], rewards, self.first, values, log_probs)
                self.first = ended
                observations = self._observations()
            last = self.ppo.policy.predict_values(torch.from_numpy(observations))
        buffer.compute_returns_and_advantage(last_values=last, dones=self.first)
        self.ppo.train()
        self.rounds += 1
        taken = self.config.rollout * self.config.envs
        self.step += taken
        return taken

    def _observations(self) -> np.ndarray:
        return np.stack([env.stack for env in self.envs])  # [envs, 4, 84, 84]

    def _play(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One step in every game. For learning, rewards are -1, 0 or 1 and a lost life ends an episode."""
        rewards, ended = np.zeros(len(actions), np.float32), np.zeros(len(actions), bool)
        for number, (env, action) in enumerate(zip(self.envs, actions.tolist(), strict=True)):
            running = self.running[number]
            _, _, terminated, truncated, info = env.step(action)
            running.actions.append(action)
            running.score += info["score"]
            rewards[number] = np.sign(info["score"])
            ended[number] = terminated or truncated or info["life_lost"]
            if terminated or truncated:
                self.finished.append((running.score, len(running.actions)))
                self.running[number] = self._start(env)
        return rewards, ended

    # -- saving and restoring -----------------------------------------------------------------------------------

    def save(self, path: Path, **about: Any) -> None:
        tensors = {f"policy/{name}": tensor for name, tensor in self.ppo.policy.state_dict().items()}
        for index, entries in self.ppo.policy.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{index}/{name}": value for name, value in entries.items()}
        for number, running in enumerate(self.running):
            tensors[f"game/{number}"] = torch.tensor(running.actions, dtype=torch.uint8)
        progress = {
            "step": self.step,
            "rounds": self.rounds,
            "games": self.games,
            "first": self.first.tolist(),
            "seeds": [running.seed for running in self.running],
            "updates": self.ppo._n_updates,
            **about,
        }
        with atomic_path(path) as temporary:
            save_file(
                {name: tensor.contiguous().clone() for name, tensor in tensors.items()},
                temporary,
                metadata={"progress": json.dumps(progress)},
            )

    def restore(self, path: Path) -> dict[str, Any]:
        """Go back to a saved moment; return what was saved `about` it."""
        progress, tensors = read_state(path)
        self.step, self.rounds, self.games = (progress[key] for key in ("step", "rounds", "games"))
        self.first = np.array(progress["first"])
        self.ppo._n_updates = progress["updates"]
        policy = self.ppo.policy
        policy.load_state_dict(_below(tensors, "policy"))
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in _below(tensors, "optimizer").items():
            index, entry = name.split("/")
            state.setdefault(int(index), {})[entry] = value
        policy.optimizer.load_state_dict(policy.optimizer.state_dict() | {"state": state})
        for number, (env, seed) in enumerate(zip(self.envs, progress["seeds"], strict=True)):
            self.running[number] = self._replay(env, seed, tensors[f"game/{number}"].tolist())
        return progress

    @staticmethod
    def _replay(env: AtariEnv, seed: int, actions: list[int]) -> _Running:
        env.reset(seed=seed)
        score = sum(env.step(action)[4]["score"] for action in actions)
        return _Running(seed, actions, float(score))


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix + "/"): value for name, value in tensors.items() if name.startswith(prefix + "/")}


def read_state(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Progress and tensors of a checkpoint."""
    try:
        with safe_open(path, "pt") as file:
            progress = json.loads(file.metadata()["progress"])
            return progress, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except Exception as error:
        raise DatasetError(f"{path} is no readable checkpoint: {error}") from error
