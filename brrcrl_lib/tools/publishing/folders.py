"""Folders that are replaced whole: only the kit's own, and killed at any moment one of the two is there."""

from __future__ import annotations

import os
from pathlib import Path

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.files import locked, old_path, remove, settle


def check_replaceable(target: Path, marker: str, overwrite: bool) -> None:
    """Refuse to write over `target`, unless it is free, or `overwrite` is set and it is one folder of the kit's own.

    The kit's own has the file `marker` in it, and no other such file further down: that would be lost with it.
    """
    settle(target)
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise KitError(f"{target} exists; choose another place or pass --overwrite")
    if not (target / marker).is_file():
        raise KitError(f"{target} has no {marker}, so it is not replaced; choose another place or remove it yourself")
    inside = [file.parent for file in target.rglob(marker) if file.parent != target]
    if inside:
        raise KitError(f"{target} is not replaced, because {inside[0]} lies in it; choose another place or move that")


def replace_folder(fresh: Path, target: Path) -> None:
    """Put `fresh` in the place of `target`. Killed at any moment, `settle` finds the old one or the new one whole."""
    settle(target)
    old = old_path(target)
    with locked(old, wait=True):
        if target.exists():
            target.replace(old)
        fresh.replace(target)
        remove(old)
