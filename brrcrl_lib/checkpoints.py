"""Models on disk: safetensors with the configuration beside the weights. Nothing is ever unpickled."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.limits import RECORD, TEXT, check_fields, parse_json, whole
from brrcrl_lib.base.settings import number
from brrcrl_lib.base.tensors import load_tensors, save_tensors, section

FORMAT = 2
"""Raised whenever an older checkpoint would be read wrongly."""
ABOUT = {"dataset": TEXT, "config": RECORD, "facts": RECORD, "step": whole(0), "seconds": number(0), "preset": TEXT}
"""What every checkpoint says of itself, beside its method."""
BEST = {"step": whole(0), "value": number()}


class CheckpointError(KitError):
    """A checkpoint that cannot be used, and why."""


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by name (`model/...`, `optimizer/...`, `generator`) and everything else as JSON."""

    tensors: dict[str, Tensor]
    about: dict[str, Any]

    def section(self, name: str) -> dict[str, Tensor]:
        return section(self.tensors, name)

    def save(self, path: Path) -> None:
        about = json.dumps(self.about, sort_keys=True, default=str)
        save_tensors(path, self.tensors, {"format": str(FORMAT), "about": about})

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        if not path.exists():
            raise CheckpointError(f"no checkpoint at {path}; train one with `brrcrl train METHOD --out {path.parent}`")
        try:
            metadata, tensors = load_tensors(path)
        except KitError as error:
            raise CheckpointError(f"{path} is corrupt or cut short ({error}); train it again or restore it") from None
        if metadata.get("format") != str(FORMAT):
            raise CheckpointError(
                f"{path} has format {metadata.get('format', 'none')}, this kit reads format {FORMAT}; train it again"
            )
        where, optional = f"{path} (about)", {"method": TEXT, "best": RECORD}
        about = parse_json(metadata.get("about"), where, ABOUT, optional, CheckpointError)
        if about.get("best") is not None:
            check_fields(about["best"], f"{where}: best", BEST, None, CheckpointError)
        return cls(tensors, about)


def checkpoint_file(run: Path) -> Path:
    """The checkpoint of a run directory; a file such as data/models/x.safetensors is its own."""
    return run / "checkpoint.safetensors" if run.is_dir() or run.suffix != ".safetensors" else run


def config_dict(config: Any) -> dict[str, Any]:
    """A dataclass as plain JSON values."""
    return json.loads(json.dumps(asdict(config), default=str))
