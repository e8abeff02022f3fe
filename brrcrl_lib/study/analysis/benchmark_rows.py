"""The rows that notebook 13 shows: all that are recorded of the grid `table1`, and none where there are none."""

from __future__ import annotations

import pandas as pd

from brrcrl_lib.data.registry import list_datasets
from brrcrl_lib.study.experiments.grids import Cell
from brrcrl_lib.study.experiments.results import REQUIRED
from brrcrl_lib.study.experiments.running import rows_for

COLUMNS = [*REQUIRED, "episodes", "seconds", "length_mean", "target", "delta", "share", "top_share"]
HOW = "brrcrl experiments run table1"
SMOKE_METHODS = ("br_rcrl", "cloning", "vanilla", "iql", "rvs")


def benchmark_rows(preset: str) -> pd.DataFrame:
    """Rows of `table1` at this preset; smoke runs measure a few cells on the first of its datasets that is here."""
    here = set(list_datasets())
    tried: list[str] = []

    def small(cell: Cell) -> bool:
        if cell.dataset not in here or cell.seed != 0 or cell.method not in SMOKE_METHODS:
            return False
        tried.append(cell.dataset)
        return cell.dataset == tried[0]

    try:
        rows, _ = rows_for("table1", preset, small)
    except FileNotFoundError:
        rows = pd.DataFrame()
    missing = [name for name in COLUMNS if name not in rows]
    return rows.reindex(columns=[*rows.columns, *missing])


def said(rows: pd.DataFrame) -> str:
    """How much there is, in one sentence."""
    if rows.empty:
        return f"No row of Table 1 has been recorded yet: `{HOW}` records them, and tells first what they will cost."
    seeds = rows.groupby("dataset")["train_seed"].nunique()
    return (
        f"{len(rows)} rows of {rows['method'].nunique()} methods on {rows['dataset'].nunique()} datasets, "
        f"{seeds.min()} to {seeds.max()} training seeds on each; `{HOW}` continues them."
    )
