"""Find the action of lowest energy. Every optimiser handles a batch of states at once.

All random numbers are drawn once and shared by the states of the batch, so a state gets the same action alone
and in company.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from brrcrl_lib.base.errors import KitError

Energy = Callable[[Tensor], Tensor]
"""Energies [B, N] of candidate actions [B, N, m]."""


@dataclass(frozen=True)
class Problem:
    """What an optimiser is given."""

    energy: Energy
    sample_prior: Callable[[Tensor, Tensor], Tensor]  # (noise [N, m], uniform [N]) -> actions [B, N, m]
    low: Tensor  # [m]
    high: Tensor  # [m]

    def clip(self, actions: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(actions, self.low), self.high)

    def normal(self, count: int, generator: torch.Generator | None) -> Tensor:
        return torch.randn(count, len(self.low), device=self.low.device, generator=generator)

    def uniform(self, count: int, generator: torch.Generator | None) -> Tensor:
        return torch.rand(count, device=self.low.device, generator=generator)

    def start(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Actions of the prior, [B, count, m]."""
        return self.sample_prior(self.normal(count, generator), self.uniform(count, generator))


@dataclass(frozen=True)
class Solution:
    actions: Tensor  # [B, m]
    energies: Tensor  # [B]
    history: tuple[Tensor, ...] = ()  # the candidates [B, N, m] of each round, if asked for


class Optimizer(Protocol):
    """Anything that finds low-energy actions."""

    def minimise(self, problem: Problem, generator: torch.Generator | None, history: bool = False) -> Solution: ...


def _lowest(actions: Tensor, energies: Tensor) -> tuple[Tensor, Tensor]:
    """The best candidate of each state: actions [B, m] and energies [B]."""
    best = energies.argmin(1)
    index = best[:, None, None].expand(-1, 1, actions.shape[-1])
    return actions.gather(1, index).squeeze(1), energies.gather(1, best[:, None]).squeeze(1)


@dataclass(frozen=True)
class DerivativeFree:
    """The paper's optimiser (DFO of Florence et al. 2022): resample by exp(-E), perturb, shrink the noise.

    Its sizes are the paper's: 65,536 samples, 5 rounds, noise 0.5 shrinking by 0.9; the best of the last round wins.
    """

    samples: int = 65_536
    rounds: int = 5
    noise: float = 0.5
    shrink: float = 0.9

    def minimise(self, problem: Problem, generator: torch.Generator | None, history: bool = False) -> Solution:
        actions = problem.start(self.samples, generator)
        energies = problem.energy(actions)
        seen = [actions]
        for round_ in range(self.rounds):
            uniform = problem.uniform(self.samples, generator)
            cumulative = torch.softmax(-energies, dim=1).double().cumsum(1)  # [B, N]
            drawn = torch.searchsorted(cumulative, (uniform.double() * cumulative[:, -1:]).contiguous())
            index = drawn.clamp(max=self.samples - 1).unsqueeze(-1).expand_as(actions)
            scale = self.noise * self.shrink**round_
            actions = problem.clip(actions.gather(1, index) + scale * problem.normal(self.samples, generator))
            energies = problem.energy(actions)
            seen.append(actions)
        return Solution(*_lowest(actions, energies), history=tuple(seen) if history else ())


@dataclass(frozen=True)
class CrossEntropy:
    """Cross-entropy method started from the prior: refit a Gaussian to the best few, and keep the best ever seen."""

    samples: int = 48
    rounds: int = 5
    elite_share: float = 0.15

    def minimise(self, problem: Problem, generator: torch.Generator | None, history: bool = False) -> Solution:
        elites = max(2, round(self.samples * self.elite_share))
        actions = problem.start(self.samples, generator)
        energies = problem.energy(actions)
        best, lowest = _lowest(actions, energies)
        seen = [actions]
        for _ in range(self.rounds):
            index = energies.topk(elites, dim=1, largest=False).indices.unsqueeze(-1)
            chosen = actions.gather(1, index.expand(-1, -1, actions.shape[-1]))  # [B, elites, m]
            mean, std = chosen.mean(1, keepdim=True), chosen.std(1, keepdim=True)
            actions = problem.clip(mean + std * problem.normal(self.samples, generator))
            energies = problem.energy(actions)
            candidate, energy = _lowest(actions, energies)
            better = energy < lowest
            best = torch.where(better.unsqueeze(-1), candidate, best)
            lowest = torch.minimum(energy, lowest)
            seen.append(actions)
        return Solution(best, lowest, history=tuple(seen) if history else ())


@dataclass(frozen=True)
class Langevin:
    """Gradient refinement of the prior's best samples, with shrinking Gaussian noise (suggested in the appendix)."""

    samples: int = 256
    chains: int = 8
    steps: int = 10
    step_size: float = 0.05
    noise: float = 0.02

    def minimise(self, problem: Problem, generator: torch.Generator | None, history: bool = False) -> Solution:
        start = problem.start(self.samples, generator)
        chains = min(self.chains, self.samples)
        index = problem.energy(start).topk(chains, dim=1, largest=False).indices.unsqueeze(-1)
        actions = start.gather(1, index.expand(-1, -1, start.shape[-1]))  # [B, chains, m]
        seen = [start, actions]
        candidates, energies = [actions], [problem.energy(actions)]
        for step in range(self.steps):
            with torch.enable_grad():
                leaf = actions.detach().requires_grad_()
                (gradient,) = torch.autograd.grad(problem.energy(leaf).sum(), leaf)
            gradient = gradient / gradient.norm(dim=-1, keepdim=True).clamp(min=1.0)  # at most unit length
            left = 1 - step / self.steps
            jitter = self.noise * left * problem.normal(chains, generator)
            actions = problem.clip(actions - self.step_size * left * gradient + jitter)
            candidates.append(actions)
            energies.append(problem.energy(actions))
            seen.append(actions)
        best, lowest = _lowest(torch.cat(candidates, 1), torch.cat(energies, 1))
        return Solution(best.detach(), lowest.detach(), history=tuple(seen) if history else ())


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "cem": CrossEntropy,
    "dfo": DerivativeFree,
    "langevin": Langevin,
}


def make_optimizer(name: str, **settings: float) -> Optimizer:
    """An optimiser by name: `cem` (the default), `dfo` (the paper's) or `langevin`."""
    if name not in OPTIMIZERS:
        raise KitError(f"unknown optimizer '{name}' (valid: {', '.join(OPTIMIZERS)})")
    return OPTIMIZERS[name](**settings)
