"""What is to be run: the cells of a grid that have no row yet, grouped by training. All checks come first."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from brrcrl_lib.base.config import did_you_mean
from brrcrl_lib.base.errors import KitError
from brrcrl_lib.data.open import is_frames, open_source
from brrcrl_lib.data.registry import DatasetError, missing_dataset_message
from brrcrl_lib.study.experiments.grids import Cell, cells
from brrcrl_lib.study.experiments.group import Group
from brrcrl_lib.study.experiments.results import RESULTS, read_results
from brrcrl_lib.study.experiments.store import WORK, Store
from brrcrl_lib.worlds import DatasetName


@dataclass(frozen=True)
class GridConfig:
    """Which rows of which grid, and where they are."""

    grid: str
    """Name of the grid; a wrong one lists them."""
    preset: str = "laptop"
    """smoke, laptop, released or paper."""
    episodes: int | None = None
    """Episodes per cell; the grid's own number (20 for table1, else 10) if left out."""
    data: Literal["kit", "d4rl"] = "kit"
    """d4rl: D4RL's datasets of the same worlds, as `brrcrl data import-d4rl` names them (d4rl/hopper/medium-v2)."""
    dataset: str | None = None
    """Only the cells of datasets whose id contains this word, for example hopper; all if left out."""
    work: Path = WORK
    """Trainings and finished cells; runners that share this folder share the work."""
    results: Path = RESULTS
    """Where <grid>.csv goes (smoke results stay with the work)."""

    def __post_init__(self) -> None:
        if self.episodes is not None and self.episodes < 1:
            raise KitError(f"--episodes must be at least 1; got {self.episodes}")

    @property
    def path(self) -> Path:
        """The grid's results file."""
        name = self.grid if self.data == "kit" else f"{self.grid}-{self.data}"
        return (self.work if self.preset == "smoke" else self.results) / f"{name}.csv"

    def cells(self) -> list[Cell]:
        """All cells of the grid."""
        return cells(self.grid, self.preset, self.episodes, self.data)

    @property
    def store(self) -> Store:
        return Store(self.work)

    def flags(self) -> str:
        """What follows `brrcrl experiments ...` to mean the same rows again."""
        defaults = {item.name: item.default for item in fields(GridConfig) if item.name != "grid"}
        shown = {name: getattr(self, name) for name in defaults}
        return " ".join([self.grid, *(f"--{name} {value}" for name, value in shown.items() if value != defaults[name])])


@dataclass(frozen=True)
class ExperimentConfig(GridConfig):
    """Run a grid; finished cells are skipped."""

    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    """Processes, one thread each; with SLURM, jobs at once."""
    key: str | None = None
    """Measure this one row again, into --work, and show it beside the recorded one."""
    shard: str | None = None
    """k/n: only the k-th of n equal shares of the trainings, for example 2/8; the same shares everywhere."""
    engine: Literal["local", "ray", "slurm"] = "local"
    """Where the trainings run: processes here, a Ray cluster (pip install 'brrcrl[ray]'), or SLURM ([slurm])."""
    address: str | None = None
    """Ray: the cluster to join, for example auto; if left out, one is started here."""
    gpus: float | None = None
    """Ray and SLURM: share of a GPU per training; the method's own if left out."""
    cluster: Literal["slurm", "local"] = "slurm"
    """SLURM: local runs the very same jobs on this machine, to try them."""
    minutes: int = 240
    """SLURM: time limit of a job. One that reaches it is queued again, and continues."""
    slurm: dict[str, str] = field(default_factory=dict)
    """SLURM: further options of sbatch, as --slurm partition gpu account mine."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.workers < 1:
            raise KitError(f"--workers must be at least 1; got {self.workers}")
        if self.minutes < 1:
            raise KitError(f"--minutes must be at least 1; got {self.minutes}")
        if self.gpus is not None and not 0 <= self.gpus < 1_000:
            raise KitError(f"--gpus must be a number from 0; got {self.gpus}")
        if self.shard is not None:
            self.share()

    def share(self) -> tuple[int, int]:
        """(k, n) of --shard; (1, 1) without."""
        match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", self.shard or "1/1")
        k, n = (int(match[1]), int(match[2])) if match else (0, 0)
        if not 1 <= k <= n:
            raise KitError(f"--shard is k/n with 1 <= k <= n, for example 2/8; got '{self.shard}'")
        return k, n

    def flags(self) -> str:
        own = [f"--shard {self.shard}"] * (self.shard is not None)
        own += [f"--engine {self.engine}"] * (self.engine != "local")
        own += [f"--address {self.address}"] * (self.address is not None)
        return " ".join([super().flags(), *own])


@dataclass(frozen=True)
class Plan:
    """A grid as it stands."""

    config: GridConfig
    every: list[Cell]
    """All cells of the grid."""
    chosen: list[Cell]
    """Those of the chosen datasets and share."""
    recorded: pd.DataFrame
    """The rows of its results file; none if there is no file."""
    rows: dict[str, dict[str, Any]]
    """The rows of finished cells in the work folder, by key."""

    @cached_property
    def done(self) -> set[str]:
        return {*(self.recorded["key"] if len(self.recorded) else ()), *self.rows}

    def missing(self) -> list[Cell]:
        return [cell for cell in self.chosen if cell.key not in self.done]

    def groups(self) -> list[Group]:
        """What is missing, by training."""
        return [Group(tuple(group), self.config.work.absolute()) for group in by_training(self.missing()).values()]

    def unusable(self) -> dict[str, str]:
        """Which datasets are not here, or not what they were: dataset -> why it cannot be used, and what to do.

        Frame stores are opened once, before several processes want them.

        Rows of one file must come from the same data. Where those can be built in different ways, their fingerprint
        in the rows says whether they do.
        """
        problems = {}
        for dataset in dict.fromkeys(cell.dataset for cell in self.missing()):
            absent = None if is_frames(dataset) else missing_dataset_message(dataset)
            if absent:
                problems[dataset] = f"{absent}; {making_command(dataset)}"
                continue
            try:
                mark = open_source(dataset).facts().fingerprint if is_frames(dataset) else None
            except (DatasetError, OSError) as error:
                problems[dataset] = str(error)
                continue
            others = self._marks(dataset) - {mark}
            if mark is not None and others:
                problems[dataset] = (
                    f"{self.config.path.name} was measured on other data of that name (fingerprint {others.pop()}, "
                    f"here {mark}); rebuild those or choose another --results"
                )
        return problems

    def _marks(self, dataset: str) -> set[Any]:
        rows = self.recorded
        return set(rows.loc[rows["dataset"] == dataset, "fingerprint"]) if "fingerprint" in rows else set()


def make_plan(config: GridConfig) -> Plan:
    """Read everything that is there, and refuse what is broken before any work starts."""
    every = config.cells()
    chosen = _of_dataset(every, config.dataset)
    if isinstance(config, ExperimentConfig):
        chosen = shard(chosen, *config.share())
    recorded = read_results(config.path) if config.path.exists() else pd.DataFrame()
    return Plan(config, every, chosen, recorded, config.store.rows(every))


def making_command(dataset: str) -> str:
    """What makes a dataset of vectors, in words."""
    name = DatasetName.parse(dataset)
    if name.namespace == "d4rl":
        env = (name.world.env_id or "<its environment>").replace("-v5", "-v4")
        return f"`brrcrl data import-d4rl FILE --env {env} --id {dataset}` makes it of D4RL's file"
    collect = f"brrcrl data collect --env {name.world.env_id} --out runs/{name.world_name}"
    return f"`{collect} --publish-as {name.world_name}` makes it" if name.world.env_id else "install it there"


def by_training(wanted: Sequence[Cell]) -> dict[str, list[Cell]]:
    groups: dict[str, list[Cell]] = {}
    for cell in wanted:
        groups.setdefault(cell.train_key, []).append(cell)
    return groups


def shard(wanted: list[Cell], k: int, n: int) -> list[Cell]:
    """The k-th of n shares (k from 1): every n-th training in the order of their keys, with all of its cells."""
    mine = set(sorted({cell.train_key for cell in wanted})[k - 1 :: n])
    return [cell for cell in wanted if cell.train_key in mine]


def _of_dataset(wanted: list[Cell], word: str | None) -> list[Cell]:
    chosen = [cell for cell in wanted if word is None or word in cell.dataset]
    if not chosen:
        known = list(dict.fromkeys(cell.dataset for cell in wanted))
        raise KitError(f"no dataset of this grid is called '{word}'{did_you_mean(str(word), known)}")
    return chosen
