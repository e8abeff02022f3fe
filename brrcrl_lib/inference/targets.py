"""Which return to ask for, step by step (Table 3 of the paper). All rules share one interface."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from brrcrl_lib.base.config import in_range, one_of
from brrcrl_lib.base.errors import KitError
from brrcrl_lib.data.batch import Facts
from brrcrl_lib.returns import ReturnBuckets

TARGETS = ("adaptive", "max", "dt_schedule", "dt_schedule_undiscounted", "fixed")


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


@dataclass
class Adaptive:
    """theta_delta(s): as high as the state allows with probability delta (Algorithm 1). Remembers nothing."""

    delta: float = 0.1

    def __post_init__(self) -> None:
        in_range(self, "delta", 0, 1, open_low=True, open_high=True)

    def reset(self, episodes: int) -> None: ...

    def bucket(self, distribution: Tensor, buckets: ReturnBuckets) -> Tensor:
        return buckets.threshold(distribution, self.delta)

    def observe(self, rewards: Tensor) -> None: ...

    def keep(self, active: Tensor) -> None: ...


@dataclass
class Constant:
    """The same return all the time: the data's largest (`max`), or any value (`fixed`)."""

    value: float
    limits: tuple[float, float] | None = field(default=None, kw_only=True)
    """Never ask for less or more than this, at the start or later; None: ask for anything."""
    wanted: Tensor = field(default_factory=lambda: torch.empty(0), init=False)
    """The return that each episode still asks for, [B]."""

    def reset(self, episodes: int) -> None:
        self.wanted = self._within(torch.full((episodes,), self.value, dtype=torch.float64))

    def _within(self, returns: Tensor) -> Tensor:
        return returns if self.limits is None else returns.clamp(*self.limits)

    def bucket(self, distribution: Tensor, buckets: ReturnBuckets) -> Tensor:
        return buckets.encode(self.wanted.to(distribution.device, torch.float32))

    def observe(self, rewards: Tensor) -> None: ...

    def keep(self, active: Tensor) -> None:
        self.wanted = self.wanted[active]


@dataclass
class DecisionTransformerSchedule(Constant):
    """Start at `value` and take off what was earned: R <- (R - r) / gamma, with gamma = `discount`.

    Two rules of `TargetSettings` are made of it. A model that was trained on discounted reward-to-go,
    G_t = r_t + gamma G_{t+1}, is asked for

      dt_schedule               R <- (R - r) / gamma, the recursion of G itself: from the return that an episode really
                                earns it is that episode's reward-to-go at every step. But it is unstable: with a
                                constant reward r its fixed point is R* = r / (1 - gamma), and a start that promises e
                                more (or less) asks for R* + e / gamma^t at step t. With gamma = 0.99 a shortfall of 1
                                has become 23,000 after 1,000 steps, far outside anything the model has seen.
      dt_schedule_undiscounted  R <- R - r, the Decision Transformer's own line, here on a discounted start. It counts
                                in two units: `value` is a discounted return and each reward is taken off whole, so
                                that the target falls below what an episode goes on earning (after value / r steps it
                                asks for nothing, after that for less). There is no start that mends this: an
                                undiscounted one would be a number that the model has never been told. It does not
                                diverge by itself: it drifts by r a step. With gamma = 1 the two are the same rule,
                                and then it is the right one.

    `limits` keep either within what the model knows. A schedule that has reached a limit starts again from there: with
    a shortfall dt_schedule then asks for the largest return nearly all the time, which makes it the rule `max`.
    """

    discount: float = 1.0

    def observe(self, rewards: Tensor) -> None:
        self.wanted = self._within((self.wanted - rewards.to(self.wanted)) / self.discount)


@dataclass(frozen=True)
class TargetSettings:
    """Which return is asked for: fields that every return-conditioned method shares."""

    target: str = "adaptive"
    """adaptive (theta_delta), max (the data's largest return), dt_schedule (R <- (R - r) / gamma),
    dt_schedule_undiscounted (R <- R - r) or fixed."""
    delta: float = 0.1
    """Share of outcomes that the adaptive target may hope for, in (0, 1)."""
    value: float | None = None
    """Return that fixed asks for, and that the schedules start from; the data's largest if left out."""
    quantile: float | None = None
    """The same as a quantile of the training data's reward-to-go, in [0, 1]."""
    clamp: bool = False
    """Keep what a schedule asks for within the reward-to-go of the training data, which the model knows. Without it
    dt_schedule diverges: a shortfall e becomes e / gamma^t. Off by default, so that recorded rows can be made again."""

    def __post_init__(self) -> None:
        one_of(self, "target", TARGETS)
        if self.target == "adaptive":
            in_range(self, "delta", 0, 1, open_low=True, open_high=True)
        if self.target == "fixed" and self.value is None and self.quantile is None:
            raise KitError("target fixed needs a value or a quantile, for example --value 200 or --quantile 0.9")
        if self.value is not None and self.quantile is not None:
            raise KitError("give a value or a quantile, not both")
        if self.value is not None and not math.isfinite(self.value):
            raise KitError(f"value must be a finite return; got {self.value}")
        in_range(self, "quantile", 0, 1)

    def rule(self, facts: Facts) -> Target:
        """The target rule for a model that was trained on data with these `facts`."""
        if self.target == "adaptive":
            return Adaptive(self.delta)
        start = facts.return_range[1] if self.value is None else self.value
        if self.quantile is not None:
            shares = np.linspace(0, 1, len(facts.return_quantiles))
            start = float(np.interp(self.quantile, shares, facts.return_quantiles))
        limits = facts.return_range if self.clamp else None
        if self.target == "dt_schedule":
            return DecisionTransformerSchedule(start, discount=facts.discount, limits=limits)
        if self.target == "dt_schedule_undiscounted":
            return DecisionTransformerSchedule(start, discount=1.0, limits=limits)
        return Constant(start, limits=limits)
