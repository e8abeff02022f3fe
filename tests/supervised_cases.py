"""What every method that clones or is conditioned must pass beside tests/engine/test_training.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.data.vectors import OfflineDataset
from brrcrl_lib.evaluate import play
from brrcrl_lib.methods.base import Method, create
from brrcrl_lib.returns import reward_to_go
from brrcrl_lib.training import fit, load_run

TINY = {"steps": 20, "batch_size": 16, "log_every": 5, "checkpoint_every": 10, "device": "cpu"}


def undiscounted(dataset: OfflineDataset) -> OfflineDataset:
    rtg = reward_to_go(dataset.rewards.numpy(), dataset.lengths.numpy(), 1.0)
    return replace(dataset, discount=1.0, rtg=torch.as_tensor(rtg, dtype=torch.float32))


def batch_of(method: Method, dataset: OfflineDataset, size: int = 16, seed: int = 0) -> Any:
    return dataset.sample(size, torch.Generator().manual_seed(seed), method.needs)


def check_loading(config: Any, dataset: OfflineDataset, folder: Path) -> None:
    """What was written plays as what was trained."""
    trained, loaded = fit(config, dataset, folder / "run"), load_run(folder / "run", "cpu")
    policies = [run.policy(seed=3) for run in (trained, loaded)]
    for policy in policies:
        policy.reset(4)
    for step in range(3):
        one, two = (policy.act(dataset.observations[step : step + 4]) for policy in policies)
        assert torch.equal(one, two)
    played = play(loaded, episodes=3, max_steps=6)  # in Hopper, whose shapes the synthetic data have
    assert len(played.returns) == 3 and set(policies[0].trace) < set(played.trace.columns)
    assert not played.trace.isna().any().any()


def check_never_looks(config: Any, dataset: OfflineDataset) -> None:
    """On the meta device a tensor left on the CPU, or a Python branch on a value, raises."""
    method = create(config, dataset.facts(), "meta")
    for optimizer in method.optimizers.values():
        for group in optimizer.param_groups:
            group["fused"] = False  # which torch has for real devices alone
    indices = torch.zeros(16, dtype=torch.int64, device="meta")
    for step in range(2):
        parts = method.update(dataset.to("meta").batch(indices, method.needs), step, None)
        assert parts["loss"].device.type == "meta"
    policy = method.policy(method.Act(), None)
    policy.reset(3)
    for _ in range(3):
        actions = policy.act(torch.zeros(3, 11, device="meta"))
        assert actions.shape == (3, 3) and actions.device.type == "meta"
        assert all(value.shape == (3,) for value in policy.trace.values())
        policy.observe(torch.ones(3))


def check_refuses_discrete(config: Any, dataset: OfflineDataset) -> None:
    discrete = replace(dataset, actions=torch.zeros(len(dataset), dtype=torch.int64), action_low=torch.zeros(1))
    with pytest.raises(KitError, match=r"needs continuous actions; test/synthetic-v0 has .* discrete actions"):
        fit(config, discrete)


def check_company(policy_of: Any, observations: torch.Tensor, rewards: torch.Tensor) -> None:
    """Episodes [steps, n, k], of which some end on the way, are played as if each were alone."""
    steps, episodes = observations.shape[:2]
    policy, running = policy_of(), torch.arange(episodes)
    policy.reset(episodes)
    together: list[dict[int, torch.Tensor]] = []
    for step in range(steps):
        actions = policy.act(observations[step, running])
        together.append(dict(zip(running.tolist(), actions, strict=True)))
        policy.observe(rewards[step, running])
        if step in (2, 5):  # one episode ends, from the middle
            active = torch.arange(len(running)) != 1
            policy.keep(active)
            running = running[active]
    assert len(running) == episodes - 2
    for episode in range(episodes):
        policy = policy_of()
        policy.reset(1)
        for step in range(steps):
            alone = policy.act(observations[step, episode : episode + 1])[0]
            if episode in together[step]:
                torch.testing.assert_close(together[step][episode], alone, atol=2e-5, rtol=1e-5)
            policy.observe(rewards[step, episode : episode + 1])
