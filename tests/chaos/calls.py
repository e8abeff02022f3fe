"""The `brrcrl` command in a process of its own, which may be killed while it works.

The process is forked from this one, where everything that takes seconds to import is loaded already.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brrcrl_lib.cli import main

PATIENCE = 120.0
"""Seconds after which a command hangs: all of them are small."""
MEMORY = 12_000_000_000
"""Bytes of address space for a command; torch alone maps several thousand million."""
READ_VARIABLES = ("brrcrl_lib.tools.notebook", "brrcrl_lib.tools.readme")
"""Modules that read variables when they are imported: a command must read its own, not this process's."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "shutil.rmtree"}


@dataclass(frozen=True)
class Ended:
    """What became of a call."""

    words: tuple[str, ...]
    code: int | None
    """The exit code, negative for a signal; None: it hung."""
    said: str
    seconds: float
    changes: int
    """Times it was about to change a file or folder; 0 if it did not live to tell."""

    @property
    def refused(self) -> bool:
        """One clear sentence, and an exit code that says so."""
        return self.code is not None and self.code > 0 and "Traceback" not in self.said and bool(self.said.strip())

    @property
    def broken(self) -> bool:
        """A traceback, or a crash."""
        return "Traceback (most recent call last)" in self.said or (self.code is not None and self.code < 0)


def call(
    words: Sequence[object],
    home: Path,
    variables: dict[str, str] | None = None,
    *,
    die_at: int | None = None,
    meddle: Callable[[int, float], None] | None = None,
    patience: float = PATIENCE,
) -> Ended:
    """Run `brrcrl words` in `home` and wait for its end.

    `die_at`: it is killed just before its n-th change to files. `meddle(process, seconds)` is called again and again
    while it runs.
    """
    log = home / ".said"
    sys.stdout.flush()
    started = time.monotonic()
    process = os.fork()
    if process == 0:
        _command([str(word) for word in words], home, variables or {}, log, die_at)
    code = _wait(process, started, meddle, patience)
    said = log.read_text(errors="replace") if log.exists() else ""
    log.unlink(missing_ok=True)
    changes = home / ".changes"
    count = int(changes.read_text()) if changes.exists() else 0
    changes.unlink(missing_ok=True)
    return Ended(tuple(map(str, words)), code, said, time.monotonic() - started, count)


def _wait(process: int, started: float, meddle: Callable[[int, float], None] | None, patience: float) -> int | None:
    while True:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - started
        if seconds > patience:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return None
        if meddle is not None:
            meddle(process, seconds)
        time.sleep(0.002)


def _command(words: list[str], home: Path, variables: dict[str, str], log: Path, die_at: int | None) -> None:
    """The forked process: never returns."""
    code = 1
    try:
        os.setsid()
        said = os.open(log, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(said, 1)
        os.dup2(said, 2)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.chdir(home)
        os.environ.update(variables)
        for name in [name for name in sys.modules if name.startswith(READ_VARIABLES)]:
            package, _, module = name.rpartition(".")
            vars(sys.modules[package]).pop(module, None)
            del sys.modules[name]
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        counted = _count_changes(die_at)
        try:
            main(words)
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 1
        (home / ".changes").write_text(str(counted[0]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _count_changes(die_at: int | None) -> list[int]:
    """Count what is about to change a file (files that libraries open themselves stay unseen); die at one of them."""
    counted, me = [0], os.getpid()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING
        if not (writes or event in CHANGES) or os.getpid() != me:
            return
        counted[0] += 1
        if counted[0] == die_at:
            os.kill(me, signal.SIGKILL)

    sys.addaudithook(hook)
    return counted
