"""Which datasets are here, and what to type when one is not. Imports nothing heavy."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.base.files import ROOT
from brrcrl_lib.worlds import DatasetName

REMOTE_NAMESPACES = ("D4RL", "atari", "mujoco", "minigrid")
"""Namespaces of Minari's public server; `minari list remote` prints what they hold."""


class DatasetError(KitError):
    """A dataset that is missing, damaged or not what it was said to be; one sentence says which."""


def data_root(root: Path | str | None = None) -> Path:
    """Where datasets lie: `root`, else MINARI_DATASETS_PATH, else data/minari of the kit."""
    return Path(root or os.environ.get("MINARI_DATASETS_PATH") or ROOT / "data" / "minari")


def dataset_folder(dataset_id: str, root: Path | str | None = None) -> Path:
    """The folder that holds metadata.json and main_data.hdf5 of an installed dataset, or an error with the remedy."""
    message = missing_dataset_message(dataset_id, root)
    if message:
        raise DatasetError(message)
    return data_root(root) / dataset_id / "data"


def list_datasets(root: Path | str | None = None) -> list[str]:
    """Ids of the installed datasets, sorted."""
    base = data_root(root)
    found = (path.parent.parent.relative_to(base) for path in base.rglob("data/metadata.json"))
    return sorted(path.as_posix() for path in found if not any(part.startswith(".") for part in path.parts))


def read_metadata(folder: Path) -> dict[str, Any]:
    """Minari's metadata with the kit's card in it."""
    try:
        return json.loads((folder / "metadata.json").read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise DatasetError(f"{folder / 'metadata.json'} cannot be read: {error}") from error


def missing_dataset_message(dataset_id: str, root: Path | str | None = None) -> str | None:
    """None if the dataset is installed; otherwise a sentence that says what to do."""
    base = data_root(root)
    if dataset_id and (base / dataset_id / "data" / "metadata.json").is_file():
        return None
    here = list_datasets(base)
    message = f"no dataset '{dataset_id}' in {base}"
    if DatasetName.parse(dataset_id).namespace in REMOTE_NAMESPACES:
        message += f"; get it with: {download_command(dataset_id, base)}"
    near = nearest(dataset_id, here)
    if near:
        return f"{message}; did you mean '{near}'?"
    return message + (f" (there are: {', '.join(here)})" if here else "; the folder holds no datasets")


def download_command(dataset_id: str, base: Path) -> str:
    """The exact command that installs a dataset of Minari's public server where the kit looks for it."""
    return f"MINARI_DATASETS_PATH={base} minari download {dataset_id}"


def nearest(dataset_id: str, known: Sequence[str]) -> str | None:
    """The known id that looks most like `dataset_id`, if any does."""
    near = get_close_matches(dataset_id, known, n=1, cutoff=0.5)
    return near[0] if near else None
