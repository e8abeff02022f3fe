"""Implicit behaviour cloning: InfoNCE against the literal formula, and the played minimum against a grid."""

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
)
from synthetic import synthetic_dataset

from brrcrl_lib.base.config import with_preset
from brrcrl_lib.inference.optimizers import DerivativeFree
from brrcrl_lib.methods.base import create
from brrcrl_lib.methods.ibc import IbcAct, IbcConfig
from brrcrl_lib.training import fit


def tiny(**options) -> IbcConfig:
    return IbcConfig(**{**TINY, "hidden": (8, 8), "negatives": 4, **options})


def literal_energy(model, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """E(s, a) of one raw observation [k] and one raw action [m], as an MLP of the two side by side."""
    state = (observation - model.standardise.mean) / model.standardise.std
    weight = torch.cat([model.state_part.weight, model.action_part.weight], dim=1)
    hidden = weight @ torch.cat([state, model.in_units(action)]) + model.state_part.bias
    return model.trunk(hidden.clamp(min=0)).squeeze()


def test_energy_is_that_of_a_plain_network(dataset) -> None:
    model = create(tiny(), dataset.facts()).model
    actions = dataset.actions[:10].view(2, 5, 3)
    found = model.energy(model.encode(dataset.observations[:2]), model.in_units(actions))
    for state in range(2):
        for number in range(5):
            expected = literal_energy(model, dataset.observations[state], actions[state, number])
            torch.testing.assert_close(found[state, number], expected, atol=1e-6, rtol=1e-5)


def test_gradients_are_those_of_the_literal_formula(dataset) -> None:
    method = create(tiny(negatives=5, margin=0.2), dataset.facts())
    model, batch = method.model, batch_of(method, dataset, 6)
    loss = method.loss(batch, torch.Generator().manual_seed(3))["loss"]
    names, weights = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, weights)

    uniform = torch.rand(6, 5, 3, generator=torch.Generator().manual_seed(3))
    negatives = -1.4 + 2.8 * uniform  # a box of [-1, 1], wider by a fifth of its size on each side
    literal = torch.tensor(0.0)
    for row in range(6):
        state = batch.observations[row]
        positive = torch.exp(-literal_energy(model, state, batch.actions[row]))
        others = sum(torch.exp(-literal_energy(model, state, action)) for action in negatives[row])
        literal = literal - torch.log(positive / (positive + others)) / 6
    torch.testing.assert_close(loss, literal, atol=1e-6, rtol=1e-5)
    expected = torch.autograd.grad(literal, weights)
    for name, one, two in zip(names, found, expected, strict=True):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-4, msg=name)


def test_boxes_of_any_size_are_read_in_units(dataset) -> None:
    wide = replace(
        dataset, actions=3 + 2 * dataset.actions, action_low=torch.ones(3), action_high=torch.full((3,), 5.0)
    )
    losses = []
    for source in (dataset, wide):
        method = create(tiny(), source.facts())
        losses.append(method.loss(batch_of(method, source), torch.Generator().manual_seed(0))["loss"])
    torch.testing.assert_close(*losses, atol=1e-6, rtol=1e-5)
    actions = create(tiny(), wide.facts()).policy(IbcAct(samples=8), None).act(wide.observations[:20])
    assert (actions >= 1).all() and (actions <= 5).all()


def test_the_search_begins_evenly_in_the_box(dataset) -> None:
    policy = create(tiny(), dataset.facts()).policy(IbcAct(), None)
    problem = policy.problem(dataset.observations[:2])
    units = problem.start(50_000, torch.Generator().manual_seed(0))
    assert units.shape == (2, 50_000, 3) and torch.equal(units[0], units[1])
    counts = torch.histc(units[0], 10, -1, 1) / units[0].numel()
    torch.testing.assert_close(counts, torch.full((10,), 0.1), atol=0.005, rtol=0)


def test_the_played_action_is_the_minimum_that_a_grid_finds() -> None:
    """One number per action, two states: the data act at -0.6 and at 0.4, in turn with 0.8 in the second."""
    data = synthetic_dataset(episodes=12, observation_size=1, action_size=1)
    side = (torch.arange(len(data)) % 2).float()
    where = torch.where(side == 0, -0.6, torch.where(torch.arange(len(data)) % 4 == 1, 0.4, 0.8))
    data = replace(data, observations=2 * side.unsqueeze(-1) - 1, actions=where.unsqueeze(-1).contiguous())
    run = fit(tiny(steps=600, batch_size=64, negatives=32, hidden=(32, 32), learning_rate=3e-3, log_every=100), data)
    observations = torch.tensor([[-1.0], [1.0]])
    policy = run.policy()
    played = policy.act(observations).squeeze(-1)

    grid = torch.linspace(-1, 1, 4001)
    energies = run.model.energy(run.model.encode(observations), grid.view(1, -1, 1).expand(2, -1, -1))
    best = energies.min(1)
    reached = policy.trace["energy"]
    assert (reached - best.values).abs().max() < 0.05 * (energies.max(1).values - best.values).min()
    assert abs(float(played[0]) + 0.6) < 0.1  # what the data did
    assert min(abs(float(played[1]) - 0.4), abs(float(played[1]) - 0.8)) < 0.1  # one of the two, never between
    assert abs(float(played[0] - grid[best.indices[0]])) < 0.02


def test_settings_reach_the_optimiser(dataset) -> None:
    policy = create(tiny(), dataset.facts()).policy(IbcAct(samples=9, rounds=2, noise=0.1, shrink=0.7), None)
    assert policy.optimizer == DerivativeFree(9, 2, 0.1, 0.7)
    assert IbcAct() == IbcAct(512, 3, 0.33, 0.5)


def test_alone_as_in_company(dataset) -> None:
    method = create(tiny(), dataset.facts())
    observations = dataset.observations[:36].view(9, 4, 11)
    check_company(
        lambda: method.policy(IbcAct(samples=32), torch.Generator().manual_seed(1)), observations, torch.ones(9, 4)
    )


def test_a_loaded_run_plays_alike(dataset, tmp_path: Path) -> None:
    check_loading(tiny(), dataset, tmp_path)


def test_training_and_acting_never_look_at_a_value(dataset) -> None:
    check_never_looks(tiny(), dataset)


def test_discrete_data_is_refused(dataset) -> None:
    check_refuses_discrete(tiny(), dataset)


def test_learning_lowers_the_loss(dataset) -> None:
    run = fit(tiny(steps=300, hidden=(32, 32), negatives=8, log_every=50), dataset)
    assert run.metrics[-1]["loss"] < run.metrics[0]["loss"] - 0.2


@pytest.mark.parametrize("options", [{"mixed_precision": True}, {"hidden": (8,)}, {"margin": 0.0}, {"negatives": 1}])
def test_every_switch_trains(dataset, options: dict) -> None:
    assert len(fit(tiny(**options), dataset).metrics) == 4


@pytest.mark.parametrize(("options", "message"), [
    ({"negatives": 0}, "negatives must be at least 1"),
    ({"margin": -0.1}, "margin must lie in"),
    ({"hidden": ()}, "hidden needs at least one layer"),
])  # fmt: skip
def test_wrong_settings_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny(**options)


@pytest.mark.parametrize(("options", "message"), [
    ({"samples": 1}, "samples must be at least 2"),
    ({"rounds": -1}, "rounds must be at least 0"),
    ({"noise": -0.1}, "noise must lie in"),
    ({"shrink": 1.1}, "shrink must lie in"),
])  # fmt: skip
def test_wrong_searches_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        IbcAct(**options)


def test_presets() -> None:
    paper = with_preset(IbcConfig, "paper", "box")
    assert (paper.steps, paper.batch_size, paper.negatives, paper.learning_rate) == (100_000, 512, 256, 1e-3)
    assert with_preset(IbcConfig, "smoke", "box").steps == 40
