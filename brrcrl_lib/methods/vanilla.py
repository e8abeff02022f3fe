"""Vanilla reward-conditioned RL: p(a|s,R) with the return as one more input, the paper's point of departure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from brrcrl_lib.data.batch import Batch
from brrcrl_lib.inference.targets import Constant, TargetSettings
from brrcrl_lib.methods.base import Method
from brrcrl_lib.methods.cloning import CloningAct
from brrcrl_lib.methods.settings import (
    FRAMES,
    PAPER_BOX,
    PAPER_GAMES,
    SMOKE,
    BucketSettings,
    EncoderSettings,
    GaussianSettings,
    MethodConfig,
)
from brrcrl_lib.nets import (
    Categorical,
    CategoricalHead,
    DistributionNet,
    Encoder,
    GaussianHead,
    GaussianMixture,
    make_head,
    mlp,
)
from brrcrl_lib.policies import Policy, TargetPolicy
from brrcrl_lib.returns import ReturnBuckets

HEAD_WIDTH = (256,)
"""Hidden layer behind an encoder, where the return joins its features."""


@dataclass(frozen=True)
class VanillaConfig(BucketSettings, GaussianSettings, EncoderSettings, MethodConfig):
    """Vanilla RCRL, and beside it a value model p(R|s), so that it can be given adaptive targets too."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "discrete": {**FRAMES, "hidden": (256, 256), "buckets": 51},
        "pixels": {**FRAMES, "buckets": 51},
        "smoke": {**SMOKE, "batch_size": 32, "hidden": (32, 32)},
        "smoke box": {"batch_size": 64},
        "paper box": PAPER_BOX,
        "paper discrete": {**PAPER_GAMES, "bucket_scheme": "paper_grid", "bucket_range": "paper"},
        "paper pixels": {**PAPER_GAMES, "bucket_scheme": "paper_grid", "bucket_range": "paper", "encoder": "nature",
                         "standardise_frames": False},
    }  # fmt: skip


@dataclass(frozen=True)
class VanillaAct(CloningAct, TargetSettings):
    """How vanilla RCRL is made to act."""


class VanillaModel(nn.Module):
    """p(a|s,R), the return scaled to [0, 1] over the bucket range; and p(R|s), which is there for adaptive targets.

    The value model reads the encoder's features without shaping them, so that p(a|s,R) stays what it would be
    without it.
    """

    def __init__(
        self,
        encoder: Encoder,
        head: GaussianHead | CategoricalHead,
        hidden: tuple[int, ...],
        buckets: ReturnBuckets,
        value_first: bool,
    ) -> None:
        super().__init__()
        self.encoder, self.head, self.buckets = encoder, head, buckets
        if value_first:  # the order in which weights are drawn: as in the first recorded trainings of each kind
            self.value = DistributionNet(encoder.width, buckets.count, hidden)
        self.policy = mlp(encoder.width + 1, hidden, head.size)
        if not value_first:
            self.value = DistributionNet(encoder.width, buckets.count, hidden)

    def actions(self, features: Tensor, returns: Tensor) -> GaussianMixture | Categorical:
        """p(a|s,R) for the features [B, width] of states and returns [B]."""
        scaled = (returns - self.buckets.low) / (self.buckets.high - self.buckets.low)
        return self.head(self.policy(torch.cat([features, scaled.to(features).unsqueeze(-1)], dim=-1)))

    def log_returns(self, features: Tensor) -> Tensor:
        """log p(R|s) [B, buckets] for the features [B, width] of states."""
        return self.value(features.detach())


@dataclass
class VanillaPolicy(TargetPolicy):
    """Plays p(a|s,R), with R from any target rule.

    An adaptive target asks for the return that stands for the bucket of theta_delta(s): vanilla RCRL conditions on
    one return, not on a return or more.
    """

    model: VanillaModel = field(kw_only=True)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        features = self.model.encoder(observations)
        if isinstance(self.target, Constant):
            wanted = self.target.wanted.to(features.device, torch.float32)
        else:
            distribution = self.model.log_returns(features).exp()
            wanted = self.model.buckets.decode(self.target.bucket(distribution, self.model.buckets))
        self.trace = {"target": wanted}
        return self.chooser.choose(self.model.actions(features, wanted))


class Vanilla(Method):
    """Vanilla reward-conditioned RL."""

    name = "vanilla"
    summary = "vanilla reward-conditioned RL, p(a|s,R) with the return as an input (Section 3)"
    kinds = ("box", "discrete", "pixels")
    Config = VanillaConfig
    Act = VanillaAct
    watched = "conditional_nll"  # the value model learns beside it and is no part of the policy
    config: VanillaConfig

    def build(self) -> dict[str, nn.Module]:
        config, box = self.config, self.facts.kind == "box"
        early = box and config.encoder == "auto"  # the return joins the state before the first layer
        encoder = config.make_encoder(self.facts, "none" if early else None)
        head = make_head(self.facts, **config.gaussian())
        hidden = config.hidden if early else HEAD_WIDTH
        return {"model": VanillaModel(encoder, head, hidden, config.make_buckets(self.facts), value_first=box)}

    def loss(self, batch: Batch, generator: torch.Generator | None) -> dict[str, Tensor]:
        """L_RCRL = -log p(a|s,R), and the value model's own likelihood."""
        model = self.model
        features = model.encoder(batch.observations)
        parts = {
            "conditional_nll": model.actions(features, batch.returns).nll(batch.actions),
            "value_nll": F.nll_loss(model.log_returns(features), model.buckets.encode(batch.returns)),
        }
        return {"loss": parts["conditional_nll"] + parts["value_nll"], **parts}

    def policy(self, act: VanillaAct, generator: torch.Generator | None) -> Policy:
        chooser = act.chooser(self.facts.kind, generator)
        return VanillaPolicy(act.rule(self.facts), chooser, self.facts.reward_clip, model=self.model)
