"""Figure 4, left: as delta decreases, the performance improves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from brrcrl_lib.study.claims.decisions import Decision
from brrcrl_lib.study.claims.effects import judge
from brrcrl_lib.study.claims.interest import INTERESTS
from brrcrl_lib.study.claims.rows import newest
from brrcrl_lib.study.claims.summary import variants
from brrcrl_lib.study.claims.target_rules import TITLES
from brrcrl_lib.study.experiments.grids import DELTAS
from brrcrl_lib.study.experiments.results import order_datasets, select, short_name

STEPS = {"down to 0.1": (0.1, 0.9), "below 0.1": (0.001, 0.1)}
"""Does asking for more help down to 0.1, and does it go on helping below?"""


def sweep(objective: str) -> dict[str, dict[str, Any]]:
    """Every delta as a setting, from the most modest to the most ambitious."""
    return variants({f"{delta:g}": {"objective": objective, "delta": delta} for delta in DELTAS})


def decisions(rows: pd.DataFrame, objective: str = "authors") -> dict[str, Decision]:
    """One delta against another with the same weights, so paired."""
    deltas = sweep(objective)
    return {
        name: judge(
            f"delta {ours:g} earns more than {theirs:g} ({TITLES[objective]})",
            rows,
            deltas[f"{ours:g}"],
            deltas[f"{theirs:g}"],
            INTERESTS["delta"].points,
        )
        for name, (ours, theirs) in STEPS.items()
    }


def trend(rows: pd.DataFrame) -> pd.DataFrame:
    """Per dataset and objective: the rank correlation between ambition (1 - delta) and return, and the best delta.

    The correlation (Spearman's) is computed for every training seed; `lowest` and `highest` are its extremes.
    """
    lines, rows = [], newest(rows)
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
