"""Scores: normalised returns, and averages over runs and tasks with honest intervals.

Scores of many runs are always an array [runs, tasks]. The interquartile mean and its stratified bootstrap follow
Agarwal et al. (2021), "Deep RL at the Edge of the Statistical Precipice".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from brrcrl_lib.base.config import did_you_mean


class Reference(NamedTuple):
    """Two returns that mark 0 and 100 on the scale of an environment."""

    low: float  # a random policy
    high: float  # an expert, or a human player
    source: str


REFERENCES = {
    "hopper": Reference(-20.272305, 3234.3, "d4rl"),
    "halfcheetah": Reference(-280.178953, 12135.0, "d4rl"),
    "walker2d": Reference(1.629008, 4592.3, "d4rl"),
    "breakout": Reference(1.7, 30.5, "atari-human"),
    "qbert": Reference(163.9, 13455.0, "atari-human"),
    "pong": Reference(-20.7, 14.6, "atari-human"),
    "seaquest": Reference(68.4, 42054.7, "atari-human"),
}
"""Where 0 and 100 lie.

`d4rl`: D4RL's reference returns. They were measured in v2-era environments; on v5 they are a convention.
`atari-human`: a random policy and a human tester, both started with random no-ops; the pair that DQN Zoo, Hafner et
al. (2020) and Decision Transformer divide by. The human scores are those of Wang et al. (2016).
"""

PAPER_REFERENCES = {
    "breakout": Reference(1.7, 31.8, "mnih-2015"),
    "qbert": Reference(163.9, 13455.0, "mnih-2015"),
    "pong": Reference(-20.7, 9.3, "mnih-2015"),
    "seaquest": Reference(68.4, 20182.0, "mnih-2015"),
}
"""The human scores of Mnih et al. (2015), which the paper's Table 2 seems to divide by, although it cites Hafner et al.

Its 138.0 in Pong cannot be had on the other scale, where a perfect game is worth 118.1; on this one it is a raw score
of 20.7. Compare with that table in these units only.
"""


def reference(env_id: str, table: dict[str, Reference] = REFERENCES) -> Reference:
    """The reference returns of `Hopper-v5`, `hopper`, `ALE/Breakout-v5`, `BreakoutNoFrameskip-v4`, ..."""
    family = env_id.split("/")[-1].split("-")[0].lower().removesuffix("noframeskip")
    if family not in table:
        raise ValueError(f"no reference returns for '{env_id}'{did_you_mean(family, table)}")
    return table[family]


def normalised_score(env_id: str, value: Any, table: dict[str, Reference] = REFERENCES) -> Any:
    """Return(s) `value` on the scale 0 (random) to 100 (expert, or human)."""
    low, high, _ = reference(env_id, table)
    return 100 * (np.asarray(value, dtype=np.float64) - low) / (high - low)


def normalised_std(env_id: str, value: Any, table: dict[str, Reference] = REFERENCES) -> Any:
    """Standard deviation(s) of returns on the same scale: scaled, never shifted."""
    low, high, _ = reference(env_id, table)
    return 100 * np.asarray(value, dtype=np.float64) / (high - low)


class Interval(NamedTuple):
    """An estimate and the ends of its confidence interval."""

    estimate: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.estimate:.1f} [{self.low:.1f}, {self.high:.1f}]"


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
        raise ValueError(f"confidence must lie in (0, 1); got {confidence}")
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
        raise ValueError("scores hold values that are not finite; drop or repeat those runs")
    return values
