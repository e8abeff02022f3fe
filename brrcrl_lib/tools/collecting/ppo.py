"""PPO from Stable-Baselines3 on Atari games, driven so that a killed run goes on exactly where its checkpoint was.

The games under way are not saved (an emulator's saved state is not quite complete): their seeds and actions are, and
they are played again. Stable-Baselines3 draws from the global generators, which are seeded before every round.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv

from brrcrl_lib.base.limits import each, whole
from brrcrl_lib.base.settings import YES_OR_NO, Count, Discount, Rate, number
from brrcrl_lib.base.tensors import optimizer_tensors, restore_optimizer, section
from brrcrl_lib.data.atari import AtariConfig, AtariEnv
from brrcrl_lib.data.registry import DatasetError
from brrcrl_lib.tools.agents.atari import AtariActor, AtariTrunk
from brrcrl_lib.tools.collecting.run_files import read_state, save_state, state_path

PROGRESS = {"rounds": whole(0), "games": whole(0), "first": each(YES_OR_NO), "seeds": each(whole(0))}


@dataclass(frozen=True)
class PpoConfig:
    """How the agent learns; the defaults are PPO's for Atari, with a smaller network."""

    envs: Count = 8
    """Games played side by side."""
    rollout: Count = 128
    """Steps per game between two updates."""
    batch_size: Count = 256
    """Transitions per gradient step."""
    epochs: Count = 3
    """Passes over the transitions of one update."""
    learning_rate: Rate = 2.5e-4
    """Adam's learning rate."""
    discount: Discount = 0.99
    """Discount of rewards."""
    gae_lambda: Discount = 0.95
    """Of the advantage estimate."""
    clip_range: Rate = 0.1
    """How far an update may change the probability of an action."""
    entropy: Annotated[float, number(0)] = 0.01
    """Weight of the policy's entropy."""
    value_weight: Annotated[float, number(0)] = 0.5
    """Weight of the value loss."""
    channels: tuple[Count, Count, Count] = (16, 32, 64)
    """Filters of the three convolutions."""
    units: Count = 256
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
        for place, (env, action) in enumerate(zip(self.envs, actions.tolist(), strict=True)):
            running = self.running[place]
            _, _, terminated, truncated, info = env.step(action)
            running.actions.append(action)
            running.score += info["score"]
            rewards[place] = np.sign(info["score"])
            ended[place] = terminated or truncated or info["life_lost"]
            if terminated or truncated:
                self.finished.append((running.score, len(running.actions)))
                self.running[place] = self._start(env)
        return rewards, ended

    # -- saving and restoring -----------------------------------------------------------------------------------

    def save(self, run: Path, **about: Any) -> None:
        """Commit to the folder of a run."""
        tensors = {f"policy/{name}": tensor for name, tensor in self.ppo.policy.state_dict().items()}
        optimizer = optimizer_tensors(self.ppo.policy.optimizer)
        tensors |= {f"optimizer/{name}": tensor for name, tensor in optimizer.items()}
        for place, running in enumerate(self.running):
            tensors[f"game/{place}"] = torch.tensor(running.actions, dtype=torch.uint8)
        progress = {
            "step": self.step,
            "rounds": self.rounds,
            "games": self.games,
            "first": self.first.tolist(),
            "seeds": [running.seed for running in self.running],
            "updates": self.ppo._n_updates,
            **about,
        }
        save_state(run, tensors, progress)

    def restore(self, run: Path) -> dict[str, Any]:
        """Go back to the moment that was committed; return what was saved `about` it."""
        progress, tensors = read_state(run, PROGRESS)
        try:
            self.ppo.policy.load_state_dict(section(tensors, "policy"))
            restore_optimizer(self.ppo.policy.optimizer, section(tensors, "optimizer"))
            games = [tensors[f"game/{place}"].tolist() for place in range(len(self.envs))]
            self.running = [
                self._replay(env, seed, actions)
                for env, seed, actions in zip(self.envs, progress["seeds"], games, strict=True)
            ]
        except (KeyError, ValueError, RuntimeError, IndexError) as error:
            raise DatasetError(f"{state_path(run)} does not fit this run: {error}; remove {run}") from error
        self.step, self.rounds, self.games = (progress[key] for key in ("step", "rounds", "games"))
        self.first = np.array(progress["first"])
        self.ppo._n_updates = progress["updates"]
        return progress

    @staticmethod
    def _replay(env: AtariEnv, seed: int, actions: list[int]) -> _Running:
        env.reset(seed=seed)
        score = sum(env.step(action)[4]["score"] for action in actions)
        return _Running(seed, actions, float(score))
