"""What a table believes, against sums written out; steps after a point, against a loop over the game."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from brrcrl_lib.discrete.table import JointTable
from discrete_cases import BUCKETS, joint_model

from brrcrl_lib.returns import ReturnBuckets
from brrcrl_lib.study.analysis import joint_tables as beliefs
from brrcrl_lib.study.analysis import pong_points as points


class Vectors:
    """A source of states for tests: rows of a matrix."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def observations(self, indices: torch.Tensor) -> torch.Tensor:
        return self.rows[indices]


@pytest.fixture
def table() -> JointTable:
    return JointTable(2 * torch.randn(6, 3, BUCKETS.count, generator=torch.Generator().manual_seed(0)))


def test_tables_are_those_of_the_model_whatever_the_batch() -> None:
    model, source = joint_model(), Vectors(torch.randn(11, 4))
    steps = torch.tensor([3, 0, 10, 7, 7])
    found = beliefs.tables(model, source, steps, batch=2)
    assert torch.allclose(found.logits, model(source.rows[steps]).logits, atol=1e-6)
    assert beliefs.one_state(found, 2).logits.shape == (1, 3, BUCKETS.count)


def test_forecasts_and_stakes_are_sums_over_the_table(table: JointTable) -> None:
    joint, grid = table.log_joint().exp().double(), BUCKETS.decode(torch.arange(BUCKETS.count)).double()
    for state in range(6):
        prior = joint[state].sum(1)
        means = [float((joint[state, a] / prior[a]) @ grid) for a in range(3)]
        overall = sum(float(prior[a]) * means[a] for a in range(3))
        spread = sum(float(prior[a]) * (means[a] - overall) ** 2 for a in range(3)) ** 0.5
        assert beliefs.forecasts(table, BUCKETS)[state].tolist() == pytest.approx(means, rel=1e-4)
        assert float(beliefs.stakes(table, BUCKETS)[state]) == pytest.approx(spread, rel=1e-3)


def test_calm_is_where_the_action_does_not_matter(table: JointTable) -> None:
    logits = table.logits.clone()
    logits[4] = logits[4, :1]  # every action has the same returns
    logits[1] = -9.0
    logits[1, 0, 0] = logits[1, 1, -1] = 9.0  # one action means nothing, another everything
    assert beliefs.calm_and_critical(JointTable(logits), BUCKETS) == (4, 1)


def test_chance_is_the_tail_of_the_returns(table: JointTable) -> None:
    bucket = torch.tensor([0, 3, 5, 10, 1, 7])
    tail = [float(table.log_returns().exp()[state, int(first) :].sum()) for state, first in enumerate(bucket)]
    assert beliefs.chance(table, bucket).tolist() == pytest.approx(tail, rel=1e-4)
    assert float(beliefs.chance(table, bucket)[0]) == pytest.approx(1)


def test_steps_are_spread_over_games_and_leave_out_partly_black_stacks() -> None:
    assert beliefs.spread_steps([5, 2, 6], 100).tolist() == [3, 4, 10, 11, 12]  # a game of two has no full stack
    few = beliefs.spread_steps([100, 100], 3).tolist()
    assert few[0] == 3 and few[-1] == 199 and len(few) == 3


def test_a_wish_pulls_no_further_than_it_is_improbable(table: JointTable) -> None:
    """KL of a conditional from what it conditions is at most -log of the condition's probability; sums by hand."""
    for bucket in range(BUCKETS.count):
        index = torch.full((6,), bucket)
        pulled, chance = beliefs.pull(table, index), beliefs.chance(table, index)
        assert (pulled >= -1e-5).all() and (pulled <= -chance.log() + 1e-4).all()
    assert torch.allclose(beliefs.pull(table, torch.zeros(6, dtype=torch.int64)), torch.zeros(6), atol=1e-5)
    state, bucket = 2, 7
    joint = table.log_joint().exp()[state].double()
    usual, wanted = joint.sum(1), joint[:, bucket:].sum(1) / joint[:, bucket:].sum()
    index = torch.full((6,), bucket)
    expected = sum(float(w) * np.log(float(w / u)) for w, u in zip(wanted, usual, strict=True))
    assert float(beliefs.pull(table, index)[state]) == pytest.approx(expected, rel=1e-3)
    forecast = beliefs.forecasts(table, BUCKETS)[state].double()
    bought = float((wanted * forecast).sum() - (usual * forecast).sum())
    assert float(beliefs.gain(table, BUCKETS, index)[state]) == pytest.approx(bought, rel=1e-3)


# -- points ------------------------------------------------------------------------------------------------------

REWARDS = np.array([0, -1, 0, 0, 0, 1, 0, 0.0, 0, 0, 1, 0, -1])
LENGTHS = np.array([8, 5])


def test_steps_after_a_point_stay_in_their_game() -> None:
    found = points.after_points(REWARDS, LENGTHS, within=3)
    expected: dict[str, set[int]] = {"lost": set(), "won": set()}
    for first, length in ((0, 8), (8, 5)):
        for step in range(first, first + length):
            if REWARDS[step]:
                later = range(step + 1, min(step + 4, first + length))
                expected["lost" if REWARDS[step] < 0 else "won"] |= set(later)
    assert {name: set(steps.tolist()) for name, steps in found.items()} == expected
    assert points.earliest_next_point(REWARDS, LENGTHS) == 2
    assert points.earliest_next_point(REWARDS[:4], LENGTHS[:1] - 4) is None


def test_shares_that_reach_a_target() -> None:
    rtg = np.array([0.1, 0.5, 0.9, 1.0])
    table = points.reach_table(rtg, {"all": np.arange(4), "end": np.array([2, 3]), "none": np.array([], int)},
                               {"max": 1.0, "some": 0.5})  # fmt: skip
    assert table.loc["max"].tolist() == [0.25, 0.5, 0.0] and table.loc["some"].tolist() == [0.75, 1.0, 0.0]


def test_a_bucket_of_the_maximum_is_the_last() -> None:
    buckets = ReturnBuckets.from_data(torch.tensor([-1.0, 0.3, 0.97]), 51)
    assert int(buckets.encode(torch.tensor(0.97))) == 50
