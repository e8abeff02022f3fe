"""Importing files in the layout of the DQN-replay data set, which the tests write themselves."""

from __future__ import annotations

import gzip
import io
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brrcrl_lib import cli
from brrcrl_lib.base.errors import KitError
from brrcrl_lib.data.frames import FrameStore
from brrcrl_lib.tools.importing import dqn_replay
from brrcrl_lib.tools.importing.dqn_replay import ImportReplayConfig, import_dqn_replay
from brrcrl_lib.tools.importing.dqn_replay_files import FrameStream, name_of
from brrcrl_lib.tools.publishing.frame_writer import staging_folder

Game = dict[str, np.ndarray]


def made_up_game(rng: np.random.Generator, length: int) -> Game:
    return {
        "observation": rng.integers(1, 256, (length, 84, 84), dtype=np.uint8),
        "action": rng.integers(0, 4, length).astype(np.int32),
        "reward": rng.integers(-1, 2, length).astype(np.float32),
        "terminal": (np.arange(length) == length - 1).astype(np.uint8),
    }


def padding() -> Game:
    return {key: np.zeros_like(np.concatenate([column] * 3)) for key, column in made_up_game(RNG, 1).items()}


RNG = np.random.default_rng(0)


def recorded(lengths: list[int], rows: list[int], seed: int = 0) -> tuple[list[Game], list[Game]]:
    """Games, and the checkpoints of `rows` rows each that a recorder writes of them, with three zeros before each."""
    rng = np.random.default_rng(seed)
    games = [made_up_game(rng, length) for length in lengths]
    stream = list(itertools.chain.from_iterable((padding(), game) for game in games))
    flat = {key: np.concatenate([piece[key] for piece in stream]) for key in games[0]}
    cuts = np.cumsum([0, *rows])
    checkpoints = [{key: column[a:b] for key, column in flat.items()} for a, b in itertools.pairwise(cuts.tolist())]
    return games, [checkpoint for checkpoint in checkpoints if len(checkpoint["action"])]


def save(folder: Path, checkpoints: list[Game] | dict[int, Game]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    numbered = checkpoints.items() if isinstance(checkpoints, dict) else enumerate(checkpoints)
    for number, checkpoint in numbered:
        for part, column in checkpoint.items():
            with gzip.open(folder / name_of(part, number), "wb", compresslevel=1) as file:
                np.save(file, column, allow_pickle=False)
        with gzip.open(folder / f"add_count_ckpt.{number}.gz", "wb") as file:  # of no use here
            np.save(file, np.array(0))
    return folder


def run(tmp_path: Path, folder: Path, **options) -> FrameStore:
    report = import_dqn_replay(ImportReplayConfig(folder, "Breakout", root=tmp_path / "root", name="s", **options))
    store = FrameStore(report.path)
    assert (len(store), store.episodes) == (report.transitions, report.episodes)
    store.report = str(report)
    return store


def holds(store: FrameStore, games: list[Game]) -> bool:
    return (
        store.lengths.tolist() == [len(game["action"]) for game in games]
        and np.array_equal(store.frames, np.concatenate([game["observation"] for game in games]))
        and np.array_equal(store.actions, np.concatenate([game["action"] for game in games]))
        and np.array_equal(store.rewards, np.concatenate([game["reward"] for game in games]))
        and np.array_equal(store.dones, np.concatenate([game["terminal"] for game in games]))
    )


def nothing_was_written(tmp_path: Path) -> bool:
    root = tmp_path / "root"
    return not root.exists() or not any(root.iterdir())


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=6),
    rows=st.lists(st.integers(1, 15), min_size=1, max_size=5),
    chunk=st.integers(1, 9),
)
def test_games_come_back_whatever_the_cuts(tmp_path_factory, lengths, rows, chunk):
    """Checkpoints and chunks end anywhere, even inside a padding; every game that ended is there, and no other."""
    tmp_path = tmp_path_factory.mktemp("replay")
    games, checkpoints = recorded(lengths, rows)
    save(tmp_path / "files", checkpoints)
    whole = np.cumsum([3 + length for length in lengths]) <= sum(rows)
    if not whole.any():
        with pytest.raises(KitError, match="no whole game"):
            run(tmp_path, tmp_path / "files", chunk_rows=chunk)
        return
    store = run(tmp_path, tmp_path / "files", chunk_rows=chunk)
    assert holds(store, [game for game, complete in zip(games, whole, strict=True) if complete])


def test_a_fraction_takes_the_beginning_of_every_checkpoint(tmp_path):
    """Two checkpoints of 40 rows: of each, half; the game that the cut tears and the one it begins in are left out."""
    lengths = [5, 9, 11, 4, 6, 8, 7, 3]  # with padding: games end in rows 8, 20, 34, 41, 50, 61, 71, 77
    games, checkpoints = recorded(lengths, [40, 40])
    save(tmp_path / "Breakout" / "1" / "replay_logs", checkpoints)
    store = run(tmp_path, tmp_path, fraction=0.5)
    assert holds(store, [games[0], games[1], games[4]])
    assert store.policies.tolist() == [0, 0, 1]
    assert "rows belong to games that begin or end outside" in store.report
    assert store.about["fraction"] == 0.5 and store.about["env"] == "ALE/Breakout-v5"
    assert store.about["sticky_actions"] is True


def test_games_go_on_from_one_checkpoint_to_the_next_unless_one_is_missing(tmp_path):
    games, checkpoints = recorded([6, 9, 6, 9], [14, 14, 14])
    numbered = dict(enumerate(checkpoints))
    del numbered[1]  # rows 14 to 27; game 1 lies in rows 12 to 20, game 2 in 24 to 29, game 3 in 33 to 41
    save(tmp_path / "files", numbered)
    store = run(tmp_path, tmp_path / "files")
    assert holds(store, [games[0], games[3]])
    assert "checkpoints 1 are not there" in store.report


def test_a_file_without_padding_is_taken_as_it_is(tmp_path):
    games = [made_up_game(np.random.default_rng(1), length) for length in (4, 6, 5)]
    save(tmp_path / "files", [{key: np.concatenate([game[key] for game in games]) for key in games[0]}])
    assert holds(run(tmp_path, tmp_path / "files", chunk_rows=4), games)


class Killed(BaseException):
    """Stands for a signal that nothing catches."""


@pytest.mark.parametrize("calls", [2, 9, 12])
def test_a_killed_import_goes_on_and_ends_with_the_same_bytes(tmp_path, monkeypatch, calls):
    _, checkpoints = recorded([5, 9, 11, 4, 6, 8], [20, 20, 20])
    save(tmp_path / "files", checkpoints)
    expected = run(tmp_path / "whole", tmp_path / "files", chunk_rows=4).folder
    read, done = FrameStream.read, []

    def read_and_die(self, count):
        done.append(count)
        if len(done) > calls:
            raise Killed
        return read(self, count)

    monkeypatch.setattr(FrameStream, "read", read_and_die)
    with pytest.raises(Killed):
        run(tmp_path, tmp_path / "files", chunk_rows=4)
    monkeypatch.setattr(FrameStream, "read", read)
    staging = staging_folder(tmp_path / "root" / "s")
    if staging.exists():  # a checkpoint was finished
        with (staging / "frames.u8").open("ab") as file:
            file.write(b"half a frame")
    found = run(tmp_path, tmp_path / "files", chunk_rows=4).folder
    for name in ("frames.u8", "steps.bin", "episodes.bin", "store.json"):
        assert (found / name).read_bytes() == (expected / name).read_bytes(), name


# -- bad input -----------------------------------------------------------------------------------------------------


def good() -> Game:
    return recorded([5, 9], [20])[1][0]


def cut(column: np.ndarray) -> np.ndarray:
    return column[:-1]


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("observation", cut, "differ in length: observation 19, action 20"),
        ("action", cut, "differ in length"),
        (
            "observation",
            lambda c: c[:, :80],
            r"should hold uint8 frames \[rows, 84, 84\]; it holds uint8 \[20, 80, 84\]",
        ),
        ("observation", lambda c: c.astype(np.float32), "it holds float32"),
        ("observation", lambda c: np.asfortranarray(c), "columns first"),
        ("action", lambda c: c.astype(np.float32), "holds no actions: float32"),
        ("action", lambda c: c + 1, "has actions 0 to 3, but the files go up to 4: another game"),
        ("action", lambda c: c - 1, "holds no actions: int32 from -1"),
        ("action", lambda c: c[:, None], r"one number per row; it holds int32 \[20, 1\]"),
        ("reward", lambda c: np.where(np.arange(20) == 7, np.nan, c), "reward in row 7 is not finite"),
        ("terminal", lambda c: c + 1, "other values than 0 and 1"),
        ("reward", lambda c: c[:0], "differ in length"),
    ],
)
def test_wrong_arrays_are_refused_and_leave_nothing(tmp_path, part, change, message):
    save(tmp_path / "files", [good() | {part: change(good()[part])}])
    with pytest.raises(KitError, match=message):
        run(tmp_path, tmp_path / "files")
    assert nothing_was_written(tmp_path)


def test_damaged_files_are_refused_in_one_sentence(tmp_path):
    folder = save(tmp_path / "files", [good()])
    for part in ("observation", "action", "reward", "terminal"):
        file = folder / name_of(part, 0)
        whole = file.read_bytes()
        middle = len(whole) // 2
        for content, message in (
            (whole[:middle], "cut short|ends before that"),
            (whole[:10], "cut short"),
            (b"", "holds no npy array|cut short"),
            (b"no gzip file at all", "damaged or no gzip file"),
            (whole[:middle] + bytes(4) + whole[middle + 4 :], "damaged|cut short|differ|holds|ends before"),
            (gzip.compress(b"no npy array"), "holds no npy array"),
        ):
            file.write_bytes(content)
            with pytest.raises(KitError, match=message):
                run(tmp_path, folder)
            assert nothing_was_written(tmp_path)
        file.unlink()
        with pytest.raises(KitError, match=r"checkpoint 0 in .* is not whole: .* missing"):
            run(tmp_path, folder)
        file.write_bytes(whole)
    assert holds(run(tmp_path, folder), recorded([5, 9], [20])[0])


def test_pickles_are_never_loaded(tmp_path):
    folder = save(tmp_path / "files", [good()])
    content = io.BytesIO()  # the header of an array of objects; whatever follows must not be looked at
    header = {"descr": "|O", "fortran_order": False, "shape": (20,)}
    np.lib.format.write_array_header_1_0(content, header)
    content.write(bytes(400))
    for part in ("action", "observation"):
        whole = (folder / name_of(part, 0)).read_bytes()
        (folder / name_of(part, 0)).write_bytes(gzip.compress(content.getvalue()))
        with pytest.raises(KitError, match="Python objects"):
            run(tmp_path, folder)
        (folder / name_of(part, 0)).write_bytes(whole)
    assert nothing_was_written(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_damage_far_into_a_file_keeps_the_checkpoints_before(tmp_path, damage):
    games, checkpoints = recorded([5, 9, 11, 4], [20, 20])
    folder = save(tmp_path / "files", checkpoints)
    file = folder / name_of("observation", 1)
    whole = file.read_bytes()
    place = len(whole) * 3 // 4
    file.write_bytes(whole[:place] + (b"" if damage == "cut" else bytes(9) + whole[place + 9 :]))
    with pytest.raises(KitError, match=r"(cut short|damaged).*; the 14 steps of earlier checkpoints are kept"):
        run(tmp_path, folder, chunk_rows=4)
    assert [path.name for path in (tmp_path / "root").iterdir()] == [".s.partial"]
    assert len(FrameStore(tmp_path / "root" / ".s.partial")) == 14
    file.write_bytes(whole)
    assert holds(run(tmp_path, folder, chunk_rows=4), games[:3])


def test_bad_requests(tmp_path):
    folder = save(tmp_path / "files", [good()])
    for options, message in (
        ({"fraction": 0.0}, "fraction must be a finite number above 0 and at most 1; got 0.0"),
        ({"fraction": 1.5}, "fraction must be"),
        ({"chunk_rows": 0}, "chunk_rows must be"),
        ({"fraction": 0.1}, "no whole game in the 0.1 of 20 rows"),
    ):
        with pytest.raises(KitError, match=message):
            run(tmp_path, folder, **options)
    with pytest.raises(KitError, match="no files like"):
        run(tmp_path, tmp_path)
    with pytest.raises(KitError, match="no folder at"):
        run(tmp_path, tmp_path / "absent")
    with pytest.raises(KitError, match="did you mean 'breakout'"):
        import_dqn_replay(ImportReplayConfig(folder, "Brakout", root=tmp_path / "root"))
    run(tmp_path, folder)
    with pytest.raises(KitError, match="exists; choose another place or pass --overwrite"):
        run(tmp_path, folder)
    assert holds(run(tmp_path, folder, overwrite=True), recorded([5, 9], [20])[0])


def test_the_command(tmp_path, capsys, monkeypatch):
    folder = save(tmp_path / "Breakout" / "1" / "replay_logs", [good()])
    words = ["data", "import-dqn-replay", str(tmp_path), "--game", "Breakout", "--root", str(tmp_path / "root")]
    with pytest.raises(SystemExit) as left:
        cli.main(words)
    assert left.value.code == 0 and "14 transitions in 2 games" in capsys.readouterr().out
    assert len(FrameStore(tmp_path / "root" / "dqn-replay" / "breakout-100")) == 14
    (folder / name_of("reward", 0)).write_bytes(b"")
    with pytest.raises(SystemExit) as left:
        cli.main([*words, "--name", "other"])
    error = capsys.readouterr().err
    assert left.value.code == 2 and error.startswith("brrcrl data import-dqn-replay: ") and error.count("\n") == 1


def test_memory_does_not_hold_a_checkpoint(tmp_path, monkeypatch):
    """Frames are asked for in chunks, and never more of them than the share that was wanted."""
    save(tmp_path / "files", [recorded([30] * 4, [130])[1][0]])
    asked = []
    read = FrameStream.read
    monkeypatch.setattr(dqn_replay.FrameStream, "read", lambda self, count: asked.append(count) or read(self, count))
    run(tmp_path, tmp_path / "files", chunk_rows=10, fraction=0.5)
    assert max(asked) <= 10 and sum(asked) == 65
