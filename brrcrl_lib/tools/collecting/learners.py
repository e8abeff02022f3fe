"""Online algorithms of Stable-Baselines3, driven one environment step at a time: SAC for boxes, DQN for sets.

Stable-Baselines3 draws from the global generators; the collector seeds them at the start of each episode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.tensors import optimizer_tensors, restore_optimizer, section
from brrcrl_lib.data.storage import FlatEpisodes
from brrcrl_lib.tools.agents.episodes import round_mantissa
from brrcrl_lib.tools.agents.vectors import Actor, DqnActor, SacActor

if TYPE_CHECKING:
    from brrcrl_lib.tools.collecting.collect import CollectConfig

FINAL_EPSILON = 0.05
"""Share of random actions in DQN's training once it has settled."""
EPSILON_SPAN = 8
"""DQN's share of random actions falls from 1 to FINAL_EPSILON over this many times `random_steps`."""
TARGET_EVERY = 200
"""Environment steps between updates of DQN's target network."""


class Learner:
    """What the collector needs of an algorithm, on top of Stable-Baselines3's own off-policy machinery."""

    model: Any

    def __init__(self, config: CollectConfig, env: gym.Env, algorithm: Any, **policy: Any) -> None:
        from stable_baselines3.common.logger import Logger

        self.config, self.env = config, env
        self.model = algorithm(
            "MlpPolicy",
            env,
            learning_rate=config.learning_rate,
            batch_size=config.batch_size,
            buffer_size=config.steps + 10_000,  # never wraps: the buffer is the recording
            gamma=config.discount,
            policy_kwargs={"net_arch": list(config.hidden), **policy},
            seed=config.seed,
            device="cpu",
        )
        self.model.set_logger(Logger(None, []))

    def explore(self, observation: np.ndarray, step: int) -> np.ndarray:
        """The action to take in training, at this step of the run."""
        raise NotImplementedError

    def remember(self, observation: Any, following: Any, action: Any, reward: float, terminated: bool) -> None:
        ends = np.array([terminated])
        self.model.replay_buffer.add(observation, following, self.stored(action), np.array([reward]), ends, [{}])

    def stored(self, actions: np.ndarray) -> np.ndarray:
        """Actions as the replay buffer keeps them."""
        return actions

    def learn(self, step: int) -> None:
        """One gradient update, after environment step `step`."""
        self.model.train(gradient_steps=1, batch_size=self.config.batch_size)

    def actor(self, step: int) -> Actor:
        """A copy of the policy as it is now."""
        raise NotImplementedError

    # -- state ---------------------------------------------------------------------------------------------------

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        raise NotImplementedError

    def tensors(self) -> dict[str, torch.Tensor]:
        """Networks and optimisers, flat."""
        tensors = {f"policy/{name}": tensor for name, tensor in self.model.policy.state_dict().items()}
        for label, optimizer in self.optimizers().items():
            tensors |= {f"{label}/{name}": tensor for name, tensor in optimizer_tensors(optimizer).items()}
        return tensors

    def load(self, tensors: dict[str, torch.Tensor]) -> None:
        self.model.policy.load_state_dict(section(tensors, "policy"))
        for label, optimizer in self.optimizers().items():
            restore_optimizer(optimizer, section(tensors, label))

    def refill(self, flat: FlatEpisodes) -> None:
        """Put the recorded transitions back where `remember` had put them."""
        buffer = self.model.replay_buffer
        steps = len(flat.rewards)
        first = np.ones(len(flat.observations), dtype=bool)
        last = first.copy()
        ends = np.cumsum(flat.lengths + 1)
        first[ends - 1] = False  # a final observation starts no transition
        last[np.concatenate([[0], ends[:-1]])] = False  # a first one ends none
        buffer.observations[:steps, 0] = flat.observations[first]
        buffer.next_observations[:steps, 0] = flat.observations[last]
        buffer.actions[:steps, 0] = self.stored(flat.actions).reshape(steps, -1)
        buffer.rewards[:steps, 0] = flat.rewards
        buffer.dones[:steps, 0] = flat.terminations
        buffer.pos = steps


class SacLearner(Learner):
    """Soft Actor-Critic."""

    def __init__(self, config: CollectConfig, env: gym.Env) -> None:
        from brrcrl_lib.tools.collecting.fast_sac import FastSAC

        super().__init__(config, env, FastSAC, optimizer_kwargs={"fused": True})

    def explore(self, observation: np.ndarray, step: int) -> np.ndarray:
        if step < self.config.random_steps:
            return round_mantissa(self.env.action_space.sample())
        return round_mantissa(self.model.predict(observation, deterministic=False)[0])

    def stored(self, actions: np.ndarray) -> np.ndarray:
        return self.model.policy.scale_action(actions)

    def actor(self, step: int) -> SacActor:
        return SacActor.from_sb3(self.model.actor)

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {
            "actor_optimizer": self.model.actor.optimizer,
            "critic_optimizer": self.model.critic.optimizer,
            "ent_coef_optimizer": self.model.ent_coef_optimizer,
        }

    def tensors(self) -> dict[str, torch.Tensor]:
        return {**super().tensors(), "log_ent_coef": self.model.log_ent_coef.data}

    def load(self, tensors: dict[str, torch.Tensor]) -> None:
        super().load(tensors)
        self.model.log_ent_coef.data.copy_(tensors["log_ent_coef"])


class DqnLearner(Learner):
    """Deep Q-learning with a target network and a falling share of random actions."""

    def __init__(self, config: CollectConfig, env: gym.Env) -> None:
        from stable_baselines3 import DQN

        super().__init__(config, env, DQN)

    def epsilon(self, step: int) -> float:
        return max(FINAL_EPSILON, 1 - step / (EPSILON_SPAN * max(1, self.config.random_steps)))

    def explore(self, observation: np.ndarray, step: int) -> np.ndarray:
        if step < self.config.random_steps or np.random.rand() < self.epsilon(step):
            return np.asarray(self.env.action_space.sample())
        with torch.no_grad():
            values = self.model.q_net(torch.as_tensor(observation).unsqueeze(0))
        return values.argmax(-1)[0].numpy()

    def learn(self, step: int) -> None:
        super().learn(step)
        if step % TARGET_EVERY == 0:
            self.model.q_net_target.load_state_dict(self.model.q_net.state_dict())

    def actor(self, step: int) -> DqnActor:
        return DqnActor.from_sb3(self.model.q_net, self.epsilon(step))

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {"optimizer": self.model.policy.optimizer}


def make_learner(config: CollectConfig, env: gym.Env) -> Learner:
    """SAC where actions are a box, DQN where they are a set; observations are vectors."""
    if len(env.observation_space.shape or ()) != 1:
        raise KitError(
            f"{config.env} has observations of shape {env.observation_space.shape}; vectors are needed here "
            "(on Atari: --algorithm ppo)"
        )
    if isinstance(env.action_space, gym.spaces.Box):
        return SacLearner(config, env)
    if isinstance(env.action_space, gym.spaces.Discrete):
        return DqnLearner(config, env)
    raise KitError(f"{config.env} has actions {env.action_space}; SAC needs a box and DQN discrete ones")
