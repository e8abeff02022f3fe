"""Rows of a grid, gathered under names that a reader knows.

A setting is a name and what its rows have in common (see `results.select`): {"max": {"target": "max"}, ...}.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from brrcrl_lib.study.claims.rows import episode_returns, newest
from brrcrl_lib.study.claims.scores import Interval, has_score, normalised_score
from brrcrl_lib.study.claims.statistics import difference, mean_interval, pool
from brrcrl_lib.study.experiments.results import AS_PLAYED, order_datasets, select, short_name
from brrcrl_lib.worlds import world_of

Settings = Mapping[str, Mapping[str, Any]]


def variants(differences: Settings, method: str = "br_rcrl") -> dict[str, dict[str, Any]]:
    """Settings that differ as said from how `method` (or the one they name) is played, and in nothing else."""
    return {
        name: {**AS_PLAYED[difference.get("method", method)], **difference} for name, difference in differences.items()
    }


def summarise(rows: pd.DataFrame, settings: Settings) -> pd.DataFrame:
    """One line per dataset and setting that has rows: mean return, score, each seed's mean return, and the interval.

    The interval is Student's over training seeds; it is not a number where there is one seed. The score is not a
    number where the environment has no reference score.
    """
    rows = newest(rows)
    chosen = {name: dict(iter(select(rows, **wanted).groupby("dataset"))) for name, wanted in settings.items()}
    return pd.DataFrame(
        [
            line(dataset, name, str(found[dataset]["env"].iloc[0]), episode_returns(found[dataset]).mean(axis=1))
            for dataset in order_datasets(rows["dataset"])
            for name, found in chosen.items()
            if dataset in found
        ]
    )


def line(dataset: str, setting: str, env: str, means: np.ndarray) -> dict[str, Any]:
    """What a table says of one setting, from the mean return of every training seed [seeds]."""
    interval = mean_interval(means) or Interval(float(means.mean()), np.nan, np.nan)
    return {
        "dataset": short_name(dataset),
        "setting": setting,
        "return": interval.estimate,
        "low": interval.low,
        "high": interval.high,
        "score": float(normalised_score(env, interval.estimate)) if has_score(env) else np.nan,
        "seeds": tuple(means),
        "decimals": world_of(env).decimals,
    }


def readable(summary: pd.DataFrame, value: str = "return") -> pd.DataFrame:
    """Settings down, datasets across: `mean [low, high]` in returns (the mean alone with one seed), or the score."""

    def text(line: pd.Series) -> str:
        if value == "score":
            return "-" if np.isnan(line["score"]) else f"{line['score']:.1f}"
        estimate, low, high = (f"{line[name]:,.{line['decimals']}f}" for name in ("return", "low", "high"))
        return estimate if np.isnan(line["low"]) else f"{estimate} [{low}, {high}]"

    shown = summary.assign(text=[text(line) for _, line in summary.iterrows()])
    table = shown.pivot(index="setting", columns="dataset", values="text").fillna("-")
    order = list(dict.fromkeys(summary["setting"]))
    table = table.loc[order, list(dict.fromkeys(summary["dataset"]))]
    return table.rename_axis(index=None, columns=None)


def over_datasets(rows: pd.DataFrame, settings: Settings) -> dict[str, Interval]:
    """Mean normalised score over datasets, with Student's interval over training seeds (none with a single seed).

    Only datasets on which every setting has rows take part, so that all are averaged over the same; and only those of
    environments with a reference score.
    """
    rows = newest(rows)
    known = rows["env"].astype(str).map(has_score).astype(bool)
    if not rows.empty and not known.any():
        raise ValueError(f"no scores to average: no reference score for {', '.join(sorted(set(rows['env'])))}")
    rows = rows[known]
    fewest = {
        dataset: min(len(select(rows, dataset=dataset, **wanted)) for wanted in settings.values())
        for dataset in order_datasets(rows["dataset"])
    }
    datasets = [dataset for dataset, count in fewest.items() if count]
    if not datasets:
        raise ValueError("no dataset has rows for every one of the settings")
    results = {}
    for name, wanted in settings.items():
        columns = [select(rows, dataset=dataset, **wanted) for dataset in datasets]
        scores = [
            normalised_score(str(column["env"].iloc[0]), episode_returns(column).mean(axis=1)) for column in columns
        ]
        pooled = pool([[difference(score, np.zeros_like(score), paired=True)] for score in scores])
        mean = float(np.mean([score.mean() for score in scores]))
        results[name] = (pooled.interval() if pooled else None) or Interval(mean, np.nan, np.nan)
    return results
