"""All finished cells of a grid in one file: data/results/<grid>.csv, one row per cell in the grid's order."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from brrcrl_lib.base.files import atomic_path, locked
from brrcrl_lib.study.experiments.grids import Cell
from brrcrl_lib.study.experiments.plan import GridConfig
from brrcrl_lib.study.experiments.results import REQUIRED, read_results
from brrcrl_lib.study.experiments.store import trace_file


@dataclass(frozen=True)
class MergeConfig(GridConfig):
    """Write the finished cells of a grid to its CSV file."""


def merge_command(config: MergeConfig) -> int:
    rows = merge(config, config.cells())
    print(f"{config.path}: {rows} rows" if rows else f"{config.grid}: no finished cells in {config.work} yet")
    return 0


def merge(config: GridConfig, wanted: Sequence[Cell]) -> int:
    """Old rows and new, in one pass over the cells; how many rows there are now. One process at a time merges."""
    path = config.path
    with locked(path.parent, wait=True):
        old = read_results(path).to_dict("records") if path.exists() else []
        finished = config.store.rows(wanted)
        rows: dict[str, dict[Any, Any]] = {row["key"]: row for row in old}
        rows |= {key: {name: _plain(value) for name, value in row.items()} for key, row in finished.items()}
        _copy_traces(config, [cell for cell in wanted if cell.trace and cell.key in finished])
        order = {cell.key: position for position, cell in enumerate(wanted)}
        ordered = sorted(rows.values(), key=lambda row: order.get(row["key"], len(order)))
        if ordered:
            table = pd.DataFrame(ordered)
            table = table.reindex(columns=[*table.columns, *(name for name in REQUIRED if name not in table)])
            with atomic_path(path) as temporary:
                table.to_csv(temporary, index=False)
    return len(ordered)


def _plain(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value


def _copy_traces(config: GridConfig, traced: Sequence[Cell]) -> None:
    """Traces ship beside the rows."""
    if config.path.parent == config.work:
        return
    for cell in traced:
        if config.store.trace(cell).exists():
            with atomic_path(trace_file(config.path.parent, cell)) as temporary:
                shutil.copyfile(config.store.trace(cell), temporary)
