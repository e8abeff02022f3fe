"""The stairs against brute force: every trajectory, every definition, and the environment's own random numbers."""

import itertools

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

from brrcrl_lib.base.config import with_preset
from brrcrl_lib.study.toys.stairs import (
    ACTIONS,
    BERRIES,
    LEAP,
    MEDIOCRE,
    PICK,
    STEP,
    StairClimbing,
    Stairs,
    State,
    draw,
)
from brrcrl_lib.study.toys.stairs_agents import (
    StairsStudy,
    behave,
    joint_loss,
    learn,
    likelihood_loss,
    roll_out,
)
from brrcrl_lib.study.toys.stairs_exact import (
    RULES,
    Estimate,
    exact_estimate,
    joint_distribution,
    living_states,
    pong_return_distribution,
    table_shape,
    threshold,
)
from brrcrl_lib.study.toys.stairs_study import bootstrap_interval, episode_stream, measure, play, run_study, targets_for

SMALL = Stairs(height=3, budget=4, top_reward=5)


# -- the environment -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("berries", BERRIES)
def test_gymnasium_accepts_the_environment(berries):
    environment = gym.make("brrcrl/StairClimbing-v0", render_mode="rgb_array", berries=berries)
    check_env(environment.unwrapped, skip_render_check=False)


def test_the_same_seed_gives_the_same_episode_and_another_seed_another():
    def episode(seed):
        environment = StairClimbing(slip_probability=0.5)
        environment.reset(seed=seed)
        return [tuple(environment.step(LEAP)[0]) for _ in range(4)]

    assert episode(3) == episode(3)
    assert len({tuple(episode(seed)) for seed in range(20)}) > 1


def test_a_safe_climb_pays_berries_and_the_top():
    environment = StairClimbing()
    environment.reset(seed=0)
    moves = [PICK] * 3 + [STEP] * 9
    steps = [environment.step(action) for action in moves]
    assert [reward for _, reward, *_ in steps] == [1] * 3 + [0] * 8 + [20]
    assert [over for _, _, over, *_ in steps] == [False] * 11 + [True]
    with pytest.raises(RuntimeError, match="reset"):
        environment.step(STEP)


def test_a_forced_slip_ends_on_the_ground_whatever_the_action():
    for action in range(3):
        environment = StairClimbing(slip_probability=0.0)
        environment.reset(seed=0, options={"slip_at": 1})
        _, _, _, _, before = environment.step(STEP)
        observation, reward, _, _, info = environment.step(action)
        assert (tuple(observation), reward, before["slipped"], info["slipped"]) == ((0, 10, 1), 0, False, True)


@pytest.mark.parametrize("stairs", [Stairs(), SMALL, Stairs(height=5, budget=11)])
def test_the_top_is_out_of_reach_exactly_after_a_fatal_slip(stairs):
    """Against an exhaustive search for a path to the top, not against the formula."""

    def some_path(state):
        if state.height == stairs.height:
            return True
        if state.left == 0:
            return False
        return any(some_path(o.state) for action in range(3) for o in stairs.outcomes(state, action))

    for move in range(stairs.budget):
        slipped = stairs.slipped(State(0, stairs.budget - move, 0))
        assert some_path(slipped) == stairs.top_reachable(slipped) == (move < stairs.first_fatal_slip)


@pytest.mark.parametrize("option", [{"slip_at": -1}, {"slip_at": 12}, {"slip_at": 2.5}, {"slip_at": "soon"}])
def test_impossible_slips_are_refused(option):
    with pytest.raises(ValueError, match="from 0 to 11"):
        StairClimbing().reset(options=option)


def test_unknown_options_actions_and_rules_are_refused():
    with pytest.raises(ValueError, match="did you mean 'slip_at'"):
        StairClimbing().reset(options={"slipat": 3})
    with pytest.raises(ValueError, match="0 \\(pick\\)"):
        StairClimbing().step(7)
    with pytest.raises(ValueError, match="rgb_array"):
        StairClimbing(render_mode="human")
    for wrong in ({"berries": "under"}, {"slip_probability": 1.5}, {"height": 0}, {"budget": 5}, {"top_reward": -1}):
        with pytest.raises(ValueError):
            Stairs(**wrong)


def test_the_picture_shows_the_state():
    pictures = [
        draw(Stairs(), state).tobytes()
        for state in (State(0, 12, 0), State(0, 11, 0), State(1, 11, 0), State(1, 11, 1))
    ]
    assert len(set(pictures)) == 4
    environment = StairClimbing(render_mode="rgb_array")
    environment.reset(seed=0)
    assert environment.render().dtype == np.uint8 and StairClimbing().render() is None


# -- exact distributions -------------------------------------------------------------------------------------------


def enumerate_returns(stairs, behaviour):
    """p(a, R | s) by walking every trajectory from every state: no dynamic programming."""

    def futures(state):
        if stairs.is_over(state):
            return [(1.0, 0)]
        return [
            (p * o.probability * q, o.reward + rest)
            for a, p in enumerate(behaviour)
            for o in stairs.outcomes(state, a)
            for q, rest in futures(o.state)
        ]

    for state in living_states(stairs):
        table = {}
        for action, outcome in ((a, o) for a in range(3) for o in stairs.outcomes(state, a)):
            for q, rest in futures(outcome.state):
                key = action, outcome.reward + rest
                table[key] = table.get(key, 0.0) + behaviour[action] * outcome.probability * q
        yield state, table


@pytest.mark.parametrize("berries", BERRIES)
@pytest.mark.parametrize("behaviour", [MEDIOCRE, (0.2, 0.0, 0.8)])
def test_dynamic_programming_equals_the_enumeration_of_all_trajectories(berries, behaviour):
    stairs = Stairs(height=3, budget=4, top_reward=5, berries=berries)
    joint = joint_distribution(stairs, behaviour)
    for state, table in enumerate_returns(stairs, behaviour):
        expected = np.zeros_like(joint[state])
        for (action, total), probability in table.items():
            expected[action, total] += probability
        np.testing.assert_allclose(joint[state], expected, atol=1e-14)


def test_the_environment_draws_from_the_exact_distribution():
    """6,000 episodes of the Gymnasium environment; five standard errors."""
    environment, rng, episodes = StairClimbing(height=3, budget=4, top_reward=5), np.random.default_rng(99), 6000
    counts = np.zeros(joint_distribution(SMALL).shape[-1])
    environment.reset(seed=0)
    for _ in range(episodes):
        environment.reset()
        total, over = 0.0, False
        while not over:
            _, reward, over, _, _ = environment.step(int(rng.choice(3, p=MEDIOCRE)))
            total += reward
        counts[int(total)] += 1
    exact = joint_distribution(SMALL)[SMALL.start].sum(0)
    assert np.all(np.abs(counts / episodes - exact) <= 5 * np.sqrt(exact * (1 - exact) / episodes))


def test_lock_step_episodes_draw_from_the_exact_distribution_too():
    stairs, episodes = Stairs(berries="on"), 40_000
    returns = behave(stairs, episodes, np.random.default_rng(1)).rewards.sum(0)
    exact = joint_distribution(stairs)[stairs.start].sum(0)
    share = np.bincount(returns, minlength=len(exact)) / episodes
    assert np.all(np.abs(share - exact) <= 5 * np.sqrt(exact * (1 - exact) / episodes) + 1e-12)


def test_a_bad_behaviour_policy_is_refused():
    for wrong in ((0.5, 0.5), (0.5, 0.6, -0.1), (0.5, 0.5, 0.5)):
        with pytest.raises(ValueError, match="summing to 1"):
            joint_distribution(SMALL, wrong)


# -- the threshold and pi^delta ------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 20), min_size=1, max_size=12).filter(any), st.integers(1, 99))
def test_theta_is_the_largest_return_that_is_exceeded_often_enough(counts, percent):
    total = sum(counts)
    allowed = [r for r in range(len(counts)) if 100 * sum(counts[r:]) >= percent * total]  # exact integers
    assert threshold(np.array(counts) / total, percent / 100) == max(allowed)


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, 1.5])
def test_delta_outside_the_unit_interval_is_refused(delta):
    with pytest.raises(ValueError, match=r"\(0, 1\)"):
        threshold(np.array([0.5, 0.5]), delta)


@pytest.mark.parametrize("delta", [0.05, 0.1, 0.5])
def test_the_adaptive_policy_is_the_posterior_given_a_return_of_at_least_theta(delta):
    policy = exact_estimate(SMALL).adaptive_policy(delta)
    for state, table in enumerate_returns(SMALL, MEDIOCRE):
        returns = [sum(p for (_, total), p in table.items() if total >= r) for r in range(20)]
        theta = max(r for r in range(20) if returns[r] >= delta - 1e-9)
        weights = [sum(p for (b, total), p in table.items() if b == a and total >= theta) for a in range(3)]
        np.testing.assert_allclose(policy[state], np.array(weights) / sum(weights), atol=1e-12)


def test_the_exact_adaptive_rule_never_asks_for_the_impossible_and_the_oracle_admits_ignorance():
    estimate, stairs = exact_estimate(Stairs()), Stairs()
    for delta, state in itertools.product((0.02, 0.1, 0.5), living_states(stairs)):
        assert estimate.returns[state][threshold(estimate.returns, delta)[state]] > 0
    assert estimate.returns[0, 7, 1, 25] == 0
    np.testing.assert_allclose(estimate.policy[0, 7, 1, 25], MEDIOCRE)


def test_unknown_rules_are_refused():
    with pytest.raises(ValueError, match="did you mean 'adaptive'"):
        exact_estimate(SMALL).policy_for("adaptiv", 0.1)


# -- episodes ------------------------------------------------------------------------------------------------------


def always(action, stairs):
    """A policy table that ignores state and target."""
    return np.broadcast_to(np.eye(len(ACTIONS))[action], (*table_shape(stairs), 40, len(ACTIONS)))


def test_the_schedule_subtracts_what_was_received_and_the_others_do_not():
    stairs = Stairs()
    targets = np.full(table_shape(stairs), 27)
    lowered = roll_out(stairs, always(PICK, stairs), targets, 3, np.random.default_rng(0), subtract=True)
    kept = roll_out(stairs, always(PICK, stairs), targets, 3, np.random.default_rng(0))
    assert lowered.targets[:, 0].tolist() == list(range(27, 15, -1)) and set(kept.targets.ravel()) == {27}
    assert kept.rewards_to_go()[:, 0].tolist() == list(range(12, 0, -1))


def test_a_forced_slip_in_lock_step_equals_the_environment():
    stairs, environment = Stairs(slip_probability=0.0), StairClimbing(slip_probability=0.0)
    played = roll_out(
        stairs, always(STEP, stairs), np.zeros(table_shape(stairs), int), 2, np.random.default_rng(0), slip_at=4
    )
    observation, _ = environment.reset(seed=0, options={"slip_at": 4})
    for now in range(stairs.budget):
        assert played.states[now, 1].tolist() == observation.tolist()
        observation, *_ = environment.step(STEP)


def test_test_episodes_use_other_random_numbers_than_the_data():
    for seed, slip_at in itertools.product(range(3), (-1, 0, 4)):
        assert episode_stream(seed, slip_at).random() not in [np.random.default_rng(s).random() for s in range(12)]


def test_asking_for_the_impossible_is_counted():
    stairs = Stairs()
    estimate = Estimate(always(PICK, stairs)[..., :32, :], exact_estimate(stairs).returns)
    played = play(stairs, estimate, "max", 0.0, 27, 10, slip_at=4, seed=0)
    found = measure(stairs, played, 4, estimate.policy)
    assert (found["off_support"], found["unreachable"], found["counted_return"], found["p_pick"]) == (1, 1, 7, 1)
    ten_of_twelve = measure(stairs, play(stairs, estimate, "max", 0.0, 12, 10, -1, 0), -1, estimate.policy)
    # Only pickers: at height 0 and unhurt, 12 berries can come true while 12 moves are left; the top pays 20 or more.
    assert ten_of_twelve["off_support"] == pytest.approx(11 / 12, abs=1e-4)
    assert ten_of_twelve["unreachable"] < ten_of_twelve["off_support"]


# -- networks ------------------------------------------------------------------------------------------------------


def test_losses_equal_their_formulas():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 6, 3, 4, generator=generator)
    action, bucket = torch.tensor([[0, 1, 2, 0, 1, 2]]), torch.tensor([[0, 1, 2, 3, 0, 1]])
    joint = logits[0].flatten(1).softmax(1).reshape(6, 3, 4).double().numpy()
    rows, a, b = np.arange(6), action[0].numpy(), bucket[0].numpy()
    chosen = joint[rows, a, b]
    l0, l1 = -np.log(chosen / joint.sum(1)[rows, b]), -np.log(chosen / joint.sum(2)[rows, a])
    assert joint_loss(logits, action, bucket, 3.0).item() == pytest.approx((l0 + 3 * l1).mean(), rel=1e-5)
    assert likelihood_loss(logits, action, bucket).item() == pytest.approx(-np.log(chosen).mean(), rel=1e-5)


def test_l0_and_l1_leave_the_prior_open_where_actions_and_returns_coincide():
    """If each action has its own return, L0 + lambda L1 is the same for every action prior; the likelihood is not."""

    def logits(prior):
        return (
            torch.diag(torch.tensor(prior).log()).masked_fill(torch.eye(2) == 0, -1e9)[None, None].repeat(1, 10, 1, 1)
        )

    outcome = torch.tensor([[0] * 6 + [1] * 4])
    assert joint_loss(logits([0.6, 0.4]), outcome, outcome, 1.0) == joint_loss(
        logits([0.1, 0.9]), outcome, outcome, 1.0
    )
    assert likelihood_loss(logits([0.6, 0.4]), outcome, outcome) < likelihood_loss(logits([0.1, 0.9]), outcome, outcome)


def test_training_learns_and_seeds_reproduce_and_do_not_mix():
    stairs, study = Stairs(), with_preset(StairsStudy, "smoke", updates=100, batch=64, learning_rate=0.01)
    first, best = learn(stairs, study)
    again, _ = learn(stairs, study)
    alone, _ = learn(stairs, with_preset(StairsStudy, "smoke", updates=100, batch=64, learning_rate=0.01, seeds=1))
    exact = first["exact"][0].returns[stairs.start]
    for source in ("vanilla", "joint", "likelihood"):
        np.testing.assert_array_equal(first[source][0].policy, again[source][0].policy)
        np.testing.assert_allclose(first[source][0].policy, alone[source][0].policy, atol=1e-3)
        assert not np.allclose(first[source][0].policy, first[source][1].policy)
        np.testing.assert_allclose(first[source][0].policy.sum(-1), 1.0, atol=1e-5)
    for source in ("joint", "likelihood"):
        learnt = first[source][0].returns[stairs.start]
        uniform = np.full_like(exact, 1 / len(exact))
        assert np.abs(learnt - exact).sum() < 0.5 * np.abs(uniform - exact).sum()
    assert np.all(best >= 20)


def test_the_study_has_a_row_for_everything():
    study = with_preset(StairsStudy, "smoke", updates=2, data_episodes=50, episodes=5, deltas=(0.1,))
    rows, counts = run_study(study)
    assert len(rows) == 2 * 2 * 2 * (1 + 4 * len(RULES))  # layouts, slips, seeds, behaviour and agents
    assert rows[rows.source == "exact"].query("rule == 'adaptive'").off_support.eq(0).all()
    assert set(counts.groupby(["berries", "slip_at", "seed", "source", "rule"]).episodes.sum()) <= set(range(1, 6))


def test_targets_follow_their_rules():
    estimate, stairs = exact_estimate(Stairs()), Stairs()
    assert set(targets_for(stairs, estimate, "max", 0.1, 27).ravel()) == {27}
    assert targets_for(stairs, estimate, "modest", 0.1, 27)[stairs.start] == threshold(
        estimate.returns[stairs.start], 0.1
    )


def test_the_bootstrap_interval_covers_the_mean():
    values = np.random.default_rng(0).normal(3.0, 1.0, 30)
    low, high = bootstrap_interval(values, np.random.default_rng(1))
    spread = 1.96 * values.std(ddof=1) / np.sqrt(30)  # the normal approximation
    assert low == pytest.approx(values.mean() - spread, abs=0.08) and high == pytest.approx(
        values.mean() + spread, abs=0.08
    )


# -- Pong ----------------------------------------------------------------------------------------------------------


def test_pong_against_closed_forms():
    """From 0:19 in a game to 21, a return of 20 means 21 points won around exactly one lost: 21 orders."""
    assert pong_return_distribution(0, 19, 21, 0.5)[20] == pytest.approx(21 * 0.5**22)
    assert pong_return_distribution(0, 19, 20, 0.3)[20] == pytest.approx(0.3**20)
    assert 20 not in pong_return_distribution(2, 19, 21, 0.5)
    assert sum(pong_return_distribution(3, 5, 21, 0.4).values()) == pytest.approx(1)
    with pytest.raises(ValueError, match="scores from 0 to 20"):
        pong_return_distribution(21, 0, 21, 0.5)
