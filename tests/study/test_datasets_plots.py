"""What notebook 04 measures, against cases with known answers; and rendering, with and without a renderer."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import gymnasium as gym
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from synthetic import synthetic_dataset

from brrcrl_lib.data.vectors import OfflineDataset
from brrcrl_lib.returns import ReturnBuckets, reward_to_go
from brrcrl_lib.study.figures.datasets import (
    bucket_counts,
    clock_effect,
    clock_effects,
    draw_buckets,
    draw_clock,
    draw_distribution,
    draw_learning_curve,
    draw_rarity,
    draw_strip,
    render,
    replay_job,
    top_edge,
)
from brrcrl_lib.study.figures.replay import play


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


def walking(episodes: int = 3, steps: int = 600, reward: float = 2.0) -> OfflineDataset:
    """Episodes that the clock ends; the reward is constant, and the observation is a phase that repeats every 50."""
    base = synthetic_dataset(episodes)
    lengths = torch.full((episodes,), steps)
    rewards = torch.full((episodes * steps,), reward)
    numbers = torch.arange(episodes).repeat_interleave(steps)
    timesteps = torch.arange(steps).repeat(episodes)
    return replace(
        base,
        lengths=lengths,
        starts=lengths.cumsum(0) - lengths,
        rewards=rewards,
        rtg=torch.from_numpy(reward_to_go(rewards, lengths, 0.99)).float(),
        timesteps=timesteps,
        episode_ids=numbers,
        terminations=torch.zeros(len(rewards), dtype=torch.bool),
        truncations=timesteps == steps - 1,
        observations=(timesteps % 50).float()[:, None],
    )


def test_the_top_of_a_range_and_the_counts_of_buckets() -> None:
    assert top_edge(torch.tensor([-10.0, 3.0, 90.0]), 0.1) == pytest.approx(80)
    counts = bucket_counts(ReturnBuckets(0, 100, 4), torch.tensor([-5.0, 0.0, 24.9, 25.0, 99.0, 1000.0]))
    assert counts.tolist() == [3, 1, 0, 2]


def test_the_clock_lowers_rtg_as_the_closed_form_says() -> None:
    effect = clock_effect(walking(), [100, 10, 1], np.random.default_rng(0))
    expected = [2 * (1 - 0.99**left) / 0.01 for left in (100, 10, 1)]
    assert effect["rtg"].tolist() == pytest.approx(expected, rel=1e-5)
    # the like state has the same phase, lies 100 to 199 steps from the start, so 401 to 500 from the end
    low, high = (2 * (1 - 0.99**left) / 0.01 for left in (401, 500))
    assert effect["like"].between(low - 1e-3, high + 1e-3).all()
    assert effect["reward"].tolist() == effect["middle_reward"].tolist() == [2, 2, 2]


def test_a_like_state_is_near_and_from_another_episode() -> None:
    data = walking(2)
    marked = replace(data, rtg=torch.where(data.episode_ids == 0, 1.0, 0.0) * 1000 + data.timesteps % 50)
    effect = clock_effect(marked, [7], np.random.default_rng(0))
    phase = (600 - 7) % 50
    assert effect["like"].item() == pytest.approx(500 + phase)  # each of the two finds its like in the other one


def test_of_each_world_the_data_that_the_clock_ended_most_are_compared(dataset: OfflineDataset) -> None:
    fallen = replace(dataset, id="brrcrl/hopper/medium-v1")
    clocked, better = (replace(walking(6), id=f"brrcrl/hopper/{kind}-v1") for kind in ("expert", "medium-replay"))
    better = replace(better, rewards=better.rewards + 1, returns=better.returns + 600)
    assert list(clock_effects([fallen, better, clocked])) == [better]
    assert clock_effects([fallen]) == {} and clock_effects([walking(4)]) == {}, "too few episodes that the clock ended"


def test_a_dataset_that_no_clock_ended_is_refused(dataset: OfflineDataset) -> None:
    with pytest.raises(ValueError, match="the clock ended"):
        clock_effect(dataset, [10], np.random.default_rng(0))


def test_the_drawings_show_the_numbers_they_were_given() -> None:
    _, axes = plt.subplots(1, 4)
    draw_buckets(axes[0], torch.tensor([1.0, 1.0, 1.0, 9.0]), ReturnBuckets(0, 10, 5))
    assert [bar.get_height() for bar in axes[0].patches] == [75, 0, 0, 0, 25]
    assert axes[0].texts[0].get_text() == "3 of 5 empty, width 2.0"
    draw_rarity(axes[1], pd.DataFrame({"a": [0.1, 0.2], "b": [0.3, 0.4], "c": [0.5, 0.6]}, index=["one", "two"]))
    assert [line.get_xdata().tolist() for line in axes[1].lines] == [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]
    assert [text.get_text() for text in axes[1].get_yticklabels()] == ["one", "two"]
    draw_clock(axes[2], clock_effect(walking(), [100, 10], np.random.default_rng(0)), 0.99)
    observed, predicted = axes[2].lines[1].get_ydata(), axes[2].lines[2].get_ydata()
    assert np.allclose(observed, predicted, rtol=1e-5)
    policy = {"step": 2000, "fresh_return_mean": 5.0, "fresh_return_std": 1.0}
    curve = pd.DataFrame({"step": [1000, 2000], "return_mean": [1.0, 6.0], "return_std": [0.5, 0.5]})
    draw_learning_curve(axes[3], curve, {"medium": policy, "expert": policy}, (500, 1500))
    assert axes[3].patches[0].get_extents().width > 0 and axes[3].patches[0].get_x() == 0.5
    assert axes[3].lines[0].get_ydata().tolist() == [1, 6]


def test_a_distribution_counts_in_percent_and_marks_the_top_of_its_range() -> None:
    _, axis = plt.subplots()
    draw_distribution(axis, {"medium": torch.tensor([0.0, 0.0, 0.0, 10.0]), "expert": torch.tensor([10.0])}, 0.1)
    outlines = [group.get_paths()[0].vertices[:, 1].max() for group in axis.collections]
    assert outlines == [75, 100]
    assert [line.get_xdata()[0] for line in axis.lines] == [9.0, 10.0]


class Counting(gym.Env):
    """Pictures show how many actions were taken; the reward is the action."""

    action_space = gym.spaces.Box(-1, 1, (1,))
    data = SimpleNamespace(qpos=np.zeros(1))

    def reset(self, *, seed=None, options=None):
        self.count, self.data.qpos[0] = seed, 0
        return np.zeros(1), {}

    def step(self, action):
        self.count += 1
        self.data.qpos[0] += 0.5
        return np.zeros(1), float(action[0]), False, False, {}

    def render(self):
        return np.full((2, 2, 3), self.count)


def test_an_episode_is_played_again_from_its_seed() -> None:
    job = {"seed": 7, "steps": [0, 2, 3], "actions": [[0.5], [-0.25], [1.0]], "rewards": [0.5, -0.25, 0.75]}
    frames, positions, deviation = play(Counting(), job)
    assert frames.shape == (3, 2, 2, 3) and frames[:, 0, 0, 0].tolist() == [7, 9, 10]
    assert positions.tolist() == [0, 1, 1.5]
    assert deviation == 0.25
    figure = plt.figure()
    draw_strip(figure, {"low": (frames, positions)}, job["steps"])
    assert [ax.get_title() for ax in figure.axes] == ["step 0, 0.0 m", "step 2, 1.0 m", "step 3, 1.5 m"]


def test_a_job_holds_what_was_stored(dataset: OfflineDataset) -> None:
    job = json.loads(json.dumps(replay_job(dataset, 3, [0, 4])))
    first = int(dataset.starts[3])
    assert np.array_equal(np.array(job["actions"], np.float32), dataset.actions[first : first + 4].numpy())
    assert job["seed"] == 3 and job["steps"] == [0, 4] and "Hopper-v5" in job["env"]


def test_without_a_renderer_there_are_no_pictures(dataset: OfflineDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "no-such-renderer")
    assert render([replay_job(dataset, 0, [0, 1])]) is None


def test_with_a_renderer_there_are(dataset: OfflineDataset) -> None:
    seen = render([replay_job(dataset, 0, [0, 3]), replay_job(dataset, 1, [0, 3])])
    if seen is None:
        pytest.skip("no offscreen renderer on this machine")
    assert seen["frames"].shape == (2, 2, 240, 240, 3) and seen["frames"].std() > 0
    assert seen["positions"].shape == (2, 2) and seen["deviation"].shape == (2,)
