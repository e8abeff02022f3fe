"""Figure 4, left: as delta decreases, the performance improves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from brrcrl_lib.study.claims.summary import judge_settings
from brrcrl_lib.study.claims.verdicts import Verdict
from brrcrl_lib.study.experiments.grids import DELTAS
from brrcrl_lib.study.experiments.results import order_datasets, select, short_name


def at(delta: float, objective: str = "authors") -> dict[str, Any]:
    return {"objective": objective, "delta": delta}


def sweep(objective: str) -> dict[str, dict[str, Any]]:
    """Every delta as a setting, from the most modest to the most ambitious."""
    return {f"{delta:g}": at(delta, objective) for delta in DELTAS}


def verdicts(rows: pd.DataFrame, objective: str = "authors") -> dict[str, Verdict]:
    """Does asking for more help down to 0.1, and does it go on helping below?"""
    return {
        "down to 0.1": judge_settings(
            f"delta 0.1 earns more than 0.9 ({objective})", rows, at(0.1, objective), at(0.9, objective)
        ),
        "below 0.1": judge_settings(
            f"delta 0.001 earns more than 0.1 ({objective})", rows, at(0.001, objective), at(0.1, objective)
        ),
    }


def trend(rows: pd.DataFrame) -> pd.DataFrame:
    """Per dataset and objective: the rank correlation between ambition (1 - delta) and return, and the best delta.

    The correlation (Spearman's) is computed for every training seed; `lowest` and `highest` are its extremes.
    """
    lines = []
    for dataset in order_datasets(rows["dataset"]):
        for objective in dict.fromkeys(rows["objective"]):
            chosen = select(rows, dataset=dataset, objective=objective)
            if chosen.empty:
                continue
            table = chosen.pivot(index="delta", columns="train_seed", values="return_mean").sort_index(ascending=False)
            ambition = np.arange(len(table))
            ranks = [np.corrcoef(ambition, table[seed].rank())[0, 1] for seed in table]
            lines.append(
                {
                    "dataset": short_name(dataset),
                    "objective": objective,
                    "rank correlation": np.mean(ranks),
                    "lowest": min(ranks),
                    "highest": max(ranks),
                    "best delta": table.mean(axis=1).idxmax(),
                    "return there": table.mean(axis=1).max(),
                }
            )
    return pd.DataFrame(lines)
