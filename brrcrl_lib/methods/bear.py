"""BEAR (Kumar, Fu, Tucker and Levine, 2019): Q-learning whose actor must draw actions where the data have some.

    critics:    minimise (Q(s, a) - r - gamma max_j [w min_i Q_i'(s', a_j) + (1 - w) max_i Q_i'(s', a_j)])^2
    actor:      minimise -min_i Q_i(s, a) + multiplier MMD(pi(.|s), behaviour(.|s))
    multiplier: grows while MMD > threshold, falls while it is below
    behaviour:  a variational autoencoder p(a|s), as in the paper: a Gaussian would put its mass between the two modes
                of data from two policies (medium-expert), which is just where the actor must not go

MMD, the maximum mean discrepancy, is measured between samples with a Laplacian kernel, before the tanh.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from brrcrl_lib.critics import (
    PAPER_STEPS,
    ActorCritic,
    ActorPolicy,
    Critics,
    CriticSettings,
    Multiplier,
    SquashedActor,
    Step,
    adam,
    follow,
    frozen,
    slow_copy,
    squared_error,
)
from brrcrl_lib.data.batch import Batch, Facts, Needs
from brrcrl_lib.methods.base import Method
from brrcrl_lib.methods.settings import at_least, in_range
from brrcrl_lib.nets import mlp
from brrcrl_lib.policies import Policy

LATENT_LIMIT = 0.5
"""Where latents are cut off when the behaviour is drawn from, so that draws stay near the data."""
LATENT_LOG_STD = (-4.0, 15.0)
LOG_MULTIPLIER = (-5.0, 10.0)


@dataclass(frozen=True)
class BearConfig(CriticSettings):
    """BEAR. Checked against its first release (github.com/aviralkumar2907/BEAR), which agrees in the kernel and its
    width for Hopper and HalfCheetah, the threshold, the multiplier's learning rate and bounds, the ten actions of the
    target and of the player, their weight 0.75, and the autoencoder's loss and cut-off.

    Differs from it: two layers of 256 (its networks have 400 and 300, its autoencoder 750 and 750), a batch of 256
    instead of 100, `warm_up`, learning rates (1e-3 for all; ours are found in work that builds on its later D4RL code,
    which was not read), four matched actions instead of five, noise of the matched actions that is not cut off at 0.5,
    and the actor judged by one of them instead of their mean. For Walker2d it recommends a width of 20, with a Gaussian
    kernel.
    """

    steps: int = 20_000
    """Gradient steps. Fewer than TD3+BC and IQL get, because each takes several times as long."""
    warm_up: int = 1_000
    """First steps, in which the actor only learns to stay with the data. The first release takes 20 epochs;
    the 40,000 of the preset `paper` are unverified."""
    threshold: float = 0.05
    """The MMD that the actor may have."""
    kernel_width: float = 10.0
    """sigma of the kernel exp(-|x - y| / (2 sigma)), of distances added up over the dimensions of the action."""
    matched_actions: int = 4
    """Actions per state, from the actor and from the behaviour, between which MMD is measured."""
    target_actions: int = 10
    """Actions per following state, of which the target takes the best."""
    pessimism: float = 0.75
    """w, the weight of the smaller critic in the target, against the larger."""
    actor_learning_rate: float = 1e-4
    """Adam's learning rate for the actor; learning_rate is that of the critics and of the behaviour."""
    multiplier_learning_rate: float = 1e-3
    """Adam's learning rate for the multiplier."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {**CriticSettings.presets["smoke"], "warm_up": 10},
        "paper": {**PAPER_STEPS, "warm_up": 40_000},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "warm_up")
        at_least(self, 1, "target_actions")
        at_least(self, 2, "matched_actions")
        in_range(self, "threshold", 0, math.inf)
        in_range(self, "pessimism", 0, 1)
        for name in ("kernel_width", "actor_learning_rate", "multiplier_learning_rate"):
            in_range(self, name, 0, math.inf, open_low=True)


@dataclass(frozen=True)
class BearAct:
    """How BEAR is made to act."""

    samples: int = 10
    """Actions drawn from the actor, of which the one with the highest Q1 is played."""

    def __post_init__(self) -> None:
        at_least(self, 1, "samples")


class Behaviour(nn.Module):
    """p(a|s) as a variational autoencoder, with twice as many latents as actions have dimensions."""

    def __init__(self, facts: Facts, hidden: Sequence[int]) -> None:
        super().__init__()
        states, actions = facts.observation_shape[0], len(facts.action_low or ())
        self.latents = 2 * actions
        self.encoder = mlp(states + actions, hidden, 2 * self.latents)
        self.decoder = mlp(states + self.latents, hidden, actions)

    def loss(self, states: Tensor, actions: Tensor, noise: Tensor) -> Tensor:
        """Squared error of unit actions [B, m], plus half the divergence of the latents from N(0, 1), per latent."""
        mean, log_std = self.encoder(torch.cat([states, actions], -1)).chunk(2, -1)
        log_std = log_std.clamp(*LATENT_LOG_STD)
        latents = mean + log_std.exp() * noise  # [B, 2m]
        divergence = (0.5 * ((2 * log_std).exp() + mean.square() - 1) - log_std).mean()
        return F.mse_loss(self.raw(states, latents).tanh(), actions) + 0.5 * divergence

    def raw(self, states: Tensor, latents: Tensor) -> Tensor:
        """Actions before the tanh, [..., m], for states [..., k] and latents [..., 2m]."""
        return self.decoder(torch.cat([states, latents], -1))


def discrepancy(one: Tensor, two: Tensor, width: float) -> Tensor:
    """MMD [B] between samples [B, N, m] and [B, N, m]; every pair counts, a sample with itself too."""

    def likeness(left: Tensor, right: Tensor) -> Tensor:
        distance = (left.float().unsqueeze(2) - right.float().unsqueeze(1)).abs().sum(-1)  # [B, N, N]
        return (-distance / (2 * width)).exp().mean((1, 2))

    return (likeness(one, one) + likeness(two, two) - 2 * likeness(one, two) + 1e-6).sqrt()


class Bear(ActorCritic, Method):
    """BEAR."""

    name = "bear"
    summary = "Q-learning within the support of the data, by MMD (Kumar, Fu, Tucker and Levine, 2019)"
    kinds = ("box",)
    Config = BearConfig
    Act = BearAct
    acting = ("actor", "critics")
    needs = Needs(next=True)
    config: BearConfig

    @property
    def _behaviour(self) -> Any:
        return self.modules["behaviour"]

    @property
    def _multiplier(self) -> Any:
        return self.modules["multiplier"]

    def build(self) -> dict[str, nn.Module]:
        # Differs from the paper: states are standardised, because the kit does so for every method.
        actor = SquashedActor(self.facts, self.config.hidden, log_std_range=(-4.0, 2.0))
        critics = Critics(self.facts, self.config.hidden)
        behaviour = Behaviour(self.facts, self.config.hidden)
        slow = {"target_actor": slow_copy(actor), "target_critics": slow_copy(critics)}
        return {"actor": actor, "critics": critics, "behaviour": behaviour, **slow, "multiplier": Multiplier()}

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        rates = {
            "critics": self.config.learning_rate,
            "behaviour": self.config.learning_rate,
            "actor": self.config.actor_learning_rate,
            "multiplier": self.config.multiplier_learning_rate,
        }
        return {name: adam(self.modules[name].parameters(), rate) for name, rate in rates.items()}

    def loss(self, batch: Batch, generator: torch.Generator | None) -> dict[str, Tensor]:
        """What the critics and the behaviour minimise; their gradients do not meet."""
        step, behaviour = Step.of(batch, self.actor), self._behaviour
        size, dimensions = step.actions.shape
        many = (size, self.config.target_actions, dimensions)
        critic_loss = self.critic_loss(step, torch.randn(many, device=step.actions.device, generator=generator))
        noise = torch.randn((size, behaviour.latents), device=step.actions.device, generator=generator)
        behaviour_loss = behaviour.loss(step.states, step.actions, noise)
        return {"loss": critic_loss + behaviour_loss, "critic_loss": critic_loss, "behaviour_loss": behaviour_loss}

    def critic_loss(self, step: Step, noise: Tensor) -> Tensor:
        """Against the best of the target actor's actions, drawn from normal `noise` [B, N, m]."""
        with torch.no_grad():
            actions, _ = self.modules["target_actor"](step.next_states).sample(noise)
            values = self.target_critics(step.next_states, actions)  # [2, B, N]
            weighed = torch.lerp(values.amax(0), values.amin(0), self.config.pessimism)
            targets = step.rewards + self.facts.discount * step.going_on * weighed.amax(-1)
        return squared_error(self.critics(step.states, step.actions), targets)

    def actor_losses(self, step: Step, noise: Tensor, latents: Tensor, warm: bool) -> dict[str, Tensor]:
        """For normal `noise` [B, N, m] and `latents` [B, N, 2m]; until it is `warm`, the actor hears of no values."""
        multiplier = self._multiplier()
        with torch.no_grad():
            states = step.states.unsqueeze(1).expand(-1, latents.shape[1], -1)
            usual = self._behaviour.raw(states, latents.clamp(-LATENT_LIMIT, LATENT_LIMIT))  # [B, N, m]
        raw = self.actor(step.states).raw(noise)  # [B, N, m]
        distance = discrepancy(raw, usual, self.config.kernel_width).mean()
        actor_loss = multiplier.detach() * distance
        if warm:
            actor_loss = actor_loss - frozen(self.critics, step.states, raw[:, 0].tanh()).amin(0).mean()
        multiplier_loss = -multiplier * (distance.detach() - self.config.threshold)
        return {
            "actor_loss": actor_loss,
            "multiplier_loss": multiplier_loss,
            "mmd": distance,
            "multiplier": multiplier,
        }

    def update(self, batch: Batch, step: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        with self.precision():
            parts = self.loss(batch, generator)
        self.minimise(parts["loss"], self.optimizers["critics"], self.optimizers["behaviour"])
        units = Step.of(batch, self.actor)
        shape = (len(units.actions), self.config.matched_actions)
        noise = torch.randn((*shape, units.actions.shape[-1]), device=units.actions.device, generator=generator)
        latents = torch.randn((*shape, self._behaviour.latents), device=units.actions.device, generator=generator)
        with self.precision():
            parts |= self.actor_losses(units, noise, latents, warm=step >= self.config.warm_up)
        both = parts["actor_loss"] + parts["multiplier_loss"]
        self.minimise(both, self.optimizers["actor"], self.optimizers["multiplier"])
        with torch.no_grad():
            self._multiplier.log.clamp_(*LOG_MULTIPLIER)
        for name in ("actor", "critics"):
            follow(self.modules[f"target_{name}"], self.modules[name], self.config.soft_update)
        return {name: value.detach() for name, value in parts.items()}

    def policy(self, act: BearAct, generator: torch.Generator | None) -> Policy:
        actor, critics, size = self.actor, self.critics, len(self.facts.action_low or ())

        def decide(observations: Tensor) -> Tensor:
            """The same draws for every state, so that a state gets the same action alone and in company."""
            states = actor.standardise(observations)
            noise = torch.randn((act.samples, size), device=states.device, generator=generator)
            actions, _ = actor(states).sample(noise.expand(len(states), -1, -1))  # [B, N, m]
            best = critics.one(states, actions).argmax(-1)  # [B]
            chosen = actions.gather(1, best[:, None, None].expand(-1, 1, size)).squeeze(1)
            return actor.box(chosen)

        return ActorPolicy(decide)
