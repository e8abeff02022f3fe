"""What a grid will cost on this machine: hours of one core, from recorded rows or from a few updates timed here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from brrcrl_lib.base.devices import generator
from brrcrl_lib.data.batch import Batch, Facts, Needs
from brrcrl_lib.methods.base import create, method_named
from brrcrl_lib.study.experiments.plan import Plan, by_training
from brrcrl_lib.study.experiments.status import speeds

OBSERVATIONS, ACTIONS = 17, 6  # Walker2d's and HalfCheetah's
PLAYING = 10.0
"""Seconds of a cell of which nobody has recorded how long it takes to play."""


@dataclass
class Cost:
    """Core-hours of what is missing, by method."""

    hours: dict[str, float] = field(default_factory=dict)
    timed: set[str] = field(default_factory=set)
    """Methods that no recorded row tells of: a few updates were timed here, their playing is a guess."""
    unknown: set[str] = field(default_factory=set)
    """Those that cannot be timed without their data."""

    def sentence(self, grid: str) -> str:
        """`table1: about 31.0 core-hours to come (cql 9.1, dt 8.0, ...)`."""
        parts = ", ".join(f"{name} {hours:.1f}" for name, hours in sorted(self.hours.items(), key=lambda it: -it[1]))
        text = f"{grid}: about {sum(self.hours.values()):.1f} core-hours to come" + (f" ({parts})" if parts else "")
        if self.timed:
            text += f"; {', '.join(sorted(self.timed))}: from updates timed here and now"
        if self.unknown:
            text += f"; without {', '.join(sorted(self.unknown))}, which no recorded row tells of"
        return text


def cost(plan: Plan, measure: Callable[[Any], float] | None = None) -> Cost:
    """What the missing cells of a plan cost; `measure` says how long an update of a configuration takes."""
    known, trained = speeds(plan)
    measured: dict[tuple[str, ...], float] = {}
    found = Cost()
    for train_key, waiting in by_training(plan.missing()).items():
        first = waiting[0]
        kind = first.kind
        if (first.method, kind) in known:
            update, playing = known[first.method, kind]
        elif kind == "box":
            where = (first.method, *map(str, first.variant.values()))
            if where not in measured:
                measured[where] = (measure or seconds_per_update)(first.config)
            update, playing = measured[where], PLAYING
            found.timed.add(first.method)
        else:
            found.unknown.add(first.method)
            continue
        training = 0.0 if train_key in trained else update * first.config.steps
        cores = method_named(first.method).resources.get("cpus", 1)
        seconds = cores * (training + playing * len(waiting))
        found.hours[first.method] = found.hours.get(first.method, 0.0) + seconds / 3600
    return found


# -- timing updates ----------------------------------------------------------------------------------------------


def seconds_per_update(config: Any, repeats: int = 5) -> float:
    """CPU seconds of one update on random numbers of the size of Walker2d, the median after one that warms up."""
    method, rng = create(config, random_facts(config.discount), "cpu"), generator(0)
    batch = random_batch(config.batch_size, method.needs, rng)
    return median(cpu_seconds(lambda: method.update(batch, 0, rng)) for _ in range(repeats + 1))


def cpu_seconds(action: Callable[[], Any]) -> float:
    """CPU time of this process: other work on the machine stretches the clock on the wall and hardly this one."""
    started = time.process_time()
    action()
    return time.process_time() - started


def random_facts(discount: float | None = None) -> Facts:
    """What a method would know of data that are as large as Walker2d's and otherwise nothing."""
    return Facts(
        dataset="random numbers",
        env="Walker2d-v5",
        observation_shape=(OBSERVATIONS,),
        discount=0.99 if discount is None else discount,
        reward_clip=None,
        return_range=(0.0, 100.0),
        return_quantiles=tuple(float(share) for share in range(101)),
        action_low=(-1.0,) * ACTIONS,
        action_high=(1.0,) * ACTIONS,
        standardisation=(torch.zeros(OBSERVATIONS), torch.ones(OBSERVATIONS)),
    )


def random_batch(size: int, needs: Needs, rng: torch.Generator) -> Batch:
    """Transitions, or full windows of them, as `needs` says."""
    shape = (size, needs.context) if needs.context else (size,)
    window: dict[str, Any] = {}
    if needs.context:
        window = {"timesteps": torch.arange(needs.context).expand(shape), "mask": torch.ones(shape, dtype=torch.bool)}
    return Batch(
        observations=torch.randn(*shape, OBSERVATIONS, generator=rng),
        actions=2 * torch.rand(*shape, ACTIONS, generator=rng) - 1,
        returns=100 * torch.rand(shape, generator=rng),
        rewards=torch.rand(shape, generator=rng),
        done=torch.rand(shape, generator=rng) < 0.01,
        indices=torch.arange(size),
        next_observations=torch.randn(*shape, OBSERVATIONS, generator=rng) if needs.next else None,
        **window,
    )
