"""FastSAC against Stable-Baselines3's own SAC: the same seed, the same transitions, the same networks afterwards."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.logger import Logger

from brrcrl_lib.tools.collecting.fast_sac import FastSAC


def trained(algorithm: type[SAC], updates: int) -> dict[str, torch.Tensor]:
    """Every parameter after some updates on random transitions."""
    model = algorithm("MlpPolicy", gym.make("Pendulum-v1"), seed=3, device="cpu", buffer_size=500)
    model.set_logger(Logger(None, []))
    rng = np.random.default_rng(0)
    for _ in range(300):
        state, following = rng.standard_normal((2, 1, 3)).astype(np.float32)
        action, reward, done = rng.uniform(-1, 1, (1, 1)), rng.standard_normal(1), rng.random(1) < 0.1
        model.replay_buffer.add(state, following, action, reward, done, [{}])
    torch.manual_seed(5)
    np.random.seed(5)
    model.train(gradient_steps=updates, batch_size=64)
    assert model._n_updates == updates
    return {**model.policy.state_dict(), "log_ent_coef": model.log_ent_coef.detach()}


@pytest.mark.parametrize("updates", [1, 30])
def test_the_lean_update_is_the_update_of_stable_baselines3(updates: int) -> None:
    ours, theirs = trained(FastSAC, updates), trained(SAC, updates)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert torch.allclose(ours[name], value, atol=2e-5), name


def test_an_update_changes_every_network() -> None:
    before, after = trained(FastSAC, 0), trained(FastSAC, 1)
    assert all(not torch.equal(before[name], value) for name, value in after.items())
