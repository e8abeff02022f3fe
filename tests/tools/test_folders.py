"""Folders that are replaced: killed at every step, and only the kit's own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.files import settle, settle_below
from brrcrl_lib.tools.publishing.folders import check_replaceable, replace_folder


def folder(path: Path, content: str) -> Path:
    path.mkdir(parents=True)
    (path / "store.json").write_text(content)
    return path


class Killed(BaseException):
    """Stands for a signal that nothing catches."""


def test_a_replacement_killed_anywhere_leaves_the_old_or_the_new(tmp_path, monkeypatch) -> None:
    """Before each rename and each removal in turn; afterwards `settle` puts things right."""
    survived = []
    for calls in range(10):
        base = tmp_path / str(calls)
        target, fresh = folder(base / "x", "old"), folder(base / ".x.1.partial", "new")
        left = [calls]

        def counted(function, left=left):
            def call(*arguments, **options):
                if left[0] == 0:
                    raise Killed
                left[0] -= 1
                return function(*arguments, **options)

            return call

        with monkeypatch.context() as patched:
            patched.setattr(Path, "replace", counted(Path.replace))
            patched.setattr(Path, "unlink", counted(Path.unlink))
            patched.setattr(shutil, "rmtree", counted(shutil.rmtree))
            try:
                replace_folder(fresh, target)
                finished = True
            except Killed:
                finished = False
        settle_below(base)
        survived.append((target / "store.json").read_text())
        assert not (base / ".x.old").exists()
        if finished:
            break
    assert finished and survived == ["old", "old", "new", "new", "new"][: len(survived)] and len(survived) >= 4


def test_only_the_kits_own_folders_are_replaced(tmp_path) -> None:
    check_replaceable(tmp_path / "free", "store.json", overwrite=False)
    mine = folder(tmp_path / "mine", "x")
    with pytest.raises(KitError, match="exists; choose another place or pass --overwrite"):
        check_replaceable(mine, "store.json", overwrite=False)
    check_replaceable(mine, "store.json", overwrite=True)
    with pytest.raises(KitError, match=r"has no store\.json, so it is not replaced"):
        check_replaceable(tmp_path, "store.json", overwrite=True)
    folder(mine / "inside", "y")
    with pytest.raises(KitError, match="inside lies in it"):
        check_replaceable(mine, "store.json", overwrite=True)
    settle(Path())  # no name, nothing to do
