"""p(a, R | s) as one table per state, and everything that follows from it by summing and dividing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class JointTable:
    """The |A||B|-way softmax of Section 4.3. Nothing below is an approximation."""

    logits: Tensor  # [B, A, N] before normalisation: A actions, N return buckets

    @cached_property
    def action_logits(self) -> Tensor:
        """log sum_R exp(logit) [B, A]: log p(a|s) up to a constant of the state."""
        return self.logits.logsumexp(-1)

    def log_joint(self) -> Tensor:
        """log p(a, R | s), [B, A, N]."""
        return self.logits.flatten(1).log_softmax(-1).view_as(self.logits)

    def log_actions(self) -> Tensor:
        """log p(a|s), [B, A]: the prior, which behaviour cloning would play."""
        return self.action_logits.log_softmax(-1)

    def log_returns(self) -> Tensor:
        """log p(R|s), [B, N]: an exact sum where Algorithm 1 averages over sampled actions."""
        return self.logits.logsumexp(1).log_softmax(-1)

    def log_returns_of_actions(self) -> Tensor:
        """log p(R|s,a) of every action, [B, A, N]."""
        return self.logits.log_softmax(-1)

    def log_returns_of(self, actions: Tensor) -> Tensor:
        """log p(R|s,a) [B, N] of one action per state, [B]."""
        index = actions[:, None, None].expand(-1, 1, self.logits.shape[-1])
        return self.logits.gather(1, index).squeeze(1).log_softmax(-1)

    def log_actions_given(self, bucket: Tensor) -> Tensor:
        """log p(a | s, R) [B, A], with R in `bucket` [B]: what vanilla RCRL models directly."""
        index = bucket[:, None, None].expand(-1, self.logits.shape[1], 1)
        return self.logits.gather(2, index).squeeze(2).log_softmax(-1)

    def log_actions_reaching(self, bucket: Tensor) -> Tensor:
        """log p(a | s, R >= theta) [B, A], with theta the lower edge of `bucket` [B]: pi^delta of Section 4.2."""
        return self._tails(self.logits, bucket).log_softmax(-1)

    def energy(self, bucket: Tensor) -> Tensor:
        """E^delta(a|s) = -log p(a|s) - log p(R >= theta | s, a) [B, A] (Proposition 1, with >= as in its proof)."""
        return -self._tails(self.log_joint(), bucket)

    def _tails(self, values: Tensor, bucket: Tensor) -> Tensor:
        """log of the sum over the buckets from `bucket` [B] on, of exp(values) [B, A, N]: [B, A]."""
        index = torch.arange(values.shape[-1], device=values.device)
        below = (index < bucket.unsqueeze(-1)).unsqueeze(1)  # [B, 1, N]
        return values.masked_fill(below, -torch.inf).logsumexp(-1)
