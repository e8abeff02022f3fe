"""The PPO policies that make Atari data, as plain torch modules in safetensors files of half precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from brrcrl_lib.base.limits import RECORD, check_fields, each, whole
from brrcrl_lib.data.frame_format import STACK
from brrcrl_lib.data.registry import DatasetError
from brrcrl_lib.tools.agents.policy_files import build, load_policy, save_policy

LAYOUT = {"actions": whole(1, 256), "channels": each(whole(1), 3), "units": whole(1)}


class AtariTrunk(nn.Module):
    """Three convolutions and a layer of units: about a sixth of the weights of the usual network, three times as fast.

    Stable-Baselines3 takes it as it is: it hands over the observation space and reads `features_dim`.
    """

    def __init__(self, observation_space: Any = None, channels: tuple[int, ...] = (16, 32, 64), units: int = 256):
        super().__init__()
        first, second, third = channels
        self.layers = nn.Sequential(
            nn.Conv2d(STACK, first, 8, stride=4),  # 84 -> 20
            nn.ReLU(),
            nn.Conv2d(first, second, 4, stride=2),  # 20 -> 9
            nn.ReLU(),
            nn.Conv2d(second, third, 3, stride=2),  # 9 -> 4
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(third * 4 * 4, units),
            nn.ReLU(),
        )
        self.features_dim = units

    def forward(self, observations: Tensor) -> Tensor:
        """Features [n, units] of observations [n, 4, 84, 84] uint8."""
        ordered = observations.contiguous(memory_format=torch.channels_last)  # cheaper for bytes than for floats
        return self.layers(ordered.float() * (1 / 255))


class AtariActor(nn.Module):
    """A policy over the buttons of one game."""

    def __init__(self, actions: int, channels: tuple[int, ...] = (16, 32, 64), units: int = 256) -> None:
        super().__init__()
        self.channels, self.units = tuple(channels), units
        self.trunk = AtariTrunk(None, self.channels, units)
        self.head = nn.Linear(units, actions)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.about: dict[str, Any] = {}

    @classmethod
    def from_sb3(cls, policy: Any) -> AtariActor:
        """Copy the weights of a Stable-Baselines3 actor-critic policy whose features come from an `AtariTrunk`."""
        convolutions = [layer for layer in policy.features_extractor.layers if isinstance(layer, nn.Conv2d)]
        copy = cls(
            policy.action_net.out_features,
            tuple(layer.out_channels for layer in convolutions),
            policy.features_extractor.features_dim,
        )
        copy.trunk.load_state_dict(policy.features_extractor.state_dict())
        copy.head.load_state_dict(policy.action_net.state_dict())
        return copy

    @property
    def actions(self) -> int:
        return self.head.out_features

    def logits(self, observations: Tensor) -> Tensor:
        """[n, actions] of observations [n, 4, 84, 84] uint8."""
        return self.head(self.trunk(observations))

    @torch.no_grad()
    def act(self, observations: np.ndarray, draws: np.ndarray | None = None) -> np.ndarray:
        """Actions [n] for observations [n, 4, 84, 84] uint8; the likeliest, or with `draws` [n] from [0, 1) sampled."""
        logits = self.logits(torch.from_numpy(observations)).double()
        if draws is None:
            return logits.argmax(1).numpy()
        below = logits.softmax(1).cumsum(1) <= torch.from_numpy(draws)[:, None]
        return below.sum(1).clamp(max=self.actions - 1).numpy()

    def save(self, path: Path, **about: Any) -> None:
        """Write the weights in half precision; what is loaded again is the policy that was measured and played."""
        layout = {"actions": self.actions, "channels": self.channels, "units": self.units}
        halved = {name: tensor.half() for name, tensor in self.state_dict().items()}
        save_policy(path, "AtariActor", {"layout": layout}, halved, about)

    @classmethod
    def load(cls, path: Path) -> AtariActor:
        _, stated, tensors, about = load_policy(path, ("AtariActor",), {"layout": RECORD})
        layout = check_fields(stated["layout"], f"{path} (layout)", LAYOUT, None, DatasetError)
        whole_precision = {name: tensor.float() for name, tensor in tensors.items()}
        actor = build(lambda: cls(**{name: layout[name] for name in LAYOUT}), whole_precision, path)
        actor.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        actor.about = about
        return actor


def untrained(actions: int, seed: int = 0, **layout: Any) -> AtariActor:
    """A policy with fresh weights, for tests and as the lowest of a ladder; the global generator stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AtariActor(actions, **layout)
