"""Nonsense on the command line: every flag of every command, with values that cannot or can hardly be meant.

A case is a good command with one flag more, which wins over an earlier one. It must be refused in one sentence, or be
a valid request after all and run; nothing outside its own folders may change.
"""

from __future__ import annotations

import dataclasses
import random
import shutil
import time
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from grid_cases import DATASET

from brrcrl_lib import cli
from brrcrl_lib.base.files import ROOT
from brrcrl_lib.methods.base import method_named
from chaos.calls import Ended, call
from chaos.inputs import COLLECT, SMALL
from chaos.tally import Tally

NEVER = ("", "nan", "\t")
"""What no flag takes (a path may be called so, but not be empty)."""
NUMBERS = ("-1", "0", "1000000000", "99999999999999999999", "-99999999999999999999", "1e308", "-1e-320", "inf", "-inf",
           "0.99999999", "1.5", "x", "None", "1,5", "0x10")  # fmt: skip
NAMES = (
    "x",
    "..",
    ".",
    "../../outside",
    "a/../../../outside",
    "os:system",
    "-",
    "ü" * 300,
    "a b",
    "$HOME",
    "None",
    "-1",
)
PATHS = (".", "..", "good.txt", "good.txt/x", "missing/x", "../../outside", "y" * 300)
WORK = {"steps", "episodes", "evaluation_episodes", "random_steps", "fresh_episodes", "states", "draws",
        "literal_states", "repeats", "measuring_games"}  # fmt: skip
"""Flags of which a large number is a valid wish for much work."""


@dataclass(frozen=True)
class Flag:
    """One flag of a command."""

    name: str
    kind: type
    """int, float, str, bool or Path."""

    def values(self) -> Iterator[tuple[str, ...]]:
        """What to put behind it."""
        if self.kind is bool:
            yield ("maybe",)
            return
        plain = {int: NUMBERS, float: NUMBERS, Path: PATHS}.get(self.kind, NAMES)
        large = self.name.rsplit(".", 1)[-1] in WORK
        chosen = [
            value for value in (*NEVER, *plain) if not (large and value in ("1000000000", "99999999999999999999"))
        ]
        yield from ((value,) for value in chosen if not (self.kind is Path and value in ("nan", "\t")))
        yield ("-1", "-1")
        yield ()


@dataclass(frozen=True)
class Command:
    """A good command, and the flags it has."""

    name: str
    words: tuple[object, ...]
    settings: tuple[type, ...]
    slow: bool = False
    """A valid request takes minutes: only what can never be valid is tried."""

    def cases(self) -> list[tuple[Flag, tuple[str, ...]]]:
        found = [(flag, values) for kind in self.settings for flag in flags_of(kind) for values in flag.values()]
        if self.slow:
            return [(flag, values) for flag, values in found if values in (("-1",), ("0",), ("nan",), ("",), ("x",))]
        return found


def flags_of(settings: type, prefix: str = "") -> Iterator[Flag]:
    """The flags that a settings dataclass makes, with those of dataclasses inside it."""
    for field in dataclasses.fields(settings):
        hint = get_type_hints(settings, include_extras=True)[field.name]
        if "Positional" in str(field.type) or "UseAppend" in str(field.type):
            continue
        kind = _plain(hint)
        if dataclasses.is_dataclass(kind):
            yield from flags_of(kind, f"{prefix}{field.name}.")
        else:
            yield Flag(prefix + field.name, kind if kind in (int, float, bool, Path) else str)


def _plain(hint: Any) -> Any:
    """The type inside annotations, unions with None and tuples."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _plain(arguments[0])
    if origin in (Union, types.UnionType):
        return _plain(next(kind for kind in arguments if kind is not type(None)))
    return _plain(arguments[0]) if origin is tuple else hint


def commands(base: Path, work: Path) -> list[Command]:
    def of(name: str, *words: object, slow: bool = False) -> Command:
        module, config, _, _ = cli.COMMANDS[name]
        return Command(name, (*name.split(), *words), (_class(module, config),), slow)

    def variant(name: str, flag: str, *words: object) -> Command:
        module, config, _ = cli.VARIANTS[name, flag]
        return Command(f"{name} {flag}", (*name.split(), *words), (_class(module, config),))

    train, evaluate = _class("commands", "Train"), _class("commands", "Evaluate")
    grid = ("slow", "--preset", "smoke", "--episodes", "1", "--work", base / "grid", "--results", work)
    tiny = ("--ppo.envs", 2, "--ppo.rollout", 16, "--ppo.batch-size", 32, "--ppo.epochs", 1, "--ppo.units", 8)
    trainings = [
        Command(f"train {name}", ("train", name, "--dataset", DATASET, "--out", work / "run", *SMALL, "--steps", 4),
                (train, method_named(name).Config))
        for name in ("br_rcrl", "vanilla", "dt", "cql")
    ]  # fmt: skip
    return [
        *trainings,
        Command("evaluate", ("evaluate", "--run", base / "run", "--episodes", 1, "--max-steps", 5),
                (evaluate, method_named("cloning").Act)),
        Command("evaluate br_rcrl", ("evaluate", "--run", ROOT / "data/models/hopper-medium-replay-authors.safetensors",
                                     "--episodes", 1, "--max-steps", 2), (evaluate, method_named("br_rcrl").Act)),
        of("experiments run", *grid, "--workers", 1),
        of("experiments status", *grid),
        of("experiments merge", *grid),
        Command("data collect", (*COLLECT[:4], "--steps", 200, *COLLECT[6:], "--out", work / "run"),
                (_class("tools.collecting.collect", "CollectConfig"),)),
        variant("data collect", "--algorithm ppo", "--algorithm", "ppo", "--env", "ALE/Pong-v5", "--out", work / "run",
                "--steps", 64, "--snapshot-every", 64, *tiny, "--measuring-games", 1, "--policies", work / "policies"),
        of("data rollout", "--policy", base / "policy.safetensors", "--id", "test/x-v0", "--steps", 300, "--num-envs",
           1, "--root", work / "minari"),
        variant("data rollout", "--ladder", "--ladder", base / "ladder", "--steps", 40, "--num-envs", 1, "--max-frames",
                80, "--root", work / "frames"),
        of("data publish", "--run", base / "collected", "--name", "x", "--root", work / "minari", "--min-replay", 200,
           "--medium-share", 0, "--steps", 300, "--num-envs", 1, "--fresh-episodes", 1),
        of("data verify", "test/pendulum-v0", "--replay-episodes", 0),
        of("data import-d4rl", base / "d4rl.hdf5", "--env", "Pendulum-v1", "--id", "test/x-v0", "--root",
           work / "minari"),
        of("data import-dqn-replay", base / "ladder", "--game", "Pong", "--root", work / "frames"),
        of("data pack", base / "frames/mine/pong", "--out", work / "x.npz"),
        of("data unpack", base / "pong.npz", "--name", "x", "--root", work / "frames"),
        of("data card", DATASET),
        of("data cards", "--root", work / "nothing"),
        of("notebooks run", "01", "--out", work, slow=True),
        of("bench", "--out", work / "bench.json", slow=True),
    ]  # fmt: skip


def _class(module: str, name: str) -> type:
    return getattr(import_module(f"brrcrl_lib.{module}"), name)


@cache
def _shown(value: str) -> str:
    return value if len(value) < 40 else f"{value[:10]}... ({len(value)} letters)"


def listing(*folders: Path) -> dict[Path, tuple[int, int]]:
    """Every file with its size and time."""
    found = (path for folder in folders for path in folder.rglob("*"))
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in found if path.is_file()}


def campaign(base: Path, place: Path, variables: dict[str, str], rng: random.Random, seconds: float, tally: Tally,
             only: str) -> None:  # fmt: skip
    """Commands in turn, their cases in random order, until the time is over."""
    end = time.monotonic() + seconds
    home = place / "some" / "where" / "home"
    work = place / "work"
    waiting = {command: command.cases() for command in commands(base, work) if only in command.name}
    for cases in waiting.values():
        rng.shuffle(cases)
    while any(waiting.values()):
        for command, cases in waiting.items():
            if cases and time.monotonic() < end:
                flag, values = cases.pop()
                _try(command, flag, values, (base, home, work), variables, tally)
        if time.monotonic() > end:
            return


def _try(command: Command, flag: Flag, values: tuple[str, ...], folders: tuple[Path, Path, Path],
         variables: Mapping[str, str], tally: Tally) -> None:  # fmt: skip
    base, home, work = folders
    for folder in (home, work):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    (home / "good.txt").write_text("mine")
    everywhere = (base, home.parent.parent.parent, ROOT / "data")
    before = listing(*everywhere)
    ended = call((*command.words, f"--{flag.name.replace('_', '-')}", *values), home, dict(variables), patience=90)
    row = f"words of {command.name.split()[0]}"
    what = f"{command.name} --{flag.name} {' '.join(map(repr, map(_shown, values)))}"
    a_name = flag.kind is str and values == ("nan",)  # letters like any other
    judge(ended, row, what, tally, wrong=bool(values) and values[0] in NEVER and not a_name)
    changed = {path for path, state in before.items() if not path.exists() or listing_of(path) != state}
    added = set(listing(*everywhere)) - set(before)
    stray = {path for path in added if not path.is_relative_to(work) and not path.is_relative_to(home)}
    allowed = flag.kind is Path or any(path.is_relative_to(base / "grid") for path in changed | stray)
    if (changed and flag.kind is not Path and not allowed) or (stray and not allowed):
        tally.bad(row, "harm", f"{what}: changed {sorted(changed)[:3]}, wrote {sorted(stray)[:3]}")
    for path in stray:
        path.unlink(missing_ok=True)


def listing_of(path: Path) -> tuple[int, int]:
    return path.stat().st_size, path.stat().st_mtime_ns


def judge(ended: Ended, row: str, what: str, tally: Tally, wrong: bool) -> None:
    """Count a case. `wrong`: it should have been refused."""
    tally.count(row, "cases")
    if ended.code is None:
        tally.bad(row, "hangs", f"{what}\n{ended.said[-300:]}")
    elif ended.broken:
        tally.bad(row, "tracebacks", f"{what}: {_last(ended.said)}\n{ended.said[-1500:]}")
    elif ended.refused:
        tally.count(row, "refused")
    elif ended.code == 0 and not wrong:
        tally.count(row, "ran")
    elif ended.code == 0:
        tally.bad(row, "accepted", f"{what}\n{ended.said[-300:]}")
    else:
        tally.bad(row, "tracebacks", f"{what}: exit code {ended.code} without a word")


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:200] if lines else ""
