"""Sampling bias: tables against brute force, worlds against Monte Carlo, stacked networks against single ones."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from brrcrl_lib.base.config import with_preset
from brrcrl_lib.base.devices import generator
from brrcrl_lib.study.toys import sampling_bias as sb
from brrcrl_lib.study.toys.rare_worlds import SCENARIOS, Dataset, World, draw_dataset, make_world

TINY = with_preset(sb.SamplingBias, "smoke")
count_tables = hnp.arrays(np.int64, st.tuples(st.integers(1, 4), st.integers(2, 4), st.just(2)),
                          elements=st.integers(0, 50)).filter(lambda n: (n[:, :, 1].sum(1) > 0).all())  # fmt: skip


# -- tables -------------------------------------------------------------------------------------------------------


@given(count_tables)
def test_bayes_rule_on_a_table_changes_nothing_exactly(counts):
    exact = np.vectorize(Fraction, otypes=[object])(counts)
    assert (sb.bayes_from_counts(exact) == sb.posterior_from_counts(exact)).all()


@given(count_tables)
def test_direct_posterior_matches_a_replay_of_the_samples(counts):
    found = sb.posterior_from_counts(counts)
    for state, table in enumerate(counts):
        rewarded = [action for action, (_, ones) in enumerate(table) for _ in range(ones)]
        assert found[state] == pytest.approx([rewarded.count(a) / len(rewarded) for a in range(len(table))])


@given(count_tables, st.integers(2, 20))
def test_oversampling_the_rare_samples_leaves_the_posterior_as_it_is(counts, times):
    oversampled = counts * np.array([1, times])
    np.testing.assert_allclose(sb.bayes_from_counts(oversampled), sb.bayes_from_counts(counts))


def test_the_papers_picture_gives_zero_both_ways():
    counts = np.array([[[50, 0], [47, 3]]])  # up never paid, down paid three times
    assert sb.posterior_from_counts(counts).tolist() == [[0, 1]] == sb.bayes_from_counts(counts).tolist()


def test_tables_without_an_answer_are_refused():
    with pytest.raises(ValueError, match="without any R=1"):
        sb.posterior_from_counts(np.array([[[3, 0], [4, 0]]]))
    with pytest.raises(ValueError, match=r"\[states, actions, 2\]"):
        sb.bayes_from_counts(np.ones((2, 2)))


# -- worlds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_exact_posterior_matches_simulated_frequencies_in_single_states(scenario):
    world = make_world(scenario, 5, 3, 2.0, 1.5, generator(1))
    state, rng = torch.randn(5, 1, 3, generator=generator(2)), np.random.default_rng(3)
    up = torch.sigmoid(world.habit(state)).numpy()[:, 0]
    pays = {a: 0.3 * world.goodness(state, float(a)).exp().numpy()[:, 0] for a in (1, -1)}
    action = np.where(rng.random((200_000, 5)) < up, 1, -1)
    paid = rng.random(action.shape) < np.where(action == 1, pays[1], pays[-1])
    frequency = (paid & (action == 1)).sum(0) / paid.sum(0)
    np.testing.assert_allclose(world.posterior(state)[:, 0], frequency, atol=0.015)  # > 4 standard errors


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000))
def test_special_worlds_have_the_answers_they_promise(seed):
    states = torch.randn(2, 20, 3, generator=generator(seed))
    flat = make_world("flat_posterior", 2, 3, 2.0, 1.5, generator(seed))
    torch.testing.assert_close(flat.posterior(states), torch.full((2, 20), 0.5), atol=1e-5, rtol=0)
    no_gap = make_world("simple_reward", 2, 3, 0.0, 1.5, generator(seed))
    torch.testing.assert_close(no_gap.posterior(states), torch.sigmoid(no_gap.habit(states)))
    no_habit = make_world("flat_prior", 2, 3, 2.0, 1.5, generator(seed))
    torch.testing.assert_close(no_habit.posterior(states), torch.sigmoid(no_habit.lift(states)))


def test_datasets_follow_the_world_given_the_number_of_rare_samples():
    world = make_world("simple_reward", 1, 1, 2.0, 1.5, generator(5))
    data = draw_dataset(world, 300, 500, 100, generator(6))
    assert data.returns.shape == (300, 500) and (data.returns == 1).sum(1).eq(100).all()
    grid = torch.linspace(-6, 6, 4001)[None, :, None]  # quadrature over the one state feature
    density = torch.exp(-(grid[..., 0] ** 2) / 2)
    mass = {}
    for action in (1.0, -1.0):
        taken = density * torch.sigmoid(action * world.habit(grid))
        good = taken * world.goodness(grid, action).exp()
        mass[action] = (taken, good)
    total_good, total = sum(m[1].sum() for m in mass.values()), density.sum()
    rate = 0.2 * total / total_good
    for rare, samples in ((True, data.actions[:, :100]), (False, data.actions[:, 100:])):
        weight = {a: g if rare else t - rate * g for a, (t, g) in mass.items()}
        expected_up = float(weight[1.0].sum() / (weight[1.0].sum() + weight[-1.0].sum()))
        expected_state = float((grid[..., 0] * (weight[1.0] + weight[-1.0])).sum() / sum(weight.values()).sum())
        states = data.states[:, :100] if rare else data.states[:, 100:]
        assert float((samples == 1).float().mean()) == pytest.approx(expected_up, abs=0.015)
        assert float(states.mean()) == pytest.approx(expected_state, abs=0.03)


def test_impossible_requests_are_refused():
    world = make_world("simple_reward", 1, 2, 0.0, 1.5, generator(0))
    with pytest.raises(ValueError, match="did you mean 'flat_prior'"):
        make_world("flat_priors", 1, 2, 0.0, 1.5, generator(0))
    for rare in (0, 100):
        with pytest.raises(ValueError, match=r"rare_samples must lie in \[1, 100\)"):
            draw_dataset(world, 2, 100, rare, generator(0))
    with pytest.raises(ValueError, match="are not rare"):
        draw_dataset(world, 2, 100, 95, generator(0))
    never = World(2, world.habit, lambda s: s[..., 0] * 0 - 50, world.lift)
    with pytest.raises(RuntimeError, match="too few actions"):
        draw_dataset(never, 2, 100, 5, generator(0))


# -- stacked networks ---------------------------------------------------------------------------------------------


def flat_weights(model: sb.Model, dataset: int) -> torch.Tensor:
    return torch.cat([weight[dataset].flatten() for network in model.values() for weight in network])


@pytest.mark.parametrize("dims,hidden", [(1, 31), (4, 31), (4, 64), (10, 48)])
def test_both_methods_have_equally_many_weights(dims, hidden):
    config = replace(TINY, state_dims=dims, hidden=hidden)
    vanilla, bayes = (len(flat_weights(sb.new_model(m, config, generator(0)), 0)) for m in sb.METHODS)
    assert abs(vanilla / bayes - 1) < 0.05


@pytest.mark.parametrize("method", sb.METHODS)
def test_a_dataset_in_the_stack_learns_as_if_it_were_alone(method):
    world = make_world("simple_reward", TINY.datasets, TINY.state_dims, 2.0, 1.5, generator(0))
    data = draw_dataset(world, TINY.datasets, TINY.samples, 30, generator(1))
    swapped = Dataset(data.states.clone(), data.actions.clone(), data.returns, 30)
    swapped.states[1:], swapped.actions[1:] = data.states[1:].flip(0), -data.actions[1:].flip(0)
    one, other = (sb.fit(method, d, TINY, generator(2)) for d in (data, swapped))
    torch.testing.assert_close(flat_weights(one, 0), flat_weights(other, 0))
    assert not torch.allclose(flat_weights(one, 1), flat_weights(other, 1))


def test_datasets_in_the_stack_draw_their_own_batches(monkeypatch):
    fresh = sb.new_model

    def same_start(*arguments):
        model = fresh(*arguments)
        return {
            name: [w[:1].detach().expand_as(w).clone().requires_grad_() for w in net] for name, net in model.items()
        }

    monkeypatch.setattr(sb, "new_model", same_start)
    world = make_world("simple_reward", 1, TINY.state_dims, 2.0, 1.5, generator(0))
    one = draw_dataset(world, 1, TINY.samples, 30, generator(1))
    twins = Dataset(
        *(part.expand(TINY.datasets, *part.shape[1:]) for part in (one.states, one.actions, one.returns)), 30
    )
    model = sb.fit("vanilla", twins, TINY, generator(2))
    assert not torch.allclose(flat_weights(model, 0), flat_weights(model, 1))  # else all errors would share one luck


def test_the_network_and_its_likelihood_match_a_loop_over_samples():
    model, g = sb.new_model("bayes", TINY, generator(0)), generator(1)
    for network in model.values():
        network[-2].data *= 30  # logits of order one
    states = torch.randn(TINY.datasets, 5, TINY.state_dims, generator=g)
    actions, returns = torch.randn(2, TINY.datasets, 5, generator=g).sign()
    found = sb.negative_log_likelihood(model, states, actions, returns)

    def probability(network, dataset, inputs, outcome):
        x = inputs.numpy()
        w = [weight[dataset].detach().numpy() for weight in network]
        for matrix, bias in ((w[0], w[1]), (w[2], w[3])):
            x = np.maximum(x @ matrix + bias[0], 0)
        return 1 / (1 + np.exp(-float(outcome) * (x @ w[4] + w[5][0])[0]))

    for d, n in np.ndindex(TINY.datasets, 5):
        taken = probability(model["prior"], d, states[d, n], actions[d, n])
        paid = probability(model["reward"], d, torch.cat([states[d, n], actions[d, n, None]]), returns[d, n])
        assert float(found[d, n].detach()) == pytest.approx(-np.log(taken * paid), rel=1e-3)


def test_bayes_posterior_normalises_the_product_of_its_factors():
    model, states = sb.new_model("bayes", TINY, generator(0)), torch.randn(TINY.datasets, 6, TINY.state_dims)
    model["prior"][-2].data *= 30
    model["reward"][-2].data *= 30
    one = torch.ones(TINY.datasets, 6)
    up, down = ((-sb.negative_log_likelihood(model, states, a * one, one)).exp() for a in (1, -1))
    torch.testing.assert_close(sb.estimated_posterior(model, states), (up / (up + down)).detach())


def test_with_plenty_of_rare_samples_both_methods_find_the_exact_answer():
    config = replace(TINY, datasets=6, samples=4000, state_dims=1, roughness=0.7, steps=300)
    found = sb.errors("simple_reward", 800, config)
    assert found["vanilla"].mean() < 0.06 and found["bayes"].mean() < 0.06 < found["cloning"].mean()


def test_same_seed_same_errors_bit_for_bit_and_unknown_names_are_refused():
    first, again = (sb.errors("flat_prior", 3, TINY, seed=4) for _ in range(2))
    assert all((first[name] == again[name]).all() for name in first)
    assert (first["bayes"] != sb.errors("flat_prior", 3, TINY, seed=5)["bayes"]).any()
    with pytest.raises(ValueError, match="did you mean 'bayes'"):
        sb.new_model("bayess", TINY, generator(0))
    with pytest.raises(ValueError, match="did you mean 'long training'"):
        sb.with_protocol(TINY, "long trainings")


def test_protocols_change_training_and_nothing_else():
    results = {name: sb.errors("simple_reward", 30, sb.with_protocol(TINY, name)) for name in sb.PROTOCOLS}
    assert len({tuple(result["vanilla"]) for result in results.values()}) == len(sb.PROTOCOLS)
    assert sb.with_protocol(TINY, "standard") == TINY


# -- the sweep ----------------------------------------------------------------------------------------------------


def test_bootstrap_band_matches_the_normal_approximation():
    values = np.random.default_rng(0).normal(3.0, 2.0, size=400)
    mean, low, high = sb.bootstrap_means(values, np.random.default_rng(1), draws=4000)
    half_width = 1.96 * values.std() / 20
    assert mean == values.mean() and (mean - low, high - mean) == pytest.approx((half_width, half_width), rel=0.1)


def test_summary_pairs_the_methods_by_dataset():
    table = pd.DataFrame({"k": [1, 1, 2], "vanilla": [0.5, 0.9, 0.2], "bayes": [0.4, 0.8, 0.3], "cloning": 0.1})
    found = sb.summarise(table, ["k"], np.random.default_rng(0)).set_index(["k", "method"])
    assert tuple(found.loc[(1, "gain")]) == pytest.approx((0.1, 0.1, 0.1))  # constant difference: no spread
    assert found.loc[(2, "gain"), "mean"] == pytest.approx(-0.1)


def test_curves_to_look_at_have_one_row_per_dataset():
    found = sb.fitted_curves(10, 2.0, TINY)
    assert found["vanilla"].shape == found["bayes"].shape == (TINY.datasets, len(found["walk"]))
    assert ((found["exact"] > 0) & (found["exact"] < 1)).all()


def test_recorded_results_hold_every_point_of_the_sweep():
    table, config = pd.read_csv(sb.RESULTS), sb.SamplingBias()
    sizes = table.groupby(["scenario", "protocol", "gap", "rare_samples"])["seed"].nunique()
    expected = len(SCENARIOS) * (len(config.rare_samples) + len(sb.PROTOCOLS) - 1) + len(config.gaps)
    assert len(sizes) == expected and (sizes == config.datasets).all()
    assert table[["vanilla", "bayes", "cloning"]].stack().between(0, 1).all()
