"""CQL(H), conservative Q-learning (Kumar, Zhou, Tucker and Levine, 2020), on SAC.

    critics: minimise  (Q(s, a) - r - gamma min_i Q_i'(s', a'))^2 + alpha (log sum_a exp Q(s, a) - Q(s, a of the data))
    actor:   minimise  temperature log pi(a|s) - min_i Q_i(s, a),   a drawn from pi
    temperature: learned, so that the entropy of pi is -m for m dimensions of action

The sum over actions is estimated from actions drawn uniformly, from pi(.|s) and from pi(.|s'), each divided by the
density that it was drawn from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from brrcrl_lib.critics import (
    PAPER_STEPS,
    ActorCritic,
    ActorPolicy,
    Critics,
    CriticSettings,
    Multiplier,
    SquashedActor,
    SquashedGaussian,
    Step,
    adam,
    follow,
    frozen,
    slow_copy,
    squared_error,
)
from brrcrl_lib.data.batch import Batch, Needs
from brrcrl_lib.methods.base import Method
from brrcrl_lib.methods.settings import at_least, in_range
from brrcrl_lib.policies import Policy


@dataclass(frozen=True)
class CqlConfig(CriticSettings):
    """CQL(H). Differs from the paper by default: two hidden layers of 256 and 4 sampled actions instead of three and
    10, because a step then takes less than a third of the time on a CPU; preset `paper` has the paper's. The released
    code learns alpha (a Lagrange multiplier, threshold 5) unless told not to, and names 5 or 10 for that case."""

    steps: int = 20_000
    """Gradient steps. Fewer than the other methods with critics get, because each takes several times as long."""
    alpha: float = 10.0
    """Weight of the conservative term. Its authors recommend 5 or 10 for locomotion; 10 is what CORL took, together
    with this actor's learning rate, for the scores on D4RL v2 that the kit quotes."""
    sampled_actions: int = 4
    """Actions per state from each of the three sources."""
    actor_learning_rate: float = 3e-5
    """Adam's learning rate for the actor, CORL's; the released code has 1e-4. learning_rate is that of the critics and
    of the temperature."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {**CriticSettings.presets["smoke"], "sampled_actions": 2},
        "paper": {**PAPER_STEPS, "hidden": (256, 256, 256), "sampled_actions": 10},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "sampled_actions")
        in_range(self, "alpha", 0, math.inf)
        in_range(self, "actor_learning_rate", 0, math.inf, open_low=True)


@dataclass(frozen=True)
class CqlAct:
    """Nothing to choose: the tanh of the mean is played, as in SAC's evaluation."""


@dataclass(frozen=True)
class Draws:
    """The random numbers of one update: normal, but for `anywhere`."""

    backup: Tensor  # [B, m], the action of the target
    anywhere: Tensor  # [B, N, m], uniform in [-1, 1]
    now: Tensor  # [B, N, m], pi(.|s)
    following: Tensor  # [B, N, m], pi(.|s')
    actor: Tensor  # [B, m], the action that the actor is judged by


class Cql(ActorCritic, Method):
    """CQL(H)."""

    name = "cql"
    summary = "conservative Q-learning, CQL(H) on SAC (Kumar, Zhou, Tucker and Levine, 2020)"
    kinds = ("box",)
    Config = CqlConfig
    Act = CqlAct
    acting = ("actor",)
    needs = Needs(next=True)
    config: CqlConfig

    def build(self) -> dict[str, nn.Module]:
        # Differs from the paper: states are standardised, because the kit does so for every method.
        actor = SquashedActor(self.facts, self.config.hidden)
        critics = Critics(self.facts, self.config.hidden)
        slow = {"target_critics": slow_copy(critics)}
        return {"actor": actor, "critics": critics, **slow, "temperature": Multiplier()}

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        rate = self.config.learning_rate
        rates = {"critics": rate, "actor": self.config.actor_learning_rate, "temperature": rate}
        return {name: adam(self.modules[name].parameters(), rate) for name, rate in rates.items()}

    def draws(self, actions: Tensor, generator: torch.Generator | None) -> Draws:
        size, dimensions = actions.shape
        many = (size, self.config.sampled_actions, dimensions)
        backup, actor = torch.randn((2, size, dimensions), device=actions.device, generator=generator)
        uniform = torch.rand(many, device=actions.device, generator=generator)
        now, following = torch.randn((2, *many), device=actions.device, generator=generator)
        return Draws(backup, 2 * uniform - 1, now, following, actor)

    def loss(self, batch: Batch, generator: torch.Generator | None) -> dict[str, Tensor]:
        """All losses at the same weights. Their gradients do not meet, so their sum is minimised at once.

        Differs from the paper's code: no behaviour cloning in the actor's first 40,000 steps, because the laptop's
        runs would be nothing else.
        """
        step = Step.of(batch, self.actor)
        draws = self.draws(step.actions, generator)
        now = self.actor(step.states)
        error, gap = self.critic_losses(step, now, draws)
        actor_loss, temperature_loss = self.actor_losses(step, now, draws.actor)
        critic_loss = error + self.config.alpha * gap
        return {
            "loss": critic_loss + actor_loss + temperature_loss,
            "critic_loss": critic_loss,
            "gap": gap,
            "actor_loss": actor_loss,
            "temperature": self.modules["temperature"](),
        }

    def critic_losses(self, step: Step, now: SquashedGaussian, draws: Draws) -> tuple[Tensor, Tensor]:
        """The squared error, and the gap between all actions and the data's; both added up over the two critics.

        Like the released code, and unlike SAC, the target has no entropy term.
        """
        with torch.no_grad():
            then = self.actor(step.next_states)
            following = self.target_critics(step.next_states, then.sample(draws.backup)[0]).amin(0)  # [B]
            targets = step.rewards + self.facts.discount * step.going_on * following
            here, log_here = now.sample(draws.now)  # [B, N, m], [B, N]
            there, log_there = then.sample(draws.following)
            log_anywhere = torch.full_like(log_here, -here.shape[-1] * math.log(2))
            actions = torch.cat([step.actions.unsqueeze(1), draws.anywhere, here, there], 1)  # [B, 1 + 3N, m]
            log_density = torch.cat([log_anywhere, log_here, log_there], 1)  # [B, 3N]
        values = self.critics(step.states, actions)  # [2, B, 1 + 3N]
        of_data, of_samples = values[..., 0], values[..., 1:]
        gap = (of_samples - log_density).logsumexp(-1) - of_data  # [2, B]; lacks log 3N, which has no gradient
        return squared_error(of_data, targets), gap.mean(-1).sum()

    def actor_losses(self, step: Step, now: SquashedGaussian, noise: Tensor) -> tuple[Tensor, Tensor]:
        temperature: Any = self.modules["temperature"]
        wanted = -float(step.actions.shape[-1])
        actions, log_prob = now.sample(noise)
        values = frozen(self.critics, step.states, actions).amin(0)  # [B]
        actor_loss = (temperature().detach() * log_prob - values).mean()
        return actor_loss, -(temperature.log * (log_prob.detach() + wanted)).mean()

    def update(self, batch: Batch, step: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        parts = super().update(batch, step, generator)
        follow(self.target_critics, self.critics, self.config.soft_update)
        return parts

    def policy(self, act: CqlAct, generator: torch.Generator | None) -> Policy:
        actor = self.actor
        return ActorPolicy(lambda observations: actor.box(actor(actor.standardise(observations)).mode()))
