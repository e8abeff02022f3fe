"""SIGKILL at a random moment, or just before a random change to files; then the command that continues.

In the end everything must be as if nothing had happened, and at no time may anything old be lost.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from grid_cases import DATASET, comparable

from brrcrl_lib.base.tensors import load_tensors
from brrcrl_lib.data.frames import FrameStore
from brrcrl_lib.data.minari import load_dataset
from brrcrl_lib.study.experiments.claims import Claims
from brrcrl_lib.study.experiments.results import read_results
from chaos.calls import Ended, call
from chaos.inputs import COLLECT, SMALL, write_d4rl, write_frames, write_notebook
from chaos.tally import Tally

MOST_KILLS = 3
"""Kills of one piece of work, before it may end."""


@dataclass(frozen=True)
class Victim:
    """A command that is killed."""

    name: str
    words: Callable[[Path], tuple[object, ...]]
    """The command, which also continues its own work, in a folder."""
    begin: Callable[[Path], object]
    """What is there before it starts."""
    result: Callable[[Path], Any]
    """What it made, without what depends on the clock."""
    keeps: str = "nothing"
    """What must be there after every kill: nothing in particular, the old result or the new one, or finished rows."""
    who: str = "parent"
    """Whom a kill hits: the process itself, or one of its workers."""


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def tensors_of(path: Path) -> str:
    tensors = load_tensors(path)[1]
    return digest(*(name.encode() + tensors[name].numpy().tobytes() for name in sorted(tensors)))


def folder_of(folder: Path, pattern: str) -> dict[str, str]:
    return {path.name: digest(path.read_bytes()) for path in sorted(folder.glob(pattern))}


def dataset_of(root: Path, name: str) -> str:
    data = load_dataset(name, root=root)
    columns = (data.observations, data.actions, data.rewards, data.terminations, data.truncations, data.lengths)
    return digest(*(column.numpy().tobytes() for column in columns))


def frames_of(folder: Path) -> str:
    store = FrameStore(folder)
    return digest(store.fingerprint.encode(), store.frames[:].tobytes())


def trained(folder: Path) -> Any:
    return tensors_of(folder / "run" / "checkpoint.safetensors"), (folder / "run" / "metrics.csv").read_bytes()


def collected(folder: Path) -> Any:
    run = folder / "run"
    return tensors_of(run / "state.safetensors"), folder_of(run, "parts/*.hdf5"), folder_of(run, "snapshots/*")


def measured(folder: Path) -> pd.DataFrame:
    return comparable(read_results(folder / "work" / "quick.csv"))


def victims(base: Path) -> list[Victim]:
    grid = ("experiments", "run", "quick", "--preset", "smoke", "--episodes", "1", "--workers", "2")
    policy, unpacked = base / "policy.safetensors", "--overwrite"
    rollout = ("data", "rollout", "--policy", policy, "--id", "test/x-v0", "--steps", "3000", "--num-envs", "4")
    nothing: Callable[[Path], object] = lambda folder: None  # noqa: E731

    def old_dataset(folder: Path) -> None:
        shutil.copytree(base / "minari" / "test" / "pendulum-v0", folder / "minari" / "test" / "x-v0")

    return [
        Victim(
            "train",
            lambda f: ("train", "br_rcrl", "--dataset", DATASET, "--out", f / "run", *SMALL, "--resume"),
            nothing,
            trained,
        ),
        Victim("data collect", lambda f: (*COLLECT, "--out", f / "run"), nothing, collected),
        Victim(
            "data import-d4rl",
            lambda f: (
                "data",
                "import-d4rl",
                f / "new.hdf5",
                "--env",
                "Pendulum-v1",
                "--id",
                "test/x-v0",
                "--root",
                f / "minari",
                "--overwrite",
            ),
            lambda f: (old_dataset(f), write_d4rl(f / "new.hdf5", seed=1)),
            lambda f: dataset_of(f / "minari", "test/x-v0"),
            "old or new",
        ),
        Victim(
            "data rollout",
            lambda f: (*rollout, "--root", f / "minari", "--overwrite"),
            old_dataset,
            lambda f: dataset_of(f / "minari", "test/x-v0"),
            "old or new",
        ),
        Victim(
            "data pack",
            lambda f: ("data", "pack", base / "frames" / "mine" / "pong", "--out", f / "x.npz"),
            lambda f: shutil.copy(base / "older.npz", f / "x.npz"),
            lambda f: digest((f / "x.npz").read_bytes()),
            "old or new",
        ),
        Victim(
            "data unpack",
            lambda f: ("data", "unpack", base / "pong.npz", "--name", "s", "--root", f, unpacked),
            lambda f: write_frames(f / "s", seed=1),
            lambda f: frames_of(f / "s"),
            "old or new",
        ),
        Victim(
            "notebooks refresh",
            lambda f: ("notebooks", "refresh", "01"),
            lambda f: write_notebook(f / "notebooks" / "01_small.ipynb"),
            lambda f: (f / "notebooks" / "01_small.ipynb").read_bytes(),
            "old or new",
        ),
        Victim("experiments, runner", lambda f: (*grid, "--work", f / "work"), nothing, measured, "rows"),
        Victim("experiments, worker", lambda f: (*grid, "--work", f / "work"), nothing, measured, "rows", "worker"),
    ]


class Hunt:
    """One victim: undisturbed once, then killed again and again, each time in a folder of its own."""

    def __init__(self, victim: Victim, base: Path, place: Path, variables: dict[str, str]) -> None:
        self.victim, self.base, self.place, self.variables = victim, base, place, variables
        self.rounds, self.spent = 0, 0.0
        folder = self._folder()
        self.old = victim.result(folder) if victim.keeps == "old or new" else None
        self.undisturbed = self._call(folder)
        assert self.undisturbed.code == 0, self.undisturbed
        self.new = victim.result(folder)
        shutil.rmtree(folder)

    def _folder(self) -> Path:
        folder = self.place / f"{self.victim.name.replace(' ', '-').replace(',', '')}-{self.rounds}"
        folder.mkdir(parents=True)
        self.victim.begin(folder)
        return folder

    def _call(self, folder: Path, **fate: Any) -> Ended:
        variables = {**self.variables, "BRRCRL_NOTEBOOKS": str(folder / "notebooks")}
        return call(self.victim.words(folder), folder, variables, **fate)

    def round(self, rng: random.Random, tally: Tally) -> None:
        """Some kills, then the end; what was found goes to `tally`."""
        started = time.monotonic()
        self.rounds += 1
        folder, name = self._folder(), self.victim.name
        for _ in range(rng.randint(1, MOST_KILLS)):
            rows = self._rows(folder)
            ended = self._worker_killed(folder, rng) if self.victim.who == "worker" else self._killed(folder, rng)
            if self._judge(ended, name, tally, killed=True):
                tally.count(name, "kills")
            self._look_for_losses(folder, rows, ended, tally)
            if ended.code == 0:
                break
        ended = self._call(folder)
        self._judge(ended, name, tally)
        tally.count(name, "cases")
        try:
            made = self.victim.result(folder)
            same = made.equals(self.new) if isinstance(made, pd.DataFrame) else made == self.new
            if not same:
                tally.bad(name, "unequal", f"not the result of an undisturbed run, in {folder}")
        except Exception as error:
            tally.bad(name, "lost", f"no result: {error!r}, in {folder}")
        else:
            if same and not tally.failed:
                shutil.rmtree(folder)
        self.spent += time.monotonic() - started

    def _killed(self, folder: Path, rng: random.Random) -> Ended:
        """At a moment, or before a change to files."""
        if rng.random() < 0.5 and self.undisturbed.changes:
            return self._call(folder, die_at=rng.randint(1, self.undisturbed.changes))
        moment = rng.uniform(0, self.undisturbed.seconds)

        def meddle(process: int, seconds: float) -> None:
            if seconds >= moment:
                os.kill(process, signal.SIGKILL)

        return self._call(folder, meddle=meddle)

    def _worker_killed(self, folder: Path, rng: random.Random) -> Ended:
        """One of the workers, while it holds a training; the command goes on."""
        moment, killed = rng.uniform(0, 0.8 * self.undisturbed.seconds), []

        def meddle(process: int, seconds: float) -> None:
            if seconds < moment or killed:
                return
            claims = Claims(folder / "work" / "claims")
            names = {path.name.rsplit(".", 1)[0] for path in claims.folder.glob("*")}
            for holder in filter(None, map(claims.holder, names)):
                if holder.pid in (0, os.getpid()):  # a claim that is just being written names nobody yet
                    continue
                with suppress(ProcessLookupError):
                    os.kill(holder.pid, signal.SIGKILL)
                    killed.append(holder.pid)
                    return

        return self._call(folder, meddle=meddle)

    def _judge(self, ended: Ended, name: str, tally: Tally, killed: bool = False) -> bool:
        """Count what a call should not do; whether it was hit."""
        if ended.code is None:
            tally.bad(name, "hangs", " ".join(ended.words))
        elif "Traceback (most recent call last)" in ended.said:
            tally.bad(name, "tracebacks", ended.said[-2000:])
        elif ended.code != 0 and not (killed and ended.code == -signal.SIGKILL):
            tally.bad(name, "unequal", f"exit code {ended.code}: {ended.said[-500:]}")
        return ended.code == -signal.SIGKILL or self.victim.who == "worker"

    def _rows(self, folder: Path) -> set[str]:
        return {path.name for path in folder.glob("work/cells/*.json")}

    def _look_for_losses(self, folder: Path, rows: set[str], ended: Ended, tally: Tally) -> None:
        name = self.victim.name
        if self.victim.keeps == "rows":
            gone = rows - self._rows(folder)
            broken = [path for path in folder.glob("work/cells/*.json") if not _readable(path)]
            if gone or broken:
                tally.bad(name, "lost", f"cells {gone} {broken}", len(gone) + len(broken))
        elif self.victim.keeps == "old or new":
            try:
                found = self.victim.result(folder)
            except Exception as error:
                tally.bad(name, "lost", f"{error!r} after {ended}")
            else:
                if found not in (self.old, self.new):
                    tally.bad(name, "lost", f"neither the old nor the new after {ended}")


def _readable(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_bytes()), dict)
    except ValueError:
        return False


def campaign(base: Path, place: Path, variables: dict[str, str], rng: random.Random, seconds: float, tally: Tally,
             only: str) -> None:  # fmt: skip
    """Every victim gets the same share of the time, and at least one round."""
    end = time.monotonic() + seconds
    write_frames(place / "older", seed=2)
    made = call(("data", "pack", place / "older", "--out", base / "older.npz"), place, variables)
    assert made.code == 0, made
    hunts = []
    for victim in victims(base):
        if only in victim.name:
            hunts.append(Hunt(victim, base, place, variables))
            hunts[-1].round(rng, tally)
    while hunts and time.monotonic() < end:
        min(hunts, key=lambda hunt: hunt.spent).round(rng, tally)
