"""Locks that the system gives back when a process ends, however it ends."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from brrcrl_lib.base.errors import KitError

try:
    import fcntl
except ImportError:  # Windows: no locks, as before there were any
    fcntl = None  # type: ignore[assignment]


def hold_folder(folder: Path, purpose: str) -> IO[str]:
    """Take `folder` for this process alone, or say who has it. It is free again when what is returned is closed."""
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / ".lock").open("a+")
    if not _lock(file.fileno(), wait=False):
        file.seek(0)
        who = file.read().strip() or "another process"
        file.close()
        raise KitError(f"{who} is {purpose} {folder}; wait for it to end, or choose another folder")
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()} (since {time.strftime('%Y-%m-%d %H:%M:%S')})\n")
    file.flush()
    return file


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """One process at a time inside the block; others wait for their turn."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY) if fcntl is not None else None
    try:
        if descriptor is not None:
            _lock(descriptor, wait=True)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _lock(descriptor: int, wait: bool) -> bool:
    """False if another process has it. A file system that knows no locks is taken to have granted it."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True
