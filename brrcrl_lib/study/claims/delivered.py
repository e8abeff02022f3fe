"""Figure 5: the agent gets the return that it asks for; its target starts in the middle and rises.

Works on traces: one row per step with the target, and `observed`, the discounted reward-to-go that followed. A training
seed is the unit, as everywhere: its steps and episodes are averaged first. Gaps, errors and rises are in per cent of
the span: the distance between the smallest and the largest of all targets and observed returns of a dataset.

The match is judged by calibration: a seed's steps are sorted by target and cut into ten groups of equally many, and the
distance between mean target and mean observed return is averaged over the groups. A mean gap would not do, because
what is too high for low targets and too low for high ones cancels in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from brrcrl_lib.study.claims.decisions import Decision, decide, decide_alike, merge
from brrcrl_lib.study.claims.interest import INTERESTS
from brrcrl_lib.study.claims.rows import newest
from brrcrl_lib.study.claims.statistics import ALPHA, Effect, difference, mean_interval
from brrcrl_lib.study.experiments.results import RESULTS, order_datasets, read_trace, select, short_name
from brrcrl_lib.worlds import TIME_LIMIT, world_of

MEMORY = 300
"""Steps after which a reward has faded to 5% of its weight (0.99^300): the clock is felt that long before the end."""
BINS = 10
"""Groups of steps, by target, in which target and observed return are compared."""


def read_traces(rows: pd.DataFrame, folder: Path = RESULTS, discount: float = 0.99) -> dict[str, pd.DataFrame]:
    """Per dataset, the traces of all training seeds, with columns `seed`, `left` (steps to the end) and `cut`.

    `cut` is true in episodes that the clock ended; `near_cut` in their last 300 steps.
    """
    traces, rows = {}, newest(rows)
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


def per_seed(trace: pd.DataFrame, column: str) -> np.ndarray:
    """Mean of `column` over the steps (or episodes) of each training seed, [seeds]."""
    return trace.groupby("seed")[column].mean().to_numpy()


def against_zero(values: np.ndarray) -> Effect:
    """The effect of values [seeds] over nothing."""
    return difference(values, np.zeros_like(values), paired=True)


def span_of(trace: pd.DataFrame) -> float:
    values = trace[["observed", "target"]].to_numpy()
    return float(values.max() - values.min())


@dataclass(frozen=True)
class Match:
    """How far the observed return lies from the target on one dataset, steps near a cut left out."""

    error: Effect  # calibration error: |observed - target| of ten groups of steps by target, in per cent of the span
    gap: Effect  # observed - target, in per cent of the span
    reached: Effect  # per cent of the steps with observed >= target
    span: float  # range of targets and returns that occurred
    rmse: float  # of single steps, in per cent of the span
    correlation: float
    near_cut: float | None  # mean gap in the last 300 steps of episodes that the clock ended, in return
    share_cut: float  # of the episodes


def match(trace: pd.DataFrame, bins: int = BINS) -> Match:
    steps = trace.assign(gap=trace["observed"] - trace["target"], reached=trace["observed"] >= trace["target"])
    calm, ending, span = steps[~steps["near_cut"]], steps[steps["near_cut"]], span_of(trace)
    groups = tenths(trace, bins)
    errors = (groups["observed"] - groups["target"]).abs().groupby("seed").mean().to_numpy()
    episodes = trace.groupby(["seed", "episode"])["cut"].first()
    return Match(
        against_zero(100 * errors / span),
        against_zero(100 * per_seed(calm, "gap") / span),
        against_zero(100 * per_seed(calm, "reached")),
        span,
        float(100 * np.sqrt((calm["gap"] ** 2).mean()) / span),
        float(np.corrcoef(calm["target"], calm["observed"])[0, 1]),
        float(ending["gap"].mean()) if len(ending) else None,
        float(episodes.mean()),
    )


def match_decision(matches: Mapping[str, Match]) -> Decision:
    """On "the observed return matches the target": the calibration error is small against the range, everywhere."""
    errors = {name: found.error for name, found in matches.items()}
    claim = "the observed return matches the target (calibration error, per cent of the range)"
    return decide_alike(claim, errors, matters=INTERESTS["match"].points, decimals=1)


def match_table(matches: Mapping[str, Match], decision: Decision) -> pd.DataFrame:
    lines = {
        name: {
            "calibration error": _percent(found.error, sign=""),
            "RMSE of a step": f"{found.rmse:.0f}%",
            "target reached": _percent(found.reached, sign=""),
            "mean gap": _percent(found.gap),
            "correlation": f"{found.correlation:.2f}",
            "episodes cut": f"{found.share_cut:.0%}",
            "gap near the cut": "-" if found.near_cut is None else f"{found.near_cut:+.0f}",
            "matches": decision.findings[name],
        }
        for name, found in matches.items()
    }
    return pd.DataFrame(lines).T


def _percent(effect: Effect, sign: str = "+") -> str:
    interval = "" if effect.error is None else f" [{effect.low:{sign}.0f}, {effect.high:{sign}.0f}]"
    return f"{effect.estimate:{sign}.0f}{interval}%"


def tenths(trace: pd.DataFrame, bins: int = BINS) -> pd.DataFrame:
    """Mean `target` and `observed` of `bins` groups of equally many steps with like targets, by seed and group.

    Every seed has its own groups; steps near a cut are left out.
    """
    calm = trace[~trace["near_cut"]]
    ranks = calm.groupby("seed")["target"].rank(method="first") - 1
    group = (bins * ranks // calm.groupby("seed")["target"].transform("size")).astype(int).rename("group")
    return calm.groupby(["seed", group])[["target", "observed"]].mean()


def calibration(trace: pd.DataFrame, bins: int = BINS) -> pd.DataFrame:
    """The groups of `tenths`, averaged over seeds, and Student's 95% interval of the observed return above the target.

    `low` and `high` are the ends of that interval, put on the mean target; not numbers with a single seed.
    """
    groups = tenths(trace, bins)
    table = groups.groupby("group").mean()
    gaps = (groups["observed"] - groups["target"]).unstack("group")  # [seeds, bins]
    found = {group: mean_interval(gaps[group].dropna()) for group in gaps}
    ends = {group: (interval.low, interval.high) if interval else (np.nan, np.nan) for group, interval in found.items()}
    low, high = (table["target"] + pd.Series({group: pair[end] for group, pair in ends.items()}) for end in (0, 1))
    return table.assign(low=low, high=high)


@dataclass(frozen=True)
class Rise:
    """Where the target starts and where it goes."""

    start: float  # mean target of the first step
    place: Effect  # per cent of all targets of the dataset's episodes that lie below the start, minus 50
    rise: Effect  # mean target between steps 100 and 300 minus that of the first step, in per cent of the span


def rise(trace: pd.DataFrame) -> Rise | None:
    """None where no episode lasts 100 steps."""
    first = trace[trace["step"] == 0].set_index(["seed", "episode"])["target"]
    later = trace[trace["step"].between(100, 300) & ~trace["near_cut"]]
    if later.empty:
        return None
    mean = later.groupby(["seed", "episode"])["target"].mean()
    change = (mean - first.loc[mean.index]).rename("rise").reset_index()
    below = [
        100 * float((one["target"] < one.loc[one["step"] == 0, "target"].mean()).mean()) - 50
        for _, one in trace.groupby("seed")
    ]
    return Rise(
        float(first.mean()),
        against_zero(np.array(below)),
        against_zero(100 * per_seed(change, "rise") / span_of(trace)),
    )


def rise_decision(rises: Mapping[str, Rise]) -> Decision:
    """On "targets start in the middle and rise": two parts, each at half of the error that the claim may make."""
    risen = decide(
        "", {f"{name} (rises)": found.rise for name, found in rises.items()},
        matters=INTERESTS["rise"].points, alpha=ALPHA / 2, decimals=1,
    )  # fmt: skip
    placed = decide_alike(
        "", {f"{name} (starts in the middle)": found.place for name, found in rises.items()},
        matters=INTERESTS["middle"].points, alpha=ALPHA / 2, decimals=1,
    )  # fmt: skip
    return merge("the target starts in the middle and rises (per cent)", placed, risen)


def rise_table(rises: Mapping[str, Rise]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            name: {
                "first target": f"{found.start:.0f}",
                "targets below it": f"{found.place.estimate + 50:.0f}%",
                "rise by steps 100 to 300, of the range": _percent(found.rise),
            }
            for name, found in rises.items()
        }
    ).T
