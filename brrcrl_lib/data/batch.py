"""What training asks of data, and what it gets: `Source.sample(size, generator, needs) -> Batch`.

Datasets of vectors (vectors.py) and stores of frames (frame_source.py) are both a `Source`; no method asks which.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.limits import ENV_ID, RECORD, TEXT, Rule, check_fields, each, whole
from brrcrl_lib.base.settings import number
from brrcrl_lib.data.registry import DatasetError

KINDS = ("box", "discrete", "pixels")
"""What a method must be able to take: vectors and a box of actions, vectors and discrete actions, or frames."""


@dataclass(frozen=True)
class Needs:
    """What a method wants to see of each transition, beyond state, action, reward and return."""

    next: bool = False
    """The observation that followed."""
    context: int = 0
    """This many steps up to and including the sampled one, as a window; 0: single transitions."""


TRANSITIONS = Needs()
"""Single transitions, and nothing but what each has anyway."""


@dataclass(frozen=True)
class Batch:
    """A minibatch of transitions (s, a, r, s') with the discounted reward-to-go that followed s.

    With a context of K every field but `indices` has a further dimension K behind B, and `mask` says which of those
    steps belong to the episode of the last one.
    """

    observations: Tensor  # [B, k] float32, or [B, frames, height, width] uint8
    actions: Tensor  # [B, m] float32 of a box, or [B] int64 if discrete
    returns: Tensor  # [B] float32, discounted reward-to-go from s on
    rewards: Tensor  # [B] float32
    done: Tensor  # [B] bool: the task ended here, so nothing follows; False where the time limit cut the episode off
    indices: Tensor  # [B] int64, which transitions these are: named when a loss is not finite
    next_observations: Tensor | None = None  # like observations; None where nobody asked for them
    timesteps: Tensor | None = None  # [B, K] int64, 0 at the start of an episode; only with a context
    mask: Tensor | None = None  # [B, K] bool, False before the start of the episode; only with a context

    def to(self, device: torch.device | str) -> Batch:
        moved: dict[str, Any] = {item.name: getattr(self, item.name) for item in fields(self)}
        for name, value in moved.items():
            moved[name] = None if value is None else value.to(device, non_blocking=True)
        return Batch(**moved)


BOUND = Rule("a number, or infinite", lambda value: isinstance(value, int | float) and not math.isnan(value))
FACTS = {
    "dataset": TEXT,
    "observation_shape": each(whole(1, 1_000_000)),
    "discount": number(0, 1),
    "return_range": each(number(), 2),
    "return_quantiles": each(number()),
}
MORE_FACTS = {
    "env": ENV_ID,
    "reward_clip": number(0),
    "action_low": each(BOUND),
    "action_high": each(BOUND),
    "action_count": whole(1, 1_000_000),
    "play": RECORD,
    "fingerprint": TEXT,
}
"""What a checkpoint must say, and may say, about the data of its training."""


@dataclass(frozen=True)
class Facts:
    """What a method may know about its data before it sees a batch. All but `standardisation` is in the checkpoint."""

    dataset: str
    """Names the data in run directories; a run resumes only on the same."""
    env: str | None
    """Gymnasium id of the environment that the data came from."""
    observation_shape: tuple[int, ...]
    """(k,) for vectors, (frames, height, width) for pixels."""
    discount: float
    reward_clip: float | None
    """Rewards were clipped to [-c, c] before they were added up; None: they were not."""
    return_range: tuple[float, float]
    """Smallest and largest reward-to-go."""
    return_quantiles: tuple[float, ...]
    """Reward-to-go at 101 evenly spaced shares, from the smallest to the largest."""
    episode_returns: tuple[float, float] | None = None
    """Undiscounted return of the worst and of the best episode; None where nobody has added them up."""
    action_low: tuple[float, ...] | None = None
    """The box of actions, [m]; None for discrete actions."""
    action_high: tuple[float, ...] | None = None
    action_count: int | None = None
    """How many discrete actions there are, counted from 0; None for a box."""
    play: dict[str, Any] = field(default_factory=dict)
    """How the environment was presented: fields of AtariConfig for frames, nothing for vectors."""
    fingerprint: str | None = None
    """Distinguishes data of one name, where they can be made in different ways."""
    standardisation: tuple[Tensor, Tensor] | None = field(default=None, compare=False, repr=False)
    """Mean and standard deviation: of vectors each [k]; of frames [height, width] and one number for all pixels."""

    @property
    def kind(self) -> str:
        return "pixels" if len(self.observation_shape) == 3 else "box" if self.action_count is None else "discrete"

    def plain(self) -> dict[str, Any]:
        """Everything but the tensors, as JSON can hold it."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name != "standardisation"}

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> Facts:
        check_fields(values, "the facts about its data", FACTS, MORE_FACTS)
        low, high = values.get("action_low"), values.get("action_high")
        if values.get("action_count") is None and (low is None or high is None or len(low) != len(high)):
            raise KitError("the facts about its data state neither a box of actions nor how many there are")
        if len(values["observation_shape"]) not in (1, 3) or not values["return_quantiles"]:
            raise KitError("the facts about its data state no vectors or frames, or no returns")
        fitted: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        return cls(**fitted)


class Source(Protocol):
    """Anything that hands out batches."""

    @property
    def id(self) -> str: ...

    @property
    def device(self) -> torch.device:
        """Where batches are drawn; the generator that is handed to `sample` must live there too."""
        ...

    @property
    def rtg(self) -> Tensor:
        """Reward-to-go of every transition, [steps]."""
        ...

    def facts(self) -> Facts: ...

    def to(self, device: torch.device) -> Source:
        """The same data, on the device if that is where they are best drawn."""
        ...

    def top_fraction(self, share: float) -> Source:
        """The best `share` of the episodes by return."""
        ...

    def split(self, held_out: float, generator: torch.Generator) -> tuple[Source, Source]:
        """Whole episodes at random into (train, held out)."""
        ...

    def sample(self, size: int, generator: torch.Generator, needs: Needs = TRANSITIONS) -> Batch:
        """Transitions drawn uniformly with replacement."""
        ...


def return_facts(rtg: Tensor) -> dict[str, Any]:
    """The fields of `Facts` that reward-to-go [steps] decides."""
    values = rtg.detach().cpu().numpy()
    return {
        "return_range": (float(values.min()), float(values.max())),
        "return_quantiles": tuple(np.quantile(values, np.linspace(0, 1, 101)).round(4).tolist()),
    }


def best_share(returns: Tensor, share: float) -> Tensor:
    """The best `share` of the episodes with `returns` [n], at least one; of equal ones the earlier. In order."""
    if not 0 < share <= 1:
        raise KitError(f"the share of trajectories to keep must lie in (0, 1]; got {share}")
    count = max(1, math.ceil(share * len(returns) - 1e-9))
    return torch.sort(returns, descending=True, stable=True).indices[:count].sort().values


def random_split(name: str, episodes: int, held_out: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Episodes at random into (train, held out), both in order and with at least one; `name` is that of the data."""
    if not 0 < held_out < 1:
        raise KitError(f"the share of episodes to hold out must lie in (0, 1); got {held_out}")
    if episodes < 2:
        raise DatasetError(f"{name} has a single episode, which cannot be split")
    count = min(episodes - 1, max(1, round(held_out * episodes)))
    order = torch.randperm(episodes, generator=generator, device=generator.device)
    return order[count:].sort().values, order[:count].sort().values
