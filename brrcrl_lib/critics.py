"""What the methods that learn critics share: twin critics, their target networks, and actors on a box of actions.

Inside these methods actions are counted in units of their box, [-1, 1] in every dimension, and states are
standardised; both happen once per batch, in `Actor`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.data.batch import Batch, Facts
from brrcrl_lib.methods.settings import SMOKE, MethodConfig, in_range
from brrcrl_lib.nets import HALF_LOG_TWO_PI, Standardiser, mlp
from brrcrl_lib.policies import Policy

PAPER_STEPS = {"steps": 1_000_000, "held_out": 0.0, "log_every": 1_000, "checkpoint_every": 50_000}
"""What the papers of these methods train for, on D4RL."""


@dataclass(frozen=True)
class CriticSettings(MethodConfig):
    """What every method with critics has."""

    steps: int = 50_000
    """Gradient steps. Values travel one step back per update, so these methods need more than cloning does; their
    papers take a million."""
    learning_rate: float = 3e-4
    """Adam's learning rate."""
    hidden: tuple[int, ...] = (256, 256)
    """Hidden layers of every network."""
    soft_update: float = 0.005
    """Share of the way that the target networks go towards the trained ones after each update."""
    log_every: int = 500
    """Steps averaged into one row of metrics.csv."""
    checkpoint_every: int = 5_000
    """Steps between checkpoints."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {**SMOKE, "batch_size": 64, "hidden": (32, 32)},
        "paper": PAPER_STEPS,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, "soft_update", 0, 1, open_low=True)
        if not self.hidden or min(self.hidden) < 1:
            raise KitError(f"hidden needs at least one layer of at least one unit; got {self.hidden}")


# -- networks ----------------------------------------------------------------------------------------------------


class Critics(nn.Module):
    """Q1 and Q2. Two plain networks: weights stacked into one batched product were no faster on a CPU."""

    def __init__(self, facts: Facts, hidden: Sequence[int]) -> None:
        super().__init__()
        inputs = facts.observation_shape[0] + len(facts.action_low or ())
        self.first, self.second = mlp(inputs, hidden, 1), mlp(inputs, hidden, 1)

    def forward(self, states: Tensor, actions: Tensor) -> Tensor:
        """Values [2, B] of unit actions [B, m] in standardised states [B, k]; or [2, B, N] of actions [B, N, m]."""
        pairs = join(states, actions)
        return torch.stack([self.first(pairs).squeeze(-1), self.second(pairs).squeeze(-1)])

    def one(self, states: Tensor, actions: Tensor) -> Tensor:
        """Q1 alone, [B] or [B, N]."""
        return self.first(join(states, actions)).squeeze(-1)


def join(states: Tensor, actions: Tensor) -> Tensor:
    """States [B, k] beside actions [B, m] or [B, N, m], as [..., k + m]."""
    if actions.ndim == 3:
        states = states.unsqueeze(1).expand(-1, actions.shape[1], -1)
    return torch.cat([states, actions], -1)


def frozen(module: nn.Module, *inputs: Tensor) -> Tensor:
    """What `module` says of the inputs, with gradients to the inputs and none to its weights."""
    weights = {name: weight.detach() for name, weight in module.named_parameters()}
    return torch.func.functional_call(module, weights, inputs)


class Actor(nn.Module):
    """A network from raw observations to `outputs` numbers per dimension of the action, and the units of both."""

    def __init__(self, facts: Facts, hidden: Sequence[int], outputs: int = 1) -> None:
        super().__init__()
        size, low, high = facts.observation_shape[0], torch.tensor(facts.action_low), torch.tensor(facts.action_high)
        mean, std = facts.standardisation or (torch.zeros(size), torch.ones(size))
        self.standardise = Standardiser(mean.clone(), std.clone())
        self.register_buffer("centre", (high + low) / 2)
        self.register_buffer("reach", (high - low) / 2)
        self.net = mlp(size, hidden, outputs * len(low))

    def unit(self, actions: Tensor) -> Tensor:
        """Actions of the box in units of the box, [-1, 1]."""
        return (actions - cast(Tensor, self.centre)) / cast(Tensor, self.reach)

    def box(self, unit: Tensor) -> Tensor:
        """The way back."""
        return cast(Tensor, self.centre) + cast(Tensor, self.reach) * unit


@dataclass(frozen=True)
class SquashedGaussian:
    """tanh of a diagonal Gaussian, one per state: inside the unit box whatever is drawn."""

    mean: Tensor  # [B, m], before the tanh
    log_std: Tensor  # [B, m]

    def raw(self, noise: Tensor) -> Tensor:
        """Draws before the tanh, from standard normal noise: [B, m] from [B, m], or [B, N, m] from [B, N, m]."""
        mean, log_std = self._beside(noise)
        return mean + log_std.exp() * noise

    def sample(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Unit actions, shaped like the noise, and log p of each, without the last dimension."""
        raw = self.raw(noise)
        shrinking = 2 * (math.log(2) - raw - F.softplus(-2 * raw))  # log(1 - tanh(raw)^2), exact far out
        log_std = self._beside(noise)[1]
        return raw.tanh(), (-0.5 * noise.square() - log_std - HALF_LOG_TWO_PI - shrinking).sum(-1)

    def mode(self) -> Tensor:
        """What is played, [B, m]: the tanh of the mean."""
        return self.mean.tanh()

    def _beside(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        return (self.mean, self.log_std) if noise.ndim == 2 else (self.mean.unsqueeze(1), self.log_std.unsqueeze(1))


class SquashedActor(Actor):
    """A `SquashedGaussian` whose mean and spread both depend on the state, as in SAC."""

    def __init__(self, facts: Facts, hidden: Sequence[int], log_std_range: tuple[float, float] = (-20.0, 2.0)) -> None:
        super().__init__(facts, hidden, outputs=2)
        self.log_std_range = log_std_range

    def forward(self, states: Tensor) -> SquashedGaussian:
        """The distribution of unit actions in standardised states [B, k]."""
        mean, log_std = self.net(states).chunk(2, -1)
        return SquashedGaussian(mean, log_std.clamp(*self.log_std_range))


class Multiplier(nn.Module):
    """A positive number that is learned: exp of its logarithm."""

    def __init__(self, start: float = 1.0) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(start)))

    def forward(self) -> Tensor:
        return self.log.exp()


class ActorCritic:
    """Short names for the modules that each of these methods has."""

    modules: dict[str, nn.Module]

    @property
    def actor(self) -> Any:
        return self.modules["actor"]

    @property
    def critics(self) -> Any:
        return self.modules["critics"]

    @property
    def target_critics(self) -> Any:
        return self.modules["target_critics"]


# -- one update --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """A batch in the units in which these methods count."""

    states: Tensor  # [B, k], standardised
    actions: Tensor  # [B, m], in [-1, 1]
    rewards: Tensor  # [B]
    going_on: Tensor  # [B], 0 where the task ended, else 1
    next_states: Tensor  # [B, k], standardised

    @classmethod
    def of(cls, batch: Batch, actor: Actor) -> Step:
        following = batch.next_observations
        assert following is not None, "methods with critics ask for what followed: needs = Needs(next=True)"
        states, next_states = actor.standardise(batch.observations), actor.standardise(following)
        going_on = 1.0 - batch.done.to(batch.rewards.dtype)
        return cls(states, actor.unit(batch.actions), batch.rewards, going_on, next_states)


def squared_error(values: Tensor, targets: Tensor) -> Tensor:
    """Mean squared error of each critic's values [2, B] against the same targets [B], added up."""
    return (values - targets).square().mean(-1).sum()


def slow_copy(module: nn.Module) -> nn.Module:
    """A target network: the same weights, which no gradient reaches."""
    return copy.deepcopy(module).requires_grad_(False)


@torch.no_grad()
def follow(target: nn.Module, source: nn.Module, rate: float) -> None:
    """Move a target network the share `rate` of the way to its source."""
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), rate)


def adam(parameters: Iterable[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=rate, fused=True)


def descend(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One step of this optimiser's weights down the gradient of `loss`; no other weight gets a gradient.

    So an actor's loss may run through the critics without moving them, and without the work of their gradients.
    """
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    optimizer.zero_grad(set_to_none=True)
    loss.backward(inputs=weights)
    optimizer.step()


# -- playing -----------------------------------------------------------------------------------------------------


@dataclass
class ActorPolicy(Policy):
    """Plays what a function says for raw observations [B, k]: actions [B, m] of the box."""

    decide: Callable[[Tensor], Tensor]

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        return self.decide(observations)
