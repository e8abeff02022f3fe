"""What a trained method becomes when it plays: something that decides for n episodes side by side."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from brrcrl_lib.base.config import in_range, one_of
from brrcrl_lib.inference.targets import Target
from brrcrl_lib.nets import Categorical, GaussianMixture

MODES = ("best", "sample")


@dataclass
class Policy:
    """Decides for n episodes side by side; `keep` drops those that have ended. Subclasses say how to `act`."""

    trace: dict[str, Tensor] = field(default_factory=dict, init=False)
    """What the last decision rested on, each [B]."""

    def reset(self, episodes: int) -> None:
        """n new episodes begin."""

    def act(self, observations: Tensor) -> Tensor:
        """Actions [B, m], or [B] int64 where they are discrete, for raw observations [B, ...]."""
        raise NotImplementedError

    def observe(self, rewards: Tensor) -> None:
        """What the actions just taken earned, [B]."""

    def keep(self, active: Tensor) -> None:
        """Forget the episodes whose entry in `active` [B] is False."""


@dataclass
class Chooser:
    """From a distribution of actions to an action: the likeliest or a draw, and now and then (epsilon) any at all.

    Each episode has its own random numbers, one row a step, so that what it does never depends on whether its
    neighbours have ended.
    """

    mode: str = "best"
    """`best`: the likeliest action. `sample`: a draw."""
    epsilon: float = 0.0
    """Share of decisions that are uniformly random, of discrete actions. The paper takes 0.01."""
    generator: torch.Generator | None = None
    _episodes: int | None = field(default=None, init=False)
    _running: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64), init=False)

    def __post_init__(self) -> None:
        one_of(self, "mode", MODES)
        in_range(self, "epsilon", 0, 1)

    def reset(self, episodes: int) -> None:
        self._episodes, self._running = episodes, torch.arange(episodes)

    def keep(self, active: Tensor) -> None:
        self._running = self._running[active]

    def choose(self, policy: Categorical | GaussianMixture) -> Tensor:
        """Actions [B], counted from 0, or [B, m] of a box."""
        if isinstance(policy, Categorical):
            return self.pick(policy.log_probs)
        if self.mode == "best":
            return policy.mode()
        count, size = len(policy.mean), policy.mean.shape[-1]
        noise = self._own_rows(
            torch.randn(self._rows(count), size, device=policy.mean.device, generator=self.generator)
        )
        uniform = self._own_rows(torch.rand(self._rows(count), device=policy.mean.device, generator=self.generator))
        return policy.sample(noise.unsqueeze(1), uniform.unsqueeze(1)).squeeze(1)

    def pick(self, log_policy: Tensor) -> Tensor:
        """Actions [B], counted from 0, for log-probabilities [B, A]."""
        actions = log_policy.argmax(-1)
        if self.mode == "best" and self.epsilon == 0:
            return actions
        device, count = log_policy.device, log_policy.shape[-1]
        draws = torch.rand(self._rows(len(log_policy)), 3, device=device, generator=self.generator)
        draws = self._own_rows(draws)  # [B, 3]
        if self.mode == "sample":
            cumulative = log_policy.softmax(-1).cumsum(-1)  # [B, A]
            actions = (cumulative < draws[:, :1] * cumulative[:, -1:]).sum(-1).clamp(max=count - 1)
        anything = (draws[:, 1] * count).long().clamp(max=count - 1)
        return torch.where(draws[:, 2] < self.epsilon, anything, actions)

    def _rows(self, batch: int) -> int:
        return batch if self._episodes is None else self._episodes

    def _own_rows(self, drawn: Tensor) -> Tensor:
        """Of what was drawn for all episodes, the rows of those that still run."""
        return drawn if self._episodes is None else drawn[self._running.to(drawn.device)]


@dataclass
class TargetPolicy(Policy):
    """A policy that asks for a return: its target rule is told what is earned, in the units that the data count in."""

    target: Target
    chooser: Chooser = field(default_factory=Chooser)
    reward_clip: float | None = None
    """Clip observed rewards as the data's were, before they are taken off a target."""

    def reset(self, episodes: int) -> None:
        self.target.reset(episodes)
        self.chooser.reset(episodes)

    def observe(self, rewards: Tensor) -> None:
        limit = self.reward_clip
        self.target.observe(rewards if limit is None else rewards.clamp(-limit, limit))

    def keep(self, active: Tensor) -> None:
        self.target.keep(active)
        self.chooser.keep(active)
