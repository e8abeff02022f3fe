"""RvS-R: what it is conditioned on, against slow loops; and that it learns to tell wanted rewards apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from supervised_cases import (
    TINY,
    batch_of,
    check_company,
    check_loading,
    check_never_looks,
    check_refuses_discrete,
    undiscounted,
)
from synthetic import synthetic_dataset
from torch.distributions import Normal

from brrcrl_lib.base.config import with_preset
from brrcrl_lib.base.errors import KitError
from brrcrl_lib.data.vectors import OfflineDataset
from brrcrl_lib.methods.base import create
from brrcrl_lib.methods.rvs import RvsAct, RvsConfig
from brrcrl_lib.training import fit


def tiny(**options) -> RvsConfig:
    return RvsConfig(**{**TINY, "hidden": (8, 8), "horizon": 40, **options})


@pytest.fixture
def data() -> OfflineDataset:
    return undiscounted(synthetic_dataset())


@pytest.mark.parametrize("discount", [1.0, 0.99, 0.5])
def test_the_condition_against_a_slow_loop(discount: float) -> None:
    """Of each step: its rewards to come, as many as there were, over the steps that the clock had left."""
    data = undiscounted(synthetic_dataset()) if discount == 1 else synthetic_dataset()
    if discount == 0.5:
        data = replace(undiscounted(data), discount=0.5)
        data = data.clip_rewards(1e9)  # adds the rewards up again, at this discount
    model = create(tiny(), data.facts()).model
    found = data.rtg / model.left(data.timesteps)
    for start, length in zip(data.starts.tolist(), data.lengths.tolist(), strict=True):
        for step in range(length):
            paid = sum(discount**k * float(data.rewards[start + step + k]) for k in range(length - step))
            weight = sum(discount**k for k in range(40 - step))
            assert float(found[start + step]) == pytest.approx(paid / weight, rel=1e-4)


def test_past_the_clock_one_step_is_left(data) -> None:
    model = create(tiny(horizon=3), data.facts()).model
    assert model.left(torch.tensor([0, 2, 3, 50])).tolist() == [3, 1, 1, 1]


def test_the_loss_is_the_gaussian_likelihood_of_the_condition(data) -> None:
    method = create(tiny(), data.facts())
    method.model.log_std.data = torch.tensor([-0.5, 0.0, 0.7])
    batch = batch_of(method, data)
    total = 0.0
    for index in batch.indices.tolist():
        wanted = data.rtg[index] / (40 - data.timesteps[index])
        state = (data.observations[index] - data.observations.mean(0)) / data.observations.std(0, correction=0)
        mean = method.model.mean(torch.cat([state, wanted.view(1)]))
        total -= float(Normal(mean, torch.tensor([-0.5, 0.0, 0.7]).exp()).log_prob(data.actions[index]).sum().detach())
    assert method.loss(batch, None)["loss"].item() == pytest.approx(total / len(batch.indices), rel=1e-4)


def test_the_clock_is_the_environments(data) -> None:
    facts = data.facts()
    assert RvsConfig().clock(facts) == 1000  # Hopper-v5
    assert tiny().clock(facts) == 40
    for env in (None, "Nowhere-v0"):
        with pytest.raises(KitError, match="set horizon"):
            create(RvsConfig(), replace(facts, env=env))


def test_targets_are_spread_over_the_clock(data) -> None:
    method = create(tiny(), data.facts())
    best = data.facts().return_range[1]
    for act, wanted in ((RvsAct(), best / 40), (RvsAct(share=0.5), best / 80), (RvsAct(target_return=10.0), 0.25)):
        policy = method.policy(act, None)
        policy.reset(2)
        for step in range(3):
            actions = policy.act(data.observations[:2])
            expected = method.model(data.observations[:2], torch.full((2,), wanted)).mode()
            torch.testing.assert_close(actions, expected)
            assert policy.trace["target"].tolist() == pytest.approx([wanted * (40 - step)] * 2)
            policy.observe(torch.ones(2))


def test_it_learns_what_is_wanted(data) -> None:
    """Where the action decides the rewards to come, more wanted must mean that action."""
    good = torch.arange(data.episodes) % 2
    sign = 2.0 * good[data.episode_ids] - 1
    told = replace(data, actions=0.5 * sign.unsqueeze(-1).expand(-1, 3).contiguous(), rewards=sign + 1.0)
    told = undiscounted(told)
    run = fit(tiny(steps=400, hidden=(32, 32), horizon=40, learning_rate=3e-3, held_out=0.0, log_every=50), told)
    played = []
    for wanted in (0.0, 40.0):
        policy = run.policy(RvsAct(target_return=wanted))
        policy.reset(50)
        played.append(float(policy.act(told.observations[:50]).mean()))
    assert played[0] < -0.25 and played[1] > 0.25


def test_alone_as_in_company(data) -> None:
    method = create(tiny(), data.facts())
    observations = data.observations[:36].view(9, 4, 11)
    check_company(lambda: method.policy(RvsAct(), None), observations, torch.ones(9, 4))


def test_a_loaded_run_plays_alike(data, tmp_path: Path) -> None:
    check_loading(tiny(), data, tmp_path)


@pytest.mark.parametrize("discount", [1.0, 0.99])
def test_training_and_acting_never_look_at_a_value(discount: float) -> None:
    check_never_looks(tiny(), replace(synthetic_dataset(), discount=discount))


def test_discrete_data_is_refused(data) -> None:
    check_refuses_discrete(tiny(), data)


def test_learning_lowers_the_loss(data) -> None:
    run = fit(tiny(steps=300, hidden=(32, 32), log_every=50), data)
    assert run.metrics[-1]["loss"] < run.metrics[0]["loss"] - 0.3


def test_mixed_precision_trains(data) -> None:
    assert len(fit(tiny(mixed_precision=True), data).metrics) == 4


@pytest.mark.parametrize(("options", "message"), [
    ({"horizon": 0}, "horizon must be at least 1"),
    ({"hidden": ()}, "hidden needs at least one layer"),
    ({"hidden": (8, 0)}, "hidden needs at least one layer"),
    ({"discount": 1.5}, "discount must lie in"),
])  # fmt: skip
def test_wrong_settings_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny(**options)


@pytest.mark.parametrize("options", [{"share": 0.0}, {"target_return": float("nan")}])
def test_wrong_targets_are_refused(options: dict) -> None:
    with pytest.raises(ValueError, match="must lie in"):
        RvsAct(**options)


def test_presets() -> None:
    paper = with_preset(RvsConfig, "paper", "box")
    assert (paper.hidden, paper.batch_size, paper.learning_rate, paper.discount) == ((1024, 1024), 16_384, 1e-3, 1.0)
    assert with_preset(RvsConfig, "smoke", "box").steps == 40
