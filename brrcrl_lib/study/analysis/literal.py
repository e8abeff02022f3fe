"""BR-RCRL as a first reading of the paper would write it: every candidate action drags a copy of its state
through both networks. Slow on purpose; the benchmark and the tests hold the library against it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from brrcrl_lib.data.batch import Batch
from brrcrl_lib.inference.optimizers import DerivativeFree, Problem, Solution
from brrcrl_lib.methods.br_rcrl import BayesianModel, Negatives, info_nce


def literal_scores(model: BayesianModel, states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """log p(a|s) [B, N] and log p(R|s,a) [B, N, buckets], with states [B, k] copied for each action [B, N, m]."""
    batch, count = actions.shape[:2]
    copies = states.unsqueeze(1).expand(-1, count, -1).reshape(batch * count, -1)
    flat = actions.reshape(batch * count, -1)
    log_prior = model.prior(copies).log_prob(flat.unsqueeze(1)).view(batch, count)
    log_returns = model.returns.log_probs(model.returns.encode(copies), flat.unsqueeze(1)).view(batch, count, -1)
    return log_prior, log_returns


def literal_minimise(
    model: BayesianModel, states: Tensor, bucket: Tensor, optimizer: DerivativeFree, generator: torch.Generator
) -> Solution:
    """The paper's derivative-free optimiser over an energy that is evaluated the literal way."""
    prior = model.prior(states)

    def energy(actions: Tensor) -> Tensor:
        log_prior, log_returns = literal_scores(model, states, actions)
        index = torch.arange(log_returns.shape[-1], device=actions.device)
        below = (index < bucket.unsqueeze(-1)).unsqueeze(1)
        return -log_prior - log_returns.masked_fill(below, -torch.inf).logsumexp(-1)

    return optimizer.minimise(Problem(energy, prior.sample, prior.low, prior.high), generator)


def literal_loss(
    model: BayesianModel, batch: Batch, negatives: Negatives, objective: str = "authors", return_weight: float = 1.0
) -> Tensor:
    """The same number as `br_rcrl.bayesian_loss`, the long way round."""
    states = model.standardise(batch.observations)
    labels = model.buckets.encode(batch.returns)
    candidates = torch.cat([batch.actions.unsqueeze(1), negatives.actions(model.prior(states))], dim=1)
    log_prior, log_returns = literal_scores(model, states, candidates)
    scores = log_returns.gather(-1, labels[:, None, None].expand(-1, candidates.shape[1], 1)).squeeze(-1)
    contrast = info_nce(log_prior + scores) if objective == "authors" else info_nce(scores) - log_prior[:, 0].mean()
    value = F.nll_loss(model.value(states), labels)
    return contrast + return_weight * F.nll_loss(log_returns[:, 0], labels) + value
