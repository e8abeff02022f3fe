"""Rollouts in lock-step against the same episodes one by one, in real MuJoCo."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import synthetic_dataset

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.evaluate import environment_for, evaluate, play
from brrcrl_lib.methods.br_rcrl import BrRcrlAct, BrRcrlConfig
from brrcrl_lib.policies import Policy
from brrcrl_lib.training import Run, fit


@pytest.fixture(scope="module")
def run() -> Run:
    config = BrRcrlConfig(steps=5, batch_size=8, negatives=2, hidden=(16, 16), device="cpu")
    return fit(config, synthetic_dataset())


def bayesian(run: Run) -> Policy:
    return run.policy(BrRcrlAct(delta=0.3))


def cloning(run: Run) -> Policy:
    return run.policy(BrRcrlAct(clone=True))


def test_lockstep_equals_one_after_another(run) -> None:
    make_env = synthetic_dataset().make_env
    together = evaluate(bayesian(run), make_env, episodes=3, seed=10, max_steps=8)
    for index in range(3):
        alone = evaluate(bayesian(run), make_env, episodes=1, seed=10 + index, max_steps=8)
        rows = together.trace[together.trace.episode == index]
        np.testing.assert_allclose(rows.reward, alone.trace.reward, atol=1e-3)
        np.testing.assert_array_equal(rows.bucket, alone.trace.bucket)


def test_trace_is_tidy_and_its_rtg_is_the_discounted_sum(run) -> None:
    result = evaluate(bayesian(run), synthetic_dataset().make_env, episodes=4, discount=0.9)
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


def test_seeds_repeat(run) -> None:
    make_env = synthetic_dataset().make_env
    one, two = (evaluate(cloning(run), make_env, episodes=2, seed=3) for _ in range(2))
    other = evaluate(cloning(run), make_env, episodes=2, seed=4)
    np.testing.assert_array_equal(one.returns, two.returns)
    assert one.returns[1] == pytest.approx(other.returns[0], rel=1e-4)  # episode i starts from seed + i
    assert one.returns[0] != one.returns[1]


def test_playing_a_run_is_evaluating_its_policy_in_its_environment(run) -> None:
    act = BrRcrlAct(delta=0.3)
    played = play(run, act, episodes=2, seed=5, max_steps=6)
    literal = evaluate(run.policy(act, 5), synthetic_dataset().make_env, episodes=2, seed=5, max_steps=6)
    np.testing.assert_array_equal(played.returns, literal.returns)


@pytest.mark.parametrize(("options", "message"), [
    ({"episodes": 0}, "episodes must be at least 1"),
    ({"max_steps": 0}, "max_steps must be at least 1"),
    ({"seed": -1}, "seed of the first episode"),
    ({"seed": 2**40}, "seed of the first episode"),
])  # fmt: skip
def test_impossible_episodes_are_refused(run, options: dict, message: str) -> None:
    with pytest.raises(KitError, match=message):
        play(run, **options)


def test_an_environment_that_does_not_fit_is_refused(run) -> None:
    with pytest.raises(KitError, match=r"acts in \(3,\); Walker2d-v5 has \(17,\) and \(6,\)"):
        environment_for(run.facts, "Walker2d-v5")
    with pytest.raises(KitError, match="name it with --env"):
        environment_for(synthetic_dataset(env_id=None).facts())
    with pytest.raises(KitError, match="br_rcrl is played with BrRcrlAct"):
        run.policy({"delta": 0.1})
