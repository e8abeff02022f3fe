"""What the discrete learners train on: anything that hands out batches of transitions.

`VectorData` puts an `OfflineDataset` behind the protocol, `FrameData` (frames.py) a store of uint8 observations
[B, 4, 84, 84]; nothing else in this package asks where a batch came from.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Protocol

import torch
from torch import Tensor

from brrcrl_lib.data.vectors import OfflineDataset


@dataclass(frozen=True)
class DiscreteBatch:
    """One minibatch of transitions (s, a, r, s') with the discounted reward-to-go that followed s."""

    observations: Tensor  # [B, k] float32, or [B, frames, height, width] uint8
    actions: Tensor  # [B] int64, from 0
    returns: Tensor  # [B] float32, discounted reward-to-go from s on
    rewards: Tensor  # [B] float32
    next_observations: Tensor | None  # like observations; None where nobody asked for them
    done: Tensor  # [B] bool: the task ended here, so nothing follows; False where the clock cut the episode off
    indices: Tensor  # [B] int64, which transitions these are: named when a loss is not finite

    def to(self, device: torch.device | str) -> DiscreteBatch:
        moved: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, value in moved.items():
            moved[name] = None if value is None else value.to(device, non_blocking=True)
        return DiscreteBatch(**moved)


class DiscreteData(Protocol):
    """A source of batches, and the few facts about it that a model is built from."""

    @property
    def id(self) -> str:
        """Names the data in run directories; a run resumes only on the same id."""
        ...

    @property
    def fingerprint(self) -> str | None:
        """Tells data of one id apart, where they can be made in different ways; a run resumes on the same only."""
        ...

    @property
    def env_id(self) -> str | None:
        """Gymnasium id of the environment it came from."""
        ...

    @property
    def play(self) -> dict[str, Any]:
        """How the environment was presented: fields of AtariConfig for frames, nothing for vectors."""
        ...

    @property
    def discount(self) -> float:
        """The discount of `returns` and `rtg`; the distributional learner uses it too."""
        ...

    @property
    def action_count(self) -> int: ...

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """(k,) for vectors, (frames, height, width) for pixels."""
        ...

    @property
    def reward_clip(self) -> float | None:
        """Rewards were clipped to [-c, c] before they were added up (1 on Atari); None: they were not."""
        ...

    @property
    def rtg(self) -> Tensor:
        """Reward-to-go of every transition, [steps], on the CPU: sets the range of the buckets."""
        ...

    def standardisation(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation: of vectors each [k]; of frames [height, width] and one number for all pixels."""
        ...

    def sample(self, batch_size: int, generator: torch.Generator) -> DiscreteBatch:
        """Transitions drawn uniformly with replacement; `generator` lives on the CPU."""
        ...


class VectorData:
    """An `OfflineDataset` of vectors with a discrete set of actions."""

    reward_clip: float | None = None
    fingerprint: str | None = None

    def __init__(self, dataset: OfflineDataset) -> None:
        if not dataset.discrete:
            raise ValueError(f"{dataset.id} has continuous actions; this model needs a discrete set of them")
        self.dataset = dataset
        if dataset.action_low[0] != 0:
            raise ValueError(f"the actions of {dataset.id} are counted from {int(dataset.action_low[0])}; use 0")
        self.action_count = int(dataset.action_high[0]) + 1
        self.play: dict[str, Any] = {}
        self._following = dataset.next_observations()

    @property
    def id(self) -> str:
        return self.dataset.id

    @property
    def env_id(self) -> str | None:
        return self.dataset.env_spec.id if self.dataset.env_spec else None

    @property
    def discount(self) -> float:
        return self.dataset.discount

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return tuple(self.dataset.observations.shape[1:])

    @property
    def rtg(self) -> Tensor:
        return self.dataset.rtg

    def standardisation(self) -> tuple[Tensor, Tensor]:
        return self.dataset.standardisation()

    def sample(self, batch_size: int, generator: torch.Generator) -> DiscreteBatch:
        return self.batch(self.dataset.sample(batch_size, generator))

    def batch(self, indices: Tensor) -> DiscreteBatch:
        """The transitions `indices` [B]."""
        data = self.dataset
        return DiscreteBatch(
            observations=data.observations[indices],
            actions=data.actions[indices],
            returns=data.rtg[indices],
            rewards=data.rewards[indices],
            next_observations=self._following[indices],
            done=data.terminations[indices],
            indices=indices,
        )
