"""Tensors on disk: safetensors files whose bytes depend on nothing but their content, and optimisers in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.files import atomic_path


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file, whole or not at all; the same content always gives the same bytes."""
    raw = save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}, dict(metadata))
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])  # the library puts the metadata in random order
    header = {"__metadata__": dict(sorted(header.pop("__metadata__").items())), **header}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with atomic_path(path) as temporary:
        temporary.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + size :])


def load_tensors(path: Path, error: type[KitError] = KitError) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Metadata and tensors of a safetensors file."""
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}")
    try:
        with safe_open(path, "pt") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as problem:  # the library has its own kinds
        raise error(f"{path} is not a readable safetensors file: {problem}") from problem


def section(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `name/`, without that."""
    return {key[len(name) + 1 :]: value for key, value in tensors.items() if key.startswith(f"{name}/")}


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Adam's moments and step counts, flat."""
    state = optimizer.state_dict()["state"]
    return {f"{index}/{name}": value for index, entries in state.items() for name, value in entries.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Undo `optimizer_tensors`."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, name = key.split("/")
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
