"""Run grids of experiments: in parallel, resumed after a kill, recorded one row per cell.

A finished cell is a small file under runs/experiments (store.py); all cells of a grid together become
data/results/<grid>.csv (recording.py). The grids are declared in grids.py, what is to be done is worked out in plan.py,
and engines/ say where it is done.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from brrcrl_lib.base.devices import track
from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.files import ROOT
from brrcrl_lib.checkpoints import Checkpoint
from brrcrl_lib.study.experiments.cost import cost
from brrcrl_lib.study.experiments.engines import Engine, engine_named
from brrcrl_lib.study.experiments.grids import Cell, cells
from brrcrl_lib.study.experiments.group import SMOKE_STEPS, Group, measure_cell
from brrcrl_lib.study.experiments.plan import ExperimentConfig, Plan, make_plan
from brrcrl_lib.study.experiments.recording import merge
from brrcrl_lib.study.experiments.results import RESULTS, model_name, read_grid, read_results
from brrcrl_lib.study.experiments.store import WORK, Store, train_directory
from brrcrl_lib.training import export_model

__all__ = ["SMOKE_STEPS", "WORK", "ExperimentConfig", "rows_for", "run_grid", "ship_models", "train_directory"]
LOOK_AGAIN = 2.0
"""Seconds between two looks at what other runners hold."""


def run_grid(config: ExperimentConfig) -> int:
    """Train what is missing, evaluate what is missing, record everything; 1 if a cell has no row in the end."""
    if config.key is not None:
        return _repeat(config)
    plan, engine = make_plan(config), engine_named(config.engine)
    groups = plan.groups()
    todo = f"{len(plan.missing())} to do in {len(groups)} trainings"
    print(f"{config.grid}: {len(plan.chosen)} cells, {todo}", flush=True)
    if groups and config.preset != "smoke":
        print(cost(plan).sentence(config.grid), flush=True)
    unusable = plan.unusable()
    config.store.forget_failures(plan.missing())
    for cell in plan.missing():
        if cell.dataset in unusable:
            config.store.fail(cell, unusable[cell.dataset])
    try:
        _run([group for group in groups if group.cells[0].dataset not in unusable], engine, config)
    except KeyboardInterrupt:
        merge(config, plan.every)
        print(f"\nWhat is finished is kept; `brrcrl experiments run {config.flags()}` continues.", flush=True)
        raise
    merge(config, plan.every)
    return _close(config, plan)


def _run(groups: list[Group], engine: Engine, config: ExperimentConfig) -> None:
    """Everything once, and what another runner held meanwhile again when it is free."""
    with track(total=len(groups), unit="training", desc=config.grid) as bar:
        while groups:
            held = {}
            for outcome in engine(groups, config):
                if outcome.held_by is None:
                    bar.update()
                else:
                    held[outcome.train_key] = outcome.held_by
            groups = _wait([group for group in groups if group.train_key in held], held, bar)


def _wait(held: list[Group], holders: dict[str, str], bar: Any) -> list[Group]:
    """Wait until another runner has finished a group, or is gone; the groups that are still to be done then."""
    for group in held:
        bar.write(f"{group.describe()} is held by {holders[group.train_key]}; waiting for it")
    while held and all(group.missing() and group.store.claims.holder(group.train_key) for group in held):
        time.sleep(LOOK_AGAIN)
    left = [group for group in held if group.missing()]
    bar.update(len(held) - len(left))
    return left


def _close(config: ExperimentConfig, plan: Plan) -> int:
    """The closing table: each cell without a row and why, then the count."""
    done = set(config.store.rows(plan.every)) | plan.done
    left = [cell for cell in plan.chosen if cell.key not in done]
    for problem, those in _by_problem(config.store, left).items():
        print(f"failed: {those[0].describe()}: {problem}")
        for cell in those[1:]:
            print(f"failed: {cell.describe()}: the same")
    count = f"{len(plan.chosen) - len(left)} of {len(plan.chosen)} cells done"
    print(f"{config.grid}: {count}, {len(left)} missing; rows in {config.path}" if left else f"{config.grid}: {count}")
    if left:
        print(f"`brrcrl experiments run {config.flags()}` tries the missing ones again")
    return int(bool(left))


def _by_problem(store: Store, left: Sequence[Cell]) -> dict[str, list[Cell]]:
    found: dict[str, list[Cell]] = {}
    for cell in left:
        found.setdefault(store.failure(cell) or "nobody has measured it", []).append(cell)
    return found


def _repeat(config: ExperimentConfig) -> int:
    """One cell again, whatever is recorded of it; nothing recorded is touched."""
    match = [cell for cell in config.cells() if cell.key == config.key]
    if not match:
        raise KitError(f"grid {config.grid} at preset {config.preset} has no row with the key '{config.key}'")
    recorded = read_results(config.path).set_index("key") if config.path.exists() else pd.DataFrame()
    row, _ = measure_cell(match[0], config.store)
    print(f"{match[0].describe()}\n  now       {row['return_mean']:10.1f}  {row['returns']}")
    if config.key in recorded.index:
        old: Any = recorded.loc[config.key]
        print(f"  recorded  {old['return_mean']:10.1f}  {json.loads(old['returns'])}")
        before = old.get("fingerprint")
        if (None if pd.isna(before) else before) != row.get("fingerprint"):
            print(f"  on other data of the same name: fingerprint {row['fingerprint']}, recorded {before}")
    return 0


# -- for notebooks -----------------------------------------------------------------------------------------------


def rows_for(grid: str, preset: str, smoke: Callable[[Cell], bool]) -> tuple[pd.DataFrame, Path]:
    """The rows of a grid that a notebook shows, and the folder that holds their traces.

    `recorded` reads what ships. `smoke` measures here and now the few cells for which `smoke` is true, with tiny
    models and short episodes. `laptop` and `paper` run the whole grid under runs/experiments, or continue it.
    """
    if preset == "recorded":
        return read_grid(grid), RESULTS
    if preset == "smoke":
        folder = WORK / "smoke" / grid
        shutil.rmtree(folder, ignore_errors=True)
        config = ExperimentConfig(grid, "smoke", episodes=2, work=folder)
        chosen = [cell for cell in config.cells() if smoke(cell)]
        for cell in track(chosen, unit="cell", desc=grid):
            config.store.record(cell, *measure_cell(cell, config.store))
        merge(config, chosen)
        return read_grid(grid, folder), folder
    config = ExperimentConfig(grid, preset, results=WORK / preset)
    if run_grid(config):
        raise RuntimeError(f"some cells of {grid} failed; the lines above say why")
    return read_grid(grid, WORK / preset), WORK / preset


def ship_models(
    grid: str = "engine",
    folder: Path = ROOT / "data" / "models",
    work: Path = WORK,
    only: Callable[[Cell], bool] = lambda cell: True,
) -> list[Path]:
    """Export the finished seed-0 BR-RCRL models of a grid as data/models/<env>-<kind>-<objective>.safetensors.

    Those of ladders are called <game>-ladder-<learner>.safetensors. `only` chooses among the cells of the grid.
    """
    shipped = []
    for cell in {cell.train_key: cell for cell in cells(grid) if cell.seed == 0 and only(cell)}.values():
        run = train_directory(cell, work)
        objective = cell.training.get("objective")
        if objective is None or not (run / "checkpoint.safetensors").exists():
            continue
        about = Checkpoint.load(run / "checkpoint.safetensors").about
        if about["step"] == about["config"]["steps"]:
            name = model_name(cell.dataset)
            shipped.append(folder / f"{name}-{objective}.safetensors")
            export_model(run, shipped[-1])
            shutil.copyfile(run / "metrics.csv", folder / f"{name}-{objective}-metrics.csv")
    return shipped
