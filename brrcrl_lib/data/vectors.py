"""`OfflineDataset`: transitions of vectors, whole episodes in memory; a `Source` for every method."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import gymnasium as gym
import torch
from gymnasium.envs.registration import EnvSpec
from torch import Tensor

from brrcrl_lib.base.environments import make_env
from brrcrl_lib.data.batch import TRANSITIONS, Batch, Facts, Needs, best_share, random_split, return_facts
from brrcrl_lib.data.registry import DatasetError
from brrcrl_lib.returns import ReturnBuckets, reward_to_go

STEP_FIELDS = ("observations", "actions", "rewards", "rtg", "timesteps", "terminations", "truncations")
EPISODE_FIELDS = ("final_observations", "lengths", "seeds", "returns")


@dataclass(frozen=True, eq=False, repr=False)
class OfflineDataset:
    """Transitions of many episodes, one after another; `len` is the number of steps."""

    id: str
    env_spec: EnvSpec | None
    discount: float
    observations: Tensor  # [steps, k] float32
    actions: Tensor  # [steps, m] float32, or [steps] int64 for discrete actions
    rewards: Tensor  # [steps] float32
    rtg: Tensor  # [steps] float32, discounted, from this step's reward on
    timesteps: Tensor  # [steps] int64, 0 at the start of each episode
    episode_ids: Tensor  # [steps] int64
    terminations: Tensor  # [steps] bool: the task ended (a fall)
    truncations: Tensor  # [steps] bool: the time limit ended it
    final_observations: Tensor  # [episodes, k]: what followed the last step
    lengths: Tensor  # [episodes] int64
    starts: Tensor  # [episodes] int64: first step of each episode
    seeds: Tensor  # [episodes] int64; -1 where unknown
    returns: Tensor  # [episodes] float32, undiscounted
    action_low: Tensor  # [m]; the smallest action, [1], where they are discrete
    action_high: Tensor  # [m]; the largest action, [1], where they are discrete
    card: dict[str, Any]  # what is known about where the data came from
    reward_clip: float | None = None  # rewards were clipped to [-c, c] before they were added up

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def episodes(self) -> int:
        return len(self.lengths)

    @property
    def discrete(self) -> bool:
        """True if actions are numbers of a set instead of vectors."""
        return not self.actions.is_floating_point()

    @property
    def device(self) -> torch.device:
        return self.observations.device

    def to(self, device: torch.device | str) -> OfflineDataset:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)}
        return replace(self, **moved)

    def next_observations(self) -> Tensor:
        """The observation after each step, [steps, k]."""
        following = torch.roll(self.observations, -1, 0)
        following[self.starts + self.lengths - 1] = self.final_observations
        return following

    # -- as a source of batches ----------------------------------------------------------------------------------

    def facts(self) -> Facts:
        count = None
        if self.discrete:
            if self.action_low[0] != 0:
                raise DatasetError(f"the actions of {self.id} are counted from {int(self.action_low[0])}; use 0")
            count = int(self.action_high[0]) + 1
        return Facts(
            dataset=self.id,
            env=self.env_spec.id if self.env_spec else None,
            observation_shape=tuple(self.observations.shape[1:]),
            discount=self.discount,
            reward_clip=self.reward_clip,
            **return_facts(self.rtg),
            episode_returns=(float(self.returns.min()), float(self.returns.max())),
            action_low=None if self.discrete else tuple(self.action_low.tolist()),
            action_high=None if self.discrete else tuple(self.action_high.tolist()),
            action_count=count,
            standardisation=self.standardisation(),
        )

    def sample(self, size: int, generator: torch.Generator, needs: Needs = TRANSITIONS) -> Batch:
        """Steps drawn uniformly with replacement."""
        return self.batch(torch.randint(len(self), (size,), generator=generator, device=generator.device), needs)

    def batch(self, indices: Tensor, needs: Needs = TRANSITIONS) -> Batch:
        """The transitions `indices` [B], or the windows of `needs.context` steps that end with them."""
        steps, window = indices, {}
        if needs.context:
            ago = torch.arange(needs.context - 1, -1, -1, device=indices.device)  # [K]
            mask = self.timesteps[indices].unsqueeze(-1) >= ago  # [B, K]
            steps = indices.unsqueeze(-1) - torch.where(mask, ago, 0)  # what is masked repeats the sampled step
            window = {"timesteps": self.timesteps[steps], "mask": mask}
        return Batch(
            observations=self.observations[steps],
            actions=self.actions[steps],
            returns=self.rtg[steps],
            rewards=self.rewards[steps],
            done=self.terminations[steps],
            indices=indices,
            next_observations=self._following[steps] if needs.next else None,
            **window,
        )

    @cached_property
    def _following(self) -> Tensor:
        return self.next_observations()

    def clip_rewards(self, limit: float) -> OfflineDataset:
        """The same with rewards clipped to [-limit, limit] before they are added up; `returns` stay raw."""
        rewards = self.rewards.clamp(-limit, limit)
        rtg = reward_to_go(rewards.cpu().numpy(), self.lengths.cpu().numpy(), self.discount)
        return replace(
            self, rewards=rewards, rtg=torch.as_tensor(rtg, dtype=torch.float32).to(self.device), reward_clip=limit
        )

    def standardisation(self, floor: float = 1e-3) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the observations, each [k]; the latter at least `floor`."""
        std, mean = torch.std_mean(self.observations, 0, correction=0)
        return mean, std.clamp(min=floor)

    def buckets(self, count: int = 80, scheme: str = "equal_width") -> ReturnBuckets:
        """Return buckets whose range is this dataset's own."""
        return ReturnBuckets.from_data(self.rtg, count, scheme=scheme)

    def make_env(self, **options: Any) -> gym.Env:
        """The environment the data came from, by the dataset's own spec."""
        if self.env_spec is None:
            raise DatasetError(f"{self.id} does not say which environment it came from")
        return make_env(self.env_spec, **options)

    def select(self, chosen: Tensor) -> OfflineDataset:
        """The dataset of the episodes `chosen` [n], in that order, numbered anew."""
        chosen = chosen.to(self.device)
        lengths = self.lengths[chosen]
        starts = lengths.cumsum(0) - lengths
        numbers = torch.repeat_interleave(torch.arange(len(chosen), device=self.device), lengths)
        steps = torch.arange(len(numbers), device=self.device) + (self.starts[chosen] - starts)[numbers]
        return replace(
            self,
            episode_ids=numbers,
            starts=starts,
            **{name: getattr(self, name)[steps] for name in STEP_FIELDS},
            **{name: getattr(self, name)[chosen] for name in EPISODE_FIELDS},
        )

    def top_fraction(self, share: float) -> OfflineDataset:
        """The best `share` of the trajectories by return, at least one; of equal ones the earlier. Order is kept."""
        return self.select(best_share(self.returns, share))

    def split(self, held_out: float, generator: torch.Generator) -> tuple[OfflineDataset, OfflineDataset]:
        """Whole episodes at random into (train, held out); both get at least one. Order is kept."""
        training, held = random_split(self.id, self.episodes, held_out, generator)
        return self.select(training), self.select(held)

    def __repr__(self) -> str:
        env = self.env_spec.id if self.env_spec else "environment unknown"
        lines = [
            f"OfflineDataset '{self.id}' ({env}, discount {self.discount:g}, on {self.device})",
            f"  {len(self):,} steps in {self.episodes:,} episodes",
            f"  observations {tuple(self.observations.shape)}, actions {tuple(self.actions.shape)}"
            + (" discrete" if self.discrete else ""),
        ]
        if self.device.type != "meta":
            lines += [
                f"  ended by the task {int(self.terminations.sum()):,}, by the clock {int(self.truncations.sum()):,}",
                f"  return  {_distribution(self.returns)}",
                f"  rtg     {_distribution(self.rtg)}",
            ]
        return "\n".join(lines)


def _distribution(values: Tensor) -> str:
    """How `values` [n] are spread."""
    ordered = values.double().cpu().sort().values
    shares = {"min": 0, "10%": 0.1, "median": 0.5, "90%": 0.9, "max": 1}
    points = {name: ordered[round(share * (len(ordered) - 1))] for name, share in shares.items()}
    return " | ".join(f"{name} {value:.1f}" for name, value in (points | {"mean": ordered.mean()}).items())
