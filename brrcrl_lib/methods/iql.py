"""IQL, implicit Q-learning (Kostrikov, Nair and Levine, 2022): never asks for the value of an action outside the data.

value:   minimise  |tau - 1(u < 0)| u^2,   u = min_i Q_i'(s, a) - V(s)     (an upper expectile of Q over actions)
critics: minimise  (Q(s, a) - r - gamma V(s'))^2
actor:   minimise  -min(exp(beta u), 100) log pi(a|s)                      (weighted behaviour cloning)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from brrcrl_lib.critics import (
    Actor,
    ActorCritic,
    ActorPolicy,
    Critics,
    CriticSettings,
    Step,
    adam,
    follow,
    slow_copy,
    squared_error,
)
from brrcrl_lib.data.batch import Batch, Facts, Needs
from brrcrl_lib.methods.base import Method
from brrcrl_lib.methods.settings import in_range
from brrcrl_lib.nets import HALF_LOG_TWO_PI, mlp
from brrcrl_lib.policies import Policy

WEIGHT_LIMIT = 100.0
"""Largest weight of an action in the actor's loss."""
LOG_STD_RANGE = (-5.0, 2.0)
RETURN_SPAN = 1_000.0
"""What the paper scales the distance between the best and the worst episode to."""


@dataclass(frozen=True)
class IqlConfig(CriticSettings):
    """IQL with its paper's settings for locomotion. The actor's learning rate falls to 0 over `steps`, along a cosine;
    so a run that is resumed with more steps is not the longer run that it would have been from the start."""

    expectile: float = 0.7
    """tau: 0.5 gives the mean value of the data's actions, 1 the best."""
    temperature: float = 3.0
    """beta, how sharply the actor prefers actions of high advantage; 0 is behaviour cloning."""
    reward_scale: float | None = None
    """Rewards are multiplied by it; None: by 1000 / (best - worst return of an episode), the paper's rule for
    locomotion, about 0.3 in Hopper and 0.1 in HalfCheetah. It changes more than units: exp(beta u) meets its limit of
    100 at u = 1.5."""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "expectile", 0, 1, open_low=True, open_high=True)
        in_range(self, "temperature", 0, math.inf)
        in_range(self, "reward_scale", 0, math.inf, open_low=True)

    def scale(self, facts: Facts) -> float:
        """What rewards are multiplied by; 1 where all episodes of the data have the same return."""
        if self.reward_scale is not None:
            return self.reward_scale
        low, high = facts.episode_returns or (0.0, 0.0)
        return RETURN_SPAN / (high - low) if high > low else 1.0

    def actor_rate(self, step: int) -> float:
        """The actor's learning rate in the `step`-th update, from 0."""
        return self.learning_rate * (1 + math.cos(math.pi * min(step / self.steps, 1))) / 2


@dataclass(frozen=True)
class IqlAct:
    """Nothing to choose: the mean is played, as in the paper's evaluation."""


class GaussianActor(Actor):
    """N(tanh(net(s)), std): the mean stays in the box, the spread is the same in all states, as the paper has it."""

    def __init__(self, facts: Facts, hidden: Sequence[int]) -> None:
        super().__init__(facts, hidden)
        self.log_std = nn.Parameter(torch.zeros(len(facts.action_low or ())))

    def forward(self, states: Tensor) -> Tensor:
        """The mean, unit actions [B, m], in standardised states [B, k]."""
        return self.net(states).tanh()

    def log_prob(self, states: Tensor, actions: Tensor) -> Tensor:
        """log pi(a|s) [B] of unit actions [B, m]."""
        log_std = self.log_std.clamp(*LOG_STD_RANGE)
        z = (actions - self(states)) * (-log_std).exp()
        return (-0.5 * z.square() - log_std - HALF_LOG_TWO_PI).sum(-1)


class Iql(ActorCritic, Method):
    """IQL."""

    name = "iql"
    summary = "implicit Q-learning: expectiles of the data's own values (Kostrikov, Nair and Levine, 2022)"
    kinds = ("box",)
    may_be_extended = False  # the actor's cosine runs over all steps
    Config = IqlConfig
    Act = IqlAct
    acting = ("actor",)
    needs = Needs(next=True)
    config: IqlConfig

    def build(self) -> dict[str, nn.Module]:
        # Differs from the paper: states are standardised, because the kit does so for every method.
        actor = GaussianActor(self.facts, self.config.hidden)
        critics = Critics(self.facts, self.config.hidden)
        value = mlp(self.facts.observation_shape[0], self.config.hidden, 1)
        return {"actor": actor, "critics": critics, "value": value, "target_critics": slow_copy(critics)}

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        rate = self.config.learning_rate
        return {name: adam(self.modules[name].parameters(), rate) for name in ("critics", "value", "actor")}

    def loss(self, batch: Batch, generator: torch.Generator | None) -> dict[str, Tensor]:
        return self.losses(Step.of(batch, self.actor))

    def losses(self, step: Step) -> dict[str, Tensor]:
        """All three at the same weights. Their gradients do not meet, so their sum is minimised at once.

        Differs from the paper's code, which takes the three steps one after another, the later ones with the new V,
        because so V(s) is computed once for two of them.
        """
        with torch.no_grad():
            known = self.target_critics(step.states, step.actions).amin(0)  # [B]
            following = self.modules["value"](step.next_states).squeeze(-1)  # [B]
            targets = self.config.scale(self.facts) * step.rewards + self.facts.discount * step.going_on * following
        advantage = known - self.modules["value"](step.states).squeeze(-1)  # u, [B]
        asymmetry = torch.where(advantage > 0, self.config.expectile, 1 - self.config.expectile)
        value_loss = (asymmetry * advantage.square()).mean()
        weight = (self.config.temperature * advantage.detach()).exp().clamp(max=WEIGHT_LIMIT)
        critic_loss = squared_error(self.critics(step.states, step.actions), targets)
        actor_loss = -(weight * self.actor.log_prob(step.states, step.actions)).mean()
        return {
            "loss": value_loss + critic_loss + actor_loss,
            "value_loss": value_loss,
            "critic_loss": critic_loss,
            "actor_loss": actor_loss,
            "weight": weight.mean(),
        }

    def update(self, batch: Batch, step: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        self.optimizers["actor"].param_groups[0]["lr"] = self.config.actor_rate(step)
        parts = super().update(batch, step, generator)
        follow(self.target_critics, self.critics, self.config.soft_update)
        return parts

    def policy(self, act: IqlAct, generator: torch.Generator | None) -> Policy:
        actor = self.actor
        return ActorPolicy(lambda observations: actor.box(actor(actor.standardise(observations))))
