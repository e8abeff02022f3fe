"""Grids of experiments: declared as data, run in parallel, resumed after a kill, recorded one row per cell.

A cell is (dataset, training, seed, inference). Cells that differ only in inference share one training. A finished
cell is a small file under runs/experiments; all of them together become data/results/<grid>.csv.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from brrcrl_lib.build import TrainConfig
from brrcrl_lib.config import did_you_mean, with_preset
from brrcrl_lib.devices import track
from brrcrl_lib.evaluate import InferenceConfig
from brrcrl_lib.runs import ROOT, atomic_path, write_json

RESULTS = ROOT / "data" / "results"
WORK = ROOT / "runs" / "experiments"
MEDIUM_REPLAY = {name: f"brrcrl/{name}/medium-replay-v0" for name in ("hopper", "walker2d", "halfcheetah")}
OTHERS = (MEDIUM_REPLAY["walker2d"], MEDIUM_REPLAY["halfcheetah"])
ADAPTIVE = {"target": "adaptive", "delta": 0.1}
CLONE = {"clone": True}

# -- the grids ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """Every dataset x every training x every seed x every inference setting."""

    datasets: tuple[str, ...]
    trainings: tuple[dict[str, Any], ...]
    seeds: tuple[int, ...]
    inferences: tuple[dict[str, Any], ...]


GRIDS: dict[str, tuple[Block, ...]] = {
    # Does BR-RCRL beat cloning, and does the objective matter? (Section 4; the claims of notebook 05)
    "engine": (
        Block((MEDIUM_REPLAY["hopper"],), ({"objective": "authors"},), (0, 1, 2), (ADAPTIVE, CLONE)),
        Block((MEDIUM_REPLAY["hopper"],), ({"method": "cloning"},), (0, 1, 2), (CLONE,)),
        Block(OTHERS, ({"objective": "authors"},), (0,), (ADAPTIVE, CLONE)),
        Block(OTHERS, ({"method": "cloning"},), (0,), (CLONE,)),
        Block(tuple(MEDIUM_REPLAY.values()), ({"objective": "paper"},), (0,), (ADAPTIVE, CLONE)),
        Block((MEDIUM_REPLAY["hopper"],), ({"objective": "paper"},), (1, 2), (ADAPTIVE, CLONE)),
    ),
    # What late fusion does to the return (the bench says what it does to the time)
    "late_fusion": (
        Block((MEDIUM_REPLAY["hopper"],), ({"objective": "authors", "fusion": "late"},), (0, 1, 2), (ADAPTIVE,)),
    ),
}


@dataclass(frozen=True)
class Cell:
    """One number to be measured."""

    dataset: str
    training: Mapping[str, Any]
    seed: int
    inference: Mapping[str, Any]
    preset: str
    episodes: int

    @property
    def train_key(self) -> str:
        return _digest([self.dataset, dict(self.training), self.seed, self.preset])

    @property
    def key(self) -> str:
        return _digest([self.train_key, dict(self.inference), self.episodes])

    def describe(self) -> str:
        settings = {**self.training, **self.inference}
        return f"{self.dataset} seed {self.seed} " + " ".join(f"{name}={value}" for name, value in settings.items())


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def cells(grid: str, preset: str = "laptop", episodes: int = 10) -> list[Cell]:
    """All cells of a grid, in the order in which they are run."""
    if grid not in GRIDS:
        raise ValueError(f"unknown grid '{grid}'{did_you_mean(grid, GRIDS)}")
    with_preset(TrainConfig, preset)  # refuses an unknown preset
    return [
        Cell(dataset, training, seed, inference, preset, episodes)
        for block in GRIDS[grid]
        for seed in block.seeds
        for dataset in block.datasets
        for training in block.trainings
        for inference in block.inferences
    ]


# -- running -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExperimentConfig:
    """Run a grid; finished cells are skipped."""

    grid: str
    """Name of the grid; a wrong one lists them."""
    preset: str = "laptop"
    """smoke, laptop or paper."""
    episodes: int = 10
    """Episodes per cell."""
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    """Processes, one thread each."""
    work: Path = WORK
    """Trainings and finished cells."""
    results: Path = RESULTS
    """Where <grid>.csv goes (smoke results stay with the work)."""


def run_grid(config: ExperimentConfig) -> int:
    """Train what is missing, evaluate what is missing, record everything; 1 if a cell failed."""
    todo = cells(config.grid, config.preset, config.episodes)
    path = results_path(config)
    done = set(read_results(path)["key"]) if path.exists() else set()
    groups: dict[str, list[Cell]] = {}
    for cell in todo:
        if cell.key not in done and not _cell_file(config.work, cell).exists():
            groups.setdefault(cell.train_key, []).append(cell)
    jobs = [(group, config.work) for group in groups.values()]
    print(
        f"{config.grid}: {len(todo)} cells, {sum(map(len, groups.values()))} to do in {len(jobs)} trainings", flush=True
    )
    failures: list[str] = []
    context = multiprocessing.get_context("spawn")
    with context.Pool(max(1, min(config.workers, len(jobs)))) as pool:
        for problems in track(
            pool.imap_unordered(_run_group, jobs), total=len(jobs), unit="training", desc=config.grid
        ):
            failures += problems
            merge(config, todo)
    merge(config, todo)
    for failure in failures:
        print(f"failed: {failure}")
    return int(bool(failures))


def _run_group(job: tuple[list[Cell], Path]) -> list[str]:
    """Train once, then evaluate each cell; what goes wrong comes back as text."""
    import torch

    torch.set_num_threads(1)
    group, work = job
    problems = []
    for cell in group:
        try:
            write_json(_cell_file(work, cell), _measure(cell, work))
        except Exception as error:  # a failing cell must not stop the rest
            problems.append(f"{cell.describe()}: {type(error).__name__}: {error}")
    return problems


def _measure(cell: Cell, work: Path) -> dict[str, Any]:
    from brrcrl_lib.commands import EvaluateCommand, evaluate_run
    from brrcrl_lib.datasets.minari import load_dataset
    from brrcrl_lib.train import fit

    run = train_directory(cell, work)
    config = with_preset(TrainConfig, cell.preset, seed=cell.seed, **cell.training)
    fit(config, load_dataset(cell.dataset), run, resume=True, preset=cell.preset)
    command = EvaluateCommand(
        run, cell.episodes, seed=1000 * (cell.seed + 1), inference=InferenceConfig(**cell.inference)
    )
    row, _ = evaluate_run(command)
    variant = {name: value for name, value in cell.training.items() if name not in ("method", "objective")}
    return {"key": cell.key, "train_key": cell.train_key, "variant": variant, **row}


def train_directory(cell: Cell, work: Path = WORK) -> Path:
    return work / "trainings" / cell.train_key


def _cell_file(work: Path, cell: Cell) -> Path:
    return work / "cells" / f"{cell.key}.json"


def ship_models(grid: str = "engine", folder: Path = ROOT / "data" / "models", work: Path = WORK) -> list[Path]:
    """Export the finished seed-0 BR-RCRL models of a grid as data/models/<env>-<kind>-<objective>.safetensors."""
    from brrcrl_lib.checkpoints import Checkpoint
    from brrcrl_lib.train import export_model

    shipped = []
    for cell in {cell.train_key: cell for cell in cells(grid) if cell.seed == 0}.values():
        run = train_directory(cell, work)
        objective = cell.training.get("objective")
        if objective is None or not (run / "checkpoint.safetensors").exists():
            continue
        about = Checkpoint.load(run / "checkpoint.safetensors").about
        if about["step"] == about["config"]["steps"]:
            name = "-".join(cell.dataset.split("/")[1:]).rsplit("-v", 1)[0]
            shipped.append(folder / f"{name}-{objective}.safetensors")
            export_model(run, shipped[-1])
            shutil.copyfile(run / "metrics.csv", folder / f"{name}-{objective}-metrics.csv")
    return shipped


# -- recording ---------------------------------------------------------------------------------------------------

REQUIRED = ("key", "dataset", "env", "method", "objective", "train_seed", "target", "delta", "return_mean", "returns",
            "score", "reference", "train_steps", "preset", "versions", "revision")  # fmt: skip


def results_path(config: ExperimentConfig) -> Path:
    folder = config.work if config.preset == "smoke" else config.results
    return folder / f"{config.grid}.csv"


def merge(config: ExperimentConfig, wanted: list[Cell]) -> None:
    """Write the finished cells of a grid, old rows and new, to its CSV in the grid's order; one row per cell."""
    path = results_path(config)
    rows = {row["key"]: row for row in read_results(path).to_dict("records")} if path.exists() else {}
    for cell in wanted:
        file = _cell_file(config.work, cell)
        if file.exists():
            row = json.loads(file.read_text())
            rows[cell.key] = {
                name: json.dumps(value) if isinstance(value, dict | list) else value for name, value in row.items()
            }
    order = {cell.key: position for position, cell in enumerate(wanted)}
    ordered = sorted(rows.values(), key=lambda row: order.get(row["key"], len(order)))
    if ordered:
        with atomic_path(path) as temporary:
            pd.DataFrame(ordered).to_csv(temporary, index=False)


def read_results(path: Path) -> pd.DataFrame:
    """The rows of a results file; a broken one is named with its line."""
    if not path.exists():
        raise FileNotFoundError(f"no results at {path}; `brrcrl experiments run {path.stem}` makes them")
    try:
        table = pd.read_csv(path)
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise ValueError(f"{path.name} is not a readable CSV file: {error}") from None
    missing = [name for name in REQUIRED if name not in table.columns]
    if missing:
        raise ValueError(f"{path.name} lacks the columns {', '.join(missing)}")
    for line, row in enumerate(table.to_dict("records"), start=2):
        problem = next(_row_problems(row), None)
        if problem:
            raise ValueError(f"{path.name}, line {line}: {problem}")
    if table["key"].duplicated().any():
        raise ValueError(f"{path.name} holds the cell {table['key'][table['key'].duplicated()].iloc[0]} twice")
    return table


def _row_problems(row: Mapping[Any, Any]) -> Iterator[str]:
    try:
        returns = json.loads(row["returns"])
    except (TypeError, ValueError):
        yield "returns is not a list of numbers"
        return
    if not returns or not all(isinstance(value, int | float) for value in returns):
        yield "returns is not a list of numbers"
    elif abs(sum(returns) / len(returns) - row["return_mean"]) > 0.01 * max(1.0, abs(row["return_mean"])):
        yield f"return_mean {row['return_mean']} is not the mean of returns"
