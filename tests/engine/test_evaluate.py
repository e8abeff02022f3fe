"""Rollouts in lock-step against the same episodes one by one, in real MuJoCo."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from brrcrl_lib.build import TrainConfig
from brrcrl_lib.train import fit
from synthetic import synthetic_dataset

from brrcrl_lib.evaluate import evaluate
from brrcrl_lib.inference.targets import Adaptive
from brrcrl_lib.policies import BayesianPolicy, CloningPolicy


@pytest.fixture(scope="module")
def model():
    config = TrainConfig(steps=5, batch_size=8, negatives=2, hidden=(16, 16), device="cpu")
    return fit(config, synthetic_dataset()).model


def bayesian(model, seed: int = 0) -> BayesianPolicy:
    return BayesianPolicy(model, Adaptive(0.3), generator=torch.Generator().manual_seed(seed))


def test_lockstep_equals_one_after_another(model) -> None:
    make_env = synthetic_dataset().make_env
    together = evaluate(bayesian(model), make_env, episodes=3, seed=10, max_steps=8)
    for index in range(3):
        alone = evaluate(bayesian(model), make_env, episodes=1, seed=10 + index, max_steps=8)
        rows = together.trace[together.trace.episode == index]
        np.testing.assert_allclose(rows.reward, alone.trace.reward, atol=1e-3)
        np.testing.assert_array_equal(rows.bucket, alone.trace.bucket)


def test_trace_is_tidy_and_its_rtg_is_the_discounted_sum(model) -> None:
    result = evaluate(bayesian(model), synthetic_dataset().make_env, episodes=4, discount=0.9)
    trace = result.trace
    assert list(trace.columns) == ["episode", "step", "reward", "observed", "bucket", "target", "predicted", "energy"]
    assert not trace.isna().any().any()
    for episode, rows in trace.groupby("episode"):
        assert list(rows.step) == list(range(len(rows)))
        rewards = rows.reward.to_numpy()
        for start in (0, len(rewards) // 2, len(rewards) - 1):
            expected = sum(0.9**k * reward for k, reward in enumerate(rewards[start:]))
            assert rows.observed.to_numpy()[start] == pytest.approx(expected)
        assert result.returns[episode] == pytest.approx(rewards.sum())
    assert result.lengths.sum() == len(trace)


def test_seeds_repeat(model) -> None:
    make_env = synthetic_dataset().make_env
    one, two = (evaluate(CloningPolicy(model), make_env, episodes=2, seed=3) for _ in range(2))
    other = evaluate(CloningPolicy(model), make_env, episodes=2, seed=4)
    np.testing.assert_array_equal(one.returns, two.returns)
    assert one.returns[1] == pytest.approx(other.returns[0], rel=1e-4)  # episode i starts from seed + i
    assert one.returns[0] != one.returns[1]


def test_no_episodes_are_refused(model) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        evaluate(CloningPolicy(model), synthetic_dataset().make_env, episodes=0)
