"""What the discrete models minimise. All are averaged over the batch.

Two ways to learn the table's returns are fully supported, because the paper's text and its released code differ:

  monte_carlo        L0 + lambda L1 = -log p(a|s,R) - lambda log p(R|s,a), with R the bucket of the return that
                     followed (Section 4.3)
  distributional_td  p(R|s,a) is drawn towards a projected Bellman target (C51, Bellemare et al. 2017), and p(a|s)
                     towards the action taken (the released code)

Without a penalty both have the same minimum on endless data: the behaviour policy's own p(a, R | s). The first gets
at p(a|s) only through the two conditionals, which together determine the joint.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from brrcrl_lib.discrete.data import DiscreteBatch
from brrcrl_lib.discrete.encoders import channels_last
from brrcrl_lib.discrete.models import DiscreteCloning, DiscreteVanilla, JointReturnModel
from brrcrl_lib.discrete.table import JointTable
from brrcrl_lib.returns import ReturnBuckets

LEARNERS = {
    "monte_carlo": "the likelihood of the return that followed (the paper's text)",
    "distributional_td": "a projected Bellman target from a slowly updated copy (the released code)",
}


def monte_carlo_loss(
    model: JointReturnModel, batch: DiscreteBatch, return_weight: float = 20.0, action_penalty: float = 0.0
) -> dict[str, Tensor]:
    """L0 + lambda L1 of Section 4.3: L0 = -log p(a|s,R), a plain softmax over actions; L1 = -log p(R|s,a).

    With the paper's lambda of 20, p(a|s) is learned late, because L0 alone carries it.
    """
    table = model(batch.observations)
    labels = model.buckets.encode(batch.returns)  # [B]
    parts = {
        "conditional_nll": F.nll_loss(table.log_actions_given(labels), batch.actions),
        "return_nll": F.nll_loss(table.log_returns_of(batch.actions), labels),
        "prior_nll": F.nll_loss(table.log_actions().detach(), batch.actions),  # watched, not trained
    }
    loss = parts["conditional_nll"] + return_weight * parts["return_nll"]
    return {"loss": loss + _penalty(table, action_penalty), **parts}


def distributional_td_loss(
    model: JointReturnModel,
    target: JointReturnModel,
    behaviour: DiscreteCloning | None,
    batch: DiscreteBatch,
    discount: float,
    return_weight: float = 20.0,
    action_penalty: float = 0.5,
) -> dict[str, Tensor]:
    """-log p(a|s) + penalty + lambda times the cross-entropy from the Bellman target to p(R|s,a) (the released code).

    `target` is the slow copy of `model`; `behaviour` a clone of the policy that made the data, trained beside them.
    Differs from the paper: its text has the likelihood of the observed return here, but its table of
    hyperparameters lists a target network. The released code clones first and trains then; here both learn at the
    same time, because they share no weights and one run is simpler to resume than two.
    """
    batch = _moved_once(batch)
    table = model(batch.observations)
    wanted = bellman_target(target, behaviour, batch, discount)  # [B, N]
    parts = {
        "prior_nll": F.nll_loss(table.log_actions(), batch.actions),
        "return_cross_entropy": -(wanted * table.log_returns_of(batch.actions)).sum(-1).mean(),
    }
    loss = parts["prior_nll"] + return_weight * parts["return_cross_entropy"] + _penalty(table, action_penalty)
    if behaviour is not None:
        parts["behaviour_nll"] = F.nll_loss(behaviour(batch.observations), batch.actions)
        loss = loss + parts["behaviour_nll"]
    return {"loss": loss, **parts}


def _moved_once(batch: DiscreteBatch) -> DiscreteBatch:
    """Frames made ready for convolutions, because two networks read each of them here."""
    following = batch.next_observations
    return replace(
        batch,
        observations=channels_last(batch.observations),
        next_observations=None if following is None else channels_last(following),
    )


def _penalty(table: JointTable, weight: float) -> Tensor | float:
    """weight x mean square of the action logits, log sum_R exp(logit).

    Not innocent: it pulls p(a|s) towards uniform. With the 0.5 of the paper's table and four actions, a behaviour
    policy that always takes the same one is learned as taking it two times in three. p(R|s,a) is left alone.
    """
    return weight * table.action_logits.square().mean() if weight else 0.0


@torch.no_grad()
def bellman_target(
    target: JointReturnModel, behaviour: DiscreteCloning | None, batch: DiscreteBatch, discount: float
) -> Tensor:
    """The distribution [B, N] of r + gamma R', with R' ~ sum_a' p(a'|s') p(R|s',a'), on the buckets' grid.

    p(a'|s') is `behaviour`'s; if that is None, the copy's own, so that R' has its p(R|s').
    """
    if batch.next_observations is None:
        raise ValueError("distributional_td needs next observations; open the data with_next=True")
    following = target(batch.next_observations)
    if behaviour is None:
        distribution = following.log_returns().exp()  # [B, N]
    else:
        log_policy = behaviour(batch.next_observations)  # [B, A]
        distribution = (log_policy.unsqueeze(-1) + following.log_returns_of_actions()).exp().sum(1)
    return project(distribution, batch.rewards, discount * (~batch.done).float(), target.buckets)


def project(probabilities: Tensor, rewards: Tensor, discounts: Tensor, buckets: ReturnBuckets) -> Tensor:
    """C51's projection: the mass [B, N] at each return z goes to r + g z, shared by the two nearest grid points.

    rewards r [B]; discounts g [B], zero where the task ended. What leaves the range goes to its end. The mean is
    kept as long as nothing leaves the range. Returns [B, N].
    """
    last = buckets.count - 1
    points = buckets.decode(torch.arange(buckets.count, device=probabilities.device))  # [N], evenly spaced
    moved = rewards.unsqueeze(-1) + discounts.unsqueeze(-1) * points  # [B, N]
    position = ((moved - points[0]) / buckets.width).clamp(0, last)
    lower = position.floor()
    upwards = probabilities * (position - lower)
    index = lower.long()
    result = torch.zeros_like(probabilities).scatter_add_(1, index, probabilities - upwards)
    return result.scatter_add_(1, (index + 1).clamp(max=last), upwards)


def vanilla_loss(model: DiscreteVanilla, batch: DiscreteBatch) -> dict[str, Tensor]:
    """L_RCRL = -log p(a|s,R): reward-conditioned RL without the reparameterisation; the value head learns apart."""
    features = model.encoder(batch.observations)
    parts = {
        "conditional_nll": F.nll_loss(model.log_actions(features, batch.returns), batch.actions),
        "value_nll": F.nll_loss(model.log_returns(features), model.buckets.encode(batch.returns)),
    }
    return {"loss": parts["conditional_nll"] + parts["value_nll"], **parts}


def cloning_loss(model: DiscreteCloning, batch: DiscreteBatch) -> dict[str, Tensor]:
    """-log p(a|s): behaviour cloning."""
    loss = F.nll_loss(model(batch.observations), batch.actions)
    return {"loss": loss, "prior_nll": loss.detach()}
