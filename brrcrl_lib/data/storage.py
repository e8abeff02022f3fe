"""Minari datasets on disk: flat, compressed parts, and a Minari view of them that copies nothing.

    data/minari/brrcrl/hopper/medium-v0/data/
        metadata.json      Minari's own metadata, plus the kit's card
        main_data.hdf5     one group an episode, as Minari wants it: virtual datasets that point into the parts
        part-000.hdf5      the transitions, concatenated: observations [sum(T_i + 1), n], actions [sum(T_i), m], ...

Minari reads such a dataset as it is. The kit reads the parts, a whole array at a time, which is many times
faster than opening five HDF5 objects for each of thousands of episodes. A view may point into another
dataset's parts, so medium-expert is medium and expert together without a second copy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from brrcrl_lib.data.hdf5 import check_memory, numbers, reading
from brrcrl_lib.data.registry import DatasetError

STEP_FIELDS = ("actions", "rewards", "terminations", "truncations")
FIELDS = ("observations", *STEP_FIELDS)
PARTS_ATTRIBUTE = "brrcrl_parts"


@dataclass(frozen=True)
class FlatEpisodes:
    """Many episodes as flat arrays; episode i owns `lengths[i]` steps and `lengths[i] + 1` observations."""

    observations: np.ndarray  # [steps + episodes, observation size]
    actions: np.ndarray  # [steps, action size], or [steps] for discrete actions
    rewards: np.ndarray  # [steps]
    terminations: np.ndarray  # [steps], bool
    truncations: np.ndarray  # [steps], bool
    lengths: np.ndarray  # [episodes]
    seeds: np.ndarray  # [episodes]; -1 where unknown

    @classmethod
    def concatenate(cls, pieces: Sequence[FlatEpisodes]) -> FlatEpisodes:
        if len(pieces) == 1:
            return pieces[0]
        names = cls.__dataclass_fields__
        return cls(**{name: np.concatenate([getattr(piece, name) for piece in pieces]) for name in names})

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def starts(self) -> np.ndarray:
        """First step of each episode, [episodes]."""
        return np.cumsum(self.lengths) - self.lengths

    def head(self, episodes: int) -> FlatEpisodes:
        """The first `episodes` episodes."""
        return self._between(0, episodes)

    def without_head(self, episodes: int) -> FlatEpisodes:
        """All but the first `episodes` episodes."""
        return self._between(episodes, len(self))

    def _between(self, first: int, end: int) -> FlatEpisodes:
        before, until = int(self.lengths[:first].sum()), int(self.lengths[:end].sum())  # steps
        return FlatEpisodes(
            observations=self.observations[before + first : until + end],
            **{name: getattr(self, name)[before:until] for name in STEP_FIELDS},
            lengths=self.lengths[first:end],
            seeds=self.seeds[first:end],
        )


def read_part(path: Path) -> FlatEpisodes:
    with reading(path), h5py.File(path, "r") as file:
        arrays = {name: numbers(file, name) for name in FlatEpisodes.__dataclass_fields__}
        check_memory(arrays.values(), path)
        return FlatEpisodes(**{name: array[()] for name, array in arrays.items()})


def part_paths(folder: Path) -> list[Path]:
    """The parts that a view points into, or [] if main_data.hdf5 is a plain Minari file."""
    file = folder / "main_data.hdf5"
    with reading(file), h5py.File(file, "r") as view:
        names = json.loads(view.attrs.get(PARTS_ATTRIBUTE, "[]"))
    if not isinstance(names, list) or not all(
        re.fullmatch(r"(\.\./)*([-\w]+/)*part-\d+\.hdf5", str(name)) for name in names
    ):
        raise DatasetError(f"{file} names parts that are no files of a dataset: {names}")
    return [(folder / name).resolve() for name in names]
