"""The recorded rows of all grids in one table, and what one setting's rows hold."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd

from brrcrl_lib.study.experiments.grids import GRIDS
from brrcrl_lib.study.experiments.results import RESULTS, read_grid
from brrcrl_lib.worlds import DatasetName, newest_versions

SOURCES = ("kit", "d4rl")
"""Whose datasets: the kit's own, or D4RL's imported files."""
TUNING = "regimes"
"""The grid on which settings were chosen (docs/regimes.md)."""


def source_of(dataset_id: str) -> str:
    return "d4rl" if DatasetName.parse(dataset_id).namespace.lower() == "d4rl" else "kit"


def recorded(data: str = "kit", folder: Path = RESULTS) -> pd.DataFrame:
    """Every recorded cell of every grid once, with a column `grid`: those of the kit's own datasets, or of D4RL's.

    But for the grid on which settings were chosen: its seeds appear in no result.
    """
    grids = [grid for grid in GRIDS if grid != TUNING and (folder / f"{grid}.csv").exists()]
    found = [read_grid(grid, folder).assign(grid=grid) for grid in grids]
    if not found:
        raise FileNotFoundError(f"no results in {folder}; `brrcrl experiments run GRID` makes them")
    rows = pd.concat([table.dropna(axis="columns", how="all") for table in found], ignore_index=True)
    rows = rows[rows["dataset"].map(source_of) == data]
    return newest(rows.drop_duplicates("key"))


def newest(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each dataset the newest version only: -v1 replaces -v0 as soon as it has rows."""
    return rows[rows["dataset"].isin(newest_versions(rows["dataset"].unique()))]


def episode_returns(rows: pd.DataFrame) -> np.ndarray:
    """Returns [seeds, episodes] of the rows of one setting, one row per training seed."""
    if rows.empty:
        raise ValueError("no rows to judge: the grid has not recorded this setting yet")
    if rows["train_seed"].duplicated().any():
        raise ValueError(f"several rows for the training seed {rows['train_seed'].mode()[0]}: select one setting")
    return np.array([json.loads(text) for text in rows.sort_values("train_seed")["returns"]], dtype=np.float64)
