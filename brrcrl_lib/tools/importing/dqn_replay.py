"""`brrcrl data import-dqn-replay`: the published DQN-replay files of a game become a frame store.

A checkpoint N is four gzipped npy arrays with one row per step, `$store$_observation_ckpt.N.gz` and likewise
action, reward and terminal. Before each game the recorder put three rows of zeros, so that stacks of four never
reach into the game before; a frame store needs none, and they are left out. Life loss is not in these files.

`--fraction 0.1` takes the first tenth of every checkpoint, so all stages of training are there in equal parts and
only that much is decompressed. Games that such a cut tears apart are left out, so all returns are whole.
Differs from the paper: it says only that it uses 10% of the replay data; ours are whole games of every checkpoint,
because returns and stacks of frames need whole games.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from brrcrl_lib.base.devices import track
from brrcrl_lib.base.files import git_revision, versions
from brrcrl_lib.base.settings import Count, Names, OutPath, check_settings, number
from brrcrl_lib.data.atari import AtariEnv, env_id, rom_name
from brrcrl_lib.data.frame_format import SHAPE, STACK, frames_root
from brrcrl_lib.data.frames import FrameStore
from brrcrl_lib.data.registry import DatasetError
from brrcrl_lib.tools.importing.dqn_replay_files import Checkpoint, Columns, FrameStream, find_checkpoints, find_folder
from brrcrl_lib.tools.publishing.folders import check_replaceable
from brrcrl_lib.tools.publishing.frame_writer import FrameWriter

PADDING = STACK - 1
"""Rows of zeros before each game."""
STATES = {
    "start": "a game begins here, after its padding",
    "unsure": "the rows before are not at hand: a padding would mean that a game begins",
    "inside": "in a game that is being recorded",
    "lost": "in a game whose beginning is not at hand: nothing is recorded until it ends",
}


@dataclass(frozen=True)
class ImportReplayConfig:
    """Convert the DQN-replay files of a game to a frame store."""

    dir: OutPath
    """Folder with the files, or one above it: DIR, DIR/Breakout and DIR/Breakout/1/replay_logs are looked through."""
    game: str
    """The game, for example Breakout."""
    fraction: Annotated[float, number(0, 1, above=0)] = 1.0
    """Share of every checkpoint to take, from its beginning on; 0.1 is the paper's size."""
    name: Names | None = None
    """Name of the store; by default dqn-replay/breakout-10 for a tenth of Breakout."""
    root: Path | None = None
    """Folder of frame stores; by default BRRCRL_FRAMES_PATH or runs/frames."""
    chunk_rows: Count = 4_000
    """Rows decompressed at a time: 28 MB."""
    overwrite: bool = False
    """Replace a store of the same name."""


@dataclass
class ReplayReport:
    """What an import did."""

    path: Path
    transitions: int = 0
    episodes: int = 0
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join([f"{self.path}: {self.transitions:,} transitions in {self.episodes:,} games", *self.notes])


def import_dqn_replay(config: ImportReplayConfig) -> ReplayReport:
    """Run or continue an import. All small files are checked before anything is written."""
    check_settings(config)
    game = env_id(config.game)
    name = config.name or f"dqn-replay/{rom_name(game)}-{config.fraction * 100:g}"
    target = frames_root(config.root) / name
    check_replaceable(target, "store.json", config.overwrite)
    checkpoints = find_checkpoints(find_folder(config.dir, config.game))
    meanings = AtariEnv(game).meanings
    largest = max(checkpoint.largest_action for checkpoint in checkpoints)
    if largest >= len(meanings):
        raise DatasetError(
            f"{game} has actions 0 to {len(meanings) - 1}, but the files go up to {largest}: another game?"
        )
    about = {
        "env": game,
        "kind": "dqn-replay",
        "action_count": len(meanings),
        "action_meanings": meanings,
        "fraction": config.fraction,
        "checkpoints": {checkpoint.number: checkpoint.rows for checkpoint in checkpoints},
        "sticky_actions": True,  # as the data set's own description says
        "clip_rewards": "as in the files",
    }
    with FrameWriter(target, about, overwrite=config.overwrite) as writer:
        counts = _Import(config, writer).run(checkpoints)
        if not writer.episodes:
            writer.discard()
            rows = sum(checkpoint.rows for checkpoint in checkpoints)
            raise DatasetError(
                f"no whole game in the {config.fraction:g} of {rows:,} rows asked for; take a larger share"
            )
        writer.finish(**asdict(counts), versions=versions(), revision=git_revision())
    store = FrameStore(target)
    report = ReplayReport(target, len(store), store.episodes)
    report.notes = _notes(checkpoints, counts)
    return report


def _notes(checkpoints: list[Checkpoint], counts: _Counts) -> list[str]:
    notes = []
    numbers = [checkpoint.number for checkpoint in checkpoints]
    gaps = sorted(set(range(numbers[0], numbers[-1] + 1)) - set(numbers))
    if gaps:
        notes.append(f"checkpoints {', '.join(map(str, gaps))} are not there; the others were taken")
    if counts.torn_rows:
        notes.append(f"{counts.torn_rows:,} rows belong to games that begin or end outside of what was taken: left out")
    if counts.padding_rows:
        notes.append(f"{counts.padding_rows:,} rows of zeros between games were left out")
    return notes


@dataclass
class _Counts:
    """What was not taken over."""

    padding_rows: int = 0
    torn_rows: int = 0


class _Import:
    """Goes through the checkpoints row by row; commits after each of them, and begins a broken-off one again."""

    def __init__(self, config: ImportReplayConfig, writer: FrameWriter) -> None:
        self.config, self.writer = config, writer
        done = writer.progress
        if "finished" not in done:
            writer.rewind(0, 0, 0)
            done = {}
        self.finished = done.get("finished", -1)  # the last checkpoint that is done with
        self.state = done.get("state", "start")  # one of STATES
        self.padding = done.get("padding", 0)  # rows of zeros seen in this gap between two games
        self.counts = _Counts(**done.get("counts", {}))
        self.number = self.row = 0  # the checkpoint that is being read, and up to where

    def run(self, checkpoints: list[Checkpoint]) -> _Counts:
        wanted = {checkpoint.number: math.ceil(checkpoint.rows * self.config.fraction) for checkpoint in checkpoints}
        bar = track(total=sum(wanted.values()), unit="row", desc="import", unit_scale=True)
        before: Checkpoint | None = None
        for checkpoint in checkpoints:
            count = wanted[checkpoint.number]
            if checkpoint.number > self.finished:
                self._enter(checkpoint, before, wanted)
                try:
                    self._read(checkpoint, count, bar)
                except DatasetError as error:
                    raise DatasetError(f"{error}{self._kept()}") from error
                self.writer.commit(
                    finished=checkpoint.number, state=self.state, padding=self.padding, counts=asdict(self.counts)
                )
            else:
                bar.update(count)
            before = checkpoint
        bar.close()
        self._tear()
        return self.counts

    def _enter(self, checkpoint: Checkpoint, before: Checkpoint | None, wanted: dict[int, int]) -> None:
        """A checkpoint goes on where the one before it ended, if all of that was taken; else a game may be torn."""
        follows = before is not None and before.number + 1 == checkpoint.number and wanted[before.number] == before.rows
        if not follows:
            self._tear()
            first = before is None and checkpoint.number == 0
            self.state, self.padding = "start" if first else "unsure", 0
        self.number, self.row = checkpoint.number, 0

    def _kept(self) -> str:
        """What is left when a checkpoint turns out to be damaged: nothing of it, and all of those before."""
        if not self.writer.committed:
            return ""
        kept = f"the {self.writer.committed:,} steps of earlier checkpoints are kept"
        return f"; {kept}, and the same command goes on from there"

    def _tear(self) -> None:
        """What is under way has no end that we will see."""
        self.counts.torn_rows += self.writer.drop_open()

    def _read(self, checkpoint: Checkpoint, count: int, bar: Any) -> None:
        columns = checkpoint.columns()
        with FrameStream(checkpoint.parts["observation"]) as frames:
            waiting = np.empty((0, *SHAPE), np.uint8)  # rows that may be the beginning of a padding
            while self.row < count:
                fresh = frames.read(min(self.config.chunk_rows, count - self.row - len(waiting)))
                rows = np.concatenate([waiting, fresh]) if len(waiting) else fresh
                used = self._take(columns, rows, last=self.row + len(rows) >= count)
                waiting = rows[used:]
                self.row += used
                bar.update(used)
            if count == checkpoint.rows:
                frames.check_end()

    def _take(self, columns: Columns, rows: np.ndarray, last: bool) -> int:
        """Append what belongs to games; return how many of `rows` [n, 84, 84] are dealt with."""
        position = 0
        while position < len(rows):
            first = self.row + position
            if self.state in ("start", "unsure"):
                missing = PADDING - self.padding
                if len(rows) - position < missing and not last:
                    return position  # too few rows to tell
                found = _zeros(columns, rows[position : position + missing], first)
                self.padding += found
                self.counts.padding_rows += found
                position += found
                if found < missing and self.state == "unsure":
                    self.state = "lost"
                elif found == missing or position < len(rows):
                    self.state = "inside"
                continue
            ends = np.flatnonzero(columns.terminals[first : self.row + len(rows)])
            stop = position + int(ends[0]) + 1 if len(ends) else len(rows)
            if self.state == "lost":
                self.counts.torn_rows += stop - position
            else:
                part = slice(first, self.row + stop)
                self.writer.append(
                    rows[position:stop],
                    columns.actions[part],
                    columns.rewards[part],
                    columns.terminals[part],
                    policy=self.number,
                )
            if len(ends):
                self.state, self.padding = "start", 0
            position = stop
        return position


def _zeros(columns: Columns, rows: np.ndarray, first: int) -> int:
    """How many `rows` [n, 84, 84] before a game are the recorder's rows of zeros: all of them or none."""
    part = slice(first, first + len(rows))
    values = (columns.actions[part], columns.rewards[part], columns.terminals[part])
    return 0 if rows.any() or any(column.any() for column in values) else len(rows)
