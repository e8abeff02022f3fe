"""Rows of a grid, gathered under names that a reader knows.

A setting is a name and what its rows have in common (see `results.select`): {"max": {"target": "max"}, ...}.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from brrcrl_lib.study.claims.scores import Interval, has_score, iqm_interval, normalised_score
from brrcrl_lib.study.claims.verdicts import Verdict, episode_returns, judge, mean_interval
from brrcrl_lib.study.experiments.results import AS_PLAYED, order_datasets, select, short_name
from brrcrl_lib.worlds import world_of

Settings = Mapping[str, Mapping[str, Any]]


def variants(differences: Settings, method: str = "br_rcrl") -> dict[str, dict[str, Any]]:
    """Settings that differ as said from how `method` (or the one they name) is played, and in nothing else."""
    return {
        name: {**AS_PLAYED[difference.get("method", method)], **difference} for name, difference in differences.items()
    }


def summarise(rows: pd.DataFrame, settings: Settings) -> pd.DataFrame:
    """One line per dataset and setting that has rows: mean return and 95% interval, score, each seed's mean return.

    The score is not a number where the environment has no reference score.
    """
    lines = []
    for dataset in order_datasets(rows["dataset"]):
        for name, wanted in settings.items():
            chosen = select(rows, dataset=dataset, **wanted)
            if chosen.empty:
                continue
            interval, env = mean_interval(chosen), str(chosen["env"].iloc[0])
            lines.append(
                {
                    "dataset": short_name(dataset),
                    "setting": name,
                    "return": interval.estimate,
                    "low": interval.low,
                    "high": interval.high,
                    "score": float(normalised_score(env, interval.estimate)) if has_score(env) else np.nan,
                    "seeds": tuple(episode_returns(chosen).mean(1)),
                    "decimals": world_of(env).decimals,
                }
            )
    return pd.DataFrame(lines)


def readable(summary: pd.DataFrame, value: str = "return") -> pd.DataFrame:
    """Settings down, datasets across: `mean [low, high]` in returns, or the normalised score."""

    def text(line: pd.Series) -> str:
        if value == "score":
            return "-" if np.isnan(line["score"]) else f"{line['score']:.1f}"
        estimate, low, high = (f"{line[name]:,.{line['decimals']}f}" for name in ("return", "low", "high"))
        return f"{estimate} [{low}, {high}]"

    shown = summary.assign(text=[text(line) for _, line in summary.iterrows()])
    table = shown.pivot(index="setting", columns="dataset", values="text").fillna("-")
    order = list(dict.fromkeys(summary["setting"]))
    table = table.loc[order, list(dict.fromkeys(summary["dataset"]))]
    return table.rename_axis(index=None, columns=None)


def over_datasets(rows: pd.DataFrame, settings: Settings) -> dict[str, Interval]:
    """Interquartile mean of normalised scores over training seeds and datasets, with a stratified bootstrap.

    Only datasets on which every setting has equally many seeds take part, so that all are averaged over the same; and
    only those of environments with a reference score.
    """
    known = rows["env"].astype(str).map(has_score).astype(bool)
    if not rows.empty and not known.any():
        raise ValueError(f"no scores to average: no reference score for {', '.join(sorted(set(rows['env'])))}")
    rows = rows[known]
    counts = {
        dataset: {len(select(rows, dataset=dataset, **wanted)) for wanted in settings.values()}
        for dataset in order_datasets(rows["dataset"])
    }
    datasets = [dataset for dataset, numbers in counts.items() if len(numbers) == 1 and 0 not in numbers]
    if not datasets:
        raise ValueError("no dataset has rows for every one of the settings")
    seeds = min(min(counts[dataset]) for dataset in datasets)
    results = {}
    for name, wanted in settings.items():
        columns = [select(rows, dataset=dataset, **wanted).sort_values("train_seed") for dataset in datasets]
        scores = np.stack([column["score"].to_numpy()[:seeds] for column in columns], axis=1)  # [seeds, datasets]
        results[name] = iqm_interval(scores, np.random.default_rng(0))
    return results


def judge_settings(
    claim: str,
    rows: pd.DataFrame,
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    datasets: Sequence[str] | None = None,
) -> Verdict:
    """The verdict on "`ours` earns more than `theirs`", on every dataset (or the given ones) that has rows for both."""
    pairs = {}
    for dataset in order_datasets(datasets if datasets is not None else rows["dataset"]):
        pair = (select(rows, dataset=dataset, **ours), select(rows, dataset=dataset, **theirs))
        if not pair[0].empty and not pair[1].empty:
            pairs[short_name(dataset)] = pair
    if not pairs:
        raise ValueError(f"no dataset has rows for both sides of the claim: {claim}")
    return judge(claim, pairs)
