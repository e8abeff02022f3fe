"""Behaviour cloning: p(a|s), whatever the return. The shortest method of the kit, and the one to copy for a new one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from brrcrl_lib.data.batch import Batch
from brrcrl_lib.methods.base import Method
from brrcrl_lib.methods.settings import (
    FRAMES,
    PAPER_BOX,
    PAPER_GAMES,
    SMOKE,
    EncoderSettings,
    GaussianSettings,
    MethodConfig,
)
from brrcrl_lib.nets import Categorical, CategoricalHead, Encoder, GaussianHead, GaussianMixture, make_head
from brrcrl_lib.policies import Chooser, Policy


@dataclass(frozen=True)
class CloningConfig(GaussianSettings, EncoderSettings, MethodConfig):
    """Behaviour cloning; `top_share` makes it %BC, the cloning of the best trajectories alone."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "discrete": {**FRAMES, "hidden": (256, 256)},
        "pixels": FRAMES,
        "smoke": {**SMOKE, "batch_size": 32, "hidden": (32, 32)},
        "smoke box": {"batch_size": 64},
        "paper box": PAPER_BOX,
        "paper discrete": PAPER_GAMES,
        "paper pixels": {**PAPER_GAMES, "encoder": "nature", "standardise_frames": False},
    }


@dataclass(frozen=True)
class CloningAct:
    """How a clone is made to act."""

    mode: str = "best"
    """best: the likeliest action. sample: a draw from p(a|s)."""
    epsilon: float | None = None
    """Share of decisions that are uniformly random; None: 0.01 in games, as in the paper's evaluation, else 0."""

    def chooser(self, kind: str, generator: torch.Generator | None) -> Chooser:
        usual = 0.0 if kind == "box" else 0.01
        return Chooser(self.mode, usual if self.epsilon is None else self.epsilon, generator)


class CloningModel(nn.Module):
    """p(a|s): an encoder of observations, and a head for the data's actions."""

    def __init__(self, encoder: Encoder, head: GaussianHead | CategoricalHead) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head
        self.outputs = nn.Linear(encoder.width, head.size)

    def forward(self, observations: Tensor) -> GaussianMixture | Categorical:
        """The distribution of actions for raw observations [B, ...]."""
        return self.head(self.outputs(self.encoder(observations)))


@dataclass
class CloningPolicy(Policy):
    """Plays p(a|s), of a model of its own or of another method's."""

    distribution: Callable[[Tensor], GaussianMixture | Categorical]
    chooser: Chooser = field(default_factory=Chooser)

    def reset(self, episodes: int) -> None:
        self.chooser.reset(episodes)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        return self.chooser.choose(self.distribution(observations))

    def keep(self, active: Tensor) -> None:
        self.chooser.keep(active)


class Cloning(Method):
    """Behaviour cloning."""

    name = "cloning"
    summary = "behaviour cloning, p(a|s); with top_share the cloning of the best trajectories (%BC)"
    kinds = ("box", "discrete", "pixels")
    Config = CloningConfig
    Act = CloningAct
    config: CloningConfig

    def build(self) -> dict[str, nn.Module]:
        encoder = self.config.make_encoder(self.facts)
        return {"model": CloningModel(encoder, make_head(self.facts, **self.config.gaussian()))}

    def loss(self, batch: Batch, generator: torch.Generator | None) -> dict[str, Tensor]:
        """-log p(a|s)."""
        loss = self.model(batch.observations).nll(batch.actions)
        return {"loss": loss, "prior_nll": loss.detach()}

    def policy(self, act: CloningAct, generator: torch.Generator | None) -> Policy:
        return CloningPolicy(self.model, act.chooser(self.facts.kind, generator))
