"""HDF5 files, read so that a file gives its own bytes only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

from brrcrl_lib.data.registry import DatasetError

ALWAYS_ALLOWED = 64_000_000
LARGEST_RATIO = 200
"""Arrays may take so many bytes, or so many times the bytes of their file; recordings compress to a half or a tenth."""


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Say in one sentence what HDF5 and NumPy say in several kinds of exceptions."""
    try:
        yield
    except DatasetError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError) as error:
        raise DatasetError(f"{file} cannot be read: {error}; restore it or get it again") from error


def child(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset:
    """What `name` is in a group, if it lies in the same file."""
    link = group.get(name, getlink=True)
    if link is None:
        raise DatasetError(f"{group.file.filename} lacks {group.name.rstrip('/')}/{name}")
    if not isinstance(link, h5py.ExternalLink) and group[name].file.filename == group.file.filename:
        return group[name]
    raise DatasetError(f"{group.file.filename}: {name} lies in another file, which is not followed")


def numbers(group: h5py.Group, name: str) -> h5py.Dataset:
    """The array `name` of a group: plain numbers that lie in the file itself."""
    found, where = child(group, name), f"{group.file.filename}: {group.name.rstrip('/')}/{name}"
    if not isinstance(found, h5py.Dataset) or not found.shape:
        raise DatasetError(f"{where} should be an array with one row per step")
    if found.dtype.kind not in "biuf":
        raise DatasetError(f"{where} holds {found.dtype} values; real numbers are needed")
    if found.external or found.is_virtual:
        raise DatasetError(f"{where} takes its values from another file, which is not followed")
    chunk = int(np.prod(found.chunks, dtype=float)) * found.dtype.itemsize if found.chunks else 0
    if chunk > 4 * ALWAYS_ALLOWED:
        raise DatasetError(f"{where} is stored in pieces of {chunk:,} bytes; at most {4 * ALWAYS_ALLOWED:,} are read")
    return found


def check_memory(arrays: Iterable[h5py.Dataset], file: Path) -> None:
    """Refuse to read `arrays` at once if the file is far too small to hold that much."""
    claimed = sum(int(array.size) * array.dtype.itemsize for array in arrays)
    allowed = max(ALWAYS_ALLOWED, LARGEST_RATIO * file.stat().st_size)
    if claimed > allowed:
        raise DatasetError(f"{file} claims {claimed:,} bytes of arrays, more than a file of its size can hold")
