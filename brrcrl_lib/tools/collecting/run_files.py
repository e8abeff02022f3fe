"""The folder of a collection: what lies where, how it is read, and whether it may be continued.

config.json               what was asked for
parts/part-0007.hdf5      all episodes of interval 7 (not on Atari, where policies are played again instead)
snapshots/step-....safetensors   the policy at the end of an interval
state.safetensors         networks, optimisers, progress and learning curve: renamed into place last
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from brrcrl_lib.base.files import write_json
from brrcrl_lib.base.limits import ENV_ID, RECORD, Rule, each, parse_json, read_json, whole
from brrcrl_lib.base.tensors import load_tensors, save_tensors
from brrcrl_lib.data.registry import DatasetError

EVALUATION_SEED = 900_000_000
"""Episodes and games that only measure a policy start from here, far from the seeds of training."""

PROGRESS: dict[str, Rule] = {"step": whole(0), "updates": whole(0), "curve": each(RECORD)}


def part_path(run: Path, interval: int) -> Path:
    return run / "parts" / f"part-{interval:04d}.hdf5"


def snapshot_path(run: Path, step: int) -> Path:
    return run / "snapshots" / f"step-{step:07d}.safetensors"


def state_path(run: Path) -> Path:
    return run / "state.safetensors"


def save_state(run: Path, tensors: Mapping[str, Tensor], progress: dict[str, Any]) -> None:
    save_tensors(state_path(run), tensors, {"progress": json.dumps(progress)})


def read_state(run: Path, needed: Mapping[str, Rule] | None = None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Progress and tensors of the last committed interval; `needed` are fields of progress beside the usual ones."""
    path = state_path(run)
    if not path.is_file():
        raise DatasetError(f"{run} holds no collection run with a committed interval: there is no {path.name}")
    metadata, tensors = load_tensors(path, DatasetError)
    where = f"{path} (progress)"
    return parse_json(metadata.get("progress"), where, {**PROGRESS, **(needed or {})}, None, DatasetError), tensors


def read_curve(run: Path) -> list[dict[str, Any]]:
    """The learning curve of a run so far."""
    return read_state(run)[0]["curve"]


def read_settings(run: Path) -> dict[str, Any]:
    """What was asked for when the run was begun or last continued."""
    return read_json(run / "config.json", {"env": ENV_ID}, None, DatasetError)


def check_same_settings(
    run: Path, config: Any, may_change: Collection[str], given: dict[str, Any] | None = None
) -> None:
    """Refuse to continue a run under settings that would make it another one. `given` overrides what is stored."""
    if not (run / "config.json").exists():
        return
    stored = {**read_settings(run), **(given or {})}
    wanted = settings_dict(config)
    changed = [key for key in wanted if key not in may_change and stored.get(key) != wanted[key]]
    if changed:
        listing = ", ".join(f"{key}: {stored.get(key)!r} before, {wanted[key]!r} now" for key in changed)
        raise DatasetError(f"{run} holds a run with other settings ({listing}); choose another --out")


def write_settings(run: Path, config: Any) -> None:
    write_json(run / "config.json", settings_dict(config))


def settings_dict(config: Any) -> dict[str, Any]:
    """A settings dataclass as plain JSON values."""
    return json.loads(json.dumps(asdict(config), default=str))
