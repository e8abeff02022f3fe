"""The SAC policies that made the data, as plain torch modules in safetensors files."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from brrcrl_lib.runs import atomic_path


class SacActor(nn.Module):
    """The tanh-Gaussian policy of Soft Actor-Critic: a = tanh(mu(s) + sigma(s) * noise), scaled to the action box."""

    def __init__(self, observation_size: int, action_low: np.ndarray, action_high: np.ndarray, hidden: tuple[int, ...]):
        super().__init__()
        sizes = (observation_size, *hidden)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.trunk = nn.Sequential(*layers)
        self.mean = nn.Linear(sizes[-1], len(action_low))
        self.log_std = nn.Linear(sizes[-1], len(action_low))
        self.register_buffer("low", torch.as_tensor(action_low, dtype=torch.float32))
        self.register_buffer("high", torch.as_tensor(action_high, dtype=torch.float32))
        self.about: dict[str, Any] = {}

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

    def save(self, path: Path, **about: Any) -> None:
        hidden = [layer.out_features for layer in self.trunk if isinstance(layer, nn.Linear)]
        with atomic_path(path) as temporary:
            save_file(
                {name: tensor.contiguous().clone() for name, tensor in self.state_dict().items()},
                temporary,
                metadata={"kind": "SacActor", "hidden": json.dumps(hidden), "about": json.dumps(about)},
            )

    @classmethod
    def load(cls, path: Path) -> SacActor:
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        except FileNotFoundError:
            raise FileNotFoundError(f"no policy at {path}") from None
        except Exception as error:
            raise ValueError(f"{path} is not a readable safetensors file: {error}") from error
        if metadata.get("kind") != "SacActor":
            raise ValueError(f"{path} holds no SacActor (kind: {metadata.get('kind', 'not stated')})")
        actor = cls(
            tensors["trunk.0.weight"].shape[1],
            tensors["low"].numpy(),
            tensors["high"].numpy(),
            tuple(json.loads(metadata["hidden"])),
        )
        actor.load_state_dict(tensors)
        actor.about = json.loads(metadata["about"])
        return actor
