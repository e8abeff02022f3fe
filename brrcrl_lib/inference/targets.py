"""Which return to ask for, step by step (Table 3 of the paper). All rules share one interface."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from brrcrl_lib.returns import ReturnBuckets

TARGETS = ("adaptive", "max", "dt_schedule", "fixed")


class Target(Protocol):
    """A rule for the target return of each of n episodes played side by side."""

    def reset(self, episodes: int) -> None: ...

    def bucket(self, distribution: Tensor, buckets: ReturnBuckets) -> Tensor:
        """The bucket [B] from which on a return is good enough, given p(R|s) [B, buckets]."""
        ...

    def observe(self, rewards: Tensor) -> None: ...

    def keep(self, active: Tensor) -> None:
        """Forget the episodes whose entry in `active` [B] is False."""
        ...


def check_delta(delta: float) -> float:
    if not 0.0 < delta < 1.0:
        raise ValueError(f"delta must lie in (0, 1); got {delta!r}")
    return delta


@dataclass
class Adaptive:
    """theta_delta(s): as high as the state allows with probability delta (Algorithm 1). Remembers nothing."""

    delta: float = 0.1

    def __post_init__(self) -> None:
        check_delta(self.delta)

    def reset(self, episodes: int) -> None: ...

    def bucket(self, distribution: Tensor, buckets: ReturnBuckets) -> Tensor:
        return buckets.threshold(distribution, self.delta)

    def observe(self, rewards: Tensor) -> None: ...

    def keep(self, active: Tensor) -> None: ...


@dataclass
class Constant:
    """The same return all the time: the data's largest (`max`), or any value (`fixed`)."""

    value: float
    wanted: Tensor = field(default_factory=lambda: torch.empty(0), init=False)
    """The return that each episode still asks for, [B]."""

    def reset(self, episodes: int) -> None:
        self.wanted = torch.full((episodes,), self.value, dtype=torch.float64)

    def bucket(self, distribution: Tensor, buckets: ReturnBuckets) -> Tensor:
        return buckets.encode(self.wanted.to(distribution.device, torch.float32))

    def observe(self, rewards: Tensor) -> None: ...

    def keep(self, active: Tensor) -> None:
        self.wanted = self.wanted[active]


@dataclass
class DecisionTransformerSchedule(Constant):
    """Start at `value` and take off what was earned, in discounted form: R <- (R - r) / gamma."""

    discount: float = 1.0

    def observe(self, rewards: Tensor) -> None:
        self.wanted = (self.wanted - rewards.to(self.wanted)) / self.discount


def make_target(rule: str, *, delta: float, value: float, discount: float) -> Target:
    """A target rule by name; `value` is the return that max, dt_schedule and fixed start from."""
    if rule == "adaptive":
        return Adaptive(delta)
    if rule in ("max", "fixed"):
        return Constant(value)
    if rule == "dt_schedule":
        return DecisionTransformerSchedule(value, discount=discount)
    raise ValueError(f"unknown target '{rule}' (valid: {', '.join(TARGETS)})")
