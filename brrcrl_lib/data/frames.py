"""`FrameStore`: Atari frames in a memory map, stacked by four when they are asked for.

A step's observation is its own frame and the three before it in the same game, oldest first; where the game had
not begun, black. Frames of another game never get in, and a lost life does not cut a stack: the game goes on.
"""

from __future__ import annotations

import mmap
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from brrcrl_lib.base.files import settle
from brrcrl_lib.data.batch import Batch
from brrcrl_lib.data.frame_format import (
    ENDED,
    EPISODE,
    LIFE_LOST,
    STACK,
    STEP,
    TERMINATED,
    TRUNCATED,
    file_sizes,
    fingerprint,
    frames_root,
    read_about,
)
from brrcrl_lib.data.registry import DatasetError, nearest
from brrcrl_lib.returns import reward_to_go
from brrcrl_lib.worlds import STORES, DatasetName

RESIDENT_BYTES = 256_000_000
"""Mapped pages that a store keeps before it gives them back; the system's cache keeps them if it has room."""


class FrameStore:
    """Steps of many games, one after another; `len` is the number of steps in finished episodes."""

    def __init__(
        self,
        folder: Path | str,
        discount: float = 0.99,
        end_at: Literal["game", "life"] = "game",
        clip_rewards: bool = False,
        resident_bytes: int = RESIDENT_BYTES,
    ) -> None:
        self.folder = Path(folder)
        settle(self.folder)
        found = read_about(self.folder)
        self.shape: tuple[int, int] = tuple(found["shape"])
        self.about: dict[str, Any] = found["about"]
        self.discount, self.end_at, self.clip_rewards = discount, end_at, clip_rewards
        self._read_episodes(found)
        self._read_steps(found["steps"])
        self._map_frames(found["steps"])
        self._resident_bytes, self._touched = resident_bytes, 0

    # -- opening ------------------------------------------------------------------------------------------------

    def _read_episodes(self, found: dict[str, Any]) -> None:
        for name, size in file_sizes(found["steps"], found["episodes"], self.shape).items():
            path = self.folder / name
            if not path.is_file() or path.stat().st_size < size:
                raise DatasetError(f"{path} is missing or cut short: {size:,} bytes are needed")
        table = np.fromfile(self.folder / "episodes.bin", EPISODE, found["episodes"])
        self.lengths = table["length"].astype(np.int64)  # [episodes]
        self.starts = np.cumsum(self.lengths) - self.lengths  # [episodes]
        self.policies, self.seeds = table["policy"].astype(np.int64), table["seed"].astype(np.int64)  # [episodes]
        if not len(table) or self.lengths.min() < 1 or self.lengths.sum() + found["open_steps"] != found["steps"]:
            raise DatasetError(f"{self.folder}: the lengths of its {len(table)} episodes do not add up to its steps")

    def _read_steps(self, count: int) -> None:
        records = np.fromfile(self.folder / "steps.bin", STEP, count)[: int(self.lengths.sum())]
        ends = np.flatnonzero(records["flags"] & ENDED)
        if not np.array_equal(ends, self.starts + self.lengths - 1):
            raise DatasetError(f"{self.folder}: episodes.bin and the ends in steps.bin do not agree")
        self.actions = torch.from_numpy(records["action"].copy())  # [steps] uint8
        self.flags = records["flags"].copy()  # [steps] uint8
        raw = records["reward"].astype(np.float32)
        self.returns = np.add.reduceat(raw, self.starts, dtype=np.float64)  # [episodes], as stored, undiscounted
        rewards = np.clip(raw, -1, 1) if self.clip_rewards else raw
        self.rewards = torch.from_numpy(rewards)  # [steps] float32
        stops = ends if self.end_at == "game" else np.flatnonzero(self.flags & (ENDED | LIFE_LOST))
        rtg = reward_to_go(rewards, np.diff(stops, prepend=-1), self.discount)
        self.rtg = torch.from_numpy(rtg.astype(np.float32))  # [steps]
        done = TERMINATED if self.end_at == "game" else TERMINATED | LIFE_LOST
        self.dones = torch.from_numpy((self.flags & done) != 0)  # [steps] bool
        self._age = np.full(len(records), STACK - 1, np.uint8)  # [steps]: frames before it in its game, at most 3
        for age in range(STACK - 1):
            self._age[self.starts[self.lengths > age] + age] = age

    def _map_frames(self, count: int) -> None:
        with (self.folder / "frames.u8").open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        size = self.shape[0] * self.shape[1]
        rows = np.frombuffer(self._map, np.uint8, (STACK - 1 + count) * size)
        self.frames = rows[(STACK - 1) * size :].reshape(count, *self.shape)  # [steps, height, width], a view
        self._stacks = np.lib.stride_tricks.as_strided(rows, (count, STACK * size), (size, 1), writeable=False)

    # -- reading ------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._age)

    @property
    def episodes(self) -> int:
        return len(self.lengths)

    @property
    def action_count(self) -> int:
        """How many actions there are: as the store says, or the largest seen and those below it."""
        return int(self.about.get("action_count") or int(self.actions.max()) + 1)

    @property
    def fingerprint(self) -> str:
        """Tells this store from another of the same name."""
        return fingerprint(self.folder)

    def truncated(self) -> np.ndarray:
        """[steps] bool: where the time limit or the recording ended a game, so that what followed is unknown."""
        return (self.flags & TRUNCATED) != 0

    def life_lost(self) -> np.ndarray:
        """[steps] bool."""
        return (self.flags & LIFE_LOST) != 0

    def observations(self, indices: np.ndarray | Tensor) -> Tensor:
        """Stacked observations [B, 4, height, width] uint8 of the steps `indices` [B]."""
        steps = np.asarray(indices, dtype=np.int64)
        stacks = self._gather(steps).reshape(len(steps), STACK, *self.shape)
        self._blacken(stacks, steps)
        return torch.from_numpy(stacks)

    def batch(self, indices: np.ndarray | Tensor, with_next: bool = False) -> Batch:
        """The steps `indices` [B]; `done` where nothing follows in this episode (a game, or a life if opened so).

        With `with_next` also the observations one step later; after a game's last step, the same again.
        """
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        ahead = torch.from_numpy((self.flags[chosen.numpy()] & ENDED) == 0).long()  # 1, or 0 where the game ended
        return Batch(
            observations=self.observations(chosen),
            actions=self.actions[chosen].long(),
            returns=self.rtg[chosen],
            rewards=self.rewards[chosen],
            done=self.dones[chosen],
            indices=chosen,
            next_observations=self.observations(chosen + ahead) if with_next else None,
        )

    def sample(
        self, size: int, generator: torch.Generator, with_next: bool = False, among: Tensor | None = None
    ) -> Batch:
        """Steps drawn uniformly with replacement, from all or from the steps `among` [n].

        With `with_next`, steps after which the recording was cut off are left out: nobody knows what followed.
        """
        if with_next:
            among = self._known_next if among is None else among[~torch.from_numpy(self.truncated())[among]]
        drawn = torch.randint(len(self) if among is None else len(among), (size,), generator=generator)
        return self.batch(drawn if among is None else among[drawn], with_next)

    @cached_property
    def _known_next(self) -> Tensor | None:
        """Steps whose successor is known, [n]; None if that is all of them."""
        cut = self.truncated()
        return torch.from_numpy(np.flatnonzero(~cut)) if cut.any() else None

    def episode_steps(self, episodes: np.ndarray) -> Tensor:
        """Indices of all steps of the `episodes` [n], in that order."""
        pieces = [np.arange(self.starts[number], self.starts[number] + self.lengths[number]) for number in episodes]
        return torch.from_numpy(np.concatenate(pieces))

    def _gather(self, steps: np.ndarray) -> np.ndarray:
        """Copies of the stacks as they lie in the file; now and then, give the pages back that this has mapped."""
        if len(steps) and not (steps.min() >= 0 and steps.max() < len(self)):
            raise IndexError(f"steps {steps.min()} to {steps.max()} were asked for; the store has {len(self):,}")
        self._touched += len(steps) * (self._stacks.shape[1] + 2 * mmap.PAGESIZE)
        if self._touched > self._resident_bytes and hasattr(self._map, "madvise"):
            self._map.madvise(mmap.MADV_DONTNEED)
            self._touched = 0
        return self._stacks[steps]

    def _blacken(self, stacks: np.ndarray, steps: np.ndarray) -> None:
        """Blot out the frames in `stacks` [B, 4, height, width] that are older than the game of their step."""
        missing = STACK - 1 - self._age[steps].astype(np.int64)  # [B]
        for number in np.flatnonzero(missing):
            stacks[number, : missing[number]] = 0

    def __repr__(self) -> str:
        returns = self.returns
        return (
            f"FrameStore '{self.folder.name}' ({self.about.get('env', 'game unknown')}, discount {self.discount:g}): "
            f"{len(self):,} steps in {self.episodes:,} games, return {returns.mean():.1f} on average, "
            f"{returns.min():.0f} to {returns.max():.0f}"
        )


def is_frames(name: str | Path) -> bool:
    """Whether a dataset id is that of frames: by its name, or because a store of that name is there."""
    parsed, places = DatasetName.parse(str(name)), (frames_root() / name, Path(name))
    by_name = parsed.kind in STORES and not parsed.namespace
    return by_name or any((place / "store.json").is_file() for place in places)


def open_frames(name: str | Path, root: Path | str | None = None, **options: Any) -> FrameStore:
    """The store `name` under `frames_root(root)`, or at that path; `options` are those of `FrameStore`."""
    base = frames_root(root)
    for folder in (base / name, Path(name)):
        settle(folder)
        if (folder / "store.json").is_file():
            return FrameStore(folder, **options)
    here = sorted(
        path.parent.relative_to(base).as_posix()
        for path in base.rglob("store.json")
        if not any(part.startswith(".") for part in path.relative_to(base).parts)
    )
    near = nearest(str(name), here)
    hint = f"; did you mean '{near}'?" if near else f" (there are: {', '.join(here)})" if here else ""
    raise DatasetError(f"no frame store '{name}' in {base}{hint}")
