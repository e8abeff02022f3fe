"""TD3+BC (Fujimoto and Gu, 2021): TD3 whose actor is also pulled towards the actions of the data.

actor:   minimise  -lambda Q1(s, pi(s)) + (pi(s) - a)^2,   lambda = alpha / mean |Q1|
critics: minimise  (Q(s, a) - r - gamma min_i Q_i'(s', pi'(s') + clipped noise))^2
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from brrcrl_lib.critics import (
    Actor,
    ActorCritic,
    ActorPolicy,
    Critics,
    CriticSettings,
    Step,
    adam,
    descend,
    follow,
    slow_copy,
    squared_error,
)
from brrcrl_lib.data.batch import Batch, Needs
from brrcrl_lib.methods.base import Method
from brrcrl_lib.methods.settings import at_least, in_range
from brrcrl_lib.policies import Policy


@dataclass(frozen=True)
class Td3BcConfig(CriticSettings):
    """TD3+BC with the settings of its paper."""

    alpha: float = 2.5
    """Weight of the critic against the pull to the data's actions; towards 0 it becomes behaviour cloning."""
    policy_delay: int = 2
    """Updates of the critics for each of the actor and of the target networks."""
    policy_noise: float = 0.2
    """Standard deviation of the noise on the target's action, in units of half the action box."""
    noise_clip: float = 0.5
    """Bound of that noise."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "policy_delay")
        for name in ("alpha", "policy_noise", "noise_clip"):
            in_range(self, name, 0, float("inf"))


@dataclass(frozen=True)
class Td3BcAct:
    """Nothing to choose: the actor is deterministic."""


class DeterministicActor(Actor):
    """pi(s)."""

    def forward(self, states: Tensor) -> Tensor:
        """Unit actions [B, m] in standardised states [B, k]."""
        return self.net(states).tanh()


class Td3Bc(ActorCritic, Method):
    """TD3+BC."""

    name = "td3_bc"
    summary = "TD3 with a pull towards the data's actions (Fujimoto and Gu, 2021)"
    kinds = ("box",)
    Config = Td3BcConfig
    Act = Td3BcAct
    acting = ("actor",)
    needs = Needs(next=True)
    config: Td3BcConfig

    def build(self) -> dict[str, nn.Module]:
        # Differs from the paper: a standard deviation below 0.001 is raised to it, where the paper adds 0.001 to every
        # one, because the kit standardises alike for all methods.
        actor = DeterministicActor(self.facts, self.config.hidden)
        critics = Critics(self.facts, self.config.hidden)
        slow = {"target_actor": slow_copy(actor), "target_critics": slow_copy(critics)}
        return {"actor": actor, "critics": critics, **slow}

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        rate = self.config.learning_rate
        return {name: adam(self.modules[name].parameters(), rate) for name in ("critics", "actor")}

    def loss(self, batch: Batch, generator: torch.Generator | None) -> dict[str, Tensor]:
        """The critics' loss."""
        step = Step.of(batch, self.actor)
        noise = torch.randn(step.actions.shape, device=step.actions.device, generator=generator)
        return {"loss": self.critic_loss(step, noise)}

    def critic_loss(self, step: Step, noise: Tensor) -> Tensor:
        """Against the smaller target value of a target action that `noise` [B, m], standard normal, has moved."""
        with torch.no_grad():
            moved = (noise * self.config.policy_noise).clamp(-self.config.noise_clip, self.config.noise_clip)
            next_actions = (self.modules["target_actor"](step.next_states) + moved).clamp(-1, 1)
            following = self.target_critics(step.next_states, next_actions).amin(0)  # [B]
            targets = step.rewards + self.facts.discount * step.going_on * following
        return squared_error(self.critics(step.states, step.actions), targets)

    def actor_loss(self, step: Step) -> dict[str, Tensor]:
        actions = self.actor(step.states)
        values = self.critics.one(step.states, actions)  # [B]
        scale = self.config.alpha / values.detach().abs().mean()
        distance = F.mse_loss(actions, step.actions)
        return {"actor_loss": distance - scale * values.mean(), "distance": distance, "value": values.mean()}

    def update(self, batch: Batch, step: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        with self.precision():
            parts = self.loss(batch, generator)
        descend(parts["loss"], self.optimizers["critics"])
        if (step + 1) % self.config.policy_delay == 0:
            with self.precision():
                parts |= self.actor_loss(Step.of(batch, self.actor))
            descend(parts["actor_loss"], self.optimizers["actor"])
            for name in ("actor", "critics"):
                follow(self.modules[f"target_{name}"], self.modules[name], self.config.soft_update)
        return {name: value.detach() for name, value in parts.items()}

    def policy(self, act: Td3BcAct, generator: torch.Generator | None) -> Policy:
        actor = self.actor
        return ActorPolicy(lambda observations: actor.box(actor(actor.standardise(observations))))
