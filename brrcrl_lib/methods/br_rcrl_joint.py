"""BR-RCRL for discrete actions (Section 4.3): one table p(a, R | s) per state, from which everything else follows."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.data.batch import Batch, Needs
from brrcrl_lib.methods.base import Method
from brrcrl_lib.methods.cloning import CloningModel, CloningPolicy
from brrcrl_lib.methods.settings import (
    PAPER_GAMES,
    SMOKE,
    BayesianAct,
    BucketSettings,
    EncoderSettings,
    MethodConfig,
    at_least,
    one_of,
)
from brrcrl_lib.nets import Categorical, Encoder, channels_last, make_head
from brrcrl_lib.policies import Chooser, Policy, TargetPolicy
from brrcrl_lib.returns import ReturnBuckets

OBJECTIVES = {
    "monte_carlo": "the likelihood of the return that followed (the paper's text)",
    "distributional_td": "a projected Bellman target from a target network (the released code)",
}
NEXT_POLICIES = ("cloned", "own")


# -- configuration -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JointConfig(BucketSettings, EncoderSettings, MethodConfig):
    """BR-RCRL's joint table on discrete actions: vectors, or frames of an Atari game."""

    objective: str = "monte_carlo"
    """monte_carlo (the paper's text) or distributional_td (the released code): how the table learns returns."""
    steps: int = 4_000
    """Gradient steps. The paper takes 3,000,000."""
    batch_size: int = 128
    """Transitions per step. The paper takes 32."""
    return_weight: float = 20.0
    """lambda, the weight of the return's term. The released code takes 1 for Seaquest."""
    action_penalty: float | None = None
    """Weight of the action logits' mean square; None: 0.5 for distributional_td (the released code), 0 for
    monte_carlo, whose equation has no such term."""
    target_every: int = 20
    """Steps between updates of distributional_td's target network. The paper takes 8,000, in a run 750 times as long;
    what counts is that there are many more updates than steps until a reward is discounted away."""
    next_policy: str = "cloned"
    """Who acts in the next state of distributional_td: cloned (a second network, as in the released code) or own
    (the target network's p(a|s), which saves that network)."""
    learning_rate: float = 2.5e-4
    """Adam's learning rate."""
    hidden: tuple[int, ...] = (256, 256)
    """Hidden layers of the mlp encoder."""
    buckets: int = 51
    """|B|, the number of return buckets."""
    bucket_scheme: str = "equal_width"
    """equal_width or paper_grid. Differs from the paper: on its grid distributional_td spreads a return over the grid
    points on either side of it, while monte_carlo puts it to the lower one, so that the two mean different things by
    R >= theta. With bins and their centres they agree."""
    held_out: float = 0.0
    """Share of episodes kept out of training, to see what was learned; the same ones for every seed."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {**SMOKE, "batch_size": 32, "hidden": (32, 32), "target_every": 5},
        # Differs from the released code, which takes 3,000,000 steps and a new target network every 8,000.
        "released": {"objective": "distributional_td", "batch_size": 32, "steps": 16_000, "target_every": 80},
        "released pixels": {"encoder": "nature", "standardise_frames": False},
        "paper": {**PAPER_GAMES, "target_every": 8_000, "bucket_scheme": "paper_grid", "bucket_range": "paper"},
        "paper pixels": {"encoder": "nature", "standardise_frames": False},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self, "objective", OBJECTIVES)
        one_of(self, "next_policy", NEXT_POLICIES)
        at_least(self, 1, "target_every")
        at_least(self, 0, "return_weight", "action_penalty")

    @property
    def penalty(self) -> float:
        """The action penalty that applies."""
        if self.action_penalty is not None:
            return self.action_penalty
        return 0.5 if self.objective == "distributional_td" else 0.0


@dataclass(frozen=True)
class JointAct(BayesianAct):
    """How the joint table is made to act."""

    epsilon: float = 0.01
    """Share of decisions that are uniformly random, as in the paper's evaluation."""


# -- networks ----------------------------------------------------------------------------------------------------


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

    def log_actions_reaching(self, bucket: Tensor, prior_weight: float = 1.0) -> Tensor:
        """log p(a | s, R >= theta) [B, A], with theta the lower edge of `bucket` [B]: pi^delta of Section 4.2.

        With another `prior_weight` alpha, log of what is proportional to p(a|s)^alpha p(R >= theta|s,a).
        """
        return self._reweighted(self._tails(self.logits, bucket), prior_weight).log_softmax(-1)

    def energy(self, bucket: Tensor, prior_weight: float = 1.0) -> Tensor:
        """E^delta(a|s) = -alpha log p(a|s) - log p(R >= theta | s, a) [B, A] (Proposition 1 has alpha = 1; >= as in its
        proof)."""
        return -self._reweighted(self._tails(self.log_joint(), bucket), prior_weight)

    def _reweighted(self, values: Tensor, prior_weight: float) -> Tensor:
        """log p(a|s)^alpha p(R >= theta|s,a) from log p(a|s) p(R >= theta|s,a) [B, A]."""
        return values if prior_weight == 1 else values + (prior_weight - 1) * self.log_actions()

    def _tails(self, values: Tensor, bucket: Tensor) -> Tensor:
        """log of the sum over the buckets from `bucket` [B] on, of exp(values) [B, A, N]: [B, A]."""
        index = torch.arange(values.shape[-1], device=values.device)
        below = (index < bucket.unsqueeze(-1)).unsqueeze(1)  # [B, 1, N]
        return values.masked_fill(below, -torch.inf).logsumexp(-1)


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


# -- losses ------------------------------------------------------------------------------------------------------


def monte_carlo_loss(
    model: JointReturnModel, batch: Batch, return_weight: float = 20.0, action_penalty: float = 0.0
) -> dict[str, Tensor]:
    """L0 + lambda L1 of Section 4.3: L0 = -log p(a|s,R), a plain softmax over actions; L1 = -log p(R|s,a).

    p(a|s) is learned only through these two conditionals. They determine it where the supports connect; where each
    return follows a single action, any p(a|s) has the same loss. And with the paper's lambda of 20 it is learned
    late, because L0 alone carries it.
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
    behaviour: CloningModel | None,
    batch: Batch,
    discount: float,
    return_weight: float = 20.0,
    action_penalty: float = 0.5,
) -> dict[str, Tensor]:
    """-log p(a|s) + penalty + lambda times the cross-entropy from the Bellman target to p(R|s,a) (the released code).

    `target` is the target network; `behaviour` a clone of the policy that made the data, trained beside them.
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
        parts["behaviour_nll"] = behaviour(batch.observations).nll(batch.actions)
        loss = loss + parts["behaviour_nll"]
    return {"loss": loss, **parts}


def _moved_once(batch: Batch) -> Batch:
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
def bellman_target(target: JointReturnModel, behaviour: CloningModel | None, batch: Batch, discount: float) -> Tensor:
    """The distribution [B, N] of r + gamma R', with R' ~ sum_a' p(a'|s') p(R|s',a'), on the buckets' grid.

    p(a'|s') is `behaviour`'s; if that is None, the target network's own, so that R' has its p(R|s').
    """
    if batch.next_observations is None:
        raise KitError("distributional_td needs next observations; sample with Needs(next=True)")
    following = target(batch.next_observations)
    if behaviour is None:
        distribution = following.log_returns().exp()  # [B, N]
    else:
        log_policy = behaviour(batch.next_observations).log_probs  # [B, A]
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


# -- policy ------------------------------------------------------------------------------------------------------


@dataclass
class JointPolicy(TargetPolicy):
    """theta_delta(s) from the table's p(R|s), then an action of p(a | s, R >= theta) (Algorithm 1, exactly).

    The released code takes the likeliest action and an epsilon of 0.001 to 0.01.
    """

    model: JointReturnModel = field(kw_only=True)
    prior_weight: float = 1.0
    """alpha, the exponent of p(a|s)."""

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        table, buckets = self.model(observations), self.model.buckets
        bucket = self.target.bucket(table.log_returns().exp(), buckets)  # [B]
        actions = self.chooser.pick(table.log_actions_reaching(bucket, self.prior_weight))
        grid = buckets.decode(torch.arange(buckets.count, device=bucket.device))
        self.trace = {
            "bucket": bucket,
            "target": buckets.lower_edges(bucket.device)[bucket],
            "predicted": table.log_returns_of(actions).exp() @ grid,
            "energy": table.energy(bucket, self.prior_weight).gather(1, actions.unsqueeze(-1)).squeeze(-1),
        }
        return actions


# -- method ------------------------------------------------------------------------------------------------------


class BrRcrlJoint(Method):
    """BR-RCRL for discrete actions."""

    name = "br_rcrl_joint"
    summary = "the paper's method for discrete actions: one table p(a, R | s) per state (Section 4.3)"
    kinds = ("discrete", "pixels")
    Config = JointConfig
    Act = JointAct
    config: JointConfig

    def build(self) -> dict[str, nn.Module]:
        """The table; for distributional_td also its target network, and a clone of the data's policy (`behaviour`)."""
        config, facts = self.config, self.facts
        assert facts.action_count is not None
        model = JointReturnModel(config.make_encoder(facts), facts.action_count, config.make_buckets(facts))
        modules: dict[str, nn.Module] = {"model": model}
        if config.objective == "distributional_td":
            self.needs = Needs(next=True)
            if config.next_policy == "cloned":
                modules["behaviour"] = CloningModel(config.make_encoder(facts), make_head(facts))
            modules["target"] = deepcopy(model).requires_grad_(False)
        return modules

    def loss(self, batch: Batch, generator: torch.Generator | None) -> dict[str, Tensor]:
        config, weights = self.config, (self.config.return_weight, self.config.penalty)
        if config.objective == "monte_carlo":
            return monte_carlo_loss(self.model, batch, *weights)
        target: Any = self.modules["target"]
        behaviour: Any = self.modules.get("behaviour")
        return distributional_td_loss(self.model, target, behaviour, batch, self.facts.discount, *weights)

    def update(self, batch: Batch, step: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        if "target" in self.modules and step % self.config.target_every == 0:
            self.modules["target"].load_state_dict(self.model.state_dict())
        return super().update(batch, step, generator)

    def policy(self, act: JointAct, generator: torch.Generator | None) -> Policy:
        chooser = Chooser(act.mode, act.epsilon, generator)
        if act.clone:
            return CloningPolicy(lambda observations: Categorical(self.model(observations).log_actions()), chooser)
        rule, clip = act.rule(self.facts), self.facts.reward_clip
        return JointPolicy(rule, chooser, clip, model=self.model, prior_weight=act.prior_weight)
