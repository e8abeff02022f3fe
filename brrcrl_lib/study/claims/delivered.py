"""Figure 5: the agent gets the return that it asks for; its target starts in the middle and rises.

Works on traces: one row per step with the target, and `observed`, the discounted reward-to-go that followed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from brrcrl_lib.study.claims.scores import Interval
from brrcrl_lib.study.claims.verdicts import WORDS
from brrcrl_lib.study.experiments.results import RESULTS, order_datasets, read_trace, select, short_name
from brrcrl_lib.worlds import TIME_LIMIT, world_of

MEMORY = 300
"""Steps after which a reward has faded to 5% of its weight (0.99^300): the clock is felt that long before the end."""
TOLERANCE = 0.1
"""A target counts as met if the interval of the mean gap lies within a tenth of the span: the distance between the
smallest and the largest of all targets and observed returns in the traces (not of the returns in the data)."""
REPETITIONS = 2000


def read_traces(rows: pd.DataFrame, folder: Path = RESULTS, discount: float = 0.99) -> dict[str, pd.DataFrame]:
    """Per dataset, the traces of all training seeds, with columns `seed`, `left` (steps to the end) and `cut`.

    `cut` is true in episodes that the clock ended; `near_cut` in their last 300 steps.
    """
    traces = {}
    for dataset in order_datasets(rows["dataset"]):
        chosen = select(rows, dataset=dataset).sort_values("train_seed")
        parts = [
            read_trace(str(key), discount, folder).assign(seed=int(seed))
            for key, seed in zip(chosen["key"], chosen["train_seed"], strict=True)
        ]
        trace = pd.concat(parts, ignore_index=True)
        length = trace.groupby(["seed", "episode"])["step"].transform("size")
        trace["left"] = length - trace["step"]
        trace["cut"] = length >= (world_of(str(chosen["env"].iloc[0])).time_limit or TIME_LIMIT)
        trace["near_cut"] = trace["cut"] & (trace["left"] <= MEMORY)
        traces[short_name(dataset)] = trace
    return traces


def bootstrap(trace: pd.DataFrame, column: str, seed: int = 0) -> Interval:
    """Mean of `column` over steps with a 95% interval: training seeds drawn anew, then whole episodes within them."""
    groups = trace.groupby(["seed", "episode"])[column].agg(["sum", "size"])
    seeds = [part.to_numpy() for _, part in groups.groupby("seed")]  # each [episodes, (sum, steps)]
    rng = np.random.default_rng(seed)
    means = np.empty(REPETITIONS)
    for repetition in range(REPETITIONS):
        drawn = [seeds[index] for index in rng.integers(len(seeds), size=len(seeds))]
        total = sum(part[rng.integers(len(part), size=len(part))].sum(0) for part in drawn)
        means[repetition] = total[0] / total[1]
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(trace[column].mean()), float(low), float(high))


@dataclass(frozen=True)
class Match:
    """How far what came lies from what was asked for, on one dataset, steps near a cut left out."""

    gap: Interval  # observed - target, in return
    span: float  # range of targets and returns that occurred
    correlation: float
    near_cut: float | None  # mean gap in the last 300 steps of episodes that the clock ended
    share_cut: float  # of the episodes

    @property
    def met(self) -> bool:
        """The whole interval of the mean gap lies within the tolerance."""
        return max(abs(self.gap.low), abs(self.gap.high)) <= TOLERANCE * self.span


def match(trace: pd.DataFrame) -> Match:
    steps = trace.assign(gap=trace["observed"] - trace["target"])
    calm, ending = steps[~steps["near_cut"]], steps[steps["near_cut"]]
    values = steps[["observed", "target"]].to_numpy()
    episodes = trace.groupby(["seed", "episode"])["cut"].first()
    return Match(
        bootstrap(calm, "gap"),
        float(values.max() - values.min()),
        float(np.corrcoef(calm["target"], calm["observed"])[0, 1]),
        float(ending["gap"].mean()) if len(ending) else None,
        float(episodes.mean()),
    )


def match_word(matches: Mapping[str, Match]) -> str:
    """The verdict on "the observed return matches the target"."""
    met = [found.met for found in matches.values()]
    return WORDS[0] if all(met) else (WORDS[1] if any(met) else WORDS[2])


def match_table(matches: Mapping[str, Match]) -> pd.DataFrame:
    lines = {
        name: {
            "observed - target": f"{found.gap.estimate:+.0f} [{found.gap.low:+.0f}, {found.gap.high:+.0f}]",
            "of the range": f"{found.gap.estimate / found.span:+.0%}",
            "correlation": f"{found.correlation:.2f}",
            "episodes cut": f"{found.share_cut:.0%}",
            "gap near the cut": "-" if found.near_cut is None else f"{found.near_cut:+.0f}",
            "met": "yes" if found.met else "no",
        }
        for name, found in matches.items()
    }
    return pd.DataFrame(lines).T


@dataclass(frozen=True)
class Rise:
    """Where the target starts and where it goes."""

    start: float  # mean target of the first step
    place: float  # share of all targets of the dataset's episodes that lie below the start
    rise: Interval  # mean target between steps 100 and 300 minus that of the first step, per episode


def rise(trace: pd.DataFrame) -> Rise | None:
    """None where no episode lasts 100 steps."""
    first = trace[trace["step"] == 0].set_index(["seed", "episode"])["target"]
    later = trace[trace["step"].between(100, 300) & ~trace["near_cut"]]
    if later.empty:
        return None
    mean = later.groupby(["seed", "episode"])["target"].mean()
    change = (mean - first.loc[mean.index]).rename("rise").reset_index()
    return Rise(float(first.mean()), float((trace["target"] < first.mean()).mean()), bootstrap(change, "rise"))


def rise_word(rises: Mapping[str, Rise]) -> str:
    """The verdict on "targets start in the middle and rise": the rise is clear, and a tenth lies on either side."""
    if not rises:
        return "cannot be judged: no episode lasts 100 steps"
    good = [found.rise.low > 0 and 0.1 <= found.place <= 0.9 for found in rises.values()]
    return WORDS[0] if all(good) else (WORDS[1] if any(good) else WORDS[2])
