"""How fast and how lean is a frame store, against an array in memory that holds every stack?"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from brrcrl_lib.base.devices import generator
from brrcrl_lib.base.files import write_json
from brrcrl_lib.data.frame_format import EPISODE, FORMAT, SHAPE, STACK, STEP, TERMINATED, VERSION, file_sizes
from brrcrl_lib.data.frames import FrameStore
from brrcrl_lib.tools.publishing.frame_writer import FrameWriter

GAME = 1_000
"""Steps per game of the stores that are measured."""


def benchmark_frames(
    steps: int = 10_000, batch_size: int = 32, repeats: int = 300, large_steps: int = 1_000_000
) -> dict[str, Any]:
    """Milliseconds per batch of stacked observations from a store and from an array of stacks, in turns.

    The second store has `large_steps` steps but a file of frames with holes, which takes no room on the disk and is
    read through the same pages: it shows how long opening takes and how much memory sampling keeps.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = _write_noise(Path(temporary) / "noise", steps)
        size = sum(file.stat().st_size for file in folder.iterdir())
        store = FrameStore(folder)
        stacks = store.observations(np.arange(len(store))).numpy()  # [steps, 4, 84, 84], in memory
        ours, theirs = _side_by_side(store, stacks, batch_size, repeats)
        del stacks
        large = _measure_large(Path(temporary) / "large", large_steps, batch_size, repeats)
    return {
        "steps": steps,
        "batch_size": batch_size,
        "store_ms": round(ours, 4),
        "in_memory_ms": round(theirs, 4),
        "store_over_in_memory": round(ours / theirs, 2),
        "bytes_per_transition": round(size / steps, 1),
        "stacked_bytes_per_transition": STACK * SHAPE[0] * SHAPE[1],
        "large": large,
        "five_million": five_million(large),
    }


def five_million(large: dict[str, Any]) -> dict[str, float]:
    """What the paper's 10% of the DQN-replay data would take; its own table says about 150 GB of memory."""
    steps = 5_000_000
    index = large["index_megabytes"] * steps / large["steps"]
    return {
        "disk_gigabytes": round(sum(file_sizes(steps, steps // GAME, SHAPE).values()) / 1e9, 1),
        "index_megabytes": round(index, 1),
        "stacked_in_memory_gigabytes": round(steps * STACK * SHAPE[0] * SHAPE[1] / 1e9, 1),
    }


def _side_by_side(store: FrameStore, stacks: np.ndarray, batch_size: int, repeats: int) -> tuple[float, float]:
    """Fastest of five rounds each, in turns, so that a busy machine hurts both alike."""
    ours, theirs = [], []
    for turn in range(5):
        drawn = [
            torch.randint(len(store), (batch_size,), generator=generator(turn * repeats + number)).numpy()
            for number in range(repeats)
        ]
        started = time.perf_counter()
        for indices in drawn:
            store.observations(indices)
        between = time.perf_counter()
        for indices in drawn:
            torch.from_numpy(stacks[indices])
        theirs.append(time.perf_counter() - between)
        ours.append(between - started)
    return min(ours) / repeats * 1e3, min(theirs) / repeats * 1e3


def _measure_large(folder: Path, steps: int, batch_size: int, repeats: int) -> dict[str, Any]:
    _write_holes(folder, steps)
    before = resident_bytes()
    started = time.perf_counter()
    store = FrameStore(folder)
    opened = time.perf_counter() - started
    arrays = (store.actions.numpy(), store.rewards.numpy(), store.rtg.numpy(), store.dones.numpy(), store.flags)
    index = sum(array.nbytes for array in (*arrays, store._age, store.lengths, store.starts))
    draws, most = generator(0), 0
    for _ in range(10 * repeats):  # not timed: holes are slower to map than real pages
        store.sample(batch_size, draws)
        most = max(most, resident_bytes())
    return {
        "steps": steps,
        "open_seconds": round(opened, 3),
        "index_megabytes": round(index / 1e6, 1),
        "resident_megabytes": round((most - before) / 1e6, 1),
    }


def resident_bytes() -> int:
    """Memory of this process that is in use now, mapped files included; 0 where the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")), 0)


def _write_noise(target: Path, steps: int) -> Path:
    rng = np.random.default_rng(0)
    with FrameWriter(target, {}) as writer:
        for first in range(0, steps, GAME):
            count = min(GAME, steps - first)
            writer.append(
                rng.integers(0, 256, (count, *SHAPE), dtype=np.uint8),
                rng.integers(0, 6, count),
                rng.integers(-1, 2, count),
                np.arange(count) == count - 1,
            )
        return writer.finish()


def _write_holes(folder: Path, steps: int) -> None:
    """A store of black frames that the file system does not store."""
    folder.mkdir()
    episodes = -(-steps // GAME)
    lengths = np.full(episodes, GAME)
    lengths[-1] = steps - GAME * (episodes - 1)
    table, records = np.zeros(episodes, EPISODE), np.zeros(steps, STEP)
    table["length"] = lengths
    records["flags"][np.cumsum(lengths) - 1] = TERMINATED
    records["reward"] = np.random.default_rng(0).integers(-1, 2, steps)
    table.tofile(folder / "episodes.bin")
    records.tofile(folder / "steps.bin")
    with (folder / "frames.u8").open("wb") as file:
        file.truncate(file_sizes(steps, episodes, SHAPE)["frames.u8"])
    counts = {"steps": steps, "episodes": episodes, "open_steps": 0, "progress": {}, "about": {}}
    write_json(folder / "store.json", {"format": FORMAT, "version": VERSION, "shape": SHAPE, "stack": STACK, **counts})
