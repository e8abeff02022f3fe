"""A new behaviour policy and a kept p(R|s,a): what is swapped, what stays, and what more decisions do to it."""

from __future__ import annotations

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch

from brrcrl_lib.base.config import with_preset
from brrcrl_lib.base.devices import generator
from brrcrl_lib.study.figures import causal
from brrcrl_lib.study.toys import causal_shift as shift
from brrcrl_lib.study.toys import sampling_bias as sb
from brrcrl_lib.study.toys import tabular, theory
from brrcrl_lib.study.toys.rare_worlds import SCENARIOS, draw_dataset, make_world, random_wave

TINY = with_preset(sb.SamplingBias, "smoke", datasets=2)
STATES = torch.randn(2, 50, 4, generator=generator(1))


@pytest.fixture
def world():
    return make_world("simple_reward", 2, 4, 2.0, 1.5, generator(0))


def test_a_shift_moves_the_habit_and_nothing_else(world):
    other = random_wave(2, 4, 1.5, generator(5))
    half = shift.shifted(world, other, 0.5)
    torch.testing.assert_close(half.habit(STATES), (world.habit(STATES) + other(STATES)) / 2)
    assert torch.equal(half.goodness(STATES, 1.0), world.goodness(STATES, 1.0))
    assert torch.equal(shift.shifted(world, other, 0.0).posterior(STATES), world.posterior(STATES))


def test_an_action_that_is_never_taken_is_in_no_dataset(world):
    data = draw_dataset(shift.never_up(world), 2, 2000, 20, generator(2))
    blind = data.states[..., 0] > 0
    assert (data.actions[blind] == -1).all() and (data.actions[~blind] == 1).any()


def test_the_twin_differs_only_in_what_was_never_seen(world):
    other, unseen = shift.twin(world), STATES[..., 0] > 0
    torch.testing.assert_close(other.goodness(STATES, -1.0), world.goodness(STATES, -1.0))
    up, was = other.goodness(STATES, 1.0), world.goodness(STATES, 1.0)
    torch.testing.assert_close(up[~unseen], was[~unseen])
    torch.testing.assert_close(up[unseen].exp() + was[unseen].exp(), torch.ones_like(up[unseen]))  # sigmoid(-u)


def test_only_the_prior_is_swapped(world):
    other = random_wave(2, 4, 1.5, generator(5))
    models = [{m: sb.new_model(m, TINY, generator(seed)) for m in sb.METHODS} for seed in (0, 1)]
    new = shift.shifted(world, other, 1.0)
    found = shift.answers(*models, new, STATES)

    def reward(model, action):  # p(R=1|s,a)
        return torch.sigmoid(sb._logit(model["reward"], STATES, torch.full_like(STATES[..., 0], action)))

    with torch.no_grad():
        up, down = (reward(models[0]["bayes"], action) for action in (1.0, -1.0))
        cloned = sb.cloned_prior(models[1]["bayes"], STATES)
        for name, prior in (("bayes, cloned", cloned), ("bayes, known", torch.sigmoid(other(STATES)))):
            torch.testing.assert_close(found[name], prior * up / (prior * up + (1 - prior) * down))
    assert torch.equal(found["vanilla"], sb.estimated_posterior(models[0]["vanilla"], STATES))
    assert torch.equal(found["retrained"], sb.estimated_posterior(models[1]["vanilla"], STATES))
    assert tuple(found) == shift.ANSWERS


def test_with_the_true_reward_the_known_policy_leaves_no_error():
    """To condition the new joint p'(a|s) p(R|s,a) is Bayes' rule with the old data's p(R|s,a), for any shift."""
    rng = np.random.default_rng(0)
    prior, shifted_prior = rng.dirichlet(np.ones(3), size=(2, 5))
    reward = rng.random((5, 3))
    old, new = (np.stack([p * (1 - reward), p * reward], -1) for p in (prior, shifted_prior))
    kept = old[..., 1] / old.sum(-1)  # p(R=1|s,a), read from the old joint
    answer = shifted_prior * kept / (shifted_prior * kept).sum(1, keepdims=True)
    np.testing.assert_allclose(answer, sb.posterior_from_counts(new), atol=1e-12)
    assert np.abs(sb.posterior_from_counts(old) - sb.posterior_from_counts(new)).max() > 0.05


def test_old_returns_serve_a_new_policy_at_the_last_decision_only():
    rng = np.random.default_rng(1)
    old = theory.random_mdps(rng, 50, "skewed", deterministic=False)
    new = replace(old, behaviour=rng.dirichlet(np.ones(3), size=old.behaviour.shape[:2]))
    found = shift.stale_returns(old, new, 0.2)
    assert found["bayes, known"][-1].max() < 1e-12 < found["vanilla"][-1].max()
    assert found["bayes, known"][0].mean() > 0.01  # four decisions: three of them are still the old policy's
    exact = tabular.adaptive_policy(new, tabular.action_returns(new), 0.2)
    target = tabular.threshold(new, tabular.action_returns(new), 0.2)[2, 7, 1]
    reached = tabular.action_returns(old)[2, 7, 1, :, target:].sum(-1)  # one state by hand
    by_hand = old.behaviour[7, 1] * reached / (old.behaviour[7, 1] * reached).sum()
    assert found["vanilla"][2, 7, 1] == pytest.approx(0.5 * np.abs(by_hand - exact[2, 7, 1]).sum())


def test_a_small_run_has_every_row():
    config = with_preset(shift.CausalShift, "smoke")
    table = shift.run_shifts(config, "smoke")
    assert len(table) == 3 * config.worlds * (len(config.strengths) + 2)
    assert (table[(table.strength == 0) & (table["shift"] == "habit")]["exact vanilla"] == 0).all()
    assert table[list(shift.ANSWERS)].notna().all(axis=None) and (table[list(shift.ANSWERS)] <= 1).all(axis=None)


def test_the_recorded_rows_are_those_of_the_settings():
    table = pd.read_csv(shift.RESULTS)
    config = shift.CausalShift()
    counts = table.groupby(["scenario", "shift", "strength", "part"]).seed.nunique()
    assert (counts == config.worlds).all() and len(counts) == 3 * (len(config.strengths) + 2)


def test_the_figure_shows_means_over_worlds_and_seen_states_first():
    table = pd.read_csv(shift.RESULTS)
    habit = table[(table["shift"] == "habit") & (table.scenario == "flat_prior")]
    unseen = table[table["shift"] == "unseen"]
    _, (left, right) = plt.subplots(1, 2)
    causal.draw_shift(left, habit)
    drawn = {line.get_label(): line.get_ydata() for line in left.lines}
    np.testing.assert_allclose(drawn["Bayes, known"], habit.groupby("strength")["bayes, known"].mean())
    causal.draw_unseen(right, unseen, ("vanilla", "bayes, known", "policy alone"))
    vanilla = unseen.groupby(["part", "scenario"]).vanilla.mean()
    expected = [vanilla[part, scenario] for part in ("seen", "never seen") for scenario in SCENARIOS]
    np.testing.assert_allclose(right.lines[0].get_ydata(), expected)
    assert [label.get_text() for label in right.get_xticklabels()] == list("ABCABC")
    plt.close("all")
