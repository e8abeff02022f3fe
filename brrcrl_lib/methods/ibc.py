"""Implicit Behaviour Cloning (Florence et al. 2022): an energy E(s, a), low where the data acted; play its minimum.

Trained by InfoNCE against actions drawn uniformly from a slightly widened box:

    L = -log [ exp(-E(s, a)) / (exp(-E(s, a)) + sum_{a'} exp(-E(s, a'))) ]

Actions are in units of their box, [-1, 1], so that one size of noise fits every world.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.data.batch import Batch, Facts
from brrcrl_lib.inference.optimizers import DerivativeFree, Optimizer, Problem
from brrcrl_lib.methods.base import Method
from brrcrl_lib.methods.br_rcrl import info_nce
from brrcrl_lib.methods.settings import SMOKE, MethodConfig, at_least, in_range
from brrcrl_lib.nets import Standardiser, mlp
from brrcrl_lib.policies import Policy

# -- configuration -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IbcConfig(MethodConfig):
    """Implicit behaviour cloning, at the size that its released code takes for its smallest task (2 x 256).

    Differs from the paper: on D4RL it draws 8 negatives by a Langevin chain of 100 steps through a residual network
    of 8 layers with spectral norms, 512 wide, at half this learning rate; it reports that this takes fifteen times as
    long as cloning.
    """

    learning_rate: float = 1e-3
    """Adam's learning rate, the released code's."""
    negatives: int = 32
    """Uniform actions that each action of the data is told apart from. The released code takes 8 on its smallest task
    and, improved by Langevin dynamics, on D4RL; 256 is its largest number."""
    margin: float = 0.05
    """Negatives come from a box that is wider by this share of its size on each side, so that the energy also rises
    beyond the edges."""
    hidden: tuple[int, ...] = (256, 256)
    """Hidden layers; state and action meet in the first."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {**SMOKE, "batch_size": 64, "negatives": 8, "hidden": (32, 32)},
        "paper": {"steps": 100_000, "batch_size": 512, "negatives": 256, "held_out": 0.0, "checkpoint_every": 5_000},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "negatives")
        in_range(self, "margin", 0, float("inf"))
        if not self.hidden or min(self.hidden) < 1:
            raise KitError(f"hidden needs at least one layer of at least one unit; got {self.hidden}")


@dataclass(frozen=True)
class IbcAct:
    """How the action of lowest energy is looked for: the paper's derivative-free optimiser."""

    samples: int = 512
    """Actions compared in each round. The paper takes 16,384, or 512 on its smallest task."""
    rounds: int = 3
    """Rounds of resampling by exp(-E) and adding noise."""
    noise: float = 0.33
    """Standard deviation of the first round's noise, where the box is [-1, 1]."""
    shrink: float = 0.5
    """What each round multiplies the noise by."""

    def __post_init__(self) -> None:
        at_least(self, 2, "samples")
        at_least(self, 0, "rounds")
        in_range(self, "noise", 0, float("inf"))
        in_range(self, "shrink", 0, 1)


# -- networks ----------------------------------------------------------------------------------------------------


class EnergyModel(nn.Module):
    """E(s, a) as an MLP whose first layer is split: the state's part is computed once for all actions compared."""

    def __init__(self, config: IbcConfig, facts: Facts) -> None:
        super().__init__()
        size, hidden = facts.observation_shape[0], config.hidden
        low, high = torch.tensor(facts.action_low), torch.tensor(facts.action_high)
        self.standardise = Standardiser(*(facts.standardisation or (torch.zeros(size), torch.ones(size))))
        self.state_part = nn.Linear(size, hidden[0])
        self.action_part = nn.Linear(len(low), hidden[0], bias=False)
        self.trunk = mlp(hidden[0], hidden[1:], 1)
        self.register_buffer("middle", (high + low) / 2)
        self.register_buffer("reach", (high - low) / 2)

    def encode(self, observations: Tensor) -> Tensor:
        """What raw observations [B, k] add to the first layer, [B, width]."""
        return self.state_part(self.standardise(observations))

    def energy(self, encoded: Tensor, units: Tensor) -> Tensor:
        """E(s, a) [B, N] of actions [B, N, m], in units of the box, in states that `encode` has seen."""
        weight = self.action_part.weight.t().expand(len(units), -1, -1)  # one copy in memory, seen by every state
        hidden = torch.baddbmm(encoded.unsqueeze(1), units, weight).relu_()
        return self.trunk(hidden).squeeze(-1).float()

    def in_units(self, actions: Tensor) -> Tensor:
        return (actions - cast(Tensor, self.middle)) / cast(Tensor, self.reach)

    def in_box(self, units: Tensor) -> Tensor:
        return cast(Tensor, self.middle) + units * cast(Tensor, self.reach)


# -- policy ------------------------------------------------------------------------------------------------------


@dataclass
class IbcPolicy(Policy):
    """Plays the action of lowest energy inside the box."""

    model: EnergyModel = field(kw_only=True)
    optimizer: Optimizer = field(kw_only=True)
    generator: torch.Generator | None = field(default=None, kw_only=True)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        solution = self.optimizer.minimise(self.problem(observations), self.generator)
        self.trace = {"energy": solution.energies}
        return self.model.in_box(solution.actions)

    def problem(self, observations: Tensor) -> Problem:
        """What the optimiser is given for raw observations [B, k]; it begins with actions spread over the box."""
        encoded, one = self.model.encode(observations), torch.ones_like(cast(Tensor, self.model.reach))

        def spread(noise: Tensor, uniform: Tensor) -> Tensor:
            """Uniform actions [B, N, m] from standard normal `noise` [N, m], by its distribution function."""
            return (2 * torch.special.ndtr(noise) - 1).expand(len(observations), -1, -1)

        return Problem(lambda units: self.model.energy(encoded, units), spread, low=-one, high=one)


# -- method ------------------------------------------------------------------------------------------------------


class Ibc(Method):
    """Implicit behaviour cloning."""

    name = "ibc"
    summary = "implicit behaviour cloning (Florence et al. 2022): an energy E(s, a) by InfoNCE, its minimum is played"
    kinds = ("box",)
    Config = IbcConfig
    Act = IbcAct
    config: IbcConfig

    def build(self) -> dict[str, nn.Module]:
        return {"model": EnergyModel(self.config, self.facts)}

    def loss(self, batch: Batch, generator: torch.Generator | None) -> dict[str, Tensor]:
        """InfoNCE of the data's action against uniform ones."""
        model, (count, size) = self.model, batch.actions.shape
        uniform = torch.rand(count, self.config.negatives, size, device=batch.actions.device, generator=generator)
        negatives = (2 * uniform - 1) * (1 + 2 * self.config.margin)
        candidates = torch.cat([model.in_units(batch.actions).unsqueeze(1), negatives], dim=1)  # [B, 1 + N, m]
        return {"loss": info_nce(-model.energy(model.encode(batch.observations), candidates))}

    def policy(self, act: IbcAct, generator: torch.Generator | None) -> Policy:
        optimizer = DerivativeFree(act.samples, act.rounds, act.noise, act.shrink)
        return IbcPolicy(model=self.model, optimizer=optimizer, generator=generator)
