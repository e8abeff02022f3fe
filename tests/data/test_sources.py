"""Sources of batches: whole transitions, windows and next states against loops over episodes; and opening by name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from discrete_cases import discrete_dataset
from frame_cases import random_frames, small_store
from synthetic import synthetic_dataset

from brrcrl_lib.base.devices import generator
from brrcrl_lib.base.errors import KitError
from brrcrl_lib.data.batch import Facts, Needs
from brrcrl_lib.data.frame_source import FrameSource
from brrcrl_lib.data.frames import FrameStore
from brrcrl_lib.data.open import kind_of, open_source
from brrcrl_lib.methods.base import create
from brrcrl_lib.methods.br_rcrl_joint import JointConfig
from brrcrl_lib.training import fit


def test_samples_come_from_the_generator_alone() -> None:
    data = synthetic_dataset()
    first, second = data.sample(1000, generator(1)), data.sample(1000, generator(1))
    assert torch.equal(first.indices, second.indices) and first.indices.dtype == torch.int64
    assert set(data.sample(20_000, generator(1)).indices.tolist()) == set(range(len(data)))
    for name in ("observations", "actions", "rewards"):
        assert torch.equal(getattr(first, name), getattr(data, name)[first.indices])
    assert torch.equal(first.returns, data.rtg[first.indices]) and first.next_observations is None


def test_next_states_are_those_of_the_same_episode() -> None:
    data = discrete_dataset()
    batch = data.batch(torch.arange(len(data)), Needs(next=True))
    last = data.starts + data.lengths - 1
    torch.testing.assert_close(batch.next_observations[last], data.final_observations)
    inside = torch.ones(len(data), dtype=torch.bool)
    inside[last] = False
    torch.testing.assert_close(batch.next_observations[inside], data.observations[1:][inside[:-1]])
    # R_t = r_t + gamma R_{t+1}: what makes Monte Carlo and temporal differences agree
    following = torch.where(inside, torch.roll(batch.returns, -1), 0)
    torch.testing.assert_close(batch.rewards + 0.95 * following, batch.returns)
    assert torch.equal(batch.done, data.terminations)


@pytest.mark.parametrize("context", [1, 4, 100])
def test_windows_are_the_steps_before_and_nothing_of_other_episodes(context: int) -> None:
    data = synthetic_dataset()
    chosen = torch.tensor([0, 3, int(data.starts[2]), int(data.starts[2]) + 2, len(data) - 1])
    batch = data.batch(chosen, Needs(context=context))
    assert batch.observations.shape == (5, context, 11) and torch.equal(batch.indices, chosen)
    for row, step in enumerate(chosen.tolist()):
        start = int(data.starts[data.episode_ids[step]])
        for place in range(context):
            before = step - (context - 1 - place)
            assert bool(batch.mask[row, place]) == (before >= start)
            if before >= start:
                assert torch.equal(batch.observations[row, place], data.observations[before])
                assert torch.equal(batch.actions[row, place], data.actions[before])
                assert int(batch.timesteps[row, place]) == before - start


def test_clipped_rewards_are_clipped_before_they_are_added_up() -> None:
    data = synthetic_dataset()
    clipped = data.clip_rewards(0.3)
    rewards = data.rewards.clamp(-0.3, 0.3)
    for episode in (0, 5):
        first, last = int(data.starts[episode]), int(data.starts[episode] + data.lengths[episode])
        slow = sum(0.99**k * float(reward) for k, reward in enumerate(rewards[first:last]))
        assert float(clipped.rtg[first]) == pytest.approx(slow, rel=1e-5)
    assert clipped.facts().reward_clip == 0.3 and torch.equal(clipped.returns, data.returns)


def test_facts_survive_json() -> None:
    for source, kind in ((synthetic_dataset(), "box"), (discrete_dataset(), "discrete"), (random_frames(), "pixels")):
        facts = source.facts()
        assert facts.kind == kind and Facts.from_plain(facts.plain()) == facts
        low, high = facts.return_range
        assert facts.return_quantiles[0] == pytest.approx(low, abs=1e-4)
        assert facts.return_quantiles[-1] == pytest.approx(high, abs=1e-4)
    with pytest.raises(KitError, match="counted from 1"):
        replace(discrete_dataset(), action_low=torch.tensor([1.0])).facts()


# -- frames --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pong(tmp_path_factory) -> FrameStore:
    folder = tmp_path_factory.mktemp("pong")
    return small_store(folder / "frames", "pong", folder / "policies")


def test_frames_come_in_whole_transitions_and_from_the_chosen_games_only(pong: FrameStore) -> None:
    source = FrameSource(pong)
    batch = source.sample(50, generator(0), Needs(next=True))
    assert torch.equal(batch.observations, pong.observations(batch.indices))
    inside = ~torch.from_numpy(np.isin(batch.indices.numpy(), pong.starts + pong.lengths - 1))
    assert torch.equal(batch.next_observations[inside], pong.observations(batch.indices[inside] + 1))
    train, held = source.split(0.25, generator(0))
    games = [set(part.games.tolist()) for part in (train, held)]
    assert games[0] | games[1] == set(range(pong.episodes)) and not games[0] & games[1]
    drawn = held.sample(200, generator(0)).indices
    owner = np.searchsorted(pong.starts, drawn.numpy(), side="right") - 1
    assert set(owner.tolist()) <= games[1]
    best = source.top_fraction(0.25)
    worst_kept = pong.returns[best.games].min()
    assert (np.delete(pong.returns, best.games) <= worst_kept).all()
    with pytest.raises(KitError, match="windows of several steps come from vectors"):
        source.sample(4, generator(0), Needs(context=3))


def test_frames_are_standardised_by_the_data_unless_the_config_says_otherwise() -> None:
    source = random_frames()
    stacks = source.stacks[:2].float()
    mean, std = source.standardisation()
    method = create(JointConfig(objective="distributional_td"), source.facts())
    for name in ("model", "behaviour", "target"):
        encoder = method.modules[name].encoder
        expected = encoder.net(((stacks - mean) / std).float())
        torch.testing.assert_close(encoder(source.stacks[:2]), expected, atol=1e-5, rtol=1e-4)
    plain = create(JointConfig(standardise_frames=False), source.facts()).model.encoder
    torch.testing.assert_close(plain(source.stacks[:2]), plain.net(stacks / 255))


def test_a_ball_is_found_sooner_without_the_background() -> None:
    """A bright ball on a grey field: on the left half it means a return of -1, on the right of 1.

    Frames divided by 255 give p(R), half and half, when standardised ones already give p(R|s).
    """
    places = torch.randint(83, (400, 2), generator=generator(0))
    field = torch.full((400, 84, 84), 87, dtype=torch.uint8)
    for frame, (row, column) in zip(field, places.tolist(), strict=True):
        frame[row : row + 2, column : column + 2] = 236
    source = random_frames()
    source.frames, source.stacks = field.numpy(), field[:, None].expand(-1, 4, -1, -1)
    source.returns = torch.where(places[:, 1] < 41, -1.0, 1.0)

    def sample(size, rng, needs=None):
        chosen = torch.randint(400, (size,), generator=rng)
        batch = random_frames().sample(size, generator(0))
        found = {"observations": source.stacks[chosen], "actions": chosen % 2, "returns": source.returns[chosen]}
        return replace(batch, **found, done=chosen < 0, indices=chosen)

    source.sample = sample
    known = {}
    for standardise in (True, False):
        config = JointConfig(
            steps=50, batch_size=32, log_every=10, device="cpu", standardise_frames=standardise, encoder="light"
        )
        known[standardise] = fit(config, source).metrics[-1]["return_nll"]
    assert known[True] < 0.25 and known[False] > 0.5  # knowing nothing but p(R) costs log 2 = 0.69


# -- opening by name -----------------------------------------------------------------------------------------------


def test_a_name_says_what_it_is() -> None:
    assert kind_of("brrcrl/hopper/medium-replay-v0") == "box"
    assert kind_of("ladder/pong") == kind_of("sample/breakout") == "pixels"
    assert kind_of("d4rl/walker2d/medium-v2") == "box"  # not installed: its world's card says so
    with pytest.raises(KitError, match="no dataset 'nobody/nothing-v0'"):
        kind_of("nobody/nothing-v0")


def test_discount_and_clipping_are_the_papers_unless_said_otherwise(monkeypatch, tmp_path) -> None:
    facts = open_source("brrcrl/hopper/medium-v0").facts()
    assert (facts.discount, facts.reward_clip) == (0.99, None)
    other = open_source("brrcrl/hopper/medium-v0", discount=0.9, reward_clip=1.0).facts()
    assert (other.discount, other.reward_clip) == (0.9, 1.0) and other.return_range[1] <= 10.0
    monkeypatch.setenv("BRRCRL_FRAMES_PATH", str(tmp_path))
    with pytest.raises(KitError, match="brrcrl data rollout --ladder pong --steps 200000 --seed 0"):
        open_source("ladder/pong")
    with pytest.raises(KitError, match="or not"):
        open_source("ladder/pong", reward_clip=3.0)
