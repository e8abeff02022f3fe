"""Packed samples of frame stores (`brrcrl data pack` writes them): read, checked, and made stores again.

A sample is an npz without pickles and without compression of its own: `head` (JSON), `episodes` (the table of a
store) and `block_0000` and so on, each the frames of some whole games and then their steps, compressed with LZMA.
Nothing is taken on trust: a file gets no more memory than a sample needs, whatever it says about itself.
"""

from __future__ import annotations

import io
import lzma
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.files import locked, sha256
from brrcrl_lib.base.limits import RECORD, each, parse_json, whole
from brrcrl_lib.data import open as opening
from brrcrl_lib.data.frame_format import ENDED, EPISODE, LIFE_LOST, STEP, TERMINATED, TRUNCATED, frames_root, read_about
from brrcrl_lib.data.registry import DatasetError
from brrcrl_lib.tools.publishing.frame_writer import FrameWriter

LARGEST_BLOCK = 256_000_000
"""Bytes of a block when it is unpacked; the longest game that the kit plays has 190 million."""
LZMA_MEMORY = 200_000_000
HEAD = {
    "shape": each(whole(1, 4_096), 2),
    "about": RECORD,
    "source_steps": whole(0),
    "source_episodes": whole(0),
}


def import_sample(path: Path, target: Path, overwrite: bool = False) -> Path:
    """Write the games of a sample as a frame store, whole or not at all.

    Of several processes that ask for the same at the same time one writes, and the others wait and take its store.
    """
    if not path.is_file():
        raise DatasetError(f"no file at {path}")
    digest, before = sha256(path), _stamp(target)
    with locked(target.with_name(f"{target.name}.unpack"), wait=True):
        made_meanwhile = _stamp(target) not in (None, before)
        if made_meanwhile and read_about(target)["about"].get("packed_sha256") == digest:
            return target
        try:
            with zipfile.ZipFile(path) as archive:
                return _unpack(archive, path, digest, target, overwrite)
        except KitError:
            raise
        except (zipfile.BadZipFile, lzma.LZMAError, EOFError, ValueError, NotImplementedError) as error:
            raise DatasetError(f"{path} is no readable sample of a frame store: {error}") from error


def unpack_shipped(game: str) -> Path:
    """The store sample/<game> of the sample that ships as data/atari/<game>.npz, made anew when another one ships."""
    file, folder = opening.SAMPLES / f"{game}.npz", frames_root() / "sample" / game
    here = _stamp(folder) is not None
    if not file.is_file():
        if here:
            return folder
        raise DatasetError(f"no sample of {game} at {file}; `{opening.unpack_command(game)}` makes one")
    if not here or read_about(folder)["about"].get("packed_sha256") != sha256(file):
        import_sample(file, folder, overwrite=True)
    return folder


def _stamp(target: Path) -> int | None:
    """When the store at `target` was written, if there is one."""
    file = target / "store.json"
    return file.stat().st_mtime_ns if file.is_file() else None


def _unpack(archive: zipfile.ZipFile, path: Path, digest: str, target: Path, overwrite: bool) -> Path:
    head = parse_json(_content(archive, "head", path), f"{path} (head)", HEAD, None, DatasetError)
    height, width = head["shape"]
    table = np.frombuffer(_content(archive, "episodes", path), EPISODE)
    if not len(table) or table["length"].min() < 1:
        raise ValueError("its table of episodes is empty, or has one without steps")
    source = {key: head[f"source_{key}"] for key in ("steps", "episodes")}
    about = {**head["about"], "sample_of": source, "packed_sha256": digest}
    with FrameWriter(target, about, (height, width), overwrite) as writer:
        writer.rewind(0, 0, 0)  # whatever an earlier attempt left
        for episode, frames, steps in _episodes(archive, path, table, (height, width)):
            flags = steps["flags"]
            writer.append(
                frames,
                steps["action"],
                steps["reward"],
                (flags & TERMINATED) != 0,
                (flags & TRUNCATED) != 0,
                (flags & LIFE_LOST) != 0,
                policy=int(episode["policy"]),
                seed=int(episode["seed"]),
            )
        return writer.finish()


def _content(archive: zipfile.ZipFile, name: str, path: Path) -> bytes:
    """The bytes of one array; in a sample none is longer than the file it lies in."""
    try:
        entry = archive.getinfo(f"{name}.npy")
    except KeyError:
        raise DatasetError(f"{path} is no readable sample of a frame store: it has no {name}") from None
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > path.stat().st_size:
        raise ValueError(f"{name} is compressed, or longer than the file")
    stream = io.BytesIO(archive.read(entry))
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError(f"{name} is an array of another version of npy")
    shape, _, kind = np.lib.format.read_array_header_1_0(stream)
    content = stream.read()
    if kind != np.uint8 or shape != (len(content),):
        raise ValueError(f"{name} should be {len(content)} bytes; it says {kind} {shape}")
    return content


def _episodes(
    archive: zipfile.ZipFile, path: Path, table: np.ndarray, shape: tuple[int, int]
) -> Iterator[tuple[np.void, np.ndarray, np.ndarray]]:
    """(row of the table, frames [T, height, width], steps [T]) of every episode."""
    size, number = shape[0] * shape[1], 0
    names = sorted(name.removesuffix(".npy") for name in archive.namelist() if name.startswith("block_"))
    for name in names:
        raw = np.frombuffer(_decompress(_content(archive, name, path)), np.uint8)
        count, rest = divmod(len(raw), size + STEP.itemsize)
        frames, steps = raw[: count * size].reshape(count, *shape), raw[count * size :]
        lengths = np.cumsum(table["length"][number:], dtype=np.int64)
        episodes = int(np.searchsorted(lengths, count)) + 1
        if rest or not count or episodes > len(lengths) or lengths[episodes - 1] != count:
            raise ValueError(f"{name} does not hold the whole episodes that its table says")
        records = steps.view(STEP)
        ends = np.flatnonzero(records["flags"] & ENDED)
        if not np.array_equal(ends, lengths[:episodes] - 1):
            raise ValueError(f"the episodes in {name} do not end where its table says")
        for first, last in zip([0, *lengths[: episodes - 1]], lengths[:episodes], strict=True):
            yield table[number], frames[first:last], records[first:last]
            number += 1
    if number != len(table):
        raise ValueError(f"it has {number} of {len(table)} episodes")


def _decompress(packed: bytes) -> bytes:
    """LZMA, with a limit on what it takes and what it gives."""
    stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=LZMA_MEMORY)
    content = stream.decompress(packed, LARGEST_BLOCK + 1)
    if len(content) > LARGEST_BLOCK or not stream.eof:
        raise ValueError(f"a block is cut short, or takes more than {LARGEST_BLOCK:,} bytes when it is unpacked")
    return content
