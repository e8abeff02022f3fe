"""The objectives of Section 4.1, one function per equation. All are averaged over the batch.

Two objectives are fully supported, because the paper's text and its released code differ:

  paper    L0 = -log p(a|s) - log [ p(R|s,a) / sum_{a'} p(R|s,a') ],  negatives a' ~ p(a|s)
  authors  L0 = -log [ exp(-E(a|s,R)) / sum_{a'} exp(-E(a'|s,R)) ],   negatives half p(a|s), half uniform

each plus lambda L1, the likelihood of the return.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from brrcrl_lib.models import BayesianModel, CloningModel, GaussianMixture, RewardConditionedPolicy

OBJECTIVES = ("paper", "authors")


@dataclass(frozen=True)
class Batch:
    """One minibatch."""

    observations: Tensor  # [B, k]
    actions: Tensor  # [B, m]
    returns: Tensor  # [B], discounted reward-to-go


@dataclass(frozen=True)
class Negatives:
    """Random numbers from which negatives are made, drawn outside so that the loss itself is deterministic."""

    noise: Tensor  # [B, N, m], standard normal
    component: Tensor  # [B, N], uniform; picks the mixture component
    uniform: Tensor  # [B, M, m], uniform in [0, 1): the negatives spread over the action box

    @classmethod
    def draw(cls, actions: Tensor, count: int, uniform_share: float, generator: torch.Generator | None) -> Negatives:
        """`count` negatives for each of the actions [B, m], the given share of them uniform."""
        (batch, size), spread = actions.shape, round(count * uniform_share)
        return cls(
            noise=torch.randn(batch, count - spread, size, device=actions.device, generator=generator),
            component=torch.rand(batch, count - spread, device=actions.device, generator=generator),
            uniform=torch.rand(batch, spread, size, device=actions.device, generator=generator),
        )

    def actions(self, prior: GaussianMixture) -> Tensor:
        """The negatives A' [B, N + M, m]: samples of p(a|s), clipped to the box, and uniform ones."""
        with torch.no_grad():
            sampled = prior.sample(self.noise, self.component)  # [B, N, m]
            spread = prior.low + self.uniform * (prior.high - prior.low)  # [B, M, m]
            return torch.cat([sampled, spread], dim=1)


def prior_likelihood(prior: GaussianMixture, actions: Tensor) -> Tensor:
    """-log p(a|s): plain behaviour cloning, and the first term of the paper's L0."""
    return -prior.log_prob(actions.unsqueeze(1)).mean()


def info_nce(scores: Tensor) -> Tensor:
    """InfoNCE (Section 2.3) from scores [B, 1 + N] whose first column is the positive.

    Differs from the paper: its equation for L0 sums over the negatives alone. Like InfoNCE itself we count the
    positive among the candidates, because without it the ratio has no lower bound.
    """
    return -scores.log_softmax(-1)[:, 0].mean()


def return_likelihood(log_return: Tensor, labels: Tensor) -> Tensor:
    """L1 = -log p(R|s,a), from log p(.|s,a) [B, buckets] and the bucket of R [B]."""
    return F.nll_loss(log_return, labels)


def bayesian_loss(
    model: BayesianModel,
    batch: Batch,
    negatives: Negatives,
    objective: str = "authors",
    return_weight: float = 1.0,
) -> dict[str, Tensor]:
    """L0 + lambda L1 of BR-RCRL, plus the value model's own likelihood. Entry `loss` is the sum to minimise."""
    states = model.standardise(batch.observations)
    labels = model.buckets.encode(batch.returns)  # [B]
    prior = model.prior(states)
    candidates = torch.cat([batch.actions.unsqueeze(1), negatives.actions(prior)], dim=1)  # [B, 1 + N, m]
    log_returns = model.returns.log_probs(model.returns.encode(states), candidates)  # [B, 1 + N, buckets]
    picked = labels[:, None, None].expand(-1, candidates.shape[1], 1)
    scores = log_returns.gather(-1, picked).squeeze(-1)  # log p(R_i | s_i, a'), [B, 1 + N]

    parts: dict[str, Tensor] = {}
    if objective == "authors":
        log_prior = prior.log_prob(candidates)  # [B, 1 + N]
        parts["contrast"] = info_nce(log_prior + scores)  # minus the energy of each candidate
        parts["prior_nll"] = -log_prior[:, 0].mean().detach()  # watched, not trained
        total = parts["contrast"]
    elif objective == "paper":
        parts["prior_nll"] = prior_likelihood(prior, batch.actions)
        parts["contrast"] = info_nce(scores)
        total = parts["prior_nll"] + parts["contrast"]
    else:
        raise ValueError(f"unknown objective '{objective}' (valid: {', '.join(OBJECTIVES)})")
    parts["return_nll"] = return_likelihood(log_returns[:, 0], labels)
    parts["value_nll"] = F.nll_loss(model.value(states), labels)
    # The value model shares no weights with the rest, so adding its loss is the same as training it apart.
    return {"loss": total + return_weight * parts["return_nll"] + parts["value_nll"], **parts}


def vanilla_loss(model: RewardConditionedPolicy, batch: Batch) -> dict[str, Tensor]:
    """L_RCRL = -log p(a|s,R): reward-conditioned RL without the reparameterisation; the value model learns apart."""
    parts = {"prior_nll": prior_likelihood(model(batch.observations, batch.returns), batch.actions)}
    labels = model.buckets.encode(batch.returns)  # [B]
    parts["value_nll"] = F.nll_loss(model.value(model.standardise(batch.observations)), labels)
    return {"loss": parts["prior_nll"] + parts["value_nll"], **parts}


def cloning_loss(model: CloningModel, batch: Batch) -> dict[str, Tensor]:
    """-log p(a|s): behaviour cloning."""
    loss = prior_likelihood(model.prior(model.standardise(batch.observations)), batch.actions)
    return {"loss": loss, "prior_nll": loss.detach()}
