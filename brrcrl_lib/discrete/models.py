"""The networks for discrete actions: one joint table for BR-RCRL, and two rivals that see through the same encoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from brrcrl_lib.discrete.encoders import Encoder
from brrcrl_lib.discrete.table import JointTable
from brrcrl_lib.models import mlp
from brrcrl_lib.returns import ReturnBuckets


class JointReturnModel(nn.Module):
    """p(a, R | s) as a |A||B|-way softmax (Section 4.3)."""

    def __init__(self, encoder: Encoder, action_count: int, buckets: ReturnBuckets) -> None:
        super().__init__()
        self.encoder, self.action_count, self.buckets = encoder, action_count, buckets
        self.head = nn.Linear(encoder.width, action_count * buckets.count)

    def forward(self, observations: Tensor) -> JointTable:
        """The table of each observation [B, ...]."""
        logits = self.head(self.encoder(observations)).float()
        return JointTable(logits.view(-1, self.action_count, self.buckets.count))


class DiscreteCloning(nn.Module):
    """Behaviour cloning: p(a|s) alone. The distributional learner also averages next states with one of these."""

    def __init__(self, encoder: Encoder, action_count: int) -> None:
        super().__init__()
        self.encoder, self.action_count = encoder, action_count
        self.head = nn.Linear(encoder.width, action_count)

    def logits(self, observations: Tensor) -> Tensor:
        """log p(a|s) up to a constant of the state, [B, A]."""
        return self.head(self.encoder(observations)).float()

    def forward(self, observations: Tensor) -> Tensor:
        """log p(a|s), [B, A]."""
        return self.logits(observations).log_softmax(-1)


class DiscreteVanilla(nn.Module):
    """Vanilla RCRL: p(a|s,R) with the return as one more input, scaled to [0, 1] over the bucket range.

    The value head p(R|s) is there for adaptive targets alone. It reads the encoder's features without shaping them,
    so that p(a|s,R) stays what it would be without it.
    """

    def __init__(self, encoder: Encoder, action_count: int, buckets: ReturnBuckets, head_width: int = 256) -> None:
        super().__init__()
        self.encoder, self.action_count, self.buckets = encoder, action_count, buckets
        self.policy = mlp(encoder.width + 1, (head_width,), action_count)
        self.value = mlp(encoder.width, (head_width,), buckets.count)

    def log_actions(self, features: Tensor, returns: Tensor) -> Tensor:
        """log p(a|s,R) [B, A] for the features [B, width] of states and returns [B]."""
        scaled = (returns - self.buckets.low) / (self.buckets.high - self.buckets.low)
        return self.policy(torch.cat([features, scaled.to(features).unsqueeze(-1)], dim=-1)).float().log_softmax(-1)

    def log_returns(self, features: Tensor) -> Tensor:
        """log p(R|s) [B, N] for the features [B, width] of states."""
        return self.value(features.detach()).float().log_softmax(-1)


DiscreteModel = JointReturnModel | DiscreteVanilla | DiscreteCloning
