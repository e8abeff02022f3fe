"""Worlds with a rare return and a known answer, for the study of sampling bias (the paper's Figure 1).

Two actions, up (+1) and down (-1), and a return R that is rarely 1 (written +1) and mostly 0 (written -1).
A batch of D worlds (or one world, D times) gives D datasets side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from brrcrl_lib.base.config import did_you_mean

Function = Callable[[Tensor], Tensor]  # states [D, n, dims] -> one number per state [D, n]
SCENARIOS = {
    "simple_reward": "complicated habits, and a reward that prefers `up` by the same odds everywhere",
    "flat_prior": "no habits (50/50 in every state), and a complicated reward",
    "flat_posterior": "complicated habits that the reward undoes exactly: the answer is 50/50 in every state",
}


@dataclass(frozen=True)
class World:
    """p(up|s) = sigmoid(habit), and p(R=1|s,a) = rate * sigmoid(level + a * lift), where the rate is small.

    An action is "good" with probability sigmoid(...) and a good action is rewarded once in a while. The rate cancels
    in p(a|s,R=1), so the same exact answer holds for every number of rare samples.
    """

    dims: int  # features per state, each standard normal
    habit: Function
    level: Function
    lift: Function

    def goodness(self, states: Tensor, actions: Tensor | float) -> Tensor:
        """log of p(R=1|s,a) without the rate. states: [D, n, dims], actions: [D, n] of +-1; returns [D, n]."""
        return logsigmoid(self.level(states) + actions * self.lift(states))

    def posterior(self, states: Tensor) -> Tensor:
        """The exact p(up|s,R=1) by Bayes' rule. [D, n, dims] -> [D, n]."""
        return torch.sigmoid(self.habit(states) + self.goodness(states, 1.0) - self.goodness(states, -1.0))


def make_world(scenario: str, count: int, dims: int, gap: float, roughness: float, g: torch.Generator) -> World:
    """A batch of `count` random worlds; see SCENARIOS. The gap only enters `simple_reward`."""
    if scenario not in SCENARIOS:
        raise ValueError(f"unknown scenario '{scenario}'{did_you_mean(scenario, SCENARIOS)}")
    wave = random_wave(count, dims, roughness, g)
    slope = torch.randn(count, dims, 1, generator=g, device=g.device)
    slope = slope / slope.norm(dim=1, keepdim=True)

    def zero(states: Tensor) -> Tensor:
        return torch.zeros_like(states[..., 0])

    if scenario == "simple_reward":
        return World(dims, wave, lambda s: (s @ slope)[..., 0], lambda s: zero(s) + gap / 2)
    if scenario == "flat_prior":
        return World(dims, zero, zero, wave)
    return World(dims, wave, zero, lambda s: -wave(s))


def random_wave(count: int, dims: int, roughness: float, g: torch.Generator, terms: int = 3) -> Function:
    """Smooth random functions of a few sine waves, standard deviation about 1.5."""
    frequency = torch.randn(count, dims, terms, generator=g, device=g.device) * roughness / math.sqrt(dims)
    phase = torch.rand(count, 1, terms, generator=g, device=g.device) * 2 * math.pi
    height = torch.randn(count, 1, terms, generator=g, device=g.device)
    height = 1.5 * math.sqrt(2) * height / height.norm(dim=-1, keepdim=True)
    return lambda states: (height * torch.sin(states @ frequency + phase)).sum(-1)


@dataclass(frozen=True)
class Dataset:
    """D datasets of N samples side by side; the rare samples come first."""

    states: Tensor  # [D, N, dims]
    actions: Tensor  # [D, N] of +-1
    returns: Tensor  # [D, N] of +-1, where +1 means R=1
    rare_samples: int


def draw_dataset(world: World, datasets: int, samples: int, rare_samples: int, g: torch.Generator) -> Dataset:
    """N independent samples of each world, given that exactly `rare_samples` of them have R=1 (by rejection)."""
    if not 1 <= rare_samples < samples:
        raise ValueError(f"rare_samples must lie in [1, {samples}), got {rare_samples}")

    def candidates(count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        states = torch.randn(datasets, count, world.dims, generator=g, device=g.device)
        luck, judge = torch.rand(2, datasets, count, generator=g, device=g.device)
        actions = 2.0 * (luck < torch.sigmoid(world.habit(states))) - 1
        return states, actions, world.goodness(states, actions).exp(), judge

    def first(states: Tensor, actions: Tensor, accepted: Tensor, count: int) -> tuple[Tensor, Tensor]:
        if (accepted.sum(1) < count).any():
            raise RuntimeError("rejection sampling ran out of candidates; this world rewards too few actions")
        index = torch.argsort(~accepted, dim=1, stable=True)[:, :count]
        return states.gather(1, index[..., None].expand(-1, -1, world.dims)), actions.gather(1, index)

    states, actions, good, judge = candidates(12 * rare_samples + 100)
    rare_states, rare_actions = first(states, actions, judge < good, rare_samples)
    states, actions, good, judge = candidates(2 * samples)
    rate = rare_samples / samples / good.mean(1, keepdim=True)  # then `rare_samples` is the expected number
    if (rate > 1).any():
        raise ValueError(f"{rare_samples} of {samples} samples are not rare in this world; ask for fewer")
    states, actions = first(states, actions, judge >= rate * good, samples - rare_samples)
    states, actions = torch.cat([rare_states, states], 1), torch.cat([rare_actions, actions], 1)
    returns = torch.where(torch.arange(samples, device=g.device) < rare_samples, 1.0, -1.0)
    return Dataset(states, actions, returns.expand_as(actions), rare_samples)
