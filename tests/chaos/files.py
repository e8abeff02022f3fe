"""Spoiled files: every kind that the kit reads, each changed in every way that fits it, and read by its commands.

Each case must end in one clear sentence, or run validly: a changed word in a description does no harm.
"""

from __future__ import annotations

import random
import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from grid_cases import DATASET

from chaos.calls import call
from chaos.inputs import COLLECT, PENDULUM, PLAIN, SMALL
from chaos.mutations import BYTES, Mutation, cell, field, header, table, tensor
from chaos.tally import Tally
from chaos.words import judge

NOT_A_NUMBER = re.compile(r"(?<![\w./'-])nan(?![\w/'-])")
"""In what a command says when it has ended well: a number went through that is none."""


@dataclass(frozen=True)
class Kind:
    """A kind of file, how it is spoiled and which commands read it."""

    name: str
    file: str
    """Under the inputs; a pattern, of which one file is chosen."""
    needs: tuple[str, ...]
    """Folders and files of the inputs that a case gets a copy of."""
    mutations: Sequence[Mutation]
    readers: Callable[[Path], tuple[tuple[object, ...], ...]]
    """Commands on such a copy."""
    whole: bool = True
    """A file that was cut is never valid."""


def kinds() -> list[Kind]:
    def train(at: Path, name: str, *more: object) -> tuple[object, ...]:
        return ("train", "cloning", "--dataset", name, "--out", at / "new", *SMALL, "--steps", 4, *more)

    def grid(at: Path) -> tuple[object, ...]:
        return ("slow", "--preset", "smoke", "--episodes", "1", "--work", at / "grid")

    def imports(at: Path) -> tuple[object, ...]:
        return ("data", "import-d4rl", at / "d4rl.hdf5", "--env", "Pendulum-v1", "--id", "t/x-v0", "--root", at / "new")

    def collect(at: Path) -> tuple[object, ...]:
        return (*COLLECT[:4], "--steps", 1000, *COLLECT[6:], "--out", at / "collected")

    def publish(at: Path) -> tuple[object, ...]:
        return ("data", "publish", "--run", at / "collected", "--name", "x", "--root", at / "minari", "--min-replay",
                200, "--medium-share", 0, "--steps", 300, "--num-envs", 1, "--fresh-episodes", 1)  # fmt: skip

    tensors = (*BYTES, header, header, header, tensor, tensor)
    return [
        Kind("checkpoint", "run/checkpoint.safetensors", ("run",), tensors, lambda at: (
            ("evaluate", "--run", at / "run", "--episodes", 1, "--max-steps", 5),
            ("train", "cloning", "--dataset", DATASET, "--out", at / "run", *SMALL, "--steps", 44, "--resume"))),
        Kind("metrics.csv", "run/metrics.csv", ("run",), (*BYTES, cell, cell), lambda at: (
            ("evaluate", "--run", at / "run", "--episodes", 1, "--max-steps", 5),
            ("train", "cloning", "--dataset", DATASET, "--out", at / "run", *SMALL, "--steps", 44, "--resume")), False),
        Kind("policy", "policy.safetensors", ("policy.safetensors",), tensors, lambda at: (
            ("data", "rollout", "--policy", at / "policy.safetensors", "--id", "t/x-v0", "--steps", 200, "--num-envs",
             1, "--root", at / "new"),)),
        Kind("policy of a ladder", "ladder/step-0.safetensors", ("ladder",), tensors, lambda at: (
            ("data", "rollout", "--ladder", at / "ladder", "--steps", 40, "--num-envs", 1, "--max-frames", 80, "--root",
             at / "new"),)),
        Kind("store.json", "frames/mine/pong/store.json", ("frames",), (*BYTES, field, field, field), lambda at: (
            ("data", "pack", at / "frames/mine/pong", "--out", at / "new.npz"),
            ("train", "br_rcrl_joint", "--dataset", "mine/pong", "--out", at / "new", *SMALL, "--steps", 2,
             "--batch-size", 4))),
        Kind("sample", "pong.npz", ("pong.npz",), BYTES, lambda at: (
            ("data", "unpack", at / "pong.npz", "--name", "x", "--root", at / "new"),)),
        Kind("metadata.json", "minari/test/pendulum-v0/data/metadata.json", ("minari",), (*BYTES, field, field, field),
             lambda at: (train(at, PENDULUM), ("data", "verify", PENDULUM), ("data", "card", PENDULUM))),
        Kind("part of a dataset", "minari/test/pendulum-v0/data/*.hdf5", ("minari",), (*BYTES, table), lambda at: (
            train(at, PENDULUM), ("data", "verify", PENDULUM))),
        Kind("plain Minari", "minari/test/plain-v0/data/main_data.hdf5", ("minari",), (*BYTES, table, table, table),
             lambda at: (train(at, PLAIN), ("data", "verify", PLAIN), ("data", "card", PLAIN))),
        Kind("D4RL file", "d4rl.hdf5", ("d4rl.hdf5",), (*BYTES, table, table, table), lambda at: (imports(at),)),
        Kind("results CSV", "grid/slow.csv", ("grid",), (*BYTES, cell, cell, cell), lambda at: (
            ("experiments", "run", *grid(at), "--workers", 1), ("experiments", "status", *grid(at)),
            ("experiments", "merge", *grid(at)))),
        Kind("cell file", "grid/cells/*.json", ("grid",), (*BYTES, field, field, field), lambda at: (
            ("experiments", "status", *grid(at)), ("experiments", "merge", *grid(at)))),
        Kind("config.json", "collected/config.json", ("collected",), (*BYTES, field, field), lambda at: (
            collect(at), publish(at))),
        Kind("state of a collection", "collected/state.safetensors", ("collected",), tensors, lambda at: (
            collect(at), publish(at))),
        Kind("notebook", "notebooks/01_small.ipynb", ("notebooks",), (*BYTES, field, field, field), lambda at: (
            ("notebooks", "list"), ("notebooks", "run", "01", "--preset", "smoke", "--out", at / "new"),
            ("notebooks", "refresh", "01"))),
    ]  # fmt: skip


def campaign(base: Path, place: Path, variables: dict[str, str], rng: random.Random, seconds: float, tally: Tally,
             only: str) -> None:  # fmt: skip
    """Kinds in turn, each with a random mutation and a random command, until the time is over."""
    end, number = time.monotonic() + seconds, 0
    chosen = [kind for kind in kinds() if only in kind.name]
    while chosen and time.monotonic() < end:
        for kind in chosen:
            number += 1
            _try(kind, base, place / str(number), variables, rng, tally)
            shutil.rmtree(place / str(number), ignore_errors=True)
            if time.monotonic() > end:
                return


def _try(kind: Kind, base: Path, at: Path, variables: dict[str, str], rng: random.Random, tally: Tally) -> None:
    (at / "home").mkdir(parents=True)
    for name in kind.needs:
        (shutil.copytree if (base / name).is_dir() else shutil.copy)(base / name, at / name)
    file = rng.choice(sorted(at.glob(kind.file)))
    mutation = rng.choice(kind.mutations)
    how = mutation(file, rng)
    words = rng.choice(kind.readers(at))
    copies = {"MINARI_DATASETS_PATH": "minari", "BRRCRL_FRAMES_PATH": "frames", "BRRCRL_NOTEBOOKS": "notebooks"}
    own = {variable: str(at / folder) for variable, folder in copies.items() if folder in kind.needs}
    ended = call(words, at / "home", {**variables, **own})
    cut = kind.whole and mutation.__name__ in ("truncate", "noise") and not _is_listing(words)
    wrong = cut or NOT_A_NUMBER.search(ended.said) is not None
    judge(ended, f"{kind.name}, spoiled", f"{' '.join(map(str, words[:3]))}: {how}", tally, wrong)


def _is_listing(words: tuple[object, ...]) -> bool:
    return words[:2] == ("notebooks", "list")
