"""Who trains what: one claim per training, so that runners who share a folder share the work.

The claim on a training is the last of its files <name>.1, <name>.2, ...: each names a process and can be created by
one process only. Whoever finds the last one released, or its process gone, creates the next. A process of this
machine is gone when the system says so; one of another machine when it has not touched its file for a while.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from brrcrl_lib.base.files import write_json

HEARTBEAT, LOST = 20.0, 300.0
"""Seconds between signs of life, and without one until a process on another machine counts as gone."""


@dataclass(frozen=True)
class Holder:
    """The process that has a claim."""

    pid: int
    host: str
    namespace: str
    """Of process numbers: containers of one machine may give the same number twice."""
    born: str
    """When the process began, as its system counts: numbers of processes are used again."""
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} (since {self.since})"

    @staticmethod
    def me() -> Holder:
        pid, host, space = os.getpid(), socket.gethostname(), _namespace()
        return Holder(pid, host, space, _born(pid) or "", time.strftime("%Y-%m-%d %H:%M:%S"))


@dataclass(frozen=True)
class Claims:
    """The claims in a folder."""

    folder: Path

    def holder(self, name: str) -> Holder | None:
        """Who is at work on it now."""
        latest = self.starts(name)
        return self._alive(self._file(name, latest)) if latest else None

    def starts(self, name: str) -> int:
        """How often somebody has taken it up."""
        numbers = (path.suffix[1:] for path in self.folder.glob(f"{name}.*"))
        return max((int(number) for number in numbers if number.isdigit()), default=0)

    @contextmanager
    def hold(self, name: str) -> Iterator[Holder | None]:
        """Yields None if the claim is ours until the end of the block, else who has it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        latest = self.starts(name)
        other = self._alive(self._file(name, latest)) if latest else None
        file, me = self._file(name, latest + 1), Holder.me()
        if other is not None or not _create(file, json.dumps(asdict(me))):
            yield other or self.holder(name) or Holder(0, "another machine", "", "", "just now")
            return
        over = threading.Event()
        threading.Thread(target=_beat, args=(file, over), daemon=True).start()
        try:
            yield None
        finally:
            over.set()
            write_json(file, {**asdict(me), "released": True})

    def _file(self, name: str, number: int) -> Path:
        return self.folder / f"{name}.{number}"

    def _alive(self, file: Path) -> Holder | None:
        """The process that a claim names, unless it has let go or is gone."""
        try:
            fresh = self._now() - file.stat().st_mtime < LOST
            stored = json.loads(file.read_text())
            released = stored.pop("released", False)
            holder = Holder(**stored)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, AttributeError):  # created a moment ago and not yet written, or broken
            return Holder(0, "a process", "", "", "just now") if fresh else None
        if released:
            return None
        if (holder.host, holder.namespace) == (socket.gethostname(), _namespace()):
            return holder if _born(holder.pid) == (holder.born or None) else None
        return holder if fresh else None

    def _now(self) -> float:
        """The time by the clock that stamps this folder's files, which need not be this machine's."""
        probe = self.folder / f".now.{os.getpid()}.{threading.get_ident()}"
        probe.touch()
        try:
            return probe.stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)


def _create(file: Path, text: str) -> bool:
    """Write a file that is not there yet; False if somebody was faster."""
    try:
        descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
    return True


def _beat(file: Path, over: threading.Event) -> None:
    while not over.wait(HEARTBEAT):
        try:
            os.utime(file)
        except OSError:  # a folder that is away for a moment, or for good
            continue


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _born(pid: int) -> str | None:
    """When a living process of this machine began; None if there is none of that number."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None if Path("/proc/self").exists() else _answers(pid)
    return None if fields[0] in "ZX" else f"{boot} {fields[19]}"


def _answers(pid: int) -> str | None:
    """Where there is no /proc: whether some process has that number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "alive"
