"""Files that survive a kill: every write goes to a temporary name and is renamed when it is whole.

Names that begin with a dot and end so are the kit's own: `.x.123.partial` is being written by process 123 (and swept
by the next writer of x once that has died), `.x.old` was just replaced (`settle` sweeps it, or puts it back),
`.x.lock` keeps a second writer out.
"""

from __future__ import annotations

import csv
import errno
import glob
import hashlib
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from brrcrl_lib.base.errors import KitError

ROOT = Path(__file__).resolve().parent.parent.parent
"""The repository: `data/`, `figures/` and `notebooks/` lie here."""

RECORDED_PACKAGES = ("torch", "numpy", "gymnasium", "mujoco", "ale-py", "minari", "stable-baselines3")


@contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """Yield a temporary sibling of `path`; rename it to `path` if the block succeeds, else remove it."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = partial_path(path)
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise explain(error, path) from error
    finally:
        temporary.unlink(missing_ok=True)


def explain(error: OSError, path: Path) -> OSError:
    """A full disk in words; any other error as it is."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return error
    return OSError(f"no space left for {path}; free some and repeat the command (what was there before is kept)")


def partial_path(path: Path) -> Path:
    """Where this process prepares `path`; what processes that have died left there is removed."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        number = left.name.split(".")[-2]
        if number.isdigit() and not _alive(int(number)):
            remove(left)
    return path.with_name(f".{path.name}.{os.getpid()}.partial")


def _alive(process: int) -> bool:
    if os.name == "nt":  # asking would interrupt it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def settle(target: Path) -> None:
    """If a replacement was interrupted, put the old folder back, or remove it if the new one is in place."""
    if target.name in ("", "..") or not old_path(target).exists():
        return
    with locked(old_path(target), wait=True):  # a replacement that is under way ends first
        if target.exists():
            remove(old_path(target))
        elif old_path(target).exists():
            old_path(target).replace(target)


def settle_below(base: Path) -> None:
    """`settle` for all folders below `base`."""
    for old in base.rglob(".*.old"):
        settle(old.with_name(old.name[1:-4]))


def old_path(target: Path) -> Path:
    """Where a folder lies while another takes its place."""
    return target.with_name(f".{target.name}.old")


@contextmanager
def locked(target: Path, wait: bool = False, purpose: str = "writing") -> Iterator[None]:
    """Keep other processes out of `target`; the system gives the lock back when the process ends, however it ends.

    If there is another, wait for it or say which. Where there are no such locks (Windows, some network file systems),
    nothing is locked.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    path = target.with_name(f".{target.name}.lock")
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                file.seek(0)
                who = file.read() or "another process"
                raise KitError(f"{who} is {purpose} {target}; wait for it to end, or end it") from None
            except OSError:
                pass  # a file system without locks
            if not path.exists() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                continue  # whoever held it has removed the file meanwhile
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}")
            file.flush()
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: Path | str, value: Any) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1, sort_keys=True, default=str) + "\n")


def write_csv(path: Path | str, rows: Sequence[Mapping[str, Any]]) -> None:
    with atomic_path(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)


def versions() -> dict[str, str]:
    """Versions of everything that can change a number, as stored beside each recorded result."""
    found = {"python": platform.python_version()}
    for package in RECORDED_PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found


@cache
def git_revision() -> str:
    """Short revision of the kit, with `+` when the tree had uncommitted changes; `unknown` outside a checkout."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True, timeout=20
        ).stdout.strip()

    try:
        return git("rev-parse", "--short=10", "HEAD") + (
            "+" if git("status", "--porcelain", "--untracked-files=no") else ""
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
