"""TD3+BC, IQL, CQL and BEAR as methods: no look at a value, bad input refused; and they learn."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from synthetic import synthetic_dataset

from brrcrl_lib.base.errors import KitError
from brrcrl_lib.critics import Multiplier, Step, descend, follow, frozen, slow_copy
from brrcrl_lib.data.batch import Needs
from brrcrl_lib.data.vectors import OfflineDataset
from brrcrl_lib.methods.base import config_for, create, method_named
from brrcrl_lib.methods.bear import BearAct, discrepancy
from brrcrl_lib.training import export_model, fit, load_run

RIVALS = ("td3_bc", "iql", "cql", "bear")
TINY = {"steps": 20, "batch_size": 16, "hidden": (8, 8), "log_every": 5, "checkpoint_every": 10, "device": "cpu"}


def tiny(name: str, **options: Any) -> Any:
    return config_for(name, "smoke", "box", **{**TINY, **options})


# -- exported ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RIVALS)
def test_exported_weights_play_alike(dataset: OfflineDataset, tmp_path: Path, name: str) -> None:
    fit(tiny(name), dataset, tmp_path / "run")
    export_model(tmp_path / "run", tmp_path / "small.safetensors")
    whole, small = load_run(tmp_path / "run", "cpu"), load_run(tmp_path / "small.safetensors", "cpu")
    actions = [run.policy(seed=3).act(dataset.observations[:9]) for run in (whole, small)]
    torch.testing.assert_close(*actions, atol=5e-3, rtol=0)
    assert whole.config == tiny(name)


# -- devices -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RIVALS)
def test_training_and_acting_never_look_at_a_value(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the meta device a tensor left on the CPU, or a Python branch on a value, raises."""
    plain = torch.optim.Adam  # the fused one has no version for that device
    monkeypatch.setattr(torch.optim, "Adam", lambda weights, lr, fused: plain(weights, lr=lr))
    dataset = synthetic_dataset()
    method = create(tiny(name), dataset.facts(), "meta")
    batch = dataset.to("meta").batch(torch.zeros(16, dtype=torch.int64, device="meta"), method.needs)
    for step in (0, 1, 11):  # 11 is behind BEAR's warm-up
        parts = method.update(batch, step, None)
        assert all(value.device.type == "meta" and value.shape == () for value in parts.values())
        assert "loss" in parts
    policy = method.policy(method.Act(), None)
    policy.reset(3)
    assert policy.act(torch.zeros(3, 11, device="meta")).shape == (3, 3)


@pytest.mark.parametrize("name", RIVALS)
def test_every_part_is_finite_in_half_precision_too(dataset: OfflineDataset, name: str) -> None:
    run = fit(tiny(name, mixed_precision=True), dataset)
    assert len(run.metrics) == 4
    assert all(math.isfinite(value) for row in run.metrics for value in row.values())


# -- learning ----------------------------------------------------------------------------------------------------

QUICK = {"steps": 400, "batch_size": 64, "hidden": (32, 32), "learning_rate": 3e-3, "held_out": 0.0, "log_every": 100}


def distance_from_best(dataset: OfflineDataset, name: str, best: float, **options: Any) -> float:
    actions = fit(tiny(name, **{**QUICK, **options}), dataset).policy().act(dataset.observations)
    assert torch.all(actions >= dataset.action_low) and torch.all(actions <= dataset.action_high)
    return float((actions - best).abs().mean())


FAST = {
    "cql": {"actor_learning_rate": 3e-3, "alpha": 0.1},
    "iql": {"temperature": 10.0, "soft_update": 0.05, "reward_scale": 1.0},
    "bear": {"actor_learning_rate": 3e-3, "multiplier_learning_rate": 1e-4, "warm_up": 50},
}
"""400 steps are too few for CQL's slow actor and IQL's slow targets, and 900 transitions for CQL's caution; rewards
between 0 and 1 make small advantages, which IQL must weigh more."""


@pytest.mark.parametrize("name", RIVALS)
def test_it_finds_the_better_action_that_cloning_only_averages(name: str) -> None:
    """Actions are uniform in the box and worth most at 0.5: a clone plays 0, a quarter of the box away."""
    bandit = replace(synthetic_dataset(episodes=40), discount=0.0)
    clone = distance_from_best(bandit, "cloning", 0.5)
    assert distance_from_best(bandit, name, 0.5, **FAST.get(name, {})) < 0.75 * clone


@pytest.mark.parametrize("name", RIVALS)
def test_the_box_may_be_any(name: str) -> None:
    """The same problem with actions in [10, 14]: everything is the same, in other units."""
    bandit = replace(synthetic_dataset(episodes=40), discount=0.0)
    moved = replace(
        bandit, actions=12 + 2 * bandit.actions, action_low=12 + 2 * bandit.action_low,
        action_high=12 + 2 * bandit.action_high,
    )  # fmt: skip
    options = {**FAST.get(name, {}), "steps": 100}
    here, there = (distance_from_best(data, name, best, **options) for data, best in ((bandit, 0.5), (moved, 13.0)))
    assert there == pytest.approx(2 * here, rel=0.02)


# -- parts -------------------------------------------------------------------------------------------------------


def test_td3_bc_moves_its_actor_and_targets_every_second_step(dataset: OfflineDataset) -> None:
    method = create(tiny("td3_bc"), dataset.facts())
    batch = dataset.batch(torch.arange(16), Needs(next=True))
    moved = []
    for step in range(4):
        before = {name: [w.clone() for w in module.parameters()] for name, module in method.modules.items()}
        parts = method.update(batch, step, None)
        moved.append({name for name, module in method.modules.items()
                      if not all(map(torch.equal, before[name], module.parameters()))})  # fmt: skip
        assert ("actor_loss" in parts) == (step % 2 == 1)
    assert moved == [{"critics"}, set(method.modules)] * 2


def test_the_rate_of_iqls_actor_falls_along_a_cosine(dataset: OfflineDataset) -> None:
    config = tiny("iql", steps=100, learning_rate=1.0)
    assert [config.actor_rate(step) for step in (0, 50, 100, 150)] == pytest.approx([1, 0.5, 0, 0])
    assert config.actor_rate(25) == pytest.approx((1 + math.cos(math.pi / 4)) / 2)
    method = create(config, dataset.facts())
    method.update(dataset.batch(torch.arange(16), Needs(next=True)), 50, None)
    rates = {name: optimizer.param_groups[0]["lr"] for name, optimizer in method.optimizers.items()}
    assert rates == pytest.approx({"critics": 1.0, "value": 1.0, "actor": 0.5})


def test_iqls_rewards_span_a_thousand_between_the_worst_and_the_best_episode(dataset: OfflineDataset) -> None:
    facts, config = dataset.facts(), tiny("iql")
    totals = [dataset.rewards[dataset.episode_ids == episode].sum().item() for episode in range(dataset.episodes)]
    assert config.scale(facts) * (max(totals) - min(totals)) == pytest.approx(1000, rel=1e-4)
    assert tiny("iql", reward_scale=0.5).scale(facts) == 0.5
    assert (
        config.scale(replace(facts, episode_returns=None)) == config.scale(replace(facts, episode_returns=(3, 3))) == 1
    )


def test_iqls_value_is_an_expectile() -> None:
    """Of one state's rewards 0 and 1 in equal parts, the 0.9-expectile is 0.9."""
    data = replace(synthetic_dataset(), discount=0.0)
    high = data.actions[:, 0] > data.actions[:, 0].median()
    data = replace(data, observations=torch.ones_like(data.observations), rewards=high.float())
    options = {**QUICK, "steps": 600, "expectile": 0.9, "soft_update": 0.1, "hidden": (64, 64), "reward_scale": 1.0}
    run = fit(tiny("iql", **options), data)
    states = run.method.modules["actor"].standardise(data.observations[:1])
    assert run.method.modules["value"](states).item() == pytest.approx(0.9, abs=0.08)


def test_cql_values_the_data_above_what_lies_outside(dataset: OfflineDataset) -> None:
    """Where all data lie at -0.5, a large alpha must put the critics' best there and nowhere else."""
    narrow = replace(dataset, actions=dataset.actions * 0.05 - 0.5, rewards=torch.zeros_like(dataset.rewards))
    run = fit(tiny("cql", **{**QUICK, "alpha": 10.0, "steps": 200}), narrow)
    states = run.method.modules["actor"].standardise(narrow.observations)
    inside, outside = (
        run.method.modules["critics"](states, torch.full((len(states), 3), at)).mean().item() for at in (-0.5, 0.5)
    )
    assert inside > outside + 1


def test_bears_distance_is_the_mean_over_pairs() -> None:
    one, two = torch.randn(2, 5, 3, 2, generator=torch.Generator().manual_seed(0))
    found = discrepancy(one, two, 0.7)
    for row in range(5):

        def likeness(left: torch.Tensor, right: torch.Tensor) -> float:
            pairs = [math.exp(-float((x - y).abs().sum()) / 1.4) for x in left for y in right]
            return sum(pairs) / len(pairs)

        a, b = one[row], two[row]
        squared = likeness(a, a) + likeness(b, b) - 2 * likeness(a, b)
        assert found[row].item() == pytest.approx(math.sqrt(squared + 1e-6), rel=1e-4)
    torch.testing.assert_close(discrepancy(one, one, 0.7), torch.full((5,), 1e-3), rtol=0.2, atol=0)


def test_bears_behaviour_and_target_are_the_papers(dataset: OfflineDataset) -> None:
    method: Any = create(tiny("bear", batch_size=16), dataset.facts())
    step = Step.of(dataset.batch(torch.arange(16), Needs(next=True)), method.actor)
    source = torch.Generator().manual_seed(0)
    behaviour, noise = method.modules["behaviour"], torch.randn(16, 6, generator=source)
    mean, log_std = behaviour.encoder(torch.cat([step.states, step.actions], -1)).chunk(2, -1)
    latents = torch.distributions.Normal(mean, log_std.exp())
    divergence = torch.distributions.kl_divergence(latents, torch.distributions.Normal(0.0, 1.0)).mean()
    decoded = behaviour.decoder(torch.cat([step.states, mean + log_std.exp() * noise], -1)).tanh()
    expected = (decoded - step.actions).square().mean() + 0.5 * divergence
    torch.testing.assert_close(behaviour.loss(step.states, step.actions, noise), expected)

    noise = torch.randn(16, 10, 3, generator=source)
    total = 0.0
    with torch.no_grad():
        for row in range(16):
            best = -math.inf
            for draw in noise[row]:
                policy = method.modules["target_actor"](step.next_states[row : row + 1])
                values = method.target_critics(step.next_states[row : row + 1], policy.sample(draw[None])[0])
                best = max(best, 0.75 * float(values.min()) + 0.25 * float(values.max()))
            target = float(step.rewards[row]) + 0.99 * float(step.going_on[row]) * best
            values = method.critics(step.states[row : row + 1], step.actions[row : row + 1])
            total += float((values - target).square().sum()) / 16
    assert method.critic_loss(step, noise).item() == pytest.approx(total, rel=1e-5)


def test_bears_multiplier_grows_while_the_actor_is_too_far_away(dataset: OfflineDataset) -> None:
    for threshold, grows in ((0.0, True), (10.0, False)):
        run = fit(tiny("bear", threshold=threshold), dataset)
        assert (run.metrics[-1]["multiplier"] > run.metrics[0]["multiplier"]) == grows


def test_bear_plays_alone_as_in_company(dataset: OfflineDataset) -> None:
    run = fit(tiny("bear"), dataset)
    together = run.policy(seed=1).act(dataset.observations[:5])
    alone = torch.cat([run.policy(seed=1).act(dataset.observations[row : row + 1]) for row in range(5)])
    torch.testing.assert_close(together, alone)
    with pytest.raises(KitError, match="samples must be at least 1"):
        BearAct(samples=0)


def test_targets_follow_and_freezing_freezes() -> None:
    source, weight = torch.nn.Linear(2, 1), torch.optim.Adam
    target = slow_copy(source)
    before = target.weight.clone()
    source.weight.data.add_(1.0)
    follow(target, source, 0.25)
    torch.testing.assert_close(target.weight, before + 0.25)
    assert not target.weight.requires_grad
    inputs = torch.nn.Parameter(torch.ones(3, 2))
    torch.testing.assert_close(frozen(source, inputs), source(inputs))
    frozen(source, inputs).sum().backward()
    assert source.weight.grad is None and inputs.grad is not None
    descend(source(inputs).sum(), weight([inputs], lr=0.1))
    assert source.weight.grad is None
    assert Multiplier(2.5)().item() == pytest.approx(2.5)


# -- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RIVALS)
def test_discrete_actions_are_refused_in_one_sentence(dataset: OfflineDataset, name: str) -> None:
    zero = torch.zeros(len(dataset), dtype=torch.int64)
    discrete = replace(dataset, actions=zero, action_low=torch.zeros(1), action_high=torch.ones(1))
    with pytest.raises(KitError, match=f"^{name} needs continuous actions; .* has vectors and discrete actions$"):
        fit(tiny(name), discrete)


@pytest.mark.parametrize(("name", "options", "message"), [
    ("td3_bc", {"alpha": -1.0}, "alpha must lie in"),
    ("td3_bc", {"policy_delay": 0}, "policy_delay must be at least 1"),
    ("td3_bc", {"noise_clip": math.nan}, "noise_clip must lie in"),
    ("td3_bc", {"soft_update": 0.0}, "soft_update must lie in"),
    ("td3_bc", {"alfa": 1.0}, "did you mean 'alpha'"),
    ("iql", {"expectile": 1.0}, "expectile must lie in"),
    ("iql", {"temperature": -0.1}, "temperature must lie in"),
    ("iql", {"reward_scale": 0.0}, "reward_scale must lie in"),
    ("iql", {"hidden": ()}, "at least one layer"),
    ("cql", {"sampled_actions": 0}, "sampled_actions must be at least 1"),
    ("cql", {"alpha": math.inf}, "alpha must lie in"),
    ("cql", {"actor_learning_rate": 0.0}, "actor_learning_rate must lie in"),
    ("bear", {"matched_actions": 1}, "matched_actions must be at least 2"),
    ("bear", {"pessimism": 1.5}, "pessimism must lie in"),
    ("bear", {"kernel_width": 0.0}, "kernel_width must lie in"),
    ("cql", {"steps": 0}, "steps must be at least 1"),
])  # fmt: skip
def test_wrong_settings_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny(name, **options)


@pytest.mark.parametrize("name", RIVALS)
def test_presets_hold_only_differences(name: str) -> None:
    kind = method_named(name).Config
    for preset, differences in kind.presets.items():
        config = config_for(name, preset, "box")
        for field, value in differences.items():
            assert getattr(config, field) == value != getattr(kind(), field), f"{preset}.{field}"
    assert config_for(name, "paper", "box").steps == 1_000_000
