"""The policies that made the data, as plain torch modules in safetensors files: SAC's for boxes, DQN's for sets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Self, cast

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from brrcrl_lib.base.limits import each, whole
from brrcrl_lib.tools.agents.episodes import round_mantissa
from brrcrl_lib.tools.agents.policy_files import build, load_policy, save_policy


class Actor(nn.Module):
    """A policy on vectors, that can be written to a file and read from it."""

    algorithm = ""
    trunk: nn.Sequential

    def __init__(self, observation_size: int, action_size: int) -> None:
        super().__init__()
        self.sizes = (observation_size, action_size)  # numbers in an observation, and in an action (or the set's size)
        self.about: dict[str, Any] = {}

    def decide(self, observations: np.ndarray, generators: Sequence[np.random.Generator] | None = None) -> np.ndarray:
        """Actions for observations [n, k], ready for the environment; each row draws from its own generator, if any."""
        raise NotImplementedError

    @classmethod
    def from_tensors(cls, tensors: dict[str, torch.Tensor], hidden: tuple[int, ...], about: dict[str, Any]) -> Self:
        raise NotImplementedError

    def save(self, path: Path, **about: Any) -> None:
        hidden = [layer.out_features for layer in self.trunk if isinstance(layer, nn.Linear)]
        save_policy(path, type(self).__name__, {"hidden": hidden}, self.state_dict(), about)

    @classmethod
    def load(cls, path: Path) -> Self:
        kinds = {kind.__name__: kind for kind in (SacActor, DqnActor) if issubclass(kind, cls)}
        name, layout, tensors, about = load_policy(path, tuple(kinds), {"hidden": each(whole(1))})
        kind = cast(type[Self], kinds[name])
        actor = build(lambda: kind.from_tensors(tensors, tuple(layout["hidden"]), about), tensors, path)
        actor.about = about
        return actor


def _trunk(observation_size: int, hidden: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise((observation_size, *hidden)):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class SacActor(Actor):
    """The tanh-Gaussian policy of Soft Actor-Critic: a = tanh(mu(s) + sigma(s) * noise), scaled to the action box."""

    algorithm = "SAC"

    def __init__(self, observation_size: int, action_low: np.ndarray, action_high: np.ndarray, hidden: tuple[int, ...]):
        super().__init__(observation_size, len(action_low))
        self.trunk = _trunk(observation_size, hidden)
        width = (observation_size, *hidden)[-1]
        self.mean = nn.Linear(width, len(action_low))
        self.log_std = nn.Linear(width, len(action_low))
        self.register_buffer("low", torch.as_tensor(action_low, dtype=torch.float32))
        self.register_buffer("high", torch.as_tensor(action_high, dtype=torch.float32))

    @classmethod
    def from_sb3(cls, actor: Any) -> SacActor:
        """Copy the weights of a Stable-Baselines3 SAC actor."""
        hidden = tuple(layer.out_features for layer in actor.latent_pi if isinstance(layer, nn.Linear))
        box = actor.action_space
        copy = cls(actor.observation_space.shape[0], box.low, box.high, hidden)
        copy.trunk.load_state_dict(actor.latent_pi.state_dict())
        copy.mean.load_state_dict(actor.mu.state_dict())
        copy.log_std.load_state_dict(actor.log_std.state_dict())
        return copy

    @classmethod
    def from_tensors(cls, tensors: dict[str, torch.Tensor], hidden: tuple[int, ...], about: dict[str, Any]) -> Self:
        size = tensors["trunk.0.weight" if hidden else "mean.weight"].shape[1]
        return cls(size, tensors["low"].numpy(), tensors["high"].numpy(), hidden)

    @torch.no_grad()
    def act(self, observations: np.ndarray, noise: np.ndarray | None = None) -> np.ndarray:
        """Actions [n, m] for observations [n, k]; deterministic without `noise` [n, m] (standard normal)."""
        features = self.trunk(torch.as_tensor(observations, dtype=torch.float32))
        raw = self.mean(features)
        if noise is not None:
            std = self.log_std(features).clamp(-20, 2).exp()
            raw = raw + std * torch.as_tensor(noise, dtype=torch.float32)
        low, high = cast(torch.Tensor, self.low), cast(torch.Tensor, self.high)
        return (low + 0.5 * (raw.tanh() + 1) * (high - low)).numpy()

    def decide(self, observations: np.ndarray, generators: Sequence[np.random.Generator] | None = None) -> np.ndarray:
        """Actions [n, m], rounded to 14 mantissa bits; the mean action without generators."""
        noise = None
        if generators is not None:
            noise = np.stack([rng.standard_normal(self.sizes[1], dtype=np.float32) for rng in generators])
        return round_mantissa(self.act(observations, noise))


class DqnActor(Actor):
    """The policy of a deep Q-network: the action of the largest value, and with probability epsilon any."""

    algorithm = "DQN"

    def __init__(self, observation_size: int, action_count: int, hidden: tuple[int, ...], epsilon: float = 0.05):
        super().__init__(observation_size, action_count)
        self.trunk = _trunk(observation_size, hidden)
        self.values = nn.Linear((observation_size, *hidden)[-1], action_count)
        self.epsilon = epsilon

    @classmethod
    def from_sb3(cls, network: Any, epsilon: float) -> DqnActor:
        """Copy the weights of a Stable-Baselines3 Q-network."""
        *body, last = network.q_net
        hidden = tuple(layer.out_features for layer in body if isinstance(layer, nn.Linear))
        copy = cls(network.observation_space.shape[0], last.out_features, hidden, epsilon)
        copy.trunk.load_state_dict(nn.Sequential(*body).state_dict())
        copy.values.load_state_dict(last.state_dict())
        return copy

    @classmethod
    def from_tensors(cls, tensors: dict[str, torch.Tensor], hidden: tuple[int, ...], about: dict[str, Any]) -> Self:
        size = tensors["trunk.0.weight" if hidden else "values.weight"].shape[1]
        return cls(size, len(tensors["values.weight"]), hidden, about["epsilon"])

    def save(self, path: Path, **about: Any) -> None:
        super().save(path, **{**about, "epsilon": self.epsilon})

    @torch.no_grad()
    def decide(self, observations: np.ndarray, generators: Sequence[np.random.Generator] | None = None) -> np.ndarray:
        """Actions [n] int64; without generators, never a random one."""
        actions = self.values(self.trunk(torch.as_tensor(observations, dtype=torch.float32))).argmax(-1).numpy()
        if generators is None:
            return actions
        draws = np.stack([rng.random(2) for rng in generators])  # [n, 2]
        anything = (draws[:, 1] * self.sizes[1]).astype(np.int64)
        return np.where(draws[:, 0] < self.epsilon, anything, actions)


def check_fit(actor: Actor, env: gym.Env) -> str | None:
    """None if the policy can play in the environment; otherwise what each of them has."""
    discrete = isinstance(env.action_space, gym.spaces.Discrete)
    action = (int(env.action_space.n),) if isinstance(env.action_space, gym.spaces.Discrete) else env.action_space.shape
    observation = env.observation_space.shape
    if (observation, action) == ((actor.sizes[0],), (actor.sizes[1],)) and discrete == isinstance(actor, DqnActor):
        return None
    name = env.spec.id if env.spec else "the environment"
    return (
        f"takes {actor.sizes[0]} observations and gives {actor.sizes[1]} actions; "
        f"{name} has {observation} and {'a set of ' if discrete else ''}{action}"
    )
