"""What a frame store looks like on disk; `frame_writer.py` writes it and `frames.py` reads it.

    frames.u8      3 black frames, then one frame per step: [3 + steps, height, width] uint8
    steps.bin      one record per step: action, flags, reward
    episodes.bin   one record per finished episode: length, policy (or checkpoint) it came from, seed
    store.json     how many steps and episodes count, and where they come from: renamed into place last

Whatever lies behind the counts in `store.json` was being written when somebody pulled the plug, and is ignored.
A step takes 84 * 84 + 6 = 7,062 bytes and an episode 16 more. The black frames at the head make the stack of
step t the four frames from row t of the file on, whatever t is.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from brrcrl_lib.base.files import ROOT
from brrcrl_lib.base.limits import RECORD, TEXT, check_fields, each, read_json, whole
from brrcrl_lib.data.registry import DatasetError

FORMAT, VERSION = "brrcrl-frames", 1
STACK = 4
SHAPE = (84, 84)
TERMINATED, TRUNCATED, LIFE_LOST = 1, 2, 4
"""Flags of a step: the game was over; recording or time limit ended it; a life was lost (the game may go on)."""
ENDED = TERMINATED | TRUNCATED

STEP = np.dtype([("action", "u1"), ("flags", "u1"), ("reward", "<f4")])
EPISODE = np.dtype([("length", "<i4"), ("policy", "<i4"), ("seed", "<i8")])


def frames_root(root: Path | str | None = None) -> Path:
    """Where frame stores lie: `root`, else BRRCRL_FRAMES_PATH, else runs/frames of the kit (they are large)."""
    return Path(root or os.environ.get("BRRCRL_FRAMES_PATH") or ROOT / "runs" / "frames")


FIELDS = {
    "steps": whole(0),
    "episodes": whole(0),
    "open_steps": whole(0),
    "shape": each(whole(1, 4_096), 2),
    "about": RECORD,
}
ABOUT = {"env": TEXT, "action_count": whole(1, 256), "policies": each(RECORD)}
"""What every store says of itself, and what some say of what is in them."""


def read_about(folder: Path) -> dict[str, Any]:
    """The contents of store.json, or one sentence about what is wrong with it."""
    path = folder / "store.json"
    if not path.exists():
        raise DatasetError(f"no frame store at {folder}: it has no store.json")
    found = read_json(path, {}, None, DatasetError)
    if found.get("format") != FORMAT:
        raise DatasetError(f"{path} does not describe a frame store")
    if found.get("version") != VERSION:
        raise DatasetError(f"{folder} is a frame store of version {found.get('version')}; this kit reads {VERSION}")
    check_fields(found, path, FIELDS, {"progress": RECORD}, DatasetError)
    check_fields(found["about"], f"{path} (about)", {}, ABOUT, DatasetError)
    return found


def store_name(folder: Path) -> str:
    """`ladder/pong` for the store of that name under `frames_root()`; the path of a store that lies elsewhere."""
    folder, base = folder.resolve(), frames_root().resolve()
    return (folder.relative_to(base) if folder.is_relative_to(base) else folder).as_posix()


def fingerprint(folder: Path) -> str:
    """Twelve hex digits that tell stores of one name apart: every action, reward and end, and where they came from.

    Frames are left out, because a game with the same actions shows the same; so is what wrote the store.
    """
    found = read_about(folder)
    about = {key: value for key, value in found["about"].items() if key not in ("versions", "revision")}
    digest = hashlib.sha256(json.dumps([found["shape"], about], sort_keys=True).encode())
    sizes = file_sizes(found["steps"], found["episodes"], found["shape"])
    for name in ("steps.bin", "episodes.bin"):
        with (folder / name).open("rb") as file:
            digest.update(file.read(sizes[name]))
    return digest.hexdigest()[:12]


def file_sizes(steps: int, episodes: int, shape: tuple[int, int]) -> dict[str, int]:
    """Bytes of each file of a store with so many steps and episodes."""
    frame = shape[0] * shape[1]
    return {
        "frames.u8": (STACK - 1 + steps) * frame,
        "steps.bin": steps * STEP.itemsize,
        "episodes.bin": episodes * EPISODE.itemsize,
    }
