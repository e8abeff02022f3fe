"""RTG against the literal double sum, and buckets against brute force."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from brrcrl_lib.returns import SCHEMES, ReturnBuckets, reward_to_go
from brrcrl_lib.worlds import WORLDS

DISCOUNTS = st.sampled_from([0.0, 0.3, 0.9, 0.99, 1.0])
EPISODES = st.lists(st.lists(st.floats(-100, 100), min_size=1, max_size=35), min_size=1, max_size=6)


def literal(episodes, discount):
    """Sum over all later rewards, written out."""
    return np.array(
        [
            sum(discount**k * reward for k, reward in enumerate(rewards[t:]))
            for rewards in episodes
            for t in range(len(rewards))
        ]
    )


@given(EPISODES, DISCOUNTS)
@settings(max_examples=150, deadline=None)
def test_reward_to_go_is_the_literal_sum(episodes, discount):
    flat, lengths = np.concatenate(episodes), [len(rewards) for rewards in episodes]
    assert reward_to_go(flat, lengths, discount) == pytest.approx(literal(episodes, discount), abs=1e-9)


@given(EPISODES, DISCOUNTS)
@settings(max_examples=50, deadline=None)
def test_an_episode_alone_has_the_same_bits_as_among_others(episodes, discount):
    together = reward_to_go(np.concatenate(episodes), [len(rewards) for rewards in episodes], discount)
    apart = np.concatenate([reward_to_go(rewards, [len(rewards)], discount) for rewards in episodes])
    assert np.array_equal(together, apart)


def test_long_episodes_meet_the_closed_form():
    steps = 200_001
    left = np.arange(steps, 0, -1)
    ones = np.ones(steps, np.float32)
    assert np.array_equal(reward_to_go(ones, [steps], 1.0), left)
    expected = -np.expm1(left * np.log(0.99)) / 0.01
    assert np.allclose(reward_to_go(ones, [steps], 0.99), expected, rtol=1e-12, atol=0)


def test_the_input_stays_as_it_was():
    rewards = np.array([1.0, 2.0, 3.0])
    reward_to_go(rewards, [3], 0.5)
    assert rewards.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("rewards", "lengths", "discount", "message"),
    [
        ([1.0, float("nan")], [2], 0.9, "nan at step 1 .episode 0. is not finite"),
        ([1.0, 2.0, float("inf")], [2, 1], 0.9, "inf at step 2 .episode 1."),
        ([1.0, 2.0], [2, 0], 0.9, "episode 1 is empty"),
        ([1.0, 2.0], [3, -1], 0.9, "episode 1 is empty"),
        ([1.0, 2.0], [3], 0.9, "add up to 3, but there are 2 rewards"),
        ([1.0], [1], 1.5, "discount must lie in"),
        ([1.0], [1], float("nan"), "discount must lie in"),
        ([[1.0], [2.0]], [2], 0.9, "must be flat"),
    ],
)
def test_bad_episodes_are_refused_by_name(rewards, lengths, discount, message):
    with pytest.raises(ValueError, match=message):
        reward_to_go(rewards, lengths, discount)


# -- buckets ------------------------------------------------------------------------------------------------------

BUCKETS = st.builds(
    ReturnBuckets,
    low=st.floats(-500, 0),
    high=st.floats(1, 500),
    count=st.integers(2, 90),
    scheme=st.sampled_from(sorted(SCHEMES)),
)


@given(BUCKETS, st.lists(st.floats(-700, 700, width=32), min_size=1, max_size=20))
@settings(max_examples=150, deadline=None)
def test_encode_finds_the_bucket_by_its_edges(buckets, values):
    edges = buckets.lower_edges().tolist()
    returns = torch.tensor(values, dtype=torch.float32)
    for value, index in zip(returns.tolist(), buckets.encode(returns).tolist(), strict=True):
        assert index == max((i for i, edge in enumerate(edges) if edge <= value), default=0)


@given(BUCKETS)
@settings(deadline=None)
def test_every_bucket_decodes_into_itself(buckets):
    indices = torch.arange(buckets.count)
    inside = buckets.decode(indices) + (0 if buckets.scheme == "equal_width" else 0.01 * buckets.width)
    assert torch.equal(buckets.encode(inside), indices)


def test_the_two_schemes_have_the_edges_of_code_and_paper():
    assert ReturnBuckets(0, 10, 5).lower_edges().tolist() == [0, 2, 4, 6, 8]
    assert ReturnBuckets(0, 10, 5).decode(torch.arange(5)).tolist() == [1, 3, 5, 7, 9]
    assert ReturnBuckets(0, 10, 5, "paper_grid").lower_edges().tolist() == [0, 2.5, 5, 7.5, 10]
    assert ReturnBuckets(0, 10, 5, "paper_grid").decode(torch.arange(5)).tolist() == [0, 2.5, 5, 7.5, 10]


@given(st.lists(st.lists(st.integers(0, 9), min_size=6, max_size=6), min_size=1, max_size=5), st.integers(1, 60))
@settings(max_examples=200, deadline=None)
def test_threshold_is_the_largest_return_that_is_likely_enough(counts, numerator):
    """In whole numbers: P(R >= i) = (outcomes from i on) / total, and delta = numerator / 60."""
    rows = [row if sum(row) else [1, *row[1:]] for row in counts]
    outcomes = torch.tensor(rows, dtype=torch.float64)
    probabilities = outcomes / outcomes.sum(-1, keepdim=True)
    delta = numerator / 60 - 1e-12  # ties in exact arithmetic count as reached
    buckets = ReturnBuckets(0, 1, 6)
    expected = [max([0] + [i for i in range(6) if sum(row[i:]) * 60 >= numerator * sum(row)]) for row in rows]
    assert buckets.threshold(probabilities, delta).tolist() == expected
    per_row = torch.full((len(rows),), delta, dtype=torch.float64)
    assert buckets.threshold(probabilities, per_row).tolist() == expected
    tails = [[sum(row[i:]) / sum(row) for i in range(6)] for row in rows]
    assert torch.allclose(buckets.tail(probabilities), torch.tensor(tails, dtype=torch.float64), atol=1e-12)


def test_tail_is_the_share_of_data_at_or_above_the_edge():
    values = torch.rand(5000, generator=torch.Generator().manual_seed(0)) * 120 - 10
    for scheme in SCHEMES:
        buckets = ReturnBuckets(0, 100, 20, scheme)
        frequencies = torch.bincount(buckets.encode(values), minlength=20) / len(values)
        shares = (values[:, None] >= buckets.lower_edges()).float().mean(0)
        assert torch.allclose(buckets.tail(frequencies)[1:], shares[1:], atol=1e-6)
        assert buckets.tail(frequencies)[0] == pytest.approx(1)


def test_everything_runs_where_values_cannot_be_looked_at():
    buckets = ReturnBuckets(0, 10, 5)
    probabilities = torch.empty(3, 4, 5, device="meta")
    assert buckets.threshold(probabilities, 0.1).shape == (3, 4)
    assert buckets.threshold(probabilities, 0.1).dtype == torch.int64
    assert buckets.decode(buckets.encode(torch.empty(7, device="meta"))).shape == (7,)
    assert buckets.lower_edges("meta").device.type == "meta"


def test_the_range_of_the_data_clips_nothing():
    rtg = np.array([3.0, 250.0, 331.7], np.float32)
    for scheme in SCHEMES:
        buckets = ReturnBuckets.from_data(rtg, scheme=scheme)
        assert buckets.low == 0 and buckets.high == pytest.approx(331.7, rel=1e-5)
        assert buckets.count_outside(rtg) == (0, 0, 3)
    assert ReturnBuckets.from_data(torch.tensor([-5.0, 2.0])).low == -5
    assert int(ReturnBuckets.from_data(rtg).encode(torch.tensor(331.7))) == 79


def test_the_authors_ranges_are_found_by_dataset():
    assert ReturnBuckets.from_authors("d4rl/hopper/medium-replay-v2").high == 330
    assert ReturnBuckets.from_authors("brrcrl/halfcheetah/medium-expert-v0").high == 1200
    assert ReturnBuckets.from_authors("D4RL/Walker2d/expert-v1").high == 550
    highs = [world.authors_high for world in WORLDS if world.kind == "box"]
    assert all(kinds["medium-expert"] == kinds["expert"] for kinds in highs)
    with pytest.raises(ValueError, match="no V_max for 'mujoco/ant/simple-v0'"):
        ReturnBuckets.from_authors("mujoco/ant/simple-v0")


def test_returns_outside_are_counted_and_clipped():
    buckets = ReturnBuckets(0, 100, 10)
    returns = torch.tensor([-1.0, 0, 50, 100, 101, 500])
    assert buckets.count_outside(returns) == (1, 2, 6)
    assert buckets.encode(returns).tolist() == [0, 0, 5, 9, 9, 9]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"low": 1, "high": 1}, "V_min must lie below V_max"),
        ({"low": 2, "high": 1}, "V_min must lie below V_max"),
        ({"low": 0, "high": float("nan")}, "both finite"),
        ({"low": 0, "high": 1, "count": 1}, "at least 2 buckets"),
        ({"low": 0, "high": 1, "scheme": "equal-width"}, "did you mean 'equal_width'"),
    ],
)
def test_bad_buckets_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ReturnBuckets(**arguments)


def test_bad_requests_are_refused():
    buckets = ReturnBuckets(0, 1, 4)
    with pytest.raises(ValueError, match="delta must lie in"):
        buckets.threshold(torch.ones(4) / 4, 0.0)
    with pytest.raises(ValueError, match="expected 4 buckets"):
        buckets.tail(torch.ones(5) / 5)
    with pytest.raises(ValueError, match="no reward-to-go exceeds"):
        ReturnBuckets.from_data(np.zeros(3))
    with pytest.raises(ValueError, match="finite ones only"):
        ReturnBuckets.from_data(np.array([1.0, np.nan]))
