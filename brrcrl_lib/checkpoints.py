"""Models on disk: safetensors with the configuration beside the weights. Nothing is ever unpickled."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.files import atomic_path

FORMAT = 2
"""Raised whenever an older checkpoint would be read wrongly."""


class CheckpointError(KitError):
    """A checkpoint that cannot be used, and why."""


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by name (`model/...`, `optimizer/...`, `generator`) and everything else as JSON."""

    tensors: dict[str, Tensor]
    about: dict[str, Any]

    def section(self, name: str) -> dict[str, Tensor]:
        prefix = f"{name}/"
        return {key.removeprefix(prefix): value for key, value in self.tensors.items() if key.startswith(prefix)}

    def save(self, path: Path) -> None:
        with atomic_path(path) as temporary:
            save_file(
                {name: tensor.detach().cpu().contiguous().clone() for name, tensor in self.tensors.items()},
                temporary,
                metadata={"format": str(FORMAT), "about": json.dumps(self.about, sort_keys=True, default=str)},
            )

    @classmethod
    def load(cls, path: Path, device: torch.device | str = "cpu") -> Checkpoint:
        if not path.exists():
            raise CheckpointError(f"no checkpoint at {path}; train one with `brrcrl train METHOD --out {path.parent}`")
        try:
            with safe_open(path, "pt", device=str(device)) as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        except Exception as error:
            raise CheckpointError(f"{path} is corrupt or cut short ({error}); train it again or restore it") from None
        if metadata.get("format") != str(FORMAT):
            raise CheckpointError(
                f"{path} has format {metadata.get('format', 'none')}, this kit reads format {FORMAT}; train it again"
            )
        return cls(tensors, json.loads(metadata["about"]))


def checkpoint_file(run: Path) -> Path:
    """The checkpoint of a run directory; a file such as data/models/x.safetensors is its own."""
    return run / "checkpoint.safetensors" if run.is_dir() or run.suffix != ".safetensors" else run


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Adam's moments and step counts, flat."""
    state = optimizer.state_dict()["state"]
    return {f"{index}/{name}": value for index, entries in state.items() for name, value in entries.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, name = key.split("/")
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})


def config_dict(config: Any) -> dict[str, Any]:
    """A dataclass as plain JSON values."""
    return json.loads(json.dumps(asdict(config), default=str))
