"""Scores: normalised returns, and averages over runs and tasks with honest intervals.

Scores of many runs are always an array [runs, tasks]. The interquartile mean and its stratified bootstrap follow
Agarwal et al. (2021), "Deep RL at the Edge of the Statistical Precipice".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from brrcrl_lib.base.config import did_you_mean
from brrcrl_lib.base.errors import KitError
from brrcrl_lib.worlds import WORLDS, Reference, world_of


def reference(env_id: str, *, paper: bool = False) -> Reference:
    """The two returns that mark 0 and 100; with `paper`, those that the paper's Table 2 seems to divide by."""
    world = world_of(env_id)
    found = world.paper_reference if paper else world.reference
    if found is None:
        known = [card.name for card in WORLDS if (card.paper_reference if paper else card.reference)]
        raise KitError(f"no reference score for '{env_id}'{did_you_mean(world.name, known)}")
    return found


def normalised_score(env_id: str, value: Any, *, paper: bool = False) -> Any:
    """Return(s) `value` on the scale 0 (random) to 100 (expert, or human)."""
    low, high, _ = reference(env_id, paper=paper)
    return 100 * (np.asarray(value, dtype=np.float64) - low) / (high - low)


def normalised_std(env_id: str, value: Any, *, paper: bool = False) -> Any:
    """Standard deviation(s) of returns on the same scale: scaled, never shifted."""
    low, high, _ = reference(env_id, paper=paper)
    return 100 * np.asarray(value, dtype=np.float64) / (high - low)


def has_score(env_id: str) -> bool:
    """Whether returns of this environment can be normalised."""
    return world_of(env_id).reference is not None


class Interval(NamedTuple):
    """An estimate and the ends of its confidence interval, which are not numbers where one seed cannot give any."""

    estimate: float
    low: float
    high: float

    def __str__(self) -> str:
        bare = f"{self.estimate:.1f}"
        return bare if np.isnan(self.low) else f"{bare} [{self.low:.1f}, {self.high:.1f}]"


def iqm(scores: Any) -> float:
    """Interquartile mean of scores [runs, tasks]: the mean of the middle half of all of them."""
    return float(_middle_mean(_check(scores).reshape(1, -1))[0])


def iqm_interval(
    scores: Any, rng: np.random.Generator, *, repetitions: int = 2000, confidence: float = 0.95
) -> Interval:
    """IQM of scores [runs, tasks] with a stratified bootstrap: runs are drawn anew within each task."""
    values = _check(scores)
    runs, tasks = values.shape
    if not 0 < confidence < 1:
        raise KitError(f"confidence must lie in (0, 1); got {confidence}")
    drawn = rng.integers(runs, size=(repetitions, runs, tasks))
    resampled = np.take_along_axis(values[None], drawn, axis=1)  # [repetitions, runs, tasks]
    means = _middle_mean(resampled.reshape(repetitions, -1))
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(iqm(values), float(low), float(high))


def _middle_mean(values: np.ndarray) -> np.ndarray:
    """Mean of each row [rows, n] without its lowest and its highest quarter (each rounded down to whole values)."""
    cut = values.shape[1] // 4
    return np.sort(values, axis=1)[:, cut : values.shape[1] - cut].mean(axis=1)


def _check(scores: Any) -> np.ndarray:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 2 or values.size == 0:
        raise ValueError(f"scores must have shape [runs, tasks], at least one of each; got {values.shape}")
    if not np.isfinite(values).all():
        raise KitError("scores hold values that are not finite; drop or repeat those runs")
    return values
