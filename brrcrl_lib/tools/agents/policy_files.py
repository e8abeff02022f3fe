"""Policies on disk: safetensors with the layout of the network and what is known about the policy."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from brrcrl_lib.base.limits import ENV_ID, Rule, parse_json, whole
from brrcrl_lib.base.settings import number
from brrcrl_lib.base.tensors import load_tensors, save_tensors
from brrcrl_lib.data.registry import DatasetError

ABOUT = {"env": ENV_ID, "step": whole(0), "seed": whole(0), "epsilon": number(0, 1)}
"""What a policy may say about itself that the kit relies on."""

M = TypeVar("M", bound=nn.Module)


def save_policy(path: Path, kind: str, layout: Mapping[str, Any], tensors: Mapping[str, Tensor], about: Any) -> None:
    described = {name: json.dumps(value) for name, value in layout.items()}
    save_tensors(path, tensors, {"kind": kind, **described, "about": json.dumps(about)})


def load_policy(
    path: Path, kinds: tuple[str, ...], layout: Mapping[str, Rule]
) -> tuple[str, dict[str, Any], dict[str, Tensor], dict[str, Any]]:
    """(kind, layout, tensors, about) of a policy; what is wrong with its file is said in one sentence."""
    if not path.is_file():
        raise DatasetError(f"no policy at {path}")
    metadata, tensors = load_tensors(path, DatasetError)
    kind = metadata.get("kind", "not stated")
    if kind not in kinds:
        raise DatasetError(f"{path} holds no {' or '.join(kinds)} (kind: {kind})")
    stated = {name: _value(metadata.get(name), f"{path}: the field '{name}'") for name in layout if name in metadata}
    stated = parse_json(json.dumps(stated), path, layout, None, DatasetError)
    about = parse_json(metadata.get("about"), f"{path} (about)", {}, ABOUT, DatasetError)
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise DatasetError(f"{path}: the weights '{name}' are not finite, so it cannot be played")
    return kind, stated, tensors, about


def _value(text: str | None, what: str) -> Any:
    try:
        return json.loads(text or "")
    except ValueError as error:
        raise DatasetError(f"{what} cannot be read as JSON: {error}") from error


def build(make: Callable[[], M], tensors: Mapping[str, Tensor], path: Path) -> M:
    """The network that `make` lays out, with these weights; no memory is taken for a layout that they do not fit."""
    try:
        with torch.device("meta"):
            network = make()
        shapes = {name: tensor.shape for name, tensor in network.state_dict().items()}
        if shapes != {name: tensor.shape for name, tensor in tensors.items()}:
            raise ValueError("its weights have other names or shapes than the layout that it states")
        network.load_state_dict(dict(tensors), assign=True)
    except (KeyError, IndexError, ValueError, RuntimeError, TypeError) as error:
        raise DatasetError(f"{path} is no policy that fits together: {error}") from error
    return network
