"""Frame stores against an oracle that stacks frames one by one from a plain list."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from brrcrl_lib.base.devices import generator
from brrcrl_lib.base.errors import KitError
from brrcrl_lib.data.frame_format import file_sizes
from brrcrl_lib.data.frame_writer import FrameWriter, staging_folder
from brrcrl_lib.data.frames import FrameStore, open_frames
from brrcrl_lib.data.registry import DatasetError
from brrcrl_lib.tools.bench.frames import benchmark_frames
from brrcrl_lib.tools.publishing.pack import PackConfig, UnpackConfig, export_sample, import_sample, pack, unpack

SMALL = (3, 2)


def made_up_game(rng: np.random.Generator, length: int, shape=SMALL, truncated: bool = False) -> dict[str, np.ndarray]:
    """Frames that are nowhere black, rewards, some lost lives; the last step ends the game."""
    last = np.arange(length) == length - 1
    return {
        "frames": rng.integers(1, 256, (length, *shape), dtype=np.uint8),
        "actions": rng.integers(0, 18, length),
        "rewards": rng.normal(0, 2, length).astype(np.float32),
        "terminated": last & (not truncated),
        "truncated": last & truncated,
        "life_lost": rng.random(length) < 0.2,
    }


def made_up_games(lengths, seed=0, shape=SMALL, truncate_every=3) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [made_up_game(rng, n, shape, number % truncate_every == 1) for number, n in enumerate(lengths)]


def write(target: Path, games, shape=SMALL, chunk: int | None = None, about=None) -> Path:
    """One game per call, or everything in chunks that know nothing of where games end."""
    with FrameWriter(target, about or {"env": "made up"}, shape) as writer:
        if chunk is None:
            for number, game in enumerate(games):
                writer.append(**game, policy=number % 2, seed=100 + number)
        else:
            flat = {key: np.concatenate([game[key] for game in games]) for key in games[0]}
            for first in range(0, len(flat["frames"]), chunk):
                writer.append(**{key: column[first : first + chunk] for key, column in flat.items()})
        return writer.finish()


def stack_slowly(frames: list[np.ndarray], t: int) -> np.ndarray:
    """The oracle: the frames of one game up to step t, literally."""
    stack = []
    for back in (3, 2, 1, 0):
        stack.append(frames[t - back] if t - back >= 0 else np.zeros_like(frames[0]))
    return np.stack(stack)


def rtg_slowly(rewards, ends, discount):
    found = np.zeros(len(rewards))
    following = 0.0
    for t in reversed(range(len(rewards))):
        following = float(rewards[t]) + (0.0 if ends[t] else discount * following)
        found[t] = following
    return found


# -- reading back what was written ---------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    chunk=st.one_of(st.none(), st.integers(1, 12)),
    seed=st.integers(0, 1000),
)
def test_stacks_and_successors_are_those_of_the_list(tmp_path_factory, lengths, chunk, seed):
    games = made_up_games(lengths, seed)
    store = FrameStore(write(tmp_path_factory.mktemp("store") / "s", games, chunk=chunk), discount=0.9)
    assert store.lengths.tolist() == lengths and len(store) == sum(lengths)
    steps = np.arange(len(store))
    observations, following = store.with_next(steps)
    step = 0
    for game in games:
        for t in range(len(game["frames"])):
            assert np.array_equal(observations[step], stack_slowly(list(game["frames"]), t))
            later = min(t + 1, len(game["frames"]) - 1)
            assert np.array_equal(following[step], stack_slowly(list(game["frames"]), later))
            step += 1
    flat = {key: np.concatenate([game[key] for game in games]) for key in games[0]}
    assert np.array_equal(store.frames, flat["frames"])
    batch = store.batch(steps)
    assert np.array_equal(batch.actions, flat["actions"]) and np.array_equal(batch.rewards, flat["rewards"])
    assert np.array_equal(batch.dones, flat["terminated"]) and np.array_equal(store.truncated(), flat["truncated"])
    assert np.array_equal(store.life_lost(), flat["life_lost"])
    ends = flat["terminated"] | flat["truncated"]
    assert np.allclose(batch.rtg, rtg_slowly(flat["rewards"], ends, 0.9), atol=1e-5)


def test_returns_may_end_with_a_life_and_be_clipped(tmp_path):
    games = made_up_games((30, 5, 17))
    folder = write(tmp_path / "s", games)
    store = FrameStore(folder, discount=0.8, end_at="life", clip_rewards=True)
    flat = {key: np.concatenate([game[key] for game in games]) for key in games[0]}
    ends = flat["terminated"] | flat["truncated"] | flat["life_lost"]
    assert np.allclose(store.rtg, rtg_slowly(np.clip(flat["rewards"], -1, 1), ends, 0.8), atol=1e-6)
    assert np.array_equal(store.dones, flat["terminated"] | flat["life_lost"])
    assert store.returns == pytest.approx([game["rewards"].sum(dtype=np.float64) for game in games])  # as played
    plain = FrameStore(folder).observations(np.arange(52))
    assert torch.equal(store.observations(np.arange(52)), plain), "a lost life does not cut a stack"


def test_samples_come_from_the_generator_and_leave_unknown_successors_out(tmp_path):
    store = FrameStore(write(tmp_path / "s", made_up_games((6, 4, 9, 3, 5))))
    one, same, other = (store.sample(64, generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(one.observations, same.observations) and torch.equal(one.indices, same.indices)
    assert not torch.equal(one.indices, other.indices)
    assert one.observations.shape == (64, 4, *SMALL) and one.observations.dtype == torch.uint8
    assert one.actions.dtype == torch.int64 and one.rtg.dtype == torch.float32 and one.next_observations is None
    seen = store.sample(2000, generator(2), with_next=True)
    cut = np.flatnonzero(store.truncated())
    assert len(cut) == 2 and not set(cut.tolist()) & set(seen.indices.tolist())
    assert set(seen.indices.tolist()) == set(range(len(store))) - set(cut.tolist())
    among = store.episode_steps(np.array([3, 1]))
    assert among.tolist() == [19, 20, 21, 6, 7, 8, 9]
    some = store.sample(500, generator(3), with_next=True, among=among)
    assert set(some.indices.tolist()) == set(among.tolist()) - {9}
    with pytest.raises(IndexError, match="the store has 27"):
        store.observations([27])


def test_pages_that_were_given_back_read_the_same(tmp_path):
    games = made_up_games((40, 60), shape=(84, 84))
    folder = write(tmp_path / "s", games, shape=(84, 84))
    roomy, tight = FrameStore(folder), FrameStore(folder, resident_bytes=1)
    for seed in range(5):
        one, other = (store.sample(16, generator(seed), with_next=True) for store in (roomy, tight))
        assert torch.equal(one.observations, other.observations)
        assert torch.equal(one.next_observations, other.next_observations)


def test_a_transition_takes_at_most_7200_bytes(tmp_path):
    folder = write(tmp_path / "s", made_up_games((50, 80, 70), shape=(84, 84)), shape=(84, 84))
    used = sum(file.stat().st_size for file in folder.iterdir())
    assert (used - 3 * 84 * 84) / 200 < 7_200  # three black frames at the head, once per store
    assert sum(file_sizes(1_000_000, 1_000, (84, 84)).values()) / 1e6 < 7_070


# -- kills, resumption, damage -------------------------------------------------------------------------------------


def test_a_torn_tail_is_cut_off_and_nothing_committed_is_lost(tmp_path):
    games = made_up_games((5, 7, 6))
    target = tmp_path / "s"
    writer = FrameWriter(target, {"env": "made up"}, SMALL)
    writer.append(**games[0], policy=0, seed=100)
    writer.append(**{key: column[:3] for key, column in games[1].items()})  # in the middle of a game
    writer.commit(game=1, step=3)
    writer.append(**{key: column[3:5] for key, column in games[1].items()})
    writer.close()  # as if killed: never committed
    with (staging_folder(target) / "frames.u8").open("ab") as file:
        file.write(b"torn")
    with pytest.raises(DatasetError, match="no frame store"):
        FrameStore(target)
    assert len(FrameStore(staging_folder(target))) == 5  # only whole games count
    with FrameWriter(target, {"env": "made up"}, SMALL) as again:
        assert again.resumed and again.progress == {"game": 1, "step": 3} and (again.steps, again.open_steps) == (8, 3)
        again.append(**{key: column[3:] for key, column in games[1].items()}, policy=1, seed=101)
        again.append(**games[2], policy=0, seed=102)
        again.finish()
    whole = write(tmp_path / "whole", games)
    for name in ("frames.u8", "steps.bin", "episodes.bin", "store.json"):
        assert (target / name).read_bytes() == (whole / name).read_bytes(), name
    assert not staging_folder(target).exists()


def test_a_kill_just_before_the_last_rename_costs_nothing(tmp_path, monkeypatch):
    games = made_up_games((5, 7))
    with FrameWriter(tmp_path / "s", {"env": "made up"}, SMALL) as writer:
        for game in games:
            writer.append(**game)
        monkeypatch.setattr(Path, "replace", _refuse)
        with pytest.raises(KeyboardInterrupt):
            writer.finish(extra=1)
    monkeypatch.undo()
    with FrameWriter(tmp_path / "s", {"env": "made up"}, SMALL) as again:
        assert again.resumed and again.steps == 12
        again.finish(extra=1)
    store = FrameStore(tmp_path / "s")
    assert store.lengths.tolist() == [5, 7] and store.about == {"env": "made up", "extra": 1}


_replace = Path.replace


def _refuse(self: Path, target: Path) -> Path:
    """Files may be renamed, folders not."""
    if self.is_dir():
        raise KeyboardInterrupt
    return _replace(self, target)


def _write_forever(target: Path) -> None:
    writer = FrameWriter(target, {}, SMALL)
    number = writer.progress.get("games", 0)
    while True:
        writer.append(**made_up_games((4,), seed=number, truncate_every=9)[0], seed=number)
        number += 1
        writer.commit(games=number)


def test_a_killed_writer_leaves_whole_games(tmp_path):
    target = tmp_path / "s"
    context = multiprocessing.get_context("fork")
    for _ in range(3):
        process = context.Process(target=_write_forever, args=(target,))
        process.start()
        while not (staging_folder(target) / "store.json").exists():
            time.sleep(0.01)
        time.sleep(0.1)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    with FrameWriter(target, {}, SMALL) as writer:
        count = writer.progress["games"]
        writer.finish()
    store = FrameStore(target)
    assert store.seeds.tolist() == list(range(count)) and count > 3
    for number in range(count):
        expected = made_up_games((4,), seed=number, truncate_every=9)[0]["frames"]
        assert np.array_equal(store.frames[4 * number : 4 * number + 4], expected)


def test_an_unfinished_game_can_be_dropped(tmp_path):
    games = made_up_games((5, 7))
    with FrameWriter(tmp_path / "s", {}, SMALL) as writer:
        writer.append(**games[0])
        writer.append(**{key: column[:4] for key, column in games[1].items()})
        assert writer.drop_open() == 4 and writer.steps == 5
        writer.append(**games[1])
        writer.append(**{key: column[:2] for key, column in games[0].items()})
        writer.finish(extra=[1, 2])
    store = FrameStore(tmp_path / "s")
    assert store.lengths.tolist() == [5, 7] and store.about == {"extra": [1, 2]}
    assert np.array_equal(store.frames[5:], games[1]["frames"])


def test_a_store_begun_otherwise_is_not_continued(tmp_path):
    with FrameWriter(tmp_path / "s", {"env": "Pong", "seed": 0}, SMALL) as writer:
        writer.append(**made_up_games((3,))[0])
        writer.commit()
    with pytest.raises(DatasetError, match=r"beginning of something else \(other seed\)"):
        FrameWriter(tmp_path / "s", {"env": "Pong", "seed": 1}, SMALL)


def test_two_writers_do_not_get_in_each_others_way(tmp_path):
    with FrameWriter(tmp_path / "s", {}, SMALL) as writer:
        writer.append(**made_up_games((3,))[0])
        writer.commit()
        with pytest.raises(KitError, match="another process is writing"):
            FrameWriter(tmp_path / "s", {}, SMALL)
        writer.finish()
    assert len(FrameStore(tmp_path / "s")) == 3


def test_nothing_is_left_of_a_store_that_never_got_anything(tmp_path):
    with pytest.raises(DatasetError, match="no finished episode"), FrameWriter(tmp_path / "s", {}, SMALL) as writer:
        writer.finish()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"frames": np.zeros((3, 3, 2), np.float32)}, "must be uint8"),
        ({"frames": np.zeros((3, 4, 4), np.uint8)}, r"must be uint8 \[n, 3, 2\]; got uint8 \[3, 4, 4\]"),
        ({"actions": np.array([1, 2])}, r"3 frames, but actions \(2,\)"),
        ({"actions": np.array([1, 2, 256])}, "0 to 255; got 1 to 256"),
        ({"actions": np.array([1, -1, 2])}, "0 to 255"),
        ({"rewards": np.array([0.0, np.nan, 1.0])}, "not finite, in step 1"),
        ({"terminated": np.zeros(4, bool)}, r"flags of shape \(4,\)"),
    ],
)
def test_wrong_arrays_are_refused(tmp_path, change, message):
    game = made_up_games((3,))[0]
    with FrameWriter(tmp_path / "s", {}, SMALL) as writer, pytest.raises(DatasetError, match=message):
        writer.append(**(game | change))
    assert list(tmp_path.iterdir()) == []


def test_damaged_stores_are_refused_in_one_sentence(tmp_path):
    folder = write(tmp_path / "s", made_up_games((5, 7)))
    with pytest.raises(KitError, match="exists; choose another place or pass --overwrite"):
        FrameWriter(folder, {}, SMALL)
    about = json.loads((folder / "store.json").read_text())

    def say(**changes):
        (folder / "store.json").write_text(json.dumps(about | changes))

    for changes, message in (
        ({"version": 9}, "version 9; this kit reads 1"),
        ({"format": "other"}, "does not describe a frame store"),
        ({"steps": 13}, "is missing or cut short"),
        ({"steps": 11}, "do not add up"),
        ({"episodes": 1, "open_steps": 6}, "do not add up"),
    ):
        say(**changes)
        with pytest.raises(DatasetError, match=message):
            FrameStore(folder)
    say()
    (folder / "frames.u8").write_bytes((folder / "frames.u8").read_bytes()[:-1])
    with pytest.raises(DatasetError, match="cut short"):
        FrameStore(folder)
    (folder / "store.json").write_text("{")
    with pytest.raises(DatasetError, match="cannot be read"):
        FrameStore(folder)


def test_a_store_is_found_by_name(tmp_path):
    write(tmp_path / "ladder" / "pong", made_up_games((5,)))
    assert len(open_frames("ladder/pong", tmp_path)) == len(open_frames(tmp_path / "ladder" / "pong")) == 5
    with pytest.raises(DatasetError, match="did you mean 'ladder/pong'"):
        open_frames("ladder/pnog", tmp_path)
    assert "5 steps in 1 games" in repr(open_frames("ladder/pong", tmp_path))


# -- shipping ------------------------------------------------------------------------------------------------------


def test_a_sample_survives_packing_bit_by_bit(tmp_path):
    games = made_up_games((20, 4, 33, 8))
    source = FrameStore(write(tmp_path / "s", games, about={"env": "made up", "sticky": True}))
    pack(PackConfig(tmp_path / "s", tmp_path / "sample.npz", max_bytes=1_000_000))
    copy = FrameStore(unpack(UnpackConfig(tmp_path / "sample.npz", "copy", tmp_path)).path)
    assert sorted(copy.lengths.tolist()) == [4, 8, 20, 33] and copy.about["sticky"] is True
    for number, seed in enumerate(copy.seeds):
        original = int(np.flatnonzero(source.seeds == seed)[0])
        steps, others = (s.episode_steps(np.array([n])) for s, n in ((copy, number), (source, original)))
        assert torch.equal(copy.observations(steps), source.observations(others))
        assert np.array_equal(copy.flags[steps], source.flags[others])
        assert torch.equal(copy.rewards[steps], source.rewards[others])
        assert torch.equal(copy.actions[steps], source.actions[others])
        assert copy.policies[number] == source.policies[original]


def test_a_sample_stays_below_its_limit_and_takes_what_fits(tmp_path):
    source = FrameStore(write(tmp_path / "s", made_up_games((100,) * 12, shape=(20, 20)), shape=(20, 20)))
    report = export_sample(source, tmp_path / "sample.npz", max_bytes=200_000)
    assert report["bytes"] == (tmp_path / "sample.npz").stat().st_size <= 200_000
    assert report["episodes"] == 4  # noise does not compress: 40 kB each
    with pytest.raises(DatasetError, match="not even one episode fits"):
        export_sample(source, tmp_path / "other.npz", max_bytes=1000)
    assert not (tmp_path / "other.npz").exists()


def test_damaged_samples_are_refused_and_leave_nothing(tmp_path):
    source = FrameStore(write(tmp_path / "s", made_up_games((20, 30))))
    file = tmp_path / "sample.npz"
    export_sample(source, file, max_bytes=100_000)
    content = file.read_bytes()
    for broken in (content[: len(content) // 2], b"", b"no sample", content[:600] + bytes(100) + content[700:]):
        file.write_bytes(broken)
        with pytest.raises(DatasetError, match="is no readable sample"):
            import_sample(file, tmp_path / "copy")
    with pytest.raises(DatasetError, match="no file at"):
        import_sample(tmp_path / "absent.npz", tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s", "sample.json", "sample.npz"]


def test_the_benchmark_measures_both_sides_in_one_run():
    report = benchmark_frames(steps=600, repeats=20, large_steps=20_000)
    assert report["bytes_per_transition"] < 7_200
    assert report["store_ms"] > 0 and report["in_memory_ms"] > 0
    assert report["large"]["steps"] == 20_000 and report["large"]["open_seconds"] < 1
    assert report["five_million"]["disk_gigabytes"] == pytest.approx(35.3, abs=0.1)
