"""The files of a DQN-replay data set: found, checked and read as streams, without pickles."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from brrcrl_lib.base.devices import track
from brrcrl_lib.data.frame_format import SHAPE
from brrcrl_lib.data.registry import DatasetError

PARTS = ("observation", "action", "reward", "terminal")
LARGEST_CHECKPOINT = 10_000_000
"""Rows; the published ones have a million."""
PATTERN = re.compile(r"\$store\$_(\w+?)_ckpt\.(\d+)\.gz")


@dataclass(frozen=True)
class Columns:
    """The small arrays of a checkpoint."""

    actions: np.ndarray  # [rows] uint8
    rewards: np.ndarray  # [rows] float32
    terminals: np.ndarray  # [rows] bool


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint whose files were found to fit together."""

    number: int
    parts: dict[str, Path]
    rows: int
    largest_action: int

    def columns(self) -> Columns:
        """Read the small arrays, again: those of fifty checkpoints would take a good deal of memory."""
        return _read_columns(self.parts)


def find_folder(base: Path, game: str) -> Path:
    """The folder that holds the files of `game`: `base` itself, or below it as they are published."""
    if not base.is_dir():
        raise DatasetError(f"no folder at {base}")
    name = re.sub(r"(^ALE/)|(-v\d+$)", "", game)
    candidates = [base, base / "replay_logs", base / name, base / name / "replay_logs"]
    for above in (base, base / name):
        candidates += sorted(above.glob("[0-9]*/replay_logs"))
    for folder in candidates:
        if folder.is_dir() and any(PATTERN.fullmatch(file.name) for file in folder.iterdir()):
            return folder
    raise DatasetError(
        f"no files like $store$_observation_ckpt.0.gz in {base}, {base / name} or {base / name / '1' / 'replay_logs'}"
    )


def find_checkpoints(folder: Path) -> list[Checkpoint]:
    """All checkpoints in order, their small arrays read and checked, the headers of their frames checked."""
    found: dict[int, dict[str, Path]] = {}
    for file in sorted(folder.iterdir()):
        match = PATTERN.fullmatch(file.name)
        if match and match[1] in PARTS:
            found.setdefault(int(match[2]), {})[match[1]] = file
    for number, parts in sorted(found.items()):
        missing = [name_of(part, number) for part in PARTS if part not in parts]
        if missing:
            raise DatasetError(f"checkpoint {number} in {folder} is not whole: {', '.join(missing)} missing")
    return [_check(number, parts) for number, parts in track(sorted(found.items()), desc="checking", unit="checkpoint")]


def name_of(part: str, number: int) -> str:
    return f"$store$_{part}_ckpt.{number}.gz"


def _check(number: int, parts: dict[str, Path]) -> Checkpoint:
    with FrameStream(parts["observation"]) as stream:
        frames = stream.rows
    columns = _read_columns(parts)
    rows = {
        "observation": frames,
        "action": len(columns.actions),
        "reward": len(columns.rewards),
        "terminal": len(columns.terminals),
    }
    if len(set(rows.values())) > 1:
        listing = ", ".join(f"{part} {count:,}" for part, count in rows.items())
        raise DatasetError(f"the arrays of checkpoint {number} in {parts['action'].parent} differ in length: {listing}")
    if frames == 0:
        raise DatasetError(f"checkpoint {number} in {parts['action'].parent} is empty")
    return Checkpoint(number, parts, frames, int(columns.actions.max()))


def _read_columns(parts: dict[str, Path]) -> Columns:
    actions, rewards, terminals = (_read_column(parts[part]) for part in PARTS[1:])
    if actions.dtype.kind not in "iu" or not ((actions >= 0) & (actions <= 255)).all():
        raise DatasetError(
            f"{parts['action']} holds no actions: {actions.dtype} from {actions.min()} to {actions.max()}"
        )
    if not np.isfinite(rewards).all():
        raise DatasetError(
            f"{parts['reward']}: the reward in row {int(np.argmin(np.isfinite(rewards))):,} is not finite"
        )
    if not np.isin(terminals, (0, 1)).all():
        raise DatasetError(f"{parts['terminal']} holds other values than 0 and 1")
    return Columns(actions.astype(np.uint8), rewards.astype(np.float32), terminals.astype(bool))


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Say in one sentence what gzip and npy say in several kinds of exceptions."""
    try:
        yield
    except FileNotFoundError:
        raise DatasetError(f"no file at {file}") from None
    except EOFError as error:
        raise DatasetError(f"{file} is cut short: its compressed data ends too early; get it again") from error
    except (OSError, zlib.error) as error:
        raise DatasetError(f"{file} is damaged or no gzip file ({error}); get it again") from error


def read_header(stream: gzip.GzipFile, file: Path) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and type of the npy array that begins here. Arrays of Python objects are refused, never loaded."""
    try:
        version = np.lib.format.read_magic(stream)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = reader(stream)
    except ValueError as error:
        raise DatasetError(f"{file} holds no npy array: {error}") from error
    if dtype.hasobject or fortran:
        raise DatasetError(
            f"{file} holds {'Python objects' if dtype.hasobject else 'columns first'}; numbers are needed"
        )
    if not shape or shape[0] > LARGEST_CHECKPOINT:
        raise DatasetError(f"{file} says that it has {shape} rows; a checkpoint has at most {LARGEST_CHECKPOINT:,}")
    return shape, dtype


def _read_column(file: Path) -> np.ndarray:
    """A flat array of numbers, [rows]."""
    with reading(file), gzip.open(file) as stream:
        shape, dtype = read_header(stream, file)
        if len(shape) != 1 or dtype.kind not in "biuf":
            raise DatasetError(f"{file} should hold one number per row; it holds {dtype} {list(shape)}")
        size = shape[0] * dtype.itemsize
        content = stream.read(size + 1)  # one more than there should be, so that gzip compares its checksum
    if len(content) != size:
        found = "more" if len(content) > size else f"{len(content) // dtype.itemsize:,}"
        raise DatasetError(f"{file} should hold {shape[0]:,} rows; it holds {found}")
    return np.frombuffer(content, dtype)


class FrameStream:
    """The frames of a checkpoint, from the first to the last, a few at a time."""

    def __init__(self, file: Path) -> None:
        self.file = file
        with reading(file):
            self._stream = gzip.open(file)  # noqa: SIM115 (closed by __exit__)
            try:
                shape, dtype = read_header(self._stream, file)
            except BaseException:
                self._stream.close()
                raise
        if shape[1:] != SHAPE or dtype != np.uint8:
            self._stream.close()
            raise DatasetError(f"{file} should hold uint8 frames [rows, 84, 84]; it holds {dtype} {list(shape)}")
        self.rows = shape[0]

    def read(self, count: int) -> np.ndarray:
        """The next `count` frames, [count, 84, 84] uint8."""
        size = SHAPE[0] * SHAPE[1]
        with reading(self.file):
            content = self._stream.read(count * size)
        if len(content) != count * size:
            raise DatasetError(f"{self.file} should hold {self.rows:,} frames; it ends before that; get it again")
        return np.frombuffer(content, np.uint8).reshape(count, *SHAPE)

    def check_end(self) -> None:
        """After the last frame: gzip compares its checksum here."""
        with reading(self.file):
            surplus = self._stream.read(1)
        if surplus:
            raise DatasetError(f"{self.file} goes on after its {self.rows:,} frames")

    def __enter__(self) -> FrameStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
