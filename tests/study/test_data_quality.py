"""What a dataset is good for, on episodes small enough to count by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from synthetic import synthetic_dataset

from brrcrl_lib.data.minari import load_dataset
from brrcrl_lib.data.vectors import OfflineDataset
from brrcrl_lib.returns import reward_to_go
from brrcrl_lib.study.analysis.d4rl_facts import d4rl_facts, with_score
from brrcrl_lib.study.analysis.data_quality import Block, Quality, describe, expert_of, measure, warnings


def dataset(*episodes: list[float], discount: float = 0.5) -> OfflineDataset:
    """A dataset with these rewards; measuring looks at nothing else."""
    lengths = np.array([len(rewards) for rewards in episodes])
    rewards = np.concatenate([np.asarray(rewards, dtype=np.float32) for rewards in episodes])
    return replace(
        synthetic_dataset(episodes=1),
        discount=discount,
        rewards=torch.as_tensor(rewards),
        rtg=torch.as_tensor(reward_to_go(rewards, lengths, discount)).float(),
        episode_ids=torch.as_tensor(np.repeat(np.arange(len(episodes)), lengths)),
        lengths=torch.as_tensor(lengths),
        starts=torch.as_tensor(np.cumsum(lengths) - lengths),
        returns=torch.as_tensor([float(sum(rewards)) for rewards in episodes]),
    )


GOOD = Quality(
    "good", 0.99, 9000, 100, 50.0, (Block(60, 10.0, 20.0), Block(40, 20.0, 45.0)), 0.5, 0.4, 20, 20, 50.0, 0.9
)


def test_three_episodes_by_hand() -> None:
    quality = measure(dataset([4, 0], [2, 2, 2], [8]), expert_return=50)
    # RTG: 4 0 | 3.5 3 2 | 8
    assert (quality.steps, quality.episodes) == (6, 3)
    assert quality.blocks == ((1, 4, 4), (1, 6, 6), (1, 8, 8))
    assert quality.junk_episodes == pytest.approx(1 / 3) and quality.junk_steps == pytest.approx(2 / 6)
    assert quality.top_step_episodes == quality.top_value_episodes == 1
    assert quality.effective_episodes == pytest.approx(36 / (4 + 9 + 1))
    a, b = np.array([4, 3.5, 8]), np.array([4, 6, 8])
    gaps = (a - a.mean()), (b - b.mean())
    expected = (gaps[0] * gaps[1]).sum() / np.sqrt((gaps[0] ** 2).sum() * (gaps[1] ** 2).sum())
    assert quality.correlation == pytest.approx(expected)


def test_ten_blocks_follow_the_order_of_collection() -> None:
    quality = measure(dataset(*[[float(i)] for i in range(25)]), expert_return=100)
    assert [block.episodes for block in quality.blocks] == [3] * 5 + [2] * 5
    assert quality.blocks[0] == (3, 1, 2) and quality.blocks[-1] == (2, 23.5, 24)


def test_the_tenth_of_the_steps_is_not_the_tenth_of_the_range() -> None:
    """Twenty episodes around 10 and one of 100: two steps in 21 are the top tenth, one episode is near 100."""
    quality = measure(dataset([100.0], *[[10 + i / 100] for i in range(20)]), expert_return=100)
    assert quality.top_value_episodes == 1
    assert quality.top_step_episodes == 3  # the quantile lies on the third step


def test_a_sprint_that_falls_is_worth_more_discounted() -> None:
    sprint, walk = [8.0, 0.0], [3.0] * 9
    quality = measure(dataset(sprint, walk, sprint, walk), expert_return=27)
    assert quality.correlation == pytest.approx(-1)
    assert any("sprint and fall" in text for text in warnings(quality))


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"top_step_episodes": 19}, "Only 19 episodes hold the tenth of all steps"),
        ({"top_value_episodes": 1}, "Only 1 episode holds the highest tenth of the range"),
        ({"junk_episodes": 0.81}, "81% of the episodes earn less than a tenth"),
        ({"correlation": 0.89}, "correlate only 0.89"),
        ({"correlation": None}, "Returns do not vary"),
        ({"effective_episodes": 49.0}, "worth 49 episodes"),
    ],
)
def test_each_warning_has_its_threshold(change: dict[str, float | None], part: str) -> None:
    assert warnings(GOOD) == []
    (text,) = warnings(replace(GOOD, **change))  # type: ignore[arg-type]
    assert part in text
    assert f"Warning: {text}" in describe(replace(GOOD, **change))  # type: ignore[arg-type]


def test_equal_returns_have_no_correlation() -> None:
    assert measure(dataset([0.1, 0.2], [0.1, 0.2]), expert_return=1).correlation is None
    assert measure(dataset([1.0]), expert_return=1).correlation is None


def test_an_expert_must_earn_something() -> None:
    with pytest.raises(ValueError, match="positive one; got -3"):
        measure(dataset([1.0]), expert_return=-3)


def test_the_recorded_walker_replay_cannot_carry_the_claim() -> None:
    """Measured independently before: correlation 0.84, three episodes in the top tenth of the range."""
    quality = measure(load_dataset("brrcrl/walker2d/medium-replay-v0"), expert_return=4592.3)
    assert quality.correlation == pytest.approx(0.84, abs=0.005)
    assert quality.top_value_episodes == 3
    text = describe(quality)
    assert text.startswith("brrcrl/walker2d/medium-replay-v0\n") and "3 episodes hold the highest tenth" in text
    assert sum(block.episodes for block in quality.blocks) == quality.episodes == 1345


def test_the_expert_is_the_cards_own_then_the_references_then_the_best_episode() -> None:
    carded = {"card": {"policy": {"fresh_return_mean": 300.0}, "share_of_expert": 0.25}}
    plain = replace(dataset([4, 0], [8]), card={}, env_spec=None, id="mine/nowhere-v0")
    assert expert_of(replace(plain, card=carded)) == 1200
    assert expert_of(replace(plain, id="mine/hopper/medium-v3")) == 3234.3
    assert expert_of(plain) == 8


def test_a_dataset_stands_beside_its_counterpart_in_d4rl() -> None:
    theirs = d4rl_facts("brrcrl/halfcheetah/medium-replay-v7")
    assert theirs is not None and theirs.transitions == 202_000
    assert d4rl_facts("brrcrl/halfcheetah/mine-v0") is None and d4rl_facts("ladder/pong") is None
    low, high = -280.178953, 12135.0  # D4RL's reference returns of HalfCheetah
    score = 100 * (3093.29 - low) / (high - low)
    text = describe(replace(GOOD, id="brrcrl/halfcheetah/medium-replay-v1"))
    assert f"202,000 steps; 3,093 ({score:.1f}), 4,985" in text
    assert "14 (2.4), 45 (2.6)" in text  # (60 * 10 + 40 * 20) / 100 and the larger of 20 and 45
    assert "D4RL" not in describe(GOOD) and with_score("mine/nowhere-v0", 1234.4) == "1,234"
