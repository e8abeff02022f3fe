"""Ways to spoil a file, whatever it is: bytes of any, fields of JSON, cells of CSV, tables of HDF5 and safetensors."""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from brrcrl_lib.base.tensors import load_tensors, save_tensors

Mutation = Callable[[Path, random.Random], str]
"""Spoils a file in place; says how."""

ODD: tuple[Any, ...] = (None, float("nan"), float("inf"), -1, 0, 1e308, 10**30, True, "", "x", "../../x", [], {},
                        [None], {"a": 1}, [[1]], ["x"] * 3, "9" * 30, "nan")  # fmt: skip


# -- bytes ---------------------------------------------------------------------------------------------------------


def truncate(path: Path, rng: random.Random) -> str:
    raw = path.read_bytes()
    size = rng.randrange(len(raw))
    path.write_bytes(raw[:size])
    return f"cut to {size} of {len(raw)} bytes"


def flip(path: Path, rng: random.Random) -> str:
    raw = bytearray(path.read_bytes())
    places = [rng.randrange(len(raw)) for _ in range(rng.choice((1, 1, 8, 100)))]
    for place in places:
        raw[place] ^= rng.randrange(1, 256)
    path.write_bytes(raw)
    return f"{len(places)} bytes flipped, the first at {places[0]}"


def flip_head(path: Path, rng: random.Random) -> str:
    raw = bytearray(path.read_bytes())
    place = rng.randrange(min(len(raw), 2_000))
    raw[place] ^= rng.randrange(1, 256)
    path.write_bytes(raw)
    return f"byte {place} flipped"


def noise(path: Path, rng: random.Random) -> str:
    size = rng.choice((0, 1, 8, 5_000))
    path.write_bytes(rng.randbytes(size))
    return f"{size} random bytes"


def insert(path: Path, rng: random.Random) -> str:
    raw = path.read_bytes()
    place = rng.randrange(len(raw))
    path.write_bytes(raw[:place] + rng.randbytes(5) + raw[place:])
    return f"5 bytes inserted at {place}"


BYTES = (truncate, flip, flip_head, noise, insert)


# -- JSON ----------------------------------------------------------------------------------------------------------


def spoil(value: Any, rng: random.Random) -> tuple[Any, str]:
    """`value` with one field dropped or changed, at any depth."""
    places = list(_places(value))
    if not places or rng.random() < 0.03:
        odd = rng.choice(ODD)
        return odd, f"all of it is {odd!r}"
    place = rng.choice(places)
    holder = value
    for key in place[:-1]:
        holder = holder[key]
    name = ".".join(map(str, place))
    if rng.random() < 0.3:
        del holder[place[-1]]
        return value, f"without {name}"
    holder[place[-1]] = rng.choice(ODD)
    return value, f"{name} is {holder[place[-1]]!r}"


def _places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to everything inside; of long lists to their ends only."""
    if isinstance(value, dict):
        keys: list[Any] = list(value)
    else:
        keys = [0, len(value) - 1] if isinstance(value, list) and value else []
    for key in dict.fromkeys(keys):
        yield (*before, key)
        yield from _places(value[key], (*before, key))


def spoil_text(text: str, rng: random.Random) -> tuple[str, str]:
    value, how = spoil(json.loads(text), rng)
    return json.dumps(value), how


def field(path: Path, rng: random.Random) -> str:
    text, how = spoil_text(path.read_text(), rng)
    path.write_text(text)
    return how


# -- CSV -----------------------------------------------------------------------------------------------------------


def cell(path: Path, rng: random.Random) -> str:
    rows = list(csv.reader(io.StringIO(path.read_text())))
    line, column = rng.randrange(len(rows)), rng.randrange(len(rows[0]))
    odd = rng.choice(("", "nan", "inf", "x", "-1", "1e999", "[]", "{}", '"', "[NaN]", "9" * 30))
    how = f"line {line + 1}, column {rows[0][column]}: {odd!r}"
    rows[line][column] = odd
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    path.write_text(text.getvalue())
    return how


# -- safetensors ---------------------------------------------------------------------------------------------------


def header(path: Path, rng: random.Random) -> str:
    """A field of the JSON texts in the metadata."""
    metadata, tensors = load_tensors(path)
    name = rng.choice(sorted(metadata))
    try:
        metadata[name], how = spoil_text(metadata[name], rng)
    except ValueError:
        metadata[name], how = str(rng.choice(ODD)), "changed"
    if rng.random() < 0.05:
        del metadata[name]
        how = "gone"
    save_tensors(path, tensors, metadata)
    return f"{name}: {how}"


def tensor(path: Path, rng: random.Random) -> str:
    """One tensor gone, not finite, of another shape or type, or with another name."""
    metadata, tensors = load_tensors(path)
    name = rng.choice(sorted(tensors))
    value = tensors.pop(name)
    how = rng.choice(("gone", "not finite", "of another shape", "of another type", "renamed"))
    if how == "not finite" and value.is_floating_point():
        tensors[name] = torch.full_like(value, float("nan"))
    elif how == "of another shape":
        tensors[name] = torch.cat([value.flatten(), value.flatten()])
    elif how == "of another type":
        tensors[name] = value.to(torch.int8) if value.is_floating_point() else value.float()
    elif how == "renamed":
        tensors[f"{name}/more"] = value
    save_tensors(path, tensors, metadata)
    return f"{name} {how}"


# -- HDF5 ----------------------------------------------------------------------------------------------------------


def table(path: Path, rng: random.Random) -> str:
    """One table gone, of another type or shape, not finite, or larger than any disk."""
    with h5py.File(path, "a") as file:
        names: list[str] = []
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        name = rng.choice(sorted(names))
        values = file[name][()]
        del file[name]
        how = rng.choice(("gone", "text", "complex", "compound", "huge", "not finite", "shorter", "wider", "a group",
                          "one number", "too large for 32 bits"))  # fmt: skip
        rows = len(values) if values.ndim else 1
        made: dict[str, Any] = {
            "text": np.full(values.shape, b"x"),
            "complex": values.astype(complex),
            "compound": np.zeros(values.shape, "f4,f4"),
            "not finite": np.full(values.shape, np.nan),
            "shorter": values[: rows - 1] if values.ndim else values,
            "wider": np.zeros((rows, 77)),
            "one number": np.float32(1),
            "too large for 32 bits": np.full(values.shape, 1e300),
        }
        if how == "a group":
            file.create_group(name)
        elif how == "huge":
            file.create_dataset(name, (10**12, *values.shape[1:]), dtype=values.dtype, chunks=True)
        elif how in made:
            file[name] = made[how]
        return f"{name} {how}"
