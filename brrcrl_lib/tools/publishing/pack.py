"""`brrcrl data pack` and `unpack`: some games of a frame store in one small file, without loss.

Whole games are compressed with LZMA, about 64 MB of frames at a time, so that what a game repeats is stored once:
20 to 100 bytes per frame instead of 7,056. (XOR with the frame before, or pixels along time, came out larger.)
The file is an npz without pickles.
"""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from brrcrl_lib.base.devices import track
from brrcrl_lib.base.files import atomic_path, write_json
from brrcrl_lib.base.limits import check
from brrcrl_lib.base.settings import NAMES, Count, Names, OutPath, check_settings
from brrcrl_lib.data.frame_format import EPISODE, STEP, frames_root
from brrcrl_lib.data.frames import FrameStore, open_frames
from brrcrl_lib.data.registry import DatasetError
from brrcrl_lib.tools.publishing.game_cards import make_card
from brrcrl_lib.tools.publishing.samples import LARGEST_BLOCK, import_sample

BLOCK_BYTES = 64_000_000
"""Frames that are compressed together: LZMA looks back as far."""
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 1 << 26}]


@dataclass(frozen=True)
class PackConfig:
    """Put as many whole games of a frame store as fit into one small file."""

    store: OutPath
    """The frame store, by name or path."""
    out: OutPath
    """File to write, for example data/atari/pong.npz; its card is data/atari/pong.json."""
    max_bytes: Count = 3_000_000
    """Size that the file must not exceed."""
    root: Path | None = None
    """Folder of frame stores; by default BRRCRL_FRAMES_PATH or runs/frames."""


@dataclass(frozen=True)
class UnpackConfig:
    """Turn a packed sample into a frame store."""

    file: Path
    """A file that `brrcrl data pack` wrote, for example data/atari/pong.npz."""
    name: Names | None = None
    """Name of the store; by default that of the file."""
    root: Path | None = None
    """Folder of frame stores; by default BRRCRL_FRAMES_PATH or runs/frames."""
    overwrite: bool = False
    """Replace a store of the same name."""


@dataclass(frozen=True)
class Unpacked:
    """What an import left."""

    path: Path
    steps: int
    episodes: int

    def __str__(self) -> str:
        return f"{self.path}: {self.steps:,} transitions in {self.episodes:,} episodes"


def pack(config: PackConfig) -> dict[str, Any]:
    """The command: like `export_sample`."""
    check_settings(config)
    return export_sample(open_frames(config.store, config.root), config.out, config.max_bytes)


def unpack(config: UnpackConfig) -> Unpacked:
    """The command: like `import_sample`."""
    check_settings(config)
    name = config.name or config.file.stem
    check(name, NAMES, "the name of a store")
    store = FrameStore(import_sample(config.file, frames_root(config.root) / name, config.overwrite))
    return Unpacked(store.folder, len(store), store.episodes)


def export_sample(store: FrameStore, path: Path, max_bytes: int = 3_000_000) -> dict[str, Any]:
    """Write as many games as fit, evenly from all policies, and beside them a card; say how many those were."""
    if path.suffix != ".npz":
        raise DatasetError(f"a sample is an .npz file with its card beside it; write {path.with_suffix('.npz')}")
    order = _spread(store)
    longest = int(store.lengths.max()) * (store.shape[0] * store.shape[1] + STEP.itemsize)
    if longest > LARGEST_BLOCK:
        raise DatasetError(f"a game of {store.folder} takes {longest:,} bytes; {LARGEST_BLOCK:,} is the most to pack")
    head = {"shape": store.shape, "about": store.about, "source_steps": len(store), "source_episodes": store.episodes}
    room = max_bytes - len(json.dumps(head)) - 4_000
    arrays: dict[str, np.ndarray] = {"head": np.frombuffer(json.dumps(head).encode(), np.uint8)}
    taken: list[int] = []
    bar = track(total=store.episodes, desc="packing", unit="episode")
    while order and room > 0:
        block = _first_block(store, order)
        packed = _compress(store, block)
        while len(packed) + EPISODE.itemsize * len(block) + 400 > room and len(block) > 1:
            block = block[: len(block) // 2]
            packed = _compress(store, block)
        cost = len(packed) + EPISODE.itemsize * len(block) + 400  # an entry of the zip file has two headers
        if cost > room:
            break
        arrays[f"block_{len(arrays) - 1:04d}"] = np.frombuffer(packed, np.uint8)
        room -= cost
        taken += block
        order = order[len(block) :]
        bar.update(len(block))
    bar.close()
    if not taken:
        raise DatasetError(f"not even one episode fits into {max_bytes:,} bytes; allow more with --max-bytes")
    table = np.zeros(len(taken), EPISODE)
    table["length"], table["policy"], table["seed"] = (
        column[taken] for column in (store.lengths, store.policies, store.seeds)
    )
    arrays["episodes"] = table.view(np.uint8)
    with atomic_path(path) as temporary:
        with temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        size = temporary.stat().st_size
        if size > max_bytes:
            raise DatasetError(f"{path} came out at {size:,} bytes instead of at most {max_bytes:,}")
    steps = int(table["length"].sum())
    write_json(path.with_suffix(".json"), {"sample": make_card(store, taken), "store": make_card(store)})
    return {
        "file": path,
        "bytes": size,
        "steps": steps,
        "episodes": len(taken),
        "bytes_per_step": round(size / steps, 1),
    }


def _spread(store: FrameStore) -> list[int]:
    """Episodes so that every beginning of the list has about as many of each policy: a policy's n-th comes n-th."""
    rank = np.zeros(store.episodes, np.int64)
    for policy in np.unique(store.policies):
        mine = np.flatnonzero(store.policies == policy)
        rank[mine] = np.arange(len(mine))
    return np.lexsort((store.policies, rank)).tolist()


def _first_block(store: FrameStore, order: list[int]) -> list[int]:
    """The first episodes of `order` that are compressed together; at least one."""
    sizes = np.cumsum(store.lengths[order]) * store.shape[0] * store.shape[1]
    return order[: max(1, int(np.searchsorted(sizes, BLOCK_BYTES, side="right")))]


def _compress(store: FrameStore, episodes: list[int]) -> bytes:
    compressor = lzma.LZMACompressor(lzma.FORMAT_XZ, filters=FILTERS)
    pieces = []
    for number in episodes:
        first, last = store.starts[number], store.starts[number] + store.lengths[number]
        pieces.append(compressor.compress(np.ascontiguousarray(store.frames[first:last]).tobytes()))
    for number in episodes:
        pieces.append(compressor.compress(_records(store, number).tobytes()))
    return b"".join([*pieces, compressor.flush()])


def _records(store: FrameStore, number: int) -> np.ndarray:
    """Steps of an episode as they are stored: rewards as played, even if the store was opened with clipped ones."""
    first, count = int(store.starts[number]), int(store.lengths[number])
    return np.fromfile(store.folder / "steps.bin", STEP, count, offset=first * STEP.itemsize)
