"""From rewards to reward-to-go (RTG), which `rewards.py` does, and from RTG to buckets.

A bucket i holds the returns with lower_edge_i <= R < lower_edge_{i+1}; the last one is open above. So the
probability of "at least lower_edge_i" is exactly the sum of the buckets from i on, and the paper's theta_delta
(the largest r with P(R >= r | s) >= delta, Sec. 4.2) is an index, found for a whole batch at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from brrcrl_lib.base.config import did_you_mean
from brrcrl_lib.base.errors import KitError
from brrcrl_lib.rewards import reward_to_go
from brrcrl_lib.worlds import PAPER_HIGH, WORLDS, DatasetName

__all__ = ["PAPER_HIGH", "SCHEMES", "Outside", "ReturnBuckets", "reward_to_go"]

SCHEMES = {
    "equal_width": "count bins of (high - low) / count, as the authors' code has it",
    "paper_grid": "b_i = low + i * (high - low) / (count - 1), as the paper's Sec. 4.3 writes it",
}


class Outside(NamedTuple):
    """How many returns lie outside the buckets' range."""

    below: int
    above: int
    total: int

    def __str__(self) -> str:
        return f"{self.below:,} of {self.total:,} returns lie below the range, {self.above:,} above it"


@dataclass(frozen=True)
class ReturnBuckets:
    """The discretised returns B of the paper (Sec. 4.3): `count` buckets between V_min = low and V_max = high."""

    low: float
    """V_min: the lower edge of the first bucket."""
    high: float
    """V_max: the upper end of the last bucket (equal_width), or its lower edge (paper_grid)."""
    count: int = 80
    """|B|, the number of buckets."""
    scheme: str = "equal_width"
    """equal_width (the authors' code) or paper_grid (the paper's formula)."""

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise KitError(f"unknown bucket scheme '{self.scheme}'{did_you_mean(self.scheme, SCHEMES)}")
        if self.count < 2:
            raise KitError(f"returns need at least 2 buckets to differ in; got {self.count}")
        if not (np.isfinite(self.low) and np.isfinite(self.high) and self.low < self.high):
            raise KitError(f"V_min must lie below V_max, both finite; got V_min {self.low} and V_max {self.high}")

    @classmethod
    def from_data(
        cls,
        rtg: Any,
        count: int = 80,
        *,
        low: float | None = None,
        high: float | None = None,
        scheme: str = "equal_width",
    ) -> ReturnBuckets:
        """Buckets that hold every value of `rtg` [steps].

        low: 0, as in the paper, or the smallest RTG where that is negative. Zero belongs into the range because the
        RTG of an episode's last step is a single reward. high: a hair above the largest RTG, so nothing is clipped.
        Differs from the paper: its V_max = 1200 leaves most buckets empty on Hopper, because no RTG exceeds 350.
        """
        values = np.asarray(rtg.detach().cpu() if isinstance(rtg, Tensor) else rtg, dtype=np.float64)
        if values.size == 0 or not np.isfinite(values).all():
            raise KitError("the range of the buckets needs at least one reward-to-go, and finite ones only")
        lowest, highest = float(values.min()), float(values.max())
        low = min(0.0, lowest) if low is None else low
        if high is None:
            if highest <= low:
                raise KitError(f"no reward-to-go exceeds V_min = {low}; pass low and high to say what may differ")
            high = highest + 1e-6 * (highest - low)
        return cls(low, high, count, scheme)

    @classmethod
    def from_authors(cls, dataset_id: str, count: int = 80, scheme: str = "equal_width") -> ReturnBuckets:
        """V_min = 0 and the V_max that the authors' code sets for this dataset, such as `.../hopper/medium-v2`."""
        name = DatasetName.parse(dataset_id)
        high = name.world.authors_high.get(name.kind.lower())
        if high is None:
            known = [f"{world.name}/{kind}" for world in WORLDS for kind in world.authors_high]
            raise KitError(f"the authors' code sets no V_max for '{dataset_id}' (it does for {', '.join(known)})")
        return cls(0.0, high, count, scheme)

    @property
    def width(self) -> float:
        return (self.high - self.low) / (self.count if self.scheme == "equal_width" else self.count - 1)

    def lower_edges(self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Tensor:
        """Smallest return of each bucket, [count]."""
        return self.low + self.width * torch.arange(self.count, device=device, dtype=dtype)

    def encode(self, returns: Tensor) -> Tensor:
        """Bucket of each return, int64 of the same shape; what lies outside goes to the nearest end bucket."""
        values = returns if returns.dtype in (torch.float32, torch.float64) else returns.float()
        edges = self.lower_edges(values.device, values.dtype)
        return torch.bucketize(values, edges[1:], right=True)

    def decode(self, indices: Tensor) -> Tensor:
        """The return that stands for each bucket: its centre (equal_width), or the grid point (paper_grid)."""
        shift = 0.5 if self.scheme == "equal_width" else 0.0
        return self.low + self.width * (indices.float() + shift)

    def tail(self, probabilities: Tensor) -> Tensor:
        """P(R >= lower_edge_i) for each i, [..., count], from the buckets' probabilities [..., count]."""
        self._check_last(probabilities)
        return probabilities.flip(-1).cumsum(-1).flip(-1)

    def threshold(self, probabilities: Tensor, delta: float | Tensor) -> Tensor:
        """theta_delta as a bucket index [...]: the largest i with P(R >= lower_edge_i) >= delta (Sec. 4.2).

        probabilities: [..., count]; delta: one number in (0, 1], or a tensor [...] of them. Index 0 always qualifies.
        """
        if isinstance(delta, Tensor):
            delta = delta.unsqueeze(-1)
        elif not 0 < delta <= 1:
            raise KitError(f"delta must lie in (0, 1]; got {delta}")
        indices = torch.arange(self.count, device=probabilities.device)
        return torch.where(self.tail(probabilities) >= delta, indices, 0).amax(-1)

    def count_outside(self, returns: Any) -> Outside:
        """How many of `returns` [any shape] `encode` would clip."""
        values = torch.as_tensor(returns)
        return Outside(int((values < self.low).sum()), int((values > self.high).sum()), values.numel())

    def _check_last(self, probabilities: Tensor) -> None:
        if probabilities.shape[-1] != self.count:
            raise ValueError(f"expected {self.count} buckets in the last dimension; got {tuple(probabilities.shape)}")
