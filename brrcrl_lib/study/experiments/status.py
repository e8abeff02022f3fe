"""How far a grid is: cells done, running, failed and missing, and the core-hours behind and ahead of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from brrcrl_lib.base.devices import track
from brrcrl_lib.methods.base import method_named
from brrcrl_lib.study.experiments.grids import Cell
from brrcrl_lib.study.experiments.plan import GridConfig, Plan, by_training, make_plan
from brrcrl_lib.study.experiments.results import RESULTS
from brrcrl_lib.worlds import world_of

TIMED = ["method", "env", "preset", "train_key", "train_steps", "train_seconds", "seconds"]


@dataclass(frozen=True)
class StatusConfig(GridConfig):
    """Show how far a grid is."""

    watch: bool = False
    """Keep a progress bar until nothing is running any more."""


@dataclass(frozen=True)
class Status:
    """Cells of a grid by what has become of them, and hours of one core."""

    cells: int
    done: int
    running: dict[str, tuple[str, int]]
    """What is being trained: by whom, and how many cells wait for it."""
    failed: dict[str, str]
    """Cells whose last attempt failed: why."""
    missing: int
    """Cells that nobody has begun."""
    spent: float
    expected: float
    unknown: tuple[str, ...]
    """Methods of which no row says how long they take."""

    def lines(self) -> list[str]:
        running = sum(count for _, count in self.running.values())
        counts = f"{self.done} done, {running} running, {len(self.failed)} failed, {self.missing} missing"
        text = [f"[{bar(self.done, self.cells)}] {self.done} of {self.cells} cells: {counts}"]
        text += [f"  running  {what}: {who}" for what, (who, _) in self.running.items()]
        text += [f"  failed   {what}: {why}" for what, why in self.failed.items()]
        text.append(f"core-hours: {self.spent:.2f} spent, {self.expected:.2f} expected for the rest" + self._caveat())
        return text

    def _caveat(self) -> str:
        return f", without {', '.join(self.unknown)}: no recorded row says how long" if self.unknown else ""


def status_command(config: StatusConfig) -> int:
    """Print it."""
    status = look(config)
    if config.watch:
        _watch(config, status)
        status = look(config)
    print("\n".join([f"{config.grid} ({config.preset}) in {config.work}", *status.lines()]))
    return 0


def look(config: GridConfig) -> Status:
    """Read the folder as it is now."""
    plan = make_plan(config)
    running: dict[str, tuple[str, int]] = {}
    failed: dict[str, str] = {}
    missing = 0
    for train_key, waiting in by_training(plan.missing()).items():
        holder = config.store.claims.holder(train_key)
        if holder is not None:
            running[_training(waiting[0])] = (str(holder), len(waiting))
            continue
        problems = {cell.describe(): config.store.failure(cell) for cell in waiting}
        failed |= {what: problem for what, problem in problems.items() if problem is not None}
        missing += sum(problem is None for problem in problems.values())
    done = len(plan.chosen) - len(plan.missing())
    spent, expected, unknown = hours(plan)
    return Status(len(plan.chosen), done, running, failed, missing, spent, expected, unknown)


def hours(plan: Plan) -> tuple[float, float, tuple[str, ...]]:
    """Core-hours in the rows that are there; those to come, at the same speed; methods whose speed nobody measured."""
    rows = _timed(plan)
    chosen = {cell.key for cell in plan.chosen}
    spent = _core_seconds(rows[rows["key"].isin(chosen)]) if len(rows) else 0.0
    known, trained = speeds(plan)
    expected, unknown = 0.0, set()
    for train_key, waiting in by_training(plan.missing()).items():
        first = waiting[0]
        speed = known.get((first.method, first.kind))
        if speed is None:
            unknown.add(first.method)
            continue
        training = 0.0 if train_key in trained else speed[0] * first.config.steps
        expected += _cores(first.method) * (training + speed[1] * len(waiting))
    return spent / 3600, expected / 3600, tuple(sorted(unknown))


def speeds(plan: Plan) -> tuple[Mapping[tuple[str, str], tuple[float, float]], set[str]]:
    """(method, kind of data) -> seconds per update, seconds per cell, as recorded; and the trainings that are done."""
    rows = _timed(plan)
    known = _speeds(pd.concat([rows, _recorded(plan.config.results)]), plan.config.preset)
    return known, set(rows["train_key"]) if len(rows) else set()


def _timed(plan: Plan) -> pd.DataFrame:
    """Every row of the grid that is there, in the columns that say how long it took."""
    finished = pd.DataFrame(list(plan.rows.values()))
    old = plan.recorded
    if len(old) and len(finished):
        old = old[~old["key"].isin(finished["key"])]
    both = [table.reindex(columns=["key", *TIMED]) for table in (old, finished) if len(table)]
    return pd.concat(both) if both else pd.DataFrame(columns=["key", *TIMED])


def _recorded(folder: Path) -> pd.DataFrame:
    """What other grids in the folder say of the methods' speed, if it can be read."""
    tables = []
    for path in sorted({*folder.glob("*.csv"), *RESULTS.glob("*.csv")}):
        try:
            table = pd.read_csv(path, usecols=lambda name: name in {"key", *TIMED})
        except (ValueError, OSError):
            continue
        if {"key", *TIMED} <= set(table):
            tables.append(table)
    return pd.concat(tables) if tables else pd.DataFrame(columns=["key", *TIMED])


def _speeds(rows: pd.DataFrame, preset: str) -> Mapping[tuple[str, str], tuple[float, float]]:
    """(method, kind of data) -> seconds per gradient step, seconds per cell; from rows of the same preset."""
    rows = rows[(rows["preset"] == preset) & (rows["train_steps"] > 0)].drop_duplicates("key")
    kinds = [world_of(str(env)).kind or "box" for env in rows["env"]]
    rows = rows.assign(kind=kinds, step=rows["train_seconds"] / rows["train_steps"])
    found: dict[Any, tuple[float, float]] = {}
    for key, group in rows.groupby(["method", "kind"]):
        found[key] = (group.drop_duplicates("train_key")["step"].mean(), group["seconds"].mean())
    return found


def _core_seconds(rows: pd.DataFrame) -> float:
    trainings = rows.drop_duplicates("train_key")
    cores = trainings["method"].map(_cores)
    return float((cores * trainings["train_seconds"]).sum() + rows["seconds"].sum())


def _cores(method: str) -> float:
    return method_named(method).resources.get("cpus", 1)


def _training(cell: Cell) -> str:
    return f"{cell.dataset} seed {cell.seed} " + " ".join(f"{name}={value}" for name, value in cell.training.items())


def bar(done: int, total: int, width: int = 30) -> str:
    full = width * done // max(1, total)
    return "#" * full + "." * (width - full)


def _watch(config: StatusConfig, status: Status) -> None:
    """A bar that follows the folder while somebody is at work in it."""
    with track(total=status.cells, initial=status.done, desc=config.grid, unit="cell") as progress:
        while status.running:
            time.sleep(2)
            status = look(config)
            progress.update(status.done - progress.n)
