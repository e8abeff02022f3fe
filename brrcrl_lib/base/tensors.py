"""Tensors on disk: safetensors files whose bytes depend on nothing but their content, and optimisers in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

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


def load_weights(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Take over weights from a file: names, shapes and types must fit (half precision will do), and no NaN."""
    own = module.state_dict()
    for name, value in tensors.items():
        wanted = own[name].dtype if name in own else value.dtype
        if value.dtype not in (wanted, torch.float16 if wanted.is_floating_point else wanted):
            raise ValueError(f"'{name}' is of type {value.dtype}, not {wanted}")
        if value.is_floating_point() and value.isnan().any():
            raise ValueError(f"'{name}' holds what is not a number")
    module.load_state_dict(dict(tensors))  # which copies, and so makes single precision of half


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Adam's moments and step counts, flat."""
    state = optimizer.state_dict()["state"]
    return {f"{index}/{name}": value for index, entries in state.items() for name, value in entries.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Undo `optimizer_tensors`; raises where they are not those of this optimiser."""
    state: dict[int, dict[str, Tensor]] = {}
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    for key, value in tensors.items():
        index, name = key.split("/")
        weight = weights[int(index)]
        if value.dtype != torch.float32 or value.shape not in (weight.shape, torch.Size()):
            raise ValueError(f"{key} is no state of a weight of shape {tuple(weight.shape)}")
        state.setdefault(int(index), {})[name] = value
    if len({frozenset(entries) for entries in state.values()}) > 1:
        raise ValueError("the state of some weights is missing")
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
