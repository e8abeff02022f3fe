"""Write a frame store step by step: what was committed survives a kill, what was not is cut off on return."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from brrcrl_lib.base.files import explain, locked, remove, write_json
from brrcrl_lib.data.frame_format import (
    ENDED,
    EPISODE,
    FORMAT,
    LIFE_LOST,
    SHAPE,
    STACK,
    STEP,
    TERMINATED,
    TRUNCATED,
    VERSION,
    file_sizes,
    read_about,
)
from brrcrl_lib.data.registry import DatasetError
from brrcrl_lib.tools.publishing.folders import check_replaceable, replace_folder


class FrameWriter:
    """Appends to a folder beside `target`, which `finish` renames to `target`.

    `about` says what is being written; a half-written store is continued only if it was begun with the same. Its
    `progress` is whatever the caller handed to the last `commit`.
    """

    def __init__(
        self, target: Path, about: dict[str, Any], shape: tuple[int, int] = SHAPE, overwrite: bool = False
    ) -> None:
        self.target, self.shape = target, shape
        self.folder = staging_folder(target)
        self.about: dict[str, Any] = json.loads(json.dumps(about, default=str))
        self.steps = self.episodes = self.open_steps = self.committed = 0
        self.progress: dict[str, Any] = {}
        self.finished = False
        self._files: dict[str, BinaryIO] = {}
        self._new_parents = [parent for parent in self.folder.parents if not parent.exists()]
        self._held = ExitStack()
        self._held.enter_context(locked(target))  # before anything is looked at: another may be writing or finishing
        try:
            check_replaceable(target, "store.json", overwrite)
            self.resumed = self._restore()
            self._open()
        except BaseException:
            self.close()
            self._remove_new_parents()
            raise

    def _open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, size in file_sizes(self.steps, self.episodes, self.shape).items():
            path = self.folder / name
            path.touch()
            self._files[name] = path.open("r+b")
            self._files[name].truncate(size)  # cuts a torn tail off, and makes the black frames of a new store
            self._files[name].seek(size)

    def _restore(self) -> bool:
        """Take up what was committed; True if there was anything."""
        if not (self.folder / "store.json").exists():
            remove(self.folder)
            return False
        found = read_about(self.folder)
        if found["about"] != self.about or tuple(found["shape"]) != self.shape:
            changed = sorted(
                key for key in {*found["about"], *self.about} if found["about"].get(key) != self.about.get(key)
            )
            raise DatasetError(
                f"{self.folder} holds the beginning of something else (other {', '.join(changed) or 'frame size'}); "
                "remove that folder or repeat the command that began it"
            )
        for name, size in file_sizes(found["steps"], found["episodes"], self.shape).items():
            path = self.folder / name
            if not path.is_file() or path.stat().st_size < size:
                raise DatasetError(f"{path} is shorter than store.json says; remove {self.folder} to begin anew")
        self.steps, self.episodes = self.committed, _ = found["steps"], found["episodes"]
        self.open_steps, self.progress = found["open_steps"], found.get("progress", {})
        return True

    def append(
        self,
        frames: np.ndarray,  # [n, height, width] uint8
        actions: np.ndarray,  # [n], 0 to 255
        rewards: np.ndarray,  # [n]
        terminated: np.ndarray,  # [n] bool: the game was over after this step
        truncated: np.ndarray | None = None,  # [n] bool: the time limit or the recording ended here
        life_lost: np.ndarray | None = None,  # [n] bool
        policy: int = -1,
        seed: int = -1,
    ) -> None:
        """Add consecutive steps. An episode may begin in one call and end in another."""
        count = len(frames)
        records = np.zeros(count, STEP)
        self._check(frames, actions, rewards)
        records["action"], records["reward"] = actions, rewards
        for bit, column in ((TERMINATED, terminated), (TRUNCATED, truncated), (LIFE_LOST, life_lost)):
            if column is not None:
                if np.shape(column) != (count,):
                    raise DatasetError(f"{count} frames, but flags of shape {np.shape(column)}")
                records["flags"] |= (np.asarray(column, dtype=bool) * bit).astype(np.uint8)
        both = (records["flags"] & ENDED) == ENDED
        records["flags"][both] &= ~np.uint8(TRUNCATED)  # a game that is over was not cut off
        ends = np.flatnonzero(records["flags"] & ENDED)
        finished = np.zeros(len(ends), EPISODE)
        if len(ends):
            finished["length"] = np.diff(ends, prepend=-1)
            finished["length"][0] += self.open_steps
            finished["policy"], finished["seed"] = policy, seed
        try:
            self._files["frames.u8"].write(np.ascontiguousarray(frames).data)
            self._files["steps.bin"].write(records.tobytes())
            self._files["episodes.bin"].write(finished.tobytes())
        except OSError as error:
            raise explain(error, self.folder) from error
        self.steps += count
        self.episodes += len(ends)
        self.open_steps = count - 1 - int(ends[-1]) if len(ends) else self.open_steps + count

    def _check(self, frames: np.ndarray, actions: np.ndarray, rewards: np.ndarray) -> None:
        if frames.dtype != np.uint8 or frames.shape[1:] != self.shape:
            raise DatasetError(f"frames must be uint8 [n, {self.shape[0]}, {self.shape[1]}]; got {_kind(frames)}")
        if np.shape(actions) != (len(frames),) or np.shape(rewards) != (len(frames),):
            shapes = f"actions {np.shape(actions)} and rewards {np.shape(rewards)}"
            raise DatasetError(f"{len(frames)} frames, but {shapes}")
        if len(frames) and not (np.min(actions) >= 0 and np.max(actions) <= 255):
            raise DatasetError(f"actions must lie in 0 to 255; got {np.min(actions)} to {np.max(actions)}")
        if not np.isfinite(rewards).all():
            raise DatasetError(f"a reward is not finite, in step {self.steps + int(np.argmin(np.isfinite(rewards))):,}")

    def drop_open(self) -> int:
        """Forget the steps of the episode that is under way; return how many they were."""
        dropped = self.open_steps
        self.rewind(self.steps - dropped, self.episodes, 0)
        return dropped

    def rewind(self, steps: int, episodes: int, open_steps: int) -> None:
        """Go back to where the store had so many steps, the last `open_steps` of them in an unfinished episode."""
        self.steps, self.episodes, self.open_steps = steps, episodes, open_steps
        if steps < self.committed:  # killed in between, store.json must not promise more than the files hold
            self.committed, self.progress = steps, self.progress if steps else {}
            self._describe(self.folder, self.about, self.progress)
        for name, size in file_sizes(steps, episodes, self.shape).items():
            self._files[name].flush()
            self._files[name].truncate(size)
            self._files[name].seek(size)

    def commit(self, **progress: Any) -> None:
        """From here on, a kill loses nothing of what was appended so far."""
        try:
            for file in self._files.values():
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise explain(error, self.folder) from error
        self.progress, self.committed = progress, self.steps
        self._describe(self.folder, self.about, progress)

    def _describe(self, folder: Path, about: dict[str, Any], progress: dict[str, Any]) -> None:
        counts = {"steps": self.steps, "episodes": self.episodes, "open_steps": self.open_steps}
        head = {"format": FORMAT, "version": VERSION, "shape": list(self.shape), "stack": STACK}
        write_json(folder / "store.json", {**head, **counts, "progress": progress, "about": about})

    def finish(self, **about: Any) -> Path:
        """Drop an unfinished episode, add `about` to what the store says of itself, and move it to its place."""
        if self.open_steps:
            self.drop_open()
        if not self.episodes:
            raise DatasetError(f"{self.target} would hold no finished episode")
        self.commit(**self.progress)
        self._close_files()
        replace_folder(self.folder, self.target)
        self.about |= json.loads(json.dumps(about, default=str))
        self._describe(self.target, self.about, {})
        self.finished = True
        self.close()
        return self.target

    def close(self) -> None:
        """Let go of the files and of the lock."""
        self._close_files()
        self._held.close()

    def _close_files(self) -> None:
        for file in self._files.values():
            with suppress(OSError):  # on a full disk what was not committed cannot be written, and does not count
                file.close()

    def discard(self) -> None:
        """Give up: remove what was written, committed or not."""
        self._close_files()
        remove(self.folder)
        self.close()
        self._remove_new_parents()

    def _remove_new_parents(self) -> None:
        for parent in self._new_parents:
            with suppress(OSError):  # somebody else put something there
                parent.rmdir()

    def __enter__(self) -> FrameWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.finished and not (self.folder / "store.json").exists():  # nothing was committed: nothing is left
            self.discard()
        self.close()


def staging_folder(target: Path) -> Path:
    """Where a store grows until it is whole."""
    return target.with_name(f".{target.name}.partial")


def _kind(values: np.ndarray) -> str:
    return f"{values.dtype} {list(values.shape)}"
