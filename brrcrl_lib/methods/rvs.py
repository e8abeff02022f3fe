"""RvS-R (Emmons et al. 2022): p(a | s, reward per step from here to the end of the clock), a plain MLP.

With a clock of H steps and the undiscounted reward-to-go R_t, the condition is

    w_t = R_t / (H - t)

An episode that ends early is still divided by what the clock had left: one that fell pays less per step than one that
did not. While playing, w is held at a constant.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import gymnasium as gym
import torch
from torch import Tensor, nn

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.data.batch import Batch, Facts, Needs
from brrcrl_lib.inference.targets import Constant
from brrcrl_lib.methods.base import Method
from brrcrl_lib.methods.settings import SMOKE, MethodConfig, at_least, in_range
from brrcrl_lib.nets import GaussianMixture, Standardiser, mlp
from brrcrl_lib.policies import Policy, TargetPolicy

# -- configuration -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RvsConfig(MethodConfig):
    """RvS-R. By default the size of the kit's other networks; its paper's is 2 x 1,024, without dropout in Gym."""

    learning_rate: float = 1e-3
    """Adam's learning rate, the paper's."""
    discount: float | None = 1.0
    """gamma of the reward-to-go; the paper's is undiscounted. Below 1 the reward per step is the average in which
    later rewards count less, as they do in the reward-to-go."""
    hidden: tuple[int, ...] = (256, 256, 256)
    """Hidden layers."""
    horizon: int | None = None
    """H, the steps an episode may last; None: the time limit of the data's environment. The released code takes the
    longest episode of the data, which is the same wherever one episode lasts to the end."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {**SMOKE, "batch_size": 64, "hidden": (32, 32)},
        # 2,000 epochs of a million transitions
        "paper": {"steps": 122_000, "batch_size": 16_384, "hidden": (1024, 1024), "held_out": 0.0,
                  "checkpoint_every": 5_000},
    }  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "horizon")
        if not self.hidden or min(self.hidden) < 1:
            raise KitError(f"hidden needs at least one layer of at least one unit; got {self.hidden}")

    def clock(self, facts: Facts) -> int:
        """H."""
        if self.horizon is not None:
            return self.horizon
        try:
            limit = gym.spec(facts.env).max_episode_steps if facts.env else None
        except gym.error.Error:
            limit = None
        if limit is None:
            raise KitError(
                f"rvs must know how long an episode of {facts.dataset} may last, and {facts.env or 'its environment'} "
                f"does not say; set horizon"
            )
        return limit


@dataclass(frozen=True)
class RvsAct:
    """How RvS-R is made to act.

    Its released code plays a grid of targets, 0.3 to 1.2 of an expert's score spread over the clock. That needs an
    expert's score and chooses by playing; we ask for what the data's best episode earned unless told otherwise.
    """

    target_return: float | None = None
    """Return of a whole episode to ask for; None: the data's largest. It is spread over the clock: w = return / H."""
    share: float = 1.0
    """Ask for this share of it."""

    def __post_init__(self) -> None:
        in_range(self, "target_return", float("-inf"), float("inf"))
        in_range(self, "share", 0, float("inf"), open_low=True)


# -- networks ----------------------------------------------------------------------------------------------------


class RvsModel(nn.Module):
    """p(a|s,w): a Gaussian whose mean an MLP finds and whose standard deviation is the same everywhere."""

    def __init__(self, config: RvsConfig, facts: Facts) -> None:
        super().__init__()
        size = facts.observation_shape[0]
        low, high = torch.tensor(facts.action_low), torch.tensor(facts.action_high)
        self.horizon, self.discount = config.clock(facts), facts.discount
        # Differs from the paper: observations are standardised, as for the other methods of the kit.
        self.standardise = Standardiser(*(facts.standardisation or (torch.zeros(size), torch.ones(size))))
        self.mean = mlp(size + 1, config.hidden, len(low))
        self.log_std = nn.Parameter(torch.zeros(len(low)))
        self.register_buffer("low", low)
        self.register_buffer("high", high)

    def left(self, timesteps: Tensor) -> Tensor:
        """H - t [B], at least one; discounted, what a reward of 1 in each of these steps would add up to."""
        steps = (self.horizon - timesteps).clamp(min=1).float()
        return steps if self.discount == 1 else (1 - self.discount**steps) / (1 - self.discount)

    def forward(self, observations: Tensor, wanted: Tensor) -> GaussianMixture:
        """The distribution of actions for raw observations [B, k] and rewards per step [B]."""
        inputs = torch.cat([self.standardise(observations), wanted.unsqueeze(-1)], dim=-1)
        mean = self.mean(inputs).unsqueeze(1)  # [B, 1, m]: a mixture of one
        return GaussianMixture(
            mean,
            self.log_std.expand_as(mean),
            mean.new_zeros(mean.shape[:2]),
            cast(Tensor, self.low),
            cast(Tensor, self.high),
            squash=False,
        )


# -- policy ------------------------------------------------------------------------------------------------------


@dataclass
class RvsPolicy(TargetPolicy):
    """Plays the mean of p(a|s,w) for a constant w."""

    target: Constant
    model: RvsModel = field(kw_only=True)
    _step: int = field(default=0, init=False)

    def reset(self, episodes: int) -> None:
        super().reset(episodes)
        self._step = 0

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        wanted = self.target.wanted.to(observations.device, torch.float32)
        left = self.model.left(torch.full_like(wanted, self._step))
        self.trace = {"target": wanted * left}  # as a return, to be compared with what follows
        self._step += 1
        return self.model(observations, wanted).mode()


# -- method ------------------------------------------------------------------------------------------------------


class Rvs(Method):
    """RvS-R."""

    name = "rvs"
    summary = "RvS-R (Emmons et al. 2022): p(a|s) given the reward per step that is still to come"
    kinds = ("box",)
    Config = RvsConfig
    Act = RvsAct
    needs = Needs(context=1)  # for the timestep
    config: RvsConfig

    def build(self) -> dict[str, nn.Module]:
        return {"model": RvsModel(self.config, self.facts)}

    def loss(self, batch: Batch, generator: torch.Generator | None) -> dict[str, Tensor]:
        """-log p(a|s,w)."""
        assert batch.timesteps is not None
        wanted = (batch.returns / self.model.left(batch.timesteps)).squeeze(1)  # [B]
        return {"loss": self.model(batch.observations.squeeze(1), wanted).nll(batch.actions.squeeze(1))}

    def policy(self, act: RvsAct, generator: torch.Generator | None) -> Policy:
        best = self.facts.return_range[1] if act.target_return is None else act.target_return
        wanted = act.share * best / float(self.model.left(torch.tensor(0)))
        return RvsPolicy(Constant(wanted), reward_clip=self.facts.reward_clip, model=self.model)
