"""The work folder of a grid: finished cells, trainings, failures, claims and logs, each a file of its own.

    cells/<key>.json        a finished cell's row             traces/<key>.csv.gz     what it asked for and got
    trainings/<train_key>/  a run directory                   failures/<key>.json     why a cell has no row
    claims/<train_key>.N    who is at work on a training      logs/<train_key>.log    the last words of a worker

Everybody writes files of their own here and nobody the same one, so any number of runners may share the folder.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.files import ROOT, atomic_path, write_json
from brrcrl_lib.study.experiments.claims import Claims
from brrcrl_lib.study.experiments.grids import Cell
from brrcrl_lib.study.experiments.results import TRACE_COLUMNS, row_problem

WORK = ROOT / "runs" / "experiments"


@dataclass(frozen=True)
class Store:
    """Where the files of a grid's cells are."""

    work: Path

    def cell(self, cell: Cell) -> Path:
        return self.work / "cells" / f"{cell.key}.json"

    def trace(self, cell: Cell) -> Path:
        return trace_file(self.work, cell)

    def training(self, cell: Cell) -> Path:
        return self.work / "trainings" / cell.train_key

    def log(self, train_key: str) -> Path:
        return self.work / "logs" / f"{train_key}.log"

    @property
    def claims(self) -> Claims:
        return Claims(self.work / "claims")

    # -- finished cells ------------------------------------------------------------------------------------------

    def done(self, cell: Cell) -> bool:
        return self.cell(cell).exists()

    def record(self, cell: Cell, row: dict[str, Any], trace: pd.DataFrame) -> None:
        """The trace first: a cell is finished when its row is there."""
        text = trace[[name for name in TRACE_COLUMNS if name in trace]].to_csv(index=False, float_format="%.2f")
        with atomic_path(self.trace(cell)) as temporary:
            temporary.write_bytes(gzip.compress(text.encode(), mtime=0))  # without name and time: the same bytes again
        write_json(self.cell(cell), row)
        self._failure(cell).unlink(missing_ok=True)

    def rows(self, wanted: Iterable[Cell]) -> dict[str, dict[str, Any]]:
        """The rows of the finished cells among these, by key, in one pass; a broken file is named."""
        folder = self.work / "cells"
        here = {path.stem for path in folder.glob("*.json")}
        keys = (cell.key for cell in wanted)
        return {key: self._row(folder / f"{key}.json") for key in keys if key in here}

    @staticmethod
    def _row(path: Path) -> dict[str, Any]:
        try:
            row = json.loads(path.read_bytes())
            problem = row_problem(row) if isinstance(row, dict) else "it holds no row"
        except ValueError:
            problem = "it is empty, or not JSON"
        if problem is None and row["key"] != path.stem:
            problem = f"it holds the cell {row['key']}"
        if problem is not None:
            raise KitError(f"{path} is broken ({problem}); delete it, and the next run measures that cell again")
        return row

    # -- failures ------------------------------------------------------------------------------------------------

    def fail(self, cell: Cell, problem: str) -> None:
        write_json(self._failure(cell), {"cell": cell.describe(), "problem": problem})

    def failure(self, cell: Cell) -> str | None:
        """Why the last attempt at a cell failed."""
        try:
            return str(json.loads(self._failure(cell).read_bytes())["problem"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            return "it failed, and its file of failure is broken"

    def forget_failures(self, wanted: Iterable[Cell]) -> None:
        for cell in wanted:
            self._failure(cell).unlink(missing_ok=True)

    def _failure(self, cell: Cell) -> Path:
        return self.work / "failures" / f"{cell.key}.json"

    # -- logs ----------------------------------------------------------------------------------------------------

    def last_words(self, train_key: str, lines: int = 3) -> str:
        """The end of what the last worker on a training wrote to its standard error."""
        try:
            text = self.log(train_key).read_text(errors="replace")
        except OSError:
            return ""
        return " | ".join([line.strip() for line in text.splitlines() if line.strip()][-lines:])


def trace_file(folder: Path, cell: Cell) -> Path:
    return folder / "traces" / f"{cell.key}.csv.gz"


def train_directory(cell: Cell, work: Path = WORK) -> Path:
    return Store(work).training(cell)
