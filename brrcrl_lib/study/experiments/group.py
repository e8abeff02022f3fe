"""A training group: one training and the cells that are measured on it. What every engine hands to its workers."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from brrcrl_lib.base.devices import use_one_thread
from brrcrl_lib.base.files import atomic_path
from brrcrl_lib.checkpoints import Checkpoint
from brrcrl_lib.data.batch import Source
from brrcrl_lib.data.open import open_source
from brrcrl_lib.methods.base import method_named
from brrcrl_lib.study.analysis.held_out import held_out_losses
from brrcrl_lib.study.experiments.grids import LENGTHS, Cell
from brrcrl_lib.study.experiments.row import measure
from brrcrl_lib.study.experiments.store import Store
from brrcrl_lib.training import fit, load_run

SMOKE_STEPS = 30
"""Length of a smoke run's episodes."""


@dataclass(frozen=True)
class Group:
    """Cells that share a training, and the folder that they go to."""

    cells: tuple[Cell, ...]
    work: Path

    @property
    def train_key(self) -> str:
        return self.cells[0].train_key

    @property
    def store(self) -> Store:
        return Store(self.work)

    def missing(self) -> list[Cell]:
        return [cell for cell in self.cells if not self.store.done(cell)]

    def describe(self) -> str:
        first = self.cells[0]
        settings = " ".join(f"{name}={value}" for name, value in first.training.items())
        return f"{first.dataset} seed {first.seed} {settings}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Cells travel without what they have worked out so far: of a plugin's method, another process could not
        read it before it has loaded the plugin."""
        return Group, (tuple(replace(cell) for cell in self.cells), self.work)


@dataclass(frozen=True)
class Outcome:
    """What became of a group."""

    train_key: str
    held_by: str | None = None
    """Who else is at work on it, if somebody is; then nothing was done here."""


def run_group(group: Group) -> Outcome:
    """Train once, then evaluate each cell; rows and failures are left in the work folder."""
    if not group.missing():
        return Outcome(group.train_key)
    use_one_thread()
    os.environ["BRRCRL_QUIET"] = "1"  # one bar for the grid; bars of several processes would fight for the line
    with group.store.claims.hold(group.train_key) as other:
        if other is not None:
            return Outcome(group.train_key, str(other))
        for cell in group.missing():  # asked again: another runner may have finished it just before
            try:
                group.store.record(cell, *measure_cell(cell, group.store))
            except Exception as error:  # a failing cell must not stop the rest
                group.store.fail(cell, f"{type(error).__name__}: {error}")
    return Outcome(group.train_key)


def measure_cell(cell: Cell, store: Store) -> tuple[dict[str, Any], pd.DataFrame]:
    """The row of a cell and its trace, from a training that is finished first if it is not."""
    config, folder = cell.config, store.training(cell)
    source = _load(cell.dataset, config.discount, config.reward_clip)
    begin_with_a_shorter_training(cell, store)
    fit(config, source, folder, resume=True, preset=cell.preset)
    run = load_run(folder)
    row, trace = measure(
        run,
        method_named(cell.method).Act(**cell.act),
        episodes=cell.episodes,
        seed=1000 * (cell.seed + 1),
        max_steps=SMOKE_STEPS if cell.preset == "smoke" else cell.max_steps,
    )
    variant = {name: value for name, value in cell.variant.items() if name != "objective"}
    named = {"key": cell.key, "train_key": cell.train_key, "variant": variant}
    return {**named, **row, "held_out": held_out_losses(run, source)}, trace


def begin_with_a_shorter_training(cell: Cell, store: Store) -> None:
    """Where the longest finished training of LENGTHS with otherwise the same settings ended, a longer one goes on.

    It ends with the weights that it would have had anyway, bit for bit: training resumes exactly.
    """
    folder = store.training(cell)
    extended = method_named(cell.method).may_be_extended and cell.config.patience is None
    if (folder / "checkpoint.safetensors").exists() or not extended:
        return
    for steps in sorted((steps for steps in LENGTHS if steps < cell.config.steps), reverse=True):
        shorter = store.training(replace(cell, training={**cell.training, "steps": steps}))
        finished = shorter / "checkpoint.safetensors"
        if finished.exists() and Checkpoint.load(finished).about["step"] == steps:
            for name in ("metrics.csv", finished.name):  # the checkpoint last: with it, there is a run to resume
                with atomic_path(folder / name) as temporary:
                    shutil.copyfile(shorter / name, temporary)
            return


@lru_cache(maxsize=1)
def _load(dataset: str, discount: float | None, reward_clip: float | None) -> Source:
    return open_source(dataset, discount=discount, reward_clip=reward_clip)
