"""From an online agent to a verdict, in seconds: DQN's data, a fitted table, episodes in lock-step."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch

from brrcrl_lib.data.minari import load_dataset
from brrcrl_lib.data.vectors import OfflineDataset
from brrcrl_lib.evaluate import Evaluation, evaluate
from brrcrl_lib.methods.base import config_for
from brrcrl_lib.tools.agents.vectors import Actor, DqnActor, SacActor, check_fit
from brrcrl_lib.tools.collecting.collect import CollectConfig, collect, read_curve
from brrcrl_lib.tools.collecting.learners import make_learner
from brrcrl_lib.tools.publishing.publish import PublishConfig, publish
from brrcrl_lib.tools.publishing.rollout import RolloutConfig, rollout
from brrcrl_lib.tools.publishing.verify import verify
from brrcrl_lib.training import Run, fit

AGENT = {"hidden": (64, 64), "learning_rate": 1e-3, "batch_size": 64, "update_every": 1, "random_steps": 400,
         "snapshot_every": 1_000, "evaluation_episodes": 4}  # fmt: skip
STEPS = 3_500


@pytest.fixture(scope="module")
def collected(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("collected") / "run"
    collect(CollectConfig("CartPole-v1", folder, steps=STEPS, **AGENT), progress=False)
    return folder


@pytest.fixture(scope="module")
def published(collected, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("data") / "minari"
    publish(PublishConfig(collected, "cartpole", root, min_replay=2_500, medium_share=0.0, steps=300, num_envs=4,
                          fresh_episodes=2))  # fmt: skip
    return root


@pytest.fixture(scope="module")
def replay(published) -> OfflineDataset:
    return load_dataset("brrcrl/cartpole/medium-replay-v1", root=published, discount=0.95)


def fitted(dataset: OfflineDataset, method: str = "br_rcrl_joint", **options) -> Run:
    settings = {"steps": 800, "hidden": (128, 128), "learning_rate": 1e-3, "device": "cpu"}
    return fit(config_for(method, "laptop", "discrete", **{**settings, **options}), dataset)


@pytest.fixture(scope="module")
def shaky(collected, tmp_path_factory) -> list[OfflineDataset]:
    """Twice 10,000 steps of one policy, every other action random: returns vary, and nothing drifts."""
    root = tmp_path_factory.mktemp("shaky")
    actor = Actor.load(max(collected.glob("snapshots/*.safetensors")))
    assert isinstance(actor, DqnActor)
    actor.epsilon = 0.5
    actor.save(root / "policy.safetensors", env="CartPole-v1")
    for seed in (0, 1):
        rollout(RolloutConfig(root / "policy.safetensors", f"shaky/part{seed}-v0", 10_000, seed=seed, root=root))
    return [load_dataset(f"shaky/part{seed}-v0", root=root, discount=0.95) for seed in (0, 1)]


@pytest.fixture(scope="module")
def runs(replay) -> dict[str, Run]:
    return {
        "monte_carlo": fitted(replay, objective="monte_carlo", return_weight=1.0),
        "distributional_td": fitted(replay, objective="distributional_td", action_penalty=0.0, target_every=10),
        "cloning": fitted(replay, "cloning"),
        "vanilla": fitted(replay, "vanilla"),
    }


def play(run: Run, dataset: OfflineDataset, max_steps: int | None = None, **options) -> Evaluation:
    policy = run.policy(run.method.Act(**options))
    return evaluate(policy, dataset.make_env, episodes=12, discount=dataset.discount, max_steps=max_steps)


# -- the data ------------------------------------------------------------------------------------------------------


def test_dqn_learns_and_what_it_saw_verifies(collected, published, replay) -> None:
    curve = read_curve(collected)
    assert max(point["return_mean"] for point in curve) > 3 * curve[0]["training_return_mean"]
    rows = verify(published)
    assert all(row.ok for row in rows), [row for row in rows if not row.ok]
    assert replay.discrete and set(replay.actions.tolist()) == {0, 1}
    assert replay.card["algorithm_name"] == "DQN"


def test_a_stopped_and_continued_collection_writes_the_same_bytes(tmp_path) -> None:
    """In one go, or interrupted after the first interval: networks, buffer and exploration are all put back."""
    settings = {**AGENT, "random_steps": 60, "snapshot_every": 150, "evaluation_episodes": 1}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    collect(CollectConfig("CartPole-v1", whole, steps=400, **settings), progress=False)
    collect(CollectConfig("CartPole-v1", parts, steps=150, **settings), progress=False)
    collect(CollectConfig("CartPole-v1", parts, steps=400, **settings), progress=False)
    files = sorted(path.relative_to(whole) for path in whole.glob("parts/*.hdf5"))
    assert len(files) >= 2
    for file in files:
        assert (whole / file).read_bytes() == (parts / file).read_bytes(), file
    for one, two in zip(sorted(whole.glob("snapshots/*")), sorted(parts.glob("snapshots/*")), strict=True):
        first, second = (Actor.load(path).state_dict() for path in (one, two))
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_only_vectors_and_plain_actions_can_be_collected(tmp_path) -> None:
    config = CollectConfig("CartPole-v1", tmp_path)
    box, odd = gym.spaces.Box(0, 1, (2, 2)), gym.spaces.MultiDiscrete([2, 2])
    for env, message in (
        (SimpleNamespace(observation_space=box, action_space=gym.spaces.Discrete(2)), r"shape \(2, 2\); vectors"),
        (SimpleNamespace(observation_space=gym.spaces.Box(0, 1, (2,)), action_space=odd), "SAC needs a box and DQN"),
    ):
        with pytest.raises(ValueError, match=message):
            make_learner(config, env)


def test_policies_load_by_kind(collected, tmp_path) -> None:
    path = max(collected.glob("snapshots/*.safetensors"))
    actor = Actor.load(path)
    assert isinstance(actor, DqnActor) and actor.sizes == (4, 2) and actor.epsilon == pytest.approx(0.05)
    assert check_fit(actor, gym.make("CartPole-v1")) is None
    assert "takes 4 observations and gives 2 actions; Hopper-v5 has (11,)" in str(
        check_fit(actor, gym.make("Hopper-v5"))
    )
    with pytest.raises(ValueError, match="holds no SacActor"):
        SacActor.load(path)
    observations = np.zeros((4_000, 4), np.float32)
    drawn = DqnActor(4, 2, (8,), epsilon=0.5).decide(observations, [np.random.default_rng(i) for i in range(4_000)])
    assert min(np.bincount(drawn)) / 4_000 == pytest.approx(0.25, abs=0.03)


# -- the models ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["monte_carlo", "distributional_td"])
def test_returns_of_fresh_episodes_are_calibrated(shaky, objective: str) -> None:
    """How often the return reaches theta_delta(s), against how often p(R|s) says it should: within 0.1.

    The second dataset comes from the same policy and other seeds, some 130 episodes.
    """
    train, fresh = shaky
    model = fitted(train, objective=objective, target_every=10, return_weight=1.0).model
    with torch.no_grad():
        distribution = model(fresh.observations).log_returns().exp()
    for delta in (0.1, 0.5, 0.9):
        bucket = model.buckets.threshold(distribution, delta)
        promised = model.buckets.tail(distribution).gather(-1, bucket.unsqueeze(-1)).mean()
        reached = (model.buckets.encode(fresh.rtg) >= bucket).float().mean()
        assert float(reached) == pytest.approx(float(promised), abs=0.1), delta
    predicted = distribution @ model.buckets.decode(torch.arange(model.buckets.count))
    assert float(predicted.mean()) == pytest.approx(float(fresh.rtg.mean()), abs=1.0)
    assert float(torch.corrcoef(torch.stack([predicted, fresh.rtg]))[0, 1]) > 0.6


def test_conditioning_on_high_returns_beats_the_clone(runs, replay) -> None:
    """Draws from pi^delta with delta = 0.1 against draws from p(a|s): the comparison that Theorem 1 is about."""
    clone = play(runs["cloning"], replay, mode="sample", epsilon=0.0).returns.mean()
    for objective in ("monte_carlo", "distributional_td"):
        conditioned = play(runs[objective], replay, mode="sample", epsilon=0.0).returns.mean()
        assert conditioned > 1.5 * clone, objective


def test_every_rule_plays_and_leaves_a_trace(runs, replay) -> None:
    for target in ("adaptive", "max", "dt_schedule", "fixed"):
        quantile = 0.9 if target == "fixed" else None
        result = play(runs["monte_carlo"], replay, 40, target=target, quantile=quantile)
        columns = ["episode", "step", "reward", "observed", "bucket", "target", "predicted", "energy"]
        assert list(result.trace.columns) == columns and not result.trace.isna().any().any()
        assert (result.returns >= 8).all()  # no policy can fall sooner
        assert play(runs["vanilla"], replay, 40, target=target, quantile=quantile).returns.mean() >= 8
    one, two = (play(runs["monte_carlo"], replay, 40, mode="sample").returns for _ in range(2))
    np.testing.assert_array_equal(one, two)  # same seeds, same episodes
    assert play(runs["monte_carlo"], replay, clone=True).trace.columns.tolist() == [
        "episode",
        "step",
        "reward",
        "observed",
    ]
