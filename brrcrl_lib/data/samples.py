"""Packed samples of frame stores (`brrcrl data pack` writes them) back into stores."""

from __future__ import annotations

import json
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from brrcrl_lib.data.frame_format import EPISODE, LIFE_LOST, STEP, TERMINATED, TRUNCATED
from brrcrl_lib.data.frame_writer import FrameWriter
from brrcrl_lib.data.registry import DatasetError
from brrcrl_lib.data.storage import sha256


def import_sample(path: Path, target: Path, overwrite: bool = False) -> Path:
    """Write the games of a sample as a frame store, whole or not at all."""
    if not path.is_file():
        raise DatasetError(f"no file at {path}")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            head = json.loads(arrays["head"].tobytes())
            table = arrays["episodes"].view(EPISODE)
            shape = (int(head["shape"][0]), int(head["shape"][1]))
            source = {key: head[f"source_{key}"] for key in ("steps", "episodes")}
            about = {**head["about"], "sample_of": source, "packed_sha256": sha256(path)}
            with FrameWriter(target, about, shape, overwrite) as writer:
                writer.rewind(0, 0, 0)  # whatever an earlier attempt left
                names = sorted(name for name in arrays.files if name.startswith("block_"))
                for first, block in _blocks((arrays[name] for name in names), table, shape):
                    _append(writer, block, table[first])
                return writer.finish()
    except DatasetError:
        raise
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, lzma.LZMAError, zlib.error) as error:
        raise DatasetError(f"{path} is no readable sample of a frame store: {error}") from error


def _blocks(
    packed: Iterator[np.ndarray], table: np.ndarray, shape: tuple[int, int]
) -> Iterator[tuple[int, tuple[np.ndarray, np.ndarray]]]:
    """(number of the episode, its frames and records), block by block."""
    size, number = shape[0] * shape[1], 0
    for content in packed:
        raw = np.frombuffer(lzma.decompress(content.tobytes()), np.uint8)
        steps = len(raw) // (size + STEP.itemsize)
        frames, records = raw[: steps * size].reshape(steps, *shape), raw[steps * size :].view(STEP)
        first = 0
        while first < steps:
            last = first + int(table["length"][number])
            yield number, (frames[first:last], records[first:last])
            first, number = last, number + 1
    if number != len(table):
        raise ValueError(f"it has {number} of {len(table)} episodes")


def _append(writer: FrameWriter, block: tuple[np.ndarray, np.ndarray], episode: np.void) -> None:
    frames, records = block
    flags = records["flags"]
    writer.append(
        frames,
        records["action"],
        records["reward"],
        (flags & TERMINATED) != 0,
        (flags & TRUNCATED) != 0,
        (flags & LIFE_LOST) != 0,
        policy=int(episode["policy"]),
        seed=int(episode["seed"]),
    )
