"""A small dataset and a small kit around it, for tests that run grids in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pandas as pd
import pytest

from brrcrl_lib.base.files import ROOT
from brrcrl_lib.data.storage import FlatEpisodes
from brrcrl_lib.methods import base
from brrcrl_lib.study.experiments import grids
from brrcrl_lib.study.experiments.plan import ExperimentConfig
from brrcrl_lib.study.experiments.results import read_results
from brrcrl_lib.study.experiments.running import run_grid
from brrcrl_lib.tools.publishing.minari_writer import write_dataset

PLUGIN = ROOT / "tests" / "fragile.py"
DATASET = "test/hopper/replay-v0"


def hopper_dataset(root: Path, episodes: int = 20) -> Path:
    """A few hundred steps of Hopper under random actions, as the Minari dataset DATASET."""
    env = gym.make("Hopper-v5")
    env.action_space.seed(0)
    flat: dict[str, list] = {name: [] for name in ("observations", "actions", "rewards", "terminations", "truncations")}
    lengths = []
    for episode in range(episodes):
        flat["observations"].append(env.reset(seed=episode)[0])
        ended, length = False, 0
        while not ended:
            action = env.action_space.sample()
            observation, reward, terminated, truncated, _ = env.step(action)
            ended, length = terminated or truncated, length + 1
            for name, value in zip(flat, (observation, action, reward, terminated, truncated), strict=True):
                flat[name].append(value)
        lengths.append(length)
    arrays = {name: np.array(values) for name, values in flat.items()}
    for name in ("observations", "actions", "rewards"):
        arrays[name] = arrays[name].astype(np.float32)
    episodes_ = FlatEpisodes(**arrays, lengths=np.array(lengths), seeds=np.arange(episodes))
    space = gym.spaces.Box(-np.inf, np.inf, (11,), np.float32)
    write_dataset(root, DATASET, [episodes_], env_spec=env.spec, observation_space=space,
                  action_space=env.action_space, card={})  # fmt: skip
    return root


class Kit:
    """The grids of the plugin, run in this process or by `brrcrl experiments` as a person would call it."""

    def __init__(self, data: Path, folder: Path) -> None:
        self.work, self.notes = folder / "work", folder / "notes"
        self.notes.mkdir(parents=True)
        self.variables = {
            "MINARI_DATASETS_PATH": str(data),
            "BRRCRL_METHODS": str(PLUGIN),
            "FRAGILE_NOTES": str(self.notes),
            "BRRCRL_QUIET": "1",
        }

    def config(self, grid: str, **options: Any) -> ExperimentConfig:
        return ExperimentConfig(grid, "smoke", **{"episodes": 1, "work": self.work, "workers": 1, **options})

    def start(self, command: str, grid: str, *flags: object) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "brrcrl_lib.cli", "experiments", command, grid, "--preset", "smoke"]
        words += ["--episodes", "1", "--work", str(self.work), *map(str, flags)]
        environment = {**os.environ, **self.variables, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(words, cwd=ROOT, env=environment, text=True, start_new_session=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip

    def rows(self, grid: str) -> pd.DataFrame:
        return read_results(self.work / f"{grid}.csv")

    def steps(self, seed: int, deaths: int = 0) -> list[int]:
        """Every gradient step that was taken of a training, by whomever."""
        path = self.notes / f"steps-{seed}-{deaths}"
        return [int(line) for line in path.read_text().split()] if path.exists() else []


def finish(process: subprocess.Popen[str], seconds: float = 150) -> tuple[int, str]:
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, said


def wait_until(true: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came about"
        time.sleep(0.02)


def comparable(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows without what depends on the clock."""
    return rows.drop(columns=["seconds", "train_seconds"]).sort_index(axis=1)


@contextmanager
def plugged_in(plugin: Path = PLUGIN) -> Iterator[None]:
    """BRRCRL_METHODS names the plugin. Its methods and grids are gone afterwards: other tests do not meet them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(base.PLUGINS, raising=False)
        methods, loaded, known = base.methods(), set(base._loaded), set(grids.GRIDS)
        patch.setenv(base.PLUGINS, str(plugin))
        try:
            yield
        finally:
            sys.modules.pop(plugin.stem, None)
            base._loaded.intersection_update(loaded)
            for name in set(base._METHODS) - set(methods):
                del base._METHODS[name]
            for name in set(grids.GRIDS) - known:
                del grids.GRIDS[name]


def in_thread(config: ExperimentConfig) -> tuple[threading.Thread, list[Any]]:
    """A runner beside this one: (its thread, where its exit code or what went wrong will be)."""
    ended: list[Any] = []

    def run() -> None:
        try:
            ended.append(run_grid(config))
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, ended
