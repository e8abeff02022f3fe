"""Frame stores against an oracle that stacks frames one by one from a plain list."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from frame_cases import SMALL, made_up_games, write_store
from hypothesis import given, settings
from hypothesis import strategies as st

from brrcrl_lib.base.devices import generator
from brrcrl_lib.base.errors import KitError
from brrcrl_lib.data.frame_format import file_sizes
from brrcrl_lib.data.frames import FrameStore, open_frames
from brrcrl_lib.data.registry import DatasetError
from brrcrl_lib.tools.publishing.frame_writer import FrameWriter


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
    store = FrameStore(write_store(tmp_path_factory.mktemp("store") / "s", games, chunk=chunk), discount=0.9)
    assert store.lengths.tolist() == lengths and len(store) == sum(lengths)
    steps = np.arange(len(store))
    pairs = store.batch(steps, with_next=True)
    observations, following = pairs.observations, pairs.next_observations
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
    assert np.array_equal(batch.done, flat["terminated"]) and np.array_equal(store.truncated(), flat["truncated"])
    assert np.array_equal(store.life_lost(), flat["life_lost"])
    ends = flat["terminated"] | flat["truncated"]
    assert np.allclose(batch.returns, rtg_slowly(flat["rewards"], ends, 0.9), atol=1e-5)


def test_returns_may_end_with_a_life_and_be_clipped(tmp_path):
    games = made_up_games((30, 5, 17))
    folder = write_store(tmp_path / "s", games)
    store = FrameStore(folder, discount=0.8, end_at="life", clip_rewards=True)
    flat = {key: np.concatenate([game[key] for game in games]) for key in games[0]}
    ends = flat["terminated"] | flat["truncated"] | flat["life_lost"]
    assert np.allclose(store.rtg, rtg_slowly(np.clip(flat["rewards"], -1, 1), ends, 0.8), atol=1e-6)
    assert np.array_equal(store.dones, flat["terminated"] | flat["life_lost"])
    assert store.returns == pytest.approx([game["rewards"].sum(dtype=np.float64) for game in games])  # as played
    plain = FrameStore(folder).observations(np.arange(52))
    assert torch.equal(store.observations(np.arange(52)), plain), "a lost life does not cut a stack"


def test_samples_come_from_the_generator_and_leave_unknown_successors_out(tmp_path):
    store = FrameStore(write_store(tmp_path / "s", made_up_games((6, 4, 9, 3, 5))))
    one, same, other = (store.sample(64, generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(one.observations, same.observations) and torch.equal(one.indices, same.indices)
    assert not torch.equal(one.indices, other.indices)
    assert one.observations.shape == (64, 4, *SMALL) and one.observations.dtype == torch.uint8
    assert one.actions.dtype == torch.int64 and one.returns.dtype == torch.float32 and one.next_observations is None
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
    folder = write_store(tmp_path / "s", games, shape=(84, 84))
    roomy, tight = FrameStore(folder), FrameStore(folder, resident_bytes=1)
    for seed in range(5):
        one, other = (store.sample(16, generator(seed), with_next=True) for store in (roomy, tight))
        assert torch.equal(one.observations, other.observations)
        assert torch.equal(one.next_observations, other.next_observations)


def test_a_transition_takes_at_most_7200_bytes(tmp_path):
    folder = write_store(tmp_path / "s", made_up_games((50, 80, 70), shape=(84, 84)), shape=(84, 84))
    used = sum(file.stat().st_size for file in folder.iterdir())
    assert (used - 3 * 84 * 84) / 200 < 7_200  # three black frames at the head, once per store
    assert sum(file_sizes(1_000_000, 1_000, (84, 84)).values()) / 1e6 < 7_070


# -- damage -------------------------------------------------------------------------------------------------------


def test_damaged_stores_are_refused_in_one_sentence(tmp_path):
    folder = write_store(tmp_path / "s", made_up_games((5, 7)))
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
    write_store(tmp_path / "ladder" / "pong", made_up_games((5,)))
    assert len(open_frames("ladder/pong", tmp_path)) == len(open_frames(tmp_path / "ladder" / "pong")) == 5
    with pytest.raises(DatasetError, match="did you mean 'ladder/pong'"):
        open_frames("ladder/pnog", tmp_path)
    assert "5 steps in 1 games" in repr(open_frames("ladder/pong", tmp_path))
