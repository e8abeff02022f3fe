"""Which return to ask for, step by step (Table 3 of the paper). All rules share one interface."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
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


def target_for(
    about: Mapping[str, Any], rule: str, *, delta: float, value: float | None, quantile: float | None
) -> Target:
    """A target rule for a trained model, from what its run says `about` the data.

    `value`, or the same as a `quantile` of the data's reward-to-go, is where max, dt_schedule and fixed start; left
    out, it is the data's largest.
    """
    if rule == "fixed" and value is None and quantile is None:
        raise ValueError("target fixed needs a value or a quantile, for example --value 200 or --quantile 0.9")
    if value is not None and quantile is not None:
        raise ValueError("give a value or a quantile, not both")
    value = about["max_return"] if value is None else value
    if quantile is not None:
        if not 0 <= quantile <= 1:
            raise ValueError(f"quantile must lie in [0, 1]; got {quantile}")
        quantiles = about["return_quantiles"]
        value = float(np.interp(quantile, np.linspace(0, 1, len(quantiles)), quantiles))
    return make_target(rule, delta=delta, value=value, discount=about["discount"])
