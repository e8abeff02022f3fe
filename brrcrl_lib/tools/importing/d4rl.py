"""`brrcrl data import-d4rl`: D4RL's flat HDF5 files become Minari datasets.

D4RL stores one long table. Row t holds observations, actions, rewards, terminals, timeouts and, in some files,
next_observations. Episodes end at terminals (the task ended) and at timeouts (the time limit did); rows after the last
end belong to an episode that the recording cut off. The table is read in chunks, so its size does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import h5py
import numpy as np

from brrcrl_lib.base.devices import track
from brrcrl_lib.base.environments import make_env
from brrcrl_lib.base.files import git_revision, versions
from brrcrl_lib.base.settings import Count, EnvId, OutPath, check_settings
from brrcrl_lib.data.hdf5 import check_memory, numbers, reading
from brrcrl_lib.data.registry import DatasetError, data_root
from brrcrl_lib.data.storage import FlatEpisodes
from brrcrl_lib.tools.publishing.cards import episode_statistics
from brrcrl_lib.tools.publishing.minari_writer import check_free, write_dataset

REQUIRED = ("observations", "actions", "rewards", "terminals", "timeouts")
KNOWN_ROWS = {
    "hopper-medium-replay-v2": 402_000,
    "walker2d-medium-replay-v2": 302_000,
    "halfcheetah-medium-replay-v2": 202_000,
}
"""Rows of D4RL's own files, to notice one that was cut short on its way."""


@dataclass(frozen=True)
class ImportConfig:
    """Convert a D4RL HDF5 file to a Minari dataset."""

    file: OutPath
    """The HDF5 file, for example hopper_medium_replay-v2.hdf5."""
    env: EnvId
    """Gymnasium id of the environment it was recorded in, for example Hopper-v4."""
    id: str
    """Dataset id to write, for example d4rl/hopper/medium-replay-v2."""
    tail: Literal["drop", "keep"] = "drop"
    """Rows after the last end of an episode: their returns are cut off, so they are dropped, or kept as truncated."""
    root: Path | None = None
    """Folder of Minari datasets; by default MINARI_DATASETS_PATH or data/minari."""
    chunk_rows: Count = 100_000
    """Rows read at a time."""
    overwrite: bool = False
    """Replace a dataset of the same id."""


@dataclass
class ImportReport:
    """What an import did."""

    path: Path
    rows: int = 0
    episodes: int = 0
    transitions: int = 0
    tail_rows: int = 0
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        first = f"{self.path}: {self.transitions:,} transitions in {self.episodes:,} episodes from {self.rows:,} rows"
        return "\n".join([first, *self.notes])


def import_d4rl(config: ImportConfig) -> ImportReport:
    """Write the dataset, whole or not at all; say what was found on the way."""
    check_settings(config)
    root = data_root(config.root)
    check_free(root, config.id, config.overwrite)
    if not config.file.is_file():
        raise DatasetError(f"no file at {config.file}")
    env = _make_env(config.env)
    report = ImportReport(root / config.id)
    card: dict[str, Any] = {"description": f"Imported from the D4RL file {config.file.name}."}
    with reading(config.file):
        table = h5py.File(config.file, "r")
    with table:
        with reading(config.file):
            report.rows = check_table(table, env, config.file)
        assert env.spec is not None and env.observation_space.shape is not None
        write_dataset(
            root,
            config.id,
            _recorded(table, config, env, report, card),  # fills `card`, which is read after the last piece
            env_spec=env.spec,
            observation_space=gym.spaces.Box(-np.inf, np.inf, env.observation_space.shape, np.float32),
            action_space=env.action_space,
            card=card,
            overwrite=config.overwrite,
        )
    expected = KNOWN_ROWS.get(known_name(config.id))
    if expected not in (None, report.rows):
        report.notes.append(
            f"D4RL's {known_name(config.id)} has {expected:,} rows; this file has {report.rows:,}, so it is another one"
        )
    return report


def known_name(dataset_id: str) -> str:
    """D4RL's name of a dataset: d4rl/hopper/medium-v2 is hopper-medium-v2."""
    return "-".join(dataset_id.lower().split("/")[-2:])


def check_table(table: h5py.File, env: gym.Env, file: Path) -> int:
    """Refuse a file that cannot be a recording of `env`; return its number of rows."""
    missing = [key for key in REQUIRED if key not in table]
    if missing:
        raise DatasetError(f"{file} lacks {', '.join(missing)}; it holds {', '.join(sorted(table)) or 'nothing'}")
    columns = {key: numbers(table, key) for key in _keys(table)}
    check_memory(columns.values(), file)
    rows = {key: len(column) for key, column in columns.items()}
    if len(set(rows.values())) > 1:
        listing = ", ".join(f"{key} {count:,}" for key, count in rows.items())
        raise DatasetError(f"{file} has columns of different lengths: {listing}")
    if rows["rewards"] == 0:
        raise DatasetError(f"{file} is empty: it has no rows")
    wanted = {"observations": env.observation_space.shape, "actions": env.action_space.shape}
    wanted["next_observations"] = wanted["observations"]
    for key, column in columns.items():
        shape = column.shape[1:]
        if shape != wanted.get(key, ()):
            name = env.spec.id if env.spec else "the environment"
            raise DatasetError(f"{file}: {key} have shape {shape} per row; {name} has {wanted.get(key, ())}")
    return rows["rewards"]


def _keys(table: h5py.File) -> list[str]:
    return [*REQUIRED, *(["next_observations"] if "next_observations" in table else [])]


def _make_env(env_id: str) -> gym.Env:
    env = make_env(env_id)
    if not isinstance(env.observation_space, gym.spaces.Box) or not isinstance(env.action_space, gym.spaces.Box):
        raise DatasetError(f"{env_id} has no vectors of numbers as observations and actions, as D4RL files do")
    return env


def _recorded(
    table: h5py.File, config: ImportConfig, env: gym.Env, report: ImportReport, card: dict[str, Any]
) -> Iterator[FlatEpisodes]:
    """The pieces to write; counts go into `report` and, at the end, on the card."""
    summaries: list[FlatEpisodes] = []  # without observations and actions: small
    outside = 0
    assert isinstance(env.action_space, gym.spaces.Box)
    low, high = env.action_space.low, env.action_space.high
    for flat in split_episodes(table, config, report):
        report.episodes += len(flat)
        report.transitions += len(flat.rewards)
        outside += int(((flat.actions < low) | (flat.actions > high)).any(1).sum())
        nothing = np.empty((0, 0), np.float32)
        summaries.append(
            FlatEpisodes(nothing, nothing, flat.rewards, flat.terminations, flat.truncations, flat.lengths, flat.seeds)
        )
        yield flat
    if not summaries:
        raise DatasetError(f"{config.file} holds no finished episode; --tail keep imports its {report.rows:,} rows")
    if outside:
        report.notes.append(f"{outside:,} actions lie outside the environment's box; they were imported as they are")
    repeated = "next_observations" not in table
    if repeated:
        report.notes.append("the file has no next_observations: each episode's last observation was repeated")
    card["card"] = {
        "kind": "import",
        "env": config.env,
        "source": config.file.name,
        "rows": report.rows,
        "tail_rows": report.tail_rows,
        "tail": config.tail,
        "final_observation": "repeated" if repeated else "from next_observations",
        **episode_statistics(summaries),
        "versions": versions(),
        "revision": git_revision(),
        "licence": "as stated by the source of the file",
    }


def split_episodes(table: h5py.File, config: ImportConfig, report: ImportReport) -> Iterator[FlatEpisodes]:
    """Whole episodes of the table, chunk by chunk; rows of an episode that is still open wait for the next chunk.

    The final observation of an episode is the last row's next_observation. Where the file has none, the last
    observation is repeated: dropping the last step instead would lose its reward and make every RTG wrong.
    """
    waiting: list[dict[str, np.ndarray]] = []  # the rows of the episode that is open
    bar = track(total=report.rows, unit="row", desc=config.file.name)
    for first in range(0, report.rows, config.chunk_rows):
        chunk = _read_chunk(table, first, min(first + config.chunk_rows, report.rows), config.file)
        ends = np.flatnonzero(chunk["terminals"] | chunk["timeouts"])
        whole = int(ends[-1]) + 1 if len(ends) else 0
        if whole:
            before = sum(len(piece["rewards"]) for piece in waiting)
            yield _flatten(_join([*waiting, {key: column[:whole] for key, column in chunk.items()}]), ends + before)
            waiting = []
        waiting.append({key: column[whole:].copy() for key, column in chunk.items()})
        bar.update(len(chunk["rewards"]))
    bar.close()
    tail = _join(waiting)
    report.tail_rows = len(tail["rewards"])
    if report.tail_rows:
        report.notes.append(
            f"the last {report.tail_rows:,} rows belong to an unfinished episode and were "
            + ("kept as a truncated one" if config.tail == "keep" else "dropped (--tail keep keeps them)")
        )
        if config.tail == "keep":
            tail["timeouts"][-1] = True
            yield _flatten(tail, np.array([report.tail_rows - 1]))


def _join(pieces: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {key: np.concatenate([piece[key] for piece in pieces]) for key in pieces[0]}


def _read_chunk(table: h5py.File, first: int, last: int, file: Path) -> dict[str, np.ndarray]:
    chunk: dict[str, np.ndarray] = {}
    for key in _keys(table):
        with reading(file):
            values = table[key][first:last]
        if key in ("terminals", "timeouts"):
            if not np.isin(values, (0, 1)).all():
                raise DatasetError(f"{file}: {key} hold other values than 0 and 1")
            chunk[key] = values.astype(bool)
            continue
        with np.errstate(over="ignore"):
            chunk[key] = values.astype(np.float32, copy=False)  # what is too large for 32 bits becomes infinite
        finite = np.isfinite(chunk[key]).reshape(len(values), -1).all(1)
        if not finite.all():
            row = first + int(np.argmin(finite))
            raise DatasetError(f"{file}: {key} are not finite in row {row:,}, as 32-bit numbers")
    return chunk


def _flatten(rows: dict[str, np.ndarray], ends: np.ndarray) -> FlatEpisodes:
    """Rows of whole episodes that end at `ends` [episodes] as flat episodes with T + 1 observations each."""
    lengths = np.diff(ends, prepend=-1)
    final = rows.get("next_observations", rows["observations"])[ends]
    return FlatEpisodes(
        observations=np.insert(rows["observations"], ends + 1, final, axis=0),
        actions=rows["actions"],
        rewards=rows["rewards"],
        terminations=rows["terminals"],
        truncations=rows["timeouts"] & ~rows["terminals"],
        lengths=lengths.astype(np.int64),
        seeds=np.full(len(ends), -1, np.int64),
    )
