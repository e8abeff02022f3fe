"""Run grids of experiments: in parallel, resumed after a kill, recorded one row per cell.

A finished cell is a small file under runs/experiments; all cells of a grid together become data/results/<grid>.csv.
The grids themselves are declared in grids.py, and read back by results.py.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from brrcrl_lib.base.config import did_you_mean
from brrcrl_lib.base.devices import track, use_one_thread
from brrcrl_lib.base.files import ROOT, atomic_path, write_json
from brrcrl_lib.checkpoints import Checkpoint
from brrcrl_lib.data.batch import Source
from brrcrl_lib.data.open import is_frames, open_source
from brrcrl_lib.data.registry import DatasetError
from brrcrl_lib.methods.base import method_named
from brrcrl_lib.study.experiments.grids import Cell, cells
from brrcrl_lib.study.experiments.results import RESULTS, TRACE_COLUMNS, model_name, read_grid, read_results
from brrcrl_lib.study.experiments.row import measure
from brrcrl_lib.training import export_model, fit, load_run

WORK = ROOT / "runs" / "experiments"
SMOKE_STEPS = 30
"""Length of a smoke run's episodes."""
KEEP_FREED_MEMORY = {"MALLOC_TRIM_THRESHOLD_": "1000000000", "MALLOC_MMAP_THRESHOLD_": "1000000000"}
"""For workers: what one step frees the next takes again, where glibc would give it back to the system and ask anew."""


@dataclass(frozen=True)
class ExperimentConfig:
    """Run a grid; finished cells are skipped."""

    grid: str
    """Name of the grid; a wrong one lists them."""
    preset: str = "laptop"
    """smoke, laptop or paper."""
    episodes: int = 10
    """Episodes per cell."""
    dataset: str | None = None
    """Only the cells of datasets whose id contains this word, for example hopper; all if left out."""
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    """Processes, one thread each."""
    key: str | None = None
    """Measure this one row again, into --work, and show it beside the recorded one."""
    work: Path = WORK
    """Trainings and finished cells."""
    results: Path = RESULTS
    """Where <grid>.csv goes (smoke results stay with the work)."""


def run_grid(config: ExperimentConfig) -> int:
    """Train what is missing, evaluate what is missing, record everything; 1 if a cell failed."""
    wanted = cells(config.grid, config.preset, config.episodes)
    if config.key is not None:
        return _repeat(config, wanted)
    path = results_path(config)
    done = set(read_results(path)["key"]) if path.exists() else set()
    groups: dict[str, list[Cell]] = {}
    for cell in _of_dataset(wanted, config.dataset):
        if cell.key not in done and not _cell_file(config.work, cell).exists():
            groups.setdefault(cell.train_key, []).append(cell)
    todo = sum(map(len, groups.values()))
    print(f"{config.grid}: {len(wanted)} cells, {todo} to do in {len(groups)} trainings", flush=True)
    unusable = _prepare([group[0] for group in groups.values()], path)
    failures = [f"{dataset}: {problem}" for dataset, problem in unusable.items()]
    jobs = [(group, config.work) for group in groups.values() if group[0].dataset not in unusable]
    os.environ |= KEEP_FREED_MEMORY
    context = multiprocessing.get_context("spawn")
    with context.Pool(max(1, min(config.workers, len(jobs)))) as pool:
        for problems in track(
            pool.imap_unordered(_run_group, jobs), total=len(jobs), unit="training", desc=config.grid
        ):
            failures += problems
            merge(config, wanted)
    merge(config, wanted)
    for failure in failures:
        print(f"failed: {failure}")
    return int(bool(failures))


def _prepare(wanted: list[Cell], recorded: Path) -> dict[str, str]:
    """Open the frame stores once, before several processes want them: dataset -> why it cannot be used.

    Rows of one file must come from the same data. Where those can be built in different ways, their fingerprint in
    the rows says whether they do.
    """
    rows = read_results(recorded) if recorded.exists() else pd.DataFrame()
    problems = {}
    for dataset in dict.fromkeys(cell.dataset for cell in wanted):
        try:
            mark = open_source(dataset).facts().fingerprint if is_frames(dataset) else None
        except (DatasetError, OSError) as error:
            problems[dataset] = str(error)
            continue
        others = set(rows.loc[rows["dataset"] == dataset, "fingerprint"]) - {mark} if "fingerprint" in rows else set()
        if mark is not None and others:
            problems[dataset] = (
                f"{recorded.name} was measured on other data of that name (fingerprint {others.pop()}, here {mark}); "
                "rebuild those or choose another --results"
            )
    return problems


def _of_dataset(wanted: list[Cell], word: str | None) -> list[Cell]:
    chosen = [cell for cell in wanted if word is None or word in cell.dataset]
    if not chosen:
        known = list(dict.fromkeys(cell.dataset for cell in wanted))
        raise ValueError(f"no dataset of this grid is called '{word}'{did_you_mean(str(word), known)}")
    return chosen


def _repeat(config: ExperimentConfig, wanted: list[Cell]) -> int:
    """One cell again, whatever is recorded of it; nothing recorded is touched."""
    match = [cell for cell in wanted if cell.key == config.key]
    if not match:
        raise ValueError(f"grid {config.grid} at preset {config.preset} has no row with the key '{config.key}'")
    row = _measure(match[0], config.work)
    print(f"{match[0].describe()}\n  now       {row['return_mean']:10.1f}  {row['returns']}")
    path = results_path(config)
    recorded = read_results(path).set_index("key") if path.exists() else pd.DataFrame()
    if config.key in recorded.index:
        old: Any = recorded.loc[config.key]
        print(f"  recorded  {old['return_mean']:10.1f}  {json.loads(old['returns'])}")
        if old.get("fingerprint") != row.get("fingerprint"):
            print(f"  on other data of the same name: fingerprint {row['fingerprint']}, recorded {old['fingerprint']}")
    return 0


def _run_group(job: tuple[list[Cell], Path]) -> list[str]:
    """Train once, then evaluate each cell; what goes wrong comes back as text."""
    use_one_thread()
    os.environ["BRRCRL_QUIET"] = "1"  # one bar for the grid; bars of several processes would fight for the line
    group, work = job
    problems = []
    for cell in group:
        try:
            write_json(_cell_file(work, cell), _measure(cell, work))
        except Exception as error:  # a failing cell must not stop the rest
            problems.append(f"{cell.describe()}: {type(error).__name__}: {error}")
    return problems


def _measure(cell: Cell, work: Path) -> dict[str, Any]:
    config = cell.config
    run = train_directory(cell, work)
    fit(config, _load(cell.dataset, config.discount, config.reward_clip), run, resume=True, preset=cell.preset)
    row, trace = measure(
        load_run(run),
        method_named(cell.method).Act(**cell.act),
        episodes=cell.episodes,
        seed=1000 * (cell.seed + 1),
        max_steps=SMOKE_STEPS if cell.preset == "smoke" else cell.max_steps,
    )
    with atomic_path(_trace_file(work, cell)) as temporary:
        kept = trace[[name for name in TRACE_COLUMNS if name in trace]]
        kept.to_csv(temporary, index=False, float_format="%.2f", compression={"method": "gzip", "mtime": 0})
    variant = {name: value for name, value in cell.variant.items() if name != "objective"}
    return {"key": cell.key, "train_key": cell.train_key, "variant": variant, **row}


@lru_cache(maxsize=1)
def _load(dataset: str, discount: float | None, reward_clip: float | None) -> Source:
    return open_source(dataset, discount=discount, reward_clip=reward_clip)


def train_directory(cell: Cell, work: Path = WORK) -> Path:
    return work / "trainings" / cell.train_key


def _cell_file(work: Path, cell: Cell) -> Path:
    return work / "cells" / f"{cell.key}.json"


def _trace_file(folder: Path, cell: Cell) -> Path:
    return folder / "traces" / f"{cell.key}.csv.gz"


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
        chosen = [cell for cell in cells(grid, "smoke", config.episodes) if smoke(cell)]
        for cell in track(chosen, unit="cell", desc=grid):
            write_json(_cell_file(folder, cell), _measure(cell, folder))
        merge(config, chosen)
        return read_grid(grid, folder), folder
    config = ExperimentConfig(grid, preset, results=WORK / preset)
    if run_grid(config):
        raise RuntimeError(f"some cells of {grid} failed; the lines above say why")
    return read_grid(grid, WORK / preset), WORK / preset


# -- recording ---------------------------------------------------------------------------------------------------


def results_path(config: ExperimentConfig) -> Path:
    folder = config.work if config.preset == "smoke" else config.results
    return folder / f"{config.grid}.csv"


def merge(config: ExperimentConfig, wanted: list[Cell]) -> None:
    """Write the finished cells of a grid, old rows and new, to its CSV in the grid's order; one row per cell."""
    path = results_path(config)
    rows = {row["key"]: row for row in read_results(path).to_dict("records")} if path.exists() else {}
    for cell in wanted:
        file = _cell_file(config.work, cell)
        if not file.exists():
            continue
        row = json.loads(file.read_text())
        rows[cell.key] = {
            name: json.dumps(value) if isinstance(value, dict | list) else value for name, value in row.items()
        }
        trace = _trace_file(config.work, cell)
        if cell.trace and path.parent != config.work and trace.exists():
            with atomic_path(_trace_file(path.parent, cell)) as temporary:
                shutil.copyfile(trace, temporary)
    order = {cell.key: position for position, cell in enumerate(wanted)}
    ordered = sorted(rows.values(), key=lambda row: order.get(row["key"], len(order)))
    if ordered:
        with atomic_path(path) as temporary:
            pd.DataFrame(ordered).to_csv(temporary, index=False)


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
