"""How fast and how lean is `load_dataset`, against iterating the same episodes through Minari?"""

from __future__ import annotations

import tempfile
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from minari import MinariDataset
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage
from torch import Tensor

from brrcrl_lib.data.minari import load_dataset
from brrcrl_lib.data.registry import dataset_folder
from brrcrl_lib.data.vectors import OfflineDataset


def benchmark_loading(dataset_id: str, root: Path | str | None = None, repeats: int = 3) -> dict[str, Any]:
    """Seconds and memory of `load_dataset`, and seconds of Minari for the same episodes, all in one run.

    Minari is timed twice: on the dataset as shipped, and on a plain copy that Minari itself wrote, which it reads
    faster and is the stricter comparison. Minari only iterates; the kit also checks hashes and computes the RTG.
    """
    folder = dataset_folder(dataset_id, root)
    kit = _fastest(lambda: load_dataset(dataset_id, root=root), repeats)
    tracemalloc.start()
    data = load_dataset(dataset_id, root=root)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    size = sum(value.nbytes for field in fields(data) if isinstance(value := getattr(data, field.name), Tensor))
    shipped = _fastest(lambda: _iterate(folder), 1)
    with tempfile.TemporaryDirectory() as temporary:
        plain = _plain_copy(MinariDataset(folder), Path(temporary) / "data")
        minari = _fastest(lambda: _iterate(plain), repeats)
    return {
        "dataset": dataset_id,
        "steps": len(data),
        "episodes": data.episodes,
        "kit_seconds": round(kit, 4),
        "minari_plain_seconds": round(minari, 4),
        "minari_shipped_seconds": round(shipped, 4),
        "speedup_over_plain": round(minari / kit, 1),
        "speedup_over_shipped": round(shipped / kit, 1),
        "tensor_megabytes": round(size / 1e6, 2),
        "peak_megabytes": round(peak / 1e6, 2),
        "peak_over_tensors": round(peak / size, 2),
    }


def _fastest(action: Callable[[], OfflineDataset | int], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return min(times)


def _iterate(folder: Path) -> int:
    """Read every episode through Minari's own interface."""
    return sum(len(episode.rewards) for episode in MinariDataset(folder).iterate_episodes())


def _plain_copy(dataset: MinariDataset, folder: Path) -> Path:
    """The same episodes in a file that Minari wrote itself."""
    folder.mkdir(parents=True)
    storage = MinariStorage.new(folder, dataset.observation_space, dataset.action_space, dataset.env_spec)
    storage.update_metadata({"dataset_id": "copy/plain-v0", "minari_version": dataset.spec.minari_version})
    storage.update_episodes(
        EpisodeBuffer(
            observations=np.asarray(episode.observations),
            actions=np.asarray(episode.actions),
            rewards=list(episode.rewards),
            terminations=list(episode.terminations),
            truncations=list(episode.truncations),
        )
        for episode in dataset.iterate_episodes()
    )
    return folder
